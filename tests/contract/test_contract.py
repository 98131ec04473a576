"""What can be asked of every model, with the same answers in form and the same errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import torchpbp
from tests.contract.models import (
    CLASSES,
    COLOURS,
    GRAPH,
    LEARNERS,
    NAMES,
    TRUTH,
    evidence,
    evidence_table,
    fitted,
    training_table,
)
from torchpbp import DiscreteNetwork, Evidence
from torchpbp.contract.abilities import JointQueries, Learner, Sampling
from torchpbp.contract.intervals import Intervals
from torchpbp.contract.latent_model import LatentModel
from torchpbp.contract.latent_queries import LatentQueries
from torchpbp.errors import ArgumentError, CheckpointError, DataError, NotFittedError, QueryError, QueryWarning
from torchpbp.io import MODULES
from torchpbp.settings import Settings


def able(ability: type) -> list[str]:
    """Names of the models that have an ability."""
    return [name for name in NAMES if isinstance(LEARNERS[name]() if name in LEARNERS else TRUTH, ability)]


JOINT = able(JointQueries)
INTERVALS: dict[str, dict[str, Any]] = {
    "PBP": {"data": training_table(), "replicates": 50},
    "MaximumLikelihood": {},
}
"""Models with intervals, and what they need for them."""
LATENT = able(LatentQueries)
SAMPLING = able(Sampling)


@pytest.fixture(params=NAMES)
def model(request: pytest.FixtureRequest) -> Any:
    return fitted(request.param)


@pytest.fixture(params=JOINT)
def joint(request: pytest.FixtureRequest) -> Any:
    return fitted(request.param)


@pytest.fixture(params=SAMPLING)
def sampling(request: pytest.FixtureRequest) -> Any:
    return fitted(request.param)


@pytest.fixture(params=LATENT)
def hidden(request: pytest.FixtureRequest) -> Any:
    return fitted(request.param)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def test_every_model_with_files_is_tested_here() -> None:
    assert set(CLASSES.values()) == set(MODULES) - {"GenerativeClassifier"}
    assert all(type(fitted(name)).__name__ == CLASSES[name] for name in NAMES)
    assert all(isinstance(fitted(name), LatentModel) for name in NAMES)
    assert [isinstance(fitted(name), Learner) for name in NAMES] == [name in LEARNERS for name in NAMES]
    assert {CLASSES[n] for n in NAMES if isinstance(fitted(n), Intervals)} == set(INTERVALS)


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEARNERS)
def test_models_that_are_not_fitted_raise(name: str, tmp_path: Path) -> None:
    model = LEARNERS[name]()
    assert not model.fitted
    questions: list[Any] = [
        lambda: model.posterior("x1"),
        lambda: model.posteriors(),
        lambda: model.log_evidence(),
        lambda: model.map_states("x1"),
        lambda: model.score(training_table(5)),
        lambda: model.diagnostics(),
        lambda: model.save(tmp_path / "model.pt"),
    ]
    if isinstance(model, Sampling):
        questions.append(lambda: model.sample(2))
    for ask in questions:
        with pytest.raises(NotFittedError, match=f"This {CLASSES[name]} model is not fitted yet. Call fit"):
            ask()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("query", "given", "message"),
    [
        ("z", None, "Query of unknown variable 'z'"),
        (None, None, "Expected the name of a variable to query, or several names; got None"),
        ("x1", {"z": [0]}, "Evidence on unknown variable 'z'"),
    ],
)
def test_bad_questions_raise(model: Any, query: Any, given: Any, message: str) -> None:
    for ask in (model.posterior, model.map_states):
        with pytest.raises(QueryError, match=message):
            ask(query, given)


def test_questions_about_latents_raise_unless_there_are_tables_of_them(model: Any) -> None:
    if isinstance(model, LatentQueries):
        assert model.posterior("h", {"x4": [0, 1]}).shape == (2, 3)
    else:
        with pytest.raises(QueryError, match=r"Query of 'h': it is latent.*MaximumLikelihood learn tables of latents"):
            model.posterior("h", {"x4": [0]})
    if isinstance(model, DiscreteNetwork):
        assert model.log_evidence({"h": [0, 1]}).shape == (2,)
        return
    with pytest.raises(QueryError, match="Evidence on 'h': it is latent"):
        model.log_evidence({"h": [0]})


def test_states_out_of_range_raise(model: Any) -> None:
    for ask in (lambda e: model.posterior("x1", e), model.posteriors, model.log_evidence):
        with pytest.raises(DataError, match="'x2', row 1: state 3 is out of range"):
            ask({"x2": [0, 3]})


@pytest.mark.parametrize("query", [["x1", "x4"], ["x1"]])
def test_lists_of_variables_raise_where_there_are_no_joint_queries(model: Any, query: list[str]) -> None:
    if isinstance(model, JointQueries):
        assert model.posterior(query, evidence()).shape == (3, *[3] * len(query))
        return
    for ask in (model.posterior, model.map_states):
        with pytest.raises(QueryError, match="answers about one variable at a time, got"):
            ask(query, evidence())


@pytest.mark.parametrize("query", [[], ["x1", "x1"]])
def test_joint_queries_need_different_variables(joint: Any, query: list[str]) -> None:
    with pytest.raises(QueryError, match="Expected one or more different variables to query"):
        joint.posterior(query)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": -1}, "n: expected a whole number of at least 0, got -1"),
        ({"n": 2.5}, r"n: expected a whole number of at least 0, got 2\.5"),
        ({"n": 2, "seed": "1"}, "seed: expected a whole number of at least 0, got '1'"),
        ({"n": 2, "seed": -1}, "seed: expected a whole number of at least 0, got -1"),
    ],
)
def test_bad_numbers_of_draws_and_seeds_raise(sampling: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        sampling.sample(**options)


# -- answers ---------------------------------------------------------------------------------------------------------


def test_posteriors_are_distributions_row_by_row(model: Any) -> None:
    answers = model.posteriors(evidence())
    assert list(answers) == ["x1", "x2", "x3", "x4"]
    for v, p in answers.items():
        assert p.shape == (3, 3)
        assert (p >= 0).all()
        assert torch.allclose(p.sum(dim=1), torch.ones_like(p[:, 0]), atol=1e-5)
        assert torch.allclose(p, model.posterior(v, evidence()), atol=1e-5)
    assert answers["x2"][1].tolist() == pytest.approx([0, 1, 0], abs=1e-9)
    assert model.posterior("x1").shape == (1, 3)
    assert model.log_evidence(evidence()).shape == (3,)
    assert float(model.log_evidence()) == pytest.approx(0.0, abs=0.02)


def test_nothing_left_to_ask(model: Any) -> None:
    table = training_table(2)
    for rows in (table, {v: table[v] for v in table}):
        with pytest.warns(QueryWarning, match="every variable is observed in every row"):
            assert list(model.posteriors(rows)) == []


def test_no_rows_of_evidence_give_no_rows_of_answers(model: Any) -> None:
    none = {"x2": torch.zeros(0, dtype=torch.int64)}
    assert model.posterior("x1", none).shape == (0, 3)
    assert {p.shape for p in model.posteriors(none).values()} <= {(0, 3)}
    assert model.log_evidence(none).shape == (0,)
    assert model.map_states("x1", none).shape == (0,)
    if isinstance(model, JointQueries):
        assert model.posterior(["x1", "x3"], none).shape == (0, 3, 3)
        assert model.posterior(["x1", "x3"], pd.DataFrame({"x2": []})).shape == (0, 9)
        assert model.map_states(["x1", "x3"], none).shape == (0, 2)


def test_joint_distributions(joint: Any) -> None:
    table = joint.posterior(["x1", "x4"], evidence())
    assert table.shape == (3, 3, 3)
    assert (table >= 0).all()
    assert torch.allclose(table.sum(dim=(1, 2)), torch.ones(3).to(table), atol=1e-6)
    assert torch.allclose(table.sum(dim=2), joint.posterior("x1", evidence()), atol=0.05)  # negative parts are clipped


def test_the_score_is_the_mean_log_evidence(model: Any) -> None:
    table = training_table(50)
    expected = float(model.log_evidence(table).double().mean())
    assert model.score(table) == pytest.approx(expected, rel=1e-6)
    assert model.score([table[:20], table[20:]]) == pytest.approx(expected, rel=1e-6)
    known = evidence()
    partial = {v: known.get(v, torch.full((3,), -1)) for v in GRAPH.observed}
    assert model.score(partial) == pytest.approx(float(model.log_evidence(known).double().mean()), rel=1e-6)


def test_diagnostics_are_a_table(model: Any) -> None:
    table = model.diagnostics()
    assert isinstance(table, pd.DataFrame)
    assert len(table) >= 1
    assert table.columns.is_unique


@pytest.mark.filterwarnings("ignore::torchpbp.errors.QueryWarning")
def test_a_row_that_observes_the_query_gets_what_it_observes_whatever_the_other_rows_hold(model: Any) -> None:
    rows = {"x4": torch.tensor([2, -1, 0]), "x2": torch.tensor([0, 1, -1])}
    together, alone = (
        model.posterior("x4", rows),
        torch.cat([model.posterior("x4", {v: x[i : i + 1] for v, x in rows.items()}) for i in range(3)]),
    )
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(together[[0, 2]], torch.eye(3).to(together)[[2, 0]])
    torch.testing.assert_close(together, model.posteriors(rows)["x4"], rtol=1e-5, atol=1e-6)
    assert model.map_states("x4", rows).tolist() == [2, int(together[1].argmax()), 0]
    assert model.posterior("x4", {"x4": [1]}).tolist() == [[0.0, pytest.approx(1.0), 0.0]]
    assert model.posterior("x4", {v: x[:0] for v, x in rows.items()}).shape == (0, 3)


def test_a_query_that_every_row_observes_is_warned_of(model: Any) -> None:
    frame = pd.DataFrame({"x4": [0, 1], "x2": [0, 1]})
    for ask in (model.posterior, model.map_states):
        with pytest.warns(QueryWarning, match="Query of 'x4': every row observes it"):
            assert len(ask("x4", frame)) == 2


# -- tables ----------------------------------------------------------------------------------------------------------


def test_a_table_in_gives_a_table_out(model: Any) -> None:
    frame = model.posterior("x1", evidence_table())
    assert frame.columns.tolist() == COLOURS
    assert frame.columns.name == "x1"
    pd.testing.assert_index_equal(frame.index, evidence_table().index)
    assert np.allclose(frame, model.posterior("x1", evidence()), atol=1e-6)


def test_a_table_in_gives_all_posteriors_side_by_side(model: Any) -> None:
    frame, answers = model.posteriors(evidence_table()), model.posteriors(evidence())
    assert set(frame.columns.get_level_values("variable")) == set(answers) == {"x1", "x2", "x3", "x4"}
    assert frame["x1"].columns.tolist() == COLOURS
    assert frame["x4"].columns.tolist() == [0, 1, 2]
    pd.testing.assert_index_equal(frame.index, evidence_table().index)
    for v, p in answers.items():
        assert np.allclose(frame[v], p, atol=1e-6)


@pytest.mark.parametrize("rows", [0, 3])
def test_tables_without_columns_keep_their_rows(model: Any, rows: int) -> None:
    index = pd.Index([f"r{i}" for i in range(rows)], name="who", dtype=object)
    nothing = pd.DataFrame(index=index)
    frame = model.posterior("x4", nothing)
    assert frame.index.equals(index)
    assert np.allclose(frame, model.posterior("x4").expand(rows, 3), atol=1e-6)
    assert model.posteriors(nothing).index.equals(index)
    assert model.posteriors(nothing).shape == (rows, 12)
    assert model.map_states("x4", nothing).index.equals(index)
    assert torch.allclose(model.log_evidence(nothing), model.log_evidence().expand(rows))
    if isinstance(model, Sampling):
        assert model.sample(5, nothing, seed=0)["x1"].shape == (5, rows)


def test_most_probable_states_have_labels(model: Any) -> None:
    best = model.map_states("x1", evidence_table())
    assert best.name == "x1"
    assert best.cat.categories.tolist() == COLOURS
    assert best.tolist() == model.posterior("x1", evidence_table()).idxmax(axis=1).tolist()
    assert best.index.tolist() == ["Ann", "Ben", "Cem"]
    assert model.map_states("x1", evidence()).tolist() == best.tolist()
    seen = pd.DataFrame({"x1": ["blue", None], "x2": [0, 1]})
    assert model.map_states("x1", seen).iloc[0] == "blue"


def test_joint_tables_and_their_maximum(joint: Any) -> None:
    frame = joint.posterior(["x1", "x4"], evidence_table())
    table = joint.posterior(["x1", "x4"], evidence())
    assert frame.columns.names == ["x1", "x4"]
    for i, colour in enumerate(COLOURS):
        assert np.allclose(frame[colour], table[:, i], atol=1e-9)
    best = joint.map_states(["x1", "x4"], evidence_table())
    assert list(best.itertuples(index=False, name=None)) == frame.idxmax(axis=1).tolist()


# -- hidden variables ------------------------------------------------------------------------------------------------


def test_posteriors_of_latents(hidden: Any) -> None:
    answers = hidden.posteriors(evidence(), include_latent=True)
    assert set(answers) == set(GRAPH.names)
    torch.testing.assert_close(answers["h"], hidden.posterior("h", evidence()))
    torch.testing.assert_close(answers["h"].sum(dim=1), torch.ones(3).double())
    assert list(hidden.posteriors(evidence())) == ["x1", "x2", "x3", "x4"]
    assert "h" in hidden.posteriors(evidence_table(), include_latent=True).columns.get_level_values("variable")


def test_memberships_have_the_index_of_the_table(hidden: Any) -> None:
    table = training_table(6).set_axis([f"r{i}" for i in range(6)])
    table.loc["r2", "x3"] = None
    chances, best = hidden.predict_proba(table), hidden.predict(table, "h")
    assert chances.shape == (6, 3)
    assert chances.index.equals(table.index)
    assert best.index.equals(table.index)
    assert best.name == "h"
    assert best.tolist() == chances.to_numpy().argmax(axis=1).tolist()
    assert np.allclose(chances, hidden.posterior("h", table))
    codes = {
        v: torch.tensor(table[v].cat.codes.to_numpy() if v == "x1" else table[v].fillna(-1).to_numpy()) for v in table
    }
    torch.testing.assert_close(hidden.predict_proba(codes), torch.tensor(chances.to_numpy()))
    assert hidden.predict(codes).tolist() == best.tolist()
    with pytest.raises(QueryError, match=r"Expected the name of a latent, got 'x1'\. The model has: h"):
        hidden.predict(table, "x1")


def test_profiles_are_distributions_given_each_state(hidden: Any) -> None:
    table = hidden.profiles("h")
    assert table.index.names == ["variable", "state"]
    assert table.columns.name == "h"
    assert table.loc["x1"].index.tolist() == COLOURS
    assert np.allclose(table.groupby(level="variable").sum(), 1.0)
    shares = hidden.network.joint("h").numpy()
    assert np.allclose(table.loc["x4"].to_numpy() @ shares, hidden.posterior("x4")[0])
    with pytest.raises(QueryError, match="Expected the name of a latent"):
        hidden.profiles("x1")


def test_states_can_be_matched(hidden: Any, tmp_path: Path) -> None:
    hidden.save(tmp_path / "model.pt")
    model, other = torchpbp.load(tmp_path / "model.pt"), torchpbp.load(tmp_path / "model.pt")
    given, expected = model.posterior("h", evidence()), model.log_evidence(evidence())
    assert other.reordered({"h": [2, 0, 1]}) is other
    torch.testing.assert_close(other.posterior("h", evidence()), given[:, [2, 0, 1]])
    torch.testing.assert_close(other.log_evidence(evidence()), expected)
    other.save(tmp_path / "other.pt")
    torch.testing.assert_close(torchpbp.load(tmp_path / "other.pt").posterior("h"), other.posterior("h"))
    other.match_states(model)
    torch.testing.assert_close(other.posterior("h", evidence()), given)
    if isinstance(model, Learner):
        assert model.posterior("h")[0].tolist() == sorted(model.posterior("h")[0].tolist(), reverse=True)


# -- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INTERVALS)
def test_intervals_surround_the_answers(name: str) -> None:
    model, options = fitted(name), INTERVALS[name]
    table = model.interval("x1", evidence_table(), **options)
    answer = model.posterior("x1", evidence_table())
    assert list(table.columns) == [(part, c) for part in ("estimate", "lower", "upper") for c in COLOURS]
    pd.testing.assert_frame_equal(table["estimate"], answer, check_names=False)
    assert (table["lower"] <= table["upper"]).all(axis=None)
    assert table["lower"].ge(0).all(axis=None)
    assert table["upper"].le(1).all(axis=None)
    estimate, lower, upper = model.interval(None, evidence(), 0.8, **options)
    assert torch.allclose(estimate, model.log_evidence(evidence()))
    assert bool((lower <= upper).all())


def test_draws_repeat_with_their_seed(sampling: Any) -> None:
    rows = sampling.sample(40, seed=5)
    assert list(rows) == ["x1", "x2", "x3", "x4"]
    assert all(x.shape == (40,) and x.dtype == torch.int64 for x in rows.values())
    assert all(torch.equal(x, rows[v]) for v, x in sampling.sample(40, seed=5).items())
    assert any(not torch.equal(x, rows[v]) for v, x in sampling.sample(40, seed=6).items())
    assert all(x.shape == (0,) for x in sampling.sample(0).values())


def test_draws_given_evidence_follow_the_posterior(sampling: Any) -> None:
    rows = sampling.sample(3_000, evidence(), seed=0)
    assert all(x.shape == (3_000, 3) for x in rows.values())
    assert (rows["x2"][:, 0] == 0).all()
    assert (rows["x3"][:, 2] == 0).all()
    for v in ("x1", "x4"):
        shares = torch.nn.functional.one_hot(rows[v], 3).double().mean(dim=0)
        assert torch.allclose(shares, sampling.posterior(v, evidence()).double(), atol=0.1)


def test_draws_given_weights_follow_the_posterior(sampling: Any) -> None:
    weights = {"x2": torch.tensor([[0.2, 0.0, 0.8]])}
    rows = sampling.sample(3_000, weights, seed=0)
    assert not bool((rows["x2"] == 1).any())  # a state that the evidence excludes
    for v in ("x2", "x4"):
        shares = torch.nn.functional.one_hot(rows[v][:, 0], 3).double().mean(dim=0)
        assert torch.allclose(shares, sampling.posterior(v, weights)[0].double(), atol=0.1)


def test_draws_as_tables_have_labels_and_the_index_of_the_evidence(sampling: Any) -> None:
    rows = sampling.sample_frame(30, seed=5)
    assert rows.shape == (30, 4)
    assert rows["x1"].cat.categories.tolist() == COLOURS
    assert rows["x1"].cat.codes.tolist() == sampling.sample(30, seed=5)["x1"].tolist()
    given, drawn = sampling.sample_frame(5, evidence_table(), seed=5), sampling.sample(5, evidence(), seed=5)
    assert given.index.names == ["who", "draw"]
    assert given["x4"].unstack("who")[evidence_table().index].to_numpy().tolist() == drawn["x4"].tolist()


# -- files and devices -----------------------------------------------------------------------------------------------


def test_files_give_the_model_back(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    model.save(path)
    for loaded in (torchpbp.load(path), type(model).load(path)):
        assert type(loaded) is type(model)
        assert loaded.fitted
        assert (loaded.graph, loaded.labels, loaded.missing) == (model.graph, model.labels, model.missing)
        assert torch.allclose(loaded.log_evidence(evidence()), model.log_evidence(evidence()), rtol=1e-6)
        for v, p in model.posteriors(evidence()).items():
            assert torch.allclose(loaded.posterior(v, evidence()), p, atol=1e-6)
        assert loaded.posterior("x1", evidence_table()).columns.tolist() == COLOURS
        if isinstance(model, Sampling):
            drawn = loaded.sample(20, evidence(), seed=1)
            assert all(torch.equal(x, drawn[v]) for v, x in model.sample(20, evidence(), seed=1).items())


def test_files_of_other_classes_raise(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    other = fitted("KernelPBP" if isinstance(model, DiscreteNetwork) else "DiscreteNetwork")
    other.save(path)
    message = rf"holds no {type(model).__name__} model but one of {type(other).__name__}\. Use torchpbp\.load\(\)"
    with pytest.raises(CheckpointError, match=message):
        type(model).load(path)


def test_models_go_to_devices(model: Any) -> None:
    expected = model.log_evidence(evidence())
    assert model.to("cpu") is model
    assert model.device == torch.device("cpu")
    assert torch.equal(model.log_evidence(evidence()), expected)


def test_tensors_are_made_on_the_device_of_the_model(model: Any) -> None:
    """Where another device is the default, a tensor that is made without a device does not go with those of the model."""
    known = Evidence(3, evidence())
    with torch.device("meta"):
        answers = model.posteriors(known)
        single = model.posterior("x1", known)
        logs = model.log_evidence(known)
    assert {t.device.type for t in (*answers.values(), single, logs)} == {"cpu"}


# -- learning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEARNERS)
def test_learners_return_themselves_and_count_missing_values(name: str) -> None:
    model, table = LEARNERS[name](), training_table(100)
    assert model.fit(table) is model
    assert not any(model.missing.values())
    assert model.labels == {"x1": tuple(COLOURS)}
    table.loc[:24, "x2"] = None
    if name == "SpectralJunctionTree":
        with pytest.raises(DataError, match=r"values are missing .*, and this learner needs complete rows"):
            model.fit(table)
        return
    assert model.fit(table).missing == {"x1": 0.0, "x2": 0.25, "x3": 0.0, "x4": 0.0}


@pytest.mark.parametrize("name", LEARNERS)
def test_settings_can_be_written_and_read(name: str) -> None:
    settings = LEARNERS[name]().settings
    assert isinstance(settings, Settings)
    assert type(settings).from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize("undirected", [False, True])
def test_networks_come_back_from_files_as_they_were(undirected: bool, tmp_path: Path) -> None:
    network = DiscreteNetwork.random(torchpbp.templates.grid(2, 2), seed=1) if undirected else TRUTH
    network.save(tmp_path / "network.pt")
    loaded = torchpbp.load(tmp_path / "network.pt")
    assert [scope for scope, _ in loaded.factors] == [scope for scope, _ in network.factors]
    for (_, table), (_, expected) in zip(loaded.factors, network.factors, strict=True):
        torch.testing.assert_close(table, expected)
