"""Profiles of a latent: what its states say about each observable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchpbp.errors import QueryError, StructureError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_profiles(model: Any, name: str, *, variables: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Draw P(x | state) of the observables for each state of a latent: a row of shaded cells per state.

    Args:
        model: fitted, with tables of latents, such as MaximumLikelihood, EM or a DiscreteNetwork.
        name: of the latent.
        variables: observables to draw, in this order; all by default.
        ax: axes to draw on; new ones by default.

    Returns:
        The axes; its major ticks are the variables, its minor ticks their states.

    Raises:
        StructureError: a model without tables of latents.
        QueryError: not a latent, or not an observable.
    """
    if not hasattr(model, "profiles"):
        raise StructureError(
            f"plot_profiles: expected a model with tables of latents, such as MaximumLikelihood; got {type(model).__name__}."
        )
    table = model.profiles(name)
    names = list(model.graph.observed) if variables is None else list(variables)
    unknown = [v for v in names if v not in model.graph.observed]
    if unknown or not names:
        raise QueryError(f"plot_profiles: expected observables to draw, got {unknown or names}.")
    shares = model.posterior(name)[0].detach().cpu().tolist()
    parts = [table.loc[v] for v in names]

    import matplotlib.pyplot as plt
    import numpy as np

    cells = np.concatenate([part.to_numpy() for part in parts]).T  # (states of the latent, states of all observables)
    if ax is None:
        _, ax = plt.subplots(
            figsize=(min(24.0, 2.0 + 0.3 * cells.shape[1]), 1.2 + 0.4 * len(cells)), layout="constrained"
        )
    image = ax.imshow(cells, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    ends = np.cumsum([len(part) for part in parts])
    for end in ends[:-1]:
        ax.axvline(end - 0.5, color="white", linewidth=2.0)
    ax.set_xticks(ends - [(len(part) + 1) / 2 for part in parts], names)
    ax.tick_params(axis="x", which="major", length=0, pad=16)
    ax.set_xticks(range(cells.shape[1]), [str(s) for part in parts for s in part.index], minor=True, fontsize=7)
    ax.set_yticks(range(len(cells)), [f"{s} ({p:.0%})" for s, p in zip(table.columns, shares, strict=True)])
    ax.set_ylabel(name)
    ax.set_title(f"P(x | {name})", fontsize=10)
    ax.figure.colorbar(image, ax=ax, shrink=0.8)
    return ax
