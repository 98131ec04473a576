"""The E-step: expected counts of all table entries for several runs at once, and each row's scores for one.

One engine serves :class:`~torchpbp.EM`, :class:`~torchpbp.OnlineEM` and :class:`~torchpbp.MaximumLikelihood`. Rows that miss
values of inner variables are grouped by which; see :mod:`torchpbp.models.likelihood.row_group`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes, world_size
from torchpbp.errors import DataError
from torchpbp.exact.calibration import Scope
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inputs.distinct_rows import numbered
from torchpbp.models.likelihood.hidden_tree import HiddenTree
from torchpbp.models.likelihood.layout import TableLayout
from torchpbp.models.likelihood.lookup import Lookup
from torchpbp.models.likelihood.row_group import Family, Levels, RowGroup

ROWS_AT_ONCE = 1 << 14
"""Rows of a group: large enough that patterns of values occur often, small enough for a cache."""
CELLS_AT_ONCE = 1 << 20
"""Entries of the largest clique, over runs and rows, that are handled at once; with more, the runs are split."""
LARGEST_MESSAGES = 1 << 26
"""Entries that all cliques may have over the rows handled at once: half a GiB, where cliques have many joint states."""
MOST_GROUPS = 64
"""Groups of rows by the inner variables that they miss; with more, all of these variables join one tree."""
SCORES_AT_ONCE = 1 << 23
"""Entries of the matrix of scores that is held at once."""


class ExpectationStep:
    """Expected counts over weighted rows.

    In several processes each holds a share of the rows. Every call then sums over all of them, so all must make the same
    calls; a process that has none of the rows of a call takes part in it too.

    Args:
        graph: directed and discrete.
        rows: name -> (rows,) states; -1 where not observed.
        weights: (rows,) how much each row counts.
        block: rows handled at once, at most.

    Attributes:
        layout: of the tables.
        rows: total weight, that of other processes included.
    """

    def __init__(
        self, graph: LatentGraph, rows: Mapping[str, Tensor], weights: Tensor, block: int = ROWS_AT_ONCE
    ) -> None:
        if len(weights) == 0:
            raise DataError("Expected at least one row, got none.")
        self.graph, self.table, self.weights = graph, dict(rows), weights.double()
        device = self.weights.device
        self.layout = TableLayout(graph, device)
        self._held: list[tuple[RowGroup, Levels, Tensor]] | None = None
        self._samples: dict[int, ExpectationStep] = {}
        self.rows = float(sum_over_processes(self.weights.sum()))
        inner = [v for v in graph.observed if graph.children(v)]
        absent = (
            torch.stack([rows[v] < 0 for v in inner]) if inner else weights.new_zeros(0, len(weights), dtype=torch.bool)
        )
        if bool(absent.any()):
            number, firsts = numbered([row.long() for row in absent])
            patterns = absent[:, firsts].T.tolist()
            joined = [[v for v, missing in zip(inner, row, strict=True) if missing] for row in patterns]
            if len(joined) > MOST_GROUPS:
                joined = [[v for v, row in zip(inner, absent, strict=True) if bool(row.any())]]
                number = torch.zeros_like(number)
        else:
            number, joined = weights.new_zeros(len(weights), dtype=torch.int64), [[]]
        self.groups: list[RowGroup] = []
        self._number, self._place = (
            torch.empty_like(number),
            torch.empty_like(number),
        )  # of each row: group, place in it
        for g, names in enumerate(joined):
            tree = HiddenTree(graph, names)
            for own in torch.split(
                (number == g).nonzero().flatten(), max(1, min(block, LARGEST_MESSAGES // tree.entries))
            ):
                self._number[own], self._place[own] = len(self.groups), torch.arange(len(own), device=device)
                table = {v: x[own] for v, x in self.table.items()}
                self.groups.append(RowGroup(graph, tree, table, self.weights[own]))

    def __call__(self, vectors: Tensor, chosen: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-likelihood of the rows, and expected counts.

        Args:
            vectors: (runs, entries) tables P(last of a scope | the others), as :class:`TableLayout` lays them out.
            chosen: numbers of the rows to look at, of those in this process; all by default.

        Returns:
            (runs,) log-likelihood, -inf where a row is impossible, and (runs, entries) counts.
        """
        total, counts = vectors.new_zeros(len(vectors)), torch.zeros_like(vectors)
        for group, levels, weights in self._parts(chosen):
            most = max(1, CELLS_AT_ONCE // (group.tree.cells * len(weights)))
            for start in range(0, len(vectors), most):
                runs = slice(start, start + most)
                tables = self.layout.tables(vectors[runs])
                log_evidence, products, sums = group.upward(tables, levels)
                total[runs] += log_evidence @ weights
                posteriors = group.downward(weights, products, sums, levels)
                counts[runs] += self._counts(group, levels, posteriors, tables)
        return sum_over_processes(total), sum_over_processes(counts)

    def log_likelihood(self, vectors: Tensor) -> Tensor:
        """(runs,) log-likelihood of all rows."""
        tables = self.layout.tables(vectors)
        total = vectors.new_zeros(len(vectors))
        for group, levels, weights in self._parts(None):
            total += group.upward(tables, levels)[0] @ weights
        return sum_over_processes(total)

    def scores(self, vector: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Derivatives of each row's log-probability by the logits of the free entries, block by block.

        With r the posterior of a table's entries in a row, the score is r(pa, v) − r(pa) θ(v | pa).

        Args:
            vector: (entries,) tables.

        Yields:
            (rows, free parameters) scores and (rows,) weights, in the order of the groups.
        """
        tables = self.layout.tables(vector[None])
        for group, levels, weights in self._blocks():
            _, products, sums = group.upward(tables, levels)
            posteriors = group.downward(torch.ones_like(weights), products, sums, levels)
            columns = []
            for family, lookup, posterior in zip(group.families, levels.families, posteriors, strict=True):
                r = self._spread(family, lookup, posterior[0])
                columns.append((r - r.sum(dim=-1, keepdim=True) * tables[family.scope])[..., :-1].flatten(1))
            yield torch.cat(columns, dim=1), weights

    def information(self, vector: Tensor, most: int | None = None) -> Tensor:
        """The empirical Fisher information F = Σ s sᵀ of the free logits.

        Args:
            vector: (entries,) tables.
            most: estimate it from a sample of so many rows.

        Returns:
            (free parameters, free parameters).
        """
        size = self.layout.parameters
        total = vector.new_zeros(size, size)
        for scores, weights in self.sample(most).scores(vector):
            total += (scores * weights[:, None]).T @ scores
        return sum_over_processes(total)

    def sample(self, count: int | None) -> ExpectationStep:
        """The step over a systematic sample of the rows of all processes, the same one in each call.

        Args:
            count: draws, by weight; None, or as many as there are distinct rows, for all rows.
        """
        own = len(self.weights) if count is None else max(1, count // world_size())
        if own >= len(self.weights):
            return self
        if own not in self._samples:
            chosen, weights = systematic_sample(self.weights, own)
            self._samples[own] = ExpectationStep(self.graph, {v: x[chosen] for v, x in self.table.items()}, weights)
        return self._samples[own]

    # -- inner workings ------------------------------------------------------------------------------------------

    def _counts(
        self, group: RowGroup, levels: Levels, posteriors: list[Tensor], tables: Mapping[Scope, Tensor]
    ) -> Tensor:
        """(runs, entries); a row that misses a variable counts for its states by their probabilities."""
        columns = []
        for family, lookup, posterior in zip(group.families, levels.families, posteriors, strict=True):
            total = posterior.sum(dim=-1, keepdim=True) if lookup is None else lookup.add(posterior)
            counts = family.back(total)
            if family.incomplete:
                counts = counts[..., :-1] + counts[..., -1:] * tables[family.scope]
            columns.append(counts.flatten(1))
        return torch.cat(columns, dim=1)

    @staticmethod
    def _spread(family: Family, lookup: Lookup | None, posterior: Tensor) -> Tensor:
        """(rows, *scope) of (cells, rows): each row's posterior at what it observes, 0 where the variable is missing."""
        table = posterior.T.unsqueeze(-1)
        if lookup is not None:
            index = lookup.codes[:, None, None].expand(-1, family.cells, 1)
            table = table.new_zeros(len(table), family.cells, family.size).scatter_(2, index, table)
        table = family.back(table)
        return table[..., :-1] if family.incomplete else table

    def _blocks(self) -> list[tuple[RowGroup, Levels, Tensor]]:
        """Groups of rows whose scores are held at once; they are remembered."""
        if self._held is None:
            rows = torch.arange(len(self.weights), device=self.weights.device)
            blocks = torch.split(rows, max(1, SCORES_AT_ONCE // len(self.layout.group)))
            self._held = [part for block in blocks for part in self._parts(block)]
        return self._held

    def _parts(self, chosen: Tensor | None) -> Iterator[tuple[RowGroup, Levels, Tensor]]:
        """The groups, with the levels and weights of their rows, or of those chosen."""
        for g, group in enumerate(self.groups):
            if chosen is None:
                yield group, group.levels, group.weights
            else:
                own = self._place[chosen[self._number[chosen] == g]]
                if len(own):
                    yield group, group.at(own), group.weights[own]


def systematic_sample(weights: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Equally spaced draws along the cumulative weights: each row is drawn in proportion to its weight, up to rounding.

    Args:
        weights: (rows,) positive.
        count: draws.

    Returns:
        Numbers of the rows drawn, and what each counts: its draws, scaled so that the sum of the weights stays.
    """
    edges = weights.cumsum(0)
    places = (torch.arange(count, dtype=weights.dtype, device=weights.device) + 0.5) * (edges[-1] / count)
    drawn = torch.searchsorted(edges, places).clamp(max=len(weights) - 1)
    rows, draws = drawn.unique_consecutive(return_counts=True)
    return rows, draws * (edges[-1] / count)
