"""Four learning rules on one hidden variable with three observables [NG 7.1]."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.normal_graph.comparison import finish
from torchpbp.experiments.normal_graph.plots import write_coefficients, write_courses, write_scatter
from torchpbp.experiments.normal_graph.rules import Case, MakeLearner, check_learner, learn_cases
from torchpbp.experiments.running.experiment import one_or_more, seeds_of
from torchpbp.experiments.running.results import Metrics
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.settings import Settings, setting, several, whole

OBSERVABLES = {"X1": 2, "X2": 2, "X3": 3}
SWEPT = ("ml", "kl")
"""Rules that have inner iterations."""


def embedding_graph(states: int) -> LatentGraph:
    """S -> X1, X2, X3 with ``states`` states of S."""
    return LatentGraph([("S", x) for x in OBSERVABLES], {"S": states, **OBSERVABLES}, latent=["S"])


def embedding_network() -> DiscreteNetwork:
    """The network with the parameters printed in the paper; S has four states."""
    tables = {
        "S": [0.25, 0.25, 0.25, 0.25],
        "X1": [[0.1, 0.9], [0.1, 0.9], [0.9, 0.1], [0.3, 0.7]],
        "X2": [[0.1, 0.9], [0.99, 0.01], [0.5, 0.5], [0.2, 0.8]],
        "X3": [[0.1, 0.89, 0.01], [0.3, 0.3, 0.4], [0.8, 0.1, 0.1], [0.1, 0.8, 0.1]],
    }
    return DiscreteNetwork(embedding_graph(4), tables)


@dataclass(frozen=True)
class OneEmbeddingSettings(Settings):
    """Settings of :func:`run_ng_one_embedding`.

    Args:
        rows: of experiments 1 (four hidden states) and 2.
        mismatched: numbers of hidden states of experiment 2.
        split_rows: of experiment 3; the first half is learned from, the second tested.
        generalised: numbers of hidden states of experiment 3.
        epochs: of each fit.
        inner_iterations: of ML and KL in each epoch.
        swept_iterations: numbers of inner iterations compared on the rows of the first repeat.
        starts: random starts for each of those numbers.
        repeats: draws of rows and starts.
    """

    rows: int = setting(400, whole(1))
    mismatched: tuple[int, ...] = setting((2, 7), one_or_more(several(whole(1))))
    split_rows: int = setting(300, whole(2))
    generalised: tuple[int, ...] = setting((4, 9), one_or_more(several(whole(1))))
    epochs: int = setting(60, whole(1))
    inner_iterations: int = setting(3, whole(1))
    swept_iterations: tuple[int, ...] = setting((1, 3, 10), one_or_more(several(whole(1))))
    starts: int = setting(10, whole(1))
    repeats: int = setting(20, whole(1))


def run_ng_one_embedding(
    learner: MakeLearner,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Metrics:
    """Log-likelihood reached by each rule, with as many hidden states as the truth, with fewer or more, and on new rows.

    Each repeat draws rows from the paper's network and one start, the same for all rules.

    Args:
        learner: makes a learner of normal graphs.
        seed: of the draws.
        output_dir: folder for metrics.json, metrics.csv, log_likelihood.png (evolution), coefficients.png (first repeat)
            and inner_iterations.png. ``None``: no files.
        verbose: show a progress bar (stderr) and the results (stdout).
        options: see :class:`OneEmbeddingSettings`.

    Returns:
        See :func:`torchpbp.experiments.normal_graph.comparison.compare`. Cases are "matched_4", "mismatched_<states>", "split_<states>" and
        "inner_iterations_<number>"; measures "aggregated" [NG eq. 28] and "log_evidence", and for split rows "test_…".
    """
    settings = OneEmbeddingSettings.from_dict(options)
    check_learner(learner)
    truth = embedding_network()
    rows, split_rows = settings.rows, settings.split_rows
    seeds = [seeds_of(seed, repeat, 2) for repeat in range(settings.repeats)]
    samples = {n: [truth.sample(n, seed=data_seed) for data_seed, _ in seeds] for n in (rows, split_rows)}
    start_seeds = [start_seed for _, start_seed in seeds]
    chosen = {"epochs": settings.epochs, "inner_iterations": settings.inner_iterations}

    def case(name: str, states: int, data_rows: int, **more: Any) -> Case:
        truths = [truth] * settings.repeats
        return Case(name, embedding_graph(states), samples[data_rows], start_seeds, truths, options=chosen, **more)

    first_half = (torch.arange(split_rows) < split_rows // 2).double()
    matched = case("matched_4", 4, rows, history=True)
    mismatched = [case(f"mismatched_{k}", k, rows) for k in settings.mismatched]
    split = [case(f"split_{k}", k, split_rows, mask=first_half) for k in settings.generalised]
    first, seeds_of_starts = [samples[rows][0]] * settings.starts, seeds_of(seed, 0, settings.starts)
    swept = {
        number: Case(
            f"inner_iterations_{number}",
            truth.graph,
            first,
            seeds_of_starts,
            rules=SWEPT,
            options={**chosen, "inner_iterations": number},
        )
        for number in settings.swept_iterations
    }
    cases = [matched, *mismatched, *split]
    results = learn_cases("one embedding", learner, [*cases, *swept.values()], output_dir, verbose)
    if output_dir is not None:
        folder = Path(output_dir)
        evolution = {c.name: results[c.name].courses for c in cases}
        write_courses(folder / "log_likelihood.png", evolution, "epochs", "aggregated log-likelihood")
        reached = {
            number: [float(line["aggregated"]) for line in results[c.name].lines if line["rule"] == "ml"]
            for number, c in swept.items()
        }
        write_scatter(folder / "inner_iterations.png", reached, "inner iterations (ML)", "aggregated log-likelihood")
        tables = {v: np.asarray(t.flatten().numpy()) for v, t in truth.cpts.items()}
        write_coefficients(folder / "coefficients.png", results[matched.name].coefficients, tables)
    lines = [line for result in results.values() for line in result.lines]
    facts: Metrics = {"seed": seed, **chosen, "rows": rows, "split_rows": split_rows}
    measures = ("aggregated", "log_evidence", "test_aggregated", "test_log_evidence")
    return finish(pd.DataFrame(lines), measures, facts, output_dir, verbose)
