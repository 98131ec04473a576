"""Canonical correlations and ranks of the separators of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchpbp.contract.frames import state_labels
from torchpbp.errors import StructureError
from torchpbp.models.diagnostics import diagnostics_table, worst_class
from torchpbp.models.pbp import PBP
from torchpbp.plotting.style import BLUE, CENTRED, GREY, GRID, RED, drawing_axes
from torchpbp.settings import whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = {"rank": 1.12, "needed": 1.25, "reached": 1.4, "significant": 1.57, "condition": 1.75}
"""Numbers beside the dots, and their positions; correlations end at 1."""


def plot_diagnostics(model: PBP, *, most: int = 40, ax: Axes | None = None) -> Axes:
    """Draw the canonical correlations and ranks of each separator, one line each.

    A dot is the canonical correlation of one dimension of the message with the instrument: filled if it is statistically
    significant, hollow otherwise. The constant, whose correlation is 1, is not drawn. The numbers beside the dots are the
    message's rank, the rank that the structure needs, the rank that the instrument reaches, the number of significant
    dimensions (including the constant), and the condition number of stage 2; ranks that are too low are red. With
    ``condition``, a separator's figures are those of its worst class.

    Args:
        model: fitted.
        most: largest number of separators; of more, those with the weakest correlations are drawn.
        ax: axes to draw on; new ones by default.

    Returns:
        The axes; its ticks are the separators, its two lines the filled and the hollow dots.

    Raises:
        StructureError: not a PBP.
        ArgumentError: ``most`` below 1.
        NotFittedError: the model is not fitted.
    """
    if not isinstance(model, PBP):
        raise StructureError(f"Diagnostics of separators: expected a PBP model, got {type(model).__name__}.")
    most = whole(1).check("most", most)
    model.require_fitted()
    strengths = [worst_class(op)[1] for op in model.operators.separator_operators]
    labels = [] if model.condition is None else state_labels(model, model.condition)
    table = diagnostics_table(model.plan, model.operators.separator_operators, {}, labels)  # without the clipped mass
    total = len(table)
    if total > most:
        table = table.loc[sorted(table["weakest"].nsmallest(most).index)]

    ax = drawing_axes(ax, 9.0, 1.3 + 0.27 * len(table))
    sure: list[tuple[float, int]] = []
    unsure: list[tuple[float, int]] = []
    for place, (node, line) in enumerate(table.iterrows()):
        correlations = strengths[int(str(node)) - 1].double().tolist()
        for k, value in enumerate(correlations[1:], start=1):  # the constant comes first
            (sure if k < line["significant"] else unsure).append((value, place))
        red = {"reached": line["reached"] < line["needed"], "significant": line["significant"] < line["rank"]}
        for name, across in COLUMNS.items():
            text = f"{line[name]:.3g}" if name == "condition" else f"{line[name]}"
            colour = RED if red.get(name) else "black"
            ax.text(across, place, text, color=colour, **CENTRED)
    for dots, colour, style in ((sure, BLUE, "full"), (unsure, RED, "none")):
        x, y = [d[0] for d in dots], [d[1] for d in dots]
        ax.plot(x, y, linestyle="", marker="o", markersize=6, color=colour, fillstyle=style)
    for name, across in COLUMNS.items():
        ax.text(across, -0.75, name, ha="center", va="bottom", fontsize=8, color=GREY)
    ax.set_yticks(range(len(table)), list(table["separator"]), fontsize=8)
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.set_xlim(-0.02, 1.85)
    ax.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    ax.set_xlabel("canonical correlation (hollow: not significant)", fontsize=9, loc="left")
    ax.grid(color=GRID)
    ax.set_axisbelow(True)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    title = f"{total} separators" if total <= most else f"The {most} weakest of {total} separators"
    ax.set_title(title, fontsize=10, loc="left", pad=12)
    return ax
