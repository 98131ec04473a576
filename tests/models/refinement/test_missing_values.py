"""Refinement of rows with gaps: what is missing is summed over, and nothing is asked about it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from torchpbp import PBP, Continuous, DiscreteNetwork, LatentGraph, RefinedPBP, refine, templates
from torchpbp.errors import DataError
from torchpbp.inputs.evidence import Evidence
from torchpbp.models.refinement import RefinementSettings
from torchpbp.models.refinement.objectives import ClassLikelihood, ConditionalLikelihood, JointLikelihood, hide
from torchpbp.models.refinement.walk import read_rows, walk


def draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def thinned(rows: dict[str, Tensor], share: float = 0.3, seed: int = 5) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {v: x.masked_fill(torch.rand(len(x), generator=generator) < share, -1) for v, x in rows.items()}


@pytest.fixture(scope="module")
def truth() -> DiscreteNetwork:
    return DiscreteNetwork.random(templates.hmm(4, 2, 3), seed=3, concentration=0.5)


@pytest.fixture(scope="module")
def model(truth: DiscreteNetwork) -> PBP:
    return PBP(truth.graph).fit_population(truth)


def test_the_loss_of_a_row_with_gaps_is_that_of_all_its_completions(model: PBP) -> None:
    names = list(model.states)
    row = {"x1": 2, "x2": -1, "x3": 0, "x4": -1}
    every = torch.cartesian_prod(
        *[torch.arange(n) if row[v] < 0 else torch.tensor([row[v]]) for v, n in model.states.items()]
    )
    completions = Evidence(len(every), dict(zip(names, every.unbind(dim=1), strict=True)))
    gappy = Evidence(1, {v: torch.tensor([s]) for v, s in row.items()})
    objective = JointLikelihood()
    total = torch.logsumexp(-objective.loss(model, completions, draw()), dim=0)
    torch.testing.assert_close(-objective.loss(model, gappy, draw())[0], total)


def test_nothing_is_asked_about_what_is_missing(model: PBP, truth: DiscreteNetwork) -> None:
    rows = read_rows(model, thinned(truth.sample(200, seed=1), share=0.2))
    visible, hidden = hide(rows, draw())
    for v, states in rows.hard.items():
        assert not (hidden[v] & (states < 0)).any()
        assert torch.equal(visible.hard[v] >= 0, (states >= 0) & ~hidden[v])
    lost = {**rows.hard, "x2": torch.full((rows.batch,), -1)}
    for objective in (ClassLikelihood("x2"), ConditionalLikelihood()):
        loss, score = (f(model, Evidence(rows.batch, lost), draw()) for f in (objective.loss, objective.score))
        assert loss.isfinite().all()
        # The link moves estimates a little; those of an exact model are far from where it matters.
        torch.testing.assert_close(loss, score, rtol=0.02, atol=0.02)
        if isinstance(objective, ClassLikelihood):
            assert not loss.any()
        else:
            assert loss.any()


def test_steps_never_lower_the_likelihood_of_what_is_there(truth: DiscreteNetwork) -> None:
    start = PBP(truth.graph).fit(truth.sample(300, seed=1))
    rows = read_rows(start, thinned(truth.sample(2000, seed=2)))
    settings = RefinementSettings(steps=8, prior=0.0, form="nonnegative", progress=False).resolved(start)
    losses = [float(JointLikelihood().loss(start, rows, draw()).detach().mean()) for _ in walk(start, rows, settings)]
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(losses))
    assert losses[-1] < losses[0] - 1e-3


def test_values_missing_by_values_that_are_there_do_not_bias_what_is_refined(truth: DiscreteNetwork) -> None:
    """The two-stage fit takes gaps to be random; x2 is missing nearly always where x1 is 2, and nearly never where it is 0."""
    data = truth.sample(20_000, seed=1)
    test = thinned(truth.sample(300, seed=9), share=0.5)
    generator = torch.Generator().manual_seed(0)
    gappy = dict(data)
    for seen, lost in (("x1", "x2"), ("x3", "x4")):
        share = torch.tensor([0.05, 0.5, 0.95])[data[seen]]
        gappy[lost] = data[lost].masked_fill(torch.rand(len(share), generator=generator) < share, -1)
    plain = PBP(truth.graph).fit(gappy)
    refined = RefinedPBP(truth.graph, folds=2, steps=25, progress=False).fit(gappy)
    assert refined.missing == plain.missing
    assert refined.missing["x2"] > 0.2
    errors = {name: mean_kl(truth, m, test) for name, m in (("plain", plain), ("refined", refined))}
    complete = mean_kl(truth, PBP(truth.graph).fit(data), test)
    assert errors["plain"] > 3 * complete  # the gaps do harm
    assert errors["refined"] < 0.2 * errors["plain"]


def mean_kl(truth: DiscreteNetwork, model: PBP, evidence: dict[str, Tensor]) -> float:
    """KL(exact ‖ learned), mean over rows and the variables that they do not observe."""
    exact, learned = truth.posteriors(evidence), model.posteriors(evidence)
    costs = [(exact[v] * (exact[v].log() - q.log())).sum(dim=1)[evidence[v] < 0] for v, q in learned.items()]
    return float(torch.cat(costs).detach().mean())


def test_continuous_values_may_be_missing() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randint(2, (600,), generator=generator)
    graph = LatentGraph([("h", v) for v in "abc"], {"h": 2, "a": Continuous(), "b": Continuous(), "c": 2}, ["h"])
    rows = {v: (hidden + 0.4 * torch.randn(600, generator=generator)).double() for v in "ab"}
    gaps = {v: x.masked_fill(torch.rand(600, generator=generator) < 0.15, math.nan) for v, x in rows.items()}
    gaps["c"] = hidden.masked_fill(torch.rand(600, generator=generator) < 0.15, -1)
    model = PBP(graph).fit(gaps)
    evidence = read_rows(model, gaps)
    for objective in (JointLikelihood(), ConditionalLikelihood(), ClassLikelihood("c")):
        with torch.enable_grad():
            loss = objective.loss(model, evidence, draw()).mean()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
        assert loss.isfinite()
        assert all(g.isfinite().all() for g in gradients)
    report = refine(model, gaps, RefinementSettings(form="signed", steps=3, progress=False))
    assert report.history.select_dtypes("number").iloc[:, 2:].notna().all(axis=None)


def test_rows_without_any_value_are_left_out_and_such_columns_raise(model: PBP, truth: DiscreteNetwork) -> None:
    rows = truth.sample(50, seed=1)
    empty = {v: torch.cat([x, torch.tensor([-1])]) for v, x in rows.items()}
    with pytest.warns(match="1 of 51 rows have no value at all"):
        assert read_rows(model, empty).batch == 50
    with pytest.raises(DataError, match="Column 'x2': all 50 values are missing"):
        refine(model, {**rows, "x2": torch.full((50,), -1)})


@pytest.mark.filterwarnings("ignore:Columns .* hold one state only")
def test_a_fold_without_any_value_of_a_column_leaves_the_model_as_it_was(truth: DiscreteNetwork) -> None:
    rows = truth.sample(200, seed=1)
    model = RefinedPBP(truth.graph, folds=2, steps=2, progress=False).fit(rows)
    before, report = model.posterior("x1", {"x3": [0, 1]}).detach(), model.refinement
    rare = {**rows, "x2": rows["x2"].masked_fill(torch.arange(200) > 0, -1)}
    with pytest.raises(DataError, match="Column 'x2': all 100 values are missing"):
        model.fit(rare)
    assert torch.equal(model.posterior("x1", {"x3": [0, 1]}), before)
    assert not any(model.missing.values())
    assert str(model.refinement) == str(report)


def test_labels_that_the_model_does_not_know_raise(model: PBP, truth: DiscreteNetwork) -> None:
    rows: dict[str, object] = dict(truth.sample(100, seed=1))
    with pytest.raises(DataError, match=r"Columns \['x1'\] hold labels, but the model was fitted without"):
        refine(model, {**rows, "x1": ["a"] * 100})
