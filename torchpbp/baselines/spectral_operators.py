"""The observable representation of a latent junction tree: Algorithm 1 of [JT], from tables of observables alone.

For a separator with inside group O_i and any outside group O_i₋ the tables satisfy the linear equation
P(O_i₁, O_i₂, O_i₋) = P̃(C_i) ×_{O_i} P(O_i, O_i₋) [JT eq. 21]. One group whose table has the separator's rank determines P̃(C_i);
the least-squares solution of the equations of all groups has less noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from torchpbp.exact.network import DiscreteNetwork
from torchpbp.inference.operator_tree import OperatorTree
from torchpbp.learning.least_squares import least_squares
from torchpbp.learning.ridge import equal_shapes
from torchpbp.moments.table_moments import TableMoments
from torchpbp.planning.plan import Group, Plan, PlanOptions, SeparatorPlan, group_size
from torchpbp.planning.ranks import StructureProbe, scaled_cross
from torchpbp.planning.spans import numerical_rank

LARGEST_WHOLE = 1 << 18
"""Largest number of cells of a table over all near observables, whose sums replace one inference per group."""
VANISHING = 1e-11
"""Singular values below this share of the largest count as zero."""
Choices = Mapping[int, tuple[Group, ...]]
"""Node -> outside groups O_i₋ whose equations are stacked."""


class Representation(NamedTuple):
    """Transformed tensors P̃(C), with the layout of the operators of predictive belief propagation.

    Args:
        tree: the tensors.
        singular_values: per separator, node 1 first, the leading ones of P(O_i, O_i₋), one per dimension of the message.
    """

    tree: OperatorTree
    singular_values: tuple[Tensor, ...]


def outside_choices(plan: Plan, options: PlanOptions) -> dict[int, tuple[Group, ...]]:
    """All valid choices of O_i₋ of the smallest size: single groups that determine a separator's message.

    They consist of the nearest outside observables. Larger groups are valid too, but their tables are noisier. If no single group
    is sufficient, the instrument of the plan, a union of groups, is used: equation 21 holds for each of them, and the stacked
    tables have the required rank.

    Args:
        plan: inside groups and ranks.
        options: ``pool`` and ``largest_group`` bound the search, ``seed`` is the seed of the random parameters for ranks.
    """
    network = StructureProbe(plan.tree, options.seed).network
    choices: dict[int, tuple[Group, ...]] = {}
    for separator in plan.separators:
        node, core = separator.node, separator.core
        near = [v for _, v in plan.tree.distances(node, options.pool)][: options.pool]
        joint: Tensor | None = None
        if group_size((*core, *near), network.states) <= LARGEST_WHOLE:
            joint = network.joint((*core, *near))
        choices[node] = separator.instrument
        for size in range(1, len(near) + 1):
            groups = [g for g in combinations(near, size) if group_size(g, network.states) <= options.largest_group]
            valid = [g for g in groups if _rank(network, core, g, near, joint) >= separator.rank]
            if valid:
                choices[node] = tuple(valid)
                break
    return choices


def _rank(network: DiscreteNetwork, core: Group, group: Group, near: Sequence[str], joint: Tensor | None) -> int:
    """Rank of P(core, group), from the table over the core and all near observables if available."""
    if joint is None:
        table = network.joint((*core, *group))
    else:
        rest = [len(core) + i for i, v in enumerate(near) if v not in group]
        table = joint.sum(dim=rest) if rest else joint
    return numerical_rank(scaled_cross(table.reshape(group_size(core, network.states), -1)))


def required_tables(plan: Plan, choices: Choices) -> list[Group]:
    """Groups of variables whose joint tables the representation needs."""
    scopes: dict[Group, None] = {}
    for separator in plan.separators:
        below = [v for g in plan.targets(separator.node) for v in g]
        for group in choices[separator.node]:
            scopes[(*separator.core, *group)] = None
            scopes[(*below, *group)] = None
    scopes[tuple(v for g in plan.targets(0) for v in g)] = None
    return list(scopes)


def observable_representation(plan: Plan, choices: Choices, moments: TableMoments) -> Representation:
    """Step 1 of Algorithm 1 for all nodes, grouped by shape.

    Args:
        plan: inside groups and ranks.
        choices: outside groups of each separator.
        moments: moments of all these groups.
    """
    pairs = {s.node: _stacked_pairs(s, choices[s.node], moments) for s in plan.separators}
    projections: dict[int, Tensor] = {}
    projected: dict[int, Tensor] = {}
    values: dict[int, Tensor] = {}
    for nodes in equal_shapes({s.node: (pairs[s.node].shape, s.rank) for s in plan.separators}):
        rank = plan[nodes[0]].rank
        u, s, vh = torch.linalg.svd(torch.stack([pairs[n] for n in nodes]), full_matrices=False)
        for i, n in enumerate(nodes):
            projections[n] = u[i, :, :rank]
            projected[n] = s[i, :rank, None] * vh[i, :rank]  # P(O_i, O_i₋) ×_{O_i} U_i
            values[n] = s[i, :rank]
    triples = {n: _stacked_triples(plan, n, choices[n], projections, moments) for n in pairs}
    operators: dict[int, Tensor] = {}
    for nodes in equal_shapes({n: (triples[n].shape, plan[n].rank) for n in triples}):
        right = torch.stack([triples[n].flatten(0, -2) for n in nodes])
        weights = least_squares(right, torch.stack([projected[n] for n in nodes]), 0.0)
        for i, n in enumerate(nodes):
            operators[n] = weights[i].T.reshape(plan[n].rank, *triples[n].shape[:-1])
    root = _stacked_triples(plan, 0, [()], projections, moments).squeeze(-1)
    order = range(1, len(plan.tree))
    tree = OperatorTree(plan, (root, *(operators[n] for n in order)), root)
    return Representation(tree, tuple(values[n] for n in order))


def table_rank(singular_values: Tensor) -> int:
    """Number of singular values that are nonzero up to rounding."""
    return int((singular_values > VANISHING * singular_values[0]).sum())


def lost_rank(plan: Plan, singular_values: Sequence[Tensor]) -> str:
    """A warning about separators whose tables have a lower rank than implied by the structure; empty if there are none."""
    lost = []
    for separator, values in zip(plan.separators, singular_values, strict=True):
        rank = table_rank(values)
        if rank < separator.rank:
            lost.append(f"{plan.tree.separator_name(separator.node)} (rank {rank}, implied {separator.rank})")
    if not lost:
        return ""
    shown = ", ".join(lost[:5]) + (", …" if len(lost) > 5 else "")
    return (
        f"Tables P(inside, outside) of lower rank than the structure implies, at separators {shown}. Their inverses exist on "
        "that part only. Lower the latents' numbers of states, or pass rank=."
    )


def _stacked_pairs(separator: SeparatorPlan, groups: Sequence[Group], moments: TableMoments) -> Tensor:
    """(inside states, all outside states) concatenated tables P(O_i, O_i₋)."""
    return torch.cat([moments.cross(separator.core, g) for g in groups], dim=1)


def _stacked_triples(
    plan: Plan,
    node: int,
    groups: Sequence[Group],
    projections: Mapping[int, Tensor],
    moments: TableMoments,
) -> Tensor:
    """P(O_i₁, O_i₂, O_i₋) with the children's modes projected; the states of a leaf are not projected [JT eq. 24]."""
    tree = plan.tree
    features = None if tree.leaf_observables[node] else [projections[c] for c in tree.children[node]]
    return moments.third(plan.targets(node), features, groups)
