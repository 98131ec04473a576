"""Feature maps of continuous variables, fitted to a bounded number of training values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from torchpbp.errors import DataError
from torchpbp.features.encoded import EncodedMap
from torchpbp.features.kernels import check_span
from torchpbp.features.maps import KernelMap
from torchpbp.inference.observable import Observable, make_map
from torchpbp.moments.thinning import ThinnedRows

MAP_ROWS = 20_000
"""Largest number of rows to which feature maps are fitted, evenly spread over the data."""

Tables = Callable[[], Iterator[dict[str, Tensor]]]
"""Returns a new iterator over the rows of this process in mini-batches."""


def thinned_rows(observables: Mapping[str, Observable], tables: Tables) -> ThinnedRows:
    """Values of all processes for fitting feature maps, collected in one pass."""
    rows = ThinnedRows(list(observables), MAP_ROWS)
    for table in tables():
        rows.add(table)
    rows.gather()
    return rows


def fit_observables(
    observables: Mapping[str, Observable], kernel_map: KernelMap | None, rows: ThinnedRows, scale: float | None = None
) -> dict[str, Observable]:
    """New observables with fitted feature maps.

    Args:
        observables: observables of the model, which are not modified.
        kernel_map: map for continuous variables, copied for each.
        rows: training values.
        scale: bandwidth as a multiple of the median distance; None: the bandwidth of the map.

    Raises:
        DataError: a constant column with a data-dependent bandwidth, or a range beyond floating-point precision.
    """
    fitted: dict[str, Observable] = {}
    for v, old in observables.items():
        encoded = isinstance(old.map, EncodedMap)
        observable = Observable(v, old.domain, copy.deepcopy(old.map) if encoded else make_map(old.domain, kernel_map))
        observable.to(rows.values(v).device)
        if encoded:
            observable.fit(rows.values(v))
        if isinstance(observable.map, KernelMap):
            low, high = rows.extent(v)
            if low == high and isinstance(observable.map.bandwidth, str):
                raise DataError(
                    f"Column '{v}' is constant ({low}): the median rule for its bandwidth needs different "
                    "values. Drop it, declare it discrete, or give a bandwidth as a number."
                )
            if scale is not None:
                observable.map.bandwidth_scale = scale
            observable.fit(rows.values(v), (low, high))
            middle = float(rows.values(v).median())
            check_span(v, low, high, middle, float(observable.map.width), torch.float64)
        fitted[v] = observable
    return fitted


def mean_features(observables: Mapping[str, Observable], rows: ThinnedRows) -> dict[str, Tensor]:
    """Mean features of the variables with missing values; they replace missing values in instruments."""
    result = {}
    for v in rows.incomplete:
        if v in observables:
            values = rows.values(v)
            result[v] = observables[v].map.features(values if observables[v].continuous else values.long()).mean(dim=0)
    return result
