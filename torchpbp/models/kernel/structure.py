"""Core groups and instruments of KernelPBP: the nearest leaves inside and outside each separator."""

from __future__ import annotations

from torchpbp.errors import StructureError
from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.planning.plan import Plan, SeparatorPlan


def plan_on(tree: JunctionTree, plan: Plan) -> Plan:
    """A plan of another model for the same tree; a StructureError if it does not fit.

    Args:
        tree: of the model.
        plan: with core groups below their separators and instruments beside them.
    """
    nodes = [s.node for s in plan.separators]
    if nodes != list(range(1, len(tree))):
        raise StructureError(
            f"plan: expected plans for the {len(tree) - 1} separators of this graph's tree, got nodes {nodes}."
        )
    for separator in plan.separators:
        node, below, beside = separator.node, set(separator.core), set(separator.outside)
        if not below or not below <= tree.inside[node] or not beside <= tree.outside(node):
            raise StructureError(
                f"plan, separator {tree.separator_name(node)}: expected a core group below it and an instrument "
                f"beside it, got {sorted(below)} and {sorted(beside)}."
            )
    return Plan(tree, plan.separators)


def nearest_leaves(tree: JunctionTree, core: int, instrument: int) -> Plan:
    """Core groups and instruments of the nearest leaves inside and outside each separator."""
    separators = []
    widest = max(len(tree.leaf_observables[leaf]) for leaf in tree.leaves)
    for node in range(1, len(tree)):
        inside = _inside_leaves(tree, node, core)
        outside = dict.fromkeys(tree.leaf_of[v] for _, v in tree.distances(node, instrument * widest))
        nearest: list[int] = list(outside)[:instrument]
        group = tuple(v for leaf in inside for v in tree.leaf_observables[leaf])
        instruments = (tuple(v for leaf in nearest for v in tree.leaf_observables[leaf]),)
        separators.append(SeparatorPlan(node, group, instruments, 0, 0, 0))
    return Plan(tree, tuple(separators))


def _inside_leaves(tree: JunctionTree, node: int, count: int) -> list[int]:
    ring, leaves = [node], list[int]()
    while ring and len(leaves) < count:
        leaves += [n for n in ring if tree.leaf_observables[n]]
        ring = [c for n in ring for c in tree.children[n]]
    return leaves[:count]
