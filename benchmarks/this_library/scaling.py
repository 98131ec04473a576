"""One model, from construction to posteriors, at one point of a curve."""

from __future__ import annotations

import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from benchmarks.implementation import Answer, Implementation
from benchmarks.workers import peak_memory
from torchpbp import PBP, DiscreteNetwork, LatentGraph, templates

QUERIES = 100
DRAWN = 1_000_000
"""Number of distinct rows; a longer file repeats them."""
ROWS, LENGTH, STATES, WIDTH, BATCH = "rows", "chain length", "states of an observable", "treewidth", "batch size"
COUNTING = "counting"
AXES = (ROWS, LENGTH, STATES, WIDTH, BATCH, COUNTING)
MEASURES = {
    "build": "construction",
    "fit": "fit",
    "query": f"all posteriors of a batch (of {QUERIES} rows, or the batch size)",
}


@dataclass
class Point(Implementation):
    """One model: constructed, fitted and queried. The best of several rounds counts, in processor time, which other programs on
    the machine disturb least.

    Rows are read from a memory map on the axis of rows, from tensors otherwise.
    """

    library: ClassVar[str] = "torchpbp"
    axis: str
    value: int
    rounds: int
    rows: int = 1_000

    def graph(self) -> LatentGraph:
        """The structure at this point."""
        if self.axis in (ROWS, BATCH):
            return templates.diamond()
        if self.axis == LENGTH:
            return templates.hmm(self.value)
        if self.axis == STATES:
            return templates.hmm(6, 2, self.value)
        return templates.hmm(10, 2, 4, order=self.value)

    def prepare(self) -> None:
        graph = self.graph()
        rows = self.value if self.axis == ROWS else self.rows
        queries = self.value if self.axis == BATCH else QUERIES
        drawn = DiscreteNetwork.random(graph, seed=1).sample(min(rows, DRAWN), seed=2)
        self._data: Any = memory_map(drawn, rows) if self.axis == ROWS else drawn
        self._columns = list(drawn) if self.axis == ROWS else None
        chosen = torch.arange(queries) % min(rows, DRAWN)
        shown = np.random.default_rng(0).random((len(drawn), queries)) < 0.3
        self._evidence = {
            v: torch.where(torch.from_numpy(s), x[chosen], -1) for (v, x), s in zip(drawn.items(), shown, strict=True)
        }
        small = templates.naive_bayes(3)  # lazy imports and first calls
        PBP(small).fit(DiscreteNetwork.random(small, seed=1).sample(100)).posteriors()

    def run(self) -> Any:
        graph = self.graph()
        # reset the peak, where the system allows it
        with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as switch:
            switch.write("5")
        before_all = peak_memory()
        seconds: dict[str, list[float]] = {name: [] for name in MEASURES}
        memory = 0
        for turn in range(self.rounds):
            names = {
                v: f"round{turn}_{v}" for v in graph.names
            }  # plans are cached by graph: other names, no cached plan
            renamed = renamed_graph(graph, names)
            evidence = {names[v]: x for v, x in self._evidence.items()}
            data, columns = self._data, self._columns
            if columns is None:
                data = {names[v]: x for v, x in data.items()}
            else:
                columns = [names[v] for v in columns]
            times = [time.process_time()]
            model = PBP(renamed)
            times.append(time.process_time())
            model.fit(data, columns=columns)
            times.append(time.process_time())
            with torch.no_grad():
                model.posteriors(evidence)
            times.append(time.process_time())
            for name, before, after in zip(MEASURES, times[:-1], times[1:], strict=True):
                seconds[name].append(after - before)
            if turn == 0:
                memory = peak_memory() - before_all
        return {name: min(values) for name, values in seconds.items()} | {"memory": memory}

    def answer(self, result: Any) -> Answer:
        return {name: np.array(value) for name, value in result.items()}


def renamed_graph(graph: LatentGraph, names: dict[str, str]) -> LatentGraph:
    """The same graph with other names of its variables."""
    edges = [(names[a], names[b]) for a, b in graph.edges]
    variables = {names[v]: domain for v, domain in graph.variables.items()}
    return LatentGraph(edges, variables, [names[v] for v in graph.latent], graph.directed)


def memory_map(drawn: dict[str, torch.Tensor], rows: int) -> np.memmap[Any, Any]:
    """(rows, variables) states in a temporary file, one byte each."""
    block = np.stack([x.numpy() for x in drawn.values()], axis=1).astype(np.uint8)
    with tempfile.TemporaryFile() as file:
        for start in range(0, rows, len(block)):
            file.write(block[: rows - start].tobytes())
        file.flush()
        return np.memmap(file, np.uint8, "r", shape=(rows, len(drawn)))
