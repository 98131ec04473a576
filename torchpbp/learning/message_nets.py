"""Networks of separators: messages as functions of the inside, and instruments as functions of the outside.

At a separator S the message is θ = (1, f(leaves inside)) and its instrument η = (1, g(leaves outside)), with small networks f and
g whose outputs are standardised. Stage 1 regresses θ (S1A) and the products below S (S1B) on η: two networks with common hidden
layers g and last layers (heads) in closed form. For a leaf with a single observable and a message of full rank, the features are the
message, without networks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchpbp.distributed import sum_over_processes
from torchpbp.features.encoded import spread_of
from torchpbp.inference.leaf_features import LeafFeatures, weighted_statistics
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
        generator: random generator of the initial weights, on the CPU.
        copies: leading dimensions of copies of all networks, such as folds, with equal initial weights.
        dtype: of the weights.

    Attributes:
        mean, spread: (*copies, nets, 1, outputs) statistics that standardise outputs in evaluation mode.
    """

    columns: Tensor
    mean: Tensor
    spread: Tensor

    def __init__(
        self,
        columns: Tensor,
        widths: Sequence[int],
        generator: torch.Generator,
        copies: Sequence[int] = (),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        nets, left = columns.shape
        self.copies = tuple(copies)
        self.register_buffer("columns", columns, persistent=False)  # derived from the plan
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for right in widths:
            bound = 1 / math.sqrt(max(left, 1))
            for parameters, rows in ((self.weights, left), (self.biases, 1)):
                drawn = bound * (2 * torch.rand(nets, rows, right, generator=generator, device="cpu") - 1)
                parameters.append(nn.Parameter(drawn.to(dtype).expand(*self.copies, -1, -1, -1).clone()))
            left = right
        self.register_buffer("mean", torch.zeros(*self.copies, nets, 1, left, dtype=torch.float64))
        self.register_buffer("spread", torch.ones(*self.copies, nets, 1, left, dtype=torch.float64))

    def raw(self, inputs: Tensor) -> Tensor:
        """(rows, all columns) -> (*copies, nets, rows, outputs), before standardisation."""
        copies, rows = math.prod(self.copies), len(inputs)
        nets, left = self.columns.shape
        # Rows come last, so that the inputs of a network are complete lines, which all of its copies share.
        lines = inputs.to(self.weights[0]).T.contiguous().index_select(0, self.columns.reshape(-1))
        h, batch, right = lines.reshape(nets, left, rows), nets, left
        if not self.copies:
            for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
                h = torch.baddbmm(bias.mT, weight.mT, torch.nn.functional.gelu(h) if i else h)
            return h.mT
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if i:
                h, batch = torch.nn.functional.gelu(h).reshape(nets * copies, right, rows), nets * copies
            left, right = weight.shape[-2:]
            w, b = (p.reshape(copies, nets, -1, right).transpose(0, 1).mT for p in (weight, bias))
            outputs = nets * copies * right // batch
            h = torch.baddbmm(b.reshape(batch, outputs, 1), w.reshape(batch, outputs, left), h)
        out = h.reshape(nets, copies, right, rows).permute(1, 0, 3, 2)
        return out.reshape(*self.copies, nets, rows, right)

    def forward(self, inputs: Tensor, weights: Tensor | None = None) -> Tensor:
        """(rows, all columns) -> (*copies, nets, rows, outputs), standardised: in training mode by statistics of the batch, in the
        dtype of the networks, otherwise by the buffers, in float64.

        Args:
            inputs: common inputs of the batch.
            weights: (*copies, nets, rows) weights of the rows in the statistics of the batch, in training mode; equal by default.
        """
        out = self.raw(inputs)
        if not self.training:
            return (out.double() - self.mean) / self.spread
        mean, variance = weighted_statistics(out, weights)
        return (out - mean) / spread_of(variance)


def fit_banks(batches: Iterable[Sequence[tuple[NetBank, Tensor, Tensor]]]) -> None:
    """Set the mean and spread of the outputs of banks, over the rows of all processes.

    Args:
        batches: for each batch of rows all banks, each with its common inputs and (rows,) weights of the rows.
    """
    totals: dict[NetBank, list[Tensor]] = {}
    for batch in batches:
        for bank, inputs, weights in batch:
            out, weight = bank.raw(inputs).double(), weights.unsqueeze(-1)
            sums = [x.sum(dim=-2, keepdim=True) for x in (weight, out * weight, out.square() * weight)]
            old = totals.get(bank)
            totals[bank] = sums if old is None else [a + b for a, b in zip(old, sums, strict=True)]
    for bank, parts in totals.items():
        rows, first, second = (sum_over_processes(x) for x in parts)
        mean = first / rows
        bank.mean.copy_(mean)
        bank.spread.copy_(spread_of(second / rows - mean.square()))


class PredictedMessage(NamedTuple):
    """Predictions of the inside of a separator from its outside.

    Args:
        message: (batch, rank) prediction of the message θ (S1A); its first entry is the constant 1.
        products: (batch, sizes below…) prediction of the products of the messages below, or of the joint features of a leaf's
            observables (S1B), which stage 2 predicts from the message.
    """

    message: Tensor
    products: Tensor


class InstrumentNets(nn.Module):
    """The networks g of all separators of a plan, with closed-form heads for messages (S1A) and products below (S1B).

    Args:
        plan: tree, instruments and ranks.
        dims: feature dimensions of each observable.
        widths: widths of the networks' input of each observable.
        hidden: widths of the hidden layers.
        instruments: dimensions of an instrument per dimension of its message.
        seed: seed of the initial weights.
        classes: number of classes of the condition variable, with separate heads; None without a condition variable.
        folds: networks per separator and class, over which predictions are averaged; None: one network for all classes.
        dtype: of the networks; statistics and heads are in float64.
    """

    def __init__(
        self,
        plan: Plan,
        dims: Mapping[str, int],
        widths: Mapping[str, int],
        hidden: Sequence[int] = (32,),
        instruments: float = 8.0,
        seed: int = 0,
        classes: int | None = None,
        folds: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.plan, self.dims, self.widths = plan, dict(dims), dict(widths)
        self.hidden, self.instruments, self.seed, self.folds = tuple(hidden), instruments, seed, folds
        self._starts = dict(zip(widths, itertools.accumulate(widths.values(), initial=0), strict=False))
        self._zero = sum(widths.values()) + len(widths)
        self._flags = dict(zip(widths, range(sum(widths.values()), self._zero), strict=True))  # of observed leaves
        self.own = self._own_messages()
        self.solved = [s.node for s in plan.separators if s.node not in self.own]
        generator = torch.Generator().manual_seed(seed)
        self._add_message_nets(generator, dtype)
        lead = [] if classes is None else [classes]
        copies = [] if folds is None else [*lead, folds]
        self.instruments_, self._instrument_nodes = nn.ModuleList(), []
        for nodes, columns in self._grouped({n: self._columns(plan[n].outside, True) for n in self.solved}):
            self._instrument_nodes.append(nodes)
            size = self._instrument_size(plan[nodes[0]].rank)
            self.instruments_.append(NetBank(columns, [*hidden, size], generator, copies, dtype))
        self.families = self._families()
        for i, family in enumerate(self.families):
            shape = (*(copies or lead), len(family.nodes), family.width + 1)
            self.register_buffer(f"head_a{i}", torch.zeros(*shape, family.rank, dtype=torch.float64))
            self.register_buffer(f"head_b{i}", torch.zeros(*shape, math.prod(family.sizes), dtype=torch.float64))

    @classmethod
    def stacked(cls, members: Sequence[InstrumentNets], **lead: int) -> InstrumentNets:
        """Networks of several folds or classes with a leading dimension of these, without gradient.

        Args:
            members: networks of each.
            **lead: ``folds=`` or ``classes=``, the number of members.
        """
        first = members[0]
        device = next(iter(first.buffers())).device
        with device:
            result = cls(first.plan, first.dims, first.widths, **{**first.settings, **lead}).to(device)
        states = [nets.state_dict() for nets in members]
        result.load_state_dict({name: torch.stack([state[name] for state in states]) for name in states[0]})
        return result.requires_grad_(False).eval()

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments besides the plan, the leaves and the number of classes, as plain values."""
        return {
            "hidden": self.hidden,
            "instruments": self.instruments,
            "seed": self.seed,
            "folds": self.folds,
            "dtype": self.dtype,
        }

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the networks; statistics and solves are in float64."""
        bank = self.instruments_[0] if len(self.instruments_) else None
        return bank.weights[0].dtype if isinstance(bank, NetBank) else torch.float32

    def _own_messages(self) -> dict[int, str]:
        """Leaf -> observable whose features are the message, without networks."""
        return {}

    def _add_message_nets(self, generator: torch.Generator, dtype: torch.dtype) -> None:
        """Add the networks of messages; linear messages have none."""

    def _instrument_size(self, rank: int) -> int:
        return max(1, round(self.instruments * (rank - 1)))

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

    def instrument_features(
        self, leaves: LeafFeatures, shown: Tensor, weights: Mapping[int, Tensor] | None = None
    ) -> dict[int, Tensor]:
        """η of each solved separator, (rows, 1 + width), with leading dimensions of classes and folds.

        Args:
            leaves: features of the rows.
            shown: (rows, observables) mask of inputs; unobserved ones are hidden in any case.
            weights: node -> (…, rows) weights of the rows in the statistics of a batch; equal by default.
        """
        result: dict[int, Tensor] = {}
        inputs = self.common_inputs(leaves, shown)
        for nodes, out in self._outputs(self._instrument_nodes, self.instruments_, inputs, weights):
            result |= zip(nodes, with_constant(out).unbind(dim=-3), strict=True)
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
            chosen = None if weights is None else torch.stack([weights[n] for n in nodes], dim=-2)
            result.append((nodes, bank(inputs, chosen)))
        return result

    def predict(self, leaves: LeafFeatures) -> dict[int, PredictedMessage]:
        """Messages and products of the solved separators, from the observed leaves outside of each.

        With classes, predictions have a leading class dimension; over folds they are averaged.

        Args:
            leaves: features of a batch of rows; those of unobserved leaves are ignored.

        Returns:
            Tree node below each separator -> its prediction.
        """
        training = self.training
        self.eval()  # standardise by the training rows, not by this batch
        try:
            eta, result = self.instrument_features(leaves, leaves.seen), {}
        finally:
            self.train(training)
        for i, family in enumerate(self.families):
            stacked = torch.stack([eta[n] for n in family.nodes], dim=-3)  # (…, separators, rows, m)
            message, products = (stacked @ getattr(self, f"{head}{i}").to(stacked) for head in ("head_a", "head_b"))
            if self.folds is not None:
                message, products = message.mean(dim=-4), products.mean(dim=-4)
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


class MessageNets(InstrumentNets):
    """The networks f and g of all separators of a plan, with ridge parameters and closed-form heads.

    Args:
        plan: tree, instruments and ranks.
        dims: feature dimensions of each observable.
        widths: widths of the networks' input of each observable.
        hidden: widths of the hidden layers.
        instruments: dimensions of an instrument per dimension of its message.
        seed: seed of the initial weights.
        classes: number of classes of the condition variable, with separate heads; None without a condition variable.
        masking: rates of hidden leaves in the solve of the operators.
        dtype: of the networks.

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
        masking: Sequence[float] = Masking(),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(plan, dims, widths, hidden, instruments, seed, classes, dtype=dtype)
        self.masking = Masking(*masking)
        self.log_ridge = nn.Parameter(torch.full((2, len(plan.separators)), -4.0, dtype=torch.float64))

    @property
    def settings(self) -> dict[str, Any]:
        result = super().settings | {"masking": list(self.masking)}
        del result["folds"]
        return result

    def _own_messages(self) -> dict[int, str]:
        plan, tree = self.plan, self.plan.tree
        single = {n: tree.leaf_observables[n][0] for n in tree.leaves if len(tree.leaf_observables[n]) == 1}
        return {n: v for n, v in single.items() if plan[n].rank == self.dims[v]}

    def _add_message_nets(self, generator: torch.Generator, dtype: torch.dtype) -> None:
        self.inside = {n: self._inside(n) for n in self.solved}
        self.messages_, self._message_nodes = nn.ModuleList(), []
        for nodes, columns in self._grouped({n: self._columns(self.inside[n], False) for n in self.solved}):
            self._message_nodes.append(nodes)
            rank = self.plan[nodes[0]].rank
            self.messages_.append(NetBank(columns, [*self.hidden, rank - 1], generator, dtype=dtype))

    def _inside(self, node: int) -> tuple[str, ...]:
        """Observables that are inputs of a message."""
        core, tree = self.plan[node].core, self.plan.tree
        others = [v for v in self.widths if v in tree.inside[node] and v not in core]
        others.sort(key=lambda v: tree.depth[tree.leaf_of[v]])
        return (*core, *others[: max(0, INSIDE_LEAVES - len(core))])

    def messages(self, leaves: LeafFeatures, weights: Mapping[int, Tensor] | None = None) -> dict[int, Tensor]:
        """θ of each separator, (rows, rank).

        Args:
            leaves: features of the rows.
            weights: node -> (rows,) weights of the rows in the statistics of a batch; equal by default.
        """
        result = {n: leaves.features[v] for n, v in self.own.items()}
        for nodes, out in self._outputs(self._message_nodes, self.messages_, self.common_inputs(leaves, None), weights):
            result |= zip(nodes, with_constant(out).unbind(dim=-3), strict=True)
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


def with_constant(values: Tensor) -> Tensor:
    """(…, d) -> (…, 1 + d) with a constant 1 in front."""
    return torch.cat([values.new_ones(*values.shape[:-1], 1), values], dim=-1)
