"""A table of how well each separator was specified and learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.inference.queries import negative_mass
from torchpbp.lazy import pandas as pd
from torchpbp.planning.plan import SeparatorPlan, Specification


def diagnostics_table(
    tree: JunctionTree,
    specification: Specification,
    strengths: Sequence[Tensor],
    significant: Sequence[int],
    estimates: Mapping[int, Tensor],
) -> pd.DataFrame:
    """One row per separator.

    Args:
        tree: junction tree.
        specification: plans of all separators.
        strengths: per separator (node 1 first) the canonical correlations.
        significant: per separator the dimensions of the message that the data bear out.
        estimates: leaf -> (batch, states…) unclipped estimates.
    """
    rows = []
    for plan, found, borne_out in zip(specification.plans, strengths, significant, strict=True):
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
                "significant": borne_out,
                "weakest": weakest,
                "condition": strongest / weakest if weakest > 0 else float("inf"),
                "clipped_mass": float("nan") if clipped is None else float(clipped.mean()),
                "remedy": remedy(plan, borne_out),
            }
        )
    return pd.DataFrame(rows).set_index("node")


def remedy(plan: SeparatorPlan, significant: int) -> str:
    """What is wrong at a separator and what to do about it; empty where nothing is.

    A structure that falls short has been warned of when the model was made. Data that fall short are no reason for a warning:
    with a thousand rows most separators of ordinary networks do, and the answers are good nevertheless.

    Args:
        plan: of the separator.
        significant: dimensions of its message that the data bear out.
    """
    found = []
    if plan.reached < plan.needed:
        found.append(
            f"structure: the instrument reaches {plan.reached} of {plan.needed} dimensions. Add outside observables, raise pool= or "
            "largest_group=, or lower the latent cardinality."
        )
    if significant < plan.rank:
        found.append(
            f"data: {significant} of {plan.rank} dimensions borne out. More rows; regressor=KernelRidge() or MLP() where "
            "single observables say nothing; or a lower rank."
        )
    return " ".join(found)


def random_patterns(rows: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Hide a random share of each row's values: evidence from nothing to everything."""
    generator = torch.Generator().manual_seed(seed)
    count = len(next(iter(rows.values())))
    hidden = torch.rand(len(rows), count, generator=generator) < torch.rand(1, count, generator=generator)
    return {
        v: torch.where(h.to(x.device), torch.full_like(x, -1 if x.dtype == torch.int64 else torch.nan), x)
        for (v, x), h in zip(rows.items(), hidden, strict=True)
    }
