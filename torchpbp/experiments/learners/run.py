"""Every learner on the same networks and rows, asked every kind of question: what it can answer, how well, how fast."""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

from torchpbp.errors import StructureError, TorchPBPError, TorchPBPWarning
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.learners.plots import write_learners_plot
from torchpbp.experiments.learners.questions import Columns, Kind, kinds, thinned
from torchpbp.experiments.running.experiment import check_positive, seeds_of
from torchpbp.experiments.running.results import Metrics, environment, write_results
from torchpbp.experiments.running.run_folder import Parts
from torchpbp.graph.latent_graph import LatentGraph

Make = Callable[[LatentGraph], Any]
MISSING = Kind("learned from gaps", kinds()[3].ask, "KL, nats")
"""A fifth of the training values is missing; then as P(each | part of a row)."""


def run_learners(
    learner: Make,
    graphs: Mapping[str, LatentGraph],
    others: Mapping[str, Make] | None = None,
    rows: int = 10_000,
    test_rows: int = 1_000,
    repeats: int = 3,
    concentration: float = 1.0,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
) -> Metrics:
    """Fit all learners to samples of random networks and compare their answers with the exact ones.

    A question that a learner refuses (:class:`~torchpbp.errors.TorchPBPError`) is noted with its reason.

    Args:
        learner: makes a model for a graph.
        graphs: structures by name, discrete and directed.
        others: more learners by name.
        rows: training rows.
        test_rows: rows that are asked about.
        repeats: networks drawn for each graph.
        concentration: of the Dirichlet distribution behind their tables.
        seed: of networks and rows.
        output_dir: folder for metrics.json, metrics.csv (a row per answer or refusal) and learners.png. ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).

    Returns:
        "<question>/<graph>/<learner>" (mean error; ``None``: refused), "fit_seconds/…" and "answers_per_second/…" (rows
        per second, posteriors of all variables), "refusal/<question>/…" (the reason), and the facts of the run.
    """
    check_positive(rows=rows, test_rows=test_rows, repeats=repeats)
    if not graphs:
        raise StructureError("graphs: expected at least one graph, got none.")
    learners: dict[str, Make] = {"PBP": learner, **(others or {})}
    lines: list[dict[str, Any]] = []
    parts = Parts(output_dir)
    with tqdm(total=len(graphs) * repeats * len(learners), desc="learners", unit="fit", disable=not verbose) as bar:
        for graph_name, graph in graphs.items():
            for repeat in range(repeats):
                seeds = seeds_of(seed, repeat, 3)
                truth = DiscreteNetwork.random(graph, seeds[0], concentration)
                train, test = truth.sample(rows, seed=seeds[1]), truth.sample(test_rows, seed=seeds[2])
                for name, make in learners.items():
                    bar.set_postfix_str(f"{name}, {graph_name}", refresh=False)
                    place = {"graph": graph_name, "learner": name, "repeat": repeat}
                    found = parts.get(f"{graph_name},{repeat},{name}", partial(examined, make, truth, train, test))
                    lines += [{**place, **line} for line in found]
                    bar.update()
    table = pd.DataFrame(lines)
    metrics: Metrics = {}
    for labels, group in table.groupby(["question", "graph", "learner"], sort=False):
        key = "/".join(str(label) for label in labels)
        errors = [float(e) for e in group["value"]]
        refused = next((str(r) for r in group["refusal"] if r), "")
        metrics[key] = None if refused else statistics.fmean(errors)
        if refused:
            metrics[f"refusal/{key}"] = refused
    metrics |= {"rows": rows, "test_rows": test_rows, "repeats": repeats, "seed": seed, **environment()}
    if output_dir is not None:
        folder = write_results(output_dir, metrics, table)
        write_learners_plot(folder / "learners.png", table)
    if verbose:
        print(format_tables(table), flush=True)
    return metrics


def examined(make: Make, truth: DiscreteNetwork, train: Columns, test: Columns) -> list[dict[str, Any]]:
    """Lines (question, value, refusal) of one learner on one network."""
    start = time.perf_counter()
    model, refusal = _attempt(lambda: make(truth.graph).fit(train))
    if refusal:
        return [_line(q, None, refusal) for q in ("fit_seconds", *(k.name for k in kinds()), MISSING.name)]
    lines = [_line("fit_seconds", time.perf_counter() - start)]
    for kind in kinds():
        lines.append(_line(kind.name, *_attempt(lambda kind=kind: kind.ask(model, truth, test))))  # type: ignore[misc]
    evidence = thinned(test)
    start = time.perf_counter()
    _, refusal = _attempt(lambda: model.posteriors(evidence))
    rate = len(next(iter(test.values()))) / (time.perf_counter() - start)
    lines.append(_line("answers_per_second", None if refusal else rate, refusal))
    gaps = thinned(train, share=0.2)
    error, refusal = _attempt(lambda: MISSING.ask(make(truth.graph).fit(gaps), truth, test))
    return [*lines, _line(MISSING.name, error, refusal)]


def _line(question: str, value: float | None, refusal: str = "") -> dict[str, Any]:
    return {"question": question, "value": value, "refusal": refusal}


def _attempt(action: Callable[[], Any]) -> tuple[Any, str]:
    """The result, or the reason for which the library refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchPBPWarning)
        try:
            return action(), ""
        except TorchPBPError as error:
            return None, str(error)


def format_tables(table: pd.DataFrame) -> str:
    """For each graph one line per question, one column per learner, and the reasons of refusals."""
    parts = []
    for graph_name, lines in table.groupby("graph", sort=False):
        learners = list(dict.fromkeys(lines["learner"]))
        width = max(10, *(len(name) for name in learners))
        parts.append(f"{graph_name!s:<24}" + "".join(f"{name:>{width + 2}}" for name in learners))
        for question, group in lines.groupby("question", sort=False):
            cells = []
            for name in learners:
                own = group[group["learner"] == name]
                refused = (own["refusal"] != "").any()
                cells.append("-" if refused or own.empty else f"{own['value'].mean():.4g}")
            parts.append(f"{question!s:<24}" + "".join(f"{cell:>{width + 2}}" for cell in cells))
        parts.append("")
    refusals = (
        table[table["refusal"] != ""].drop_duplicates(["learner", "refusal"]).drop_duplicates(["learner", "question"])
    )
    parts += [f"{r.learner}, {r.question}: {r.refusal}" for r in refusals.itertuples()]
    return "\n".join(parts)
