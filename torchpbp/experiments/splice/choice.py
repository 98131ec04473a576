"""The hidden Markov model for splice junctions: its structure and ridge chosen within the training rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.classifier import GenerativeClassifier
from torchpbp.datasets.splice import LETTERS, SITES, SPLICE_CLASSES, grouped_folds
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.graph.templates import hmm
from torchpbp.learning.stage1 import RowRegressor
from torchpbp.models.counts import Counts
from torchpbp.models.pbp import PBP

Structure = tuple[int, int]
"""Order of the hidden chain, and its number of states."""
Candidate = tuple[Structure, tuple[float, ...]]
"""Structure, and ridge penalties."""


class Choice:
    """Candidate models, made once and fitted again for each set of rows.

    A model's plan does not depend on rows, and counts of rows do not depend on ridge penalties: each structure is planned
    once, each set of rows counted once for it, and only the regressions are solved for each ridge.

    Args:
        model: makes a model for a graph, with an option ``ridge``.
        structures: candidate pairs (order of the hidden chain, hidden states), the simplest first.
        ridges: candidate pairs of ridge penalties (stage 1, stage 2).
        inner_folds: parts of the training rows; each is held out once.
        seed: of the parts.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        structures: Sequence[Sequence[int]],
        ridges: Sequence[Sequence[float]],
        inner_folds: int,
        seed: int,
    ) -> None:
        self.model, self.inner_folds, self.seed = model, inner_folds, seed
        self.ridges = [tuple(float(x) for x in ridge) for ridge in ridges]
        self.graphs: dict[Structure, LatentGraph] = {
            (order, states): hmm(SITES, states, len(LETTERS), order) for order, states in structures
        }
        self._models: dict[Candidate, Any] = {}

    def fit(self, x: Tensor, y: Tensor, group: Tensor) -> tuple[GenerativeClassifier, str]:
        """The candidate with the most correct held-out rows, the first of several, fitted to all rows.

        Args:
            x: (rows, sites) states without missing ones.
            y: (rows,) classes.
            group: (rows,) number of each row's group; a group stays in one part.

        Returns:
            The classifier, and a description of its settings.
        """
        right = self.right(x, y, group)
        (order, states), ridge = max(right, key=lambda candidate: right[candidate])
        best = GenerativeClassifier(self.graphs[order, states], self.model, {"ridge": ridge}).fit(x, y)
        return best, f"order {order}, {states} hidden states, ridge {ridge}"

    def right(self, x: Tensor, y: Tensor, group: Tensor) -> dict[Candidate, int]:
        """Correct held-out rows of each candidate, over all inner folds."""
        result = {(structure, ridge): 0 for structure in self.graphs for ridge in self.ridges}
        for learn, check in grouped_folds(y, group, self.inner_folds, self.seed):
            for structure, graph in self.graphs.items():
                models = [self._model(structure, ridge) for ridge in self.ridges]
                seen = _columns(graph, x[check])
                scores = torch.empty(len(models), len(check), len(SPLICE_CLASSES), dtype=torch.float64)
                for value in range(len(SPLICE_CLASSES)):
                    rows = learn[y[learn] == value]
                    source = _counted(models[0], _columns(graph, x[rows]))
                    for i, model in enumerate(models):
                        fitted = model.fit_counts(source) if isinstance(source, Counts) else model.fit(source)
                        with torch.no_grad():
                            scores[i, :, value] = fitted.log_evidence(seen).double() + float(np.log(len(rows)))
                hits = (scores.argmax(dim=2) == y[check]).sum(dim=1).tolist()
                for ridge, hit in zip(self.ridges, hits, strict=True):
                    result[structure, ridge] += hit
        return result

    def _model(self, structure: Structure, ridge: tuple[float, ...]) -> Any:
        if (structure, ridge) not in self._models:
            self._models[structure, ridge] = self.model(self.graphs[structure], ridge=ridge)
        return self._models[structure, ridge]


def _columns(graph: LatentGraph, x: Tensor) -> dict[str, Tensor]:
    return {v: x[:, i] for i, v in enumerate(graph.observed)}


def _counted(model: Any, columns: dict[str, Tensor]) -> Counts | dict[str, Tensor]:
    """Counts of the rows; the rows themselves if the model's first stage needs them."""
    if isinstance(model, PBP) and not isinstance(model.regressor, RowRegressor):
        return model.count(columns)
    return columns
