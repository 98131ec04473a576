"""The E-step of expectation maximisation: expected counts of all table entries, for several runs at once.

It needs no enumeration of hidden states: the derivative of a row's log-likelihood by the logarithm of a table's entry is
the expected number of times that the row uses the entry. One upward pass over the clique tree and its derivative
therefore give all expected counts. Two things keep the pass small. All runs go through it together, as one more
dimension of the tables. And what a subtree says depends on the values below it alone, so each of its messages is computed
once for each pattern of values that occurs there, not once for each row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchpbp.baselines.rowwise import ROW, RUN, Part, rowwise_product
from torchpbp.distributed import sum_over_processes
from torchpbp.errors import DataError
from torchpbp.exact.calibration import Scope
from torchpbp.graph.clique_tree import CliqueTree, build_clique_tree
from torchpbp.graph.latent_graph import LatentGraph

CELLS_AT_ONCE = 1 << 18
"""Rows times runs handled at once: small blocks stay in the cache."""

LARGEST_MESSAGES = 1 << 28
"""Entries that the messages of a block may have, all nodes together: 2 GiB, where separators have many joint states."""

RESCALE_AFTER = 8
"""Observed variables whose probabilities may be multiplied before a message is rescaled."""


class TableLayout:
    """All conditional probability tables of a graph as one vector, so that a run is a row of a matrix.

    Args:
        graph: directed and discrete.
    """

    def __init__(self, graph: LatentGraph) -> None:
        self.scopes: tuple[Scope, ...] = tuple((*graph.parents(v), v) for v in graph.names)
        self.shapes = tuple(tuple(graph.num_states(v) for v in scope) for scope in self.scopes)
        self.sizes = [math.prod(shape) for shape in self.shapes]
        widths = torch.tensor(
            [shape[-1] for s, shape in zip(self.sizes, self.shapes, strict=True) for _ in range(s // shape[-1])]
        )
        self.widths = widths.double()  # entries of each distribution
        self.group = torch.repeat_interleave(torch.arange(len(widths)), widths)  # distribution of each entry

    def vector(self, tables: Mapping[Scope, Tensor]) -> Tensor:
        """(entries,) of tables without a dimension of runs."""
        return torch.cat([tables[scope].double().flatten() for scope in self.scopes])

    def tables(self, vectors: Tensor) -> dict[Scope, Tensor]:
        """scope -> (runs, *table) views of (runs, entries)."""
        parts = torch.split(vectors, self.sizes, dim=1)
        return {s: p.reshape(-1, *shape) for s, p, shape in zip(self.scopes, parts, self.shapes, strict=True)}

    def maximised(self, counts: Tensor, prior: float) -> Tensor:
        """The M-step: counts and pseudo-rows as distributions; uniform where there is neither.

        Args:
            counts: (runs, entries) expected counts.
            prior: pseudo-rows per entry.
        """
        raised = counts + prior
        totals = raised.new_zeros(len(raised), len(self.widths)).index_add_(1, self.group, raised)
        shares = raised / totals.clamp(min=1e-300)[:, self.group]
        empty = totals <= 0
        if bool(empty.any()):
            shares = torch.where(empty[:, self.group], (1 / self.widths)[self.group], shares)
        return shares


class ExpectationStep:
    """Expected counts over weighted rows.

    In several processes each holds a share of the rows. Every call then sums over all of them, so all must make the same
    calls; a process that has none of the rows of a call takes part in it too.

    Args:
        graph: directed and discrete.
        rows: name -> (rows,) states; -1 where not observed.
        counts: (rows,) how often each row occurs.

    Attributes:
        rows: their number, those of other processes included.
    """

    def __init__(self, graph: LatentGraph, rows: Mapping[str, Tensor], counts: Tensor) -> None:
        if len(counts) == 0:
            raise DataError("EM: expected at least one row, got none.")
        self.layout = TableLayout(graph)
        self.table = dict(rows)
        self.states = {v: graph.num_states(v) for v in graph.names}
        self.tree: CliqueTree = build_clique_tree(graph)
        self.counts = counts.double()
        self.rows = float(sum_over_processes(self.counts.sum()))
        self.separators = [tuple(sorted(s)) for s in self.tree.separators]
        self.message_entries = sum(math.prod(self.states[v] for v in s) for s in self.separators)  # of one row and run
        self.factors: list[list[Scope]] = [[] for _ in self.tree.cliques]
        holders: dict[str, list[int]] = {}  # cliques with each variable, the one nearest the root first
        for n, clique in enumerate(self.tree.cliques):
            for v in clique:
                holders.setdefault(v, []).append(n)
        for scope in self.layout.scopes:
            fitting = [n for n in holders[scope[-1]] if set(scope) <= self.tree.cliques[n]]
            self.factors[min(fitting, key=lambda n: len(self.tree.cliques[n]))].append(scope)
        self.lookup = {v: torch.cat([torch.eye(k), torch.ones(k, 1)], dim=1).double() for v, k in self.states.items()}
        self.evidence: list[dict[str, Tensor]] = [{} for _ in self.tree.cliques]
        for v, values in rows.items():
            self.evidence[holders[v][0]][v] = values
        self.ends = set(rows) - {v for scope in self.layout.scopes for v in scope[:-1]}
        self.incomplete = {v for v, values in rows.items() if bool((values < 0).any())}
        self._number_patterns()

    def __call__(self, vectors: Tensor, chosen: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-likelihood of the rows, and expected counts.

        Args:
            vectors: (runs, entries) tables P(last of a scope | the others), as :class:`TableLayout` lays them out.
            chosen: numbers of the rows to look at, of those in this process; all by default.

        Returns:
            (runs,) log-likelihood, -inf where a row is impossible, and (runs, entries) counts.
        """
        leaf = vectors.detach().requires_grad_()
        total, counts = vectors.new_zeros(len(vectors)), torch.zeros_like(vectors)
        for part in self._blocks(torch.arange(len(self.counts)) if chosen is None else chosen, len(vectors)):
            with torch.enable_grad():
                value = self.log_evidence(self.layout.tables(leaf), part) @ self.counts[part]
                (gradient,) = torch.autograd.grad(value.sum(), leaf)
            total += value.detach()
            counts += gradient
        return sum_over_processes(total), sum_over_processes(counts * vectors)

    @torch.no_grad()
    def log_likelihood(self, vectors: Tensor) -> Tensor:
        """(runs,) log-likelihood of all rows."""
        tables = self.layout.tables(vectors)
        blocks = self._blocks(torch.arange(len(self.counts)), len(vectors))
        sums = [self.log_evidence(tables, part) @ self.counts[part] for part in blocks]
        return sum_over_processes(torch.stack(sums).sum(dim=0))

    def _blocks(self, rows: Tensor, runs: int) -> tuple[Tensor, ...]:
        """The numbers of rows in blocks that go through the tree together."""
        block = max(1, min(CELLS_AT_ONCE, LARGEST_MESSAGES // self.message_entries) // runs)
        return torch.split(rows, block) if len(rows) else ()

    def log_evidence(self, tables: Mapping[Scope, Tensor], chosen: Tensor) -> Tensor:
        """(runs, chosen rows) log-probability of rows; differentiable in the tables."""
        up: dict[int, tuple[Tensor, Tensor | None, int]] = {}  # message, logarithm of its scale, variables since
        for node in range(len(self.tree) - 1, -1, -1):
            rows = self.firsts[node] if self._static(node, chosen) else chosen
            parts = [self._factor(tables[s], s, node, rows) for s in self.factors[node]]
            parts += [
                (self.lookup[v][:, x[rows]], (v, ROW)) for v, x in self.evidence[node].items() if v not in self.ends
            ]
            factors, log_scale = len(self.evidence[node]), None
            for child in self.tree.children[node]:
                message, scale, below = up.pop(child)
                if self._static(child, chosen):
                    index = self.patterns[child][rows]
                    message, scale = _picked(message, index), None if scale is None else _picked(scale, index)
                parts.append((message, (RUN, *self.separators[child], ROW)))
                log_scale = scale if log_scale is None else log_scale if scale is None else log_scale + scale
                factors += below
            message = self._contracted(parts, self.separators[node], len(tables[self.layout.scopes[0]]), len(rows))
            if node and factors > (RESCALE_AFTER if len(self.tree.children[self.tree.parent[node]]) <= 4 else 0):
                message, size = _rescaled(message)
                log_scale, factors = size if log_scale is None else log_scale + size, 0
            up[node] = message, log_scale, factors
        message, log_scale, _ = up[0]
        return message.log() if log_scale is None else message.log() + log_scale

    def _factor(self, table: Tensor, scope: Scope, node: int, rows: Tensor) -> Part:
        """A table, at the rows' states if its last variable is observed and has no children: faster than weights of states.

        Where that variable is missing, its probabilities add up to 1; each of them still has its derivative.
        """
        if scope[-1] not in self.ends:
            return table, (RUN, *scope)
        states = self.evidence[node][scope[-1]][rows]
        if scope[-1] in self.incomplete:
            table = torch.cat([table, table.sum(dim=-1, keepdim=True)], dim=-1)
            states = states.remainder(table.shape[-1])  # -1 stands for the last
        return _picked(table, states), (RUN, *scope[:-1], ROW)

    def _contracted(self, parts: list[Part], separator: Scope, runs: int, rows: int) -> Tensor:
        """(runs, *separator, rows) product of the parts, with ones for modes that none of them has."""
        wanted = (RUN, *separator, ROW)
        present = {mode for _, modes in parts for mode in modes}
        sizes: dict[Any, int] = {**self.states, RUN: runs, ROW: rows}
        ones: list[Part] = [(self.counts.new_ones(sizes[m]), (m,)) for m in wanted if m not in present]
        return rowwise_product(parts + ones, wanted)

    def _static(self, node: int, chosen: Tensor) -> bool:
        """Whether a node's message is computed once per pattern and not once per row."""
        return node > 0 and 2 * len(self.firsts[node]) <= len(chosen)

    def _number_patterns(self) -> None:
        """Number the different values that occur below each node: of each row, and a row that has each number."""
        self.patterns: list[Tensor] = [torch.empty(0, dtype=torch.int64)] * len(self.tree)
        self.firsts = list(self.patterns)
        for node in range(len(self.tree) - 1, 0, -1):
            below = [self.patterns[c] for c in self.tree.children[node]]
            columns = [x + 1 for x in self.evidence[node].values()] + below
            if columns:
                self.patterns[node], self.firsts[node] = numbered(columns)
            else:
                self.patterns[node], self.firsts[node] = torch.zeros_like(self.counts).long(), torch.tensor([0])


def numbered(columns: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Number the different rows of a table; far faster than ``torch.unique`` along a dimension.

    Args:
        columns: (rows,) non-negative integers each.

    Returns:
        (rows,) number of each row, and (different rows,) a row that has each number.
    """
    code = columns[0]
    for column in columns[1:]:
        pairs = code * (int(column.max()) + 1) + column  # below rows², as the numbers so far are dense
        code = torch.unique(pairs, return_inverse=True)[1]
    values, code = torch.unique(code, return_inverse=True)
    return code, torch.zeros_like(values).scatter_(0, code, torch.arange(len(code)))


def _picked(message: Tensor, index: Tensor) -> Tensor:
    """Entries of the last dimension. The derivative of gather is far quicker than that of an index."""
    return message.gather(-1, index.expand(*message.shape[:-1], -1))


def _rescaled(message: Tensor) -> tuple[Tensor, Tensor]:
    """(runs, *separator, rows) with largest entries 1, and the (runs, rows) logarithms of what they were."""
    size = message.detach().reshape(len(message), -1, message.shape[-1]).amax(dim=1)
    size = torch.where(size > 0, size, 1.0)
    return message / size.reshape(len(size), *[1] * (message.ndim - 2), -1), size.log()
