"""Refinement as a whole: the guard, what it returns when descent goes wrong, and that it helps."""

import copy
import math
import warnings

import pytest
import torch

from torchpbp import PBP, Continuous, DiscreteNetwork, LatentGraph, templates
from torchpbp.errors import ArgumentError, DataError, NotFittedError, QueryError, StructureError, TorchPBPWarning
from torchpbp.inputs import Evidence
from torchpbp.models.refinement import (
    ClassLikelihood,
    ConditionalLikelihood,
    JointLikelihood,
    RefinementSettings,
    refine,
)
from torchpbp.models.refinement.guard import START, Guard, Record, Trace, pooled
from torchpbp.models.refinement.objectives import negative_share, random_cells
from torchpbp.models.refinement.walk import candidate_steps

QUIET = {"progress": False, "steps": 4, "batch_size": 100}
OBJECTIVES = {
    "joint": JointLikelihood(),
    "conditional": ConditionalLikelihood(),
    "class": ClassLikelihood("b1"),
    "own": lambda model, rows: -model.log_evidence(rows),
}


@pytest.fixture(scope="module")
def network():
    return DiscreteNetwork.random(templates.diamond(2, 3, 1), seed=2)


@pytest.fixture(scope="module")
def rows(network):
    return network.sample(500, seed=11)


@pytest.fixture
def model(network):
    return PBP(network.graph, ridge=(0.01, 0.01)).fit(network.sample(200, seed=3))


def held_out(model, objective, rows, seed=0):
    """The held-out rows of ``refine`` again, scored by hand."""
    order = torch.randperm(500, generator=torch.Generator().manual_seed(seed))[:100]
    evidence = Evidence(100, {v: x[order] for v, x in rows.items()})
    return Guard(objective.guards, evidence, seed).record(model, 0).means


@pytest.mark.parametrize("form", ["nonnegative", "signed"])
@pytest.mark.parametrize(("name", "rate"), [("joint", 0.01), ("conditional", 0.01), ("class", 0.01), ("joint", 1e6)])
def test_never_worse_than_the_start_on_held_out_rows(model, rows, form, name, rate):
    objective = OBJECTIVES[name]
    before = held_out(model, objective, rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchPBPWarning)
        report = refine(model, rows, RefinementSettings(objective, form, learning_rate=rate, **QUIET))
    after = held_out(model, objective, rows)
    assert set(after) == {o.name for o in objective.guards}
    assert all(after[k] <= before[k] + 1e-12 for k in before)
    assert after == pytest.approx(report.trace.best().means)
    assert before == pytest.approx(report.trace.records[0].means)
    if report.steps is None:
        assert after == before


def test_an_absurd_learning_rate_leaves_the_model_as_it_was(model, rows):
    kept = [w.detach().clone() for w in model.operator_tree.operators]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchPBPWarning)
        report = refine(model, rows, RefinementSettings(ConditionalLikelihood(), "signed", learning_rate=1e8, **QUIET))
    assert report.steps is None
    assert all(torch.equal(a, b) for a, b in zip(kept, model.operator_tree.operators, strict=True))
    assert "two-stage model kept" in str(report)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("form", ["nonnegative", "signed"])
def test_a_loss_that_is_no_number_restores_the_best_state_and_says_so(model, rows, form, bad):
    calls = []

    def loss(model, rows):
        costs = -model.log_evidence(rows)
        if torch.is_grad_enabled():
            calls.append(len(costs))
        return costs * bad if len(calls) > 8 else costs  # the third pass of four mini-batches

    with pytest.warns(TorchPBPWarning, match="no longer finite after 3 passes"):
        report = refine(model, rows, RefinementSettings(loss, form, learning_rate=0.01, **QUIET))
    assert all(bool(w.isfinite().all()) for w in model.operator_tree.operators)
    assert [r.step for r in report.trace.records][-1] == 2
    assert report.steps is None or report.steps <= 2


def test_an_exact_model_stays_exact(network):
    """From exact moments only noise can be learned: answers move by less than the sampling error of so many rows."""
    model = PBP(network.graph).fit_population(network)
    names = list(model.observables)
    evidence = {v: torch.arange(3) for v in names[1:]}
    truth = network.posterior(names[0], evidence)
    data = network.sample(4000, seed=13)
    refine(model, data, RefinementSettings(progress=False, steps=5))
    assert torch.allclose(model.posterior(names[0], evidence), truth, atol=0.05)
    kl = (network.log_evidence(data) - model.log_evidence(data)).mean()
    free = sum(w.numel() for w in model.operator_tree.operators)
    assert abs(float(kl.detach())) < free / 4000


def test_signed_descent_lowers_negative_mass(network):
    data = network.sample(60, seed=5)
    model = PBP(network.graph, ridge=(1e-3, 1e-3)).fit(data)
    cells = random_cells(model, 300, torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = float(negative_share(model, cells))
    report = refine(
        model, network.sample(400, seed=6), RefinementSettings(form="signed", penalty=10.0, learning_rate=0.01, **QUIET)
    )
    with torch.no_grad():
        after = float(negative_share(model, cells))
    assert report.steps is not None
    assert after < before


def test_both_forms_come_closer_to_the_truth_from_a_poor_start(network, rows):
    """Fresh rows, ten times as many as the start has seen: whichever form, the likelihood of other rows must rise."""
    start = PBP(network.graph).fit(network.sample(100, seed=3))
    other = network.sample(4000, seed=17)
    true = float(network.log_evidence(other).mean())
    gap = true - float(start.log_evidence(other).detach().mean())
    for form in ("nonnegative", "signed"):
        model = copy.deepcopy(start)
        report = refine(
            model, network.sample(2000, seed=19), RefinementSettings(form=form, learning_rate=0.01, **QUIET)
        )
        assert report.steps is not None
        total = float(model.log_evidence().detach())
        assert true - float(model.log_evidence(other).detach().mean()) + total < gap


@pytest.mark.parametrize(("name", "form"), [("joint", "nonnegative"), ("conditional", "signed")])
def test_the_same_seed_gives_the_same_model(network, rows, name, form):
    def refined(seed):
        model = PBP(network.graph).fit(network.sample(100, seed=3))
        report = refine(model, rows, RefinementSettings(OBJECTIVES[name], form, seed=seed, **{**QUIET, "steps": 2}))
        return report.history.to_csv(), [w.detach() for w in model.operator_tree.operators]

    (first, weights), (second, again) = refined(5), refined(5)
    assert first == second
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True))
    assert refined(6)[0] != first


def test_refitting_uses_all_rows_and_is_judged_like_the_others(network):
    data = network.sample(2000, seed=19)
    models = [PBP(network.graph, ridge=(0.01, 0.01)).fit(network.sample(60, seed=5)) for _ in range(2)]
    settings = RefinementSettings(progress=False, steps=3)
    first, second = (refine(m, data, settings, refit=refit) for m, refit in zip(models, (False, True), strict=True))
    assert first.steps is not None
    assert first.steps == second.steps
    assert not torch.equal(models[0].root.weight, models[1].root.weight)
    start = PBP(network.graph, ridge=(0.01, 0.01)).fit(network.sample(60, seed=5))
    held = torch.randperm(2000, generator=torch.Generator().manual_seed(0))[:400]
    judge = Guard(JointLikelihood().guards, Evidence(400, {v: x[held] for v, x in data.items()}), 0)
    before, after = judge.record(start, 0).means, judge.record(models[1], 0).means
    assert all(after[k] <= before[k] for k in before)


def test_continuous_models_are_refined_in_signed_form():
    variables = {"h": 2, "x": Continuous(), "y": Continuous(), "c": 3}
    graph = LatentGraph([("h", "x"), ("h", "y"), ("h", "c")], variables, ["h"])
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randint(2, (300,), generator=draw)
    data = {v: 2.0 * hidden + 0.5 * torch.randn(300, generator=draw, dtype=torch.float64) for v in "xy"}
    data["c"] = hidden + torch.randint(2, (300,), generator=draw)
    for objective in (None, ClassLikelihood("c"), JointLikelihood()):
        model = PBP(graph).fit(data)
        report = refine(model, data, RefinementSettings(objective, **{**QUIET, "steps": 2}))
        assert report.form == "signed"
        assert len(report.trace.records) == 3
        assert all(math.isfinite(r.total) for r in report.trace.records)
        density = model.posterior("x", {"c": [0, 2]})
        assert bool((density.mean[0] < density.mean[1]).item())
    with pytest.raises(StructureError, match="got continuous \\['x', 'y'\\]"):
        refine(model, data, RefinementSettings(form="nonnegative"))


def test_float32_models_are_refined(network, rows):
    model = PBP(network.graph, dtype=torch.float32).fit(network.sample(100, seed=3))
    for form in ("nonnegative", "signed"):
        refine(model, rows, RefinementSettings(form=form, **QUIET))
        assert model.root.weight.dtype == torch.float32
        assert bool(model.posterior("b1").isfinite().all())


def record(step, *costs):
    return Record(step, 0.0, {"nll": torch.tensor(costs, dtype=torch.float64)})


def test_the_guard_wants_more_than_one_standard_error():
    trace = Trace([record(START, 1.0, 1.0, 1.0, 1.0)])
    sure, lucky, worse = record(1, 0.9, 0.8, 0.9, 0.8), record(2, -2.0, 2.0, 1.0, 1.0), record(3, 2.0, 2.0, 2.0, 2.0)
    trace.records += [lucky, sure, worse]
    assert [trace.passes(r) for r in trace.records] == [True, False, True, False]
    assert trace.best() is sure
    assert trace.table()["chosen"].tolist() == [False, False, True, False]
    trace.records.append(record(4, math.nan, 0.0, 0.0, 0.0))
    assert trace.best() is sure


def test_a_candidate_must_not_be_worse_on_any_guard():
    start = Record(START, 0.0, {"nll": torch.ones(4), "conditional": torch.ones(4)})
    one = Record(1, 0.0, {"nll": torch.zeros(4), "conditional": torch.full((4,), 1.01)})
    assert not Trace([start, one]).passes(one)


def test_descent_stalls_after_candidates_without_progress():
    trace = Trace([record(START, 1.0)])
    for step, cost in enumerate([3.0, 2.0, 2.5, 2.2]):
        trace.records.append(record(step, cost))
    assert not trace.stalled(3)
    assert trace.stalled(2)


def test_folds_are_pooled_row_by_row():
    together = pooled([record(2, 1.0, 2.0), record(2, 6.0)])
    assert together.means == {"nll": 3.0}
    assert together.step == 2


def test_candidates_end_with_the_last_step():
    assert candidate_steps(4) == [1, 2, 3, 4]
    assert candidate_steps(220)[-4:] == [100, 150, 200, 220]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "positive"}, "form: expected one of 'auto', 'nonnegative', 'signed', got 'positive'"),
        ({"steps": 0}, "steps: expected a whole number of at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size: expected a whole number"),
        ({"patience": -1}, "patience: expected a whole number"),
        ({"prior": -0.1}, "prior: expected a non-negative number"),
        ({"penalty": math.nan}, "penalty: expected a non-negative number"),
        ({"learning_rate": 0.0}, "learning_rate: expected None or a positive number"),
        ({"objective": "nll"}, "objective: expected None or an Objective"),
    ],
)
def test_invalid_settings_raise(options, message):
    with pytest.raises(ArgumentError, match=message):
        RefinementSettings(**options)


def test_bad_calls_raise(network, model, rows):
    with pytest.raises(ArgumentError, match="held_out: expected a number between 0 and 1, got 2"):
        refine(model, rows, held_out=2)
    with pytest.raises(DataError, match="expected at least 20 rows to learn from and 20 held out, got 40 and 10"):
        refine(model, {v: x[:50] for v, x in rows.items()})
    with pytest.raises(NotFittedError, match="not fitted yet"):
        refine(PBP(network.graph), rows)
    with pytest.raises(QueryError, match="ClassLikelihood of 'A'"):
        refine(model, rows, RefinementSettings(ClassLikelihood("A")))
    with pytest.raises(DataError, match="missing columns"):
        refine(model, {"a1": rows["a1"]})
