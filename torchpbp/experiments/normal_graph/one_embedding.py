"""Four learning rules on one hidden variable with three observables [NG 7.1]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.grid import Run
from torchpbp.experiments.normal_graph.comparison import compare_rules
from torchpbp.experiments.normal_graph.pictures import coefficients_picture, courses_picture, scatter_picture
from torchpbp.experiments.normal_graph.rules import Case, MakeModel, learn_cases
from torchpbp.experiments.results import Result
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.settings import whole

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


def ng_one_embedding(
    model: MakeModel,
    run: Run,
    rows: int = 400,
    mismatched: Sequence[int] = (2, 7),
    split_rows: int = 300,
    generalised: Sequence[int] = (4, 9),
    swept_iterations: Sequence[int] = (1, 3, 10),
    starts: int = 10,
    repeats: int = 20,
) -> Result:
    """Log-likelihood reached by each rule, with as many hidden states as the truth, with fewer or more, and on new rows.

    Each repeat draws rows from the paper's network and one start, the same for all rules.

    Args:
        model: makes a learner of normal graphs.
        run: the run.
        rows: of experiments 1 (four hidden states) and 2.
        mismatched: numbers of hidden states of experiment 2.
        split_rows: of experiment 3; the first half are training rows, the second test rows.
        generalised: numbers of hidden states of experiment 3.
        swept_iterations: numbers of inner iterations compared on the rows of the first repeat.
        starts: random starts for each of those numbers.
        repeats: draws of rows and starts.

    Returns:
        Metrics of :func:`~torchpbp.experiments.normal_graph.comparison.compare_rules`. Cases are "matched_4",
        "mismatched_<states>", "split_<states>" and "inner_iterations_<number>"; measures "aggregated" [NG eq. 28] and
        "log_evidence", and for test rows "test_…", all of them sums over rows.
    """
    for name, value, least in (
        ("rows", rows, 1),
        ("split_rows", split_rows, 2),
        ("starts", starts, 1),
        ("repeats", repeats, 1),
    ):
        whole(least).check(f"task.{name}", value)
    truth = embedding_network()
    seeds = [run.seeds(repeat, 2) for repeat in range(repeats)]  # of the rows, and the start
    samples = {n: [truth.sample(n, seed=drawn) for drawn, _ in seeds] for n in (rows, split_rows)}

    def case(name: str, states: int, size: int, **more: Any) -> Case:
        start_seeds = [start for _, start in seeds]
        return Case(name, embedding_graph(states), samples[size], start_seeds, [truth] * repeats, **more)

    first_half = (torch.arange(split_rows) < split_rows // 2).double()
    cases = [case("matched_4", 4, rows, history=True)]
    cases += [case(f"mismatched_{k}", k, rows) for k in mismatched]
    cases += [case(f"split_{k}", k, split_rows, mask=first_half) for k in generalised]
    first = [samples[rows][0]] * starts
    swept = {
        n: Case(
            f"inner_iterations_{n}",
            truth.graph,
            first,
            run.seeds(0, starts),
            rules=SWEPT,
            options={"inner_iterations": n},
        )
        for n in swept_iterations
    }
    learned = learn_cases("one embedding", model, [*cases, *swept.values()], run)
    courses = {c.name: learned[c.name].courses for c in cases}
    reached = {n: [float(values[-1]) for values in learned[c.name].courses["ml"]] for n, c in swept.items()}
    tables = {v: np.asarray(t.flatten().numpy()) for v, t in truth.cpts.items()}
    pictures = {
        "log_likelihood": courses_picture(courses, "epochs", "aggregated log-likelihood"),
        "inner_iterations": scatter_picture(reached, "inner iterations (ML)", "aggregated log-likelihood"),
        "coefficients": coefficients_picture(learned["matched_4"].coefficients, tables),
    }
    lines = [line for results in learned.values() for line in results.lines]
    measures = ("log_evidence", "aggregated", "test_log_evidence", "test_aggregated")
    return compare_rules(lines, measures, ("log_evidence", "matched_4"), pictures)
