"""Diagnostics of the plan and the fit of each separator, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchpbp.inference.observable import negative_mass
from torchpbp.inference.operator_net import SeparatorOperator
from torchpbp.lazy import pandas as pd
from torchpbp.planning.plan import Plan, SeparatorPlan


def diagnostics_table(
    plan: Plan, operators: Sequence[SeparatorOperator], estimates: Mapping[int, Tensor], classes: Sequence[Any] = ()
) -> pd.DataFrame:
    """One row per separator.

    Args:
        plan: of the model.
        operators: of all separators, node 1 first.
        estimates: leaf -> (batch, states…) unclipped estimates.
        classes: labels of the classes of operators; empty for a single tree.
    """
    rows = []
    for separator, operator in zip(plan.separators, operators, strict=True):
        label, strengths, significant = worst_class(operator)
        weakest, strongest = float(strengths.min()), float(strengths.max())
        clipped = None
        if separator.node in estimates:
            clipped = negative_mass(estimates[separator.node].flatten(1))
        rows.append(
            {
                "node": separator.node,
                "separator": plan.tree.separator_name(separator.node),
                "core": ", ".join(separator.core),
                "instrument": " + ".join("·".join(g) or "1" for g in separator.instrument),
                "rank": separator.rank,
                "needed": separator.needed,
                "reached": separator.reached,
                "significant": significant,
                "weakest": weakest,
                "condition": strongest / weakest if weakest > 0 else float("inf"),
                "clipped_mass": float("nan") if clipped is None else float(clipped.mean()),
                "remedy": remedy(separator, significant),
                **({} if label is None else {"class": classes[label]}),
            }
        )
    return pd.DataFrame(rows).set_index("node")


def worst_class(operator: SeparatorOperator) -> tuple[int | None, Tensor, int]:
    """The worst class of a separator (None without classes), its strengths and number of significant dimensions."""
    strengths, significant = operator.strengths.detach().cpu(), operator.significant.cpu()
    if not significant.ndim:
        return None, strengths, int(significant)
    weakest = strengths.amin(dim=1).tolist()
    label = min(range(len(significant)), key=lambda c: (int(significant[c]), weakest[c]))
    return label, strengths[label], int(significant[label])


def remedy(separator: SeparatorPlan, significant: int) -> str:
    """Insufficiencies of a separator's structure and data, with remedies; an empty text without any.

    An insufficient structure raises a warning when the model is made. Insufficient data do not: with a thousand rows most
    separators of ordinary networks have fewer significant dimensions than their rank, and still give good answers.

    Args:
        separator: the separator.
        significant: dimensions of its message that are statistically significant.
    """
    remedies = []
    if separator.reached < separator.needed:
        remedies.append(
            f"structure: the instrument reaches {separator.reached} of {separator.needed} dimensions. Add outside observables, raise pool= or "
            "largest_group=, or lower the latent cardinality."
        )
    if significant < separator.rank:
        remedies.append(
            f"data: {significant} of {separator.rank} dimensions are statistically significant. More rows; regressor=KernelRidge() or MLP() if "
            "single observables are uninformative; or a lower rank."
        )
    return " ".join(remedies)


def random_patterns(rows: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Rows with a random share of the values of each hidden; the share is uniform between 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    count = len(next(iter(rows.values())))
    hidden = torch.rand(len(rows), count, generator=generator) < torch.rand(1, count, generator=generator)
    return {
        v: torch.where(h.to(x.device), torch.full_like(x, -1 if x.dtype == torch.int64 else torch.nan), x)
        for (v, x), h in zip(rows.items(), hidden, strict=True)
    }
