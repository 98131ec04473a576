"""Plan: the junction tree of a model, with groups and ranks of its separators, made from the structure alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torchpbp.errors import StructureError
from torchpbp.graph.cost import BUDGET, Cost
from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.planning.plan_cost import SeparatorSizes, fit_cost
from torchpbp.settings import Settings, flag, optional, positive, setting, whole

Group = tuple[str, ...]
"""Observables whose features are taken together, as an outer product."""


def group_size(group: Sequence[str], states: Mapping[str, int]) -> int:
    """Number of joint states."""
    return math.prod(states[v] for v in group)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Settings):
    """Options of planning.

    Args:
        rank: largest number of dimensions of a message; None: the number implied by the latents' states.
        singles: number of nearest outside observables that enter an instrument as separate groups.
        pool: number of nearest outside observables from which product groups are formed.
        largest_group: largest number of joint states of a product group.
        strict: raise an error instead of a warning if the rank condition cannot be met.
        seed: seed of the random draws for generic ranks.
        budget: limit of the estimated bytes of planning and a fit; None: no limit.
    """

    rank: int | None = setting(None, optional(whole(1)))
    singles: int = setting(8, whole(1))
    pool: int = setting(6, whole(1))
    largest_group: int = setting(4096, whole(1))
    strict: bool = setting(False, flag())
    seed: int = 20200207
    budget: float | None = setting(BUDGET, optional(positive()))


@dataclass(frozen=True)
class SeparatorPlan:
    """Groups and ranks of one separator.

    Args:
        node: the tree node below the separator.
        core: core group α(S).
        instrument: groups of outside observables; the empty group is the constant.
        rank: dimensions of the message.
        needed: rank of P(inside, outside) that the structure implies.
        reached: rank of the cross moment of core group and instrument.
    """

    node: int
    core: Group
    instrument: tuple[Group, ...]
    rank: int
    needed: int
    reached: int

    @property
    def outside(self) -> Group:
        """All observables of the instrument, each once."""
        return tuple(dict.fromkeys(v for group in self.instrument for v in group))


@dataclass(frozen=True)
class Plan:
    """A junction tree with core group, instrument and message size of each separator.

    Args:
        tree: the junction tree.
        separators: ``separators[i]`` is the separator above tree node ``i + 1``.
    """

    tree: JunctionTree
    separators: tuple[SeparatorPlan, ...]

    def __getitem__(self, node: int) -> SeparatorPlan:
        """The separator above a tree node."""
        return self.separators[node - 1]

    @property
    def core_groups(self) -> dict[int, Group]:
        """Core group of each separator, by tree node."""
        return {s.node: s.core for s in self.separators}

    @property
    def root_shape(self) -> tuple[int, ...]:
        """Message sizes of the root's children."""
        return tuple(self[child].rank for child in self.tree.children[0])

    @cached_property
    def targets(self) -> list[list[Group]]:
        """By node, groups whose joint features its operator predicts: the children's core groups, or the observables of a leaf."""
        leaves, children = self.tree.leaf_observables, self.tree.children
        return [
            [(v,) for v in leaf] if leaf else [self[child].core for child in below]
            for leaf, below in zip(leaves, children, strict=True)
        ]

    def operator_shapes(self, dims: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Shape of each node's operator; entry 0, the root's, is empty.

        Args:
            dims: feature dimensions of each observable.
        """
        shapes: list[tuple[int, ...]] = [()]
        for separator in self.separators:
            children, leaf = self.tree.children[separator.node], self.tree.leaf_observables[separator.node]
            shapes.append((separator.rank, *([self[c].rank for c in children] or [dims[v] for v in leaf])))
        return shapes

    def cost(self, dims: Mapping[str, int] | None = None) -> Cost:
        """Estimated cost of a fit by linear regression.

        Args:
            dims: feature dimensions of each observable; its number of states by default.
        """
        dims = {v: self.tree.graph.num_states(v) for v in self.tree.leaf_of} if dims is None else dims
        sizes = {
            s.node: SeparatorSizes(group_size(s.core, dims), [group_size(g, dims) for g in s.instrument], s.rank)
            for s in self.separators
        }
        return fit_cost(self.tree, sizes, dims)

    def to_list(self) -> list[dict[str, Any]]:
        """Separators as plain lists and numbers, for a file."""
        return [
            {
                "node": s.node,
                "core": list(s.core),
                "instrument": [list(g) for g in s.instrument],
                "rank": s.rank,
                "needed": s.needed,
                "reached": s.reached,
            }
            for s in self.separators
        ]

    @classmethod
    def from_list(cls, tree: JunctionTree, saved: Sequence[Mapping[str, Any]]) -> Plan:
        """The inverse of :meth:`to_list`.

        Raises:
            StructureError: separators numbered differently from the nodes, or with invalid ranks.
        """
        separators = []
        for node, s in enumerate(saved, 1):
            numbers = {name: s[name] for name in ("node", "rank", "needed", "reached")}
            if numbers["node"] != node or any(type(n) is not int or n < 0 for n in numbers.values()):
                raise StructureError(f"Plan of node {node}: expected its number, ranks from 0 on, got {numbers}.")
            separators.append(
                SeparatorPlan(core=tuple(s["core"]), instrument=tuple(map(tuple, s["instrument"])), **numbers)
            )
        return cls(tree, tuple(separators))
