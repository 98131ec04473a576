"""Results of an experiment: metrics, tables, pictures and models, and the files they become."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torchpbp.io import replacing
from torchpbp.lazy import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Metrics = dict[str, Any]
"""Flat results, "name/case" -> number or text; ``None`` where no finite number exists."""


class Picture(NamedTuple):
    """A figure and its caption.

    Args:
        figure: drawn without pyplot, which leaves the caller's backend and open figures alone.
        caption: a sentence that says what is shown.
    """

    figure: Figure
    caption: str


@dataclass
class Result:
    """Everything that an experiment returns.

    Args:
        metrics: flat results.
        table: the rows behind them, for metrics.csv.
        text: results for a terminal; the table by default.
        main: names of the metrics that are shown and written first.
        pictures: name of the file without suffix -> picture; the first one is the main figure.
        tables: name of the file without suffix -> further table.
        models: name of the file without suffix -> fitted model with a method ``save``.
    """

    metrics: Metrics
    table: pd.DataFrame | None = None
    text: str = ""
    main: Sequence[str] = ()
    pictures: Mapping[str, Picture] = field(default_factory=dict)
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    models: Mapping[str, Any] = field(default_factory=dict)

    def described(self) -> str:
        """The results as text."""
        if self.text or self.table is None:
            return self.text or "\n".join(f"{name:<40} {value}" for name, value in self.metrics.items())
        return self.table.to_string(index=False, float_format="{:.4g}".format)

    def write(self, folder: Path) -> None:
        """Write metrics.csv, the other tables, pictures and models, and metrics.json last: it marks a finished run."""
        tables = {**({} if self.table is None else {"metrics": self.table}), **self.tables}
        for name, table in tables.items():
            with replacing(folder / f"{name}.csv") as temporary:
                table.to_csv(temporary, index=False)
        for name, picture in self.pictures.items():
            with replacing(folder / f"{name}.png") as temporary:
                picture.figure.savefig(temporary, format="png", dpi=130)
        for name, model in self.models.items():
            model.save(folder / f"{name}.pt")
        ordered = {name: self.metrics[name] for name in self.main if name in self.metrics} | self.metrics
        with replacing(folder / "metrics.json") as temporary:
            temporary.write_text(json.dumps(finite(ordered), indent=2) + "\n", encoding="utf-8")


def finite(metrics: Mapping[str, Any]) -> Metrics:
    """Metrics as strict JSON knows them: numbers that are not finite become ``None``."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}


def metrics_of(summary: pd.DataFrame, by: Sequence[str]) -> Metrics:
    """Flat results from a table: "<column>/<first of by>/<second of by>…" for each of its rows and other columns.

    Args:
        summary: one row for each combination of ``by``.
        by: columns that say what a row is about.
    """
    columns = [c for c in summary if c not in by]
    return finite(
        {
            "/".join([str(column), *(str(line[b]) for b in by)]): float(line[column])
            for line in summary.to_dict("records")
            for column in columns
        }
    )


def means_and_errors(table: pd.DataFrame, by: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Means of columns and their standard errors ("<column>_standard_error", NaN for a single row), a row per combination.

    Args:
        table: measurements.
        by: columns that say what a row is about; combinations come in the order of their first rows.
        columns: to be averaged.
    """
    groups = table.groupby(list(by), sort=False, dropna=False)[list(columns)]
    return groups.mean().join(groups.sem().add_suffix("_standard_error")).reset_index()
