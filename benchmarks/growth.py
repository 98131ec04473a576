"""How time and memory of PBP grow with rows, chain length, numbers of states and treewidth.

Each point has a process of its own. Memory is what the process's peak rises by, above data and libraries.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.contest import Settings
from benchmarks.own.growing import LENGTH, MEASURES, ROWS, STATES, WIDTH, Point
from benchmarks.report import Claim, Panel, Report
from benchmarks.workers import STARTUP_SECONDS, TooSlow, WorkerError, Workers


def run(settings: Settings) -> Report:
    """All axes."""
    report = Report("growth")
    axes: dict[str, Sequence[int]] = {
        ROWS: settings.choose([100_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000], [100_000, 1_000_000], [200]),
        LENGTH: settings.choose([10, 30, 100, 300, 1_000], [25, 100], [4]),
        STATES: settings.choose([2, 4, 8, 16, 32, 64], [], []),
        WIDTH: settings.choose([1, 2, 3, 4, 5], [], []),
    }
    for axis, values in axes.items():
        points = {value: _measured(settings, report, axis, value) for value in values}
        found = {value: point for value, point in points.items() if point}
        if found:
            _report_axis(settings, report, axis, found)
    return report


def _measured(settings: Settings, report: Report, axis: str, value: int) -> dict[str, float]:
    """Seconds and bytes at one point, from a fresh process; empty if it failed or took too long."""
    label = f"{axis} {value:,}"
    settings.note(label)
    point = Point(label, axis, value, settings.rounds)
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


def _report_axis(settings: Settings, report: Report, axis: str, found: dict[int, dict[str, float]]) -> None:
    times = Panel(f"time by {axis}", axis, "seconds")
    memory = Panel(f"memory by {axis}", axis, "peak above data and libraries, MB")
    report.panels += [times, memory]
    for value, point in found.items():
        for name, text in MEASURES.items():
            times.add(text, value, point[name])
        memory.add("memory", value, point["memory"] / 1e6)
    slopes = {name: exponent({v: p[name] for v, p in found.items()}) for name in (*MEASURES, "memory")}
    shown = ", ".join(f"{name} {'-' if s is None else f'{s:.2f}'}" for name, s in slopes.items())
    report.notes.append(f"{axis}, exponents on the larger half of {list(found)}: {shown}")
    report.records.append({"axis": axis, **{f"exponent_{name}": s for name, s in slopes.items()}})
    if settings.size != "full":
        return  # fixed costs weigh too much
    for name in {ROWS: ("fit",), LENGTH: ("build", "fit", "query")}.get(axis, ()):
        slope = slopes[name]
        text = f"{axis}: exponent of {MEASURES[name]}, distance from 1"
        note = "" if slope is None else f"exponent {slope:.3f}"
        report.claims.append(Claim(text, None if slope is None else abs(slope - 1), at_most=0.1, note=note))


def exponent(points: dict[int, float]) -> float | None:
    """Slope of a line through the larger half of the points, at least two of them, on logarithmic scales."""
    kept = [(x, y) for x, y in sorted(points.items()) if y > 0]
    kept = kept[min(len(kept) // 2, len(kept) - 2) :] if len(kept) > 1 else []
    if not kept:
        return None
    x, y = np.log(np.array(kept, dtype=np.float64)).T
    return float(np.polyfit(x, y, 1)[0])
