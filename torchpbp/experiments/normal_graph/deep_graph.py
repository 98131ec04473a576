"""Four learning rules on a deeper graph: five hidden variables above three observables [NG 7.2]."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
from tqdm.auto import tqdm

from torchpbp.baselines.normal_graph import RULES
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.normal_graph.comparison import finish
from torchpbp.experiments.normal_graph.plots import write_coefficients, write_courses
from torchpbp.experiments.normal_graph.rules import MakeLearner, RuleExperiment, check_learner
from torchpbp.experiments.running.experiment import check_positive, seeds_of
from torchpbp.experiments.running.results import Metrics
from torchpbp.experiments.running.run_folder import Parts
from torchpbp.graph.latent_graph import LatentGraph


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
    rows: int = 100,
    epochs: int = 150,
    inner_iterations: int = 3,
    concentration: float = 0.3,
    repeats: int = 20,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
) -> Metrics:
    """Log-likelihood reached by each rule on rows of random networks with five hidden variables.

    Each repeat draws a network, rows, and one start that is the same for all rules.

    Args:
        learner: makes a learner of normal graphs.
        rows: to learn from.
        epochs: of each fit.
        inner_iterations: of ML and KL in each epoch.
        concentration: of the Dirichlet distribution of the networks' tables; small values tie variables more closely.
        repeats: networks.
        seed: of the draws.
        output_dir: folder for metrics.json, metrics.csv, log_likelihood.png and coefficients.png (first repeat). ``None``:
            no files.
        verbose: show a progress bar (stderr) and the results (stdout).

    Returns:
        See :func:`torchpbp.experiments.normal_graph.comparison.compare`; the case is "deep", measures are "aggregated" [NG eq. 28] and
        "log_evidence".
    """
    check_learner(learner)
    check_positive(rows=rows, epochs=epochs, inner_iterations=inner_iterations, repeats=repeats)
    graph = deep_graph()
    network_seeds, data_seeds, start_seeds = zip(*(seeds_of(seed, i, 3) for i in range(repeats)), strict=True)
    truths = [DiscreteNetwork.random(graph, s, concentration) for s in network_seeds]
    data = [truth.sample(rows, seed=s) for truth, s in zip(truths, data_seeds, strict=True)]
    with tqdm(total=len(RULES), desc="deep graph", unit="rule", disable=not verbose) as bar:
        rules = RuleExperiment(learner, Parts(output_dir), bar, epochs=epochs, inner_iterations=inner_iterations)
        found = rules.run("deep", graph, data, start_seeds, truths, history=True)
    if output_dir is not None:
        folder = Path(output_dir)
        title = {"five hidden variables": found.courses}
        write_courses(folder / "log_likelihood.png", title, "epochs", "aggregated log-likelihood")
        write_coefficients(folder / "coefficients.png", found.coefficients)
    facts: Metrics = {"seed": seed, "rows": rows, "epochs": epochs, "inner_iterations": inner_iterations}
    facts |= {"concentration": concentration, "graph": repr(graph)}
    return finish(pd.DataFrame(found.lines), ("aggregated", "log_evidence"), facts, output_dir, verbose)
