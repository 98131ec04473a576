"""All conditional probability tables of a graph as one vector."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.exact.calibration import Scope
from torchpbp.graph.latent_graph import LatentGraph


class TableLayout:
    """The tables of a graph as a vector, so that a run is a row of a matrix.

    Args:
        graph: directed and discrete.
        device: of the tables.

    Attributes:
        scopes: (parents…, variable) of each table.
        free: (entries,) booleans: the entries whose logits are parameters, all but the last of each distribution.
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
        self.widths = widths.double()  # entries of each distribution
        self.group = torch.repeat_interleave(
            torch.arange(len(widths), device=device), widths
        )  # distribution of each entry
        self.free = torch.ones(len(self.group), dtype=torch.bool, device=device)
        self.free[widths.cumsum(0) - 1] = False

    @property
    def parameters(self) -> int:
        """Number of free parameters."""
        return int(self.free.sum())

    def vector(self, tables: Mapping[Scope, Tensor]) -> Tensor:
        """(entries,) of tables without a dimension of runs."""
        return torch.cat([tables[scope].to(self.device, torch.float64).flatten() for scope in self.scopes])

    def tables(self, vectors: Tensor) -> dict[Scope, Tensor]:
        """scope -> (runs, *table) views of (runs, entries)."""
        parts = torch.split(vectors, self.sizes, dim=1)
        return {s: p.reshape(-1, *shape) for s, p, shape in zip(self.scopes, parts, self.shapes, strict=True)}

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """variable -> table of one (entries,) vector."""
        return {scope[-1]: table[0] for scope, table in self.tables(vector[None]).items()}

    def sums(self, vectors: Tensor) -> Tensor:
        """(runs, entries) with each entry replaced by the sum of its distribution."""
        totals = vectors.new_zeros(len(vectors), len(self.widths)).index_add_(1, self.group, vectors)
        return totals[:, self.group]

    def maximised(self, counts: Tensor, prior: float) -> Tensor:
        """The M-step: counts and pseudo-rows as distributions; uniform where there is neither.

        Args:
            counts: (runs, entries) expected counts.
            prior: pseudo-rows per entry.
        """
        raised = counts + prior
        totals = self.sums(raised)
        shares = raised / totals.clamp(min=1e-300)
        empty = totals <= 0
        if bool(empty.any()):
            shares = torch.where(empty, (1 / self.widths)[self.group], shares)
        return shares

    def moved(self, vector: Tensor, step: Tensor) -> Tensor:
        """(entries,) tables after a step of their logits: θ e^step, normalised."""
        raised = vector * step.exp()
        return raised / self.sums(raised[None])[0].clamp(min=1e-300)

    def reordered(self, information: Tensor, orders: Mapping[str, Sequence[int]]) -> Tensor:
        """The information of the free logits after the states of some variables were numbered anew.

        Args:
            information: (free, free) before.
            orders: variable -> the old numbers of its states, in the new order.
        """
        places, start = [], 0
        for scope, shape, size in zip(self.scopes, self.shapes, self.sizes, strict=True):
            table = torch.arange(start, start + size, device=self.device).reshape(shape)
            for i, v in enumerate(scope):
                if v in orders:
                    table = table.index_select(i, torch.tensor(orders[v], device=self.device))
            places.append(table.flatten())
            start += size
        order = torch.cat(places)
        free = self.free.nonzero().flatten()
        columns = torch.arange(len(free), device=self.device)
        whole = information.new_zeros(
            len(order), len(free)
        )  # scores of a distribution add up to 0: the last is minus the others
        whole[free, columns] = 1.0
        last = (~self.free).nonzero().flatten()
        whole[last[self.group[free]], columns] = -1.0
        chosen = whole[order][self.free]
        return chosen @ information @ chosen.T
