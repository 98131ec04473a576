"""Inputs of the search for the core group and the instrument of a separator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.planning.core_groups import choose_core
from torchpbp.planning.instruments import choose_instruments
from torchpbp.planning.plan import Group, PlanOptions


@dataclass(frozen=True)
class GroupSearch:
    """The search for the groups of one separator.

    Args:
        tree: the junction tree.
        node: node below the separator.
        needed: rank to reach.
        cores: core groups of the nodes below.
        near: observables of outside leaves, nearest first.
        states: number of states (or features) of each observable.
        options: options of the plan.
    """

    tree: JunctionTree
    node: int
    needed: int
    cores: Mapping[int, Group]
    near: Sequence[Group]
    states: Mapping[str, int]
    options: PlanOptions

    def core(self, core_rank: Callable[[int, Group], int]) -> Group:
        """The core group; ``core_rank`` is the rank of P(group, all observables outside) by node and group."""
        return choose_core(self.tree, self.node, self.needed, self.cores, core_rank, self.states)

    def instrument(self, block: Callable[[Group], Tensor]) -> tuple[tuple[Group, ...], int]:
        """The instrument and the rank it reaches; ``block`` is the cross moment of the core group with a group."""
        singles, pool, largest = self.options.singles, self.options.pool, self.options.largest_group
        return choose_instruments(self.near, self.needed, block, self.states, singles, pool, largest)
