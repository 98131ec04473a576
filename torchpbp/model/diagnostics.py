"""A table of how well each separator was specified and learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from torch import Tensor

from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.inference.queries import negative_mass
from torchpbp.specification.specification import Specification


def diagnostics_table(
    tree: JunctionTree, specification: Specification, strengths: Sequence[Tensor], estimates: Mapping[int, Tensor]
) -> pd.DataFrame:
    """One row per separator.

    Args:
        tree: junction tree.
        specification: plans of all separators.
        strengths: per separator (node 1 first) the canonical correlations.
        estimates: leaf -> (batch, states…) unclipped estimates.
    """
    rows = []
    for plan, found in zip(specification.plans, strengths, strict=True):
        weakest, strongest = float(found.min()), float(found.max())
        clipped = negative_mass(estimates[plan.node].flatten(1)) if plan.node in estimates else None
        rows.append(
            {
                "node": plan.node,
                "separator": tree.separator_name(plan.node),
                "core": ", ".join(plan.core),
                "instrument": " + ".join("·".join(g) or "1" for g in plan.instrument),
                "rank": plan.rank,
                "needed": plan.needed,
                "reached": plan.reached,
                "weakest": weakest,
                "condition": strongest / weakest if weakest > 0 else float("inf"),
                "clipped_mass": float("nan") if clipped is None else float(clipped.mean()),
            }
        )
    return pd.DataFrame(rows).set_index("node")
