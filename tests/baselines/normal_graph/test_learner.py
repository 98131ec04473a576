"""Learning whole normal graphs, and the interface of the learner."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.closeness import assert_same_up_to_rounding
from torchpbp import EM, DiscreteNetwork, LatentGraph, NormalGraphLearner, templates
from torchpbp.baselines.normal_graph import RULES
from torchpbp.baselines.normal_graph.block_learning import Start
from torchpbp.baselines.normal_graph.propagation import propagate
from torchpbp.errors import (
    ArgumentError,
    DataError,
    ShapeError,
    StructureError,
)

POLYTREE = LatentGraph(
    [("s", "y"), ("t", "y"), ("s", "x1"), ("y", "x2"), ("y", "x3"), ("t", "x4")],
    {"s": 2, "t": 2, "y": 3, "x1": 3, "x2": 4, "x3": 3, "x4": 2},
    latent=["s", "t", "y"],
)


def fitted(graph: LatentGraph, rows: int = 300, **options: object) -> tuple[NormalGraphLearner, dict[str, Tensor]]:
    data = DiscreteNetwork.random(graph, seed=3, concentration=0.5).sample(rows, seed=4)
    return NormalGraphLearner(graph, progress=False, **options).fit(data), data  # type: ignore[arg-type]


@pytest.mark.parametrize("graph", [templates.naive_bayes(4, 3, 3), templates.hmm(4, 2, 3), POLYTREE])
def test_messages_of_the_learned_matrices_give_the_answers_of_the_network(graph: LatentGraph) -> None:
    model, data = fitted(graph, epochs=5)
    evidence = {v: torch.where(torch.arange(300) % (i + 2) == 0, -1, x) for i, (v, x) in enumerate(data.items())}
    checked = model.read_evidence(evidence)
    normal = model.converted
    weights = {normal.entry[v]: checked.weights(v, graph.num_states(v), torch.float64, "cpu") for v in evidence}
    messages = propagate(normal.graph, model.thetas, weights, 300)  # type: ignore[arg-type]
    torch.testing.assert_close(messages.log_evidence(), model.log_evidence(evidence), rtol=0, atol=1e-10)
    expected = model.posteriors(evidence)
    assert set(expected) == set(graph.observed)
    for v, posterior in expected.items():
        torch.testing.assert_close(messages.posterior(normal.branch[v]), posterior, rtol=0, atol=1e-10)


@pytest.mark.parametrize("graph", [templates.naive_bayes(4, 3, 3), POLYTREE])
def test_ml_with_one_inner_iteration_is_expectation_maximisation(graph: LatentGraph) -> None:
    """From the tables of one epoch, both take the same next step."""
    data = DiscreteNetwork.random(graph, seed=5).sample(200, seed=6)
    options = {"start": "parameters", "inner_iterations": 1, "delta": 0.0, "progress": False}
    one = NormalGraphLearner(graph, epochs=1, **options).fit(data)  # type: ignore[arg-type]
    two = NormalGraphLearner(graph, epochs=2, **options).fit(data)  # type: ignore[arg-type]
    for v, table in two.network.cpts.items():
        expected = torch.zeros_like(table)
        family = (*graph.parents(v), v)
        for states in itertools.product(*[range(graph.num_states(u)) for u in family]):
            joint = {u: torch.full((200,), s) for u, s in zip(family, states, strict=True)}
            clash = torch.zeros(200, dtype=torch.bool)
            for u in set(family) & set(data):
                clash |= data[u] != joint[u]
            with_states = one.network.log_evidence({**data, **joint}).masked_fill(clash, -torch.inf)
            expected[states] = (with_states - one.network.log_evidence(data)).exp().sum()
        torch.testing.assert_close(table, expected / expected.sum(dim=-1, keepdim=True), rtol=1e-8, atol=1e-8)


def test_with_one_inner_iteration_the_likelihood_never_falls() -> None:
    model, data = fitted(POLYTREE, epochs=60, inner_iterations=1, restarts=3, delta=0.0)
    for run in model.runs:
        assert all(b >= a - 1e-8 for a, b in itertools.pairwise(run.log_evidence))
        assert run.log_evidence[-1] > run.log_evidence[0] + 1
    assert float(model.log_evidence(data).sum()) == pytest.approx(model.runs[model.best].log_evidence[-1])
    em = EM(POLYTREE, restarts=3, prior=0.0, relative_tolerance=1e-6, progress=False).fit(data)
    reached = max(run.log_evidence[-1] for run in model.runs)
    assert reached == pytest.approx(float(em.log_evidence(data).sum()), rel=0.01)


@pytest.mark.parametrize("rule", RULES)
def test_without_hidden_variables_every_rule_counts(rule: str) -> None:
    graph = LatentGraph([("a", "b"), ("a", "c")], {"a": 2, "b": 3, "c": 2})
    data = DiscreteNetwork.random(graph, seed=1).sample(200, seed=2)
    model = NormalGraphLearner(graph, rule=rule, delta=0.0, epochs=2, progress=False).fit(data)
    for child, states in (("b", 3), ("c", 2)):
        counts = torch.zeros(2, states, dtype=torch.float64)
        counts.index_put_((data["a"], data[child]), torch.ones(200, dtype=torch.float64), accumulate=True)
        torch.testing.assert_close(model.thetas[child], counts / counts.sum(dim=1, keepdim=True))
    shares = torch.bincount(data["a"], minlength=2).double() / 200
    torch.testing.assert_close(model.thetas["a"][0], shares)


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule != "vit"]
)  # which counts one of equals: rounding decides
def test_uniform_matrices_are_a_fixed_point_that_random_starts_leave(rule: str) -> None:
    """The states of the hidden variable stay alike, so the observables stay independent.

    The fixed point is unstable: a difference by rounding grows fourfold in each epoch, and shows after some twenty of them.
    """
    graph = templates.naive_bayes(3, states=3, observed_states=3)
    faithful = 0.1 + 0.7 * torch.eye(3, dtype=torch.float64)  # observables that mostly show the hidden state
    data = DiscreteNetwork(graph, {"h": [1 / 3] * 3, **dict.fromkeys(graph.observed, faithful)}).sample(300, seed=1)

    def course(start: Start, epochs: int = 60) -> NormalGraphLearner:
        return NormalGraphLearner(graph, rule=rule, start=start, epochs=epochs, history=True, progress=False).fit(data)

    stuck = course("uniform", epochs=10)
    first = torch.stack(
        [t["x1"][0, 0] for t in stuck.trace.thetas]
    )  # (epochs, states): what the first hidden state shows
    torch.testing.assert_close(first, first[:1].expand_as(first), rtol=0, atol=1e-4)
    for v in graph.observed:
        torch.testing.assert_close(stuck.thetas[v], stuck.thetas[v][:1].expand(3, 3))
    shares = torch.bincount(data["x1"], minlength=3).double() / 300
    torch.testing.assert_close(stuck.thetas["x1"][0], shares, rtol=1e-3, atol=1e-4)
    independent = sum(float(p * p.log()) * 300 for v in data for p in torch.bincount(data[v]).double() / 300)
    assert stuck.runs[0].log_evidence[-1] == pytest.approx(independent, abs=0.1)
    starts: tuple[Start, ...] = ("messages", "parameters")
    for start in starts if rule in ("ml", "kl") else ():
        assert course(start).runs[0].log_evidence[-1] > independent + 50


def test_rows_outside_the_mask_are_measured_but_not_learned_from() -> None:
    graph = templates.naive_bayes(3, states=2, observed_states=3)
    data = DiscreteNetwork.random(graph, seed=1).sample(100, seed=2)
    mask = torch.arange(100) < 60
    other = {v: torch.where(mask, x, (x + 1) % 3) for v, x in data.items()}
    options = {"start": "parameters", "epochs": 8, "progress": False}
    a = NormalGraphLearner(graph, **options).fit(data, mask)  # type: ignore[arg-type]
    b = NormalGraphLearner(graph, **options).fit(other, mask)  # type: ignore[arg-type]
    alone = NormalGraphLearner(graph, **options).fit({v: x[:60] for v, x in data.items()})  # type: ignore[arg-type]
    for v in graph.names:
        torch.testing.assert_close(a.thetas[v], b.thetas[v])
        torch.testing.assert_close(a.thetas[v], alone.thetas[v])
    logs = a.log_evidence(data)
    assert a.runs[0].log_evidence[-1] == pytest.approx(float(logs[:60].sum()))
    assert a.runs[0].held_out_log_evidence[-1] == pytest.approx(float(logs[60:].sum()))
    assert alone.runs[0].held_out_log_evidence[-1] == 0.0
    total = 0.0
    for v in graph.observed:
        posterior = a.posterior(v, {u: x for u, x in data.items() if u != v})
        total += float(posterior.gather(1, data[v][:, None])[60:].log().sum())
    assert a.runs[0].held_out_aggregated[-1] == pytest.approx(total)


def test_rows_may_be_incomplete_or_soft() -> None:
    graph = templates.naive_bayes(4, states=2, observed_states=3)
    truth = DiscreteNetwork.random(graph, seed=1, concentration=0.5)
    data = truth.sample(3000, seed=2)
    hide = torch.rand(4, 3000, generator=torch.Generator().manual_seed(1)) < 0.2
    gaps = {v: torch.where(h, -1, x) for (v, x), h in zip(data.items(), hide, strict=True)}
    model = NormalGraphLearner(graph, restarts=4, progress=False).fit_evidence(gaps)
    question = {v: x[:100] for v, x in data.items() if v != "x1"}
    exact = truth.posterior("x1", question)
    divergence = (exact * (exact / model.posterior("x1", question)).log()).sum(dim=1).mean()
    blind = truth.posterior("x1").expand_as(exact)
    assert divergence < 0.1 * (exact * (exact / blind).log()).sum(dim=1).mean()
    # One-hot weights are states, uniform weights are no observation at all.
    soft = {v: torch.where(x[:, None] < 0, torch.ones(3), torch.eye(3)[x.clamp(min=0)]) for v, x in gaps.items()}
    again = NormalGraphLearner(graph, restarts=4, progress=False).fit_evidence(soft)
    for v in graph.names:
        torch.testing.assert_close(again.thetas[v], model.thetas[v])


def test_tables_may_have_missing_values() -> None:
    graph = templates.naive_bayes(3, states=2, observed_states=3)
    columns = {v: [0.0, 1.0, math.nan, 2.0, 1.0] for v in graph.observed} | {"x2": [None, 0, 2, 2, -1]}
    codes = {v: torch.tensor([0, 1, -1, 2, 1]) for v in graph.observed} | {"x2": torch.tensor([-1, 0, 2, 2, -1])}
    settings = {"epochs": 3, "progress": False}
    by_table = NormalGraphLearner(graph, **settings).fit(columns)
    by_evidence = NormalGraphLearner(graph, **settings).fit_evidence(codes)
    assert_same_up_to_rounding(by_table.thetas, by_evidence.thetas)
    with pytest.raises(DataError, match="Column 'x1': all 5 values are missing"):
        NormalGraphLearner(graph, **settings).fit({**columns, "x1": [None] * 5})


def test_starts_are_fixed_by_the_seed_and_do_not_depend_on_each_other() -> None:
    graph = templates.naive_bayes(3, states=3, observed_states=3)
    for start in ("messages", "parameters"):
        three, _ = fitted(graph, epochs=6, restarts=3, start=start)
        one, _ = fitted(graph, epochs=6, restarts=1, start=start)
        torch.testing.assert_close(
            torch.tensor(one.runs[0].log_evidence), torch.tensor(three.runs[0].log_evidence), rtol=1e-9, atol=0
        )
        ends = [run.log_evidence[-1] for run in three.runs]
        assert len(set(ends)) == 3
        assert three.best == ends.index(max(ends))
        again, _ = fitted(graph, epochs=6, restarts=3, start=start)
        assert all(torch.equal(again.thetas[v], three.thetas[v]) for v in graph.names)
        other, _ = fitted(graph, epochs=6, restarts=3, start=start, seed=1)
        assert other.runs[0].log_evidence != three.runs[0].log_evidence


def test_epochs_inner_iterations_and_history() -> None:
    graph = templates.naive_bayes(3, states=2, observed_states=3)
    long, _ = fitted(graph, epochs=6, history=True)
    short, _ = fitted(graph, epochs=4)
    assert len(long.runs[0].log_evidence) == len(long.trace.thetas) == 6
    assert short.trace.thetas == []
    for v in graph.names:
        torch.testing.assert_close(long.trace.thetas[3][v][0], short.thetas[v])
    more, _ = fitted(graph, epochs=4, inner_iterations=9)
    assert not torch.allclose(more.thetas["x1"], short.thetas["x1"])


def test_files_hold_the_rule_and_the_labels(tmp_path: Path) -> None:
    graph = templates.naive_bayes(3, states=2, observed_states=2)
    data = {v: ["no", "yes", "yes", "no", "yes"] * 20 for v in graph.observed}
    model = NormalGraphLearner(graph, rule="kl", progress=False).fit(data)
    expected = model.posterior("x1", {"x2": ["yes", None]})
    model.save(tmp_path / "graph.pt")
    loaded = NormalGraphLearner.load(tmp_path / "graph.pt")
    torch.testing.assert_close(loaded.posterior("x1", {"x2": ["yes", None]}), expected)
    assert loaded.rule.name == "kl"


def test_bad_input() -> None:
    graph = templates.naive_bayes(3, states=2, observed_states=2)
    with pytest.raises(StructureError, match="the graph has a loop"):
        NormalGraphLearner(templates.diamond())
    with pytest.raises(ArgumentError, match="epochs: expected a whole number of at least 1, got 0"):
        NormalGraphLearner(graph, epochs=0)
    with pytest.raises(ArgumentError, match="restarts: expected a whole number of at least 1, got 0"):
        NormalGraphLearner(graph, restarts=0)
    with pytest.raises(ArgumentError, match="start: expected one of 'messages', 'parameters', 'uniform', got 'zero'"):
        NormalGraphLearner(graph, start="zero")  # type: ignore[arg-type]
    learner = NormalGraphLearner(graph, epochs=1, progress=False)
    with pytest.raises(DataError, match="missing columns"):
        learner.fit({"x1": [0, 1]})
    data = {v: [0, 1, 1] for v in graph.observed}
    with pytest.raises(ShapeError, match="mask: expected one number for each of the 3 rows"):
        learner.fit(data, [1, 0])
    with pytest.raises(DataError, match="mask: expected one number for each of the 3 rows, got"):
        learner.fit(data, ["yes", "no", "no"])
    with pytest.raises(DataError, match="mask: expected 1 for rows to learn from"):
        learner.fit(data, [0, 0, 0])
    with pytest.raises(DataError, match="expected evidence on at least one observable"):
        learner.fit_evidence({})
    model = NormalGraphLearner(graph, rule="var", delta=0.0, progress=False).fit({v: [0, 0] for v in graph.observed})
    with pytest.raises(DataError, match="has probability 0, first in row 1"):
        model.posterior("x1", {"x2": [0, 1]})
    assert model.log_evidence({"x2": [0, 1]}).isinf().tolist() == [False, True]


def test_a_failed_fit_leaves_the_old_labels() -> None:
    graph = templates.naive_bayes(3, states=2, observed_states=2)
    model = NormalGraphLearner(graph, epochs=1, progress=False).fit({v: ["no", "yes"] for v in graph.observed})
    with pytest.raises(ShapeError, match="mask"):
        model.fit({v: ["a", "b", "a"] for v in graph.observed}, mask=[1])
    assert model.posterior("x1", {"x2": ["yes"]}).shape == (1, 2)
