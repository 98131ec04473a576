"""Pictures: drawn on Figures without a window, checked by what is on the axes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from torchpbp.datasets import hide_points, load_digits
from torchpbp.errors import ArgumentError, ShapeError
from torchpbp.plotting.digits import COMPLETED, SEEN, draw_digits


@pytest.fixture
def ax() -> Axes:
    return Figure(figsize=(4, 3), layout="constrained").subplots()


def render(ax: Axes) -> bytes:
    stream = io.BytesIO()
    ax.figure.savefig(stream, format="png", dpi=50, metadata={"Software": None})
    return stream.getvalue()


def segments(ax: Axes) -> dict[Any, int]:
    """Number of line pieces of each colour."""
    lines = [c for c in ax.collections if isinstance(c, LineCollection)]
    return {tuple(c.get_colors()[0]): len(c.get_segments()) for c in lines}


def test_strokes(ax: Axes) -> None:
    x = load_digits().train_x[:12]
    assert draw_digits(x, ax) is ax
    assert segments(ax) == {to_rgba(SEEN): 12 * 7, to_rgba(COMPLETED): 0}
    assert ax.get_legend() is None
    assert render(ax).startswith(b"\x89PNG")
    first = next(c for c in ax.collections if isinstance(c, LineCollection) and len(c.get_segments())).get_segments()
    assert np.allclose(first[0], [[47, 100], [27, 81]])  # the first digit is at the origin


def test_every_digit_is_inside_the_picture(ax: Axes) -> None:
    corners = torch.tensor([[0.0, 0.0, 100.0, 100.0]]).repeat(7, 4)
    draw_digits(corners, ax, columns=3, labels=range(7))
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    for c in ax.collections:
        if isinstance(c, LineCollection) and len(c.get_segments()):
            points = np.concatenate(c.get_segments())
            assert left < points[:, 0].min() < points[:, 0].max() < right
            assert bottom < points[:, 1].min() < points[:, 1].max() < top


def test_completed_points_have_another_colour_and_a_legend(ax: Axes) -> None:
    x = load_digits().test_x[:10]
    observed = torch.ones(10, 8, dtype=torch.bool)
    observed[:, 3] = False
    draw_digits(x, ax, observed=observed)
    assert segments(ax) == {to_rgba(COMPLETED): 10 * 2, to_rgba(SEEN): 10 * 5}
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["seen", "completed"]


def test_hidden_points_are_left_out(ax: Axes) -> None:
    x = load_digits().test_x[:1].clone()
    x[:, 6:8] = float("nan")
    draw_digits(x, ax)
    assert segments(ax)[to_rgba(SEEN)] == 5
    render(ax)
    draw_digits(hide_points(x, 8, 0), ax)  # nothing at all to draw
    render(ax)


def test_texts(ax: Axes) -> None:
    d = load_digits()
    draw_digits(d.test_x[:6], ax, columns=3, labels=d.test_y[:6], row_names=["one", "two"])
    assert [t.get_text() for t in ax.texts] == ["8", "8", "8", "9", "9", "1", "one", "two"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": torch.zeros(16)}, r"expected points of shape \(n, 16\) with n at least 1, got \(16,\)"),
        ({"points": torch.zeros(0, 16)}, r"with n at least 1, got \(0, 16\)"),
        ({"points": torch.zeros(2, 15)}, r"got \(2, 15\)"),
        ({"observed": torch.ones(2, 16)}, r"expected observed of shape \(2, 8\), got \(2, 16\)"),
        ({"labels": [1]}, "expected 2 labels, one per digit, got 1"),
        ({"row_names": ["a", "b"]}, "expected 1 row names, one per line, got 2"),
    ],
)
def test_wrong_shapes(options: dict[str, Any], message: str, ax: Axes) -> None:
    with pytest.raises(ShapeError, match=message):
        draw_digits(**{"points": torch.zeros(2, 16), "ax": ax, **options})


def test_no_columns(ax: Axes) -> None:
    with pytest.raises(ArgumentError, match="columns: expected a whole number of at least 1, got 0"):
        draw_digits(torch.zeros(2, 16), ax, columns=0)
