"""Pen digits by one model per class, with the settings of conf/learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.other_libraries.classifiers import DigitsClassifier
from torchpbp import PBP, GenerativeClassifier, KernelPBP, Nystroem, ScoreAverage, templates


@dataclass
class KernelChain(DigitsClassifier):
    """One kernel model of a hidden chain (conf/learner/gram.yaml)."""

    library: ClassVar[str] = "torchpbp"

    def make(self) -> Any:
        return GenerativeClassifier(learner=chain(None, 7.0))


@dataclass
class Average(DigitsClassifier):
    """The average of four kernel models (conf/learner/pen_average.yaml)."""

    library: ClassVar[str] = "torchpbp"

    def make(self) -> Any:
        axes = [[f"{axis}{t}" for t in range(1, 9)] for axis in "xy"]
        densities = [
            KernelPBP(templates.pen_clique(), bandwidth=20.0, evidence_bandwidth=7.0),
            KernelPBP(templates.pen_clique(), bandwidth=20.0, evidence_bandwidth=8.0, sequences=axes),
        ]
        members = [chain(120, 7.0), chain(120, 8.0, sequences=axes), *densities]
        return GenerativeClassifier(learner=ScoreAverage(members, weights=[2, 2, 1, 1]))


@dataclass
class Features(DigitsClassifier):
    """PBP with ten kernel features per coordinate (conf/learner/nystroem.yaml)."""

    library: ClassVar[str] = "torchpbp"

    def make(self) -> Any:
        features = Nystroem(size=10, bandwidth=14.0, landmarks="grid")
        options: dict[str, Any] = {"rank": 30, "ridge": (1.0, 1.0), "whitening": 0.01, "singles": 2, "root": ["h1"]}
        return GenerativeClassifier(learner=PBP(templates.pen_strokes(), features=features, **options))


def chain(landmarks: int | None, evidence_bandwidth: float, **options: Any) -> KernelPBP:
    """A kernel model of a hidden chain over the points."""
    return KernelPBP(
        templates.pen_strokes(),
        bandwidth=20.0,
        evidence_bandwidth=evidence_bandwidth,
        core_leaves=2,
        instrument_leaves=2,
        landmarks=landmarks,
        ridge=(0.1, 0.1),
        root=["h1"],
        **options,
    )
