"""One operator tree per class of an observed variable: exact in the limit, shrunk where rows are few, saved and asked like any."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

import torchpbp
from torchpbp import (
    PBP,
    Continuous,
    DiscreteNetwork,
    GenerativeClassifier,
    KernelRidge,
    LatentGraph,
    Messages,
    PBPLayer,
    templates,
)
from torchpbp.errors import CheckpointError, DataError, DataWarning, StructureError
from torchpbp.features import Nystroem
from torchpbp.io import read_file, write_file
from torchpbp.models.counts import Counts


def with_class(graph: LatentGraph, edges: list[tuple[str, str]], states: int = 3) -> LatentGraph:
    """A graph and a variable ``c`` beside it."""
    return LatentGraph([*graph.edges, *edges], {**graph.variables, "c": states}, graph.latent, graph.directed)


DIAMOND, CHAIN = templates.diamond(observed_states=3), templates.hmm(4)
STRUCTURES = {
    "parent of latents": with_class(DIAMOND, [("c", "A"), ("c", "D")]),
    "parent of observables": with_class(CHAIN, [("c", "x1"), ("c", "x3")]),
    "parent of both": with_class(DIAMOND, [("c", "B"), ("c", "a1"), ("c", "d2")]),
    "child of two latents": with_class(DIAMOND, [("B", "c"), ("C", "c")]),
    "child and parent": with_class(CHAIN, [("h1", "c"), ("c", "x4")]),
    "child of an observable": with_class(CHAIN, [("x1", "c"), ("h3", "c")]),
    "unrelated": with_class(CHAIN, []),
    "no latents": LatentGraph([("c", x) for x in "pqr"], {"c": 3, "p": 2, "q": 3, "r": 4}),
    "one other variable": LatentGraph([("c", "p")], {"c": 3, "p": 2}),
    "undirected": with_class(templates.grid(), [("c", "h1_1"), ("c", "h2_2")]),
}
GRAPH = STRUCTURES["parent of both"]
TRUTH = DiscreteNetwork.random(GRAPH, seed=1, concentration=2.0)


def patterns(graph: LatentGraph, rows: int, seed: int) -> dict[str, torch.Tensor]:
    """Random states, a part of them not observed."""
    generator = torch.Generator().manual_seed(seed)
    return {v: torch.randint(-1, graph.num_states(v), (rows,), generator=generator) for v in graph.observed}


def classes_of(model: PBP) -> list[torch.Tensor]:
    """Operators and root with their class dimension."""
    return [model.operators.root.weight.detach(), *(op.weight.detach() for op in model.operators.separator_operators)]


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


# -- in the limit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRUCTURES)
def test_exact_moments_give_exact_answers(name):
    graph = STRUCTURES[name]
    network = DiscreteNetwork.random(graph, seed=1)
    model = PBP(graph, condition="c").fit_population(network)
    evidence = patterns(graph, 50, 0)
    exact = network.posteriors(evidence)
    answers = model.posteriors(evidence)
    assert list(answers) == list(exact)
    for v, p in answers.items():
        assert torch.allclose(p, exact[v], atol=1e-8, rtol=0)
    assert torch.allclose(model.log_evidence(evidence), network.log_evidence(evidence), atol=1e-8)
    assert torch.allclose(model.prior, network.posterior("c")[0], atol=1e-12)
    weights = {"c": torch.rand(50, graph.num_states("c"), generator=torch.Generator().manual_seed(1)).double()}
    soft = {**{v: x for v, x in evidence.items() if v != "c"}, **weights}
    for v in graph.observed:
        assert torch.allclose(model.posterior(v, soft), network.posterior(v, soft), atol=1e-8, rtol=0)
    assert torch.allclose(model.log_evidence(soft), network.log_evidence(soft), atol=1e-8)
    pair = ["c", graph.observed[0] if graph.observed[0] != "c" else graph.observed[1]]
    given = {v: x for v, x in evidence.items() if v not in pair}
    assert torch.allclose(model.posterior(pair, given), network.posterior(pair, given), atol=1e-8, rtol=0)


@pytest.mark.parametrize("regressor", [Messages(), KernelRidge(landmarks=60)], ids=repr)
def test_exact_moments_of_regressors_that_look_at_rows(regressor):
    graph = with_class(templates.naive_bayes(3, states=2, observed_states=3), [("c", "h"), ("c", "x1")], 2)
    network = DiscreteNetwork.random(graph, seed=2)
    model = PBP(graph, condition="c", regressor=regressor).fit_population(network)
    evidence = patterns(graph, 40, 3)
    exact = network.posteriors(evidence)
    for v, p in model.posteriors(evidence).items():
        assert torch.allclose(p, exact[v], atol=1e-6, rtol=0)


def test_a_class_that_never_occurs_in_a_population():
    network = DiscreteNetwork.random(STRUCTURES["parent of latents"], seed=1)
    cpts = dict(network.cpts)
    cpts["c"] = torch.tensor([0.4, 0.6, 0.0], dtype=torch.float64)
    network = DiscreteNetwork(network.graph, cpts)
    model = PBP(network.graph, condition="c").fit_population(network)
    evidence = {v: x for v, x in patterns(network.graph, 30, 0).items() if v != "c"}
    assert torch.allclose(model.posterior("c", evidence), network.posterior("c", evidence), atol=1e-8)


# -- rows ------------------------------------------------------------------------------------------------------------


def test_many_rows_come_close():
    model = PBP(GRAPH, condition="c").fit(TRUTH.sample(60_000, seed=0))
    evidence = {v: x for v, x in TRUTH.sample(300, seed=3).items() if v not in ("c", "b1")}
    assert torch.allclose(model.posterior("c", evidence), TRUTH.posterior("c", evidence), atol=0.12)
    assert torch.allclose(model.posterior("b1", evidence), TRUTH.posterior("b1", evidence), atol=0.12)
    assert int(model.rows) == int(model.class_rows.sum()) == 60_000


def test_without_shrinkage_each_class_is_a_model_of_its_own_rows():
    rows = TRUTH.sample(4_000, seed=0)
    model = PBP(GRAPH, condition="c", shrinkage=0).fit(rows)
    for label in range(3):
        chosen = rows["c"] == label
        alone = PBP(model.tree.graph).fit({v: x[chosen] for v, x in rows.items() if v != "c"})
        evidence = {v: x for v, x in patterns(GRAPH, 30, 0).items() if v != "c"}
        given = {**evidence, "c": torch.full((30,), label)}
        expected = alone.log_evidence(evidence, raw=True)
        sign, log_size = model.log_evidence(given, raw=True)
        assert torch.equal(sign, expected[0])
        assert torch.allclose(log_size, expected[1] + model.prior[label].log(), atol=1e-7)
    assert torch.allclose(model.prior, torch.bincount(rows["c"], minlength=3).double() / 4_000)


def test_shrinkage_leads_from_the_rows_of_a_class_to_all_rows():
    rows = TRUTH.sample(500, seed=0)
    pooled = PBP(PBP(GRAPH, condition="c").tree.graph).fit({v: x for v, x in rows.items() if v != "c"})
    evidence = {v: x for v, x in patterns(GRAPH, 40, 0).items() if v != "c"}
    expected = pooled.log_evidence(evidence, raw=True)[1]
    gaps = []
    for shrinkage in (0.0, 10.0, 1e3, 1e9):
        model = PBP(GRAPH, condition="c", shrinkage=shrinkage).fit(rows)
        found = model.log_evidence({**evidence, "c": torch.ones(40, dtype=torch.int64)}, raw=True)[1]
        gaps.append(float((found - model.prior[1].log() - expected).abs().mean()))
    assert gaps[0] > gaps[1] > gaps[2] > gaps[3]
    assert gaps[3] < 1e-5


def test_shrinkage_helps_where_rows_are_few():
    def error(shrinkage: float) -> float:
        total = 0.0
        for seed in range(4):
            truth = DiscreteNetwork.random(GRAPH, seed=seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)
                model = PBP(GRAPH, condition="c", shrinkage=shrinkage).fit(truth.sample(100, seed=seed))
            evidence = {v: x for v, x in truth.sample(200, seed=9).items() if v != "c"}
            exact = truth.posterior("c", evidence)
            total += float((exact * (exact / model.posterior("c", evidence)).log()).sum(dim=1).mean())
        return total

    assert error(10.0) < 0.9 * error(0.0)


def test_counts_merge_and_rows_may_come_later(tmp_path):
    rows = TRUTH.sample(900, seed=0)
    rows["a1"][::7] = -1
    rows["c"][::9] = -1

    def part(start: int, stop: int) -> dict[str, torch.Tensor]:
        return {v: x[start:stop] for v, x in rows.items()}

    def model() -> PBP:
        return PBP(GRAPH, condition="c")

    with pytest.warns(DataWarning, match="100 of 900 rows have no value of 'c'"):
        whole = model().fit(rows)
    assert int(whole.rows) == int(whole.class_rows.sum()) == 800
    assert whole.missing["c"] == pytest.approx(1 / 9)
    counts = model().count(part(0, 400))
    counts.save(tmp_path / "counts.pt")
    merged = Counts.load(tmp_path / "counts.pt").merge(model().count(part(400, 900)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        others = [model().fit_counts(merged), model().partial_fit(part(0, 300)).partial_fit(part(300, 900))]
        others[1].save(tmp_path / "half.pt", counts=True)
        others.append(torchpbp.load(tmp_path / "half.pt").partial_fit(part(0, 10)))
    for other in others[:2]:
        assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(classes_of(whole), classes_of(other), strict=True))
        assert torch.allclose(whole.prior, other.prior)
    assert int(others[2].class_rows.sum()) == 800 + int((rows["c"][:10] >= 0).sum())
    with pytest.raises(StructureError, match="The counts lack"):
        model().fit_counts(PBP(GRAPH).count(rows))


def test_classes_without_rows_get_the_pooled_model_and_are_named():
    rows = TRUTH.sample(400, seed=0)
    frame = pd.DataFrame(rows).query("c != 1")
    frame["c"] = pd.Categorical.from_codes(frame["c"], ["low", "middle", "high"])
    with pytest.warns(DataWarning, match="No row has 'c' = middle"):
        model = PBP(GRAPH, condition="c").fit(frame)
    assert model.class_rows[1] == 0
    assert model.prior[1] == 0
    pooled = PBP(model.tree.graph).fit(frame.drop(columns="c"))
    evidence = {v: x for v, x in TRUTH.sample(20, seed=5).items() if v not in ("c", "a1")}
    given = {**evidence, "c": ["middle"] * 20}
    assert torch.allclose(model.posterior("a1", given), pooled.posterior("a1", evidence), atol=1e-7)
    assert torch.isneginf(model.log_evidence(given)).all()
    assert float(model.posterior("c", evidence)[:, 1].max()) < 0.05


@pytest.mark.parametrize("regressor", [None, Messages()], ids=repr)
def test_one_row_per_class_gives_distributions(regressor):
    rows = TRUTH.sample(400, seed=0)
    first = [int((rows["c"] == c).nonzero()[0]) for c in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        model = PBP(GRAPH, condition="c", regressor=regressor).fit({v: x[first] for v, x in rows.items()})
    for p in model.posteriors({"a2": rows["a2"][:50]}).values():
        assert bool(p.isfinite().all())
        assert torch.allclose(p.sum(dim=1), torch.ones(50, dtype=torch.float64))


def test_rows_without_any_class_raise():
    rows = TRUTH.sample(50, seed=0)
    rows["c"][:] = -1
    with pytest.raises(DataError, match="Column 'c': all 50 values are missing"):
        PBP(GRAPH, condition="c").fit(rows)
    counts = PBP(GRAPH, condition="c").count(rows)
    with pytest.raises(DataError, match="No row has a value of 'c'"):
        PBP(GRAPH, condition="c").fit_counts(counts)


@pytest.mark.parametrize("regressor", [Messages(), KernelRidge(landmarks=40)], ids=repr)
def test_regressors_that_look_at_rows_learn_each_class(regressor):
    rows = TRUTH.sample(3_000, seed=0)
    rows["c"][::50] = -1
    rows["a1"][::20] = -1
    with pytest.warns(DataWarning, match="60 of 3,000 rows have no value of 'c'"):
        model = PBP(GRAPH, condition="c", regressor=regressor).fit(iter([rows]))
    linear = PBP(GRAPH, condition="c").fit(TRUTH.sample(3_000, seed=0))
    evidence = {v: x for v, x in TRUTH.sample(200, seed=3).items() if v != "c"}
    assert torch.allclose(model.posterior("c", evidence), linear.posterior("c", evidence), atol=0.25)
    assert model.class_rows.sum() == 2_940
    with pytest.raises(StructureError, match="State 0 of 'c', which 1 rows have: Separator"):
        PBP(GRAPH, condition="c", shrinkage=0, regressor=KernelRidge()).fit({v: x[:1] * 0 for v, x in rows.items()})


# -- continuous variables --------------------------------------------------------------------------------------------


def mixed_rows(count: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    c = rng.integers(0, 3, count)
    h = (rng.random(count) < 0.3 + 0.2 * c).astype(int)
    u, w = 2 * h + 0.5 * rng.normal(size=count) + 2 * c, 0.5 * rng.normal(size=count) - h
    return pd.DataFrame({"c": c, "u": u, "w": w, "k": (h + (rng.random(count) < 0.2)) % 2})


MIXED = LatentGraph(
    [("c", "h"), ("c", "u"), ("h", "u"), ("h", "w"), ("h", "k")],
    {"c": 3, "h": 2, "u": Continuous(), "w": Continuous(), "k": 2},
    ["h"],
)


def test_continuous_variables_are_weighted_by_class():
    frame = mixed_rows(1_500)
    model = PBP(MIXED, condition="c", features=Nystroem(15)).fit(frame)
    answers = model.posterior("c", frame[["u", "w", "k"]])
    assert (answers.to_numpy().argmax(axis=1) == frame["c"]).mean() > 0.85
    for label in range(3):
        mean = model.posterior("u", {"c": [label]}).mean
        assert float(mean) == pytest.approx(frame.query(f"c == {label}")["u"].mean(), abs=0.15)
    half = PBP(MIXED, condition="c", features=Nystroem(15)).fit([frame[:700], frame[700:]])
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(classes_of(model), classes_of(half), strict=True))


def test_continuous_rows_without_a_class_or_a_value():
    frame = mixed_rows(1_500)
    holes = frame.astype({"c": "Int64"})
    holes.loc[:99, "c"] = pd.NA
    holes.loc[50:149, "u"] = np.nan
    with pytest.warns(DataWarning, match="100 of 1,500 rows have no value of 'c'"):
        model = PBP(MIXED, condition="c", features=Nystroem(15)).fit(holes)
    answers = model.posterior("c", frame[["u", "w", "k"]])
    assert (answers.to_numpy().argmax(axis=1) == frame["c"]).mean() > 0.85
    chosen = PBP(MIXED, condition="c", features=Nystroem(8, bandwidth="validate")).fit(frame)
    assert len(chosen.bandwidth_scores) > 1


# -- files, layers, figures ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labelled() -> PBP:
    frame = pd.DataFrame(TRUTH.sample(2_000, seed=0))
    frame["c"] = pd.Categorical.from_codes(frame["c"], ["low", "middle", "high"])
    return PBP(GRAPH, condition="c", shrinkage=5).fit(frame)


def test_saved_models_answer_the_same(labelled, tmp_path):
    labelled.save(tmp_path / "model.pt")
    loaded = torchpbp.load(tmp_path / "model.pt")
    assert loaded.settings == labelled.settings
    assert loaded.condition == "c"
    assert torch.equal(loaded.class_rows, labelled.class_rows)
    evidence = {v: x for v, x in patterns(GRAPH, 20, 0).items() if v != "c"}
    for v, p in labelled.posteriors(evidence).items():
        assert torch.allclose(p, loaded.posterior(v, evidence), atol=1e-12)
    assert loaded.posterior("c", pd.DataFrame({"a1": [0]})).columns.tolist() == ["low", "middle", "high"]
    assert str(loaded) == str(labelled)
    assert "condition='c'" in str(loaded)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda content: content["state"].update({"operators.prior": torch.ones(4)}),
            r"prior: expected shape \(3,\), got \(4,\)",
        ),
        (lambda content: content["settings"].update(condition="A"), "condition='A': it is latent"),
        (lambda content: content["settings"].update(condition=None), "its two graphs have different variables"),
    ],
)
def test_files_that_contradict_themselves_raise(labelled, tmp_path, change, message):
    path = tmp_path / "model.pt"
    labelled.save(path)
    content = read_file(path)
    change(content)
    write_file(path, content)
    with pytest.raises(CheckpointError, match=message):
        torchpbp.load(path)


def test_layers_take_the_class_as_states_and_as_weights(labelled):
    layer = PBPLayer(labelled)
    states, a1 = torch.tensor([0, 2, -1]), torch.tensor([1, 0, 2])
    answers = layer({"c": states, "a1": a1})
    assert "c" not in answers
    assert torch.allclose(answers["b1"], labelled.posterior("b1", {"c": states, "a1": a1}), atol=1e-12)
    weights = torch.tensor([[0.1, 0.2, 0.7], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    with torch.enable_grad():
        weights.requires_grad_()
        answers = layer({"c": weights, "a1": a1})
        assert torch.allclose(answers["c"], labelled.posterior("c", {"c": weights.detach(), "a1": a1}), atol=1e-12)
        answers["b1"][:, 0].sum().backward()
        assert float(weights.grad[0].abs().sum()) > 0
        layer.log_evidence({"c": states, "a1": a1}).sum().backward()
    labelled.zero_grad()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    for v, p in compiled({"c": states, "a1": a1}).items():
        torch.testing.assert_close(p, layer({"c": states, "a1": a1})[v])


def test_diagnostics_are_those_of_the_worst_class(labelled):
    table = labelled.diagnostics()
    assert set(table["class"]) <= {"low", "middle", "high"}
    for node, row in table.iterrows():
        operator = labelled.operators.separator_operators[int(node) - 1]
        assert row["significant"] == int(operator.significant.min())
        label = ["low", "middle", "high"].index(row["class"])
        assert row["weakest"] == pytest.approx(float(operator.strengths[label].min()))
    assert "class" not in PBP(GRAPH).fit(TRUTH.sample(300, seed=0)).diagnostics()


def test_single_precision():
    model = PBP(GRAPH, condition="c", dtype=torch.float32).fit(TRUTH.sample(2_000, seed=0))
    exact = PBP(GRAPH, condition="c").fit(TRUTH.sample(2_000, seed=0))
    evidence = {v: x for v, x in patterns(GRAPH, 20, 0).items() if v != "c"}
    assert model.posterior("c", evidence).dtype == torch.float32
    assert torch.allclose(model.posterior("c", evidence).double(), exact.posterior("c", evidence), atol=1e-3)
    assert exact.to(torch.float32).posterior("c", evidence).dtype == torch.float32


# -- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PBP(GRAPH, condition="z"), "condition='z': the graph has no such variable. Discrete observables: a1"),
        (lambda: PBP(GRAPH, condition="A"), "condition='A': it is latent"),
        (lambda: PBP(MIXED, condition="u"), "condition='u': it is continuous"),
        (
            lambda: PBP(LatentGraph([("h", "x")], {"h": 2, "x": 2}, ["h"]), condition="x"),
            "'x': it is the only observable",
        ),
        (lambda: PBP(GRAPH, condition="c", rank="auto"), "condition='c': rank='auto' chooses one rank"),
    ],
)
def test_structures_that_cannot_be_conditioned_raise(make, message):
    with pytest.raises(StructureError, match=message):
        make()


def test_a_classifier_of_separate_models_agrees():
    """With shared plans and no shrinkage, Bayes' rule over separate models says the same where no estimate is clipped."""
    rows = TRUTH.sample(4_000, seed=0)
    model = PBP(GRAPH, condition="c", shrinkage=0).fit(rows)
    features = pd.DataFrame({v: x.numpy() for v, x in rows.items() if v != "c"})
    classifier = GenerativeClassifier(model.tree.graph, learner=PBP).fit(features, rows["c"].numpy())
    mine = model.posterior("c", features[:200]).to_numpy()
    assert np.abs(mine - classifier.predict_proba(features[:200])).max() < 0.02
