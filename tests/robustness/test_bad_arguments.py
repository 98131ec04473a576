"""Arguments of the wrong type or size raise typed errors that say what was expected and what came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

import torchpbp
from tests.closeness import assert_same_up_to_rounding
from torchpbp import (
    EM,
    MLP,
    PBP,
    Continuous,
    KernelPBP,
    KernelRidge,
    LatentGraph,
    NormalGraphLearner,
    Nystroem,
    PBPLayer,
)
from torchpbp.__main__ import main
from torchpbp.errors import (
    ArgumentError,
    DataError,
    LabelWarning,
    NotFittedError,
    QueryError,
    ShapeError,
    TorchPBPError,
)

GRAPH = torchpbp.templates.naive_bayes(4, states=2, observed_states=3)
MIXED = LatentGraph([("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": Continuous(), "y": 2, "z": 2}, latent=["h"])


@pytest.fixture(scope="module")
def rows() -> dict[str, torch.Tensor]:
    return torchpbp.DiscreteNetwork.random(GRAPH, seed=1).sample(200, seed=2)


@pytest.fixture(scope="module")
def model(rows) -> PBP:
    return PBP(GRAPH).fit(rows)


@pytest.fixture(scope="module")
def mixed() -> PBP:
    generator = np.random.default_rng(0)
    hidden = generator.integers(0, 2, 200)
    noisy = {v: np.where(generator.random(200) < 0.9, hidden, 1 - hidden) for v in "yz"}
    return PBP(MIXED).fit({"x": 2 * hidden + generator.normal(size=200), **noisy})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: PBP([("h", "x1")]), r"PBP: expected a LatentGraph, got list\. Make one: LatentGraph\("),
        (lambda: PBP(nx.DiGraph()), r"got DiGraph\. Make one: LatentGraph\.from_networkx"),
        (lambda: EM(None), "EM: expected a LatentGraph, got NoneType"),
        (lambda: torchpbp.SpectralJunctionTree("g"), "SpectralJunctionTree: expected a LatentGraph, got str"),
        (lambda: NormalGraphLearner({}), "NormalGraphLearner: expected a LatentGraph, got dict"),
        (lambda: torchpbp.build_junction_tree([]), "build_junction_tree: expected a LatentGraph, got list"),
        (lambda: LatentGraph(None, {"x": 2}), "edges: expected a list of pairs of names, got None"),
        (lambda: LatentGraph([], 2), "variables: expected a mapping or pairs"),
        (lambda: LatentGraph([], {"x": 2}, latent=None), "latent: expected a list of names, got None"),
        (lambda: LatentGraph([(["x"], "y")], {"x": 2, "y": 2}), "unknown variable"),
        (lambda: LatentGraph([], {"x": 2}, latent=[["x"]]), "is listed but absent"),
        (lambda: Continuous("a"), "low: expected None or a finite number, got 'a'"),
        (lambda: PBP(GRAPH, rank=2.5), "rank: expected None or a whole number of at least 1 or 'auto', got 2.5"),
        (lambda: PBP(GRAPH, rank=True), "rank: expected None or a whole number of at least 1 or 'auto', got True"),
        (lambda: PBP(GRAPH, ridge=1.0), r"ridge: expected two non-negative numbers \(stage 1, stage 2\), got 1.0"),
        (lambda: PBP(GRAPH, ridge=(1, None)), "ridge: expected two non-negative numbers"),
        (lambda: PBP(GRAPH, ridge="ab"), "ridge: expected two non-negative numbers"),
        (
            lambda: PBP(GRAPH, features="rbf"),
            r"features: expected Nystroem\(…\), .*an encoder \(nn.Module\).*; got str",
        ),
        (lambda: PBP(GRAPH, features=Nystroem), r"features: expected Nystroem\(…\), .*got the class Nystroem"),
        (lambda: PBP(GRAPH, whitening="a"), "whitening: expected a positive number, got 'a'"),
        (lambda: PBP(GRAPH, singles=1.5), "singles: expected a whole number of at least 1, got 1.5"),
        (lambda: PBP(GRAPH, rank="auto", max_rank=0), "max_rank: expected a whole number of at least 1, got 0"),
        (lambda: PBP(GRAPH, root="h"), "root: expected None or a list of names of variables, got 'h'"),
        (lambda: PBP(GRAPH, root=3), "root: expected None or a list of names of variables, got 3"),
        (lambda: PBP(GRAPH, dtype=torch.int64), "dtype: expected one of torch.float64, torch.float32, got torch.int64"),
        (lambda: PBP(GRAPH, dtype="float32"), "dtype: expected one of torch.float64, torch.float32, got 'float32'"),
        (lambda: PBP(GRAPH, seed=None), "seed: expected a whole number of at least 0, got None"),
        (lambda: PBP(GRAPH, seed=-1), "seed: expected a whole number of at least 0, got -1"),
        (lambda: PBP(GRAPH).fit_population(GRAPH), "network: expected a DiscreteNetwork, got LatentGraph"),
        (lambda: EM(GRAPH, seed="a"), "seed: expected a whole number of at least 0, got 'a'"),
        (lambda: EM(GRAPH, restarts=1.5), "restarts: expected a whole number of at least 1, got 1.5"),
        (lambda: EM(GRAPH, relative_tolerance="x"), "tolerance: expected a non-negative number, got 'x'"),
        (lambda: torchpbp.SpectralJunctionTree(GRAPH, rank="x"), "rank: expected None or a whole number .* got 'x'"),
        (lambda: NormalGraphLearner(GRAPH, seed=None), "seed: expected a whole number .* got None"),
        (lambda: KernelRidge(landmarks=1.5), "landmarks: expected a whole number of at least 1, got 1.5"),
        (lambda: MLP(hidden=8), "hidden: expected a list with the width of each hidden layer, got 8"),
        (lambda: MLP(epochs=1.5), "epochs: expected a whole number of at least 1, got 1.5"),
        (lambda: MLP(trainer="gpu"), "trainer: expected names and values, such as a dict, got 'gpu'"),
        (lambda: MLP(learning_rate="a"), "learning_rate: expected a positive number, got 'a'"),
        (lambda: Nystroem("x"), "size: expected a whole number of at least 1, got 'x'"),
        (lambda: Nystroem(kernel="rbf"), r"kernel: expected None or RBF\(\)"),
        (lambda: KernelPBP([]), "KernelPBP: expected a LatentGraph, got list"),
        (lambda: KernelPBP(GRAPH, ridge=1.0), "ridge: expected two positive numbers .* got 1.0"),
        (lambda: KernelPBP(GRAPH, kernel="rbf"), "kernel: expected RBF"),
        (lambda: KernelPBP(GRAPH, landmarks=2.5), "landmarks: expected None or a whole number .* got 2.5"),
        (lambda: KernelPBP(GRAPH, root="h"), r"root: expected a list of names, got the string 'h'"),
        (lambda: KernelPBP(GRAPH, seed="a"), "seed: expected a whole number .* got 'a'"),
        (lambda: torchpbp.ScoreAverage([GRAPH]), r"ScoreAverage: expected models such as .*, got \['LatentGraph'\]"),
        (
            lambda: torchpbp.GenerativeClassifier(GRAPH, "PBP").fit([[0, 0, 0, 0], [1, 1, 1, 1]] * 2, [0, 1] * 2),
            "learner: expected a class or function of a graph, such as KernelPBP, or a model; got 'PBP'",
        ),
        (lambda: PBPLayer(GRAPH), "PBPLayer: expected a PBP model, got LatentGraph"),
    ],
)
def test_invalid_arguments_raise(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(TorchPBPError, match=text):
        make()


def test_whole_numbers_of_other_libraries_are_numbers() -> None:
    model = PBP(GRAPH, rank=np.int64(2), seed=torch.tensor(3))
    assert model.operators[0].weight.shape[0] == 2


@pytest.mark.parametrize("size", [0, -1, 1.5])
def test_batches_of_no_rows_raise(rows, size) -> None:
    with pytest.raises(ArgumentError, match="batch_size: expected a whole number of at least 1"):
        PBP(GRAPH).fit(rows, batch_size=size)


@pytest.mark.parametrize(
    ("ask", "error", "text"),
    [
        (lambda m: m.posterior(None), QueryError, "Expected the name of a variable to query"),
        (lambda m: m.map_states(3), QueryError, "Expected the name of a variable to query"),
        (lambda m: m.sample(2.5), ArgumentError, "n: expected a whole number of at least 0, got 2.5"),
        (lambda m: m.sample("3"), ArgumentError, "n: expected a whole number of at least 0, got '3'"),
        (
            lambda m: m.sample(1, seed=1.5),
            ArgumentError,
            "seed: expected a whole number of at least 0, got 1.5",
        ),
        (lambda m: m.save(None), ArgumentError, "Expected the path of a model file, got None"),
        (lambda m: torchpbp.load(None), ArgumentError, "Expected the path of a model file, got None"),
        (
            lambda m: m.posterior("x1", {"x2": [0.2, 0.3, 0.5]}),
            DataError,
            r"Weights over states have shape \(batch, 3\)",
        ),
        (lambda m: m.posterior("x1", {"x2": [[1.0], [1.0, 2.0]]}), DataError, "entries of different lengths"),
        (lambda m: m.posterior("x1", {"x2": [torch.ones(3), torch.ones(2)]}), ShapeError, "different shapes"),
        (lambda m: PBPLayer(m)(None), DataError, "a layer takes a dict of tensors by name"),
        (lambda m: PBPLayer(m).estimates({}, ["h"]), QueryError, "Query of 'h': it is latent"),
        (lambda m: PBPLayer(m).estimates({}, "zz"), QueryError, "Query of unknown variable 'zz'"),
        (lambda m: PBPLayer(m).relaxed_sample({}, temperature=0), ArgumentError, "temperature: expected a positive"),
        (
            lambda m: PBPLayer(m).given({}).sample((-1,)),
            ArgumentError,
            r"sample_shape\[0\]: expected a whole number of at least 0, got -1",
        ),
        (lambda m: PBPLayer(m).given({}).log_prob({"x1": [0]}), DataError, "a layer takes tensors"),
    ],
)
def test_invalid_questions_raise(model, ask: Callable[[PBP], Any], error, text) -> None:
    with pytest.raises(error, match=text):
        ask(model)


def test_no_rows_get_no_answers(model) -> None:
    none: dict[str, Any] = {"x2": []}
    assert model.posterior(["x1", "x3"], none).shape == (0, 3, 3)
    assert model.posterior(["x1", "x3"], pd.DataFrame(none)).shape == (0, 9)
    assert model.map_states("x1", none).shape == (0,)
    assert model.map_states(["x1", "x3"], none).shape == (0, 2)


def test_no_rows_get_no_answers_from_a_normal_graph(rows) -> None:
    learned = NormalGraphLearner(GRAPH, epochs=2, progress=False).fit(rows)
    assert learned.posterior("x1", {"x2": []}).shape == (0, 3)
    assert learned.posterior(["x1", "x3"], {"x2": []}).shape == (0, 3, 3)
    assert learned.posteriors({"x2": []})["x3"].shape == (0, 3)
    assert learned.log_evidence({"x2": []}).shape == (0,)


def test_a_printed_em_says_what_it_is(rows) -> None:
    learned = EM(GRAPH, restarts=1, max_steps=2, progress=False).fit(rows)
    assert repr(learned) == f"EM({GRAPH!r}, fitted)"


def test_a_printed_kernel_model_says_what_it_is(rows) -> None:
    model = KernelPBP(GRAPH)
    assert str(model) == f"KernelPBP({GRAPH!r}, not fitted)"
    assert str(model.fit(rows)) == f"KernelPBP({GRAPH!r}, fitted on 200 rows)"


def test_densities_take_plain_numbers(mixed) -> None:
    density = mixed.posterior("x", {"y": [0, 1]})
    assert density.prob(1.0).shape == (2,)
    assert_same_up_to_rounding(density.prob([0.0, 1.0])[:, 1], density.prob(1.0))
    with pytest.raises(QueryError, match="expected numbers as points to evaluate at, got 'a'"):
        density.prob("a")
    with pytest.raises(QueryError, match="expected numbers as points to evaluate at, got 'a'"):
        mixed.posterior("x", {"y": [0]}, at="a")
    with pytest.raises(ArgumentError, match="n: expected a whole number of at least 0"):
        density.sample(-1)


def test_evidence_on_a_continuous_variable_that_is_not_a_number(mixed) -> None:
    with pytest.raises(DataError, match="Evidence on 'x': expected numbers, got 'a'"):
        mixed.posterior("y", {"x": ["a"]})


def test_dates_are_not_numbers() -> None:
    dates = pd.date_range("2020-01-01", periods=20)
    with pytest.raises(DataError, match="column 'x': expected numbers, got datetime64"):
        PBP(MIXED).fit(pd.DataFrame({"x": dates, "y": [0, 1] * 10, "z": [0, 1] * 10}))


def test_rows_as_dicts_are_pointed_to_pandas(rows) -> None:
    records = [{v: int(x[i]) for v, x in rows.items()} for i in range(5)]
    with pytest.raises(ShapeError, match=r"pass DataFrame\(rows\)"):
        PBP(GRAPH).fit(records)


def test_states_counted_from_one_are_pointed_to_categories(rows) -> None:
    shifted = {v: x + 1 for v, x in rows.items()}
    with pytest.raises(DataError, match="Count states from 0, or make it a pandas category column"):
        PBP(GRAPH).fit(shifted)
    frame = pd.DataFrame({v: x.numpy() for v, x in shifted.items()}).astype("category")
    assert PBP(GRAPH).fit(frame).posterior("x1", pd.DataFrame(index=[0])).columns.tolist() == [1, 2, 3]


def test_sparse_tensors_are_read(rows, model) -> None:
    whole = torch.stack(list(rows.values()), dim=1)
    again = PBP(GRAPH).fit(whole.to_sparse())
    assert_same_up_to_rounding(again.posterior("x1"), model.posterior("x1"))
    weights = torch.tensor([[0.0, 1.0, 0.0]])
    sparse, dense = (model.posterior("x1", {"x2": given}) for given in (weights.to_sparse(), weights))
    assert_same_up_to_rounding(sparse, dense)


def test_gradients_pass_through_a_list_of_tensors(model) -> None:
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64, requires_grad=True)
    model.posterior("x1", {"x2": [weights, weights]})[:, 0].sum().backward()
    assert float(weights.grad.abs().sum()) > 0


def test_series_that_name_the_same_rows_in_other_places_raise(rows, model) -> None:
    first, second = pd.Series([0, 1], index=["Ann", "Ben"]), pd.Series([2, 0], index=["Ben", "Ann"])
    with pytest.raises(DataError, match="Evidence on 'x3': its index has rows of 'x2' in other places"):
        model.posterior("x1", {"x2": first, "x3": second})
    aligned = model.posterior("x1", pd.DataFrame({"x2": first, "x3": second}))  # pandas aligns the two
    expected = model.posterior("x1", {"x2": first, "x3": [0, 2]})
    assert_same_up_to_rounding(torch.from_numpy(aligned.to_numpy()), expected.detach())
    columns = {v: pd.Series(x.numpy()) for v, x in rows.items()}
    assert_same_up_to_rounding(PBP(GRAPH).fit(columns).posterior("x1"), model.posterior("x1"))
    with pytest.raises(DataError, match="column 'x2': its index has rows of 'x1' in other places"):
        PBP(GRAPH).fit({**columns, "x2": columns["x2"].sort_values()})


def test_most_probable_states_where_evidence_is_none(model) -> None:
    layer = PBPLayer(model)
    found = layer.most_probable({"x2": torch.tensor([0, 7])})["x1"].tolist()
    assert found == [layer.most_probable({"x2": torch.tensor([0])})["x1"].item(), -1]


def test_a_layer_of_an_unfitted_model_gives_no_answers(model) -> None:
    layer = PBPLayer(PBP(GRAPH))
    evidence = {"x2": torch.tensor([1])}
    with pytest.raises(NotFittedError, match="not fitted yet"):
        layer(evidence)
    layer.load_state_dict(PBPLayer(model).state_dict())  # as in a checkpoint of the network around it
    assert_same_up_to_rounding(layer(evidence)["x1"], model.posterior("x1", evidence))
    assert_same_up_to_rounding(layer.log_evidence(evidence), model.log_evidence(evidence))


def test_weights_and_a_state_out_of_range_in_a_layer(model) -> None:
    given = PBPLayer(model).given({"x2": torch.rand(2, 3, generator=torch.Generator().manual_seed(0))})
    found = given.log_prob({"x2": torch.tensor([0, 7])})
    assert found.isnan().tolist() == [False, True]
    assert given.sample(4, seed=0)["x1"].shape == (4, 2)


@pytest.mark.parametrize("device", ["cuda:99", "nonsense"])
def test_a_device_that_is_not_there_is_not_taken_for_a_damaged_file(model, tmp_path, device) -> None:
    model.save(tmp_path / "model.pt")
    with pytest.raises(ArgumentError, match="map_location: expected a device that this machine has"):
        PBP.load(tmp_path / "model.pt", map_location=device)


def test_shell_shows_states_that_have_no_label(rows, tmp_path, capsys) -> None:
    named = {v: np.array(["no", "yes"])[(x > 0).long().numpy()] for v, x in rows.items()}  # two labels, three states
    with pytest.warns(LabelWarning, match=r"'x1' \(2 of 3\)"):
        PBP(GRAPH).fit(named).save(tmp_path / "model.pt")
    assert main(["query", str(tmp_path / "model.pt"), "--evidence", "x2=yes", "--target", "x1"]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines() if line.startswith("  ")] == ["no", "yes", "2"]
