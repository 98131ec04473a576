"""Classification by generative models: one model per class, compared by the probability of the features."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import sklearn.exceptions
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from tqdm.auto import tqdm

from torchpbp.contract.model_files import Saved, SaveOptions, checked_labels, packed, require_finite
from torchpbp.errors import (
    ArgumentError,
    CheckpointError,
    DataError,
    DataWarning,
    NotFittedError,
    ShapeError,
    StructureError,
)
from torchpbp.graph.domains import require_single_values
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inputs.arrays import as_array, dense_tensor, unmasked
from torchpbp.inputs.columns import ColumnReader, read_column
from torchpbp.inputs.labels import check_alignment, require_unique
from torchpbp.io import LEARNERS, REMEDY, class_in_file, from_content, is_plain, model_class
from torchpbp.lazy import is_frame
from torchpbp.lazy import pandas as pd
from torchpbp.settings import shortened


class ClassifierNotFittedError(NotFittedError, sklearn.exceptions.NotFittedError):
    """A NotFittedError of torchpbp that is also one of scikit-learn."""


@runtime_checkable
class ScoringModel(Protocol):
    """The interface of a class's model; every :class:`~torchpbp.contract.abilities.Learner` has it."""

    graph: LatentGraph

    def fit(self, data: Any) -> Any: ...
    def log_evidence(self, evidence: Any) -> Any: ...


def _is_model(learner: Any) -> TypeGuard[ScoringModel]:
    """Whether a learner is a model, not a class or function that returns one."""
    return not isinstance(learner, type) and isinstance(learner, ScoringModel)


class GenerativeClassifier(Saved, ClassifierMixin, BaseEstimator):
    """Fits one model per class and predicts by log-evidence plus log-prior, with scikit-learn's conventions.

    Features may be missing (NaN): the models learn from and answer with the observed values. A class without training rows is
    never predicted, so ``score`` counts its rows as wrong.

    Args:
        graph: structure whose observables are the features, in the order of the columns; or a function from the features'
            names to a structure, such as :func:`torchpbp.templates.mixture`. May be None if ``learner`` is a model.
        learner: a class or function ``(graph, **options) -> model``, or an unfitted model that is copied for each class.
        options: keyword arguments for ``learner``; ``learner__name`` sets one of them, as in a parameter grid of scikit-learn.
        prior: "empirical" (class frequencies) or "uniform".
        progress: show a progress bar over classes.

    Attributes:
        classes_: the classes, sorted.
        models_: one fitted model per class.
        graph_: the structure of all models.
        labels_: labels of the states of discrete features given by label, as category or string columns.
        n_features_in_: number of columns.
        feature_names_in_: names of the columns, after a fit to a DataFrame with string names. Columns of a DataFrame are
            matched by name, in any order.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from torchpbp import KernelPBP, templates
        >>> iris = load_iris()
        >>> classifier = GenerativeClassifier(templates.mixture, KernelPBP).fit(iris.data, iris.target)
        >>> classifier.predict(iris.data[[0, 50, 100]]).tolist()
        [0, 1, 2]
    """

    def __init__(
        self,
        graph: LatentGraph | Callable[[Sequence[str]], LatentGraph] | None = None,
        learner: Callable[..., Any] | ScoringModel | None = None,
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
            # fit() raises an error for other types
            options = self.options if isinstance(self.options, Mapping) else {}
            params |= {f"learner__{k}": v for k, v in options.items()}
        return params

    def set_params(self, **params: Any) -> GenerativeClassifier:
        nested = {k.removeprefix("learner__"): v for k, v in params.items() if k.startswith("learner__")}
        super().set_params(**{k: v for k, v in params.items() if not k.startswith("learner__")})
        if nested:
            self.options = {**(self.options or {}), **nested}
        return self

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> GenerativeClassifier:
        """Fit one model per class.

        Args:
            X: (rows, features) array or tensor, or a DataFrame whose columns include the observables.
            y: (rows,) classes without missing values. A Series must have the index of a DataFrame ``X``.
        """
        if self.prior not in ("empirical", "uniform"):
            raise ArgumentError(f"prior: expected 'empirical' or 'uniform', got {self.prior!r}.")
        graph = self._resolved_graph(X)
        require_single_values(graph.variables, "GenerativeClassifier")
        features = _features(X, graph.observed)
        if y is None:
            raise DataError("This classifier requires y to be passed, but the target y is None.")
        check_alignment({"X": X, "y": y}, "GenerativeClassifier.fit:")
        labels = _checked_classes(y)
        rows = len(next(iter(features.values())))
        if labels.ndim != 1 or len(labels) != rows:
            raise ShapeError(f"y: expected one class for each of the {rows} rows, got shape {labels.shape}.")
        reader = ColumnReader(graph.observed_domains, graph.labels, missing=True)
        (columns,) = reader.tables(features, max(1, rows))  # read once, so that labels and errors concern all classes
        classes, counts = np.unique(labels, return_counts=True)
        single = classes[counts == 1].tolist()
        if single:
            text = f"Classes {single[:10]} have 1 row each: their models are fitted to that row alone. Add rows, or drop them."
            warnings.warn(text, DataWarning, stacklevel=2)
        models = []
        new = self._new_model(graph)  # planned once, copied for each class
        for value in tqdm(classes, desc="classes", disable=not self.progress):
            chosen = torch.from_numpy(np.flatnonzero(labels == value))
            if len(chosen) == 1:
                chosen = chosen.expand(2)  # models need two rows; a repeated row has the same information
            models.append(copy.deepcopy(new).fit({v: c[chosen] for v, c in columns.items()}))
        named = is_frame(X) and all(isinstance(c, str) for c in X.columns)
        log_prior = np.log(counts / counts.sum()) if self.prior == "empirical" else np.zeros(len(classes))
        self._keep(classes, models, graph, reader.labels, named, log_prior)
        return self

    def _keep(
        self,
        classes: np.ndarray,
        models: list[Any],
        graph: LatentGraph,
        labels: dict[str, tuple[Any, ...]],
        named: bool,
        log_prior: np.ndarray,
    ) -> None:
        self.classes_, self.models_, self._log_prior = classes, models, log_prior
        self.graph_, self.labels_ = graph, labels
        self.n_features_in_ = len(graph.observed)
        if named:
            self.feature_names_in_ = np.array(graph.observed, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    # -- prediction ----------------------------------------------------------------------------------------------

    def log_scores(self, X: Any) -> np.ndarray:
        """(rows, classes) log-evidence plus log-prior."""
        self._require_fitted()
        columns = {
            v: read_column(f"X, column '{v}'", column, self.graph_.variables[v], self.labels_.get(v))
            for v, column in _features(X, self.graph_.observed).items()
        }
        with torch.no_grad():
            bar = tqdm(self.models_, desc="scoring", unit="class", disable=not self.progress)
            scores = torch.stack([model.log_evidence(columns).double() for model in bar], dim=1)
        return scores.cpu().numpy() + self._log_prior

    def predict(self, X: Any) -> np.ndarray:
        """(rows,) most probable classes; the one of largest prior for a row with probability 0 under all classes."""
        best = self.predict_log_proba(X).argmax(axis=1)
        return self.classes_[best]

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """(rows, classes) log P(class | features); the log-prior for a row with probability 0 under all classes."""
        scores = self.log_scores(X)
        lost = ~np.isfinite(scores).any(axis=1)
        scores[lost] = self._log_prior
        scores = scores - scores.max(axis=1, keepdims=True)
        return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))

    def predict_proba(self, X: Any) -> np.ndarray:
        """(rows, classes) P(class | features)."""
        return np.exp(self.predict_log_proba(X))

    # -- saving --------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], operators: bool | None = None) -> None:
        """Write the models of all classes, with classes, labels and prior, to one file.

        ``learner`` and ``options`` are written if a file without code can hold them: torchpbp's learners by name with plain
        options, kernel models by their settings. Otherwise the loaded classifier predicts like this one, but cannot be
        fitted again before ``set_params(learner=…)``.

        Args:
            path: of the file; an existing file is replaced only once the new one is complete.
            operators: of kernel models, as in :meth:`torchpbp.KernelPBP.save`.

        Raises:
            CheckpointError: models without a file format, classes that are neither numbers nor strings, or NaN or infinity in
                parameters.
        """
        self._write(path, SaveOptions(operators=operators))

    def pack(self, name: object, options: SaveOptions) -> dict[str, Any]:
        """The models with classes, labels and prior, and learner and options if a file can hold them."""
        self._require_fitted()
        require_finite({"log_prior": torch.from_numpy(self._log_prior)}, name, saving=True)
        learner = self.learner.__name__ if isinstance(self.learner, type) else ""
        learner_options = dict(self.options or {})
        built_in = isinstance(self.learner, type) and LEARNERS.get(learner) == self.learner.__module__
        return {
            "graph": self.graph_.to_dict(),
            "classes": _written_classes(self.classes_),
            "models": [
                packed(m, f"GenerativeClassifier, model of class {c}", options)
                for c, m in zip(self.classes_, self.models_, strict=True)
            ],
            "labels": checked_labels(self.labels_, self.graph_.variables, name),
            "named": hasattr(self, "feature_names_in_"),
            "prior": self.prior,
            "log_prior": torch.from_numpy(self._log_prior),
            "progress": bool(self.progress),
            "made_by": learner if built_in else None,
            "options": learner_options if built_in and is_plain(learner_options) else None,
        }

    @classmethod
    def unpack(cls, content: Mapping[str, Any], name: object) -> GenerativeClassifier:
        """The classifier with its fitted models."""
        graph, classes = LatentGraph.from_dict(content["graph"]), _read_classes(content["classes"])
        bar = tqdm(
            list(zip(classes, content["models"], strict=True)), desc="loading", unit="class", delay=2, leave=False
        )
        models = [from_content(m, f"{name}, model of class {c}") for c, m in bar]
        log_prior = content["log_prior"].double().numpy()
        if log_prior.shape != classes.shape or not len(classes):
            raise CheckpointError(
                f"'{name}': expected a prior for each of {len(classes)} classes, got {log_prior.shape}."
            )
        require_finite({"log_prior": content["log_prior"]}, name)
        counts = {v: n for v in graph.observed if isinstance(n := graph.variables[v], int)}
        differing = [v for m in models for v, n in counts.items() if m.graph.variables.get(v) != n]
        if differing:
            raise CheckpointError(
                f"'{name}': its models give {differing[:8]} other numbers of states than its own graph. {REMEDY}"
            )
        options, made_by = content["options"], content["made_by"]
        first = content["models"][0]
        learner = class_in_file(first, name).unfitted(first) if options is None else model_class(made_by)
        model = cls(graph, learner, options or None, content["prior"], content["progress"])
        labels = checked_labels(content["labels"], graph.variables, name)
        model._keep(classes, models, graph, labels, bool(content["named"]), log_prior)
        return model

    def to(self, device: torch.device | str) -> GenerativeClassifier:
        """Move the fitted models to a device and return the classifier."""
        self.models_ = [model.to(device) for model in self.models_]
        return self

    # -- inner workings ------------------------------------------------------------------------------------------

    def _require_fitted(self) -> None:
        if not hasattr(self, "models_"):
            raise ClassifierNotFittedError("This GenerativeClassifier is not fitted yet. Call fit(X, y).")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = tags.input_tags.string = True  # as labels of discrete features
        return tags

    def _resolved_graph(self, X: Any) -> LatentGraph:
        """The structure: the argument, the result of a function of the features' names, or that of the learner."""
        if isinstance(self.graph, LatentGraph):
            return self.graph
        if callable(self.graph):
            return self.graph(list(_features(X)))
        if _is_model(self.learner):
            return self.learner.graph
        raise StructureError("GenerativeClassifier: pass graph=, or a model as learner=.")

    def _new_model(self, graph: LatentGraph) -> Any:
        if _is_model(self.learner):
            if self.options:
                raise StructureError("options= go with a learner class or function, not with a model.")
            return self.learner
        if self.learner is None and hasattr(self, "models_"):
            raise StructureError(
                "This GenerativeClassifier was read from a file without its learner. Call set_params(learner=…) before fitting "
                "again."
            )
        if self.graph is None or not callable(self.learner):
            raise StructureError(
                "GenerativeClassifier: expected a graph and a learner (a class or function of a graph, such as KernelPBP) or a model, "
                f"got learner={self.learner!r}."
            )
        if not isinstance(self.options, Mapping | None):
            raise StructureError(f"options: expected names and values for the learner, got {self.options!r}.")
        return self.learner(graph, **(self.options or {}))


def _features(X: Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Columns of a table by name.

    Args:
        X: DataFrame, or (rows, features) array or tensor, whose columns are named x0, x1, … if ``names`` is None.
        names: of the columns to select, in the order of an array's columns; all by default.
    """
    if is_frame(X):
        columns = [str(c) for c in X.columns]
        wanted = columns if names is None else names
        require_unique(columns, wanted, "X: ")
        missing = [v for v in wanted if v not in columns]
        if missing:
            raise DataError(f"X: missing columns {missing}. It has: {shortened(', '.join(columns))}.")
        return {v: X.iloc[:, columns.index(v)] for v in wanted}
    if hasattr(X, "toarray") and hasattr(X, "nnz"):  # scipy.sparse
        raise DataError("X: expected a dense table, got a sparse one. Use X.toarray().")
    table = (
        dense_tensor("X", X).detach().cpu() if isinstance(X, torch.Tensor) else as_array("X", X, "a table of numbers")
    )
    if isinstance(table, np.ndarray) and table.dtype.kind == "c":
        raise DataError("X: Complex data not supported, expected real numbers.")
    if table.ndim != 2:
        raise ShapeError(
            f"X: expected shape (rows, features), got {tuple(table.shape)}. Reshape your data: X.reshape(1, -1) is one row."
        )
    if table.shape[1] == 0:
        raise DataError(
            f"X: Found array with 0 feature(s) (shape={tuple(table.shape)}) while a minimum of 1 is required."
        )
    wanted = [f"x{i}" for i in range(table.shape[1])] if names is None else names
    if table.shape[1] != len(wanted):
        raise ShapeError(
            f"X has {table.shape[1]} features, but GenerativeClassifier is expecting {len(wanted)} features as input: "
            f"expected shape (rows, {len(wanted)}) for the observables {shortened(', '.join(wanted))}; got {tuple(table.shape)}."
        )
    return {v: table[:, i] for i, v in enumerate(wanted)}


def _checked_classes(y: Any) -> np.ndarray:
    """(rows,) classes; a (rows, 1) column is flattened with a warning, as in scikit-learn."""
    if isinstance(y, torch.Tensor):
        y = dense_tensor("y", y).detach().cpu()
        y = y.float() if y.dtype == torch.bfloat16 else y  # numpy has no bfloat16
    try:
        labels = unmasked(y) if isinstance(y, np.ndarray) else np.asarray(y)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"y: expected one class per row, got {shortened(y, 60)}.") from None
    if labels.ndim == 2 and labels.shape[1] == 1:
        text = "A column-vector y was passed when a 1d array was expected. Pass y.ravel()."
        warnings.warn(text, sklearn.exceptions.DataConversionWarning, stacklevel=3)
        labels = labels.ravel()
    bad = np.asarray(pd.isna(labels)) | (np.isinf(labels) if labels.dtype.kind in "fc" else False)
    if labels.ndim == 1 and bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"y, row {row}: expected a class, got {labels[row]} ({int(bad.sum())} rows have None, NaN or infinity, or are masked). "
            "Leave out the rows without a class."
        )
    try:
        check_classification_targets(labels)
    except (TypeError, ValueError) as error:
        raise DataError(f"y: {error}") from None
    return labels


def _written_classes(classes: np.ndarray) -> dict[str, Any]:
    """Classes as plain values, with their type.

    Raises:
        CheckpointError: dates, bytes and other types without a representation in files.
    """
    if classes.dtype.kind not in "biufUO" or classes.dtype == np.longdouble:
        raise CheckpointError(
            f"Classes of type {classes.dtype} cannot be saved: expected numbers or strings. Fit with y.astype(str)."
        )
    return {"dtype": "O" if classes.dtype.kind == "O" else classes.dtype.str, "values": classes.tolist()}


def _read_classes(saved: Mapping[str, Any]) -> np.ndarray:
    """Inverse of :func:`_written_classes`."""
    result = np.empty(len(saved["values"]), dtype=np.dtype(saved["dtype"]))
    result[:] = saved["values"]
    return result
