"""Scaling of PBP with rows, chain length, states, treewidth, batch size and workers; counting a large table.

Each point is measured in its own process. Time is processor time. Memory is the increase of the process's peak, above
libraries and data (rows are read from a memory map). Counting a large table: :mod:`benchmarks.cluster_counting`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from benchmarks import cluster_counting
from benchmarks.report import Claim, Panel, Report
from benchmarks.side_by_side import RunOptions
from benchmarks.this_library.scaling import AXES, BATCH, COUNTING, LENGTH, MEASURES, ROWS, STATES, WIDTH, Point
from benchmarks.workers import STARTUP_SECONDS, TooSlow, WorkerError, Workers

MANY = 10_000_000
"""Number of rows of the memory target."""
MOST_MEGABYTES = 1_500
LONG = 3_000
"""Chain length from which on there is one round."""


def run(settings: RunOptions) -> Report:
    """All axes."""
    report = Report("scale")
    axes: dict[str, Sequence[int]] = {
        ROWS: settings.choose([10_000, 100_000, 1_000_000, MANY, 10 * MANY], [10_000, 100_000, 1_000_000], [200]),
        LENGTH: settings.choose([10, 30, 100, 300, 1_000, LONG, 10_000], [25, 100], [4]),
        STATES: settings.choose([2, 4, 8, 16, 32, 64], [], []),
        WIDTH: settings.choose([1, 2, 3, 4, 5, 6, 7, 8], [], []),
        BATCH: settings.choose([1, 10, 100, 1_000, 10_000, 100_000], [1, 100, 10_000], [2]),
    }
    chosen = settings.axes or AXES
    for axis, values in axes.items():
        if axis not in chosen:
            continue
        points = {value: _measured(settings, report, axis, value) for value in values}
        measured = {value: point for value, point in points.items() if point}
        if measured:
            _report_axis(settings, report, axis, measured)
    if COUNTING in chosen:
        cluster_counting.run(settings, report)
    return report


def _measured(settings: RunOptions, report: Report, axis: str, value: int) -> dict[str, float]:
    """Seconds and bytes at one point, from a fresh process; empty if it failed or took too long."""
    label = f"{axis} {value:,}"
    settings.note(label)
    point = Point(label, axis, value, 1 if axis == LENGTH and value >= LONG else settings.rounds)
    with Workers(settings.workers.threads) as workers:
        worker = workers.of(point)
        try:
            worker.ask("prepare", point, limit=settings.limit + STARTUP_SECONDS)
            _, answer = worker.ask("answer", label, limit=settings.limit + STARTUP_SECONDS)
        except TooSlow:
            report.left_out[label] = f"more than {settings.limit + STARTUP_SECONDS:g} s"
            return {}
        except WorkerError as error:
            report.left_out[label] = str(error)
            return {}
    numbers = {name: float(value) for name, value in answer.items()}
    report.records.append({"axis": axis, "value": value, **numbers})
    return numbers


def _report_axis(settings: RunOptions, report: Report, axis: str, points: dict[int, dict[str, float]]) -> None:
    times = Panel(f"time by {axis}", axis, "seconds of the processor")
    memory = Panel(f"memory by {axis}", axis, "peak above libraries and data, MB")
    report.panels += [times, memory]
    for value, point in points.items():
        for name, text in MEASURES.items():
            times.add(text, value, point[name])
        memory.add("memory", value, point["memory"] / 1e6)
    slopes = {name: exponent({v: p[name] for v, p in points.items()}) for name in (*MEASURES, "memory")}
    shown = ", ".join(f"{name} {'-' if s is None else f'{s:.2f}'}" for name, s in slopes.items())
    report.notes.append(f"{axis}, exponents fitted on {[f'{v:,}' for v in larger_half(points)]}: {shown}")
    peaks = ", ".join(f"{value:,}: {point['memory'] / 1e6:,.0f} MB" for value, point in points.items())
    report.notes.append(f"{axis}, peak of memory at {peaks}")
    report.records.append({"axis": axis, **{f"exponent_{name}": s for name, s in slopes.items()}})
    if settings.size != "full":
        return  # fixed costs dominate
    for name in {ROWS: ("fit",), LENGTH: ("build", "fit", "query"), BATCH: ("query",)}.get(axis, ()):
        slope = slopes[name]
        text = f"{axis}: exponent of {MEASURES[name]}, distance from 1"
        note = "" if slope is None else f"exponent {slope:.3f}"
        report.claims.append(Claim(text, None if slope is None else abs(slope - 1), at_most=0.1, note=note))
    if axis == ROWS and MANY in points:
        peak = points[MANY]["memory"] / 1e6
        report.claims.append(
            Claim(f"{MANY:,} rows from a memory map: peak of memory, MB", peak, at_most=MOST_MEGABYTES)
        )


def larger_half(values: Iterable[int]) -> list[int]:
    """The larger half of the values, at least two if there are two: fixed costs dominate the others."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) // 2, len(ordered) - 2)) :]


def exponent(points: dict[int, float]) -> float | None:
    """Slope of a line through the larger half of the points on logarithmic scales."""
    kept = larger_half(x for x, y in points.items() if y > 0)
    if len(kept) < 2:
        return None
    x, y = np.log(np.array([(x, points[x]) for x in kept], dtype=np.float64)).T
    return float(np.polyfit(x, y, 1)[0])
