"""Rows that observe the same inner variables, on a clique tree of what they do not observe.

Observed values are put into the tables first, so the tree holds hidden variables only. All arrays are (runs, states…, rows):
operations run along the rows. What a subtree says depends on the values observed below it, so that its messages are computed
once for each pattern of values that occurs there, and what comes down to it is added up by pattern.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchpbp.exact.calibration import Scope
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inputs.distinct_rows import numbered
from torchpbp.models.likelihood.hidden_tree import RESCALE_AFTER, HiddenTree
from torchpbp.models.likelihood.lookup import Lookup

TINY = 1e-300


@dataclass(frozen=True)
class Family:
    """A table, as the rows of a group look at it.

    Args:
        scope: (parents…, variable).
        order: the table's dimensions, hidden variables first.
        hidden: hidden variables, sorted.
        shape: states of the hidden variables, then of the observed ones; a last state of the variable itself stands for missing.
        codes: (rows,) joint state of the observed variables; None where all are hidden.
        incomplete: whether the variable, which has no children, is missing in some rows.
    """

    scope: Scope
    order: tuple[int, ...]
    hidden: Scope
    shape: tuple[int, ...]
    codes: Tensor | None
    incomplete: bool

    @property
    def cells(self) -> int:
        """Joint states of the hidden variables."""
        return math.prod(self.shape[: len(self.hidden)])

    @property
    def size(self) -> int:
        """Joint states of the observed variables."""
        return math.prod(self.shape[len(self.hidden) :])

    def arranged(self, table: Tensor) -> Tensor:
        """(runs, cells, size) of (runs, *scope); where the variable is missing its probabilities add up to 1."""
        if self.incomplete:
            table = torch.cat([table, torch.ones_like(table[..., :1])], dim=-1)
        return table.permute(0, *[1 + i for i in self.order]).reshape(len(table), self.cells, self.size)

    def back(self, counts: Tensor) -> Tensor:
        """(n, *scope) of (n, cells, size), the state for missing included."""
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return counts.reshape(len(counts), *self.shape).permute(0, *[1 + i for i in inverse])


@dataclass
class Levels:
    """Where each node of the tree is computed: for all rows, or once for each pattern below it.

    Args:
        sizes: rows or patterns of each node.
        families: lookup of each family at its node; None where all its variables are hidden.
        children: lookup of each node in its parent's level; None where both have the same.
        evidence: (states, rows) of variables in the tree that some rows observe.
    """

    sizes: list[int]
    families: list[Lookup | None]
    children: list[Lookup | None]
    evidence: dict[str, Tensor] = field(default_factory=dict)


class RowGroup:
    """The E-step of some rows.

    Args:
        graph: directed and discrete.
        tree: of what the rows do not observe.
        rows: name -> (rows,) states of the observables; -1 where missing.
        weights: (rows,) how much each row counts.
    """

    def __init__(self, graph: LatentGraph, tree: HiddenTree, rows: Mapping[str, Tensor], weights: Tensor) -> None:
        self.tree, self.weights = tree, weights
        self.families = [
            self._family((*graph.parents(v), v), hidden, rows, not graph.children(v))
            for v, hidden in zip(graph.names, tree.hidden, strict=True)
        ]
        self.seen = {v: rows[v] for v in tree.joined if bool((rows[v] >= 0).any())}
        self.levels = self._compressed()
        self._orders: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def _family(self, scope: Scope, hidden: Scope, rows: Mapping[str, Tensor], end: bool) -> Family:
        outside = [v for v in scope if v not in hidden]
        incomplete = end and scope[-1] in outside and bool((rows[scope[-1]] < 0).any())
        sizes = {v: self.tree.states[v] + (incomplete and v == scope[-1]) for v in scope}
        codes = None
        for v in outside:  # -1 stands for the last state
            own = rows[v].remainder(sizes[v])
            codes = own if codes is None else codes * sizes[v] + own
        order = tuple(scope.index(v) for v in (*hidden, *outside))
        return Family(scope, order, hidden, tuple(sizes[v] for v in (*hidden, *outside)), codes, incomplete)

    def _compressed(self) -> Levels:
        """A node's level is that of the patterns below it where these are at most half as many as the rows."""
        rows = len(self.weights)
        nothing = self.weights.new_zeros(rows, dtype=torch.int64), self.weights.new_zeros(1, dtype=torch.int64)
        patterns: list[tuple[Tensor, Tensor]] = [nothing] * len(self.tree)
        for node in range(len(self.tree) - 1, 0, -1):
            columns = [
                f.codes for f, n in zip(self.families, self.tree.home, strict=True) if n == node and f.codes is not None
            ]
            columns += [x + 1 for v, x in self.seen.items() if self.tree.top[v] == node]
            columns += [patterns[c][0] for c in self.tree.children[node]]
            if columns:
                patterns[node] = numbered(columns)
        firsts = [
            f if n and 2 * len(f) <= rows else None for n, (_, f) in enumerate(patterns)
        ]  # rows that stand for their patterns; None: all rows
        children: list[Lookup | None] = [None] * len(self.tree)
        for node in range(1, len(self.tree)):
            below, above = firsts[node], firsts[self.tree.parent[node]]
            if below is not None:
                own = patterns[node][0]
                children[node] = Lookup(own if above is None else own[above], len(below))
        return self._levels(firsts, children, keep=True)

    def _levels(self, chosen: Sequence[Tensor | None], children: list[Lookup | None], keep: bool) -> Levels:
        """Levels of which each has the rows chosen for a node; None: all."""
        lookups: list[Lookup | None] = []
        for family, node in zip(self.families, self.tree.home, strict=True):
            codes, rows = family.codes, chosen[node]
            own = codes if codes is None or rows is None else codes[rows]
            lookups.append(None if own is None else Lookup(own, family.size, keep))
        evidence = {}
        for v, x in self.seen.items():
            rows = chosen[self.tree.top[v]]
            known = torch.eye(self.tree.states[v], dtype=torch.float64, device=x.device)
            known = torch.cat([known, torch.ones_like(known[:, :1])], dim=1)
            evidence[v] = known[:, x if rows is None else x[rows]]
        sizes = [len(self.weights) if rows is None else len(rows) for rows in chosen]
        return Levels(sizes, lookups, children, evidence)

    def at(self, chosen: Tensor) -> Levels:
        """Levels of some rows, in which each has its own place everywhere."""
        return self._levels([chosen] * len(self.tree), [None] * len(self.tree), keep=False)

    # -- passes --------------------------------------------------------------------------------------------------

    def upward(self, tables: Mapping[Scope, Tensor], levels: Levels) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """One pass to the root.

        Args:
            tables: scope -> (runs, *scope).
            levels: of the rows.

        Returns:
            (runs, rows) log-probability of each row, and for each node the product (runs, *clique, rows) of all that is at it
            or comes from below, and its sum (runs, *separator, rows).
        """
        count = len(self.tree)
        products: list[Tensor] = [self.weights] * count
        sums: list[Tensor] = [self.weights] * count
        entering = [self._entering(tables, node, levels) for node in range(count)]
        for node in range(count - 1, -1, -1):
            parts, scale = entering[node]
            product = self._product(node, parts)
            products[node] = product.expand(len(product), *self.tree.shape(node), levels.sizes[node])
            sums[node] = self._marginal(products[node], self.tree.cliques[node], self.tree.separators[node])
            if node:
                message, lookup, above = sums[node], levels.children[node], self.tree.parent[node]
                if self.tree.rescaled[node]:
                    message, size = _rescaled(message)
                    scale = _sum(scale, size)
                if lookup is not None:
                    message, scale = lookup.pick(message), None if scale is None else lookup.pick(scale)
                parts, before = entering[above]
                parts.append(self._in_clique(message, self.tree.separators[node], above))
                entering[above] = parts, _sum(before, scale)
        _, scale = entering[0]
        total = sums[0].log()
        return total if scale is None else total + scale, products, sums

    def downward(self, weights: Tensor, products: list[Tensor], sums: list[Tensor], levels: Levels) -> list[Tensor]:
        """One pass from the root.

        Args:
            weights: (rows,) of the root's rows.
            products, sums: of the upward pass.
            levels: of the rows.

        Returns:
            For each family (runs, cells, rows or patterns of its node) the posterior of its hidden variables, times the weights
            of the rows, added up by pattern.
        """
        marginals: list[dict[Scope, Tensor]] = []  # of each node, those known so far
        for node, clique in enumerate(self.tree.cliques):
            if node == 0:
                ratio = weights / sums[0].clamp(min=TINY)
            else:
                ratio = self._known_marginal(marginals[self.tree.parent[node]], self.tree.separators[node])
                lookup = levels.children[node]
                ratio = (ratio if lookup is None else lookup.add(ratio)) / sums[node].clamp(min=TINY)
            belief = products[node] * self._in_clique(ratio, self.tree.separators[node], node)
            marginals.append({clique: belief})
            for child in sorted(self.tree.children[node], key=lambda c: -len(self.tree.separators[c])):
                self._known_marginal(
                    marginals[node], self.tree.separators[child]
                )  # the largest first: others come from them
        posteriors = []
        for family, node in zip(self.families, self.tree.home, strict=True):
            marginal = self._known_marginal(marginals[node], family.hidden)
            posteriors.append(marginal.reshape(len(marginal), family.cells, -1))
        return posteriors

    # -- parts of them -------------------------------------------------------------------------------------------

    def _entering(
        self, tables: Mapping[Scope, Tensor], node: int, levels: Levels
    ) -> tuple[list[Tensor], Tensor | None]:
        """(runs, *clique, rows) factors that enter at a node, 1 where they do not depend on a dimension, and the logarithm of
        what they were divided by."""
        runs = len(next(iter(tables.values())))
        scale: Tensor | None = None
        parts = [self._in_clique(x[None], (v,), node) for v, x in levels.evidence.items() if self.tree.top[v] == node]
        gathered, count = None, 0
        for family, home, lookup in zip(self.families, self.tree.home, levels.families, strict=True):
            if home != node:
                continue
            values = family.arranged(tables[family.scope])
            if lookup is None:
                parts.append(self._in_clique(values.reshape(runs, *family.shape, 1), family.hidden, node))
                continue
            values = lookup.pick(values)
            gathered = values if gathered is None else gathered * values
            count += 1
            if count % RESCALE_AFTER == 0:
                gathered, size = _rescaled(gathered)
                scale = _sum(scale, size)
        if gathered is not None:  # a node for observed children has one set of parents, its clique
            parts.append(gathered.reshape(runs, *self.tree.shape(node), -1))
        if not parts and not self.tree.children[node]:
            parts.append(self.weights.new_ones(runs, *[1] * len(self.tree.cliques[node]), 1))
        return parts, scale

    def _product(self, node: int, parts: list[Tensor]) -> Tensor:
        """The product of what enters a node, in an order that is found once."""
        if (node, len(parts)) not in self._orders:
            self._orders[node, len(parts)] = _pairs([part.shape for part in parts])
        for i, j in self._orders[node, len(parts)]:
            parts[i] = parts[i] * parts.pop(j)
        return parts[0]

    def _in_clique(self, tensor: Tensor, scope: Scope, node: int) -> Tensor:
        """A view of (runs, *scope, rows) with a dimension of 1 for each other variable of the clique."""
        sizes = iter(tensor.shape[1:-1])
        shape = [next(sizes) if v in scope else 1 for v in self.tree.cliques[node]]
        return tensor.reshape(len(tensor), *shape, tensor.shape[-1])

    @classmethod
    def _known_marginal(cls, known: dict[Scope, Tensor], scope: Scope) -> Tensor:
        """A marginal that is known, or of the smallest one that is and contains it."""
        if scope not in known:
            source = min((s for s in known if set(s) >= set(scope)), key=len)
            known[scope] = cls._marginal(known[source], source, scope)
        return known[scope]

    @staticmethod
    def _marginal(belief: Tensor, clique: Scope, scope: Scope) -> Tensor:
        away = [1 + i for i, v in enumerate(clique) if v not in scope]
        return belief.sum(dim=away) if away else belief


def _pairs(shapes: list[torch.Size]) -> list[tuple[int, int]]:
    """The order in which tensors that broadcast are multiplied, small results first; a product takes the place of its first
    factor, the place of the second is closed."""
    pool, pairs = list(shapes), []
    while len(pool) > 1:
        choices = [(i, j) for j in range(len(pool)) for i in range(j)]
        i, j = min(choices, key=lambda pair: math.prod(torch.broadcast_shapes(pool[pair[0]], pool[pair[1]])))
        pool[i] = torch.broadcast_shapes(pool[i], pool.pop(j))
        pairs.append((i, j))
    return pairs


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _rescaled(product: Tensor) -> tuple[Tensor, Tensor]:
    """(runs, …, rows) with largest entries 1, and the (runs, rows) logarithms of what they were."""
    size = product.amax(dim=tuple(range(1, product.ndim - 1))) if product.ndim > 2 else product
    size = torch.where(size > 0, size, 1.0)
    return product / size.reshape(len(size), *[1] * (product.ndim - 2), -1), size.log()
