"""Sources of rows: tables, arrays, files and streams, opened as mini-batches of named columns."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, Union

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.errors import DataError, ShapeError
from torchpbp.graph.domains import Domain, shape_of
from torchpbp.inputs import arrow
from torchpbp.inputs.arrays import dense_tensor
from torchpbp.lazy import DataFrame, is_frame

TableLike: TypeAlias = Union[Mapping[str, Any], DataFrame]  # noqa: UP007  a forward reference knows no |

PATIENCE = 2.0
"""Seconds before a progress bar is shown."""


@dataclass(frozen=True)
class Source:
    """Opened data.

    Args:
        tables: returns a new iterator over tables; the argument is the number of rows per table, for sources that can split.
        streaming: whether the caller provides mini-batches, whose numbers then appear in errors.
        reopenable: whether the data can be read more than once.
        length: number of rows, if known.
        labels: returns the labels of label columns before reading; the argument holds the variables with known labels.
    """

    tables: Callable[[int], Iterator[TableLike]]
    streaming: bool = False
    reopenable: bool = True
    length: int | None = None
    labels: Callable[[Iterable[str]], dict[str, list[Any]]] = lambda known: {}


DataLike: TypeAlias = TableLike | Tensor | np.ndarray | str | os.PathLike[str] | Iterable[Any] | Source
"""Training data:

- a dict of columns or a pandas DataFrame; vectors and images are columns of shape (rows, *shape), columns of arrays, or, in a
  dict, pairs of values and (rows,) booleans, true where the value is observed;
- an array, memory map or tensor of shape (rows, variables), or a structured array;
- a Parquet file or folder (a path), or an Arrow Dataset or Table;
- a Dask DataFrame or Ray Dataset, for learners that need only counts or distinct rows;
- an iterable of mini-batches of these kinds, such as a DataLoader; the columns of a tuple of tensors are concatenated.

Arrays, Parquet files and Arrow tables hold states and numbers only, no vectors or images.
"""


def open_data(data: DataLike, states: Mapping[str, Domain], columns: Sequence[str] | None = None) -> Source:
    """Open data of any kind.

    Args:
        data: see :data:`DataLike`; a :class:`Source` is returned unchanged.
        states: variables to read, in the order of unnamed columns, with their numbers of states.
        columns: names of the columns of arrays; the variables in order by default.

    Raises:
        DataError: unreadable data, no such file, missing columns.
        ShapeError: an array with the wrong number of columns.
    """
    if isinstance(data, Source):
        return data
    if isinstance(data, Mapping) or is_frame(data):
        no_names_needed(columns, "A table")
        table: TableLike = data
        return Source(lambda rows: iter([table]), length=len(data) if is_frame(data) else None)
    if isinstance(data, Tensor | np.ndarray):
        matrix = _array_columns(data, states, columns)
        return Source(lambda rows: iter([matrix]), length=len(data))
    if (engine := cluster_engine(data)) is not None:
        raise DataError(
            f"The rows of a {engine.capitalize()} table are on a cluster, and this learner needs them in one process. Pass "
            f"{'data.compute()' if engine == 'dask' else 'data.to_pandas()'}, or use what works by counting: PBP with discrete "
            "variables and regressor=Ridge(), or EM."
        )
    if isinstance(data, str | os.PathLike):
        data = arrow.open_parquet(data)
    if arrow.is_rows(data):
        no_names_needed(columns, "A Parquet file or Arrow table")
        _single_values_only(states, "a Parquet file or Arrow table")
        rows = arrow.ArrowRows(data, states)
        return Source(rows.tables, length=rows.length, labels=rows.labels)
    if isinstance(data, bytes) or not isinstance(data, Iterable):
        raise DataError(
            "Expected a dict of columns, a pandas DataFrame, an array (rows, variables), a Parquet path, an Arrow table or an "
            f"iterable of mini-batches; got {type(data).__name__}."
        )

    def stream(rows: int) -> Iterator[TableLike]:
        for number, batch in enumerate(data):
            yield _as_table(batch, number, states, columns)

    return Source(stream, streaming=True, reopenable=not isinstance(data, Iterator))


def cluster_engine(data: object) -> str | None:
    """ "dask" for a Dask DataFrame, "ray" for a Ray Dataset; imports neither."""
    kinds = {(c.__module__.split(".")[0], c.__name__) for c in type(data).__mro__}
    return next((e for e, name in (("dask", "DataFrame"), ("ray", "Dataset")) if (e, name) in kinds), None)


def _as_table(batch: Any, number: int, states: Mapping[str, Domain], columns: Sequence[str] | None) -> TableLike:
    """One mini-batch of a stream as a table."""
    if isinstance(batch, Mapping) or is_frame(batch):
        return batch
    where = f"mini-batch {number}, "
    if arrow.is_batch(batch):
        _single_values_only(states, "an Arrow table", where)
        return arrow.as_table(batch, states)
    if isinstance(batch, Tensor | np.ndarray):
        return _array_columns(batch, states, columns, where)
    if isinstance(batch, tuple | list) and batch and all(isinstance(part, Tensor | np.ndarray) for part in batch):
        return _side_by_side(batch, states, columns, where)
    raise DataError(
        f"Mini-batch {number}: expected a dict of columns, a DataFrame, or a tensor or tuple of tensors with the columns of "
        f"{list(states)[:8]}; got {type(batch).__name__}."
    )


def _array_columns(
    array: Tensor | np.ndarray, states: Mapping[str, Domain], columns: Sequence[str] | None = None, where: str = ""
) -> dict[str, Tensor | np.ndarray]:
    """Columns of a (rows, variables) array or a structured array, as views."""
    if isinstance(array, np.ndarray) and array.dtype.names is not None:
        no_names_needed(columns, "A structured array")
        return {v: array[v] for v in array.dtype.names}
    names = tuple(states)
    _single_values_only(states, "an array", where)
    if isinstance(array, Tensor):
        array = dense_tensor(f"{where}table", array)
    if array.ndim != 2:
        raise ShapeError(
            f"{where}expected an array of shape (rows, {len(columns or names)}), got {tuple(array.shape)}. Give one row per "
            "sample and one column per variable."
        )
    used = _named(array.shape[1], names, columns, where)
    return {v: array[:, i] for i, v in enumerate(used)}


def _side_by_side(
    parts: Sequence[Tensor | np.ndarray], states: Mapping[str, Domain], columns: Sequence[str] | None, where: str
) -> dict[str, Tensor | np.ndarray]:
    """Concatenated columns of several tensors, (rows,) or (rows, variables); vectors and images take one tensor each."""
    order = tuple(states) if columns is None else tuple(columns)
    single: list[Tensor | np.ndarray] = []
    for part in parts:
        part = dense_tensor(f"{where}table", part) if isinstance(part, Tensor) else part
        name = order[len(single)] if len(single) < len(order) else ""
        shape = shape_of(states.get(name))
        if shape and tuple(part.shape[1:]) != shape:
            raise ShapeError(
                f"{where}expected a tensor of shape (rows, {', '.join(map(str, shape))}) for '{name}', got {tuple(part.shape)}. "
                f"The tensors stand for {', '.join(order)}, in this order; columns= sets another one."
            )
        if not shape and part.ndim not in (1, 2):
            raise ShapeError(f"{where}expected tensors of shape (rows,) or (rows, variables), got {tuple(part.shape)}.")
        single += [part] if shape or part.ndim == 1 else [part[:, i] for i in range(part.shape[1])]
    return dict(zip(_named(len(single), tuple(states), columns, where), single, strict=True))


def _named(width: int, names: Sequence[str], columns: Sequence[str] | None, where: str) -> Sequence[str]:
    """Names of ``width`` unnamed columns."""
    if columns is None:
        if width != len(names):
            raise ShapeError(
                f"{where}expected {len(names)} columns, the graph's observables in their order ({', '.join(names)}), got "
                f"{width}. Pass columns= with the name of each column."
            )
        return names
    if len(columns) != width:
        raise ShapeError(f"{where}columns= names {len(columns)} columns, but the array has {width}.")
    twice = sorted({v for v in columns if list(columns).count(v) > 1})
    if twice:
        raise DataError(f"columns= names {twice} more than once.")
    return columns


def _single_values_only(states: Mapping[str, Domain], what: str, where: str = "") -> None:
    """Raise a DataError if a variable is a vector or an image."""
    name = next((v for v, domain in states.items() if shape_of(domain)), None)
    if name is not None:
        shape = ", ".join(map(str, shape_of(states[name])))
        raise DataError(
            f"{where}expected a dict of columns, got {what}, which has one state or number per row and variable: '{name}' needs "
            f"a tensor of shape (rows, {shape}). Pass {{'{name}': tensor, …}}."
        )


def no_names_needed(columns: Sequence[str] | None, what: str) -> None:
    """Raise a DataError if ``columns`` is passed for data with named columns."""
    if columns is not None:
        raise DataError(f"{what} names its own columns: leave out columns=, which is for arrays without names.")


def with_progress(tables: Iterator[dict[str, Tensor]], length: int | None) -> Iterator[dict[str, Tensor]]:
    """The same tables, with a progress bar in rows after two seconds."""
    started, done = time.monotonic(), 0
    with contextlib.ExitStack() as stack:
        bar = None
        for table in tables:
            yield table
            done += (count := len(next(iter(table.values()))))
            if bar is not None:
                bar.update(count)
            elif time.monotonic() - started > PATIENCE:  # creating a hidden bar would take longer than a small fit
                bar = stack.enter_context(
                    tqdm(total=length, initial=done, desc="reading", unit="row", unit_scale=True, leave=False)
                )


def narrow_dtype(states: int) -> torch.dtype:
    """The smallest dtype for counting states."""
    return torch.uint8 if states <= 256 else torch.int32
