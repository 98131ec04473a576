"""Classifiers of incomplete rows to compare with, from scikit-learn or by hand, with fixed settings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import KNNImputer
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import Tensor

from torchpbp.datasets.digits import POINTS
from torchpbp.datasets.splits import hide_points
from torchpbp.experiments.running.scores import Floats, Labels

Predictor = Callable[[Tensor], Labels]
BLOCK = 512
"""Rows compared with all training rows at once."""


class PartialDistanceNeighbour:
    """The class of the nearest training row, by distance over what a row shows."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x: Floats = x.double().numpy()
        self._y: Labels = y.numpy()

    def __call__(self, x: Tensor) -> Labels:
        rows: Floats = x.double().numpy()
        return np.concatenate([self._block(rows[i : i + BLOCK]) for i in range(0, len(rows), BLOCK)])

    def _block(self, rows: Floats) -> Labels:
        seen = (~np.isnan(rows)).astype(np.float64)
        values = np.nan_to_num(rows)
        # |r - x|² over what is seen, without |r|², which is the same for all training rows.
        distance = seen @ np.square(self._x).T - 2 * values @ self._x.T
        return self._y[distance.argmin(axis=1)]


class ImputedSVM:
    """An RBF support vector machine (C = 10, γ = 1/16 on standardised columns) on complete rows.

    Hidden coordinates are filled in first with the mean over the five nearest training rows.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._imputer = KNNImputer(n_neighbors=5).fit(x.double().numpy())
        self._scaler = StandardScaler().fit(x.double().numpy())
        self._svm = SVC(C=10.0, gamma="scale").fit(self._scaler.transform(x.double().numpy()), y.numpy())

    def __call__(self, x: Tensor) -> Labels:
        filled = self._imputer.transform(x.double().numpy())
        predicted: Labels = self._svm.predict(self._scaler.transform(filled))
        return predicted


class Boosting:
    """Gradient-boosted trees (scikit-learn's histogram version and settings), which take missing values as they are.

    They learn how to branch on missing values from copies of the training rows with 2, 4 and 6 points hidden; from
    complete rows alone they would not know.
    """

    def __init__(self, x: Tensor, y: Tensor, seed: int) -> None:
        copies = [hide_points(x, count, seed + count) for count in range(0, POINTS, 2)]
        rows = np.concatenate([c.double().numpy() for c in copies])
        self._trees = HistGradientBoostingClassifier(random_state=seed).fit(rows, np.tile(y.numpy(), len(copies)))

    def __call__(self, x: Tensor) -> Labels:
        predicted: Labels = self._trees.predict(x.double().numpy())
        return predicted


def baselines(seed: int) -> dict[str, Callable[[Tensor, Tensor], Predictor]]:
    """Name -> function that fits (x, y) and returns what predicts."""
    return {
        "partial-distance 1-NN": PartialDistanceNeighbour,
        "SVM after KNN imputation": ImputedSVM,
        "gradient boosting": lambda x, y: Boosting(x, y, seed),
    }
