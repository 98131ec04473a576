"""Networks of any shape and kind through the whole pipeline.

``HYPOTHESIS_PROFILE=explore pytest -n 0 tests/robustness/test_pipeline.py`` looks at more of them, and at others each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.robustness.networks import KINDS, graphs, make_network
from tests.robustness.pipeline import check_learner, run_case
from torchpbp import (
    EM,
    PBP,
    DiscreteNetwork,
    KernelRidge,
    LatentGraph,
    NormalGraphLearner,
    SpectralJunctionTree,
    templates,
)
from torchpbp.errors import StructureError

EDGES = [("v1", "v4"), ("v4", "v5"), ("v1", "v6"), ("v2", "v7"), ("v5", "v8"), ("v9", "v10"), ("v4", "v11")]
STATES = dict(zip([f"v{i}" for i in range(12)], [2, 2, 3, 3, 4, 2, 3, 1, 4, 2, 1, 3], strict=True))
INDEPENDENT = LatentGraph(EDGES, STATES, ["v0", "v3", "v5", "v7", "v9", "v10", "v11"], directed=False)


@given(graphs(), st.sampled_from(KINDS), st.integers(0, 2**32 - 1))
def test_populations(graph: LatentGraph, kind: str, seed: int) -> None:
    run_case(graph, kind, seed, 0)


@settings(max_examples=settings.default.max_examples // 2)
@given(graphs(), st.sampled_from(KINDS), st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 30, 500]))
def test_samples(graph: LatentGraph, kind: str, seed: int, rows: int) -> None:
    run_case(graph, kind, seed, rows)


LEARNERS: dict[str, Callable[[LatentGraph], Any]] = {
    "kernel": partial(PBP, regressor=KernelRidge(landmarks=10)),
    "spectral": SpectralJunctionTree,
    "em": partial(EM, max_steps=2, restarts=1),
    "normal graph": partial(NormalGraphLearner, epochs=1, restarts=1),
}


@settings(max_examples=settings.default.max_examples // 2)
@given(graphs(), st.sampled_from(KINDS), st.integers(0, 2**32 - 1), st.sampled_from([1, 50]))
def test_other_learners(graph: LatentGraph, kind: str, seed: int, rows: int) -> None:
    try:
        network = make_network(graph, kind, seed)
    except StructureError:
        return
    for make in LEARNERS.values():
        check_learner(make, network, rows, seed)


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_takes_an_ordinary_network(name: str) -> None:
    network = make_network(templates.naive_bayes(4, 2, 3), "smooth", 0)
    assert check_learner(LEARNERS[name], network, 50, 0)


def test_variables_that_are_all_independent_leave_nothing_but_rounding_to_learn_from() -> None:
    run_case(INDEPENDENT, "uniform", 0, 0)


def test_smooth_networks_are_held_to_exactness() -> None:
    """The comparison with the truth is not skipped for ordinary networks."""
    cases = [templates.diamond(2, 3, 2), templates.hmm(5, 2, 3), templates.naive_bayes(4, 2, 3), templates.grid(2, 3)]
    seen = sum((run_case(graph, "smooth", 5, 0) for graph in cases), Counter())
    assert seen["held to exactness"] >= 3


@pytest.mark.slow
def test_a_chain_of_a_thousand_sites() -> None:
    """Messages neither underflow nor grow over a thousand steps, and evidence at one end is heard nearby only."""
    graph = templates.hmm(1000, 2, 3)
    network = DiscreteNetwork.random(graph, seed=3)
    model = PBP(graph).fit_population(network)
    rows = network.sample(3, seed=4)
    with torch.no_grad():
        learned, exact = model.log_evidence(rows), network.log_evidence(rows)
        assert torch.allclose(learned, exact, rtol=1e-8)
        assert (exact < -600).all()  # far below the smallest number there is, as a probability
        middle = graph.observed[500]
        rest = {v: x for v, x in rows.items() if v != middle}
        assert torch.allclose(model.posterior(middle, rest), network.posterior(middle, rest), atol=1e-8)
        drawn = model.sample(2, seed=0)
    assert all(((x >= 0) & (x < 3)).all() for x in drawn.values())
