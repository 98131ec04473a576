"""Scaling of PBP with rows, chain length, states, treewidth, batch size and workers; counting a large table.

Each point is measured in its own process. Time is processor time, which other programs on the machine disturb least. Memory is the
increase of the process's peak, above libraries and data. Counting a large table: :mod:`benchmarks.counting`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks import counting
from benchmarks.networks import renamed
from benchmarks.runner import Runner
from benchmarks.work import Answer, Implementation, Work, measure, memory_of
from torchpbp import PBP, DiscreteNetwork, LatentGraph, templates

ROWS, LENGTH, STATES, WIDTH, BATCH = "rows", "chain length", "states of an observable", "treewidth", "batch size"
BUILD, FIT, QUERY, MEMORY = "construction", "fit", "all posteriors of a batch", "MB"
MANY, MOST_MEGABYTES = 10_000_000, 1_500
"""Number of rows of the memory target, and the target."""
LONG = 3_000
"""Chain length from which on there is one round."""
QUERIES = 100
DRAWN = 1_000_000
"""Number of distinct rows; a longer table repeats them."""


def run(runner: Runner) -> None:
    """All axes."""
    axes: dict[str, list[int]] = {
        ROWS: runner.choose([10_000, 100_000, 1_000_000, MANY, 10 * MANY], [200]),
        LENGTH: runner.choose([10, 30, 100, 300, 1_000, LONG, 10_000], [4]),
        STATES: runner.choose([2, 4, 8, 16, 32, 64], []),
        WIDTH: runner.choose([1, 2, 3, 4, 5, 6, 7, 8], []),
        BATCH: runner.choose([1, 10, 100, 1_000, 10_000, 100_000], [2]),
    }
    for axis, values in axes.items():
        if runner.wanted(axis) and values:
            _axis(runner, axis, values)
    if runner.wanted("counting"):
        counting.run(runner)


def _axis(runner: Runner, axis: str, values: list[int]) -> None:
    times = runner.report.panel(f"time by {axis}", axis, "seconds of the processor")
    memory = runner.report.panel(f"memory by {axis}", axis, "peak above libraries and data, MB")
    points: dict[int, dict[str, float]] = {}
    for value in values:
        rounds = 1 if axis == LENGTH and value >= LONG else runner.rounds()
        label, arguments = f"{axis} {value:,}", {"axis": axis, "value": value, "rounds": rounds}
        point = runner.numbers(label, Implementation(label, model_at, arguments))
        if point is not None:
            points[value] = point
            runner.report.add("processor time and memory", axis=axis, value=value, **point)
            memory.add("memory", value, point[MEMORY])
            for name in (BUILD, FIT, QUERY):
                times.add(name, value, point[name])
    slopes = {n: exponent({v: p[n] for v, p in points.items()}) for n in (BUILD, FIT, QUERY, MEMORY)}
    runner.report.add("exponents, fitted to the larger half of each axis", axis=axis, **slopes)
    for name in {ROWS: (FIT,), LENGTH: (BUILD, FIT, QUERY), BATCH: (QUERY,)}.get(axis, ()):
        slope = slopes[name]
        distance = None if slope is None else abs(slope - 1)
        runner.report.claim(f"{axis}: exponent of {name}, distance from 1", distance, at_most=0.1)
    if axis == ROWS and MANY in points:
        text = f"{MANY:,} rows from a memory map: peak of memory, MB"
        runner.report.claim(text, points[MANY][MEMORY], at_most=MOST_MEGABYTES)


def model_at(axis: str, value: int, rounds: int) -> Work:
    """Construction of a model with a new plan, fit and queries at one point of an axis; measures itself, the best of some rounds.

    Rows are read from a memory map on the axis of rows, from tensors otherwise.
    """
    graph = graph_at(axis, value)
    rows = value if axis == ROWS else 1_000
    truth = DiscreteNetwork.random(graph, seed=1)
    drawn = truth.sample(min(rows, DRAWN), seed=2)
    table = memory_map(drawn, rows) if axis == ROWS else None
    chosen = torch.arange(value if axis == BATCH else QUERIES) % min(rows, DRAWN)
    shown = torch.from_numpy(np.random.default_rng(0).random((len(drawn), len(chosen))) < 0.3)
    evidence = {v: torch.where(s, x[chosen], -1) for (v, x), s in zip(drawn.items(), shown, strict=True)}
    small = templates.naive_bayes(3)  # lazy imports and first calls
    PBP(small).fit(DiscreteNetwork.random(small, seed=1).sample(100)).posteriors()

    def once(prefix: str) -> dict[str, float]:
        seconds: dict[str, float] = {}
        models: list[PBP] = []
        here = renamed(graph, prefix)
        columns = [prefix + v for v in drawn]
        data = dict(zip(columns, drawn.values(), strict=True)) if table is None else table
        asked = {prefix + v: x for v, x in evidence.items()}
        seconds[BUILD] = measure(lambda: models.append(PBP(here)), 1)[1]
        seconds[FIT] = measure(lambda: models[0].fit(data, columns=None if table is None else columns), 1)[1]
        with torch.no_grad():
            seconds[QUERY] = measure(lambda: models[0].posteriors(asked), 1)[1]
        return seconds

    def run() -> dict[str, float]:
        first, megabytes = memory_of(lambda: once("round0_"))
        turns = [first, *(once(f"round{turn}_") for turn in range(1, rounds))]
        return {name: min(turn[name] for turn in turns) for name in first} | {MEMORY: megabytes}

    def answer(numbers: Mapping[str, float]) -> Answer:
        return {name: np.array(value) for name, value in numbers.items()}

    return Work(run, answer)


def graph_at(axis: str, value: int) -> LatentGraph:
    """The structure at one point."""
    if axis in (ROWS, BATCH):
        return templates.diamond()
    if axis == LENGTH:
        return templates.hmm(value)
    return templates.hmm(6, 2, value) if axis == STATES else templates.hmm(10, 2, 4, order=value)


def memory_map(drawn: Mapping[str, torch.Tensor], rows: int) -> np.memmap[Any, Any]:
    """(rows, variables) states in a temporary file, one byte each."""
    block = np.stack([x.numpy() for x in drawn.values()], axis=1).astype(np.uint8)
    with tempfile.TemporaryFile() as file:
        for start in range(0, rows, len(block)):
            file.write(block[: rows - start].tobytes())
        file.flush()
        return np.memmap(file, np.uint8, "r", shape=(rows, len(drawn)))


def larger_half(values: Iterable[int]) -> list[int]:
    """The larger half of the values, at least two if there are two: fixed costs dominate the others."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) // 2, len(ordered) - 2)) :]


def exponent(points: Mapping[int, float]) -> float | None:
    """Slope of a line through the larger half of the points on logarithmic scales."""
    chosen = larger_half(x for x, y in points.items() if y > 0)
    if len(chosen) < 2:
        return None
    x, y = np.log(np.array([(x, points[x]) for x in chosen], dtype=np.float64)).T
    return float(np.polyfit(x, y, 1)[0])
