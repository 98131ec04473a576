"""Side-by-side timing of callables in one run: interleaved, best of several rounds, reported as ratios."""

from __future__ import annotations

import gc
import json
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from tqdm.auto import tqdm

from benchmarks.clock import measure
from torchpbp.errors import ArgumentError
from torchpbp.experiments.running.results import replacing

PACKAGES = ("torchpbp", "torch", "numpy", "scipy", "scikit-learn", "opt_einsum")


@dataclass(frozen=True)
class Comparison:
    """Timings of several implementations of the same work.

    Args:
        title: description of the work.
        reference: whose best time the ratios are of.
        seconds: name -> seconds per call, one number for each round.
        calls: name -> calls in a row that make up one measurement.
    """

    title: str
    reference: str
    seconds: dict[str, list[float]]
    calls: dict[str, int]

    @property
    def best(self) -> dict[str, float]:
        """Seconds per call in the fastest round: disturbances only add time."""
        return {name: min(values) for name, values in self.seconds.items()}

    @property
    def ratios(self) -> dict[str, float]:
        """Best time over the reference's best time: 2 means twice as slow."""
        best = self.best
        return {name: value / best[self.reference] for name, value in best.items()}

    @property
    def spread(self) -> dict[str, float]:
        """Slowest round over fastest round, a measure of the load of the machine."""
        return {name: max(values) / min(values) for name, values in self.seconds.items()}

    def __str__(self) -> str:
        width = max(map(len, self.seconds))
        lines = [self.title, f"{'':<{width}}  {'ratio':>8}  {'best, s':>10}  {'worst/best':>10}"]
        for name, ratio in self.ratios.items():
            lines.append(f"{name:<{width}}  {ratio:>8.3g}  {self.best[name]:>10.3g}  {self.spread[name]:>10.2f}")
        return "\n".join(lines)


def compare(
    implementations: Mapping[str, Callable[[], object]],
    title: str,
    rounds: int = 7,
    reference: str | None = None,
    least_seconds: float = 0.02,
    verbose: bool = True,
) -> Comparison:
    """Time several callables against each other.

    Each is called once unmeasured, then all are measured in turn, round by round, so that a change of the
    machine's load affects all of them. The order rotates each round, and garbage is not collected during a measurement.

    Args:
        implementations: name -> what to call. All should do the same work; data and models are made beforehand.
        title: description of the work.
        rounds: measurements of each.
        reference: name of the one the ratios refer to; the first by default.
        least_seconds: fast callables are repeated until a measurement takes about this long.
        verbose: show a progress bar (stderr).

    Raises:
        ArgumentError: nothing to compare, no rounds, or an unknown reference.
    """
    names = list(implementations)
    if not names:
        raise ArgumentError(f"{title}: expected at least one callable to time, got none.")
    if rounds < 1:
        raise ArgumentError(f"rounds: expected at least 1, got {rounds}.")
    if reference is not None and reference not in names:
        raise ArgumentError(f"reference: expected one of {names}, got {reference!r}.")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    calls: dict[str, int] = {}
    with tqdm(total=(rounds + 1) * len(names), desc=title, unit="timing", disable=not verbose) as bar:
        for name, call in implementations.items():
            call()  # caches, lazy imports, compilation
            calls[name] = max(1, math.ceil(least_seconds / max(measure(call, 1), 1e-9)))
            bar.update()
        for turn in range(rounds):
            gc.collect()  # here and not before each measurement, where it would take longer than most of them
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                seconds[name].append(measure(implementations[name], calls[name]))
                bar.update()
    return Comparison(title, names[0] if reference is None else reference, seconds, calls)


def environment(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Threads, machine and versions, on which timings depend.

    Args:
        packages: names of further packages for pip; those not installed have version ``None``.
    """
    return {
        "threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in [*PACKAGES, *packages]},
    }


def write_comparisons(
    folder: str | os.PathLike[str], name: str, comparisons: Sequence[Comparison], packages: Sequence[str] = ()
) -> None:
    """Write <name>.json, with every measurement and the environment, and <name>.png, a panel per comparison.

    Args:
        folder: where to write.
        name: of the files.
        comparisons: at least one.
        packages: further packages whose versions matter.

    Raises:
        ArgumentError: nothing to write.
    """
    if not comparisons:
        raise ArgumentError(f"{name}: expected at least one comparison to write, got none.")
    environs = environment(packages)
    results = [{**asdict(c), "best": c.best, "ratios": c.ratios, "spread": c.spread} for c in comparisons]
    content = {"environment": environs, "comparisons": results}
    with replacing(Path(folder) / f"{name}.json") as temporary:
        temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    with replacing(Path(folder) / f"{name}.png") as temporary:
        draw_comparisons(comparisons, environs["threads"]).savefig(temporary, format="png", dpi=150)


def draw_comparisons(comparisons: Sequence[Comparison], threads: int) -> Figure:
    """Best time of each implementation over that of the reference, a panel per comparison; pale: the other rounds."""
    heights = [0.9 + 0.35 * len(c.seconds) for c in comparisons]
    figure = Figure(figsize=(6.5, sum(heights) + 0.4), layout="constrained")
    panels = figure.subplots(len(comparisons), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, comparison in zip(panels, comparisons, strict=True):
        unit = comparison.best[comparison.reference]
        for place, (name, values) in enumerate(comparison.seconds.items()):
            axes.plot(
                [v / unit for v in values], [place] * len(values), "o", color="tab:blue", alpha=0.25, markersize=4
            )
            ratio = comparison.ratios[name]
            axes.plot(ratio, place, "o", color="tab:blue")
            axes.annotate(f"{ratio:.3g}", (ratio, place), (0, 5), textcoords="offset points", ha="center", fontsize=8)
        axes.axvline(1.0, color="gray", linewidth=0.8)
        axes.set_yticks(range(len(comparison.seconds)), list(comparison.seconds))
        axes.set_ylim(len(comparison.seconds) - 0.5, -0.7)
        axes.set(xscale="log", title=comparison.title)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(axis="x", alpha=0.2)
    plural = "" if threads == 1 else "s"
    panels[-1].set_xlabel(f"time / best time of the reference ({threads} thread{plural})")
    return figure


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
