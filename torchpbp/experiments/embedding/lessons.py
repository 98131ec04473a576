"""Lessons from a teacher: strokes with gaps and a generative model's answers to them, which networks learn to give as well.

A label is no good lesson where points are hidden: it says "3" even if what is left of the stroke could be a 2. A kernel
model tells how much is left open.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.classifier import GenerativeClassifier
from torchpbp.errors import DataError, ShapeError
from torchpbp.experiments.digits.distortions import distorted, hidden_at_random
from torchpbp.experiments.embedding.opinions import ask_companion

GAPPY = 0.85
"""Share of the lessons with hidden points: more than in other training strokes, as labels do for complete ones."""


@dataclass(frozen=True)
class LessonSettings:
    """How a teacher's answers are used.

    Args:
        copies: distorted copies of each training stroke about which the teacher is asked.
        weight: of the cross-entropy with its answers; that with the labels has weight 1.
        power: to which its probabilities are raised; below 1 for a teacher that is too sure of itself.
        rows: lessons per step.
    """

    copies: int
    weight: float
    power: float
    rows: int

    def __post_init__(self) -> None:
        if self.copies < 1 or self.rows < 1:
            raise DataError(
                f"Lessons: expected at least 1 copy and 1 row per step, got {self.copies} and {self.rows}. For no lessons "
                "leave out the teacher."
            )
        for name in ("weight", "power"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise DataError(f"Lessons: expected a {name} of at least 0, got {getattr(self, name)}.")


@dataclass(frozen=True)
class Lessons:
    """Strokes and what a network should answer.

    Args:
        strokes: (lessons, 16) coordinates, NaN where hidden.
        answers: (lessons, classes) probabilities.
        weight: of the cross-entropy with the answers.
        rows: lessons per step.
    """

    strokes: Tensor
    answers: Tensor
    weight: float
    rows: int

    def __post_init__(self) -> None:
        if self.strokes.ndim != 2 or self.answers.ndim != 2 or not 0 < len(self.strokes) == len(self.answers):
            raise ShapeError(
                f"Lessons: expected (lessons, 16) strokes and (lessons, classes) answers, got shapes "
                f"{tuple(self.strokes.shape)} and {tuple(self.answers.shape)}."
            )

    def draw(self, like: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(rows, 16) strokes and (rows, classes) answers drawn at random, of the type and on the device of ``like``."""
        chosen = torch.randint(len(self.strokes), (self.rows,), generator=generator)
        return self.strokes[chosen].to(like), self.answers[chosen].to(like)


def prepare_lessons(
    teacher: GenerativeClassifier,
    strokes: Tensor,
    settings: LessonSettings,
    distortions: tuple[float, float, float, float],
    most_hidden: int,
    seed: int,
) -> Lessons:
    """Ask a teacher about distorted copies of the training strokes, most of them with gaps; once, before training.

    Args:
        teacher: fitted to the training rows.
        strokes: (n, 16) complete training strokes.
        settings: number of copies, power of the answers, and what to do with them.
        distortions: rotation, shear, warp and jitter (see :func:`torchpbp.experiments.digits.distortions.distorted`).
        most_hidden: points of a stroke.
        seed: of distortions and gaps.
    """
    generator = torch.Generator().manual_seed(seed)
    copies = distorted(strokes.repeat(settings.copies, 1), *distortions, generator)
    copies = hidden_at_random(copies, GAPPY, most_hidden, generator)
    answers = torch.softmax(settings.power * ask_companion(teacher, copies), dim=1)
    return Lessons(copies, answers.to(copies), settings.weight, settings.rows)
