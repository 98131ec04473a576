"""One small fitted model of each kind, and its file."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import torchpbp
from torchpbp import (
    EM,
    PBP,
    Counts,
    GenerativeClassifier,
    KernelPBP,
    NormalGraphLearner,
    OnlineEM,
    SpectralJunctionTree,
    templates,
)
from torchpbp.features import Nystroem, RandomFourier

GRAPH = templates.naive_bayes(3, 2, 2)
DATA = torchpbp.DiscreteNetwork.random(GRAPH, seed=0).sample(200, seed=1)
MIXTURE = templates.mixture(["a", "b", "c"])
VALUES = {v: torch.randn(60, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i, v in enumerate("abc")}  # fmt: skip
LABELLED = pd.DataFrame({v: [["low", "high"][i] for i in x.tolist()] for v, x in DATA.items()})

MAKERS: dict[str, Callable[[], Any]] = {
    "PBP": lambda: PBP(GRAPH).fit(LABELLED),
    "Nystroem": lambda: PBP(MIXTURE, features=Nystroem(4)).fit(VALUES),
    "RandomFourier": lambda: PBP(MIXTURE, features=RandomFourier(4)).fit(VALUES),
    "EM": lambda: EM(GRAPH, max_steps=2, restarts=1, progress=False).fit(LABELLED),
    "OnlineEM": lambda: OnlineEM(GRAPH, max_steps=1, restarts=1, progress=False).fit(LABELLED),
    "SpectralJunctionTree": lambda: SpectralJunctionTree(GRAPH).fit(LABELLED),
    "NormalGraphLearner": lambda: NormalGraphLearner(GRAPH, epochs=2, progress=False).fit(LABELLED),
    "KernelPBP": lambda: KernelPBP(templates.hmm(5, 2, 2)).fit({f"x{i}": [0, 1, 1, 0, 1] * 3 for i in range(1, 6)}),
    "GenerativeClassifier": lambda: GenerativeClassifier(GRAPH, PBP).fit(LABELLED, ["a", "b"] * 100),
    "Counts": lambda: PBP(GRAPH).count(LABELLED),
}


@cache
def fitted(name: str) -> Any:
    """A model of a kind; tests leave it as it is."""
    return MAKERS[name]()


def load(name: str, path: Path) -> Any:
    """Read a file of a kind, by way of ``torchpbp.load`` where it does that."""
    return Counts.load(path) if name == "Counts" else torchpbp.load(path)
