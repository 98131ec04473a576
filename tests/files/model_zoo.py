"""One small fitted model of each kind, and the questions by which it is compared with what its file gives back."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import torchpbp
from torchpbp import (
    EM,
    PBP,
    Counts,
    DiscreteNetwork,
    GenerativeClassifier,
    KernelPBP,
    MaximumLikelihood,
    NormalGraphLearner,
    OnlineEM,
    SpectralJunctionTree,
    templates,
)
from torchpbp.features import Nystroem, RandomFourier

GRAPH = templates.naive_bayes(3, 2, 2)
NETWORK = DiscreteNetwork.random(GRAPH, seed=0)
DATA = NETWORK.sample(200, seed=1)
MIXTURE = templates.mixture(["a", "b", "c"])
VALUES = {v: torch.randn(60, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i, v in enumerate("abc")}  # fmt: skip
LABELLED = pd.DataFrame({v: [["low", "high"][i] for i in x.tolist()] for v, x in DATA.items()})
CLASSES = ["a", "b"] * 100

MAKERS: dict[str, Callable[[], Any]] = {
    "PBP": lambda: PBP(GRAPH).fit(LABELLED),
    "PBP in float32": lambda: PBP(GRAPH, dtype=torch.float32).fit(LABELLED),
    "PBP of classes": lambda: PBP(GRAPH, condition="x3").fit(LABELLED),
    "Nystroem": lambda: PBP(MIXTURE, features=Nystroem(4)).fit(VALUES),
    "RandomFourier": lambda: PBP(MIXTURE, features=RandomFourier(4)).fit(VALUES),
    "MaximumLikelihood": lambda: MaximumLikelihood(GRAPH, progress=False).fit(LABELLED),
    "EM": lambda: EM(GRAPH, max_steps=2, restarts=1, progress=False).fit(LABELLED),
    "OnlineEM": lambda: OnlineEM(GRAPH, max_steps=1, restarts=1, progress=False).fit(LABELLED),
    "SpectralJunctionTree": lambda: SpectralJunctionTree(GRAPH).fit(LABELLED),
    "NormalGraphLearner": lambda: NormalGraphLearner(GRAPH, epochs=2, progress=False).fit(LABELLED),
    "DiscreteNetwork": lambda: NETWORK,
    "KernelPBP": lambda: KernelPBP(templates.hmm(5, 2, 2)).fit({f"x{i}": [0, 1, 1, 0, 1] * 3 for i in range(1, 6)}),
    "GenerativeClassifier": lambda: GenerativeClassifier(GRAPH, PBP).fit(LABELLED, CLASSES),
    "Classifier of kernel models": lambda: GenerativeClassifier(MIXTURE, KernelPBP, {"landmarks": 5}).fit(
        pd.DataFrame(VALUES), CLASSES[:60]
    ),
    "Counts": lambda: PBP(GRAPH).count(LABELLED),
}


@cache
def fitted(name: str) -> Any:
    """A model of a kind; tests leave it as it is."""
    return MAKERS[name]()


def load(model: Any, path: Path) -> Any:
    """Read a file of such a model, by ``torchpbp.load`` where it does that."""
    return Counts.load(path) if isinstance(model, Counts) else torchpbp.load(path)


def answers(model: Any) -> torch.Tensor:
    """Numbers that a model gives."""
    if isinstance(model, Counts):
        return model.tables.counts
    continuous = (
        "a" in model.graph_.observed if isinstance(model, GenerativeClassifier) else "a" in model.graph.observed
    )
    if isinstance(model, GenerativeClassifier):
        return torch.from_numpy(model.log_scores(pd.DataFrame(VALUES) if continuous else LABELLED[:4]))
    if continuous:
        return model.log_evidence({"a": [0.5, np.nan, 2.0], "b": [1.0, 0.0, -1.0]}).detach()
    return model.log_evidence({"x1": torch.tensor([0, 1, -1]), "x2": torch.tensor([1, 1, 0])}).detach()
