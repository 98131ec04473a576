"""Planning of core groups and instruments by generic rank, bottom-up. Ranks have a closed form on forests and are probed otherwise.

A plan depends on structure and options only, and many models have the same structure (one per class, fold or seed), so junction
trees and plans are cached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from torchpbp.errors import RankWarning, StructureError, warn_caller
from torchpbp.graph.junction_tree import JunctionTree, build_junction_tree
from torchpbp.graph.latent_graph import Continuous, LatentGraph
from torchpbp.planning.forest_ranks import ForestRanks
from torchpbp.planning.groups import GroupSearch
from torchpbp.planning.plan import Group, Plan, PlanOptions, SeparatorPlan, group_size
from torchpbp.planning.plan_cost import tree_cost
from torchpbp.planning.rank_bounds import rank_bounds
from torchpbp.planning.ranks import ProbedRanks

CANDIDATE_RANKS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
"""Candidates for a rank selected on data."""
REMEDY = "Give variables fewer states or fewer neighbours, or pass budget=<bytes> (None: no limit) to go on."


def plan_graph(
    graph: LatentGraph, dims: Mapping[str, int], options: PlanOptions, root: tuple[str, ...] | None = None
) -> Plan:
    """The plan of a graph. Latents of unknown cardinality are assigned ``options.rank`` states.

    Generic ranks are computed on a discrete stand-in, in which a continuous variable has enough states to distinguish the
    states of any latent.

    Args:
        graph: the structure.
        dims: feature dimensions of each observable.
        options: options of the plan.
        root: variables the root clique must contain; None: chosen by cost.
    """
    if options.rank is not None:
        unknown = [v for v in graph.latent if graph.variables[v] is None]
        graph = graph.with_states(dict.fromkeys(unknown, options.rank))
    most = max([graph.num_states(v) for v in graph.latent], default=2)
    stand_ins = {v: max(2, min(most, d)) for v, d in dims.items() if isinstance(graph.variables[v], Continuous)}
    return plan_tree(_junction_tree(graph.with_states(stand_ins), root), options, dims)


def candidate_plans(
    graph: LatentGraph, dims: Mapping[str, int], options: PlanOptions, root: tuple[str, ...] | None, most: int
) -> dict[int, Plan]:
    """Candidate plans by rank, up to ``most`` or to the largest rank of the structure."""
    plans: dict[int, Plan] = {}
    for rank in CANDIDATE_RANKS:
        if rank > most:
            break
        plan = plan_graph(graph, dims, replace(options, rank=rank), root)
        sizes = [s.rank for s in plan.separators]
        if plans and sizes == [s.rank for s in next(reversed(plans.values())).separators]:
            break
        plans[rank] = plan
    return plans


def plan_tree(tree: JunctionTree, options: PlanOptions | None = None, dims: Mapping[str, int] | None = None) -> Plan:
    """The plan of a junction tree; instruments of insufficient rank are reported.

    Args:
        tree: junction tree of a graph whose variables all have a number of states.
        options: options of the plan.
        dims: feature dimensions of each observable, which limit groups; its number of states by default.

    Raises:
        BudgetError: planning or a fit would take more than ``options.budget``.
        StructureError: with ``options.strict``, a separator whose instrument cannot reach the rank; otherwise a warning.
    """
    options = options or PlanOptions()
    sizes = {v: tree.graph.num_states(v) for v in tree.leaf_of} if dims is None else dims
    lenient = replace(options, strict=False) if options.strict else options
    plan = Plan(tree, _cached(tree, lenient, tuple(sizes.items())))
    for separator in reversed(plan.separators):
        if separator.reached < separator.needed:
            text = (
                f"Separator {tree.separator_name(separator.node)}: instrument rank {separator.reached}, needs "
                f"{separator.needed}. Answers that cross it will be biased. Add outside observables, raise pool= or "
                "largest_group=, or lower the latent cardinality."
            )
            if options.strict:
                raise StructureError(text)
            warn_caller(text, RankWarning)
    return plan


def clear_cached_plans() -> None:
    """Clear the caches of plans and junction trees."""
    _cached.cache_clear()
    _junction_tree.cache_clear()


_junction_tree = lru_cache(maxsize=64)(build_junction_tree)


@lru_cache(maxsize=64)
def _cached(tree: JunctionTree, options: PlanOptions, items: tuple[tuple[str, int], ...]) -> tuple[SeparatorPlan, ...]:
    sizes = dict(items)
    bounds = rank_bounds(tree)
    tree_cost(tree, bounds, sizes).require(options.budget, "Planning and fitting this model", REMEDY)
    ranks = ForestRanks(tree, bounds, options.seed) if bounds.exact else ProbedRanks(tree, bounds, options.seed)
    separators: dict[int, SeparatorPlan] = {}
    cores: dict[int, Group] = {}
    for node in range(len(tree) - 1, 0, -1):
        needed = ranks.separator_rank(node)
        near = _near_leaves(tree, node, options, sizes)
        search = GroupSearch(tree, node, needed, cores, near, sizes, options)
        cores[node], instrument, reached = ranks.groups(search)
        rank = needed if options.rank is None else min(needed, options.rank)
        separators[node] = SeparatorPlan(node, cores[node], instrument, rank, needed, reached)
    plan = Plan(tree, tuple(separators[node] for node in range(1, len(tree))))
    plan.cost(sizes).require(options.budget, "Fitting this model", REMEDY)
    return plan.separators


def _near_leaves(tree: JunctionTree, node: int, options: PlanOptions, sizes: Mapping[str, int]) -> list[Group]:
    """Observables of each outside leaf, nearest leaf first; leaves too large for one group are split."""
    most = max(options.singles, options.pool)
    leaves = dict.fromkeys(tree.leaf_of[v] for _, v in tree.distances(node, most))
    groups = [tree.leaf_observables[leaf] for leaf in islice(leaves, most)]
    return [
        part for g in groups for part in ([g] if group_size(g, sizes) <= options.largest_group else [(v,) for v in g])
    ]
