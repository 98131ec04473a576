"""Every learner on the same networks and rows, asked every kind of question: what it can answer, how well, how fast."""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pandas as pd

from torchpbp.errors import TorchPBPError, TorchPBPWarning
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.learners.plots import write_learners_plot
from torchpbp.experiments.learners.questions import Columns, Kind, kinds, thinned
from torchpbp.experiments.running.experiment import MakeModel, check_graphs, seeds_of
from torchpbp.experiments.running.grid import measure_grid
from torchpbp.experiments.running.results import Metrics, environment, publish
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.settings import Settings, positive, setting, whole

MISSING = Kind("learned from gaps", kinds()[3].ask, "KL, nats")
"""A fifth of the training values is missing; then as P(each | part of a row)."""


@dataclass(frozen=True)
class LearnersSettings(Settings):
    """Settings of :func:`run_learners`.

    Args:
        rows: training rows.
        test_rows: rows that are asked about.
        repeats: networks drawn for each graph.
        concentration: of the Dirichlet distribution behind their tables.
    """

    rows: int = setting(10_000, whole(1))
    test_rows: int = setting(1_000, whole(1))
    repeats: int = setting(3, whole(1))
    concentration: float = setting(1.0, positive())


def run_learners(
    learner: MakeModel,
    graphs: Mapping[str, LatentGraph],
    others: Mapping[str, MakeModel] | None = None,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Metrics:
    """Fit all learners to samples of random networks and compare their answers with the exact ones.

    Where a learner raises :class:`~torchpbp.errors.TorchPBPError` instead of answering, its message is noted.

    Args:
        learner: makes a model for a graph.
        graphs: structures by name, discrete and directed.
        others: more learners by name.
        seed: of networks and rows.
        output_dir: folder for metrics.json, metrics.csv (a row per answer or error) and learners.png. ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).
        options: see :class:`LearnersSettings`.

    Returns:
        "<question>/<graph>/<learner>" (mean error; ``None``: no answer), "fit_seconds/…" and "answers_per_second/…" (rows
        per second, posteriors of all variables), "refusal/<question>/…" (the error's message), and the facts of the run.
    """
    settings = LearnersSettings.from_dict(options)
    check_graphs(graphs)
    learners: dict[str, MakeModel] = {"PBP": learner, **(others or {})}

    @lru_cache(maxsize=1)
    def drawn(graph: str, repeat: int) -> tuple[DiscreteNetwork, Columns, Columns]:
        seeds = seeds_of(seed, repeat, 3)
        truth = DiscreteNetwork.random(graphs[graph], seeds[0], settings.concentration)
        return truth, truth.sample(settings.rows, seed=seeds[1]), truth.sample(settings.test_rows, seed=seeds[2])

    def one_learner(graph: str, repeat: int, name: str) -> list[dict[str, Any]]:
        return examine(learners[name], *drawn(graph, repeat))

    points = [(graph, repeat, name) for graph in graphs for repeat in range(settings.repeats) for name in learners]
    table = pd.DataFrame(
        {"graph": graph, "learner": name, "repeat": repeat, **line}
        for (graph, repeat, name), lines in measure_grid("learners", points, one_learner, output_dir, verbose)
        for line in lines
    )
    metrics: Metrics = {}
    for labels, group in table.groupby(["question", "graph", "learner"], sort=False):
        key = "/".join(str(label) for label in labels)
        errors = [float(e) for e in group["value"]]
        message = next((str(r) for r in group["refusal"] if r), "")
        metrics[key] = None if message else statistics.fmean(errors)
        if message:
            metrics[f"refusal/{key}"] = message
    metrics |= {"rows": settings.rows, "test_rows": settings.test_rows, "repeats": settings.repeats}
    metrics |= {"seed": seed, **environment()}
    folder = publish(output_dir, metrics, table, format_tables(table), verbose)
    if folder is not None:
        write_learners_plot(folder / "learners.png", table)
    return metrics


def examine(make: MakeModel, truth: DiscreteNetwork, train: Columns, test: Columns) -> list[dict[str, Any]]:
    """Lines (question, value, refusal: message of the error raised instead) of one learner on one network."""
    start = time.perf_counter()
    model, message = _attempt(lambda: make(truth.graph).fit(train))
    if message:
        return [_line(q, None, message) for q in ("fit_seconds", *(k.name for k in kinds()), MISSING.name)]
    lines = [_line("fit_seconds", time.perf_counter() - start)]
    for kind in kinds():
        lines.append(_line(kind.name, *_attempt(lambda kind=kind: kind.ask(model, truth, test))))  # type: ignore[misc]
    evidence = thinned(test)
    start = time.perf_counter()
    _, message = _attempt(lambda: model.posteriors(evidence))
    rate = len(next(iter(test.values()))) / (time.perf_counter() - start)
    lines.append(_line("answers_per_second", None if message else rate, message))
    incomplete = thinned(train, share=0.2)
    error, message = _attempt(lambda: MISSING.ask(make(truth.graph).fit(incomplete), truth, test))
    return [*lines, _line(MISSING.name, error, message)]


def _line(question: str, value: float | None, message: str = "") -> dict[str, Any]:
    return {"question": question, "value": value, "refusal": message}


def _attempt(action: Callable[[], Any]) -> tuple[Any, str]:
    """The result, or the message of the error that the library raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchPBPWarning)
        try:
            return action(), ""
        except TorchPBPError as error:
            return None, str(error)


def format_tables(table: pd.DataFrame) -> str:
    """For each graph one line per question, one column per learner, and the messages of errors."""
    parts = []
    for graph_name, lines in table.groupby("graph", sort=False):
        learners = list(dict.fromkeys(lines["learner"]))
        width = max(10, *(len(name) for name in learners))
        parts.append(f"{graph_name!s:<24}" + "".join(f"{name:>{width + 2}}" for name in learners))
        for question, group in lines.groupby("question", sort=False):
            cells = []
            for name in learners:
                own = group[group["learner"] == name]
                raised = (own["refusal"] != "").any()
                cells.append("-" if raised or own.empty else f"{own['value'].mean():.4g}")
            parts.append(f"{question!s:<24}" + "".join(f"{cell:>{width + 2}}" for cell in cells))
        parts.append("")
    errors = (
        table[table["refusal"] != ""].drop_duplicates(["learner", "refusal"]).drop_duplicates(["learner", "question"])
    )
    parts += [f"{r.learner}, {r.question}: {r.refusal}" for r in errors.itertuples()]
    return "\n".join(parts)
