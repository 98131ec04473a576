"""Belief update on a clique tree [MP 8-12], with the rows of a batch contiguous in the last dimension for speed.

A clique consists of its separator S, shared with the parent, and the rest R, where evidence enters. The factors that differ between
rows, evidence and messages from below, are over R and a part A of S; messages over S alone are multiplied later. Tables of rows
therefore have the size of A ∪ R, and matrix products with the potential, common to all rows, map them to S and back: the full table of
a clique is never computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchpbp.exact.calibration import PotentialTree

TINY = torch.finfo(torch.float64).tiny
CELLS_AT_ONCE = 1 << 17


@dataclass(frozen=True)
class _Node:
    """One clique in the form of message passing.

    Args:
        parent: number of the parent; -1 for the root.
        potential: (A, rest of S, R).
        above: numbers of states of A and the rest of S: dimensions of messages to and from the parent, before the batch.
        local: numbers of states of A and R.
        order: order of a message's dimensions in the parent's table.
        back: inverse of ``order``.
        entry: shape that broadcasts a message over the parent's table.
        pure: whether the parent's table is that over its separator, not that over A ∪ R.
        shared: flags of the dimensions of the parent's table that the message has.
    """

    parent: int
    potential: Tensor
    above: tuple[int, ...]
    local: tuple[int, ...]
    order: tuple[int, ...]
    back: tuple[int, ...]
    entry: tuple[int, ...]
    pure: bool
    shared: tuple[bool, ...]

    def up(self, rows: Tensor) -> Tensor:
        """(*above, batch) from a (*local, batch) table: products with the potential, summed over R."""
        first, _, rest = self.potential.shape
        full = rows.expand(*self.local, rows.shape[-1]).reshape(first, rest, -1)
        return torch.bmm(self.potential, full).reshape(*self.above, -1)

    def down(self, message: Tensor) -> Tensor:
        """(*local, batch) from a (*above, batch) message: products with the potential, summed over S without A."""
        first, other, _ = self.potential.shape
        flat = message.reshape(first, other, -1)
        table = self.potential.mT * flat if other == 1 else torch.bmm(self.potential.mT, flat)
        return table.reshape(*self.local, -1)

    def entering(self, message: Tensor) -> Tensor:
        """A (*above, batch) message in a shape that broadcasts over the parent's table."""
        return message.permute(*self.order, -1).reshape(*self.entry, message.shape[-1])

    def taken(self, table: Tensor) -> Tensor:
        """(*above, batch) sums of the parent's table."""
        return _sums(table, self.shared).permute(*self.back, -1)


@dataclass
class _Upward:
    """State of the upward pass.

    Args:
        rows: per node the (*local, batch) product of evidence and messages from below.
        pure: per node the (*above, batch) product of messages over the separator alone; None without any.
        sent: per node the (*above, batch) message to the parent.
        messages: the same, scaled to a largest entry of 1, in a shape that broadcasts over the parent's table.
        logs: per node the (batch,) log of the product of all scales in the subtree.
    """

    rows: list[Tensor]
    pure: list[Tensor | None]
    sent: list[Tensor]
    messages: list[Tensor]
    logs: list[Tensor]


@dataclass(frozen=True)
class Beliefs:
    """Calibrated cliques.

    Args:
        log_evidence: (batch,) log of the evidence's probability (for undirected models: times the partition function).
        tables: node -> (*local, batch) P(A, R | evidence); arbitrary in rows with impossible evidence.
        places: variable -> its node, and for each dimension of the node's table whether it is that of the variable.
    """

    log_evidence: Tensor
    tables: Mapping[int, Tensor]
    places: Mapping[str, tuple[int, tuple[bool, ...]]]

    def marginal(self, variable: str) -> Tensor:
        """(states, batch) posterior of one variable."""
        node, flags = self.places[variable]
        small = _sums(self.tables[node], flags)
        return small.expand(len(small), len(self.log_evidence))


class BeliefUpdate:
    """Message passing prepared for one tree.

    Args:
        model: tree and potentials.
    """

    def __init__(self, model: PotentialTree) -> None:
        self.model = model
        tree = model.tree
        states = {
            v: n
            for scope, table in zip(model.scopes, model.potentials, strict=True)
            for v, n in zip(scope, table.shape, strict=True)
        }
        self._above: list[list[str]] = []  # variables of each node's messages, A first
        self._local: list[list[str]] = []  # variables of each node's tables
        for node, scope in enumerate(model.scopes):
            separator = tree.separators[node] if node else frozenset()
            beside = [tree.separators[c] - separator for c in tree.children[node]]
            mixed = [tree.separators[c] for c, rest in zip(tree.children[node], beside, strict=True) if rest]
            shared = [v for v in scope if v in separator and any(v in s for s in mixed)]
            self._above.append([*shared, *(v for v in scope if v in separator and v not in shared)])
            self._local.append([*shared, *(v for v in scope if v not in separator)])
        self.nodes = [self._node(node, states) for node in range(len(tree))]
        self.places = {v: (n, tuple(u == v for u in self._local[n])) for v, n in model.top.items()}
        self._weight = {v: [states[u] if u == v else 1 for u in self._local[n]] for v, n in model.top.items()}

    def _node(self, node: int, states: Mapping[str, int]) -> _Node:
        model, above, local, parent = self.model, self._above[node], self._local[node], self.model.tree.parent[node]
        shared = [v for v in local if v in above]
        dims = [*above, *(v for v in local if v not in above)]
        potential = model.potentials[node].permute([model.scopes[node].index(v) for v in dims])
        sizes = [
            math.prod(states[v] for v in group)
            for group in (shared, set(above) - set(shared), set(local) - set(shared))
        ]
        pure = parent >= 0 and set(above) <= set(self._above[parent])
        target: list[str] = [] if parent < 0 else (self._above if pure else self._local)[parent]
        order = sorted(range(len(above)), key=lambda i: target.index(above[i])) if target else []
        return _Node(
            parent,
            potential.reshape(sizes).contiguous(),
            tuple(states[v] for v in above),
            tuple(states[v] for v in local),
            tuple(order),
            tuple(sorted(range(len(order)), key=order.__getitem__)),
            tuple(states[v] if v in above else 1 for v in target),
            pure,
            tuple(v in above for v in target),
        )

    def _with_evidence(self, weights: Mapping[str, Tensor]) -> set[int]:
        """Nodes with evidence in their subtrees, and the root."""
        nodes = {0}
        for v in weights:
            node = self.model.top[v]
            while node not in nodes:
                nodes.add(node)
                node = self.nodes[node].parent
        return nodes

    @cached_property
    def _plain(self) -> _Upward:
        """The upward pass without evidence, reused for subtrees without evidence."""
        return self._upward({}, range(len(self.nodes)), None)

    def _upward(self, weights: Mapping[str, Tensor], chosen: Sequence[int], base: _Upward | None) -> _Upward:
        """Messages from the leaves to the root.

        Args:
            weights: name -> (states, batch).
            chosen: nodes to compute, in ascending order.
            base: state of the other nodes.
        """
        tree, one = self.model.tree, self.nodes[0].potential.new_ones(1)
        none: list[Tensor | None] = [None] * len(self.nodes)
        start = base or _Upward([one] * len(none), none, [one] * len(none), [one] * len(none), [one] * len(none))
        state = _Upward(list(start.rows), list(start.pure), list(start.sent), list(start.messages), list(start.logs))
        entering: dict[int, list[Tensor]] = {}
        for v, weight in weights.items():
            entering.setdefault(self.model.top[v], []).append(weight.reshape(*self._weight[v], weight.shape[-1]))
        for n in reversed(chosen):
            node, children = self.nodes[n], tree.children[n]
            parts = [*entering.get(n, []), *(state.messages[c] for c in children if not self.nodes[c].pure)]
            parts.sort(key=torch.numel)  # multiply small tables first
            pure = [state.messages[c] for c in children if self.nodes[c].pure]
            state.rows[n] = _product(parts) if parts else one.reshape([1] * (len(node.local) + 1))
            together = _product(pure) if pure else None
            state.pure[n] = together
            raw = node.up(state.rows[n])
            state.sent[n] = raw = raw if together is None else raw * together
            scale = raw.detach().flatten(0, -2).amax(dim=0) if raw.ndim > 1 else raw.detach()
            scale = scale.clamp(min=TINY)
            state.logs[n] = sum((state.logs[c] for c in children), scale.log())
            if n:
                state.messages[n] = node.entering(raw * scale.reciprocal())
        return state

    @cached_property
    def rows_at_once(self) -> int:
        """Number of rows for which the largest table fits into the processor's cache."""
        largest = max(max(math.prod(n.local), math.prod(n.above)) for n in self.nodes)
        return max(64, min(1 << 14, CELLS_AT_ONCE // largest))

    def _path(self, node: int) -> list[int]:
        """Nodes from the root down to ``node``."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.nodes[node].parent
        return path[::-1]

    def __call__(self, weights: Mapping[str, Tensor], batch: int, wanted: int | None = None) -> Beliefs:
        """Absorb evidence, and pass messages up and down.

        Args:
            weights: name -> (states, batch) evidence weights.
            batch: number of rows.
            wanted: the clique whose table is computed; all by default.
        """
        up = self._upward(weights, sorted(self._with_evidence(weights)), self._plain) if weights else self._plain
        total = up.sent[0]
        exact = total.log() + sum((up.logs[c] for c in self.model.tree.children[0]), torch.zeros_like(total))
        posterior = {0: torch.ones_like(total)}  # posteriors of the separators
        tables: dict[int, Tensor] = {}
        for n in range(len(self.nodes)) if wanted is None else self._path(wanted):
            node = self.nodes[n]
            if n:
                posterior[n] = node.taken((posterior if node.pure else tables)[node.parent])
                message = posterior[n] / up.sent[n].clamp(min=TINY)  # 0 / 0 belongs to impossible states
            else:
                message = total.reciprocal()
            pure = up.pure[n]
            tables[n] = node.down(message if pure is None else message * pure) * up.rows[n]
        return Beliefs(exact.expand(batch), tables, self.places)


def _product(parts: Sequence[Tensor]) -> Tensor:
    result = parts[0]
    for part in parts[1:]:
        result = result * part
    return result


def _sums(table: Tensor, flags: Sequence[bool]) -> Tensor:
    """Sums of a (…, batch) table over all dimensions that are not flagged.

    Each run of adjacent dimensions is summed separately, which is many times faster than one sum over scattered dimensions.
    """
    last = len(flags)
    while last > 0:
        first = last - 1
        if not flags[first]:
            while first > 0 and not flags[first - 1]:
                first -= 1
            table = (table.flatten(first, last - 1) if last - first > 1 else table).sum(dim=first)
        last = first
    return table
