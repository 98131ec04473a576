"""One small model of every class that the contract holds for, learned from the same table."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pandas as pd
import torch

from torchpbp import (
    EM,
    PBP,
    DiscreteNetwork,
    KernelPBP,
    MaximumLikelihood,
    NormalGraphLearner,
    OnlineEM,
    SpectralJunctionTree,
    templates,
)

TRUTH = DiscreteNetwork.random(templates.naive_bayes(4, observed_states=3), seed=3)
GRAPH = TRUTH.graph
COLOURS = ["red", "green", "blue"]
"""Labels of x1, in an order of their own; the other variables go by number."""
QUICK = {"restarts": 2, "max_steps": 20, "progress": False}


def with_nets(model: PBP) -> PBP:
    """A model whose stage 1 is made of nets of leaves, as PBPModule leaves it behind."""
    model.attach_nets(hidden=[8])
    return model


LEARNERS: dict[str, Callable[[], Any]] = {
    "PBP": lambda: PBP(GRAPH),
    "PBP of classes": lambda: PBP(GRAPH, condition="x1"),
    "PBP with nets": lambda: with_nets(PBP(GRAPH, rank=2)),
    "PBP with nets and classes": lambda: with_nets(PBP(GRAPH, rank=2, condition="x1")),
    "KernelPBP": lambda: KernelPBP(GRAPH),
    "MaximumLikelihood": lambda: MaximumLikelihood(GRAPH, max_steps=20, progress=False),
    "EM": lambda: EM(GRAPH, **QUICK),
    "OnlineEM": lambda: OnlineEM(GRAPH, exponents=[0.7, 1.0], **QUICK),
    "SpectralJunctionTree": lambda: SpectralJunctionTree(GRAPH),
    "NormalGraphLearner": lambda: NormalGraphLearner(GRAPH, restarts=2, progress=False),
}
NAMES = [*LEARNERS, "DiscreteNetwork"]
CLASSES = {name: name.split()[0] for name in NAMES}
"""Name of the class of each model."""


def training_table(rows: int = 300) -> pd.DataFrame:
    """Rows of the observables, x1 by colour."""
    frame = TRUTH.sample_frame(rows, seed=1)
    return frame.assign(x1=pd.Categorical.from_codes(frame["x1"].tolist(), COLOURS))


@cache
def fitted(name: str) -> Any:
    """A model that knows the labels of x1; nobody changes it."""
    if name != "DiscreteNetwork":
        return LEARNERS[name]().fit(training_table())
    network = DiscreteNetwork(GRAPH, TRUTH.cpts)
    network.labels = {"x1": tuple(COLOURS)}
    return network


def evidence() -> dict[str, torch.Tensor]:
    """Three rows, each of which observes something else."""
    return {"x2": torch.tensor([0, 1, -1]), "x3": torch.tensor([1, -1, 0])}


def evidence_table() -> pd.DataFrame:
    """The same as a table with an index."""
    index = pd.Index(["Ann", "Ben", "Cem"], name="who")
    return pd.DataFrame({"x2": [0, 1, None], "x3": [1, None, 0]}, index=index)
