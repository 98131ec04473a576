"""Predictive belief propagation against EM and online EM on random loopy networks: KL and training time [PBP 6, Fig. 5]."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pandas as pd

from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.pbp_synthetic.plots import write_kl_and_seconds
from torchpbp.experiments.running.experiment import MakeModel, named_learners, row_counts, seeds_of
from torchpbp.experiments.running.grid import grid_table, measure_grid
from torchpbp.experiments.running.results import Metrics, environment, metrics_of, write_results
from torchpbp.experiments.synthetic.questions import Answered, answered, make_question, measure
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.settings import Settings, positive, setting, several, text, whole

MAIN = "pbp"
"""Name of the main learner in the results."""


@dataclass(frozen=True)
class PBPSyntheticSettings(Settings):
    """Settings of :func:`run_pbp_synthetic`.

    Args:
        sizes: numbers of training rows.
        repeats: networks drawn.
        concentration: of the Dirichlet distribution of the networks' tables.
        question: a query followed by its evidence variables.
        max_values: joint values of the evidence; where there are more, so many are drawn at random.
    """

    sizes: tuple[int, ...] = setting((1_000, 10_000), row_counts())
    repeats: int = setting(3, whole(1))
    concentration: float = setting(1.0, positive())
    question: tuple[str, ...] = setting(
        ("d", "g", "h", "e"), several(text(), expected="a query followed by its evidence variables")
    )
    max_values: int = setting(4096, whole(1))


def run_pbp_synthetic(
    graph: LatentGraph,
    learner: MakeModel,
    others: Mapping[str, MakeModel] | None = None,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Metrics:
    """Fit all learners to the same samples of random networks; measure KL(exact ‖ learned) and the seconds of each fit.

    The KL is the plain mean over all joint values of the evidence. Learners take turns on each data set, so that a slow
    spell of the machine affects all of them.

    Args:
        graph: structure of the networks, known to the learners.
        learner: makes a new model for a graph; goes by the name "pbp".
        others: name -> likewise, to compare with; none by default.
        seed: of networks and data.
        output_dir: folder for metrics.json, metrics.csv (a row per learner, size and repeat) and kl_and_seconds.png.
            ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).
        options: see :class:`PBPSyntheticSettings`.

    Returns:
        For each learner and size "kl/<learner>/N", "kl_standard_error/<learner>/N" (``None`` for one repeat) and
        "fit_seconds/<learner>/N", a median, as a slow spell or the first fit of a process would spoil a mean; for each
        other learner "kl_ratio/<other>/N" (KL of the main learner over its own) and "seconds_ratio/<other>/N" (its seconds
        over those of the main learner); "kl_ignoring_evidence" (of the exact marginal as an answer) and the facts of the
        run.
    """
    settings = PBPSyntheticSettings.from_dict(options)
    learners = named_learners(MAIN, learner, others)
    asked = make_question(graph, settings.question, settings.max_values, seed)

    @lru_cache(maxsize=1)
    def drawn(repeat: int) -> tuple[DiscreteNetwork, Answered, int]:
        network_seed, data_seed = seeds_of(seed, repeat, 2)
        truth = DiscreteNetwork.random(graph, network_seed, settings.concentration)
        return truth, answered(truth, [asked]), data_seed

    def one_fit(name: str, size: int, repeat: int) -> dict[str, float]:
        truth, known, data_seed = drawn(repeat)
        _, measured = measure(truth, learners[name], size, known, data_seed)
        return {k: measured[k] for k in ("kl", "fit_seconds", "kl_ignoring_evidence")}

    points = [
        (name, size, repeat) for repeat in range(settings.repeats) for size in settings.sizes for name in learners
    ]
    measured = measure_grid("pbp_synthetic", points, one_fit, output_dir, verbose)
    table = grid_table(("learner", "rows", "repeat"), measured)
    summary = summarise(table)
    ignoring = statistics.fmean(table["kl_ignoring_evidence"])
    metrics = _metrics(summary, learners) | {
        "kl_ignoring_evidence": ignoring,
        "question": asked.described,
        "graph": repr(graph),
        "seed": seed,
        "repeats": settings.repeats,
        "concentration": settings.concentration,
        **environment(),
    }
    if output_dir is not None:
        folder = write_results(output_dir, metrics, table)
        title = f"{asked}, {settings.repeats} random networks"
        write_kl_and_seconds(folder / "kl_and_seconds.png", summary, ignoring, title)
    if verbose:
        lines = summary.to_string(index=False, float_format=lambda v: f"{v:.6f}")
        print(
            asked.described, lines, f"KL of the exact marginal, evidence ignored: {ignoring:.6f}", sep="\n", flush=True
        )
    return metrics


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Mean KL with its standard error (NaN for one repeat) and median seconds, a row per learner and size.

    Args:
        table: columns learner, rows, repeat, kl, fit_seconds.
    """
    groups = table.groupby(["learner", "rows"], sort=False)
    return groups.agg(
        kl=("kl", "mean"), kl_standard_error=("kl", "sem"), fit_seconds=("fit_seconds", "median")
    ).reset_index()


def _metrics(summary: pd.DataFrame, learners: Mapping[str, object]) -> Metrics:
    metrics = metrics_of(summary, ("learner", "rows"))
    lines = summary.set_index(["learner", "rows"])
    for size in dict.fromkeys(summary["rows"]):
        main = lines.loc[(MAIN, size)]
        for name in [n for n in learners if n != MAIN]:
            line = lines.loc[(name, size)]
            metrics[f"kl_ratio/{name}/{size}"] = float(main["kl"] / line["kl"])
            metrics[f"seconds_ratio/{name}/{size}"] = float(line["fit_seconds"] / main["fit_seconds"])
    return metrics
