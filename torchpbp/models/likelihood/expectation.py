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
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.models.likelihood.hidden_tree import HiddenTree
from torchpbp.models.likelihood.layout import FamilyLayout
from torchpbp.models.likelihood.passes import Passes
from torchpbp.models.likelihood.row_group import RowGroup
from torchpbp.moments.distinct_rows import numbered

ROWS_AT_ONCE = 1 << 15
"""Rows of a group: large enough that patterns of values occur often, small enough for a cache."""
CELLS_AT_ONCE = 1 << 20
"""Entries of the largest clique, over runs and rows, that are handled at once; with more, the runs are split."""
LARGEST_MESSAGES = 1 << 26
"""Entries that all cliques may have over the rows handled at once: half a GiB, where cliques have many joint states."""
MOST_GROUPS = 64
"""Groups of rows by the inner variables that they miss; with more, all of these variables join one tree."""
LARGEST_INDICATORS = 1 << 26
"""Entries of matrices of indicators up to which they are held, for speed: half a GiB."""
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
        trees: of the same graph, by the inner variables that rows miss, where they are known.

    Attributes:
        layout: of the tables.
        rows: total weight, that of other processes included.
    """

    def __init__(
        self,
        graph: LatentGraph,
        rows: Mapping[str, Tensor],
        weights: Tensor,
        block: int = ROWS_AT_ONCE,
        trees: dict[tuple[str, ...], HiddenTree] | None = None,
    ) -> None:
        if len(weights) == 0:
            raise DataError("Expected at least one row, got none.")
        self.graph, self.table, self.weights = graph, dict(rows), weights.double()
        device = self.weights.device
        self.layout = FamilyLayout(graph, device)
        self._held: dict[int, list[tuple[RowGroup, Passes, Tensor]]] = {}
        self._samples: dict[int, ExpectationStep] = {}
        self._trees = {} if trees is None else trees
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
        self._indicators = sum(graph.num_states(v) for v in graph.observed)  # of a row
        keep = len(weights) * self._indicators <= LARGEST_INDICATORS
        self.groups: list[RowGroup] = []
        self._number, self._place = (
            torch.empty_like(number),
            torch.empty_like(number),
        )  # of each row: group, place in it
        for g, names in enumerate(joined):
            tree = self._trees.get(tuple(names)) or HiddenTree(graph, names)
            self._trees[tuple(names)] = tree
            for own in torch.split(
                (number == g).nonzero().flatten(), max(1, min(block, LARGEST_MESSAGES // tree.entries))
            ):
                self._number[own], self._place[own] = len(self.groups), torch.arange(len(own), device=device)
                table = {v: x[own] for v, x in self.table.items()}
                self.groups.append(RowGroup(graph, tree, table, self.weights[own], keep))

    def __call__(self, vectors: Tensor, chosen: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-likelihood of the rows, and expected counts.

        Args:
            vectors: (runs, entries) tables P(last of a scope | the others), as :class:`FamilyLayout` lays them out.
            chosen: numbers of the rows to look at, of those in this process; all by default.

        Returns:
            (runs,) log-likelihood, -inf where a row is impossible, and (runs, entries) counts.
        """
        total, counts = vectors.new_zeros(len(vectors)), torch.zeros_like(vectors)
        for group, passes, weights in self._parts(chosen):
            most = max(1, CELLS_AT_ONCE // (group.tree.cells * passes.rows))
            for start in range(0, vectors.shape[0], most):
                runs = slice(start, start + most)
                own = vectors[runs]
                log_evidence, products, sums = passes.upward(group.arranged(own))
                total[runs] += log_evidence @ weights
                columns = passes.counts(passes.downward(weights, products, sums), own.shape[0])
                counts[runs] += group.counts(columns, own)
        return sum_over_processes(total), sum_over_processes(counts)

    def log_likelihood(self, vectors: Tensor) -> Tensor:
        """(runs,) log-likelihood of all rows."""
        total = vectors.new_zeros(len(vectors))
        for group, passes, weights in self._parts(None):
            total += passes.upward(group.arranged(vectors))[0] @ weights
        return sum_over_processes(total)

    def information(self, vector: Tensor, most: int | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        """The empirical Fisher information F = Σ s sᵀ of the free logits.

        With r the posterior of a table's entries in a row, the scores of the row are s = r(pa, v) − r(pa) θ(v | pa): a linear
        map of r, so that it is applied to Σ r rᵀ.

        Args:
            vector: (entries,) tables.
            most: estimate it from a sample of so many rows.
            dtype: in which products of posteriors are added up.

        Returns:
            (free parameters, free parameters).
        """
        total = vector.new_zeros(len(vector), len(vector))
        for group, passes, weights in self._blocks(most):
            _, products, sums = passes.upward(group.arranged(vector[None]))
            r = passes.spread(passes.downward(torch.ones_like(weights), products, sums))
            weighted = (r * weights.sqrt()).to(dtype)
            total += group.pairs(weighted @ weighted.T)
        half = self.layout.scores(vector, total)  # sums over rows of a matrix are quicker than over columns
        return sum_over_processes(self.layout.scores(vector, half.T.contiguous()))

    def sample(self, count: int | None) -> ExpectationStep:
        """The step over a systematic sample of the rows of all processes, the same one in each call.

        Args:
            count: draws, by weight; None, or as many as there are distinct rows, for all rows.
        """
        own = len(self.weights) if count is None else max(1, count // world_size())
        if own >= len(self.weights):
            return self
        if own not in self._samples:
            self._samples[own] = ExpectationStep(self.graph, *self.drawn(own * world_size()), trees=self._trees)
        return self._samples[own]

    def drawn(self, count: int) -> tuple[dict[str, Tensor], Tensor]:
        """Table and weights of such a sample; all rows where there are no more."""
        own = max(1, count // world_size())
        if own >= len(self.weights):
            return self.table, self.weights
        chosen, weights = systematic_sample(self.weights, own)
        return {v: x[chosen] for v, x in self.table.items()}, weights

    # -- inner workings ------------------------------------------------------------------------------------------

    def _blocks(self, most: int | None) -> list[tuple[RowGroup, Passes, Tensor]]:
        """Passes over all rows, or over a systematic sample of so many, a limited number at once; they are remembered."""
        own = len(self.weights) if most is None else min(max(1, most // world_size()), len(self.weights))
        if own not in self._held:
            rows, weights = torch.arange(own, device=self.weights.device), self.weights
            if own < len(self.weights):
                rows, weights = systematic_sample(self.weights, own)
            size = max(1, SCORES_AT_ONCE // len(self.layout.group))
            blocks = zip(torch.split(rows, size), torch.split(weights, size), strict=True)
            keep = own * self._indicators <= LARGEST_INDICATORS
            self._held[own] = [part for block in blocks for part in self._parts(*block, keep=keep)]
        return self._held[own]

    def _parts(
        self, chosen: Tensor | None, weights: Tensor | None = None, keep: bool = False
    ) -> Iterator[tuple[RowGroup, Passes, Tensor]]:
        """The groups, with passes over their rows, or over those chosen, and what these count: their own weights by default."""
        for g, group in enumerate(self.groups):
            if chosen is None:
                yield group, group.passes, group.weights
                continue
            here = self._number[chosen] == g
            own = self._place[chosen[here]]
            if len(own):
                yield group, group.at(own, keep), group.weights[own] if weights is None else weights[here]


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
