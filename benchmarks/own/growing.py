"""One model, from construction to answers, at one point of a curve."""

from __future__ import annotations

import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from benchmarks.contestant import Answer, Contestant
from benchmarks.workers import peak_memory
from torchpbp import PBP, DiscreteNetwork, LatentGraph, templates
from torchpbp.moments.table_layout import table_layout
from torchpbp.planning import plan as specification

QUERIES = 100
DRAWN = 1_000_000
"""Rows that differ; a longer file has them over and over."""
ROWS, LENGTH, STATES, WIDTH = "rows", "chain length", "states of an observable", "treewidth"
MEASURES = {"build": "construction", "fit": "fit", "query": f"all posteriors of {QUERIES} rows"}


@dataclass
class Point(Contestant):
    """One model: constructed, fitted and asked. The best of several rounds counts, in seconds of the processor's time: other
    programs on the machine disturb it least.

    Rows come from a memory map on the axis of rows, from tensors elsewhere.
    """

    library: ClassVar[str] = "torchpbp"
    axis: str
    value: int
    rounds: int
    rows: int = 1_000

    def graph(self) -> LatentGraph:
        """The structure at this point."""
        if self.axis == ROWS:
            return templates.diamond()
        if self.axis == LENGTH:
            return templates.hmm(self.value)
        if self.axis == STATES:
            return templates.hmm(6, 2, self.value)
        return templates.hmm(10, 2, 4, order=self.value)

    def prepare(self) -> None:
        graph = self.graph()
        rows = self.value if self.axis == ROWS else self.rows
        drawn = DiscreteNetwork.random(graph, seed=1).sample(min(rows, DRAWN), seed=2)
        self._data: Any = memory_map(drawn, rows) if self.axis == ROWS else drawn
        self._columns = list(drawn) if self.axis == ROWS else None
        shown = np.random.default_rng(0).random((len(drawn), QUERIES)) < 0.3
        self._evidence = {
            v: torch.where(torch.from_numpy(s), x[:QUERIES], -1) for (v, x), s in zip(drawn.items(), shown, strict=True)
        }
        small = templates.naive_bayes(3)  # lazy imports and first calls
        PBP(small).fit(DiscreteNetwork.random(small, seed=1).sample(100)).posteriors()

    def run(self) -> Any:
        graph = self.graph()
        # the peak counts from here, where the system allows it
        with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as switch:
            switch.write("5")
        before_all = peak_memory()
        seconds: dict[str, list[float]] = {name: [] for name in MEASURES}
        memory = 0
        for turn in range(self.rounds):
            specification._planned.cache_clear()  # each model finds out everything about its structure again
            table_layout.cache_clear()
            times = [time.process_time()]
            model = PBP(graph)
            times.append(time.process_time())
            model.fit(self._data, columns=self._columns)
            times.append(time.process_time())
            with torch.no_grad():
                model.posteriors(self._evidence)
            times.append(time.process_time())
            for name, before, after in zip(MEASURES, times[:-1], times[1:], strict=True):
                seconds[name].append(after - before)
            if turn == 0:
                memory = peak_memory() - before_all
        return {name: min(values) for name, values in seconds.items()} | {"memory": memory}

    def answer(self, result: Any) -> Answer:
        return {name: np.array(value) for name, value in result.items()}


def memory_map(drawn: dict[str, torch.Tensor], rows: int) -> np.memmap[Any, Any]:
    """(rows, variables) states in a file that disappears with the process, a byte each."""
    block = np.stack([x.numpy() for x in drawn.values()], axis=1).astype(np.uint8)
    with tempfile.TemporaryFile() as file:
        for start in range(0, rows, len(block)):
            file.write(block[: rows - start].tobytes())
        file.flush()
        return np.memmap(file, np.uint8, "r", shape=(rows, len(drawn)))
