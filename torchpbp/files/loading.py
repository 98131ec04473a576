"""Model files of any learner."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from torchpbp.errors import CheckpointError
from torchpbp.files.checkpoint import Parcel, opened, read_checkpoint

LEARNERS = {
    "PBP": "torchpbp.models.pbp",
    "EM": "torchpbp.baselines.em",
    "SpectralJunctionTree": "torchpbp.baselines.spectral",
    "NormalGraphLearner": "torchpbp.baselines.normal_graph.learner",
    "KernelPBP": "torchpbp.models.kernel.kernel_pbp",
}
"""Learners that make a model of a graph: name in a file -> module, loaded when it is needed."""

MODULES = {**LEARNERS, "ScoreAverage": "torchpbp.models.ensemble", "GenerativeClassifier": "torchpbp.classifier"}
"""All that have model files. Models made of others read their parts by way of here."""


def model_class(name: str) -> Any:
    """The class whose models a file calls by this name, one of ``MODULES``."""
    return getattr(importlib.import_module(MODULES[name]), name)


def load(path: str | os.PathLike[str] | Parcel) -> Any:
    """Read a model written by ``save()``, whichever learner made it. No code in the file is executed.

    Args:
        path: of the model file.

    Returns:
        A fitted PBP, KernelPBP, EM, SpectralJunctionTree, NormalGraphLearner, ScoreAverage or GenerativeClassifier.

    Raises:
        CheckpointError: no such file, or not a model file of this version.

    Example:
        >>> import tempfile
        >>> from torchpbp import PBP, DiscreteNetwork, templates
        >>> truth = DiscreteNetwork.random(templates.naive_bayes(3), seed=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     PBP(truth.graph).fit(truth.sample(500, seed=0)).save(f"{folder}/model.pt")
        ...     print(load(f"{folder}/model.pt"))
        PBP(LatentGraph(directed, 3 observed, 1 latent, 3 edges), fitted on 500 rows)
    """
    parcel = opened(path)
    learner = str(read_checkpoint(parcel, "cpu").get("learner", "PBP"))
    if learner not in MODULES:
        raise CheckpointError(
            f"'{path}' was made by the learner {learner}; this torchpbp reads those of {', '.join(MODULES)}. Upgrade "
            "torchpbp."
        )
    return model_class(learner).load(parcel)


def packed(model: Any, name: str, operators: bool | None = None) -> dict[str, Any]:
    """What the file of a model would hold, to be kept inside another file.

    Args:
        model: fitted.
        name: what it is called in errors.
        operators: as in :meth:`torchpbp.KernelPBP.save`, for models that have the choice.

    Raises:
        CheckpointError: a model without a file format.
    """
    parcel = Parcel(name)
    save = getattr(model, "save", None)
    if save is None:
        raise CheckpointError(f"{name}: {type(model).__name__} has no save(), so it has no place in a model file.")
    if operators is not None and "operators" in inspect.signature(save).parameters:
        save(parcel, operators=operators)
    else:
        save(parcel)
    content = parcel.content
    if not isinstance(content, dict) or content.get("learner", "PBP") not in MODULES:
        raise CheckpointError(f"{name}: {type(model).__name__} has a file format of its own. Save it by itself.")
    return content


def unpacked(content: Any, name: str, map_location: torch.device | str = "cpu") -> Any:
    """The model whose file would hold this."""
    model = load(Parcel(name, content))
    return model.to(map_location) if isinstance(model, nn.Module) else model


def unfitted(content: Mapping[str, Any]) -> Any:
    """A model with the settings of the one whose file would hold this, nothing learned; None if files do not hold them all."""
    learner = content.get("learner")
    return model_class(learner).unfitted(content) if learner in ("KernelPBP", "ScoreAverage") else None
