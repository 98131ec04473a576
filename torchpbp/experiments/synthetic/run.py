"""How close learned posteriors come to the exact ones, on random networks, as the training set grows."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pandas as pd

from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.running.experiment import MakeModel, check_takes_graph, one_or_more, row_counts, seeds_of
from torchpbp.experiments.running.grid import measure_grid
from torchpbp.experiments.running.results import Metrics, environment, metrics_of, text_table, write_results
from torchpbp.experiments.synthetic.plots import write_kl_plot
from torchpbp.experiments.synthetic.questions import (
    Answered,
    Row,
    answered,
    draw_questions,
    make_question,
    measure,
)
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.settings import Settings, either, positive, setting, several, text, whole

COLUMNS = {
    "rows": ("N", "{:,}"),
    "kl": ("KL mean", "{:.6f}"),
    "kl_standard_error": ("KL std err", "{:.6f}"),
    "fit_seconds": ("fit seconds", "{:.3f}"),
}
QUESTIONS = one_or_more(several(several(text()), expected="questions, each a query followed by its evidence variables"))


@dataclass(frozen=True)
class SyntheticSettings(Settings):
    """Settings of :func:`run_synthetic`.

    Args:
        sizes: numbers of training rows.
        repeats: networks drawn, each with data of its own.
        concentration: of the Dirichlet distribution behind the networks' tables.
        questions: a list of questions, each a query followed by its evidence variables, or how many different ones to
            draw at random. All repeats ask the same ones.
        evidence_variables: evidence variables of a question drawn at random (fewer if the graph has fewer observables).
        max_values: joint evidence values per question; where there are more, so many are drawn at random.
    """

    sizes: tuple[int, ...] = setting((1_000, 3_000, 10_000, 30_000, 100_000), row_counts())
    repeats: int = setting(5, whole(1))
    concentration: float = setting(1.0, positive())
    questions: int | tuple[tuple[str, ...], ...] = setting(3, either(whole(1), QUESTIONS))
    evidence_variables: int = setting(3, whole(1))
    max_values: int = setting(4096, whole(1))


def run_synthetic(
    graph: LatentGraph,
    learner: MakeModel,
    network: Callable[[LatentGraph, int, float], DiscreteNetwork] = DiscreteNetwork.random,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Metrics:
    """Learn random networks from samples and measure KL(exact posterior ‖ learned posterior).

    The KL of a repeat is the plain mean over the questions and over the joint values of their evidence variables: rare
    evidence counts as much as common evidence. A repeat's network and data depend on ``seed`` and its number alone, so the
    result at one size stays the same whichever other sizes are asked for.

    Args:
        graph: structure of the networks, known to the learner.
        learner: makes a new model for a graph.
        network: makes a network from graph, seed and concentration.
        seed: of questions, networks and data.
        output_dir: folder for metrics.json, metrics.csv, kl.png, model.pt (the last model fitted). ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).
        options: see :class:`SyntheticSettings`.

    Returns:
        "kl/N", "kl_standard_error/N" (over repeats; ``None`` for one repeat) and "fit_seconds/N" (mean) for each size,
        "kl_ignoring_evidence" (of the exact marginal as an answer), and the facts of the run.
    """
    settings = SyntheticSettings.from_dict(options)
    check_takes_graph("Synthetic networks", learner)
    chosen = settings.questions
    if isinstance(chosen, int):
        chosen = tuple(draw_questions(graph, chosen, settings.evidence_variables, seed))
    asked = [make_question(graph, names, settings.max_values, seed) for names in chosen]
    seeds = [seeds_of(seed, repeat, 2) for repeat in range(settings.repeats)]

    @lru_cache(maxsize=1)
    def drawn(repeat: int) -> tuple[DiscreteNetwork, Answered]:
        truth = network(graph, seeds[repeat][0], settings.concentration)
        return truth, answered(truth, asked)

    fitted: list[Any] = []

    def one_fit(repeat: int, size: int) -> Row:
        truth, known = drawn(repeat)
        model, measured = measure(truth, learner, size, known, seeds[repeat][1])
        fitted[:] = [model]
        return measured

    points = [(repeat, size) for repeat in range(settings.repeats) for size in settings.sizes]
    last = points[-1:]  # never skipped: its model is saved
    rows: list[Row] = []
    for (repeat, size), measured in measure_grid("synthetic", points, one_fit, output_dir, verbose, last):
        network_seed, data_seed = seeds[repeat]
        rows.append({"rows": size, "repeat": repeat, "network_seed": network_seed, "data_seed": data_seed, **measured})
    table = pd.DataFrame(rows).sort_values(["rows", "repeat"])
    summary = summarise(table)
    metrics = metrics_of(summary, ("rows",))
    metrics["kl_ignoring_evidence"] = statistics.fmean(row["kl_ignoring_evidence"] for row in rows)
    metrics |= {
        "graph": repr(graph),
        "learner": type(fitted[0]).__name__,
        "seed": seed,
        "repeats": settings.repeats,
        "concentration": settings.concentration,
        **environment(),
    }
    described = [q.described for q in asked]
    metrics |= {f"question/{i}": text for i, text in enumerate(described, start=1)}
    if output_dir is not None:
        folder = write_results(output_dir, metrics, table)
        write_kl_plot(folder / "kl.png", summary, f"{settings.repeats} random networks")
        fitted[0].save(folder / "model.pt")
    if verbose:
        ignoring = f"{'no evidence':>10}  {metrics['kl_ignoring_evidence']:>10.6f}"
        print(*described, text_table(summary, COLUMNS), ignoring, sep="\n", flush=True)
    return metrics


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Mean KL with its standard error over repeats (NaN for one) and mean seconds, a row per size."""
    groups = table.groupby("rows", sort=False)
    return groups.agg(
        kl=("kl", "mean"), kl_standard_error=("kl", "sem"), fit_seconds=("fit_seconds", "mean")
    ).reset_index()
