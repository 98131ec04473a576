"""Four learning rules on one hidden variable with three observables [NG 7.1]."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tqdm.auto import tqdm

from torchpbp.baselines.normal_graph import RULES
from torchpbp.errors import DataError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.normal_graph.comparison import finish
from torchpbp.experiments.normal_graph.plots import Floats, write_coefficients, write_courses, write_scatter
from torchpbp.experiments.normal_graph.rules import Line, MakeLearner, RuleExperiment, check_learner
from torchpbp.experiments.running.experiment import check_positive, seeds_of
from torchpbp.experiments.running.results import Metrics
from torchpbp.experiments.running.run_folder import Parts
from torchpbp.graph.latent_graph import LatentGraph

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


def run_ng_one_embedding(
    learner: MakeLearner,
    rows: int = 400,
    mismatched: Sequence[int] = (2, 7),
    split_rows: int = 300,
    generalised: Sequence[int] = (4, 9),
    epochs: int = 60,
    inner_iterations: int = 3,
    swept_iterations: Sequence[int] = (1, 3, 10),
    starts: int = 10,
    repeats: int = 20,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
) -> Metrics:
    """Log-likelihood reached by each rule, with as many hidden states as the truth, with fewer or more, and on new rows.

    Each repeat draws rows from the paper's network and one start, the same for all rules.

    Args:
        learner: makes a learner of normal graphs.
        rows: of experiments 1 (four hidden states) and 2.
        mismatched: numbers of hidden states of experiment 2.
        split_rows: of experiment 3; the first half is learned from, the second tested.
        generalised: numbers of hidden states of experiment 3.
        epochs: of each fit.
        inner_iterations: of ML and KL in each epoch.
        swept_iterations: numbers of inner iterations compared on the rows of the first repeat.
        starts: random starts for each of those numbers.
        repeats: draws of rows and starts.
        seed: of the draws.
        output_dir: folder for metrics.json, metrics.csv, log_likelihood.png (evolution), coefficients.png (first repeat)
            and inner_iterations.png. ``None``: no files.
        verbose: show a progress bar (stderr) and the results (stdout).

    Returns:
        See :func:`torchpbp.experiments.normal_graph.comparison.compare`. Cases are "matched_4", "mismatched_<states>", "split_<states>" and
        "inner_iterations_<number>"; measures "aggregated" [NG eq. 28] and "log_evidence", and for split rows "test_…".
    """
    check_learner(learner)
    check_positive(epochs=epochs, inner_iterations=inner_iterations, starts=starts, repeats=repeats, rows=rows)
    check_positive(mismatched=mismatched, generalised=generalised, swept_iterations=swept_iterations)
    if split_rows < 2:
        raise DataError(f"split_rows: expected at least 2, one to learn from and one to test, got {split_rows}.")
    truth = embedding_network()
    cases = [("matched", 4), *(("mismatched", k) for k in mismatched), *(("split", k) for k in generalised)]
    first_half = (torch.arange(split_rows) < split_rows // 2).double()
    lines: list[Line] = []
    evolution: dict[str, dict[str, Floats]] = {}
    coefficients: dict[str, dict[str, Floats]] = {}
    data_seeds, start_seeds = zip(*(seeds_of(seed, repeat, 2) for repeat in range(repeats)), strict=True)
    samples = {n: [truth.sample(n, seed=s) for s in data_seeds] for n in (rows, split_rows)}
    fits = len(cases) * len(RULES) + len(swept_iterations) * len(SWEPT)
    with tqdm(total=fits, desc="one embedding", unit="rule", disable=not verbose) as bar:
        rules = RuleExperiment(learner, Parts(output_dir), bar, epochs=epochs, inner_iterations=inner_iterations)
        for kind, states in cases:
            split, history = kind == "split", kind == "matched"
            case, mask, data = f"{kind}_{states}", first_half if split else None, samples[split_rows if split else rows]
            truths = [truth] * repeats
            found = rules.run(case, embedding_graph(states), data, start_seeds, truths, mask, history=history)
            lines += found.lines
            evolution[case] = found.courses
            coefficients |= found.coefficients
        swept: dict[int, list[float]] = {}
        for number in swept_iterations:
            first, seeds = [samples[rows][0]] * starts, seeds_of(seed, 0, starts)
            case, graph = f"inner_iterations_{number}", truth.graph
            found = rules.run(case, graph, first, seeds, rules=SWEPT, inner_iterations=number)
            lines += found.lines
            swept[number] = [float(line["aggregated"]) for line in found.lines if line["rule"] == "ml"]
    if output_dir is not None:
        folder = Path(output_dir)
        write_courses(folder / "log_likelihood.png", evolution, "epochs", "aggregated log-likelihood")
        write_scatter(folder / "inner_iterations.png", swept, "inner iterations (ML)", "aggregated log-likelihood")
        tables = {v: np.asarray(t.flatten().numpy()) for v, t in truth.cpts.items()}
        write_coefficients(folder / "coefficients.png", coefficients, tables)
    facts: Metrics = {"seed": seed, "epochs": epochs, "inner_iterations": inner_iterations, "rows": rows}
    facts |= {"split_rows": split_rows}
    measures = ("aggregated", "log_evidence", "test_aggregated", "test_log_evidence")
    return finish(pd.DataFrame(lines), measures, facts, output_dir, verbose)
