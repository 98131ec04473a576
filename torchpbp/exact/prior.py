"""The distribution of a network without evidence: joint tables of any variables, and samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from torchpbp.exact.calibration import PotentialTree, shafer_shenoy
from torchpbp.exact.contraction import contract
from torchpbp.graph.domains import Scope

ROWS_PER_CHUNK = 1 << 16
CELLS_PER_CHUNK = 1 << 24


class Prior:
    """A calibrated clique tree, as P(root clique) times P(clique | separator above) of all others.

    Args:
        model: tree and potentials.
        states: number of states of each variable.
    """

    def __init__(self, model: PotentialTree, states: Mapping[str, int]) -> None:
        self.model = model
        self.states = states

    @cached_property
    def _tables(self) -> tuple[list[Tensor], list[Tensor]]:
        """P(clique) and P(clique | separator above) for every node."""
        model = self.model
        run = shafer_shenoy(model, {}, 1)
        beliefs = [run.marginal(node, scope)[0] for node, scope in enumerate(model.scopes)]
        conditionals = []
        for belief, scope, separator in zip(beliefs, model.scopes, model.separators, strict=True):
            summed = tuple(i for i, v in enumerate(scope) if v not in separator)
            below = belief.sum(dim=summed, keepdim=True) if summed else belief
            conditionals.append(torch.where(below > 0, belief / below.clamp(min=1e-300), torch.zeros_like(belief)))
        return beliefs, conditionals

    def joint(self, names: Scope) -> Tensor:
        """P(names), with dimensions in this order.

        Only the subtree that spans the variables is contracted, as its top clique times the conditionals below.
        """
        beliefs, conditionals = self._tables
        model, parent = self.model, self.model.tree.parent
        if not names:
            return beliefs[0].new_ones(())
        frontier = {model.top[v] for v in names}
        spanned = set(frontier)
        while len(frontier) > 1:
            lowest = max(frontier)  # nodes are numbered top-down, so it has no descendants here
            frontier.discard(lowest)
            frontier.add(parent[lowest])
            spanned.add(parent[lowest])
        (top,) = frontier
        if len(names) == 1:
            scope = model.scopes[top]
            summed = [i for i, v in enumerate(scope) if v not in names]
            return beliefs[top].sum(dim=summed) if summed else beliefs[top]
        tables = [beliefs[top], *(conditionals[n] for n in sorted(spanned) if n != top)]
        scopes = [model.scopes[top], *(model.scopes[n] for n in sorted(spanned) if n != top)]
        return contract(tables, scopes, names)

    def sample(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """name -> (n,) int64 states of all variables, drawn down the tree with bounded memory."""
        beliefs, conditionals = self._tables
        model, states = self.model, self.states
        values = {v: torch.empty(n, dtype=torch.int64, device=beliefs[0].device) for v in states}
        widest = max(p.numel() for p in model.potentials)  # bounds the cells per row of a chunk
        step = max(1, min(ROWS_PER_CHUNK, CELLS_PER_CHUNK // widest))
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            for node, scope in enumerate(model.scopes):
                context_names = [v for v in scope if model.top[v] != node]
                new = [v for v in scope if model.top[v] == node]
                if not new:
                    continue
                table = beliefs[0] if node == 0 else conditionals[node]
                table = table.permute([scope.index(v) for v in (*context_names, *new)])
                cumulative = table.reshape(-1, math.prod(states[v] for v in new)).cumsum(dim=1)
                context = _codes(
                    [values[v][rows] for v in context_names],
                    [states[v] for v in context_names],
                    rows.stop - start,
                    table,
                )
                codes = draw_states(cumulative[context], generator)
                for v in reversed(new):
                    values[v][rows] = codes % states[v]
                    codes = codes // states[v]
        return values


def draw_states(cumulative: Tensor, generator: torch.Generator) -> Tensor:
    """(rows,) int64 states drawn from (rows, states) cumulative sums of weights; states of weight 0 are never drawn."""
    uniform = torch.rand(len(cumulative), 1, generator=generator, dtype=torch.float64, device=cumulative.device)
    return (uniform * cumulative[:, -1:] >= cumulative).sum(dim=1).clamp(max=cumulative.shape[1] - 1)


def _codes(values: Sequence[Tensor], states: Sequence[int], rows: int, like: Tensor) -> Tensor:
    """Mixed-radix code of several variables' states, on the device of ``like``."""
    code = torch.zeros(rows, dtype=torch.int64, device=like.device)
    for value, count in zip(values, states, strict=True):
        code = code * count + value
    return code
