"""What is drawn in these tests, and how its numbers are read off the axes again."""

from __future__ import annotations

from typing import Any

import matplotlib

matplotlib.use("Agg")

from torchpbp import DiscreteNetwork, templates

DIAMOND = DiscreteNetwork.random(templates.diamond(), seed=1)
EVIDENCE = {"a1": [0, 3], "b1": [1, -1]}


def heights(ax: Any) -> list[float]:
    return [bar.get_height() for bar in ax.patches]


def texts(ax: Any, minor: bool = False) -> list[str]:
    return [t.get_text() for t in ax.get_xticklabels(minor=minor)]
