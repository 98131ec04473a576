"""Result files of a run. Each appears in its folder whole or not at all."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from torchpbp.files.replacing import replacing as replacing
from torchpbp.lazy import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Metrics = dict[str, float | int | str | None]
"""Flat results of a run, "name/size" -> value; ``None`` where no finite number exists."""


def metrics_of(summary: pd.DataFrame, by: Sequence[str], names: Mapping[str, str] | None = None) -> Metrics:
    """Flat results from a table: "<name>/<first of by>/<second of by>…" for each of its rows.

    Args:
        summary: one row for each combination of ``by``.
        by: columns that say what a row is about.
        names: name of the result -> its column. ``None``: all other columns, under their own names.
    """
    metrics: Metrics = {}
    names = names or {str(column): str(column) for column in summary if column not in by}
    for line in summary.to_dict("records"):
        key = "/".join(str(line[column]) for column in by)
        for name, column in names.items():
            value = float(line[column])
            metrics[f"{name}/{key}"] = value if math.isfinite(value) else None  # no standard error of a single repeat
    return metrics


def text_table(summary: pd.DataFrame, columns: Mapping[str, tuple[str, str]]) -> str:
    """A table for a terminal.

    Args:
        summary: the table.
        columns: name of a column -> its heading and the format of its values; a dash stands for NaN.
    """
    shown = pd.DataFrame(index=summary.index)
    for name, (heading, style) in columns.items():
        shown[heading] = ["-" if value != value else style.format(value) for value in summary[name]]
    return shown.to_string(index=False)


def environment() -> Metrics:
    """What the seconds of a run, and its last digits, depend on besides its settings."""
    return {"threads": torch.get_num_threads(), "torch": str(torch.__version__)}


def write_results(output_dir: str | os.PathLike[str], metrics: Metrics, table: pd.DataFrame) -> Path:
    """Write metrics.json and metrics.csv.

    Args:
        output_dir: folder for them.
        metrics: flat results.
        table: what they were computed from.

    Returns:
        The folder, for the pictures.
    """
    folder = Path(output_dir)
    write_json(folder / "metrics.json", metrics)
    write_csv(folder / "metrics.csv", table)
    return folder


def publish(
    output_dir: str | os.PathLike[str] | None, metrics: Metrics, table: pd.DataFrame, text: str, verbose: bool
) -> Path | None:
    """Print the results as text, if ``verbose``, and write metrics.json and metrics.csv, if there is a folder; returns it."""
    if verbose:
        print(text, flush=True)
    return None if output_dir is None else write_results(output_dir, metrics, table)


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
