"""Classes of a classifier: checked as they come, and as plain values for a model file."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import sklearn.exceptions
import torch
from sklearn.utils.multiclass import check_classification_targets

from torchpbp.errors import CheckpointError, DataError
from torchpbp.inputs.arrays import dense_tensor
from torchpbp.settings import shortened


def checked_classes(y: Any) -> np.ndarray:
    """(rows,) classes; a single column is taken as one, with a warning, as everywhere in scikit-learn."""
    if isinstance(y, torch.Tensor):
        y = dense_tensor("y", y).detach().cpu().resolve_neg()
        y = y.float() if y.dtype == torch.bfloat16 else y  # numpy has none
    try:
        labels = np.asarray(y)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"y: expected one class per row, got {shortened(y, 60)}.") from None
    if labels.ndim == 2 and labels.shape[1] == 1:
        text = "A column-vector y was passed when a 1d array was expected. Pass y.ravel()."
        warnings.warn(text, sklearn.exceptions.DataConversionWarning, stacklevel=3)
        labels = labels.ravel()
    if labels.dtype.kind in "fc" and not np.isfinite(labels).all():
        raise DataError("y: expected classes, got NaN or infinity. Leave out the rows whose class is not known.")
    try:
        check_classification_targets(labels)
    except (TypeError, ValueError) as error:
        raise DataError(f"y: {error}") from None
    return labels


def written_classes(classes: np.ndarray) -> dict[str, Any]:
    """Classes as plain values, with their type.

    Raises:
        CheckpointError: dates, bytes and other types that a model file does not hold.
    """
    if classes.dtype.kind not in "biufUO" or classes.dtype == np.longdouble:
        raise CheckpointError(
            f"Classes of type {classes.dtype} cannot be saved: expected numbers or strings. Fit with y.astype(str)."
        )
    return {"dtype": "O" if classes.dtype.kind == "O" else classes.dtype.str, "values": classes.tolist()}


def read_classes(saved: Mapping[str, Any]) -> np.ndarray:
    """Inverse of :func:`written_classes`."""
    result = np.empty(len(saved["values"]), dtype=np.dtype(saved["dtype"]))
    result[:] = saved["values"]
    return result
