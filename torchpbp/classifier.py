"""Classification by generative models: one model per class, compared by the probability of what is seen."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import nn
from tqdm.auto import tqdm

from torchpbp.errors import DataError, NotFittedError, ShapeError, StructureError
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inputs.evidence import own_tensor


class GenerativeClassifier(ClassifierMixin, BaseEstimator):
    """Fits one model per class and predicts by log-evidence plus log-prior, with scikit-learn's conventions.

    Features may be missing (NaN) when predicting: the models answer with what is there. A class that was not there when
    fitting cannot be predicted, so ``score`` counts its rows as wrong.

    Args:
        graph: structure whose observables are the features, in the order of the columns; may be None if ``learner`` is a
            model.
        learner: a class or function (graph, **options) -> model, or an unfitted model that is copied for each class.
        options: keyword arguments for ``learner``; ``options__name`` sets one of them, as in a parameter grid.
        prior: "empirical" (class frequencies) or "uniform".
        progress: whether a progress bar over classes is shown.

    Attributes:
        classes_: the classes, sorted.
        models_: one fitted model per class.
        n_features_in_: number of columns.
    """

    def __init__(
        self,
        graph: LatentGraph | None = None,
        learner: Callable[..., Any] | nn.Module | None = None,
        options: Mapping[str, Any] | None = None,
        prior: str = "empirical",
        progress: bool = False,
    ) -> None:
        self.graph = graph
        self.learner = learner
        self.options = options
        self.prior = prior
        self.progress = progress

    # -- scikit-learn's parameters -------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        params = super().get_params(deep=False)
        if deep:
            params |= {f"options__{k}": v for k, v in (self.options or {}).items()}
        return params

    def set_params(self, **params: Any) -> GenerativeClassifier:
        nested = {k.removeprefix("options__"): v for k, v in params.items() if k.startswith("options__")}
        super().set_params(**{k: v for k, v in params.items() if not k.startswith("options__")})
        if nested:
            self.options = {**(self.options or {}), **nested}
        return self

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> GenerativeClassifier:
        """Fit one model per class.

        Args:
            X: (rows, features) array or tensor, or a DataFrame whose columns are the observables.
            y: (rows,) classes.
        """
        if self.prior not in ("empirical", "uniform"):
            raise StructureError(f"prior: expected 'empirical' or 'uniform', got {self.prior!r}.")
        names = self._graph.observed
        columns = _as_columns(X, names)
        labels = np.asarray(y.detach().cpu() if isinstance(y, torch.Tensor) else y)
        rows = len(next(iter(columns.values())))
        if labels.ndim != 1 or len(labels) != rows:
            raise ShapeError(f"y: expected one class for each of the {rows} rows, got shape {labels.shape}.")
        if rows == 0:
            raise DataError("The training data is empty: expected at least one row, got none.")
        check_classification_targets(labels)
        classes, counts = np.unique(labels, return_counts=True)
        if counts.min() < 2:
            raise DataError(
                f"Class {classes.tolist()[counts.argmin()]!r} has {counts.min()} row; a model needs at least 2. Drop the class or add rows."
            )
        columns = {v: _whole(c) if isinstance(self._graph.variables[v], int) else c for v, c in columns.items()}
        models = []
        new = self._new_model()  # planned once, copied for each class
        for value in tqdm(classes, desc="classes", disable=not self.progress):
            chosen = torch.from_numpy(labels == value)
            models.append(copy.deepcopy(new).fit({v: c[chosen] for v, c in columns.items()}))
        self.classes_, self.models_ = classes, models
        self.n_features_in_ = len(names)
        self._log_prior = np.log(counts / counts.sum()) if self.prior == "empirical" else np.zeros(len(classes))
        return self

    # -- prediction ----------------------------------------------------------------------------------------------

    def log_scores(self, X: Any) -> np.ndarray:
        """(rows, classes) log-evidence plus log-prior."""
        if not hasattr(self, "models_"):
            raise NotFittedError("This GenerativeClassifier is not fitted yet. Call fit(X, y).")
        columns = _as_columns(X, self._graph.observed)
        with torch.no_grad():
            bar = tqdm(self.models_, desc="scoring", unit="class", disable=not self.progress)
            scores = torch.stack([model.log_evidence(columns).double() for model in bar], dim=1)
        return scores.cpu().numpy() + self._log_prior

    def predict(self, X: Any) -> np.ndarray:
        """(rows,) most probable classes; for a row that no class explains, the one of the largest prior."""
        best = self.predict_log_proba(X).argmax(axis=1)
        return self.classes_[best]

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """(rows, classes) log P(class | features); a row that no class explains gets the prior."""
        scores = self.log_scores(X)
        lost = ~np.isfinite(scores).any(axis=1)
        scores[lost] = self._log_prior
        scores = scores - scores.max(axis=1, keepdims=True)
        return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))

    def predict_proba(self, X: Any) -> np.ndarray:
        """(rows, classes) P(class | features)."""
        return np.exp(self.predict_log_proba(X))

    # -- inner workings ------------------------------------------------------------------------------------------

    @property
    def _graph(self) -> LatentGraph:
        if self.graph is not None:
            return self.graph
        if isinstance(self.learner, nn.Module):
            graph: LatentGraph = self.learner.graph  # type: ignore[assignment]
            return graph
        raise StructureError("GenerativeClassifier: pass graph=, or a model as learner=.")

    def _new_model(self) -> Any:
        if isinstance(self.learner, nn.Module):
            if self.options:
                raise StructureError("options= go with a learner class or function, not with a model.")
            return self.learner
        if self.learner is None or self.graph is None:
            raise StructureError("GenerativeClassifier: expected a graph and a learner, such as KernelPBP.")
        return self.learner(self.graph, **(self.options or {}))


def _as_columns(X: Any, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Columns by name, as numbers."""
    if isinstance(X, pd.DataFrame):
        missing = [v for v in names if v not in X]
        if missing:
            raise DataError(f"X: missing columns {missing}. It has: {', '.join(map(str, X.columns))}.")
        return {v: _numbers(X[v], f"X, column '{v}'") for v in names}
    table = X.detach().cpu() if isinstance(X, torch.Tensor) else _numbers(X, "X")
    if table.ndim != 2 or table.shape[1] != len(names):
        raise ShapeError(
            f"X: expected shape (rows, {len(names)}) for the observables {', '.join(names)}; got {tuple(table.shape)}."
        )
    return dict(zip(names, table.T, strict=True))


def _numbers(values: Any, where: str) -> torch.Tensor:
    """Numbers of any kind; None and pandas' NA become NaN."""
    try:
        array = np.array(values)
        if array.dtype.kind not in "biuf":
            array = np.where(pd.isna(array), np.nan, array).astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{where}: expected a table of numbers, got values that are not.") from None
    return own_tensor(array)


def _whole(column: torch.Tensor) -> torch.Tensor:
    """States that came as floating-point numbers, because the table has one type for all columns."""
    whole = column.is_floating_point() and bool((column.isfinite() & (column == column.round())).all())
    return column.long() if whole else column
