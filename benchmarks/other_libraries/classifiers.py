"""Classifiers of pen digits with fixed settings: their training, or their predictions once trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.work import Array, Work, needs


def classification(make: Callable[[], Any], train_x: Array, train_y: Array, test_x: Array, predicting: bool) -> Work:
    """Training of a new classifier, or prediction of rows by a trained one."""
    if not predicting:
        return Work(lambda: make().fit(train_x, train_y))
    model = make().fit(train_x, train_y)
    return Work(lambda: model.predict(test_x), lambda predicted: {"predicted": np.asarray(predicted)})


@needs("scikit-learn")
def nearest_neighbour(**rows: Any) -> Work:
    """The nearest training row."""
    from sklearn.neighbors import KNeighborsClassifier

    return classification(lambda: KNeighborsClassifier(1), **rows)


@needs("scikit-learn")
def support_vectors(**rows: Any) -> Work:
    """RBF kernel, C = 10, standardised columns."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    return classification(lambda: make_pipeline(StandardScaler(), SVC(C=10.0)), **rows)


@needs("scikit-learn")
def mixtures(**rows: Any) -> Work:
    """For each class a mixture of four normal distributions with full covariances, on standardised columns."""
    return classification(MixtureClassifier, **rows)


class MixtureClassifier:
    """Classification by the mixture with the highest density."""

    def fit(self, x: Array, y: Array) -> MixtureClassifier:
        from sklearn.mixture import GaussianMixture
        from sklearn.preprocessing import StandardScaler

        self._scaler = StandardScaler().fit(x)
        x = self._scaler.transform(x)
        self.classes_ = np.unique(y)
        self._mixtures = [GaussianMixture(4, reg_covar=1e-2, random_state=0).fit(x[y == c]) for c in self.classes_]
        self._prior = np.log([np.mean(y == c) for c in self.classes_])
        return self

    def predict(self, x: Array) -> Array:
        scores = np.stack([m.score_samples(self._scaler.transform(x)) for m in self._mixtures], axis=1) + self._prior
        return self.classes_[scores.argmax(axis=1)]
