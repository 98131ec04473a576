"""Continuous variables with a shape: what is accepted, what files hold, and who can take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from torchpbp import (
    EM,
    PBP,
    Continuous,
    DiscreteNetwork,
    GenerativeClassifier,
    KernelPBP,
    LatentGraph,
    NormalGraphLearner,
    OnlineEM,
    SpectralJunctionTree,
)
from torchpbp.errors import ArgumentError, StructureError
from torchpbp.features import complete_table
from torchpbp.graph.domains import require_encoders

IMAGE = Continuous(low=0.0, high=1.0, shape=(1, 16, 8))
GRAPH = LatentGraph(
    [("h", "picture"), ("h", "pen"), ("h", "digit")],
    {"h": 2, "picture": IMAGE, "pen": Continuous(shape=(2,)), "digit": 10},
    latent=["h"],
)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), ()),
        ((2,), (2,)),
        ([1, 16, 8], (1, 16, 8)),
        (torch.Size([3, 4]), (3, 4)),
        (np.array([5, 6]), (5, 6)),
        ((np.int64(7),), (7,)),
    ],
)
def test_shapes_become_tuples_of_ints(shape: Any, expected: tuple[int, ...]) -> None:
    variable = Continuous(shape=shape)
    assert variable.shape == expected
    assert all(type(n) is int for n in variable.shape)
    assert hash(variable) == hash(Continuous(shape=expected))


@pytest.mark.parametrize(
    "shape", [3, None, "2", (0,), (-1, 2), (2.0,), (True,), ((2,),), {2: 1}, (2**64,), (2**40, 2**40)]
)
def test_other_shapes_raise(shape: Any) -> None:
    with pytest.raises(ArgumentError, match="Continuous: shape: expected"):
        Continuous(shape=shape)


def test_a_graph_is_written_with_its_shapes() -> None:
    saved = GRAPH.to_dict()
    assert saved["variables"][1] == ["picture", ["continuous", 0.0, 1.0, [1, 16, 8]]]
    again = LatentGraph.from_dict(saved)
    assert again == GRAPH
    assert again.variables["picture"] == IMAGE
    other = GRAPH.with_states({"picture": Continuous(0.0, 1.0, (1, 8, 16))})
    assert other != GRAPH


def test_a_graph_is_written_with_its_ranges() -> None:
    plain = LatentGraph([("h", "x")], {"h": 2, "x": Continuous(low=0.0)}, latent=["h"])
    assert plain.to_dict()["variables"] == [["h", 2], ["x", ["continuous", 0.0, None, []]]]
    assert LatentGraph.from_dict(plain.to_dict()).variables["x"] == Continuous(low=0.0)


def test_shapes_are_printed() -> None:
    assert "3 observed (1 of shape (1, 16, 8), 1 of shape (2,))" in repr(GRAPH)
    assert "shape=(1, 16, 8)" in repr(IMAGE)
    assert "shape" not in repr(LatentGraph([], {"x": Continuous()}))


LEARNERS: dict[str, Callable[[LatentGraph], Any]] = {
    "KernelPBP": KernelPBP,
    "EM": EM,
    "OnlineEM": OnlineEM,
    "SpectralJunctionTree": SpectralJunctionTree,
    "NormalGraphLearner": NormalGraphLearner,
    "DiscreteNetwork": lambda graph: DiscreteNetwork(graph, {}),
    "DiscreteNetwork.random": DiscreteNetwork.random,
    "GenerativeClassifier": lambda graph: GenerativeClassifier(graph, KernelPBP).fit(np.zeros((4, 3)), [0, 0, 1, 1]),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_who_takes_no_shapes_points_to_encoders(name: str) -> None:
    with pytest.raises(StructureError, match=r"'picture' of shape \(1, 16, 8\).*PBP\(graph, features=encoder\)"):
        LEARNERS[name](GRAPH)


def test_factors_and_completion_take_no_shapes() -> None:
    undirected = LatentGraph([("pen", "x")], {"pen": Continuous(shape=(2,)), "x": 2}, directed=False)
    with pytest.raises(StructureError, match="from_factors: expected variables without a shape"):
        DiscreteNetwork.from_factors(undirected, {})
    with pytest.raises(StructureError, match="complete_table: expected variables without a shape"):
        complete_table({"pen": torch.zeros(3, 2), "x": torch.zeros(3)}, undirected.variables)


def test_a_model_without_an_encoder_says_what_is_missing() -> None:
    with pytest.raises(StructureError, match=r"PBP: 'picture' of shape \(1, 16, 8\), 'pen'.*without an encoder"):
        PBP(GRAPH)


def test_encoders_are_required_of_each_shape() -> None:
    require_encoders(GRAPH.variables, "PBP", encoded={"picture", "pen"})
    require_encoders({"x": 2, "y": Continuous()}, "PBP")
    with pytest.raises(StructureError, match=r"PBP: 'pen' of shape \(2,\) without an encoder"):
        require_encoders(GRAPH.variables, "PBP", encoded={"picture"})
