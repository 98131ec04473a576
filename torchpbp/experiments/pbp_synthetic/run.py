"""Predictive belief propagation against EM and online EM on random loopy networks: KL and training time [PBP 6, Fig. 5]."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import pandas as pd
from tqdm.auto import tqdm

from torchpbp.errors import StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.pbp_synthetic.plots import write_kl_and_seconds
from torchpbp.experiments.running.experiment import ascending, check_positive, check_takes_graph, seeds_of
from torchpbp.experiments.running.results import Metrics, environment, metrics_of, write_csv, write_results
from torchpbp.experiments.running.run_folder import Parts
from torchpbp.experiments.synthetic.questions import Answered, Learner, answered, make_question, measure
from torchpbp.graph.latent_graph import LatentGraph

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
    if MAIN in (others or {}):
        raise StructureError(f"others: '{MAIN}' is the name of the main learner. Choose another one.")
    for name, make in learners.items():
        check_takes_graph(name, make)
    sizes = ascending("sizes", sizes)
    check_positive(repeats=repeats)
    asked = make_question(graph, question, max_values, seed)
    rows: list[dict[str, str | float]] = []
    parts = Parts(output_dir)
    with tqdm(total=repeats * len(sizes) * len(learners), desc="pbp_synthetic", unit="fit", disable=not verbose) as bar:
        for repeat in range(repeats):
            network_seed, data_seed = seeds_of(seed, repeat, 2)
            truth = DiscreteNetwork.random(graph, network_seed, concentration)
            known = cache(partial(answered, truth, [asked]))
            for size in sizes:
                for name, make in learners.items():
                    bar.set_postfix_str(f"N={size:,} {name}")
                    ask = partial(_measured, truth, make, size, known, data_seed)
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
        **environment(),
    }
    if output_dir is not None:
        folder = write_results(output_dir, metrics, table)
        write_kl_and_seconds(folder / "kl_and_seconds.png", summary, ignoring, f"{asked}, {repeats} random networks")
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
    truth: DiscreteNetwork,
    make: Callable[[LatentGraph], Learner],
    size: int,
    known: Callable[[], Answered],
    data_seed: int,
) -> dict[str, float]:
    """KL and seconds of one fit."""
    _, found = measure(truth, make, size, known(), data_seed)
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
    names = ("kl", "kl_standard_error", "fit_seconds")
    metrics = metrics_of(summary, ("learner", "rows"), {name: name for name in names})
    found = summary.set_index(["learner", "rows"])
    for size in dict.fromkeys(summary["rows"]):
        main = found.loc[(MAIN, size)]
        for name in [n for n in learners if n != MAIN]:
            line = found.loc[(name, size)]
            metrics[f"kl_ratio/{name}/{size}"] = float(main["kl"] / line["kl"])
            metrics[f"seconds_ratio/{name}/{size}"] = float(line["fit_seconds"] / main["fit_seconds"])
    return metrics
