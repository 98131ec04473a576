"""Each measure gives what its docstring says: zero error for the truth, known numbers for known answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from torchpbp import EM, PBP, DiscreteNetwork, MaximumLikelihood, SpectralJunctionTree, templates
from torchpbp.contract.intervals import Interval
from torchpbp.errors import StructureError
from torchpbp.experiments.compare.measures import (
    Coverage,
    Fit,
    HalfRows,
    HeldOut,
    HiddenStates,
    JointProbability,
    Maximum,
    Measure,
    QuestionKinds,
    Questions,
    Source,
    kl,
    thinned,
    with_missing,
)
from torchpbp.experiments.compare.real_tables import real_tables

CHAIN = templates.hmm(4, 2, 3)


def source_of(truth: DiscreteNetwork, rows: int = 200) -> Source:
    return Source(truth.graph, truth, truth.sample(rows, seed=4, include_latent=True), 0, 7)


def measured(measure: Measure, model: Any, source: Source, rows: dict[str, Tensor] | None = None) -> dict[str, float]:
    with torch.no_grad():
        return measure(
            Fit(model, lambda graph: EM(graph, restarts=1, max_steps=3, progress=False), rows or {}),
            source,
            measure.exact(source),
        )


@pytest.mark.parametrize("graph", [CHAIN, templates.diamond(2, 3, 1)], ids=["chain", "loop"])
@pytest.mark.parametrize(
    "measure", [Questions(2, 2), HalfRows(), JointProbability(), QuestionKinds()], ids=lambda m: type(m).__name__
)
def test_the_truth_has_no_error(measure: Measure, graph: Any) -> None:
    truth, other = DiscreteNetwork.random(graph, seed=3), DiscreteNetwork.random(graph, seed=5)
    source = source_of(truth)
    rows = truth.sample(50, seed=0)
    right, wrong = (measured(measure, model, source, rows) for model in (truth, other))
    others = ("kl_ignoring_evidence", "error_of_independence", "answers_per_second", "learned from gaps")
    columns = [c for c in right if c not in others]
    assert measure.main in columns
    for column in columns:
        assert right[column] == pytest.approx(0, abs=1e-10), column
        assert wrong[column] > 1e-3, column


def test_the_marginal_has_the_kl_of_evidence_ignored() -> None:
    truth = DiscreteNetwork.random(CHAIN, seed=3)

    class Marginal:
        def posterior(self, query: str, evidence: dict[str, Tensor]) -> Tensor:
            return truth.posterior(query, {}).expand(len(next(iter(evidence.values()))), -1)

    found = measured(Questions([["x1", "x2", "x3"]]), Marginal(), source_of(truth))
    assert found["kl"] == pytest.approx(found["kl_ignoring_evidence"])
    assert found["kl"] > 1e-3
    assert set(found) == {"kl", "kl_ignoring_evidence"}  # one question: no column of its own


def test_errors_of_joint_probabilities_are_relative() -> None:
    truth = DiscreteNetwork.random(CHAIN, seed=0)
    source = source_of(truth, rows=4)

    class Scaled:
        def log_evidence(self, rows: dict[str, Tensor]) -> Tensor:
            return truth.log_evidence(rows) + torch.tensor([1.0, 1.5, 0.5, 3.0], dtype=torch.float64).log()

    found = measured(JointProbability(), Scaled(), source)
    assert found["error"] == pytest.approx((0 + 0.5 + 0.5 + 2) / 4)
    assert found["median_error"] == pytest.approx(0.5)
    assert "negative_share" not in found


@pytest.mark.parametrize("kind", [PBP, SpectralJunctionTree])
def test_negative_estimates_count_in_the_signed_error_only(kind: Any) -> None:
    truth = DiscreteNetwork.random(templates.factorial_hmm(3, observed_states=8), seed=0, concentration=0.2)
    source = source_of(truth, rows=500)
    model = kind(truth.graph).fit(truth.sample(60, seed=1))
    found = measured(JointProbability(), model, source)
    with torch.no_grad():
        sign, size = model.log_evidence(source.observed, raw=True)
    exact = truth.log_evidence(source.observed).exp()
    assert found["negative_share"] == pytest.approx(float((sign <= 0).double().mean()))
    assert found["negative_share"] > 0
    assert found["signed_error"] == pytest.approx(float(((sign * size.exp() - exact).abs() / exact).mean()))
    assert found["signed_error"] > found["error"]


def test_independence_is_the_product_of_marginals() -> None:
    truth = DiscreteNetwork.random(templates.hmm(2, 2, 2), seed=1)
    table = truth.joint(truth.graph.observed)
    expected = float((torch.outer(table.sum(1), table.sum(0)) - table).abs().sum())  # the mean over many sampled rows
    found = measured(JointProbability(), truth, source_of(truth, rows=20_000))
    assert found["error_of_independence"] == pytest.approx(expected, rel=0.1)


def test_latent_states_may_be_in_another_order() -> None:
    truth = DiscreteNetwork.random(CHAIN, seed=3)
    tables = dict(truth.cpts)
    tables["h1"], tables["h2"], tables["x1"] = tables["h1"].flip(0), tables["h2"].flip(0), tables["x1"].flip(0)
    found = measured(QuestionKinds(), DiscreteNetwork(CHAIN, tables), source_of(truth), truth.sample(50, seed=0))
    assert found["P(latent | row)"] == pytest.approx(0, abs=1e-10)


def test_hidden_states_are_matched_before_they_are_counted() -> None:
    truth = DiscreteNetwork.random(templates.naive_bayes(4, states=2), seed=1, concentration=0.3)
    model = MaximumLikelihood(truth.graph, progress=False).fit(truth.sample(2_000, seed=1))
    assert measured(HiddenStates(), model, source_of(truth))["hidden_states"] > 0.8
    assert measured(HeldOut(), model, source_of(truth))["held_out"] < 0
    for graph in (truth.graph, templates.factorial_hmm(2, observed_states=3)):  # PBP has no states; no three views
        other = DiscreteNetwork.random(graph, seed=1)
        learned = PBP(graph) if graph is truth.graph else MaximumLikelihood(graph, progress=False)
        value = measured(HiddenStates(), learned.fit(other.sample(300, seed=0)), source_of(other))["hidden_states"]
        assert value != value


@pytest.mark.parametrize(("ends", "coverage"), [((0.0, 1.0), 1.0), ((2.0, 3.0), 0.0)])
def test_coverage_is_the_share_of_intervals_with_the_truth(ends: tuple[float, float], coverage: float) -> None:
    class Fixed(MaximumLikelihood):
        """The same interval for everything; none for the last row of a question."""

        def interval(self, query: str, evidence: Any = None, level: float = 0.95) -> Interval:
            estimate = self.network.posterior(query, evidence)
            lower, upper = (torch.full_like(estimate, end) for end in ends)
            lower[-1] = upper[-1] = torch.nan
            return Interval(estimate, lower, upper)

    truth = DiscreteNetwork.random(templates.naive_bayes(3, 2, 3), seed=0)
    model = Fixed(truth.graph, progress=False).fit(truth.sample(200, seed=1))
    found = measured(Coverage(questions=12), model, source_of(truth))
    assert (found["coverage"], found["width"]) == (coverage, pytest.approx(1.0))
    assert found["without_interval"] == pytest.approx(3 / 12)  # one of the rows of each observable
    with pytest.raises(StructureError, match="EM has no intervals"):
        measured(Coverage(), EM(truth.graph, restarts=1, max_steps=1, progress=False), source_of(truth))


@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_a_fit_to_the_maximum_reaches_it_and_one_step_of_em_does_not(prior: float) -> None:
    truth = DiscreteNetwork.random(templates.naive_bayes(3, 2, 2), seed=0, concentration=0.5)
    rows = truth.sample(200, seed=1)
    measure = Maximum(starts=5, max_steps=500)
    full = MaximumLikelihood(truth.graph, prior=prior, progress=False).fit(rows)
    found = measured(measure, full, source_of(truth), rows)
    assert found["reached"] == 1
    assert abs(found["short"]) < 0.1
    assert 0 < found["starts"] <= 1
    early = EM(truth.graph, restarts=1, max_steps=1, prior=prior, progress=False).fit(rows)
    found = measured(measure, early, source_of(truth), rows)
    assert (found["reached"], found["short"] > 0.1) == (0, True)
    with pytest.raises(StructureError, match="PBP has no tables with a prior"):
        measured(measure, PBP(truth.graph).fit(rows), source_of(truth), rows)


def test_thinned_rows_keep_a_value_and_about_half_of_all() -> None:
    rows = {v: torch.zeros(4000, dtype=torch.int64) for v in "abc"}
    hidden = torch.stack(list(thinned(rows).values())) < 0
    assert int(hidden.all(dim=0).sum()) == 0
    assert 0.4 < float(hidden.float().mean()) < 0.5
    assert not (thinned(rows, share=0.0)["a"] < 0).any()
    missing = torch.stack(list(with_missing(rows, 0.3, seed=0).values())) < 0
    assert 0.28 < float(missing.float().mean()) < 0.32


def test_kl_is_zero_for_equals_and_counts_impossible_answers() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    assert kl(p, p).tolist() == [0.0, 0.0]
    assert float(kl(p, torch.tensor([[0.25, 0.75, 0.0], [0.0, 1.0, 0.0]]))[1]) > 100


def test_real_tables_have_the_states_of_their_graphs() -> None:
    tables = real_tables()
    assert len(tables) == 5
    for graph, rows in tables.values():
        assert set(rows) == set(graph.observed)
        for v, x in rows.items():
            assert set(x.unique().tolist()) - {-1} == set(range(graph.num_states(v)))
