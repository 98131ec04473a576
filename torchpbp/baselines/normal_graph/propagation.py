"""Message passing on a normal graph, for all rows and all starts at once [NG 2].

Messages are normalised, and the logarithms of the constants are summed, so the probability of the evidence can be computed at any
branch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchpbp.baselines.normal_graph.structure import Block, Direction, Diverter, Message, NormalGraph, Round
from torchpbp.errors import ShapeError

Thetas = Mapping[str, Tensor]
"""Block -> (…, X, Y) row-stochastic matrix; leading dimensions hold several starts."""


@dataclass
class BranchMessages:
    """All messages of a normal graph.

    Args:
        graph: the graph.
        value: message -> (…, N, states), each summing to 1 (or all 0 for impossible evidence).
        log_scale: message -> (…, N) logarithm of the sum before normalisation.
    """

    graph: NormalGraph
    value: dict[Message, Tensor] = field(default_factory=dict)
    log_scale: dict[Message, Tensor] = field(default_factory=dict)

    def posterior(self, branch: str) -> Tensor:
        """(…, N, states) normalised products of forward and backward messages; all zeros for impossible evidence."""
        return _normalise(self.value[branch, "forward"] * self.value[branch, "backward"])[0]

    def agreement(self, branch: str) -> Tensor:
        """(…, N) log Σ f·b of the normalised messages at a branch: at a variable that is observed, the logarithm of its
        probability given all other evidence [NG eq. 28]."""
        return torch.linalg.vecdot(self.value[branch, "forward"], self.value[branch, "backward"]).log()

    def log_evidence(self) -> Tensor:
        """(…, N) log P(evidence): message constants of one branch in each connected part."""
        parts = [
            self.log_scale[branch, "forward"] + self.log_scale[branch, "backward"] + self.agreement(branch)
            for branch in self.graph.components
        ]
        return torch.stack(parts).sum(dim=0) - self.graph.log_constant

    def put(self, message: Message, unnormalised: Tensor, log_scale: Tensor | float) -> None:
        """Normalise a message and store it; ``log_scale`` is the (…, N) logarithm of earlier constants."""
        value, log_sum = _normalise(unnormalised)
        self.value[message] = value
        self.log_scale[message] = log_sum + log_scale


def propagate(
    graph: NormalGraph, thetas: Thetas, evidence: Mapping[str, Tensor], rows: int, lead: tuple[int, ...] = ()
) -> BranchMessages:
    """Send every message once, after all messages that it depends on.

    Args:
        graph: graph without loops.
        thetas: matrices of the blocks that learn, each (*lead, X, Y).
        evidence: branch with a free end -> (…, N, states) non-negative weights that enter there; uniform by default.
        rows: N.
        lead: leading dimensions, such as the number of starts.

    Returns:
        All messages, each (*lead, N, states).
    """
    ends = graph.free_ends()
    unknown = set(evidence) - {branch for branch, _ in ends}
    if unknown:
        raise ShapeError(
            f"Evidence at branches {sorted(unknown)}, which have no free end. Insert a diverter there with split()."
        )
    result = BranchMessages(graph)
    device = next((t.device for t in (*thetas.values(), *evidence.values())), torch.device("cpu"))
    for branch, direction in ends:
        states = graph.states[branch]
        weights = evidence.get(branch)
        if weights is None or (direction == "forward" and (branch, "backward") in ends):
            weights = torch.ones(
                rows, states, dtype=torch.float64, device=device
            )  # evidence enters an isolated branch once
        if weights.shape[-2:] != (rows, states):
            raise ShapeError(
                f"Evidence at branch '{branch}': expected (…, {rows}, {states}), got {tuple(weights.shape)}."
            )
        result.put((branch, direction), weights.expand(*lead, rows, states), 0.0)
    for current in graph.rounds:
        _send_blocks(result, [r for r in current if isinstance(r.node, Block)], thetas)
        _send_diverters(result, [r for r in current if isinstance(r.node, Diverter)])
    return result


def _send_blocks(result: BranchMessages, senders: list[Round], thetas: Thetas) -> None:
    """f_Y = θᵀ f_X and b_X = θ b_Y, blocks of one shape and direction in one product."""
    groups: dict[tuple[Direction, int, int], list[Block]] = defaultdict(list)
    for sender in senders:
        block = sender.node
        if not isinstance(block, Block):
            continue
        x, y = (result.graph.states[branch] for branch in block.branches)
        for branch in sender.outgoing:
            groups["forward" if branch == block.output else "backward", x, y].append(block)
    for (direction, *_), blocks in groups.items():
        forward = direction == "forward"
        inward: list[Message] = [(b.input if forward else b.output, direction) for b in blocks]
        outward: list[Message] = [(b.output if forward else b.input, direction) for b in blocks]
        device = result.value[inward[0]].device
        matrices = [thetas[b.name] if b.fixed is None else b.fixed.to(device) for b in blocks]
        if len(blocks) == 1:
            sent = [result.value[inward[0]] @ (matrices[0] if forward else matrices[0].mT)]
        else:
            lead = result.value[inward[0]].shape[:-2]
            stacked = torch.stack([m.expand(*lead, *m.shape[-2:]) for m in matrices])
            received = torch.stack([result.value[m] for m in inward])
            sent = list(received @ (stacked if forward else stacked.mT))
        for message, source, value in zip(outward, inward, sent, strict=True):
            result.put(message, value, result.log_scale[source])


def _send_diverters(result: BranchMessages, senders: list[Round]) -> None:
    """Each outgoing message is the product of the incoming messages on all other branches.

    Products are computed in logarithms, from both sides, which is stable for many branches and for zeros.
    """
    groups: dict[tuple[int, int, int], list[tuple[Diverter, list[str], tuple[str, ...]]]] = defaultdict(list)
    for sender in senders:
        node = sender.node
        if not isinstance(node, Diverter):
            continue
        received = [b for b in node.branches if (b, _towards(node, b)) in result.value]
        groups[len(received), len(node.branches), result.graph.states[received[0]]].append(
            (node, received, sender.outgoing)
        )
    for (heard, total, _), items in groups.items():
        logs = torch.stack(
            [torch.stack([result.value[b, _towards(node, b)] for b in received]).log() for node, received, _ in items],
            dim=1,
        )  # (heard, diverters, …, N, states)
        if heard < total:  # one branch is missing: only it receives a message, from all others
            others = logs.sum(dim=0, keepdim=True)
        else:
            empty = torch.zeros_like(logs[:1])
            before = torch.cat([empty, logs[:-1]]).cumsum(dim=0)
            after = torch.cat([empty, logs.flip(0)[:-1]]).cumsum(dim=0).flip(0)
            others = before + after
        top = others.amax(dim=-1, keepdim=True)
        top = torch.where(top.isfinite(), top, torch.zeros_like(top))
        values = (others - top).exp()
        for position, (node, received, outgoing) in enumerate(items):
            scales = {b: result.log_scale[b, _towards(node, b)] for b in received}
            everything = torch.stack(list(scales.values())).sum(dim=0)
            for branch in outgoing:
                row = received.index(branch) if heard == total else 0
                # A scale of -inf, of impossible evidence, cannot be subtracted.
                branch_scale = scales.get(branch)
                rest = everything if branch_scale is None else _without(scales, branch, everything, branch_scale)
                away: Direction = "forward" if branch in node.outputs else "backward"
                result.put((branch, away), values[row, position], rest + top[row, position, ..., 0])


def _without(scales: Mapping[str, Tensor], branch: str, everything: Tensor, branch_scale: Tensor) -> Tensor:
    if bool(branch_scale.isfinite().all()):
        return everything - branch_scale
    return torch.stack([s for b, s in scales.items() if b != branch]).sum(dim=0)


def _towards(node: Diverter, branch: str) -> Direction:
    return "forward" if branch in node.inputs else "backward"


def _normalise(values: Tensor) -> tuple[Tensor, Tensor]:
    # A product with ones is several times faster than a sum over so short a dimension. Zeros remain zeros.
    total = values @ values.new_ones(values.shape[-1])
    return values / total.clamp(min=1e-300).unsqueeze(-1), total.log()
