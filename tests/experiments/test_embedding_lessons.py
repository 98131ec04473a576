"""Networks of pen digits that learn from a generative teacher's answers besides the labels."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from torchpbp import PBP, KernelPBP, templates
from torchpbp.classifier import GenerativeClassifier
from torchpbp.datasets import DigitsDataModule, load_digits
from torchpbp.errors import DataError, ShapeError, StructureError
from torchpbp.experiments import run_digits_embedding
from torchpbp.experiments.embedding.lessons import GAPPY, Lessons, LessonSettings, prepare_lessons
from torchpbp.experiments.embedding.network import NetworkAverage
from torchpbp.experiments.embedding.opinions import fit_companion
from torchpbp.experiments.embedding.start import build_network
from torchpbp.experiments.embedding.training import StrokeTraining, TrainingSettings, train_network

SMALL: dict[str, Any] = {"states": 6, "hidden_states": 6, "width": 8, "window": 1, "softness": 0.1}
QUIET = {"accelerator": "cpu", "devices": 1, "enable_progress_bar": False}
STILL = (0.0, 0.0, 0.0, 0.0)
KERNEL_DENSITY = KernelPBP(templates.pen_clique(), bandwidth=20.0, evidence_bandwidth=10.0)
learner = functools.partial(PBP, root=None)


@pytest.fixture(scope="module")
def rows() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    return digits.train_x[:400], digits.train_y[:400]


@pytest.fixture(scope="module")
def teacher(rows: tuple[Tensor, Tensor]) -> GenerativeClassifier:
    return fit_companion(KERNEL_DENSITY, *rows, copies=0, slant=0.0, seed=0, verbose=False)


def test_lessons_are_the_teachers_answers_to_distorted_strokes_with_gaps(
    rows: tuple[Tensor, Tensor], teacher: GenerativeClassifier
) -> None:
    made = prepare_lessons(teacher, rows[0], LessonSettings(3, 0.7, 1.0, 50), (8.0, 0.2, 0.1, 2.0), 6, seed=1)
    assert made.strokes.shape == (1200, 16)
    assert (made.weight, made.rows) == (0.7, 50)
    hidden = made.strokes.isnan().sum(dim=1) // 2
    assert set(hidden.tolist()) == set(range(7))
    assert float((hidden > 0).float().mean()) == pytest.approx(GAPPY, abs=0.05)
    expected = torch.from_numpy(teacher.predict_proba(made.strokes.double())).float()
    assert torch.allclose(made.answers, expected, atol=1e-5)
    # The fewer points it sees the less sure it is, which labels would not tell.
    sure = made.answers.max(dim=1).values
    assert float(sure[hidden == 0].mean()) > float(sure[hidden == 6].mean()) + 0.1
    whole = hidden == 0
    assert not torch.allclose(made.strokes[whole], rows[0].repeat(3, 1)[whole], atol=1.0)


def test_a_power_below_one_makes_answers_less_sure_and_keeps_their_order(
    rows: tuple[Tensor, Tensor], teacher: GenerativeClassifier
) -> None:
    plain, calm = (
        prepare_lessons(teacher, rows[0], LessonSettings(1, 1.0, power, 10), STILL, 6, seed=2).answers
        for power in (1.0, 0.5)
    )
    roots = plain.double().sqrt()
    assert torch.allclose(calm.double(), roots / roots.sum(dim=1, keepdim=True), atol=1e-5)
    of_surest = calm.gather(1, plain.argmax(dim=1, keepdim=True)).squeeze(1)
    assert torch.allclose(of_surest, calm.amax(dim=1), atol=1e-5)


def test_each_draw_pairs_strokes_with_their_answers() -> None:
    strokes = torch.arange(40.0).unsqueeze(1).expand(40, 16)
    lessons = Lessons(strokes, strokes[:, :10], 1.0, 30)
    drawn, answers = lessons.draw(torch.zeros(1, dtype=torch.float64), torch.Generator().manual_seed(0))
    assert drawn.shape == (30, 16)
    assert drawn.dtype == torch.float64
    assert torch.equal(drawn[:, :10], answers)
    assert len(drawn[:, 0].unique()) > 10
    again = lessons.draw(strokes, torch.Generator().manual_seed(0))[0]
    assert torch.equal(again, drawn.float())


@pytest.mark.slow
def test_networks_learn_what_the_teacher_says_even_against_the_labels(rows: tuple[Tensor, Tensor]) -> None:
    """A teacher that calls every digit by the next one's name, with a large weight, is believed."""
    wrong = (rows[1] + 1) % 10
    answers = torch.nn.functional.one_hot(wrong, 10).float()
    settings = TrainingSettings(15, 64, 0.01, 0.0, 0.0, 0.9, 0.0, *STILL, seed=1)
    shares = {}
    for weight in (0.0, 20.0):
        network = NetworkAverage([build_network(learner, *rows, **SMALL, two_stage=True, seed=0)])
        training = StrokeTraining(network, settings, rows, rows, Lessons(rows[0], answers, weight, 64))
        predicted = train_network(training, QUIET, None, verbose=False)(rows[0]).argmax(dim=1)
        shares[weight] = float((predicted == wrong).float().mean())
    assert shares[0.0] < 0.2
    assert shares[20.0] > 0.7


def run(**changes: Any) -> dict[str, Any]:
    options = {**SMALL, "epochs": 2, "batch_size": 64, "hidden": (0, 4), "limit": 50, "trainer": QUIET}
    options |= {"random": 0, "verbose": False, "lessons": 1, "lesson_rows": 32}
    return run_digits_embedding(DigitsDataModule(train_size=20), learner=learner, **{**options, **changes})


def test_a_run_with_a_teacher_is_repeatable_and_differs_for_both_networks() -> None:
    first, second, alone = run(teacher=KERNEL_DENSITY), run(teacher=KERNEL_DENSITY), run()
    for name in ("test", "twin"):
        assert first[f"{name}/log_loss"] == second[f"{name}/log_loss"]
        assert first[f"{name}/log_loss"] != alone[f"{name}/log_loss"]
    assert "seconds/lessons" in first
    assert "seconds/lessons" not in alone
    assert run(teacher=KERNEL_DENSITY, lesson_weight=0.0)["test/log_loss"] == pytest.approx(
        alone["test/log_loss"], abs=1e-4
    )


def test_bad_lessons_raise() -> None:
    with pytest.raises(DataError, match="leave out the teacher"):
        run(lessons=0)
    with pytest.raises(DataError, match="at least 1 copy and 1 row per step"):
        run(lesson_rows=0)
    with pytest.raises(DataError, match="a weight of at least 0, got -1"):
        run(lesson_weight=-1.0)
    with pytest.raises(DataError, match="a power of at least 0"):
        run(lesson_power=math.nan)
    with pytest.raises(StructureError, match="Choose learner=pen_average"):
        run(teacher=learner)
    with pytest.raises(ShapeError, match=r"\(lessons, classes\) answers"):
        Lessons(torch.zeros(3, 16), torch.zeros(2, 10), 1.0, 1)
