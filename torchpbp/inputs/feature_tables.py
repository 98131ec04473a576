"""Tables of features as scikit-learn passes them: arrays or DataFrames, read again and again in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import DataError, ShapeError
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inputs.arrays import dense_tensor, own_tensor, unmasked
from torchpbp.inputs.labels import states_from_labels, warn_of_few_labels
from torchpbp.inputs.states import whole_numbers
from torchpbp.lazy import is_frame
from torchpbp.lazy import pandas as pd


def feature_names(X: Any) -> list[str]:
    """Names of the columns of a table: a DataFrame's own, or x0, x1, …"""
    if is_frame(X):
        return [str(c) for c in X.columns]
    return [f"x{i}" for i in range(_matrix(X).shape[1])]


class FeatureReader:
    """Reads features by name, and discrete ones by label where they came so the first time.

    Args:
        graph: its observables are the features.

    Attributes:
        labels: name -> labels of its states.
    """

    def __init__(self, graph: LatentGraph) -> None:
        self.names = graph.observed
        self.counts = {v: n for v in graph.observed if isinstance(n := graph.variables[v], int)}
        self.given = graph.labels
        self.labels: dict[str, tuple[Any, ...]] = {}

    def columns(self, X: Any, learn: bool = False) -> dict[str, Tensor]:
        """name -> (rows,) states or values; NaN or -1 where missing.

        Args:
            X: DataFrame with at least these columns, or (rows, features) table in their order.
            learn: forget the labels known so far and take those of the graph, or else of this table.
        """
        if learn:
            self.labels = dict(self.given)
        if not is_frame(X):
            table = _matrix(X)
            if table.shape[1] != len(self.names):
                raise ShapeError(
                    f"X has {table.shape[1]} features, but GenerativeClassifier is expecting {len(self.names)} features as input: "
                    f"expected shape (rows, {len(self.names)}) for the observables {_listed(self.names)}; got {tuple(table.shape)}."
                )
            return {v: self._whole(v, c, learn) for v, c in zip(self.names, table.T, strict=True)}
        named = {str(c): X.iloc[:, i] for i, c in enumerate(X.columns)}
        missing = [v for v in self.names if v not in named]
        if missing:
            raise DataError(f"X: missing columns {missing}. It has: {_listed(list(named))}.")
        columns = {v: self._column(v, named[v], learn) for v in self.names}
        if learn:
            warn_of_few_labels({v: x for v, x in self.labels.items() if v not in self.given}, self.counts)
        return columns

    def _column(self, name: str, column: pd.Series[Any], learn: bool) -> Tensor:
        if learn and name in self.counts and name not in self.given:
            labels = _labels(column)
            if labels is not None and len(labels) > self.counts[name]:
                raise DataError(
                    f"X, column '{name}' has {len(labels)} labels, but the graph gives it {self.counts[name]} states."
                )
            if labels is not None:
                self.labels[name] = labels
        if name not in self.labels:
            return self._whole(name, _numbers(column, f"X, column '{name}'"), learn)
        values = np.asarray(column.astype(object), dtype=object)
        return torch.from_numpy(states_from_labels(f"X, column '{name}'", values, self.labels[name]))

    def _whole(self, name: str, column: Tensor, learn: bool) -> Tensor:
        """States may come as floating-point numbers, because a table has one type for all columns."""
        if not learn or name not in self.counts or not column.is_floating_point():
            return column
        codes, bad = whole_numbers(column)
        return column if bool(bad.any()) else codes


def _labels(column: pd.Series[Any]) -> tuple[Any, ...] | None:
    """Labels of a category or string column; None for numbers."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return tuple(column.cat.categories)
    present = column.dropna()
    if len(present) and all(isinstance(x, str) for x in present):
        return tuple(sorted(set(present)))
    return None


def _matrix(X: Any) -> Tensor:
    """(rows, features) numbers."""
    if hasattr(X, "toarray") and hasattr(X, "nnz"):  # scipy.sparse
        raise DataError("X: expected a dense table, got a sparse one. Use X.toarray().")
    table = dense_tensor("X", X).detach().cpu() if isinstance(X, Tensor) else _numbers(X, "X")
    if table.ndim != 2:
        raise ShapeError(
            f"X: expected shape (rows, features), got {tuple(table.shape)}. Reshape your data: X.reshape(1, -1) is one row."
        )
    if table.shape[1] == 0:
        raise DataError(
            f"X: Found array with 0 feature(s) (shape={tuple(table.shape)}) while a minimum of 1 is required."
        )
    return table


def _numbers(values: Any, where: str) -> Tensor:
    """Numbers of any kind; None and pandas' NA become NaN."""
    try:
        array = unmasked(values) if isinstance(values, np.ndarray) else np.array(values)
        if array.dtype.kind == "c":
            raise DataError(f"{where}: Complex data not supported, expected real numbers.")
        if array.dtype.kind not in "biuf":
            array = np.where(pd.isna(array), np.nan, array).astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{where}: expected a table of numbers, got values that are not.") from None
    except OverflowError:  # whole numbers beyond the largest float64
        raise DataError(f"{where}: expected numbers that a float64 can hold, got larger ones.") from None
    return own_tensor(array)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
