"""Core groups and instruments of the kernel form: the nearest leaves inside and outside each separator."""

from __future__ import annotations

from torchpbp.errors import StructureError
from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.planning.plan import SeparatorPlan, Specification


def check_specification(tree: JunctionTree, specification: Specification) -> None:
    """Raise unless a specification fits the tree: core groups below their separators, instruments beside them."""
    nodes = [p.node for p in specification.plans]
    if nodes != list(range(1, len(tree))):
        raise StructureError(
            f"specification: expected plans for the {len(tree) - 1} separators of this graph's tree, got nodes {nodes}."
        )
    for plan in specification.plans:
        below, beside = set(plan.core), {v for group in plan.instrument for v in group}
        if not below or not below <= tree.inside[plan.node] or not beside <= tree.outside(plan.node):
            raise StructureError(
                f"specification, separator {tree.separator_name(plan.node)}: expected a core group below it and an instrument "
                f"beside it, got {sorted(below)} and {sorted(beside)}."
            )


def nearest_leaves(tree: JunctionTree, core: int, instrument: int) -> Specification:
    """Core groups and instruments of the nearest leaves inside and outside each separator."""
    plans = []
    widest = max(len(tree.leaf_observables[leaf]) for leaf in tree.leaves)
    for node in range(1, len(tree)):
        inside = _inside_leaves(tree, node, core)
        outside = dict.fromkeys(tree.leaf_of[v] for _, v in tree.distances(node, instrument * widest))
        near: list[int] = list(outside)[:instrument]
        group = tuple(v for leaf in inside for v in tree.leaf_observables[leaf])
        instruments = (tuple(v for leaf in near for v in tree.leaf_observables[leaf]),)
        plans.append(SeparatorPlan(node, group, instruments, 0, 0, 0))
    return Specification(tuple(plans))


def _inside_leaves(tree: JunctionTree, node: int, count: int) -> list[int]:
    ring, found = [node], list[int]()
    while ring and len(found) < count:
        found += [n for n in ring if tree.leaf_observables[n]]
        ring = [c for n in ring for c in tree.children[n]]
    return found[:count]
