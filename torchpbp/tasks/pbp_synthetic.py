"""Predictive belief propagation against EM and online EM on random loopy networks: KL and training time [PBP 6, Fig. 5]."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from tqdm.auto import tqdm

from torchpbp.errors import DataError, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.tasks.pbp_synthetic_plots import write_kl_and_seconds
from torchpbp.tasks.results import Metrics, write_csv, write_json
from torchpbp.tasks.run_folder import Parts
from torchpbp.tasks.synthetic import Learner, Question, make_question, measure

MAIN = "pbp"
"""Name of the main learner in the results."""


def run_pbp_synthetic(
    graph: LatentGraph,
    learner: Callable[[LatentGraph], Learner],
    others: Mapping[str, Callable[[LatentGraph], Learner]] | None = None,
    sizes: Sequence[int] = (1_000, 10_000),
    repeats: int = 3,
    seed: int = 0,
    concentration: float = 1.0,
    question: Sequence[str] = ("d", "g", "h", "e"),
    max_values: int = 4096,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
) -> Metrics:
    """Fit all learners to the same samples of random networks; measure KL(exact ‖ learned) and the seconds of each fit.

    The KL is the plain mean over all joint values of the evidence. Learners take turns on each data set, so that a slow
    spell of the machine meets all of them.

    Args:
        graph: structure of the networks, known to the learners.
        learner: makes a new model for a graph; goes by the name "pbp".
        others: name -> likewise, to compare with; none by default.
        sizes: numbers of training rows.
        repeats: networks drawn.
        seed: of networks and data.
        concentration: of the Dirichlet distribution of the networks' tables.
        question: a query followed by its evidence variables.
        max_values: joint values of the evidence; where there are more, so many are drawn at random.
        output_dir: folder for metrics.json, metrics.csv (a row per learner, size and repeat) and kl_and_seconds.png.
            ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).

    Returns:
        For each learner and size "kl/<learner>/N", "kl_standard_error/<learner>/N" (``None`` for one repeat) and
        "fit_seconds/<learner>/N", a median, as a slow spell or the first fit of a process would spoil a mean; for each
        other learner "kl_ratio/<other>/N" (KL of the main learner over its own) and "seconds_ratio/<other>/N" (its seconds
        over those of the main learner); "kl_ignoring_evidence" (of the exact marginal as an answer) and the facts of the
        run.
    """
    learners = {MAIN: learner, **(others or {})}
    _check(learners, others or {}, sizes, repeats)
    asked = make_question(graph, question, max_values, seed)
    rows: list[dict[str, str | float]] = []
    parts = Parts(output_dir)
    with tqdm(total=repeats * len(sizes) * len(learners), desc="pbp_synthetic", unit="fit", disable=not verbose) as bar:
        for repeat in range(repeats):
            network_seed, data_seed = (int(s) for s in np.random.SeedSequence([seed, repeat]).generate_state(2))
            truth = DiscreteNetwork.random(graph, network_seed, concentration)
            for size in sorted({int(n) for n in sizes}):
                for name, make in learners.items():
                    bar.set_postfix_str(f"N={size:,} {name}")
                    ask = partial(_measured, truth, make, size, asked, data_seed)
                    kept = parts.get(f"{repeat},{size},{name}", ask)
                    rows.append({"learner": name, "rows": size, "repeat": repeat, **kept})
                    bar.update()
            if output_dir is not None:  # a long run that is interrupted leaves what it has measured
                write_csv(Path(output_dir) / "metrics.csv", pd.DataFrame(rows))
    table = pd.DataFrame(rows)
    summary = summarised(table)
    ignoring = statistics.fmean(float(row["kl_ignoring_evidence"]) for row in rows)
    metrics = _metrics(summary, learners) | {
        "kl_ignoring_evidence": ignoring,
        "question": f"{asked} at {'all' if asked.asked_all else 'random'} {asked.values} values",
        "graph": repr(graph),
        "seed": seed,
        "repeats": repeats,
        "concentration": concentration,
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }
    if output_dir is not None:
        write_json(Path(output_dir) / "metrics.json", metrics)
        write_kl_and_seconds(
            Path(output_dir) / "kl_and_seconds.png", summary, ignoring, f"{asked}, {repeats} random networks"
        )
    if verbose:
        lines = summary.to_string(index=False, float_format=lambda v: f"{v:.6f}")
        print(
            metrics["question"],
            lines,
            f"KL of the exact marginal, the evidence ignored: {ignoring:.6f}",
            sep="\n",
            flush=True,
        )
    return metrics


def _measured(
    truth: DiscreteNetwork, make: Callable[[LatentGraph], Learner], size: int, asked: Question, data_seed: int
) -> dict[str, float]:
    """KL and seconds of one fit."""
    ((_, found),) = measure(truth, make, [size], [asked], data_seed)
    return {k: found[k] for k in ("kl", "fit_seconds", "kl_ignoring_evidence")}


def summarised(table: pd.DataFrame) -> pd.DataFrame:
    """Mean KL with its standard error (NaN for one repeat) and median seconds, a row per learner and size.

    Args:
        table: columns learner, rows, repeat, kl, fit_seconds.
    """
    groups = table.groupby(["learner", "rows"], sort=False)
    summary = groups.agg(
        kl=("kl", "mean"), kl_standard_error=("kl", "sem"), fit_seconds=("fit_seconds", "median")
    ).reset_index()
    return summary


def _metrics(summary: pd.DataFrame, learners: Mapping[str, object]) -> Metrics:
    metrics: Metrics = {}
    found = summary.set_index(["learner", "rows"])
    for size in dict.fromkeys(summary["rows"]):
        main = found.loc[(MAIN, size)]
        for name in learners:
            line = found.loc[(name, size)]
            error = float(line["kl_standard_error"])
            metrics[f"kl/{name}/{size}"] = float(line["kl"])
            metrics[f"kl_standard_error/{name}/{size}"] = error if error == error else None  # NaN for one repeat
            metrics[f"fit_seconds/{name}/{size}"] = float(line["fit_seconds"])
            if name != MAIN:
                metrics[f"kl_ratio/{name}/{size}"] = float(main["kl"] / line["kl"])
                metrics[f"seconds_ratio/{name}/{size}"] = float(line["fit_seconds"] / main["fit_seconds"])
    return metrics


def _check(learners: Mapping[str, object], others: Mapping[str, object], sizes: Sequence[int], repeats: int) -> None:
    """Refuse numbers and learners that make no experiment."""
    if MAIN in others:
        raise StructureError(f"others: '{MAIN}' is the name of the main learner. Choose another one.")
    for name, learner in learners.items():
        if isinstance(learner, nn.Module) or not callable(learner):
            raise StructureError(
                f"{name}: expected a learner that takes the model's graph, got a {type(learner).__name__} with a graph of its own."
            )
    if not sizes or any(n < 1 or n != int(n) for n in sizes):
        raise DataError(f"sizes: expected one or more positive whole numbers, got {list(sizes)}.")
    if repeats < 1:
        raise DataError(f"repeats: expected at least 1, got {repeats}.")
