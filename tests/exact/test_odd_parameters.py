"""Tables and settings that no network can be made of raise clear errors; tables of odd sizes and kinds are taken."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.oracle import Oracle
from torchpbp import PBP, DiscreteNetwork, LatentGraph, SpectralJunctionTree, templates
from torchpbp.errors import ArgumentError, BudgetError, QueryError, ShapeError, StructureError

CHAIN = LatentGraph([("a", "b"), ("b", "c")], {"a": 2, "b": 3, "c": 2}, directed=False)
PLAIN = {("a", "b"): [[1.0, 2.0, 3.0], [2.0, 1.0, 1.0]], ("b", "c"): [[1.0, 4.0], [2.0, 2.0], [3.0, 1.0]]}


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e200, 1e307])
def test_the_size_of_a_factor_does_not_matter(size: float) -> None:
    """Two factors on one edge: their product alone would be 0 or infinite."""
    again = {("b", "a"): np.ones((3, 2))}
    plain = DiscreteNetwork.from_factors(CHAIN, {**PLAIN, **again})
    scaled = DiscreteNetwork.from_factors(CHAIN, {s: size * np.asarray(t) for s, t in {**PLAIN, **again}.items()})
    evidence = {"a": [0, 1, -1], "c": [1, -1, 0]}
    exact = Oracle.of(plain)
    rows = [{}, *({v: np.eye(CHAIN.num_states(v))[[s]]} for v, s in (("a", 1), ("c", 0)))]
    for v, expected in plain.posteriors(evidence).items():
        torch.testing.assert_close(scaled.posteriors(evidence)[v], expected)
    torch.testing.assert_close(scaled.log_evidence(evidence), plain.log_evidence(evidence))
    for weights in rows:
        given = {v: torch.from_numpy(w) for v, w in weights.items()}
        np.testing.assert_allclose(scaled.posterior("b", given), exact.posterior("b", weights))
    torch.testing.assert_close(scaled.joint(("a", "b", "c")), plain.joint(("a", "b", "c")))
    # The same uniform numbers draw the same states, unless one lies within rounding of where two states meet.
    drawn, expected = (torch.stack(list(n.sample(500, seed=1).values())) for n in (scaled, plain))
    assert (drawn == expected).double().mean() > 0.99


def test_scaling_a_factor_keeps_its_gradient() -> None:
    table = torch.tensor(PLAIN["a", "b"], dtype=torch.float64, requires_grad=True)

    def answer(t: torch.Tensor) -> torch.Tensor:
        return DiscreteNetwork.from_factors(CHAIN, {**PLAIN, ("a", "b"): 1e5 * t}).posterior("a", {"c": [0, 1]})

    assert torch.autograd.gradcheck(answer, (table,))


@pytest.mark.parametrize("size", [40, 70])  # more than memory can hold; more than a tensor can have dimensions
@pytest.mark.parametrize("make", [DiscreteNetwork.random, PBP, SpectralJunctionTree])
def test_graphs_whose_cliques_have_too_many_states_raise(make: Any, size: int) -> None:
    hidden = [f"h{i:02d}" for i in range(size)]
    edges = [*itertools.combinations(hidden, 2), *((h, f"x{h}") for h in hidden)]
    graph = LatentGraph(edges, dict.fromkeys([*hidden, *(f"x{h}" for h in hidden)], 2), hidden, directed=False)
    with pytest.raises(
        BudgetError,
        match=r"more than the budget of 4 GiB.* of the clique {h00, h01, .* variables\)}, has 1\.\d+e\+\d+ entries",
    ):
        make(graph)


def test_one_name_will_do_for_a_joint_table() -> None:
    network = DiscreteNetwork.random(templates.hmm(3), seed=0)
    assert torch.equal(network.joint("x2"), network.joint(["x2"]))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g: DiscreteNetwork("graph", {}), StructureError, "DiscreteNetwork: expected a LatentGraph, got str"),
        (lambda g: DiscreteNetwork.random(None), StructureError, "expected a LatentGraph, got NoneType"),
        (
            lambda g: DiscreteNetwork(g, None),
            StructureError,
            "cpts: expected a mapping of names to tables, got NoneType",
        ),
        (lambda g: DiscreteNetwork.from_factors(CHAIN, [1]), StructureError, "factors: expected a mapping .* got list"),
        (
            lambda g: DiscreteNetwork.random(g, -1),
            ArgumentError,
            "seed: expected a whole number of at least 0, got -1",
        ),
        (
            lambda g: DiscreteNetwork.random(g, 0.5),
            ArgumentError,
            "seed: expected a whole number of at least 0, got 0.5",
        ),
        (lambda g: DiscreteNetwork.random(g, 0, math.inf), ArgumentError, "concentration: expected a positive number"),
        (lambda g: DiscreteNetwork.random(g, 0, "1"), ArgumentError, "concentration: expected a positive number"),
        (lambda g: DiscreteNetwork.random(g).joint(5), QueryError, "Expected the name of a variable"),
        (lambda g: DiscreteNetwork.random(CHAIN).to_bif("net.bif"), StructureError, "to_bif: .* an undirected network"),
        (
            lambda g: DiscreteNetwork(LatentGraph([], {"x": 2}), {"x": torch.tensor([1 + 1j, 0])}),
            ShapeError,
            "CPT of 'x': expected numbers of shape .* got complex numbers",
        ),
    ],
)
def test_invalid_arguments_raise(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(templates.naive_bayes(3))
