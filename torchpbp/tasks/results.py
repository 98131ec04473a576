"""Result files of a run. Each appears in its folder whole or not at all."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from torchpbp.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Metrics", "replacing", "write_csv", "write_figure", "write_json"]

Metrics = dict[str, float | int | str | None]
"""Flat results of a run, "name/size" -> value; ``None`` where no finite number exists."""


def write_json(path: str | os.PathLike[str], metrics: Mapping[str, float | int | str | None]) -> None:
    """Write metrics as strict JSON, which has no infinity and no NaN: such values become null."""
    values = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def write_csv(path: str | os.PathLike[str], table: pd.DataFrame) -> None:
    """Write a table without its index."""
    with replacing(path) as temporary:
        table.to_csv(temporary, index=False)


def write_figure(path: str | os.PathLike[str], figure: Figure, dpi: float = 150.0) -> None:
    """Write a picture as a PNG file.

    Args:
        path: where to write.
        figure: drawn without pyplot, which leaves the caller's backend and open figures alone.
        dpi: dots per inch.
    """
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=dpi)
