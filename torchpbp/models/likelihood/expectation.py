"""The E-step: expected counts of all table entries for several runs, and the Fisher information of one run.

Used by :class:`~torchpbp.EM`, :class:`~torchpbp.OnlineEM` and :class:`~torchpbp.MaximumLikelihood`. Rows are grouped by the inner
variables that they miss; see :mod:`torchpbp.models.likelihood.row_group`.
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

LARGEST_GROUP = 1 << 15
"""Rows of a group: large enough that patterns of values occur often, small enough for a cache."""
CELLS_AT_ONCE = 1 << 20
"""Largest number of entries of a clique, over runs and rows, handled at once; otherwise the runs are split."""
LARGEST_MESSAGES = 1 << 26
"""Largest number of entries of all cliques over the rows handled at once: half a GiB."""
MOST_GROUPS = 64
"""Largest number of groups of rows; with more, there is one tree with all inner variables that some row misses."""
LARGEST_INDICATORS = 1 << 26
"""Largest number of entries of stored matrices of indicators: half a GiB."""
SCORES_AT_ONCE = 1 << 23
"""Largest number of entries of the matrix of scores of a block of rows."""


class ExpectationStep:
    """Expected counts over weighted rows.

    With several processes, each has a share of the rows, and every call sums over processes: all must make the same calls,
    including processes without rows in a call.

    Args:
        graph: directed and discrete.
        rows: name -> (rows,) states; -1 where not observed.
        weights: (rows,) weights of the rows.
        block: largest number of rows handled at once.
        trees: cache of the graph's trees: inner variables that rows miss -> tree.

    Attributes:
        layout: of the tables.
        rows: total weight over all processes.
    """

    def __init__(
        self,
        graph: LatentGraph,
        rows: Mapping[str, Tensor],
        weights: Tensor,
        block: int = LARGEST_GROUP,
        trees: dict[tuple[str, ...], HiddenTree] | None = None,
    ) -> None:
        if len(weights) == 0:
            raise DataError("Expected at least one row, got none.")
        self.graph, self.table, self.weights = graph, dict(rows), weights.double()
        device = self.weights.device
        self.layout = FamilyLayout(graph, device)
        self._cached_blocks: dict[int, list[tuple[RowGroup, Passes, Tensor]]] = {}
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
        self._number = torch.empty_like(number)  # group of each row
        self._place = torch.empty_like(number)  # place of each row in its group
        for g, names in enumerate(joined):
            tree = self._trees.get(tuple(names)) or HiddenTree(graph, names)
            self._trees[tuple(names)] = tree
            size = max(1, min(block, LARGEST_MESSAGES // tree.entries))
            for part in torch.split((number == g).nonzero().flatten(), size):
                self._number[part], self._place[part] = len(self.groups), torch.arange(len(part), device=device)
                table = {v: x[part] for v, x in self.table.items()}
                self.groups.append(RowGroup(graph, tree, table, self.weights[part], keep))

    def __call__(self, vectors: Tensor, chosen: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-likelihood of the rows, and expected counts.

        Args:
            vectors: (runs, entries) tables P(last of a scope | the others) in the layout of :class:`FamilyLayout`.
            chosen: numbers of rows of this process; all by default.

        Returns:
            (runs,) log-likelihood, -inf if a row is impossible, and (runs, entries) counts.
        """
        total, counts = vectors.new_zeros(len(vectors)), torch.zeros_like(vectors)
        for group, passes, weights in self._parts(chosen):
            most = max(1, CELLS_AT_ONCE // (group.tree.cells * passes.rows))
            for start in range(0, vectors.shape[0], most):
                runs = slice(start, start + most)
                tables = vectors[runs]
                log_evidence, products, sums = passes.upward(group.arranged(tables))
                total[runs] += log_evidence @ weights
                columns = passes.counts(passes.downward(weights, products, sums), tables.shape[0])
                counts[runs] += group.counts(columns, tables)
        return sum_over_processes(total), sum_over_processes(counts)

    def log_likelihood(self, vectors: Tensor) -> Tensor:
        """(runs,) log-likelihood of all rows."""
        total = vectors.new_zeros(len(vectors))
        for group, passes, weights in self._parts(None):
            total += passes.upward(group.arranged(vectors))[0] @ weights
        return sum_over_processes(total)

    def information(self, vector: Tensor, most: int | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        """The empirical Fisher information F = Σ s sᵀ of the free logits.

        With r the posterior of a table's entries in a row, the scores of the row are s = r(pa, v) − r(pa) θ(v | pa), a linear
        map of r, which is applied to Σ r rᵀ.

        Args:
            vector: (entries,) tables.
            most: size of a sample of rows for an estimate; None: all rows.
            dtype: of the sums of products of posteriors.

        Returns:
            (free parameters, free parameters).
        """
        total = vector.new_zeros(len(vector), len(vector))
        for group, passes, weights in self._blocks(most):
            _, products, sums = passes.upward(group.arranged(vector[None]))
            r = passes.spread(passes.downward(torch.ones_like(weights), products, sums))
            weighted = (r * weights.sqrt()).to(dtype)
            total += group.pairs(weighted @ weighted.T)
        half = self.layout.scores(vector, total)  # sums over rows of a matrix are faster than over columns
        return sum_over_processes(self.layout.scores(vector, half.T.contiguous()))

    def sample(self, count: int | None) -> ExpectationStep:
        """The step over a systematic sample of the rows of all processes, the same in each call.

        Args:
            count: number of draws by weight; None, or at least the number of distinct rows, for all rows.
        """
        draws = len(self.weights) if count is None else max(1, count // world_size())
        if draws >= len(self.weights):
            return self
        if draws not in self._samples:
            self._samples[draws] = ExpectationStep(self.graph, *self.drawn(draws * world_size()), trees=self._trees)
        return self._samples[draws]

    def drawn(self, count: int) -> tuple[dict[str, Tensor], Tensor]:
        """Table and weights of a systematic sample; all rows if there are no more than ``count``."""
        draws = max(1, count // world_size())
        if draws >= len(self.weights):
            return self.table, self.weights
        chosen, weights = systematic_sample(self.weights, draws)
        return {v: x[chosen] for v, x in self.table.items()}, weights

    # -- inner workings ------------------------------------------------------------------------------------------

    def _blocks(self, most: int | None) -> list[tuple[RowGroup, Passes, Tensor]]:
        """Passes over blocks of all rows, or of a systematic sample of ``most`` rows; cached."""
        draws = len(self.weights) if most is None else min(max(1, most // world_size()), len(self.weights))
        if draws not in self._cached_blocks:
            rows, weights = torch.arange(draws, device=self.weights.device), self.weights
            if draws < len(self.weights):
                rows, weights = systematic_sample(self.weights, draws)
            size = max(1, SCORES_AT_ONCE // len(self.layout.group))
            blocks = zip(torch.split(rows, size), torch.split(weights, size), strict=True)
            keep = draws * self._indicators <= LARGEST_INDICATORS
            self._cached_blocks[draws] = [part for block in blocks for part in self._parts(*block, keep=keep)]
        return self._cached_blocks[draws]

    def _parts(
        self, chosen: Tensor | None, weights: Tensor | None = None, keep: bool = False
    ) -> Iterator[tuple[RowGroup, Passes, Tensor]]:
        """The groups with passes over all or the chosen rows, and the weights of these rows, by default those of the group."""
        for g, group in enumerate(self.groups):
            if chosen is None:
                yield group, group.passes, group.weights
                continue
            mask = self._number[chosen] == g
            places = self._place[chosen[mask]]
            if len(places):
                yield group, group.at(places, keep), group.weights[places] if weights is None else weights[mask]


def systematic_sample(weights: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Equally spaced draws along the cumulative weights; a row's number of draws is proportional to its weight, up to rounding.

    Args:
        weights: (rows,) positive.
        count: number of draws.

    Returns:
        Numbers of the drawn rows, and their weights: numbers of draws, scaled to the same total weight.
    """
    edges = weights.cumsum(0)
    places = (torch.arange(count, dtype=weights.dtype, device=weights.device) + 0.5) * (edges[-1] / count)
    drawn = torch.searchsorted(edges, places).clamp(max=len(weights) - 1)
    rows, draws = drawn.unique_consecutive(return_counts=True)
    return rows, draws * (edges[-1] / count)
