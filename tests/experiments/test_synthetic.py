"""The synthetic experiment: what it measures, and what it writes."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from torchpbp import PBP, DiscreteNetwork, LatentGraph, templates
from torchpbp.errors import ArgumentError, QueryError, StructureError
from torchpbp.experiments import run_synthetic
from torchpbp.experiments.running.results import replacing, write_json
from torchpbp.experiments.synthetic.questions import Question, draw_questions, make_question, mean_kl


class Constant:
    """A learner that learns nothing: it answers every question with one distribution."""

    def __init__(self, graph: LatentGraph, answer: Tensor | None = None) -> None:
        self.graph, self.answer = graph, answer

    def fit(self, data: dict[str, Tensor]) -> None:
        self.rows = len(next(iter(data.values())))

    def posterior(self, query: str, evidence: dict[str, Tensor]) -> Tensor:
        states = self.graph.num_states(query)
        answer = torch.full((states,), 1 / states) if self.answer is None else self.answer
        return answer.expand(len(next(iter(evidence.values()))), states)

    def save(self, path: Path) -> None:
        path.write_text("constant")


def run(**options: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"graph": templates.diamond(), "learner": PBP, "sizes": [300, 3000], "repeats": 2}
    return run_synthetic(**{**settings, "verbose": False, **options})


def test_a_learner_that_learns_nothing_does_not_improve() -> None:
    metrics = run(learner=Constant)
    assert metrics["kl/3000"] == metrics["kl/300"] > 0.05
    assert metrics["learner"] == "Constant"


def test_mean_kl_is_the_definition() -> None:
    truth = DiscreteNetwork.random(templates.naive_bayes(3, 2, 3), seed=5)
    question = make_question(truth.graph, ["x1", "x2", "x3"], 100, seed=0)
    assert question.values == 9
    answer = torch.tensor([0.5, 0.3, 0.2])
    expected = 0.0
    for a, b in itertools.product(range(3), range(3)):
        (exact,) = truth.posterior("x1", {"x2": a, "x3": b}).tolist()
        expected += sum(p * math.log(p / q) for p, q in zip(exact, answer.tolist(), strict=True)) / 9
    exact_answers = truth.posterior(question.query, question.evidence)
    assert mean_kl(Constant(truth.graph, answer), question, exact_answers) == pytest.approx(expected, rel=1e-6)


def test_mean_kl_of_the_truth_is_zero_and_of_a_ruled_out_truth_infinite() -> None:
    question = Question("x", {"y": torch.tensor([0])}, True)
    graph = LatentGraph([("x", "y")], {"x": 2, "y": 1})
    exact = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    assert mean_kl(Constant(graph, torch.tensor([0.0, 1.0])), question, exact) == 0.0
    assert mean_kl(Constant(graph, torch.tensor([1.0, 0.0])), question, exact) == math.inf


def test_a_size_gives_the_same_result_whatever_the_other_sizes() -> None:
    assert run(sizes=[300])["kl/300"] == pytest.approx(run(sizes=[3000, 300])["kl/300"], rel=1e-9)


def test_a_row_of_the_table_can_be_had_again_from_its_seeds(tmp_path: Path) -> None:
    run(output_dir=tmp_path, questions=[["b1", "a1", "c2"]])
    row = pd.read_csv(tmp_path / "metrics.csv").iloc[-1]
    truth = DiscreteNetwork.random(templates.diamond(), int(row["network_seed"]))
    model = PBP(truth.graph).fit(truth.sample(int(row["rows"]), seed=int(row["data_seed"])))
    question = make_question(truth.graph, ["b1", "a1", "c2"], 4096, seed=0)
    kl = mean_kl(model, question, truth.posterior(question.query, question.evidence))
    assert row["kl"] == pytest.approx(kl, rel=1e-9)
    assert row["kl P(b1 | a1, c2)"] == row["kl"]


def test_files_agree_with_each_other_and_with_the_metrics_returned(tmp_path: Path) -> None:
    metrics = run(output_dir=tmp_path / "new", repeats=3)
    folder = tmp_path / "new"
    assert {path.name for path in folder.iterdir()} == {"metrics.json", "metrics.csv", "kl.png", "model.pt"}
    assert json.loads((folder / "metrics.json").read_text()) == metrics
    table = pd.read_csv(folder / "metrics.csv")
    assert table[["rows", "repeat"]].to_numpy().tolist() == [[n, r] for n in (300, 3000) for r in range(3)]
    kls = table.loc[table["rows"] == 300, "kl"]
    assert metrics["kl/300"] == pytest.approx(kls.mean())
    assert metrics["kl_standard_error/300"] == pytest.approx(kls.std() / math.sqrt(3))
    assert (folder / "kl.png").read_bytes().startswith(b"\x89PNG")
    assert int(PBP.load(folder / "model.pt").rows) == 3000


def test_one_repeat_has_no_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = run(repeats=1, sizes=[300], verbose=True, output_dir=tmp_path)
    assert metrics["kl_standard_error/300"] is None
    assert json.loads((tmp_path / "metrics.json").read_text())["kl_standard_error/300"] is None
    *_, heading, line, ignoring = capsys.readouterr().out.splitlines()
    assert heading.split() == ["N", "KL", "mean", "KL", "std", "err", "fit", "seconds"]
    assert line.split()[:3] == ["300", f"{metrics['kl/300']:.6f}", "-"]
    assert ignoring.split() == ["no", "evidence", f"{metrics['kl_ignoring_evidence']:.6f}"]


def test_quiet_run_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    run(sizes=[300], repeats=1)
    assert capfd.readouterr() == ("", "")


def test_questions_are_different_valid_and_fixed_by_the_seed() -> None:
    graph = templates.diamond()
    questions = draw_questions(graph, 40, 3, seed=1)
    assert len(set(questions)) == 40
    for query, *given in questions:
        assert len({query, *given}) == 4
        assert {query, *given} <= set(graph.observed)
    assert questions == draw_questions(graph, 40, 3, seed=1) != draw_questions(graph, 40, 3, seed=2)


def test_small_graphs_give_all_the_questions_they_have() -> None:
    graph = templates.hmm(length=3)
    assert set(draw_questions(graph, 10, 3, seed=0)) == {("x1", "x2", "x3"), ("x2", "x1", "x3"), ("x3", "x1", "x2")}


def test_evidence_values_are_all_or_different_random_ones() -> None:
    graph = templates.diamond()
    every = make_question(graph, ["d1", "a1", "b1", "c1"], 216, seed=0)
    some = make_question(graph, ["d1", "a1", "b1", "c1"], 50, seed=0)
    assert len(set(zip(*(v.tolist() for v in every.evidence.values()), strict=True))) == every.values == 216
    assert len(set(zip(*(v.tolist() for v in some.evidence.values()), strict=True))) == some.values == 50
    assert every.asked_all
    assert not some.asked_all
    assert all(set(v.tolist()) == set(range(6)) for v in some.evidence.values())


def test_evidence_of_probability_zero_is_left_out() -> None:
    # Tables this close to deterministic rule out most joint values of the evidence; the others are asked.
    metrics = run(graph=templates.naive_bayes(), learner=Constant, concentration=1e-3, repeats=10, sizes=[10])
    assert math.isfinite(metrics["kl/10"])


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"sizes": []}, ArgumentError, "sizes: expected one or more whole numbers of at least 1, got \\[\\]"),
        ({"sizes": [10.5]}, ArgumentError, "sizes: .* got \\[10.5\\]"),
        ({"repeats": 0}, ArgumentError, "repeats: expected a whole number of at least 1, got 0"),
        ({"questions": 0}, ArgumentError, "questions: expected a whole number of at least 1 or .*, got 0"),
        ({"questions": []}, ArgumentError, "questions: .* one or more questions, .* got \\[\\]"),
        ({"questions": [["a1"]]}, ArgumentError, "questions: expected a query followed by its evidence variables"),
        ({"questions": ["a1"]}, ArgumentError, "questions: .* each a query followed by its evidence variables"),
        ({"questions": [["a1", "A"]]}, QueryError, "'A'"),
        ({"evidence_variables": 0}, ArgumentError, "evidence_variables: expected a whole number of at least 1, got 0"),
        ({"max_values": 0}, ArgumentError, "max_values: expected a whole number of at least 1, got 0"),
        ({"learner": PBP(templates.diamond())}, StructureError, "PBP with a graph of its own. Choose learner=pbp"),
        ({"graph": templates.hmm(length=1)}, StructureError, "at least two observables"),
        ({"graph": templates.hmm(states=None)}, StructureError, "unknown cardinality"),
    ],
)
def test_bad_settings_raise(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(**options)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def fail() -> None:
        with replacing(target) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_json_is_strict(tmp_path: Path) -> None:
    write_json(tmp_path / "m.json", {"a": math.inf, "b": math.nan, "c": 1.5, "d": "x"})
    text = (tmp_path / "m.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "b": None, "c": 1.5, "d": "x"}
