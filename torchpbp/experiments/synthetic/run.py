"""How close learned posteriors come to the exact ones, on random networks, as the training set grows."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import pandas as pd
from tqdm.auto import tqdm

from torchpbp.errors import DataError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.running.experiment import ascending, check_positive, check_takes_graph, seeds_of
from torchpbp.experiments.running.plots import write_kl_plot
from torchpbp.experiments.running.results import Metrics, environment, write_results
from torchpbp.experiments.running.run_folder import Parts
from torchpbp.experiments.synthetic.questions import (
    Answered,
    Learner,
    Row,
    answered,
    draw_questions,
    make_question,
    measure,
)
from torchpbp.graph.latent_graph import LatentGraph


class Summary(NamedTuple):
    """Results at one size; the standard error over repeats does not exist for a single repeat."""

    rows: int
    kl: float
    kl_standard_error: float | None
    fit_seconds: float


def run_synthetic(
    graph: LatentGraph,
    learner: Callable[[LatentGraph], Learner],
    sizes: Sequence[int] = (1_000, 3_000, 10_000, 30_000, 100_000),
    repeats: int = 5,
    seed: int = 0,
    concentration: float = 1.0,
    questions: int | Sequence[Sequence[str]] = 3,
    evidence_variables: int = 3,
    max_values: int = 4096,
    network: Callable[[LatentGraph, int, float], DiscreteNetwork] = DiscreteNetwork.random,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
) -> Metrics:
    """Learn random networks from samples and measure KL(exact posterior ‖ learned posterior).

    Each repeat draws a network and, for each size, a training set. The KL of a repeat is the plain mean over the
    questions and over the joint values of their evidence variables: rare evidence counts as much as common evidence.
    A repeat's network and data depend on ``seed`` and its number alone, so the result at one size stays the same
    whichever other sizes are asked for.

    Args:
        graph: structure of the networks, known to the learner.
        learner: makes a new model for a graph.
        sizes: numbers of training rows.
        repeats: networks drawn.
        seed: of questions, networks and data.
        concentration: of the Dirichlet distribution behind the networks' tables.
        questions: a list of questions, each a query followed by its evidence variables, or how many different ones to
            draw at random. All repeats ask the same ones.
        evidence_variables: evidence variables of a question drawn at random (fewer if the graph has fewer observables).
        max_values: joint evidence values per question; where there are more, so many are drawn at random.
        network: makes a network from graph, seed and concentration.
        output_dir: folder for metrics.json, metrics.csv, kl.png, model.pt (the last model fitted). ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).

    Returns:
        "kl/N", "kl_standard_error/N" (over repeats; ``None`` for one repeat) and "fit_seconds/N" (mean) for each size,
        "kl_ignoring_evidence" (of the exact marginal as an answer), and the facts of the run.

    Raises:
        DataError: numbers that make no experiment.
        StructureError: fewer than two observables, a latent without a number of states, or a learner with a graph of its
            own.
    """
    check_takes_graph("Synthetic networks", learner)
    sizes = ascending("sizes", sizes)
    check_positive(repeats=repeats, max_values=max_values)
    if isinstance(questions, int):
        questions = draw_questions(graph, questions, evidence_variables, seed)
    asked = [make_question(graph, names, max_values, seed) for names in questions]
    if not asked:
        raise DataError("questions: expected a number or at least one question, got an empty list.")
    rows: list[Row] = []
    parts = Parts(output_dir)
    fitted: list[Learner] = []

    def one_fit(truth: DiscreteNetwork, size: int, known: Callable[[], Answered], data_seed: int) -> Row:
        model, measured = measure(truth, learner, size, known(), data_seed)
        fitted[:] = [model]
        return measured

    with tqdm(total=repeats * len(sizes), desc="synthetic", unit="fit", disable=not verbose) as bar:
        for repeat in range(repeats):
            network_seed, data_seed = seeds_of(seed, repeat, 2)
            truth = network(graph, network_seed, concentration)
            known = cache(partial(answered, truth, asked))  # asked once, and not at all where every size is done
            for size in sizes:
                compute = partial(one_fit, truth, size, known, data_seed)
                last = repeat == repeats - 1 and size == sizes[-1]  # never skipped: its model is saved
                measured = compute() if last else parts.get(f"{repeat},{size}", compute)
                seeds: Row = {"repeat": repeat, "network_seed": network_seed, "data_seed": data_seed}
                rows.append({"rows": size, **seeds, **measured})
                bar.set_postfix_str(f"N={size:,} KL={measured['kl']:.2g}", refresh=False)
                bar.update()
    summary = [summarise([row for row in rows if row["rows"] == size]) for size in sizes]
    metrics: Metrics = {}
    for line in summary:
        metrics[f"kl/{line.rows}"] = line.kl
        metrics[f"kl_standard_error/{line.rows}"] = line.kl_standard_error
        metrics[f"fit_seconds/{line.rows}"] = line.fit_seconds
    metrics["kl_ignoring_evidence"] = statistics.fmean(row["kl_ignoring_evidence"] for row in rows)
    metrics |= {
        "graph": repr(graph),
        "learner": type(fitted[0]).__name__,
        "seed": seed,
        "repeats": repeats,
        "concentration": concentration,
        **environment(),
    }
    described = [f"{q} at {'all' if q.asked_all else 'random'} {q.values} values" for q in asked]
    metrics |= {f"question/{i}": text for i, text in enumerate(described, start=1)}
    if output_dir is not None:
        folder = write_results(output_dir, metrics, pd.DataFrame(rows).sort_values(["rows", "repeat"]))
        errors = [line.kl_standard_error or 0.0 for line in summary]
        write_kl_plot(folder / "kl.png", sizes, [line.kl for line in summary], errors, f"{repeats} random networks")
        fitted[0].save(folder / "model.pt")
    if verbose:
        ignoring = f"{'no evidence':>10}  {metrics['kl_ignoring_evidence']:>10.6f}"
        print(*described, format_summary(summary), ignoring, sep="\n", flush=True)
    return metrics


def summarise(rows: Sequence[Row]) -> Summary:
    """Average the rows of one size over its repeats."""
    kls = [row["kl"] for row in rows]
    error = statistics.stdev(kls) / math.sqrt(len(kls)) if len(kls) > 1 else None
    return Summary(int(rows[0]["rows"]), statistics.fmean(kls), error, statistics.fmean(r["fit_seconds"] for r in rows))


def format_summary(summary: Sequence[Summary]) -> str:
    """The summary as text for a terminal."""
    lines = [f"{'N':>10}  {'KL mean':>10}  {'KL std err':>10}  {'fit seconds':>11}"]
    for line in summary:
        error = "-" if line.kl_standard_error is None else f"{line.kl_standard_error:.6f}"
        lines.append(f"{line.rows:>10,}  {line.kl:>10.6f}  {error:>10}  {line.fit_seconds:>11.3f}")
    return "\n".join(lines)
