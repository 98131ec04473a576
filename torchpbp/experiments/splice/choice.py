"""The hidden Markov model for splice junctions: its structure and ridge chosen within the rows to learn from."""

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


class Choice:
    """Candidate models, made once and fitted again for each set of rows.

    A model's plan does not depend on rows, and counts of rows do not depend on ridge penalties: each structure is planned
    once, each set of rows counted once for it, and only the regressions are solved for each ridge.

    Args:
        learner: makes a model for a graph, with an option ``ridge``.
        structures: candidate pairs (order of the hidden chain, hidden states), the simplest first.
        ridges: candidate pairs of ridge penalties (stage 1, stage 2).
        inner_folds: parts that rows to learn from are dealt into; each is held out once.
        seed: of the dealing.
    """

    def __init__(
        self,
        learner: Callable[..., Any],
        structures: Sequence[Sequence[int]],
        ridges: Sequence[Sequence[float]],
        inner_folds: int,
        seed: int,
    ) -> None:
        self.learner, self.inner_folds, self.seed = learner, inner_folds, seed
        self.ridges = [tuple(float(x) for x in r) for r in ridges]
        self.graphs: dict[Structure, LatentGraph] = {
            (order, states): hmm(SITES, states, len(LETTERS), order) for order, states in structures
        }
        self._models: dict[tuple[Structure, tuple[float, ...]], Any] = {}

    def fit(self, x: Tensor, y: Tensor, group: Tensor) -> tuple[GenerativeClassifier, str]:
        """The candidate that classifies most held-out rows rightly, the first one if several do, fitted to all rows.

        Args:
            x: (rows, sites) states without unknown ones.
            y: (rows,) classes.
            group: (rows,) number of each row's group; groups are not torn apart.

        Returns:
            The classifier, and a description of its settings.
        """
        right = self.right(x, y, group)
        (order, states), ridge = max(right, key=lambda candidate: right[candidate])
        options = {"ridge": ridge}
        best = GenerativeClassifier(self.graphs[order, states], self.learner, options).fit(x, y)
        return best, f"order {order}, {states} hidden states, ridge {ridge}"

    def right(self, x: Tensor, y: Tensor, group: Tensor) -> dict[tuple[Structure, tuple[float, ...]], int]:
        """Held-out rows that each candidate classifies rightly, over all inner folds."""
        candidates = [(structure, ridge) for structure in self.graphs for ridge in self.ridges]
        result = dict.fromkeys(candidates, 0)
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
            self._models[structure, ridge] = self.learner(self.graphs[structure], ridge=ridge)
        return self._models[structure, ridge]


def _columns(graph: LatentGraph, x: Tensor) -> dict[str, Tensor]:
    return {v: x[:, i] for i, v in enumerate(graph.observed)}


def _counted(model: Any, columns: dict[str, Tensor]) -> Counts | dict[str, Tensor]:
    """Counts of the rows; the rows themselves where the learner needs them."""
    if isinstance(model, PBP) and not isinstance(model.regressor, RowRegressor):
        return model.count(columns)
    return columns
