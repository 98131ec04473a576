"""Profiles of a latent: distributions of the observables given its states."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from torchpbp.contract.latent_queries import LatentQueries
from torchpbp.errors import QueryError, StructureError
from torchpbp.plotting.style import CENTRED, drawing_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_profiles(
    model: LatentQueries, name: str, *, variables: Sequence[str] | None = None, ax: Axes | None = None
) -> Axes:
    """Draw P(observable | state of a latent) as a heat map with a row for each state of each observable.

    Args:
        model: fitted, with hidden tables, such as a :class:`~torchpbp.MaximumLikelihood`.
        name: of the latent.
        variables: observables to show; all by default.
        ax: axes to draw on; new ones by default.

    Returns:
        The axes; its image holds the probabilities, its ticks are states of observables and of the latent.

    Raises:
        StructureError: a model without hidden tables.
        QueryError: a variable that is not latent, or not observed.
    """
    if not isinstance(model, LatentQueries):
        raise StructureError(
            f"Profiles: expected a model with hidden tables, such as MaximumLikelihood; got {type(model).__name__}."
        )
    profiles = model.profiles(name)
    observables = list(dict.fromkeys(profiles.index.get_level_values("variable")))
    unknown = [v for v in variables or () if v not in observables]
    if unknown:
        raise QueryError(f"Profiles: {unknown} are not observables of the model. It has: {', '.join(observables)}.")
    chosen = observables if variables is None else list(variables)
    table = profiles.loc[chosen]
    shares = model.posterior(name).reshape(-1).tolist()

    ax = drawing_axes(ax, 2.2 + 0.9 * table.shape[1], 0.8 + 0.26 * len(table))
    values = table.to_numpy(dtype=float)
    ax.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        ax.text(column, row, f"{value:.2f}", color="white" if value > 0.6 else "black", **CENTRED)
    states = [f"{s}\n({share:.0%})" for s, share in zip(table.columns, shares, strict=True)]
    ax.set_xticks(range(table.shape[1]), states)
    ax.set_yticks(range(len(table)), [f"{v} = {state}" for v, state in table.index])
    for row, (v, w) in enumerate(itertools.pairwise(table.index.get_level_values(0))):
        if v != w:
            ax.axhline(row + 0.5, color="black", linewidth=0.8)
    ax.xaxis.tick_top()
    ax.set_title(name)
    ax.tick_params(length=0)
    return ax
