"""Profiles of a latent: distributions of the observables given its states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchpbp.contract.latent_queries import LatentQueries
from torchpbp.errors import QueryError, StructureError

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

    import matplotlib.pyplot as plt

    if ax is None:
        size = (2.2 + 0.9 * table.shape[1], 0.8 + 0.26 * len(table))
        _, ax = plt.subplots(figsize=size, layout="constrained")
    values = table.to_numpy(dtype=float)
    ax.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (row, column), value in ((place, values[place]) for place in _places(table.shape)):
        ax.text(
            column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color="white" if value > 0.6 else "black"
        )
    ax.set_xticks(
        range(table.shape[1]), [f"{s}\n({share:.0%})" for s, share in zip(table.columns, shares, strict=True)]
    )
    ax.set_yticks(range(len(table)), [f"{v} = {state}" for v, state in table.index])
    for v, w, row in zip(
        table.index.get_level_values(0)[:-1], table.index.get_level_values(0)[1:], range(len(table)), strict=False
    ):
        if v != w:
            ax.axhline(row + 0.5, color="black", linewidth=0.8)
    ax.xaxis.tick_top()
    ax.set_title(name)
    ax.tick_params(length=0)
    return ax


def _places(shape: tuple[int, int]) -> list[tuple[int, int]]:
    return [(i, j) for i in range(shape[0]) for j in range(shape[1])]
