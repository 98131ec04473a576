"""Normal graphs and their messages, against exact inference."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.closeness import assert_same_up_to_rounding
from torchpbp import Continuous, DiscreteNetwork, LatentGraph, templates
from torchpbp.baselines.normal_graph import Block, Diverter, NormalGraph, convert, propagate, to_product
from torchpbp.baselines.normal_graph.conversion import tables_from_thetas, thetas_from_tables
from torchpbp.errors import ShapeError, StructureError
from torchpbp.inputs.evidence import read_evidence

GRAPHS = {
    "naive_bayes": templates.naive_bayes(4, states=3, observed_states=2),
    "hmm": templates.hmm(6, states=3, observed_states=4),
    "latent_tree": templates.latent_tree(depth=2, branching=2, states=2, observed_states=3, leaves=2),
    "two parents": templates.parity(leaves=2, observed_states=3),
    "three parents, observed ones among them": LatentGraph(
        [("a", "h"), ("b", "h"), ("c", "h"), ("h", "x"), ("h", "y"), ("x", "z")],
        {"a": 2, "b": 3, "c": 2, "h": 3, "x": 2, "y": 4, "z": 2},
        latent=["h", "b"],
    ),
    "names that branches would like to have": LatentGraph(
        [("h", "h(1)"), ("h", "1>h"), ("g", "1>h")], {"h": 2, "h(1)": 3, "1>h": 2, "g": 2}, latent=["h"]
    ),
    "forest with a lone variable and a childless latent": LatentGraph(
        [("h", "x"), ("h", "g"), ("u", "v")], {"h": 2, "x": 3, "g": 2, "u": 2, "v": 3, "w": 4}, latent=["h", "g"]
    ),
}


def with_missing_values(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each row its own pattern of observed variables."""
    n = len(next(iter(rows.values())))
    return {v: torch.where((torch.arange(n) // 2**i) % 2 == 0, x, -1) for i, (v, x) in enumerate(rows.items())}


def messages_of(network: DiscreteNetwork, evidence: dict[str, Tensor]):
    converted = convert(network.graph)
    read = read_evidence(evidence, {v: network.states[v] for v in network.graph.observed})
    weights = {converted.entry[v]: read.weights(v, network.states[v], torch.float64, "cpu") for v in evidence}
    return converted, propagate(converted.graph, thetas_from_tables(network.graph, network.cpts), weights, read.batch)


@pytest.mark.parametrize("name", GRAPHS)
def test_posteriors_and_evidence_equal_exact_inference(name: str) -> None:
    network = DiscreteNetwork.random(GRAPHS[name], seed=1)
    evidence = with_missing_values(network.sample(64, seed=2))
    converted, messages = messages_of(network, evidence)
    torch.testing.assert_close(messages.log_evidence(), network.log_evidence(evidence), rtol=0, atol=1e-10)
    expected = network.posteriors(evidence, include_latent=True)
    assert set(network.graph.latent) <= set(expected)
    for v, posterior in expected.items():
        torch.testing.assert_close(messages.posterior(converted.branch[v]), posterior, rtol=0, atol=1e-10)


@st.composite
def polytrees(draw: st.DrawFn) -> LatentGraph:
    """Random trees with random arrows, so that some variables have several parents."""
    size = draw(st.integers(2, 7))
    edges = []
    for i in range(1, size):
        other = draw(st.integers(0, i - 1))
        edges.append((f"v{i}", f"v{other}") if draw(st.booleans()) else (f"v{other}", f"v{i}"))
    states = {f"v{i}": draw(st.integers(1, 3)) for i in range(size)}
    latent = [v for v in list(states)[1:] if draw(st.booleans())]
    return LatentGraph(edges, states, latent)


@given(polytrees(), st.integers(0, 1000))
def test_random_trees_with_soft_evidence(graph: LatentGraph, seed: int) -> None:
    network = DiscreteNetwork.random(graph, seed=seed)
    g = torch.Generator().manual_seed(seed)
    soft = {v: torch.rand(3, graph.num_states(v), generator=g, dtype=torch.float64) + 0.01 for v in graph.observed}
    converted, messages = messages_of(network, soft)
    torch.testing.assert_close(messages.log_evidence(), network.log_evidence(soft), rtol=0, atol=1e-10)
    for v, posterior in network.posteriors(soft, include_latent=True).items():
        torch.testing.assert_close(messages.posterior(converted.branch[v]), posterior, rtol=0, atol=1e-10)


def test_agreement_at_an_observed_branch_is_its_probability_given_the_others() -> None:
    network = DiscreteNetwork.random(GRAPHS["naive_bayes"], seed=3)
    rows = network.sample(20, seed=4)
    converted, messages = messages_of(network, rows)
    for v in rows:
        others = {u: x for u, x in rows.items() if u != v}
        expected = network.posterior(v, others).gather(1, rows[v][:, None])[:, 0].log()
        torch.testing.assert_close(messages.agreement(converted.entry[v]), expected)


def test_the_evidence_can_be_read_off_any_branch() -> None:
    network = DiscreteNetwork.random(GRAPHS["two parents"], seed=5)
    rows = network.sample(10, seed=6)
    converted, messages = messages_of(network, rows)
    expected = network.log_evidence(rows) + converted.graph.log_constant
    for branch in converted.graph.states:
        scales = messages.log_scale[branch, "forward"] + messages.log_scale[branch, "backward"]
        torch.testing.assert_close(scales + messages.agreement(branch), expected)


def test_several_starts_in_one_batch() -> None:
    graph = GRAPHS["two parents"]
    networks = [DiscreteNetwork.random(graph, seed=s) for s in range(3)]
    rows = networks[0].sample(12, seed=1)
    converted, _ = messages_of(networks[0], rows)
    single = [thetas_from_tables(graph, n.cpts) for n in networks]
    thetas = {v: torch.stack([s[v] for s in single]) for v in single[0]}
    weights = {converted.entry[v]: torch.eye(graph.num_states(v)).double()[x] for v, x in rows.items()}
    together = propagate(converted.graph, thetas, weights, 12, (3,)).log_evidence()
    torch.testing.assert_close(together, torch.stack([n.log_evidence(rows) for n in networks]))


def test_splitting_a_branch_lets_information_in_and_out() -> None:
    network = DiscreteNetwork.random(templates.hmm(3, states=3, observed_states=2), seed=7)
    converted, messages = messages_of(network, network.sample(5, seed=1))
    split = converted.graph.split("h2", "tap")
    thetas = thetas_from_tables(network.graph, network.cpts)
    rows = network.sample(5, seed=1)
    weights = {converted.entry[v]: torch.eye(2).double()[x] for v, x in rows.items()}
    # Without information at the tap nothing changes; what flows out of it is the posterior.
    listened = propagate(split, thetas, weights, 5)
    torch.testing.assert_close(listened.log_evidence(), messages.log_evidence())
    torch.testing.assert_close(listened.value["tap", "forward"], messages.posterior("h2"))
    # A state injected there is evidence on the hidden variable, and cuts the flow: the past says nothing about the future.
    state = torch.tensor([0, 1, 2, 0, 1])
    injected = propagate(split, thetas, {**weights, "tap": torch.eye(3).double()[state]}, 5)
    exact = network.posterior("h3", {**rows, "h2": state})
    torch.testing.assert_close(injected.posterior("h3"), exact)
    other_past = {**weights, converted.entry["x1"]: torch.eye(2).double()[1 - rows["x1"]]}
    changed = propagate(split, thetas, {**other_past, "tap": torch.eye(3).double()[state]}, 5)
    torch.testing.assert_close(changed.value["h2'", "forward"], injected.value["h2'", "forward"])
    # Weights at the tap are soft evidence.
    soft = torch.rand(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    softly = propagate(split, thetas, {**weights, "tap": soft}, 5)
    torch.testing.assert_close(softly.posterior("h1"), network.posterior("h1", {**rows, "h2": soft}))


def test_splitting_a_branch_that_leads_into_a_block() -> None:
    network = DiscreteNetwork.random(templates.hmm(3, states=3, observed_states=2), seed=7)
    split = convert(network.graph).graph.split("h3", "tap")  # x3 is all that h3 leads to
    assert split.blocks["x3"].input == "h3'"
    state = torch.tensor([0, 1, 2])
    tap = {"tap": torch.eye(3).double()[state]}
    messages = propagate(split, thetas_from_tables(network.graph, network.cpts), tap, 3)
    for v in ("x3", "h1"):
        torch.testing.assert_close(messages.posterior(v), network.posterior(v, {"h3": state}))
    twice = split.split("h3", "h3''")  # names of halves are free ones
    assert {"h3", "h3'", "h3''", "h3'''"} <= set(twice.states)


def test_splitting_a_terminal_and_a_branch_in_front_of_a_diverter() -> None:
    network = DiscreteNetwork.random(GRAPHS["naive_bayes"], seed=8)
    converted = convert(network.graph)
    thetas = thetas_from_tables(network.graph, network.cpts)
    graph = converted.graph.split("x1", "again").split("h", "at h")
    x = torch.eye(2).double()
    messages = propagate(graph, thetas, {"again": x, "at h": torch.ones(2, 3).double()}, 2)
    exact = network.posterior("x2", {"x1": torch.tensor([0, 1])})
    torch.testing.assert_close(messages.posterior("x2"), exact)


def test_impossible_evidence_has_no_probability_but_harms_no_other_row() -> None:
    graph = LatentGraph([("h", "x"), ("h", "y")], {"h": 2, "x": 2, "y": 2}, latent=["h"])
    network = DiscreteNetwork(graph, {"h": [1.0, 0.0], "x": [[1.0, 0.0], [0.0, 1.0]], "y": [[0.5, 0.5], [0.1, 0.9]]})
    rows = {"x": torch.tensor([0, 1, 0]), "y": torch.tensor([0, 0, 1])}
    _, messages = messages_of(network, rows)
    logs = messages.log_evidence()
    assert logs[1] == -math.inf
    torch.testing.assert_close(logs[[0, 2]], torch.tensor([0.5, 0.5], dtype=torch.float64).log())
    assert_same_up_to_rounding(messages.posterior("h").tolist(), [[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])


def test_a_long_chain_and_a_wide_star_do_not_underflow() -> None:
    for graph in (templates.hmm(300, states=2, observed_states=3), templates.naive_bayes(1200, 2, 4)):
        network = DiscreteNetwork.random(graph, seed=9)
        rows = network.sample(2, seed=1)
        _, messages = messages_of(network, rows)
        torch.testing.assert_close(messages.log_evidence(), network.log_evidence(rows), rtol=1e-9, atol=0)


def test_tables_become_matrices_and_back() -> None:
    network = DiscreteNetwork.random(GRAPHS["three parents, observed ones among them"], seed=1)
    thetas = thetas_from_tables(network.graph, network.cpts)
    assert thetas["h"].shape == (12, 3)
    assert thetas["a"].shape == (1, 2)
    for v, table in tables_from_thetas(network.graph, thetas).items():
        assert torch.equal(table, network.cpts[v])


def test_a_graph_written_by_hand() -> None:
    """Two sources, their product space, and a block: P(z | x, y)."""
    up = to_product([2, 3])
    blocks = [
        Block("x", "1x", "x"),
        Block("y", "1y", "y"),
        Block("xy1", "x", "xy(1)", fixed=up[0]),
        Block("xy2", "y", "xy(2)", fixed=up[1]),
        Block("z", "xy", "z"),
    ]
    states = {"1x": 1, "1y": 1, "x": 2, "y": 3, "xy(1)": 6, "xy(2)": 6, "xy": 6, "z": 2}
    graph = NormalGraph(states, blocks, [Diverter(("xy(1)", "xy(2)"), ("xy",))])
    assert graph.learnable == {"x": (1, 2), "y": (1, 3), "z": (6, 2)}
    g = torch.Generator().manual_seed(1)
    thetas = {n: torch.rand(*shape, generator=g, dtype=torch.float64) for n, shape in graph.learnable.items()}
    thetas = {n: t / t.sum(dim=1, keepdim=True) for n, t in thetas.items()}
    joint = torch.outer(thetas["x"][0], thetas["y"][0])[:, :, None] * thetas["z"].reshape(2, 3, 2)
    messages = propagate(graph, thetas, {"z": torch.eye(2).double()}, 2)
    expected = (joint.sum(dim=1) / joint.sum(dim=(0, 1))).T  # P(x | z)
    torch.testing.assert_close(messages.posterior("x"), expected)


def test_structures_that_cannot_be_taken() -> None:
    with pytest.raises(StructureError, match="a loop through A, B, C, D; messages are exact without loops only"):
        convert(templates.diamond())
    with pytest.raises(StructureError, match="expected a directed graph"):
        convert(templates.grid(1, 2))
    with pytest.raises(StructureError, match=r"got continuous \['x'\] and unknown \[\]"):
        convert(LatentGraph([("h", "x")], {"h": 2, "x": Continuous()}, ["h"]))
    with pytest.raises(StructureError, match=r"unknown \['h'\]"):
        convert(LatentGraph([("h", "x")], {"h": None, "x": 2}, ["h"]))


def test_bad_normal_graphs() -> None:
    with pytest.raises(StructureError, match="Unknown branch 'y'"):
        NormalGraph({"x": 2}, [Block("b", "x", "y")])
    with pytest.raises(StructureError, match="Branch 'x' leads to two nodes"):
        NormalGraph({"x": 2, "y": 2, "z": 2}, [Block("b", "x", "y"), Block("c", "x", "z")])
    with pytest.raises(StructureError, match="Two blocks are called 'b'"):
        NormalGraph({"x": 2, "y": 2, "z": 2}, [Block("b", "x", "y"), Block("b", "y", "z")])
    with pytest.raises(StructureError, match="one number of states, got"):
        NormalGraph({"x": 2, "y": 3}, [], [Diverter(("x",), ("y",))])
    with pytest.raises(StructureError, match=r"expected a matrix of shape \(2, 3\), got \(3, 2\)"):
        NormalGraph({"x": 2, "y": 3}, [Block("b", "x", "y", fixed=torch.ones(3, 2))])
    square = {"a": 2, "b": 2, "c": 2, "d": 2, "e": 2}
    with pytest.raises(StructureError, match="loop through branch"):
        NormalGraph(
            square,
            [Block("1", "b", "d"), Block("2", "c", "e")],
            [Diverter(("a",), ("b", "c")), Diverter(("d", "e"), ())],
        )
    graph = NormalGraph({"x": 2, "y": 2}, [Block("b", "x", "y")])
    with pytest.raises(StructureError, match="has a branch 'x' already"):
        graph.split("y", "x")
    with pytest.raises(StructureError, match="Unknown branch 'q'"):
        graph.split("q", "t")
    theta = {"b": torch.full((2, 2), 0.5, dtype=torch.float64)}
    with pytest.raises(ShapeError, match=r"branch 'x': expected \(…, 3, 2\), got \(3, 4\)"):
        propagate(graph, theta, {"x": torch.ones(3, 4)}, 3)
    inner = convert(templates.hmm(2))
    with pytest.raises(ShapeError, match=r"\['h1'\], which have no free end"):
        propagate(inner.graph, {}, {"h1": torch.ones(1, 3)}, 1)
