"""scikit-learn's classifiers of pen digits, with fixed settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.implementation import Answer, Array, Implementation


@dataclass
class DigitsClassifier(Implementation):
    """A classifier, timed while it trains or, once trained, while it predicts.

    Args:
        train_x, train_y: training rows.
        test_x: rows to predict.
        predicting: what is timed.
    """

    train_x: Array
    train_y: Array
    test_x: Array
    predicting: bool

    def make(self) -> Any:
        """An untrained classifier with ``fit`` and ``predict``."""
        raise NotImplementedError

    def prepare(self) -> None:
        self._model = self.make()
        if self.predicting:
            self._model = self._model.fit(self.train_x, self.train_y)

    def run(self) -> Any:
        if self.predicting:
            return self._model.predict(self.test_x)
        return self.make().fit(self.train_x, self.train_y)

    def answer(self, result: Any) -> Answer:
        return {"predicted": np.asarray(result)} if self.predicting else {}


@dataclass
class Neighbours(DigitsClassifier):
    """The nearest training row."""

    library: ClassVar[str] = "scikit-learn"

    def make(self) -> Any:
        from sklearn.neighbors import KNeighborsClassifier

        return KNeighborsClassifier(1)


@dataclass
class SupportVectors(DigitsClassifier):
    """RBF kernel, C = 10, standardised columns."""

    library: ClassVar[str] = "scikit-learn"

    def make(self) -> Any:
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
        from sklearn.svm import SVC

        return make_pipeline(StandardScaler(), SVC(C=10.0))


@dataclass
class Mixtures(DigitsClassifier):
    """For each class a mixture of four normal distributions with full covariances, on standardised columns."""

    library: ClassVar[str] = "scikit-learn"

    def make(self) -> Any:
        return MixtureClassifier()


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
