"""Report of a benchmark: timings, targets and curves; one JSON file and one figure."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.side_by_side import Outcome
from benchmarks.timing import Comparison, environment
from torchpbp.experiments.running.results import replacing

PACKAGES = ("pgmpy", "pyagrum", "pomegranate", "hmmlearn", "scikit-learn")
COLUMNS = 3


@dataclass(frozen=True)
class Claim:
    """A measurement with a target.

    Args:
        text: what is measured.
        value: the measurement; ``None`` where it could not be made.
        at_least: lower target.
        at_most: upper target.
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
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    def __str__(self) -> str:
        target = f"at least {self.at_least:,g}" if self.at_least is not None else f"at most {self.at_most:,g}"
        verdict = {True: "met", False: "MISSED", None: "not measured"}[self.met]
        value = "-" if self.value is None else f"{self.value:,.4g}"
        return f"{verdict:<12}  {self.text}: {value} ({target}){'; ' + self.note if self.note else ''}"


@dataclass
class Panel:
    """Curves of one quantity, on logarithmic scales.

    Args:
        title, x, y: labels.
        curves: label -> points (x, y).
        dashed: labels whose points are extrapolated or bounds.
    """

    title: str
    x: str
    y: str
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    dashed: list[str] = field(default_factory=list)

    def add(self, label: str, x: float, y: float | None) -> None:
        """Add a point, if there is one."""
        if y is not None and math.isfinite(y) and y > 0:
            self.curves.setdefault(label, []).append((x, y))


@dataclass
class Report:
    """All results of one benchmark.

    Args:
        name: of the files.
        comparisons: timings side by side.
        claims: figures with targets.
        panels: curves.
        records: lines of a table, for the JSON file.
        notes: remarks for the reader.
        left_out: "title: implementation" -> reason.
    """

    name: str
    comparisons: list[Comparison] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, outcome: Outcome, title: str) -> None:
        """Add the timings of a comparison, and the implementations left out."""
        if outcome.comparison is not None:
            self.comparisons.append(outcome.comparison)
        for label, reason in outcome.left_out.items():
            self.left_out[f"{title}: {label}"] = reason

    def __str__(self) -> str:
        parts = [f"== {self.name} ==", *map(str, self.comparisons)]
        if self.left_out:
            parts.append("Left out\n" + "\n".join(f"{name}: {reason}" for name, reason in self.left_out.items()))
        if self.notes:
            parts.append("\n".join(self.notes))
        if self.claims:
            parts.append("\n".join(map(str, self.claims)))
        return "\n\n".join(parts)

    def write(self, folder: str | os.PathLike[str], size: str, threads: int) -> None:
        """Write <name>.json and <name>.png.

        Args:
            folder: where to.
            size: of the run, noted in the file.
            threads: of the libraries' processes.
        """
        content = {
            "size": size,
            "environment": environment(PACKAGES) | {"threads": threads, "OMP_NUM_THREADS": str(threads)},
            "claims": [{**asdict(c), "met": c.met} for c in self.claims],
            "notes": self.notes,
            "left_out": self.left_out,
            "records": self.records,
            "panels": [asdict(p) for p in self.panels],
            "comparisons": [
                {**asdict(c), "best": c.best, "ratios": c.ratios, "spread": c.spread} for c in self.comparisons
            ],
        }
        with replacing(Path(folder) / f"{self.name}.json") as temporary:
            temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        with replacing(Path(folder) / f"{self.name}.png") as temporary:
            draw(self.panels, threads).savefig(temporary, format="png", dpi=150)


def draw(panels: Sequence[Panel], threads: int) -> Figure:
    """All panels in one figure; an implementation has the same colour in each."""
    columns = min(COLUMNS, max(1, len(panels)))
    lines = max(1, math.ceil(len(panels) / columns))
    figure = Figure(figsize=(4.6 * columns, 3.6 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    labels = list(dict.fromkeys(label for panel in panels for label in panel.curves))
    colours = {label: f"C{i % 10}" for i, label in enumerate(labels)}
    for place, panel in zip(axes, panels, strict=False):
        for label, points in panel.curves.items():
            xs, ys = zip(*sorted(points), strict=True)
            style = "--" if label in panel.dashed else "-"
            place.plot(xs, ys, style, marker="o", markersize=4, color=colours[label], label=label)
        if panel.curves:
            place.set(xscale="log", yscale="log")
            place.legend(fontsize=7)
        place.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
        place.grid(alpha=0.2)
    for place in axes[len(panels) :]:
        place.set_visible(False)
    dashed = "; dashed: extrapolated, or a lower bound" if any(panel.dashed for panel in panels) else ""
    figure.suptitle(f"{threads} thread{'' if threads == 1 else 's'} per process{dashed}", fontsize=8)
    return figure
