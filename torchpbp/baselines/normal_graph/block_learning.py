"""Learning of all blocks of a normal graph: messages, then matrices, in each epoch [NG 3, 7.1]."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from torchpbp.baselines.normal_graph.propagation import BranchMessages, propagate
from torchpbp.baselines.normal_graph.rules import Rule, block_log_likelihood
from torchpbp.baselines.normal_graph.structure import Message, NormalGraph, messages_on

Start = Literal["messages", "parameters", "uniform"]
STARTS: tuple[Start, ...] = ("messages", "parameters", "uniform")


@dataclass(frozen=True)
class BlockRows:
    """Training and test rows at the free ends of a graph.

    Args:
        evidence: branch -> (N, states) weights.
        mask: (N,) the learning mask L[n]: weight of each row in learning; or (starts, N), a mask for each start.
        held_out: (N,) or (starts, N) weight of each row in held-out measures.
    """

    evidence: Mapping[str, Tensor]
    mask: Tensor
    held_out: Tensor

    def __len__(self) -> int:
        return self.mask.shape[-1]

    def merged(self) -> BlockRows:
        """Distinct rows with summed weights, equivalent for learning from exact messages."""
        if not self.evidence:
            return self
        wide = torch.cat(list(self.evidence.values()), dim=1)
        unique, inverse = torch.unique(wide, dim=0, return_inverse=True)
        parts = unique.split([w.shape[1] for w in self.evidence.values()], dim=1)
        mask, held_out = (
            w.new_zeros(*w.shape[:-1], len(unique)).index_add(-1, inverse, w) for w in (self.mask, self.held_out)
        )
        return BlockRows(dict(zip(self.evidence, parts, strict=True)), mask, held_out)


@dataclass
class LearningTrace:
    """Measures after each epoch, for each start.

    Attributes:
        aggregated, evidence: (starts,) per epoch, summed over training rows: Σ_n Σ_i log P(x_i | all other observables)
            [NG eq. 28], and Σ_n log P(x).
        held_out_aggregated, held_out_evidence: the same over held-out rows.
        thetas: matrices after each epoch, if requested.
    """

    aggregated: list[Tensor] = field(default_factory=list)
    evidence: list[Tensor] = field(default_factory=list)
    held_out_aggregated: list[Tensor] = field(default_factory=list)
    held_out_evidence: list[Tensor] = field(default_factory=list)
    thetas: list[dict[str, Tensor]] = field(default_factory=list)


def learn(
    graph: NormalGraph,
    rows: BlockRows,
    rule: Rule,
    epochs: int,
    seeds: Sequence[int],
    start: str = "messages",
    history: bool = False,
    on_epoch: Callable[[], object] = lambda: None,
) -> tuple[dict[str, Tensor], LearningTrace]:
    """Learn the matrices of all blocks, from several starts at once.

    Args:
        graph: the graph.
        rows: training and test rows.
        rule: learning rule of the blocks.
        epochs: number of epochs, each of one update of messages and of all blocks.
        seeds: seed of each start.
        start: "messages" – uniform matrices, and random messages in the first epoch; "parameters" – random
            matrices; "uniform" – uniform matrices and true messages, which do not distinguish states of a hidden variable.
        history: store the matrices of every epoch.
        on_epoch: called after each epoch.

    Returns:
        Block -> (starts, X, Y) matrices, and the trace of learning.
    """
    lead = (len(seeds),)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    thetas = {name: t.to(rows.mask.device) for name, t in _initial_thetas(graph, generators, start).items()}
    few = rows.merged()
    trace = LearningTrace()
    if start == "messages":  # drawn for each row, so equal rows differ in this epoch
        messages, mask = random_messages(graph, rows, generators), rows.mask
    else:
        messages, mask = propagate(graph, thetas, few.evidence, len(few), lead), few.mask
    for _ in range(epochs):
        thetas = _learn_blocks(graph, thetas, messages, mask, rule)
        messages, mask = propagate(graph, thetas, few.evidence, len(few), lead), few.mask  # also used in the next epoch
        _record(trace, messages, few)
        if history:
            trace.thetas.append({name: t.clone() for name, t in thetas.items()})
        on_epoch()
    return thetas, trace


def learn_block(
    f: Tensor, b: Tensor, mask: Tensor, rule: Rule, iterations: int, held_out: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Learn a single block between fixed messages [NG 6], from a uniform matrix.

    Args:
        f: (…, N, X) forward messages.
        b: (…, N, Y) backward messages.
        mask: (N,) learning mask.
        rule: learning rule, without its number of iterations.
        iterations: number of steps; for the rules "vit" and "var" all give the same matrix.
        held_out: (N,) weight of held-out rows.

    Returns:
        (iterations + 1, …) log-likelihood of the block at the start and after each step, the same on held-out rows, and the
        matrices (iterations + 1, …, X, Y).
    """
    single = replace(rule, iterations=1)
    held_out = 1 - mask if held_out is None else held_out
    theta = torch.full((*f.shape[:-2], f.shape[-1], b.shape[-1]), 1 / b.shape[-1], dtype=f.dtype, device=f.device)
    course = [theta]
    for _ in range(iterations):
        course.append(single(course[-1], f, b, mask))
    values, tests = ([block_log_likelihood(t, f, b, w) for t in course] for w in (mask, held_out))
    return torch.stack(values), torch.stack(tests), torch.stack(course)


def random_messages(graph: NormalGraph, rows: BlockRows, generators: Sequence[torch.Generator]) -> BranchMessages:
    """Normalised messages of independent uniform numbers, and the true messages at free ends."""
    result = BranchMessages(graph)
    fixed = _messages_at_free_ends(graph, rows, len(generators))
    for branch, states in graph.states.items():
        for message in messages_on(branch):
            if message in fixed:
                result.value[message] = fixed[message]
                continue
            shape = (len(rows), states)
            draws = [torch.rand(shape, generator=g, dtype=torch.float64, device="cpu") for g in generators]
            drawn = torch.stack(draws).to(rows.mask.device).clamp(min=1e-12)
            result.value[message] = drawn / drawn.sum(dim=-1, keepdim=True)
    return result


def _messages_at_free_ends(graph: NormalGraph, rows: BlockRows, starts: int) -> dict[Message, Tensor]:
    """Messages at the free ends: evidence weights, or uniform messages."""
    result: dict[Message, Tensor] = {}
    for branch, direction in graph.free_ends():
        states = graph.states[branch]
        weights = rows.evidence.get(branch, rows.mask.new_ones(len(rows), states))
        result[branch, direction] = (weights / weights.sum(dim=-1, keepdim=True)).expand(starts, len(rows), states)
    return result


def _initial_thetas(graph: NormalGraph, generators: Sequence[torch.Generator], start: str) -> dict[str, Tensor]:
    thetas = {}
    for name, shape in graph.learnable.items():
        if start == "parameters":
            drawn = torch.stack(
                [torch.rand(shape, generator=g, dtype=torch.float64, device="cpu") for g in generators]
            ).clamp(min=1e-12)
        else:
            drawn = torch.ones(len(generators), *shape, dtype=torch.float64, device="cpu")
        thetas[name] = drawn / drawn.sum(dim=-1, keepdim=True)
    return thetas


def _learn_blocks(
    graph: NormalGraph, thetas: Mapping[str, Tensor], messages: BranchMessages, mask: Tensor, rule: Rule
) -> dict[str, Tensor]:
    """Learn all blocks, with one call per shape; each block uses only its own messages."""
    groups: dict[tuple[int, int], list[str]] = defaultdict(list)
    for name, shape in graph.learnable.items():
        groups[shape].append(name)
    result: dict[str, Tensor] = {}
    for names in groups.values():
        blocks = [graph.blocks[name] for name in names]
        f = torch.stack([messages.value[block.input, "forward"] for block in blocks])
        b = torch.stack([messages.value[block.output, "backward"] for block in blocks])
        learned = rule(torch.stack([thetas[name] for name in names]), f, b, mask)
        result |= dict(zip(names, learned, strict=True))
    return result


def _record(trace: LearningTrace, messages: BranchMessages, rows: BlockRows) -> None:
    evidence = messages.log_evidence()
    aggregated = torch.zeros_like(evidence)
    for branch in rows.evidence:
        aggregated = aggregated + messages.agreement(branch)
    for values, target, held_out in (
        (aggregated, trace.aggregated, trace.held_out_aggregated),
        (evidence, trace.evidence, trace.held_out_evidence),
    ):
        for weights, where in ((rows.mask, target), (rows.held_out, held_out)):
            # A row without weight may be impossible; -inf times 0 would be NaN.
            where.append(torch.where(weights > 0, values * weights, torch.zeros_like(values)).sum(dim=-1))
