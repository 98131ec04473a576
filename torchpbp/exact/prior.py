"""The distribution of a network without evidence: joint tables of any variables, and samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchpbp.exact.calibration import PotentialTree, shafer_shenoy
from torchpbp.exact.contraction import contract
from torchpbp.graph.domains import Scope

ROWS_PER_CHUNK = 1 << 16
CELLS_PER_CHUNK = 1 << 24
Step = tuple[Scope, Scope, Tensor]
"""Variables drawn before, variables drawn together, and their table."""


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

    def cross(self, a: Scope, b: Scope) -> Tensor:
        """(states of a, states of b) joint probabilities; the groups may share variables."""
        union = tuple(dict.fromkeys((*a, *b)))
        return cross_table(self.joint(union), union, a, b, self.states)

    def sample(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """name -> (n,) int64 states of all variables, drawn down the tree with bounded memory."""
        beliefs, conditionals = self._tables
        model, steps = self.model, list[Step]()
        for node, scope in enumerate(model.scopes):
            before = tuple(v for v in scope if model.top[v] != node)
            new = tuple(v for v in scope if model.top[v] == node)
            if new:
                table = conditionals[node] if node else beliefs[0]
                steps.append((before, new, table.permute([scope.index(v) for v in (*before, *new)])))
        widest = max(p.numel() for p in model.potentials)  # bounds the cells per row of a chunk
        most = max(1, min(ROWS_PER_CHUNK, CELLS_PER_CHUNK // widest))
        chunks = []
        for start in range(0, max(n, 1), most):
            rows = min(most, n - start)
            chances = (random_chances(rows, generator, beliefs[0].device) for _ in steps)
            chunks.append(ancestral_sample(steps, self.states, chances))
        return {v: torch.cat([chunk[v] for chunk in chunks]) for v in self.states}


def cross_table(table: Tensor, union: Scope, a: Scope, b: Scope, states: Mapping[str, int]) -> Tensor:
    """(states of a, states of b) entries of a table over both groups; 0 for contradictory states of common variables."""
    sizes = [math.prod(states[v] for v in group) for group in (a, b)]
    if len(union) == len(a) + len(b):
        return table.reshape(sizes)
    result = table.new_zeros(sizes)
    rows, columns = (torch.as_tensor(joint_codes(union, group, states), device=table.device) for group in (a, b))
    result[rows, columns] = table.reshape(-1)
    return result


def joint_codes(union: Scope, group: Scope, states: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """For each joint state of ``union`` the joint state of ``group``."""
    code = np.zeros([states[v] for v in union], dtype=np.int64)
    for v in group:
        axis = union.index(v)
        shape = [-1 if i == axis else 1 for i in range(len(union))]
        code = code * states[v] + np.arange(states[v]).reshape(shape)
    return code.reshape(-1)


def ancestral_sample(steps: Iterable[Step], states: Mapping[str, int], chances: Iterable[Tensor]) -> dict[str, Tensor]:
    """name -> (rows,) int64 states of all variables, each drawn after those that its distribution depends on.

    Args:
        steps: variables drawn before, variables drawn together, and the table of the latter for each state of the former, with
            dimensions in this order.
        states: number of states of each variable.
        chances: (rows,) uniform numbers for each step.
    """
    values: dict[str, Tensor] = {}
    for (before, new, table), chance in zip(steps, chances, strict=True):
        context = torch.zeros_like(chance, dtype=torch.int64)
        for v in before:
            context = context * states[v] + values[v]
        cumulative = table.reshape(-1, math.prod(states[v] for v in new)).cumsum(dim=1)
        codes = draw_states(cumulative[context], chance)
        for v in reversed(new):
            values[v] = codes % states[v]
            codes = codes // states[v]
    return values


def draw_states(cumulative: Tensor, chances: Tensor) -> Tensor:
    """(rows,) int64 states drawn by (rows,) uniform numbers; states of weight 0 are never drawn.

    Args:
        cumulative: (rows, states) cumulative sums of weights.
        chances: (rows,) numbers between 0 and 1.
    """
    drawn = (chances.unsqueeze(1) * cumulative[:, -1:] >= cumulative).sum(dim=1)
    return drawn.clamp(max=cumulative.shape[1] - 1)


def random_chances(rows: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """(rows,) uniform float64 numbers."""
    return torch.rand(rows, generator=generator, dtype=torch.float64, device=device)
