"""Networks of separators: messages as functions of the inside, and instruments as functions of the outside.

At a separator S the message is θ = (1, f(leaves inside)) and its instrument η = (1, g(leaves outside)), with small networks f and
g whose outputs are standardised. Stage 1 regresses θ (S1A) and the products below S (S1B) on η: two networks with common hidden
layers g and last layers (heads) in closed form. For a leaf with a single observable and a message of full rank, the features are the
message, without networks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchpbp.features.encoded import spread_of
from torchpbp.inference.leaf_features import LeafFeatures, weighted_statistics
from torchpbp.learning.stage1_nets import PredictedMessage, Stage1Nets
from torchpbp.planning.plan import Plan

INSIDE_LEAVES = 8
"""Largest number of observables inside a separator as inputs of its message: the core group first, then the nearest."""


class Masking(NamedTuple):
    """Rates at which leaves are hidden in moments, so that networks and context encoders are fitted to missing leaves.

    Args:
        instruments: share of rows with leaves hidden from the networks of instruments.
        context: share of rows with leaves hidden from context encoders.
        most: largest share of hidden leaves in such a row.
    """

    instruments: float = 0.3
    context: float = 0.8
    most: float = 0.75


@dataclass(frozen=True)
class Family:
    """Separators of equal shape, solved as one batch.

    Args:
        nodes: tree nodes below the separators.
        below: ``below[k]`` holds the k-th child of each node; empty for leaves.
        leaf: observables of each leaf; empty for inner nodes.
        rank: dimensions of the message.
        sizes: dimensions of each factor of the products below.
        width: dimensions of the instrument, without the constant.
    """

    nodes: tuple[int, ...]
    below: tuple[tuple[int, ...], ...]
    leaf: tuple[tuple[str, ...], ...]
    rank: int
    sizes: tuple[int, ...]
    width: int


class NetBank(nn.Module):
    """Multilayer perceptrons of equal shape, one for each of several separators, computed together.

    Args:
        columns: (nets, inputs) indices of each network's columns in the common inputs.
        widths: widths of the hidden layers and of the output.
        generator: random generator of the initial weights.

    Attributes:
        mean, spread: (nets, 1, outputs) statistics that standardise outputs in evaluation mode.
    """

    columns: Tensor
    mean: Tensor
    spread: Tensor

    def __init__(self, columns: Tensor, widths: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        nets, left = columns.shape
        self.register_buffer("columns", columns)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for right in widths:
            bound = 1 / math.sqrt(max(left, 1))
            self.weights.append(nn.Parameter(bound * (2 * torch.rand(nets, left, right, generator=generator) - 1)))
            self.biases.append(nn.Parameter(bound * (2 * torch.rand(nets, 1, right, generator=generator) - 1)))
            left = right
        self.register_buffer("mean", torch.zeros(nets, 1, left, dtype=torch.float64))
        self.register_buffer("spread", torch.ones(nets, 1, left, dtype=torch.float64))

    def raw(self, inputs: Tensor) -> Tensor:
        """(rows, all columns) -> (nets, rows, outputs), before standardisation."""
        h = inputs[:, self.columns].transpose(0, 1).to(self.weights[0])
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, torch.nn.functional.gelu(h) if i else h, weight)
        return h

    def forward(self, inputs: Tensor, weights: Tensor | None = None) -> Tensor:
        """(rows, all columns) -> (nets, rows, outputs), standardised: in training mode by statistics of the batch, in the dtype of
        the networks, otherwise by the buffers, in float64.

        Args:
            inputs: common inputs of the batch.
            weights: (nets, rows) weights of the rows in the statistics of the batch, in training mode; equal by default.
        """
        out = self.raw(inputs)
        if not self.training:
            return (out.double() - self.mean) / self.spread
        mean, variance = weighted_statistics(out, weights)
        return (out - mean) / spread_of(variance)


class MessageNets(Stage1Nets):
    """The networks f and g of all separators of a plan, with ridge parameters and closed-form heads.

    Args:
        plan: tree, instruments and ranks.
        dims: feature dimensions of each observable.
        widths: widths of the networks' input of each observable.
        hidden: widths of the hidden layers.
        instruments: dimensions of an instrument per dimension of its message.
        seed: seed of the initial weights.
        classes: number of classes of the condition variable, with separate heads; None without a condition variable.

    Attributes:
        log_ridge: (2, separators) parameter, logarithms of the ridge penalties of both stages.
    """

    def __init__(
        self,
        plan: Plan,
        dims: Mapping[str, int],
        widths: Mapping[str, int],
        hidden: Sequence[int] = (48, 48),
        instruments: float = 2.0,
        seed: int = 0,
        classes: int | None = None,
    ) -> None:
        super().__init__()
        self.plan, self.dims, self.widths = plan, dict(dims), dict(widths)
        self.hidden, self.instruments, self.seed = tuple(hidden), instruments, seed
        self.masking = Masking()
        generator = torch.Generator().manual_seed(seed)
        self._starts, start = {}, 0
        for v, width in self.widths.items():
            self._starts[v], start = start, start + width
        self._flags = {v: start + i for i, v in enumerate(self.widths)}  # columns of the observation flags
        self._zero = start + len(self.widths)
        tree = plan.tree
        self.own = {  # leaf -> observable whose features are the message
            n: tree.leaf_observables[n][0]
            for n in tree.leaves
            if len(tree.leaf_observables[n]) == 1 and plan[n].rank == dims[tree.leaf_observables[n][0]]
        }
        solved = [s.node for s in plan.separators if s.node not in self.own]
        self.solved = solved
        self.inside = {n: self._inside(n) for n in solved}
        self.outside = {n: plan[n].outside for n in solved}
        self.messages_, self._message_nodes = nn.ModuleList(), []
        for nodes, columns in self._grouped({n: self._columns(self.inside[n], False) for n in solved}):
            self._message_nodes.append(nodes)
            self.messages_.append(NetBank(columns, [*hidden, plan[nodes[0]].rank - 1], generator))
        self.instruments_, self._instrument_nodes = nn.ModuleList(), []
        for nodes, columns in self._grouped({n: self._columns(self.outside[n], True) for n in solved}):
            self._instrument_nodes.append(nodes)
            self.instruments_.append(NetBank(columns, [*hidden, self._instrument_size(plan[nodes[0]].rank)], generator))
        self.families = self._families()
        self.log_ridge = nn.Parameter(torch.full((2, len(plan.separators)), -4.0, dtype=torch.float64))
        for i, family in enumerate(self.families):
            count, products = len(family.nodes), math.prod(family.sizes)
            shape = (*([] if classes is None else [classes]), count, family.width + 1)
            self.register_buffer(f"head_a{i}", torch.zeros(*shape, family.rank, dtype=torch.float64))
            self.register_buffer(f"head_b{i}", torch.zeros(*shape, products, dtype=torch.float64))

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the networks; statistics and solves are in float64."""
        bank = self.messages_[0] if len(self.messages_) else None
        return bank.weights[0].dtype if isinstance(bank, NetBank) else torch.float32

    def _instrument_size(self, rank: int) -> int:
        return max(1, round(self.instruments * (rank - 1)))

    def _inside(self, node: int) -> tuple[str, ...]:
        """Observables that are inputs of a message."""
        core = self.plan[node].core
        inside = self.plan.tree.inside[node]
        others = [v for v in self.widths if v in inside and v not in core]
        return (*core, *others[: max(0, INSIDE_LEAVES - len(core))])

    def _columns(self, group: Sequence[str], flags: bool) -> list[int]:
        columns = [c for v in group for c in range(self._starts[v], self._starts[v] + self.widths[v])]
        return columns + [self._flags[v] for v in group] * flags or [self._zero]

    def _grouped(self, columns: Mapping[int, list[int]]) -> list[tuple[list[int], Tensor]]:
        """Nodes whose networks have equal output sizes, with their columns; narrower inputs are padded with zeros."""
        groups: dict[tuple[int, int], list[int]] = {}
        for n, c in columns.items():
            groups.setdefault((self.plan[n].rank, (len(c) + 15) // 16), []).append(n)
        result = []
        for nodes in groups.values():
            most = max(len(columns[n]) for n in nodes)
            padded = [columns[n] + [self._zero] * (most - len(columns[n])) for n in nodes]
            result.append((nodes, torch.tensor(padded, dtype=torch.int64)))
        return result

    def _families(self) -> list[Family]:
        plan, tree = self.plan, self.plan.tree
        groups: dict[tuple[object, ...], list[int]] = {}
        for n in self.solved:
            groups.setdefault((bool(tree.leaf_observables[n]), plan[n].rank, self._sizes(n)), []).append(n)
        result = []
        for nodes in groups.values():
            first = nodes[0]
            leaf = tuple(tree.leaf_observables[n] for n in nodes) if tree.leaf_observables[first] else ()
            below = () if leaf else tuple(zip(*(tree.children[n] for n in nodes), strict=True))
            rank = plan[first].rank
            result.append(Family(tuple(nodes), below, leaf, rank, self._sizes(first), self._instrument_size(rank)))
        return result

    def _sizes(self, node: int) -> tuple[int, ...]:
        leaf = self.plan.tree.leaf_observables[node]
        return tuple(self.dims[v] for v in leaf) or tuple(self.plan[c].rank for c in self.plan.tree.children[node])

    # -- outputs -------------------------------------------------------------------------------------------------

    def messages(self, leaves: LeafFeatures, weights: Mapping[int, Tensor] | None = None) -> dict[int, Tensor]:
        """θ of each separator, (rows, rank).

        Args:
            leaves: features of the rows.
            weights: node -> (rows,) weights of the rows in the statistics of a batch; equal by default.
        """
        result = {n: leaves.features[v] for n, v in self.own.items()}
        for nodes, out in self._outputs(self._message_nodes, self.messages_, self.common_inputs(leaves, None), weights):
            result |= zip(nodes, with_constant(out).unbind(), strict=True)
        return result

    def instrument_features(
        self, leaves: LeafFeatures, shown: Tensor, weights: Mapping[int, Tensor] | None = None
    ) -> dict[int, Tensor]:
        """η of each solved separator, (rows, 1 + width).

        Args:
            leaves: features of the rows.
            shown: (rows, observables) mask of inputs; unobserved ones are hidden in any case.
            weights: as for :meth:`messages`.
        """
        result: dict[int, Tensor] = {}
        inputs = self.common_inputs(leaves, shown)
        for nodes, out in self._outputs(self._instrument_nodes, self.instruments_, inputs, weights):
            result |= zip(nodes, with_constant(out).unbind(), strict=True)
        return result

    def common_inputs(self, leaves: LeafFeatures, shown: Tensor | None) -> Tensor:
        """(rows, columns) inputs of all observables, flags of shown observables, and a column of zeros.

        Args:
            leaves: features of the rows.
            shown: (rows, observables) mask; hidden inputs are set to 0. None: all observed inputs are shown.
        """
        flags = leaves.seen if shown is None else leaves.seen & shown
        order = {v: i for i, v in enumerate(leaves.features)}
        flag = flags[:, [order[v] for v in self.widths]]
        values = torch.cat([leaves.inputs[v].to(self.dtype) for v in self.widths], dim=1)
        width = torch.tensor(list(self.widths.values()), device=values.device)
        each = flag.repeat_interleave(width, dim=1, output_size=values.shape[1])
        masked = torch.where(each, values, torch.zeros_like(values))
        flag = flag.to(values)
        return torch.cat([masked, flag, torch.zeros_like(flag[:, :1])], dim=1)

    def _outputs(
        self,
        groups: Sequence[Sequence[int]],
        banks: nn.ModuleList,
        inputs: Tensor,
        weights: Mapping[int, Tensor] | None,
    ) -> list[tuple[Sequence[int], Tensor]]:
        result = []
        for nodes, bank in zip(groups, banks, strict=True):
            chosen = None if weights is None else torch.stack([weights[n] for n in nodes])
            result.append((nodes, bank(inputs, chosen)))
        return result

    def needed(self) -> dict[int, tuple[str, ...]]:
        """Per separator the observables that a row must observe to enter its moments: the inputs of message and products."""
        tree = self.plan.tree
        inputs = {n: (v,) for n, v in self.own.items()} | self.inside
        result = {}
        for n in self.solved:
            below = tree.leaf_observables[n] or tuple(v for c in tree.children[n] for v in inputs[c])
            result[n] = tuple(dict.fromkeys((*self.inside[n], *below)))
        result[0] = tuple(dict.fromkeys(v for c in tree.children[0] for v in inputs[c]))
        return result

    def predict(self, leaves: LeafFeatures) -> dict[int, PredictedMessage]:
        """Messages and products of the solved separators. With classes, predictions have a leading class dimension."""
        training = self.training
        self.eval()  # standardise by the training rows, not by this batch
        try:
            eta, result = self.instrument_features(leaves, leaves.seen), {}
        finally:
            self.train(training)
        for i, family in enumerate(self.families):
            stacked = torch.stack([eta[n] for n in family.nodes])  # (separators, rows, m)
            message, products = (stacked @ getattr(self, f"{head}{i}").to(stacked) for head in ("head_a", "head_b"))
            for k, n in enumerate(family.nodes):
                y = products[..., k, :, :]
                result[n] = PredictedMessage(message[..., k, :, :], y.reshape(*y.shape[:-1], *family.sizes))
        return result

    @torch.no_grad()
    def set_heads(self, heads: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Copy the solved last layers of S1A and S1B into the buffers, by family."""
        for i, (first, second) in enumerate(heads):
            getattr(self, f"head_a{i}").copy_(first)
            getattr(self, f"head_b{i}").copy_(second)

    def extra_repr(self) -> str:
        return f"{len(self.solved)} separators, hidden={list(self.hidden)}, instruments={self.instruments}"


def with_constant(values: Tensor) -> Tensor:
    """(…, d) -> (…, 1 + d) with a constant 1 in front."""
    return torch.cat([values.new_ones(*values.shape[:-1], 1), values], dim=-1)
