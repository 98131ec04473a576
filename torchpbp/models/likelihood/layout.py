"""All conditional probability tables of a graph as one vector."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from torchpbp.graph.domains import Scope
from torchpbp.graph.latent_graph import LatentGraph


class FamilyLayout:
    """The tables of a graph as a vector; several runs are the rows of a matrix.

    Args:
        graph: directed and discrete.
        device: of the tables.

    Attributes:
        scopes: (parents…, variable) of each table.
        free: (entries,) mask of the entries whose logits are parameters: all but the last of each distribution.
        places: (free,) numbers of these entries.
        last: (free,) number of the last entry of each one's distribution.
        states: (entries,) size of each entry's distribution.
    """

    def __init__(self, graph: LatentGraph, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.scopes: tuple[Scope, ...] = tuple((*graph.parents(v), v) for v in graph.names)
        self.shapes = tuple(tuple(graph.num_states(v) for v in scope) for scope in self.scopes)
        self.sizes = [math.prod(shape) for shape in self.shapes]
        widths = torch.tensor(
            [shape[-1] for s, shape in zip(self.sizes, self.shapes, strict=True) for _ in range(s // shape[-1])],
            device=device,
        )
        self.widths = widths.double()  # size of each distribution
        self.group = torch.repeat_interleave(
            torch.arange(len(widths), device=device), widths
        )  # distribution of each entry
        self.free = torch.ones(len(self.group), dtype=torch.bool, device=device)
        self.free[widths.cumsum(0) - 1] = False
        self.places = self.free.nonzero().flatten()
        self._free_group = self.group[self.places]
        self.last = (widths.cumsum(0) - 1)[self._free_group]
        self.states = self.widths[self.group]

    @property
    def parameters(self) -> int:
        """Number of free parameters."""
        return int(self.free.sum())

    def vector(self, tables: Mapping[Scope, Tensor]) -> Tensor:
        """scope -> table without a dimension of runs, as an (entries,) vector."""
        return torch.cat([tables[scope].to(self.device, torch.float64).flatten() for scope in self.scopes])

    def tables(self, vectors: Tensor) -> dict[Scope, Tensor]:
        """(runs, entries) vectors as scope -> (runs, *table) views."""
        parts = torch.split(vectors, self.sizes, dim=1)
        return {s: p.reshape(-1, *shape) for s, p, shape in zip(self.scopes, parts, self.shapes, strict=True)}

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """An (entries,) vector as variable -> table."""
        return {scope[-1]: table[0] for scope, table in self.tables(vector[None]).items()}

    def sums(self, vectors: Tensor) -> Tensor:
        """(runs, entries) -> (runs, entries): for each entry the sum of its distribution."""
        totals = vectors.new_zeros(len(vectors), len(self.widths)).index_add_(1, self.group, vectors)
        return totals.index_select(1, self.group)

    def maximised(self, counts: Tensor, prior: float) -> Tensor:
        """The M-step: normalised counts and pseudo-rows; uniform without both.

        Args:
            counts: (runs, entries) expected counts.
            prior: pseudo-rows per entry.
        """
        raised = counts + prior
        totals = self.sums(raised)
        shares = raised / totals.clamp(min=1e-300)
        empty = totals <= 0
        if bool(empty.any()):
            shares = torch.where(empty, 1 / self.states, shares)
        return shares

    def scores(self, vector: Tensor, posteriors: Tensor) -> Tensor:
        """Scores r(pa, v) − r(pa) θ(v | pa) of the free logits from posteriors r of all entries.

        Args:
            vector: (entries,) tables θ.
            posteriors: (entries, n).

        Returns:
            (free, n).
        """
        totals = posteriors.new_zeros(len(self.widths), posteriors.shape[1]).index_add_(0, self.group, posteriors)
        totals = totals.index_select(0, self._free_group)
        return posteriors.index_select(0, self.places).addcmul_(
            totals, vector.index_select(0, self.places)[:, None], value=-1
        )

    def logits(self, vector: Tensor) -> Tensor:
        """(free,) logits of tables, relative to the last entry of each distribution."""
        logs = vector.clamp(min=1e-300).log()
        return logs.index_select(0, self.places) - logs.index_select(0, self.last)

    def relative(self, vector: Tensor, direction: Tensor) -> Tensor:
        """(entries,) relative changes of the probabilities for infinitesimal (free,) changes of the logits."""
        changes = vector.new_zeros(len(vector)).index_copy_(0, self.places, direction)
        return changes - self.sums((vector * changes)[None])[0]

    def moved(self, vector: Tensor, change: Tensor) -> Tensor:
        """(entries,) tables θ (1 + change), normalised; below −½ the factor is an exponential, which is positive."""
        factor = torch.where(change > -0.5, 1 + change, 0.5 * (2 * change.clamp(max=-0.5) + 1).exp())
        raised = vector * factor
        return raised / self.sums(raised[None])[0].clamp(min=1e-300)

    def prior_curvature(self, vector: Tensor) -> Tensor:
        """(free, free) negative Hessian of Σ log θ in the free logits: states · (diag θ − θ θᵀ) per distribution."""
        theta = vector.index_select(0, self.places)
        weighted = self.states.index_select(0, self.places) * theta
        curvature = torch.where(self._together, -weighted[:, None] * theta, 0.0)
        curvature.diagonal().add_(weighted)
        return curvature

    @cached_property
    def _together(self) -> Tensor:
        """(free, free) whether two entries are of the same distribution."""
        return self._free_group[:, None] == self._free_group

    def reordered(self, information: Tensor, orders: Mapping[str, Sequence[int]]) -> Tensor:
        """The information of the free logits after the states of some variables are renumbered.

        Args:
            information: (free, free) before.
            orders: variable -> the old numbers of its states, in the new order.
        """
        places, numbers = [], torch.arange(sum(self.sizes), device=self.device).split(self.sizes)
        for scope, shape, table in zip(self.scopes, self.shapes, numbers, strict=True):
            table = table.reshape(shape)
            for i, v in enumerate(scope):
                if v in orders:
                    table = table.index_select(i, torch.tensor(orders[v], device=self.device))
            places.append(table.flatten())
        order = torch.cat(places)
        columns = torch.arange(len(self.places), device=self.device)
        # scores of a distribution sum to 0: the last is minus the sum of the others
        expansion = information.new_zeros(len(order), len(columns))
        expansion[self.places, columns] = 1.0
        expansion[self.last, columns] = -1.0
        change = expansion[order][self.places]
        return change @ information @ change.T
