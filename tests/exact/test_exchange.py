"""Networks exchanged with pgmpy and pyAgrum: the same tables, labels and answers on both sides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

from torchpbp import PBP, DiscreteNetwork, LatentGraph, templates
from torchpbp.errors import StructureError

NETWORKS = ["asia", "alarm", "child", "insurance", "sachs"]


@pytest.fixture(scope="module")
def pgmpy() -> Any:
    """pgmpy's models and tables in one place."""
    pytest.importorskip("pgmpy", reason='pip install -e ".[test]"')
    import pgmpy.factors.continuous
    import pgmpy.factors.discrete
    import pgmpy.inference
    import pgmpy.models

    return pgmpy


def example(name: str) -> Path:
    package = pytest.importorskip("pgmpy")
    path = Path(package.__file__).parent / "utils" / "example_models" / f"{name}.bif.gz"
    if not path.is_file():
        pytest.skip(f"this pgmpy has no {path.name}")
    return path


def sprinkler(pgmpy: Any, turned: bool = False) -> Any:
    """Labels of two kinds and a latent variable; ``turned``: a table lists its parents' states from the last to the first."""
    model = pgmpy.models.DiscreteBayesianNetwork([("cloud", "rain"), ("cloud", "hose"), ("hose", "grass")], {"cloud"})
    model.add_edge("rain", "grass")
    cpd = pgmpy.factors.discrete.TabularCPD
    dry, step = [0.05, 0.2, 0.1, 0.9], -1 if turned else 1
    names = {"grass": ["dry", "wet"], "rain": ["yes", "no"][::step], "hose": ["on", "off"][::step]}
    model.add_cpds(
        cpd("cloud", 2, [[0.7], [0.3]]),
        cpd("rain", 2, [[0.1, 0.8], [0.9, 0.2]], ["cloud"], [2], {"rain": ["yes", "no"], "cloud": [0, 1]}),
        cpd("hose", 2, [[0.6, 0.1], [0.4, 0.9]], ["cloud"], [2], {"hose": ["on", "off"], "cloud": [0, 1]}),
        cpd("grass", 2, [dry[::step], [1 - p for p in dry[::step]]], ["rain", "hose"], [2, 2], names),
    )
    return model


def test_a_bayesian_network_of_pgmpy(pgmpy: Any) -> None:
    model = sprinkler(pgmpy)
    network = DiscreteNetwork.from_pgmpy(model)
    assert network.graph.latent == ("cloud",)
    assert network.graph.variables == {"cloud": 2, "rain": 2, "hose": 2, "grass": 2}
    assert set(network.graph.edges) == set(model.edges())
    assert network.labels == {"rain": ("yes", "no"), "hose": ("on", "off"), "grass": ("dry", "wet")}
    theirs = pgmpy.inference.VariableElimination(model)
    for evidence in ({"grass": "wet"}, {"grass": "dry", "hose": "on"}, {"rain": "no"}):
        for query in {"cloud", "rain", "hose", "grass"} - set(evidence):
            answer = theirs.query([query], evidence=evidence, show_progress=False)
            mine = network.posterior(query, pd.DataFrame({v: [x] for v, x in evidence.items()}))
            for label in mine.columns:
                assert mine[label].iloc[0] == pytest.approx(answer.get_value(**{query: label}), abs=1e-12)
    turned = DiscreteNetwork.from_pgmpy(sprinkler(pgmpy, turned=True))
    assert turned.labels == network.labels
    assert all(torch.allclose(turned.cpts[v], table) for v, table in network.cpts.items())
    assert LatentGraph.from_pgmpy(model) == network.graph
    assert LatentGraph.from_pgmpy(model, latent=["rain"]).latent == ("rain",)


def test_there_and_back(pgmpy: Any) -> None:
    network = DiscreteNetwork.random(templates.diamond(observed_states=3), seed=4)
    network.labels = {"a1": ("low", "mid", "high")}
    model = network.to_pgmpy()
    assert model.latents == set(network.graph.latent)
    again = DiscreteNetwork.from_pgmpy(model)
    assert again.labels == network.labels
    for v, table in network.cpts.items():
        parents = again.graph.parents(v)
        order = [network.graph.parents(v).index(p) for p in parents]
        assert torch.allclose(again.cpts[v], table.permute(*order, len(order)), atol=1e-12)
    assert again.to_pgmpy() == model


def test_markov_networks(pgmpy: Any) -> None:
    graph = LatentGraph(
        [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")], dict.fromkeys("abcd", 2), ["c"], directed=False
    )
    network = DiscreteNetwork.random(graph, seed=2)
    network.labels = {"d": ("no", "yes")}
    model = network.to_pgmpy()
    assert len(model.factors) == 8  # one per edge and variable; tables of ones are left out
    again = DiscreteNetwork.from_pgmpy(model)
    assert not again.graph.directed
    assert set(again.graph.latent) == {"c"}
    assert again.labels == network.labels
    for query in "abc":
        assert torch.allclose(
            again.posterior(query, {"d": ["no", "yes"]}), network.posterior(query, {"d": ["no", "yes"]})
        )
    model.add_factors(model.factors[0])  # a second one of the same variables is multiplied in
    once, twice = (DiscreteNetwork.from_pgmpy(m).joint(tuple("abcd")) for m in (network.to_pgmpy(), model))
    scope = model.factors[0].variables
    shape = [2 if v in scope else 1 for v in "abcd"]
    values = np.transpose(model.factors[0].values, np.argsort(scope)) if len(scope) > 1 else model.factors[0].values
    squared = once * torch.from_numpy(values.copy()).reshape(shape)
    assert torch.allclose(twice, squared / squared.sum())


def test_structures_without_tables(pgmpy: Any) -> None:
    bare = pgmpy.models.DiscreteBayesianNetwork([("h", "x"), ("h", "y"), ("h", "z")], {"h"})
    with pytest.raises(
        StructureError,
        match=r"numbers of states of \['x', 'y', 'z'\] are missing: .* Add CPDs or factors, or pass variables=",
    ):
        LatentGraph.from_pgmpy(bare)
    graph = LatentGraph.from_pgmpy(bare, {"x": 3, "y": 3, "z": 3})
    assert graph.variables == {"h": None, "x": 3, "y": 3, "z": 3}
    truth = DiscreteNetwork.random(graph.with_states({"h": 2}), seed=1)
    assert PBP(graph, rank=2).fit(truth.sample(200, seed=0)).posterior("x", {"y": [0]}).shape == (1, 3)
    with pytest.raises(StructureError, match=r"\['w'\] are not in the pgmpy model"):
        LatentGraph.from_pgmpy(bare, {"x": 3, "y": 3, "z": 3, "w": 2})
    with pytest.raises(StructureError, match=r"no CPDs of \['h', 'x', 'y', 'z'\]"):
        DiscreteNetwork.from_pgmpy(bare)


def test_invalid_models_raise(pgmpy: Any) -> None:
    with pytest.raises(StructureError, match=r"got DiGraph\. For a plain networkx graph use LatentGraph"):
        LatentGraph.from_pgmpy(nx.DiGraph([("a", "b")]))
    with pytest.raises(StructureError, match="Expected a networkx Graph or DiGraph, got dict"):
        LatentGraph.from_networkx({"a": ["b"]})
    with pytest.raises(StructureError, match=r"variables \[1, 2\] whose names are not strings"):
        LatentGraph.from_pgmpy(pgmpy.models.DiscreteBayesianNetwork([(1, 2)]))
    gaussian = pgmpy.models.LinearGaussianBayesianNetwork([("a", "b")])
    linear = pgmpy.factors.continuous.LinearGaussianCPD
    gaussian.add_cpds(linear("a", [0.0], 1.0), linear("b", [0.0, 1.0], 1.0, ["a"]))
    with pytest.raises(StructureError, match="holds a LinearGaussianCPD: expected tables over discrete states"):
        LatentGraph.from_pgmpy(gaussian)
    cpd = pgmpy.factors.discrete.TabularCPD
    model = pgmpy.models.DiscreteBayesianNetwork([("a", "b")])
    model.add_cpds(cpd("a", 2, [[0.5], [0.5]], state_names={"a": ["x", "y"]}))
    model.add_cpds(cpd("b", 2, [[0.5, 0.5], [0.5, 0.5]], ["a"], [2], {"a": ["x", "z"], "b": [0, 1]}))
    with pytest.raises(StructureError, match=r"give 'a' the states \['x', 'z'\] and \['x', 'y'\]"):
        LatentGraph.from_pgmpy(model)


@pytest.mark.slow
def test_pgmpy_is_loaded_only_to_make_its_models() -> None:
    code = (
        "import sys; sys.modules['pgmpy'] = None\n"
        "from torchpbp import DiscreteNetwork, templates\n"
        "network = DiscreteNetwork.random(templates.naive_bayes(2), 0)\n"
        "try:\n    network.to_pgmpy()\nexcept ValueError as error:\n    print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pgmpy, which is not installed. Run: pip install pgmpy." in result.stdout


@pytest.mark.parametrize("name", NETWORKS)
def test_published_networks_by_way_of_pgmpy(name: str, tmp_path: Path) -> None:
    """File -> torchpbp -> pgmpy -> torchpbp -> file -> torchpbp changes nothing."""
    first = DiscreteNetwork.from_bif(example(name))
    second = DiscreteNetwork.from_pgmpy(first.to_pgmpy())
    second.to_bif(tmp_path / "again.bif")
    third = DiscreteNetwork.from_bif(tmp_path / "again.bif")
    for other in (second, third):
        assert other.labels == first.labels
        assert set(other.graph.edges) == set(first.graph.edges)
        for v, table in first.cpts.items():
            order = [first.graph.parents(v).index(p) for p in other.graph.parents(v)]
            assert torch.allclose(other.cpts[v], table.permute(*order, len(order)), atol=1e-12), v


@pytest.mark.parametrize("name", ["asia", "alarm", "insurance"])
def test_published_networks_answer_like_pyagrum(name: str, tmp_path: Path) -> None:
    gum = pytest.importorskip("pyagrum", reason='pip install -e ".[benchmarks]"')
    network = DiscreteNetwork.from_bif(example(name))
    network.to_bif(tmp_path / f"{name}.bif")
    theirs = gum.loadBN(str(tmp_path / f"{name}.bif"))
    assert {theirs.variable(i).name(): tuple(theirs.variable(i).labels()) for i in theirs.nodes()} == network.labels
    rows = network.sample_frame(3, seed=7, include_latent=True)
    seen = list(network.graph.names)[::3]
    answers = network.posteriors(rows[seen])
    for row in range(len(rows)):
        engine = gum.LazyPropagation(theirs)
        engine.setEvidence({v: str(rows[v].iloc[row]) for v in seen})
        engine.makeInference()
        for v in set(network.graph.names) - set(seen):
            table = engine.posterior(v).toarray()
            order = [theirs.variable(v).labels().index(label) for label in network.labels[v]]
            assert np.allclose(answers[v].iloc[row], table[order], atol=1e-6), (v, row)
