"""Classifiers of incomplete strokes to compare with, from scikit-learn or written here, with fixed settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from torchpbp.datasets.digits import POINTS
from torchpbp.experiments.train.baseline import ImputedSVM
from torchpbp.experiments.train.leaf_data import Table, hidden_leaves
from torchpbp.experiments.train.strokes import DIGIT, POINT_NAMES, coordinates

Learner = Callable[[Table], Callable[[Table], Tensor]]
"""Learns from training rows and returns a function from rows to (rows,) classes or (rows, classes) log-probabilities."""
BLOCK = 512
"""Rows compared with all training rows at once."""


class PartialDistanceNeighbour:
    """The class of the nearest training row, by the mean squared difference over the coordinates that both rows have.

    Args:
        table: training rows.
    """

    def __init__(self, table: Table) -> None:
        self._values, self._seen = _filled(table)
        self._classes = table[DIGIT]

    def __call__(self, table: Table) -> Tensor:
        """(rows,) classes."""
        blocks = zip(*(part.split(BLOCK) for part in _filled(table)), strict=True)
        nearest = [self._distances(values, seen).argmin(dim=1) for values, seen in blocks]
        return self._classes[torch.cat(nearest)]

    def _distances(self, values: Tensor, seen: Tensor) -> Tensor:
        """(rows, training rows) mean squared differences; values are 0 where hidden."""
        squares = values.square() @ self._seen.T + seen @ self._values.square().T - 2 * values @ self._values.T
        shared = seen @ self._seen.T
        return torch.where(shared > 0, squares / shared, torch.inf)


class Boosting:
    """Gradient-boosted trees, which take missing values as they are (scikit-learn's histogram version and settings).

    They learn how to branch on missing values from copies of the training rows with 2, 4 and 6 points hidden.

    Args:
        table: training rows.
        seed: of the hidden points and the trees.
    """

    def __init__(self, table: Table, seed: int = 0) -> None:
        copies = [hidden_leaves(table, POINT_NAMES, count, seed + count) for count in range(0, POINTS, 2)]
        rows, classes = torch.cat([coordinates(c) for c in copies]), torch.cat([c[DIGIT] for c in copies])
        self._trees = HistGradientBoostingClassifier(random_state=seed).fit(np.asarray(rows), np.asarray(classes))

    def __call__(self, table: Table) -> Tensor:
        """(rows,) classes."""
        return torch.from_numpy(self._trees.predict(np.asarray(coordinates(table))))


def _filled(table: Table) -> tuple[Tensor, Tensor]:
    """(rows, 16) coordinates, 0 where hidden, and 1 where seen."""
    x = coordinates(table).double()
    return x.nan_to_num(), (~x.isnan()).double()


BASELINES: Mapping[str, Learner] = {
    "partial-distance 1-NN": PartialDistanceNeighbour,
    "SVM after imputation": lambda table: ImputedSVM(table, DIGIT).predict,
    "gradient boosting": Boosting,
}
