"""Report of a benchmark: tables, targets and curves; printed, and written as one JSON file and one figure."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

PACKAGES = ("torchpbp", "torch", "numpy", "scipy", "scikit-learn", "pgmpy", "pyagrum", "pomegranate", "hmmlearn")
COLUMNS = 3
Row = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """A measurement with a target.

    Args:
        text: what is measured.
        value: the measurement; ``None`` where the time limit or a missing package prevented it.
        at_least, at_most: the target.
        note: further explanation.
    """

    text: str
    value: float | None
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; ``None`` without a measurement."""
        if self.value is None:
            return None
        low, high = self.at_least, self.at_most
        return (low is None or self.value >= low) and (high is None or self.value <= high)

    def __str__(self) -> str:
        target = f"at least {self.at_least:,g}" if self.at_least is not None else f"at most {self.at_most:,g}"
        verdict = {True: "met", False: "MISSED", None: "not measured"}[self.met]
        return f"{verdict:<12}  {self.text}: {_shown(self.value)} ({target}){'; ' + self.note if self.note else ''}"


@dataclass
class Panel:
    """Curves of one quantity on logarithmic scales; or, without ``y``, labelled values on one logarithmic scale.

    Args:
        title, x, y: labels.
        curves: label -> points (x, y); without ``y`` -> (0, value), where the first is the one that counts.
        dashed: labels whose points are extrapolated or bounds.
    """

    title: str
    x: str
    y: str = ""
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    dashed: set[str] = field(default_factory=set)

    def add(self, label: str, x: float, y: float | None) -> None:
        """Add a point, if there is one."""
        if y is not None and math.isfinite(y) and y > 0:
            self.curves.setdefault(label, []).append((x, y))

    def draw(self, axes: Axes, colours: Mapping[str, str]) -> None:
        """Draw on axes, with label -> colour."""
        for place, (label, points) in enumerate(self.curves.items()):
            if self.y:
                style = "--" if label in self.dashed else "-"
                axes.plot(*zip(*sorted(points), strict=True), style + "o", ms=4, color=colours[label], label=label)
            else:
                values = [value for _, value in points]
                axes.plot(values, [place] * len(values), "o", ms=4, alpha=0.25, color="C0")
                axes.plot(values[0], place, "o", color="C0")
                axes.annotate(f"{values[0]:.3g}", (values[0], place), (0, 5), textcoords="offset points", ha="center")
        if self.y:
            axes.legend(fontsize=7)
            axes.set(yscale="log", ylabel=self.y)
        else:
            axes.set_yticks(range(len(self.curves)), list(self.curves))
            axes.set_ylim(len(self.curves) - 0.5, -0.7)
        axes.set(xscale="log", title=self.title, xlabel=self.x)
        axes.grid(alpha=0.2)


@dataclass
class Report:
    """All results of one benchmark.

    Args:
        name: of the files.
        tables: title -> rows of figures.
        measurements: every round of every comparison, for the JSON file.
        claims: figures with targets.
        panels: curves.
        notes: remarks for the reader.
        left_out: implementation, or its package -> why it was not timed.
    """

    name: str
    tables: dict[str, list[Row]] = field(default_factory=dict)
    measurements: list[Row] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, title: str, **row: Any) -> None:
        """Add a row to a table."""
        self.tables.setdefault(title, []).append(row)

    def panel(self, title: str, x: str, y: str = "") -> Panel:
        """A new panel of the figure."""
        self.panels.append(Panel(title, x, y))
        return self.panels[-1]

    def claim(self, text: str, value: float | None, **target: Any) -> None:
        """Compare a measurement with a target, see :class:`Claim`."""
        self.claims.append(Claim(text, value, **target))

    def __str__(self) -> str:
        parts = [f"== {self.name} =="]
        parts += [f"{title}\n{format_table(rows)}" for title, rows in self.tables.items()]
        parts += ["\n".join(lines) for lines in (self.notes, list(map(str, self.claims))) if lines]
        return "\n\n".join(parts)

    def write(self, folder: str | os.PathLike[str], tiny: bool, threads: int) -> None:
        """Write <name>.json and <name>.png.

        Args:
            folder: where to write.
            tiny: whether the sizes were meaningless.
            threads: of the libraries' processes.
        """
        content = asdict(self) | {
            "tiny": tiny,
            "environment": environment() | {"threads": threads},
            "claims": [{**asdict(claim), "met": claim.met} for claim in self.claims],
            "panels": [{**asdict(panel), "dashed": sorted(panel.dashed)} for panel in self.panels],
        }
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, f"{self.name}.json").write_text(text, encoding="utf-8")
        draw(self.panels, threads).savefig(Path(folder, f"{self.name}.png"), dpi=120)


def format_table(rows: Sequence[Row]) -> str:
    """Rows as text, with a column for each name that occurs; words to the left, numbers to the right."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, *([_shown(row.get(name)) for name in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    words = [any(isinstance(row.get(name), str) for row in rows) for name in columns]
    shape = [(width, "<" if word else ">") for width, word in zip(widths, words, strict=True)]
    return "\n".join("  ".join(f"{x:{side}{w}}" for x, (w, side) in zip(line, shape, strict=True)) for line in lines)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def environment() -> dict[str, Any]:
    """Machine and versions, on which timings depend; packages that are not installed have version ``None``."""
    return {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: installed_version(name) for name in PACKAGES},
    }


def installed_version(package: str) -> str | None:
    """Version of a package, without importing it; ``None`` if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def draw(panels: Sequence[Panel], threads: int) -> Figure:
    """All panels in one figure; an implementation has the same colour in each."""
    columns = min(COLUMNS, max(1, len(panels)))
    lines = max(1, math.ceil(len(panels) / columns))
    most = max((len(panel.curves) for panel in panels if not panel.y), default=0)
    figure = Figure(figsize=(4.6 * columns, max(3.6, 0.3 * most) * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    labels = list(dict.fromkeys(label for panel in panels for label in panel.curves))
    colours = {label: f"C{i % 10}" for i, label in enumerate(labels)}
    for place, panel in zip(axes, panels, strict=False):
        if panel.curves:
            panel.draw(place, colours)
    for place in axes[len(panels) :]:
        place.set_visible(False)
    dashed = "; dashed: extrapolated, or a lower bound" if any(panel.dashed for panel in panels) else ""
    figure.suptitle(f"{threads} thread{'' if threads == 1 else 's'} per process{dashed}", fontsize=8)
    return figure
