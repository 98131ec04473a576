"""From a graph to what is to be learned: a junction tree, and core groups, instruments and ranks of its separators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchpbp.graph.junction_tree import JunctionTree, build_junction_tree
from torchpbp.graph.latent_graph import Continuous, LatentGraph
from torchpbp.planning.core_groups import group_size
from torchpbp.planning.plan import Specification, SpecificationOptions, specify

CANDIDATE_RANKS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
"""Ranks that are tried where the rank is chosen on data."""

Plan = tuple[JunctionTree, Specification]


@dataclass(frozen=True)
class Planner:
    """Makes plans for a graph.

    Args:
        graph: the structure; latents may lack a number of states.
        dims: feature dimensions of each observable.
        options: of specifications, but for the rank.
        root: variables the root clique must contain; ``None``: chosen by cost.
        compressed: whether messages are compressed to their rank.
    """

    graph: LatentGraph
    dims: Mapping[str, int]
    options: SpecificationOptions
    root: tuple[str, ...] | None
    compressed: bool

    def plan(self, rank: int | None) -> Plan:
        """Tree and specification, with states set for latents of unknown cardinality.

        Generic ranks are found on a discrete stand-in: a continuous variable gets enough states to tell those of any
        latent apart.

        Args:
            rank: most dimensions of a message; ``None``: what the latents' numbers of states imply.
        """
        graph = self.graph
        if rank is not None:
            graph = graph.with_states(dict.fromkeys([v for v in graph.latent if graph.variables[v] is None], rank))
        most = max([graph.num_states(v) for v in graph.latent], default=2)
        stand_ins = {
            v: max(2, min(most, d)) for v, d in self.dims.items() if isinstance(graph.variables[v], Continuous)
        }
        tree = build_junction_tree(graph.with_states(stand_ins), self.root)
        specification = specify(tree, replace(self.options, rank=rank), self.dims)
        if not self.compressed:
            plans = tuple(replace(p, rank=group_size(p.core, self.dims)) for p in specification.plans)
            specification = Specification(plans)
        return tree, specification

    def candidates(self, most: int) -> dict[int, Plan]:
        """Plans to choose from, by rank, up to a largest one or to where the structure cannot use more."""
        plans: dict[int, Plan] = {}
        for rank in CANDIDATE_RANKS:
            if rank > most:
                break
            plan = self.plan(rank)
            sizes = [p.rank for p in plan[1].plans]
            if plans and sizes == [p.rank for p in next(reversed(plans.values()))[1].plans]:
                break
            plans[rank] = plan
        return plans
