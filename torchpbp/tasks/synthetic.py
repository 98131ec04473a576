"""How close learned posteriors come to the exact ones, on random networks, as the training set grows."""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from torchpbp.distributed import own_share
from torchpbp.errors import DataError, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.tasks.plots import write_kl_plot
from torchpbp.tasks.results import Metrics, replacing, write_csv, write_json
from torchpbp.tasks.run_folder import Parts

Row = dict[str, float | int]
"""One line of metrics.csv."""


class Learner(Protocol):
    """What an experiment asks of a model."""

    def fit(self, data: dict[str, Tensor]) -> Any: ...

    def posterior(self, query: str, evidence: dict[str, Tensor]) -> Tensor: ...

    def save(self, path: Path) -> None: ...


@dataclass(frozen=True)
class Question:
    """P(query | evidence) at each of the listed joint values of the evidence variables.

    Args:
        query: an observable.
        evidence: name -> (values,) int64 states.
        asked_all: whether the values are all there are, or random ones among them.
    """

    query: str
    evidence: dict[str, Tensor]
    asked_all: bool

    @property
    def values(self) -> int:
        """Number of joint values asked."""
        return len(next(iter(self.evidence.values())))

    def __str__(self) -> str:
        return f"P({self.query} | {', '.join(self.evidence)})"


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
    if isinstance(learner, nn.Module):
        raise StructureError(
            f"Synthetic networks: expected a learner that takes the model's graph, got a {type(learner).__name__} with a "
            "graph of its own. Choose learner=pbp."
        )
    sizes = _checked_sizes(sizes)
    _at_least_one(repeats=repeats, max_values=max_values)
    if isinstance(questions, int):
        questions = draw_questions(graph, questions, evidence_variables, seed)
    asked = [make_question(graph, names, max_values, seed) for names in questions]
    if not asked:
        raise DataError("questions: expected a number or at least one question, got an empty list.")
    rows: list[Row] = []
    parts = Parts(output_dir)
    fitted: list[Learner] = []
    with tqdm(total=repeats * len(sizes), desc="synthetic", unit="fit", disable=not verbose) as bar:

        def one_network(repeat: int) -> list[Row]:
            network_seed, data_seed = (int(s) for s in np.random.SeedSequence([seed, repeat]).generate_state(2))
            truth = network(graph, network_seed, concentration)
            seeds: Row = {"repeat": repeat, "network_seed": network_seed, "data_seed": data_seed}
            found: list[Row] = []
            for model, measured in measure(truth, learner, sizes, asked, data_seed):
                found.append({"rows": measured["rows"], **seeds, **measured})
                fitted[:] = [model]
                bar.set_postfix_str(f"N={measured['rows']:,} KL={measured['kl']:.2g}", refresh=False)
                bar.update()
            return found

        for repeat in range(repeats - 1):
            rows += parts.get(f"{repeat}", partial(one_network, repeat))
            bar.update(len(rows) - bar.n)
        rows += one_network(repeats - 1)  # never skipped: its model is saved
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
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }
    described = [f"{q} at {'all' if q.asked_all else 'random'} {q.values} values" for q in asked]
    metrics |= {f"question/{i}": text for i, text in enumerate(described, start=1)}
    if output_dir is not None:
        folder = Path(output_dir)
        write_json(folder / "metrics.json", metrics)
        write_csv(folder / "metrics.csv", pd.DataFrame(rows).sort_values(["rows", "repeat"]))
        errors = [line.kl_standard_error or 0.0 for line in summary]
        write_kl_plot(folder / "kl.png", sizes, [line.kl for line in summary], errors, f"{repeats} random networks")
        with replacing(folder / "model.pt") as temporary:
            fitted[0].save(temporary)
    if verbose:
        ignoring = f"{'no evidence':>10}  {metrics['kl_ignoring_evidence']:>10.6f}"
        print(*described, format_summary(summary), ignoring, sep="\n", flush=True)
    return metrics


def measure(
    network: DiscreteNetwork,
    learner: Callable[[LatentGraph], Learner],
    sizes: Sequence[int],
    questions: Sequence[Question],
    data_seed: int,
) -> Iterator[tuple[Learner, Row]]:
    """Fit a model at each size to samples of one network, and yield it with its KL and the seconds its fit took."""
    possible = [_possible(network, q) for q in questions]
    exact = [network.posterior(q.query, q.evidence) for q in possible]
    marginals = [network.posterior(q.query, {}) for q in possible]
    ignoring = statistics.fmean(_mean_kl(p, m.expand_as(p)) for p, m in zip(exact, marginals, strict=True))
    for size in sizes:
        share = own_share(size)
        data = {v: x[share] for v, x in network.sample(size, seed=data_seed).items()}
        model = learner(network.graph)
        start = time.perf_counter()
        model.fit(data)
        seconds = time.perf_counter() - start
        kls = [mean_kl(model, q, truth) for q, truth in zip(possible, exact, strict=True)]
        per_question = {f"kl {q}": value for q, value in zip(questions, kls, strict=True)}
        yield (
            model,
            {
                "rows": size,
                "kl": statistics.fmean(kls),
                "fit_seconds": seconds,
                "kl_ignoring_evidence": ignoring,
                **per_question,
            },
        )


def draw_questions(graph: LatentGraph, number: int, evidence_variables: int, seed: int) -> list[tuple[str, ...]]:
    """Choose queries and their evidence variables at random among the observables, no choice twice.

    Returns:
        ``number`` tuples (query, evidence variables…), or fewer where the graph has no more.
    """
    _at_least_one(questions=number, evidence_variables=evidence_variables)
    others = len(graph.observed) - 1
    if others < 1:
        raise StructureError(f"Expected at least two observables to ask P(one | others), got {list(graph.observed)}.")
    width = min(evidence_variables, others)
    draw = random.Random(seed)
    chosen: list[tuple[str, ...]] = []
    while len(chosen) < min(number, (others + 1) * math.comb(others, width)):
        query, *given = draw.sample(graph.observed, 1 + width)
        choice = (query, *sorted(given, key=graph.observed.index))
        if choice not in chosen:
            chosen.append(choice)
    return chosen


def make_question(graph: LatentGraph, names: Sequence[str], max_values: int, seed: int) -> Question:
    """Ask P(first name | the others) at all joint values of the others, or at ``max_values`` random ones."""
    if isinstance(names, str) or len(names) < 2:
        raise DataError(f"questions: expected a query followed by its evidence variables, got {names!r}.")
    query, *given = names
    shape = [graph.num_states(v) for v in given]
    total = math.prod(shape)
    codes = range(total) if total <= max_values else random.Random(seed).sample(range(total), max_values)
    states = np.unravel_index(np.asarray(codes), shape)
    evidence = {v: torch.from_numpy(s.astype(np.int64)) for v, s in zip(given, states, strict=True)}
    return Question(query, evidence, total <= max_values)


@torch.no_grad()
def mean_kl(model: Learner, question: Question, exact: Tensor) -> float:
    """Mean over the evidence values of KL(exact ‖ learned), in nats.

    Args:
        model: fitted.
        question: what to ask.
        exact: (values, states) true answer.
    """
    learned = model.posterior(question.query, question.evidence).to(exact)
    return _mean_kl(exact, learned)


def _mean_kl(exact: Tensor, learned: Tensor) -> float:
    return float((torch.xlogy(exact, exact) - torch.xlogy(exact, learned)).sum(dim=-1).mean())


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


def _possible(network: DiscreteNetwork, question: Question) -> Question:
    """The question without evidence of probability 0, for which no exact posterior exists."""
    keep = torch.isfinite(network.log_evidence(question.evidence))
    if not bool(keep.any()):
        raise DataError(f"{question}: the network gives probability 0 to all evidence asked. Raise the concentration.")
    return Question(question.query, {v: s[keep] for v, s in question.evidence.items()}, question.asked_all)


def _checked_sizes(sizes: Sequence[int]) -> list[int]:
    """Ascending whole numbers; 1e5 on a command line arrives as a float."""
    if not sizes or any(n < 1 or n != int(n) for n in sizes):
        raise DataError(f"sizes: expected one or more positive whole numbers, got {list(sizes)}.")
    return sorted({int(n) for n in sizes})


def _at_least_one(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise DataError(f"{name}: expected at least 1, got {value}.")
