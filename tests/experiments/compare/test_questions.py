"""Questions about posteriors, and the KL of their answers."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from torchpbp import DiscreteNetwork, templates
from torchpbp.errors import ArgumentError, DataError, QueryError, StructureError
from torchpbp.experiments.compare.questions import Question, at_values, chosen_questions, mean_kl, random_questions


def test_mean_kl_is_the_definition() -> None:
    truth = DiscreteNetwork.random(templates.naive_bayes(3, 2, 3), seed=5)
    question = at_values(truth.graph, ["x1", "x2", "x3"], 100, seed=0)
    answer = torch.tensor([0.5, 0.3, 0.2])
    expected = 0.0
    for a, b in itertools.product(range(3), range(3)):
        (exact,) = truth.posterior("x1", {"x2": a, "x3": b}).tolist()
        expected += sum(p * math.log(p / q) for p, q in zip(exact, answer.tolist(), strict=True)) / 9
    exact_answers = truth.posterior(question.query, question.evidence)
    assert mean_kl(exact_answers, answer.expand(9, 3)) == pytest.approx(expected, rel=1e-6)


def test_kl_of_the_truth_is_zero_and_of_a_ruled_out_truth_infinite() -> None:
    exact = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    assert mean_kl(exact, torch.tensor([[0.0, 1.0]])) == 0.0
    assert mean_kl(exact, torch.tensor([[1.0, 0.0]])) == math.inf


def test_random_questions_are_different_valid_and_fixed_by_the_seed() -> None:
    graph = templates.diamond()
    questions = random_questions(graph, 40, 3, seed=1)
    assert len(set(questions)) == 40
    for names in questions:
        assert len(set(names)) == 4
        assert set(names) <= set(graph.observed)
    assert questions == random_questions(graph, 40, 3, seed=1) != random_questions(graph, 40, 3, seed=2)


def test_small_graphs_give_all_the_questions_they_have() -> None:
    found = random_questions(templates.hmm(length=3), 10, 3, seed=0)
    assert set(found) == {("x1", "x2", "x3"), ("x2", "x1", "x3"), ("x3", "x1", "x2")}


def test_evidence_values_are_all_or_different_random_ones() -> None:
    graph = templates.diamond()
    for most, count in ((216, 216), (50, 50)):
        evidence = at_values(graph, ["d1", "a1", "b1", "c1"], most, seed=0).evidence
        assert len(set(zip(*(v.tolist() for v in evidence.values()), strict=True))) == count
        assert all(set(v.tolist()) == set(range(6)) for v in evidence.values())


def test_evidence_of_probability_zero_is_left_out() -> None:
    network = DiscreteNetwork.random(templates.naive_bayes(), seed=0, concentration=1e-3)  # nearly deterministic tables
    (question,) = chosen_questions(network.graph, 1, 3, 4096, seed=0)
    possible = question.possible(network)
    assert (
        0
        < len(possible.evidence[next(iter(possible.evidence))])
        <= len(question.evidence[next(iter(question.evidence))])
    )
    assert torch.isfinite(network.log_evidence(possible.evidence)).all()
    impossible = {"S": [1.0, 0.0], "x": [[1.0, 0.0], [0.0, 1.0]], "y": [[1.0, 0.0], [0.5, 0.5]]}
    graph = templates.naive_bayes(2, 2, 2)
    tables = dict(zip(graph.variables, impossible.values(), strict=True))
    certain = DiscreteNetwork(graph, tables)
    with pytest.raises(DataError, match="probability 0 to all evidence"):
        Question(graph.observed[0], {graph.observed[1]: torch.tensor([1])}).possible(certain)


def test_mistaken_questions_raise() -> None:
    graph = templates.diamond()
    for questions, error, text in [
        (0, ArgumentError, "questions: expected a whole number of at least 1, got 0"),
        ([["a1"]], ArgumentError, "questions: expected a query followed by its evidence variables"),
        (["a1"], ArgumentError, "questions: expected a query followed by its evidence variables"),
    ]:
        with pytest.raises(error, match=text):
            chosen_questions(graph, questions, 3, 100, seed=0)
    with pytest.raises(StructureError, match="at least two observables"):
        random_questions(templates.hmm(length=1), 1, 3, seed=0)
    (latent,) = chosen_questions(graph, [["a1", "A"]], 3, 100, seed=0)
    with pytest.raises(QueryError, match="'A'"):
        DiscreteNetwork.random(graph, 0).to_pbp().posterior(latent.query, latent.evidence)
