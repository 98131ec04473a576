"""Rows with the same observed inner variables, on a clique tree of the hidden variables.

Tables are first restricted to observed values, so the tree has hidden variables only. The upward message of a subtree depends
on the observed values below it only, so it is computed once per pattern of these values, and downward messages are summed
by pattern.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.graph.domains import Scope
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.models.likelihood.hidden_tree import HiddenTree
from torchpbp.models.likelihood.lookup import Lookup
from torchpbp.models.likelihood.passes import Family, Levels, Passes
from torchpbp.moments.distinct_rows import numbered


class RowGroup:
    """The E-step of rows with the same observed inner variables.

    Args:
        graph: directed and discrete.
        tree: of the variables hidden in these rows.
        rows: name -> (rows,) states of the observables; -1 where missing.
        weights: (rows,) weights of the rows.
        keep: whether to store matrices of indicators.

    Attributes:
        passes: over all rows.
    """

    def __init__(
        self, graph: LatentGraph, tree: HiddenTree, rows: Mapping[str, Tensor], weights: Tensor, keep: bool = True
    ) -> None:
        self.tree, self.weights = tree, weights
        self.families = [
            self._family((*graph.parents(v), v), hidden, rows, not graph.children(v))
            for v, hidden in zip(graph.names, tree.hidden, strict=True)
        ]
        self.seen = {v: rows[v] for v in tree.joined if bool((rows[v] >= 0).any())}
        self.passes = Passes(tree, self.families, self._compressed(keep), weights.device)
        self.incomplete = any(family.incomplete for family in self.families)
        self._sizes = [family.cells * family.size for family in self.families]
        self._arranged, self._entries, self._missing = self._places()

    def _family(self, scope: Scope, hidden: Scope, rows: Mapping[str, Tensor], end: bool) -> Family:
        outside = [v for v in scope if v not in hidden]
        incomplete = end and scope[-1] in outside and bool((rows[scope[-1]] < 0).any())
        sizes = {v: self.tree.states[v] + (incomplete and v == scope[-1]) for v in scope}
        codes = None
        for v in outside:  # -1 is mapped to the last state
            states = rows[v].remainder(sizes[v])
            codes = states if codes is None else codes * sizes[v] + states
        order = tuple(scope.index(v) for v in (*hidden, *outside))
        return Family(order, hidden, tuple(sizes[v] for v in (*hidden, *outside)), codes, incomplete)

    def _places(self) -> tuple[Tensor, Tensor, Tensor]:
        """For each place of the arranged tables its entry, or one past the last for missing values; and for each entry its column of
        the counts, and the column of rows that miss its variable, or one past the last without such rows."""
        device, columns = self.weights.device, self.passes.columns
        count = sum(math.prod(f.shape) // f.shape[-1] * (f.shape[-1] - f.incomplete) for f in self.families)
        arranged, entries, missing, start = [], [], [], 0
        for number, family in enumerate(self.families):
            inverse = sorted(range(len(family.order)), key=family.order.__getitem__)
            places = self.passes.places[number].reshape(family.shape).permute(inverse)
            observed, unobserved = places, torch.full_like(places, columns)
            if family.incomplete:
                observed, unobserved = places[..., :-1], places[..., -1:].expand_as(places[..., :-1])
            entry = torch.arange(start, start + observed.numel(), device=device).reshape(observed.shape)
            start += observed.numel()
            entries.append(observed.flatten())
            missing.append(unobserved.flatten())
            if family.incomplete:
                entry = torch.cat([entry, torch.full_like(entry[..., :1], count)], dim=-1)
            arranged.append(entry.permute(family.order).flatten())
        return torch.cat(arranged), torch.cat(entries), torch.cat(missing)

    def _compressed(self, keep: bool) -> Levels:
        """Levels of the nodes: the patterns of values below, if at most half as many as the rows, otherwise all rows."""
        rows = len(self.weights)
        nothing = self.weights.new_zeros(rows, dtype=torch.int64), self.weights.new_zeros(1, dtype=torch.int64)
        patterns: list[tuple[Tensor, Tensor]] = [nothing] * len(self.tree)
        for node in range(len(self.tree) - 1, 0, -1):
            family_codes = (self.families[i].codes for i in self.tree.families[node])
            columns = [codes for codes in family_codes if codes is not None]
            columns += [x + 1 for v, x in self.seen.items() if self.tree.top[v] == node]
            columns += [patterns[c][0] for c in self.tree.children[node]]
            if columns:
                patterns[node] = numbered(columns)
        firsts = [
            f if n and 2 * len(f) <= rows else None for n, (_, f) in enumerate(patterns)
        ]  # a row of each pattern; None: all rows
        children: list[Lookup | None] = [None] * len(self.tree)
        for node in range(1, len(self.tree)):
            below, above = firsts[node], firsts[self.tree.parent[node]]
            if below is not None:
                numbers = patterns[node][0]
                children[node] = Lookup(numbers if above is None else numbers[above], len(below), keep)
        return self._levels(firsts, children, keep)

    def _levels(self, chosen: Sequence[Tensor | None], children: list[Lookup | None], keep: bool) -> Levels:
        """Levels with the chosen rows of each node; None: all rows."""
        lookups: list[Lookup | None] = []
        for family, node in zip(self.families, self.tree.home, strict=True):
            codes, rows = family.codes, chosen[node]
            codes = codes if codes is None or rows is None else codes[rows]
            lookups.append(None if codes is None else Lookup(codes, family.size, keep))
        evidence = {}
        for v, x in self.seen.items():
            rows = chosen[self.tree.top[v]]
            indicators = torch.eye(self.tree.states[v], dtype=torch.float64, device=x.device)
            indicators = torch.cat([indicators, torch.ones_like(indicators[:, :1])], dim=1)  # -1: all states
            evidence[v] = indicators[:, x if rows is None else x[rows]]
        sizes = [len(self.weights) if rows is None else len(rows) for rows in chosen]
        return Levels(sizes, lookups, children, evidence)

    def at(self, chosen: Tensor, keep: bool = False) -> Passes:
        """Passes over some rows, without shared patterns.

        Args:
            chosen: numbers of the rows.
            keep: whether to store matrices of indicators, for repeated use.
        """
        levels = self._levels([chosen] * len(self.tree), [None] * len(self.tree), keep)
        return Passes(self.tree, self.families, levels, self.weights.device)

    def arranged(self, vectors: Tensor) -> Sequence[Tensor]:
        """(runs, cells · size) of each family from (runs, entries) tables; a missing value has probability 1."""
        if self.incomplete:
            vectors = torch.cat([vectors, vectors.new_ones(vectors.shape[0], 1)], dim=1)
        return torch.split(vectors.index_select(1, self._arranged), self._sizes, dim=1)

    def counts(self, columns: Tensor, vectors: Tensor) -> Tensor:
        """(runs, entries) expected counts from the (runs, columns) of the passes; rows that miss a variable are distributed over
        its states by the tables."""
        counts = columns.index_select(1, self._entries)
        if self.incomplete:
            missing = torch.cat([columns, columns.new_zeros(columns.shape[0], 1)], dim=1)
            counts = counts + missing.index_select(1, self._missing) * vectors
        return counts

    def pairs(self, columns: Tensor) -> Tensor:
        """(columns, columns) -> (entries, entries): sums over pairs of entries from those over pairs of columns."""
        return columns.index_select(0, self._entries).index_select(1, self._entries)
