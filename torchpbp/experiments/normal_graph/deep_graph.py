"""Four learning rules on a deeper graph: five hidden variables above three observables [NG 7.2]."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.normal_graph.comparison import finish
from torchpbp.experiments.normal_graph.plots import write_coefficients, write_courses
from torchpbp.experiments.normal_graph.rules import Case, MakeLearner, check_learner, learn_cases
from torchpbp.experiments.running.experiment import seeds_of
from torchpbp.experiments.running.results import Metrics
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.settings import Settings, positive, setting, whole


@dataclass(frozen=True)
class DeepGraphSettings(Settings):
    """Settings of :func:`run_ng_deep_graph`.

    Args:
        rows: to learn from.
        epochs: of each fit.
        inner_iterations: of ML and KL in each epoch.
        concentration: of the Dirichlet distribution of the networks' tables; small values tie variables more closely.
        repeats: networks.
    """

    rows: int = setting(100, whole(1))
    epochs: int = setting(150, whole(1))
    inner_iterations: int = setting(3, whole(1))
    concentration: float = setting(0.3, positive())
    repeats: int = setting(20, whole(1))


def deep_graph() -> LatentGraph:
    """Eight variables in layers: S1 -> Y1 -> X1, X2; (S1, S2) -> Y2; (Y2, S3) -> X3; only X1, X2, X3 are observed.

    Numbers of states, and which pairs of variables meet in a product space, are those of the paper's text; that X1 and X2
    hang on Y1 is our reading, since the text leaves it to a figure.
    """
    edges = [("S1", "Y1"), ("S1", "Y2"), ("S2", "Y2"), ("Y1", "X1"), ("Y1", "X2"), ("Y2", "X3"), ("S3", "X3")]
    states = {"S1": 4, "S2": 2, "S3": 3, "Y1": 3, "Y2": 4, "X1": 3, "X2": 2, "X3": 3}
    return LatentGraph(edges, states, latent=["S1", "S2", "S3", "Y1", "Y2"])


def run_ng_deep_graph(
    learner: MakeLearner,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Metrics:
    """Log-likelihood reached by each rule on rows of random networks with five hidden variables.

    Each repeat draws a network, rows, and one start that is the same for all rules.

    Args:
        learner: makes a learner of normal graphs.
        seed: of the draws.
        output_dir: folder for metrics.json, metrics.csv, log_likelihood.png and coefficients.png (first repeat). ``None``:
            no files.
        verbose: show a progress bar (stderr) and the results (stdout).
        options: see :class:`DeepGraphSettings`.

    Returns:
        See :func:`torchpbp.experiments.normal_graph.comparison.compare`; the case is "deep", measures are "aggregated" [NG eq. 28] and
        "log_evidence".
    """
    settings = DeepGraphSettings.from_dict(options)
    check_learner(learner)
    graph = deep_graph()
    seeds = [seeds_of(seed, repeat, 3) for repeat in range(settings.repeats)]
    truths = [DiscreteNetwork.random(graph, network_seed, settings.concentration) for network_seed, _, _ in seeds]
    data = [truth.sample(settings.rows, seed=data_seed) for truth, (_, data_seed, _) in zip(truths, seeds, strict=True)]
    chosen = {"epochs": settings.epochs, "inner_iterations": settings.inner_iterations}
    starts = [start_seed for _, _, start_seed in seeds]
    case = Case("deep", graph, data, starts, truths, history=True, options=chosen)
    results = learn_cases("deep graph", learner, [case], output_dir, verbose)["deep"]
    if output_dir is not None:
        folder = Path(output_dir)
        title = {"five hidden variables": results.courses}
        write_courses(folder / "log_likelihood.png", title, "epochs", "aggregated log-likelihood")
        write_coefficients(folder / "coefficients.png", results.coefficients)
    facts: Metrics = {"seed": seed, "rows": settings.rows, **chosen}
    facts |= {"concentration": settings.concentration, "graph": repr(graph)}
    return finish(pd.DataFrame(results.lines), ("aggregated", "log_evidence"), facts, output_dir, verbose)
