"""RefinedPBP: a learner like PBP, judged across folds, saved with its settings, used like any other model."""

import inspect
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

import torchpbp
from tests.closeness import assert_same_up_to_rounding, weights
from torchpbp import PBP, DiscreteNetwork, PBPLayer, RefinedPBP, templates
from torchpbp.errors import ArgumentError, CheckpointError, DataError, StructureError
from torchpbp.models.refinement import ClassLikelihood, Refinement, RefinementSettings
from torchpbp.models.two_stage_model import TwoStageModel

QUICK = {"steps": 3, "folds": 2, "progress": False}


@pytest.fixture(scope="module")
def network():
    return DiscreteNetwork.random(templates.naive_bayes(5, 2, 3), seed=2)


@pytest.fixture(scope="module")
def data(network):
    return network.sample(600, seed=3)


@pytest.fixture(scope="module")
def fitted(network, data):
    """From a start with too little regularisation, which leaves something to refine."""
    return RefinedPBP(network.graph, ridge=(1e-3, 1e-3), **QUICK).fit(data)


def test_it_answers_like_any_model(network, data, fitted):
    assert isinstance(fitted.refinement, Refinement)
    assert isinstance(fitted, TwoStageModel)
    evidence = {"x1": [0, 2], "x2": [1, -1]}
    answer = fitted.posterior("x5", evidence).detach()
    assert torch.allclose(answer.sum(dim=1), torch.ones(2, dtype=torch.float64))
    assert torch.allclose(answer, fitted.posteriors(evidence)["x5"].detach())
    assert torch.allclose(answer, network.posterior("x5", evidence), atol=0.15)
    drawn = fitted.sample(50, seed=1)
    assert all(int(x.max()) < 3 for x in drawn.values())
    assert len(fitted.diagnostics()) == len(fitted.tree) - 1
    layer = PBPLayer(fitted)
    out = layer({"x1": torch.tensor([0, 2])})["x5"]
    out[:, 0].sum().backward()
    assert float(fitted.root.weight.grad.abs().sum()) > 0


def test_folds_judge_every_row_once(data, fitted):
    history = fitted.refinement.history
    assert history["step"].iloc[0] == -1
    assert history["chosen"].sum() == 1
    start = fitted.refinement.trace.records[0]
    assert len(start.costs) == len(data["x1"])


def test_without_an_accepted_candidate_it_is_pbp(network, data):
    plain = PBP(network.graph).fit(data)
    hopeless = RefinedPBP(network.graph, objective=lambda model, rows: 0 * model.log_evidence(rows), **QUICK).fit(data)
    assert hopeless.refinement.steps is None
    assert_same_up_to_rounding(weights(hopeless), weights(plain))


def test_same_seed_same_model(network, data, fitted):
    again = RefinedPBP(network.graph, ridge=(1e-3, 1e-3), **QUICK).fit(data)
    assert all(
        torch.equal(a, b) for a, b in zip(fitted.operator_tree.operators, again.operator_tree.operators, strict=True)
    )
    assert again.refinement.history.equals(fitted.refinement.history)


def test_tables_batches_and_labels_give_the_same_model(network, data, fitted):
    options = {"ridge": (1e-3, 1e-3), **QUICK}
    batches = [{v: x[i : i + 250] for v, x in data.items()} for i in range(0, 600, 250)]
    streamed = RefinedPBP(network.graph, **options).fit(iter(batches))
    frame = pd.DataFrame({v: pd.Categorical.from_codes(x.numpy(), ["a", "b", "c"]) for v, x in data.items()})
    labelled = RefinedPBP(network.graph, **options).fit(frame)
    for model in (streamed, labelled):
        assert all(
            torch.allclose(a, b, atol=1e-9)
            for a, b in zip(fitted.operator_tree.operators, model.operator_tree.operators, strict=True)
        )
    assert torch.allclose(labelled.posterior("x5", {"x1": ["a"]}), fitted.posterior("x5", {"x1": [0]}), atol=1e-9)


@pytest.mark.slow
def test_refinement_brings_conditionals_closer_on_average():
    """Three networks on the default diamond: the mean KL to exact posteriors must fall, none may get much worse."""
    before, after = [], []
    for seed in range(3):
        truth = DiscreteNetwork.random(templates.diamond(), seed=seed)
        rows = truth.sample(2000, seed=100 + seed)
        grid = torch.cartesian_prod(*[torch.arange(6)] * 3)
        evidence = dict(zip(("a1", "b1", "c1"), grid.unbind(dim=1), strict=True))
        exact = truth.posterior("d1", evidence)
        refined = RefinedPBP(truth.graph, steps=8, folds=2, progress=False).fit(rows)
        for model, kls in ((PBP(truth.graph).fit(rows), before), (refined, after)):
            found = model.posterior("d1", evidence).detach()
            kls.append(float((exact * (exact / found).log()).sum(dim=1).mean()))
    assert sum(after) < sum(before)
    assert all(a < 2 * b + 1e-3 for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("objective", [None, ClassLikelihood("x2", scale=0.01)])
def test_saved_and_loaded_with_its_settings(tmp_path, network, data, objective):
    model = RefinedPBP(network.graph, objective=objective, prior=2.5, patience=2, seed=9, **QUICK).fit(data)
    path = tmp_path / "model.pt"
    model.save(path)
    loaded = RefinedPBP.load(path)
    assert loaded.settings == model.settings
    assert loaded.refinement_settings == model.refinement_settings
    assert loaded.folds == 2
    assert loaded.settings.seed == 9
    evidence = {"x1": [0, 2]}
    assert torch.equal(loaded.posterior("x5", evidence), model.posterior("x5", evidence))
    assert type(torchpbp.load(path)) is RefinedPBP
    with pytest.raises(CheckpointError, match="holds no PBP model but one of RefinedPBP"):
        PBP.load(path)


def test_a_loss_function_is_not_written(tmp_path, network, data):
    model = RefinedPBP(network.graph, objective=lambda model, rows: -model.log_evidence(rows), **QUICK).fit(data)
    model.save(tmp_path / "own.pt")
    assert RefinedPBP.load(tmp_path / "own.pt").refinement_settings.objective is None


def test_constructor_and_settings_have_the_same_defaults():
    own = {n: p.default for n, p in inspect.signature(RefinedPBP).parameters.items() if n not in ("graph", "options")}
    del own["folds"]
    settings = RefinementSettings()
    assert own == {n: getattr(settings, n) for n in own}
    assert set(own) == set(inspect.signature(RefinementSettings).parameters) - {"seed"}


def test_the_learner_file_shows_every_option_with_its_default():
    shown = yaml.safe_load((Path(__file__).parents[3] / "conf/learner/pbp_refined.yaml").read_text(encoding="utf-8"))
    assert shown.pop("defaults") == ["pbp", "_self_"]
    assert shown.pop("_target_") == "torchpbp.RefinedPBP"
    parameters = inspect.signature(RefinedPBP).parameters
    assert shown == {n: p.default for n, p in parameters.items() if n not in ("graph", "options")}


def test_bad_options_raise(network, data):
    with pytest.raises(ArgumentError, match="folds: expected a whole number of at least 2, got 1"):
        RefinedPBP(network.graph, folds=1)
    with pytest.raises(ArgumentError, match="steps: expected a whole number"):
        RefinedPBP(network.graph, steps=0)
    with pytest.raises(DataError, match="expected at least 60 rows for 3 folds, got 50"):
        RefinedPBP(network.graph).fit({v: x[:50] for v, x in data.items()})
    graph = torchpbp.LatentGraph([("h", "x"), ("h", "y")], {"h": 2, "x": torchpbp.Continuous(), "y": 2}, ["h"])
    with pytest.raises(StructureError, match="Use form='signed'"):
        RefinedPBP(graph, form="nonnegative")
