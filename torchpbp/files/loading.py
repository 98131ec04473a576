"""Which class a model file belongs to, and reading a file of any of them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

import torch

from torchpbp.errors import ArgumentError, CheckpointError
from torchpbp.files.checkpoint import check_device, check_format, read_checkpoint

LEARNERS = {
    "PBP": "torchpbp.models.pbp",
    "KernelPBP": "torchpbp.models.kernel.kernel_pbp",
    "MaximumLikelihood": "torchpbp.models.likelihood.learner",
    "EM": "torchpbp.baselines.em",
    "OnlineEM": "torchpbp.baselines.online_em",
    "SpectralJunctionTree": "torchpbp.baselines.spectral",
    "NormalGraphLearner": "torchpbp.baselines.normal_graph.learner",
}
"""Classes that make a model of a graph -> module, loaded when it is needed."""

MODULES = {
    **LEARNERS,
    "DiscreteNetwork": "torchpbp.exact.network",
    "GenerativeClassifier": "torchpbp.classifier",
}
"""All classes that have model files -> module."""

FORMER = {"RefinedPBP": "PBP"}
"""Classes of earlier versions -> class that reads their files and gives the same answers."""


def model_class(name: str) -> Any:
    """The class that a file names, one of ``MODULES``."""
    return getattr(importlib.import_module(MODULES[name]), name)


def class_name(kind: type) -> str | None:
    """The name by which files know a class, or the nearest class above it that has files; None if there is none."""
    return next((c.__name__ for c in kind.__mro__ if MODULES.get(c.__name__) == c.__module__), None)


def class_in_file(content: Mapping[str, Any], name: object) -> Any:
    """The class that wrote a file.

    Args:
        content: of the file. Two-stage models written by torchpbp 0.1 do not name their class.
        name: of the file, for the error.
    """
    check_format(content, name)
    learner = str(content.get("learner", "PBP"))
    learner = FORMER.get(learner, learner)
    if learner not in MODULES:
        raise CheckpointError(
            f"'{name}' was made by the learner {learner}; this torchpbp reads those of {', '.join(MODULES)}. Upgrade "
            "torchpbp."
        )
    return model_class(learner)


def load(path: str | os.PathLike[str], map_location: torch.device | str = "cpu", features: Any = None) -> Any:
    """Read a model written by ``save()``, whichever class wrote it. No code in the file is executed.

    Args:
        path: of the model file.
        map_location: device on which the model is put.
        features: encoders of one's own that the model was made with, as modules of the same shapes: files hold their numbers, but
            no code. One module, or a dict by leaf.

    Returns:
        A fitted model of the class that wrote the file.

    Raises:
        CheckpointError: no such file, or not a model file of this version; an encoder of one's own that was not given.
        ArgumentError: encoders for a model that has none, or not for all of its leaves.

    Example:
        >>> import tempfile
        >>> from torchpbp import PBP, DiscreteNetwork, templates
        >>> truth = DiscreteNetwork.random(templates.naive_bayes(3), seed=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     PBP(truth.graph).fit(truth.sample(500, seed=0)).save(f"{folder}/model.pt")
        ...     print(load(f"{folder}/model.pt"))
        PBP(LatentGraph(directed, 3 observed, 1 latent, 3 edges), fitted on 500 rows)
    """
    check_device(map_location)
    content = read_checkpoint(path, "cpu")
    if features is not None:
        _check_encoders(features, content.get("encoders"), path)
        content = {**content, "given_encoders": features}
    return from_content(content, path, map_location)


def _check_encoders(features: Any, saved: Any, path: object) -> None:
    """Raise an ArgumentError unless encoders were given for a model that has some, and for all of its leaves."""
    leaves = saved.get("module_of") if isinstance(saved, Mapping) else None
    if not isinstance(leaves, Mapping) or not leaves:
        raise ArgumentError(f"features: the model in '{path}' has no encoders. Leave them out.")
    given = features if isinstance(features, Mapping) else dict.fromkeys(leaves, features)
    wrong = [str(v) for v in leaves if not isinstance(given.get(v), torch.nn.Module)]
    unknown = [str(v) for v in given if v not in leaves]
    if wrong or unknown:
        raise ArgumentError(
            f"features: expected an encoder (nn.Module), or a dict of these for {', '.join(map(str, leaves))}; "
            + (f"got none for {', '.join(wrong)}." if wrong else f"got one for {', '.join(unknown)}.")
        )


def from_content(content: Mapping[str, Any], name: object, map_location: torch.device | str = "cpu") -> Any:
    """The model whose file holds this content, or which another model's file holds as a member."""
    return class_in_file(content, name).from_content(content, name, map_location)
