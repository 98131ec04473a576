"""Training data: tables of many kinds, read in mini-batches of integer states."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import DataError, ShapeError
from torchpbp.graph.domains import Domain, shape_of
from torchpbp.inputs.arrays import as_array, dense_tensor, name_of, require_device
from torchpbp.inputs.labels import check_alignment, numeric_tensor, warn_of_few_labels
from torchpbp.inputs.leaf_columns import open_leaves
from torchpbp.inputs.leaves import Leaves
from torchpbp.inputs.missing_values import MissingValues
from torchpbp.inputs.sources import DataLike, Matrix, TableLike, narrow_dtype, open_data
from torchpbp.inputs.states import comparable, whole_numbers
from torchpbp.inputs.values import training_values
from torchpbp.lazy import is_categorical, is_frame, is_series
from torchpbp.lazy import pandas as pd

__all__ = ["ROWS_PER_BATCH", "ColumnReader", "DataLike"]

ROWS_PER_BATCH = 1 << 17
"""Rows of an in-memory table handled at once; bounds the memory of counting."""
ENTRIES_PER_BATCH = 1 << 24
"""Entries of vectors and images handled at once: a table with such columns is read in fewer rows."""

Column: TypeAlias = Tensor | np.ndarray | Leaves


class ColumnReader:
    """Turns tables into integer states, one row of the result per variable.

    Labels of category and string columns are learned from the first table and kept for the others.

    A column of vectors or images has the shape (rows, *shape); see :func:`torchpbp.inputs.leaf_columns.open_leaves`.

    Missing values (NaN, None, pandas NA, masked or null entries, -1 for discrete variables) raise an error unless they are
    allowed. Those of discrete variables become -1, or one extra state behind the others in narrow tables, which may be
    unsigned; those of continuous variables become NaN, in all entries of a vector or image.

    Args:
        states: number of states (or range, if continuous) of each variable wanted; other columns are ignored.
        labels: labels of variables known from before.
        missing: allow missing values.
        quiet: do not warn of labels that are fewer than states; another reader of the same data does.
        device: where states and values go; None: they stay where the columns are, tables without a device on the CPU.

    Attributes:
        missing_values: what is missing in the rows of the last pass, or of the present one so far.
    """

    def __init__(
        self,
        states: Mapping[str, Domain],
        labels: Mapping[str, Sequence[Any]] | None = None,
        missing: bool = False,
        quiet: bool = False,
        device: torch.device | str | None = "cpu",
    ) -> None:
        self.states, self.device = dict(states), device
        self.missing = missing
        self.missing_values = MissingValues()
        self._read_before = False
        self._counts = {v: d for v, d in self.states.items() if isinstance(d, int)}
        self.labels: dict[str, tuple[Any, ...]] = {k: tuple(v) for k, v in (labels or {}).items()}
        self._known = set(self.labels)
        self._quiet = quiet
        self._shapes = {v: shape for v, d in self.states.items() if (shape := shape_of(d))}
        self._entries = sum(math.prod(shape) for shape in self._shapes.values())

    def batches(self, data: DataLike, rows: int = ROWS_PER_BATCH) -> Iterator[Tensor]:
        """Yield (variables, rows) int64 tensors of states, -1 where missing, where all variables are discrete."""
        for table in self.tables(data, rows):
            yield torch.stack(list(table.values()))

    def tables(self, data: DataLike, rows: int = ROWS_PER_BATCH, narrow: bool = False) -> Iterator[dict[str, Tensor]]:
        """Yield name -> (rows,) states as int64, or (rows, *shape) values of continuous variables.

        Values are float64; vectors and images that come as float32 or bytes are float32.

        Args:
            data: what to read.
            rows: most rows of a table at once. Tables with vectors or images have at most :data:`ENTRIES_PER_BATCH` entries
                of these.
            narrow: yield states in the smallest dtype that is counted in (uint8, or int32 beyond 256 states). With
                ``missing=True`` there is one state more, number ``states``, for missing values. Columns may share their
                memory with the data.

        Raises:
            DataError: no rows, missing column, fractional values, states out of range, unseen category; missing values,
                unless they are allowed.
            ShapeError: columns of different lengths, or with other dimensions than their variables have.
        """
        rows = min(rows, max(1, ENTRIES_PER_BATCH // self._entries)) if self._entries else rows
        source = open_data(data, self.states)
        for v, labels in source.labels(self.labels).items():
            self.learn_labels(v, labels, "")
        total = 0
        self.missing_values = MissingValues()
        for number, table in enumerate(source.tables(rows)):
            where = f"mini-batch {number}, " if source.streaming else ""
            columns = self._columns(table, where, source.streaming)
            length = len(next(iter(columns.values())))
            first = 0 if source.streaming else total
            whole = self.missing or isinstance(table, Matrix)
            for start in range(0, length, rows):
                part = {v: c[start : start + rows] for v, c in columns.items()}
                read = {v: self._read(v, c, where, first + start, whole, narrow) for v, c in part.items()}
                self.missing_values.add(min(rows, length - start), {v: absent for v, (_, absent) in read.items()})
                yield {v: column for v, (column, _) in read.items()}
            total += length
        if total == 0 and self._read_before:
            raise DataError(
                "The data could be read only once: a further pass over it found no rows. Pass data that can be opened again, "
                "such as a table, a list of mini-batches, a file, or a DataLoader over a Dataset with indices."
            )
        if total == 0:
            raise DataError("The training data is empty: expected at least one row, got none.")
        if not self._read_before and not self._quiet:
            warn_of_few_labels({v: x for v, x in self.labels.items() if v not in self._known}, self._counts)
        self._read_before = True

    def _columns(self, table: TableLike, where: str, streaming: bool) -> dict[str, Column]:
        absent = [v for v in self.states if v not in table]
        if absent:
            raise DataError(
                f"{where}missing columns {absent}. The data has: {', '.join(map(str, list(table)[:20])) or 'none'}."
            )
        if not is_frame(table):
            check_alignment({v: table[v] for v in self.states}, f"{where}column")
        columns: dict[str, Column] = {}
        for v in self.states:
            if v in self._shapes:
                columns[v] = open_leaves(f"{where}column '{v}'", table[v], self._shapes[v])
                continue
            column = columns[v] = self._column(v, table[v], where, streaming)
            if column.ndim != 1:
                single = ". A list of rows is read by pandas: pass DataFrame(rows)" if column.ndim == 0 else ""
                raise ShapeError(
                    f"{where}column '{v}': expected one state per row, got shape {tuple(column.shape)}{single}."
                )
        lengths = {v: len(c) for v, c in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ShapeError(
                f"{where}columns have different lengths: {lengths}. Give each column the same number of rows."
            )
        _require_one_device(columns, where)
        return columns

    def _column(self, name: str, value: Any, where: str, streaming: bool) -> Tensor | np.ndarray:
        """A column as states or numbers, or as an array whose parts :func:`numeric_tensor` reads."""
        if isinstance(value, Tensor):
            return dense_tensor(f"{where}column '{name}'", value).detach()
        if is_series(value):
            value = value.array
        if name in self._counts and is_categorical(value):
            self.learn_labels(name, list(value.categories), where)
            return self._renumbered(name, value)
        array = as_array(f"{where}column '{name}'", value, self._expected(name))
        if array.dtype == object and name in self._counts and name not in self.labels:
            present = array[~pd.isna(array)]
            strings = sum(isinstance(x, str) for x in present.flat)
            if strings:
                if strings < present.size:
                    raise DataError(
                        f"{where}column '{name}' mixes strings with other values. Use one kind, or a pandas category column."
                    )
                if streaming:
                    raise DataError(
                        f"{where}column '{name}' holds strings. Mini-batches need pandas category columns, so that each "
                        "batch knows all categories."
                    )
                self.learn_labels(name, sorted(set(present)), where)
        return array

    def _expected(self, name: str) -> str:
        return f"integer states from 0 to {self._counts[name] - 1}" if name in self._counts else "numbers"

    def _renumbered(self, name: str, column: pd.Categorical) -> Tensor:
        """States of a category column; -1 where missing. Its categories may be fewer, or in another order."""
        states = pd.Index(list(self.labels[name]), dtype=object).get_indexer(list(column.categories))
        smallest = np.min_scalar_type(-len(self.labels[name]) - 1)
        return torch.from_numpy(np.append(states, -1).astype(smallest)[column.codes])

    def learn_labels(self, name: str, categories: list[Any], where: str = "") -> None:
        """Take labels of a variable, in the order of its states, unless it has some; new ones then raise a DataError.

        Args:
            name: of the variable.
            categories: its labels.
            where: begins errors.
        """
        known = self.labels.get(name)
        if known is not None:
            if list(known) != categories and set(categories) - set(known):
                raise DataError(f"{where}column '{name}': categories {categories} differ from the known {list(known)}.")
            return
        if len(categories) > self._counts[name]:
            raise DataError(
                f"{where}column '{name}' has {len(categories)} categories, but the graph gives it {self._counts[name]} states."
            )
        self.labels[name] = tuple(categories)

    def _read(
        self, name: str, column: Column, where: str, start: int, whole: bool, narrow: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Checked states or values, and where they are missing, if anywhere.

        Args:
            name: of the column.
            column: a part of it.
            where: begins errors.
            start: number of the first row.
            whole: states may come as whole floating-point numbers.
            narrow: as in :meth:`tables`.
        """
        domain, place = self.states[name], f"{where}column '{name}'"
        if isinstance(column, Leaves):
            column = column.read(place, start).detach()
        if isinstance(column, np.ndarray):
            column = numeric_tensor(place, column, self.labels.get(name), domain, self._expected(name), start, narrow)
        if self.device is not None:
            column = column.to(self.device)
        if not isinstance(domain, int):
            return training_values(place, column, domain, start, self.missing)
        if column.is_floating_point():
            column = self._whole_numbers(place, column, domain, start, whole)
        given, column = column, comparable(column)
        low, high = torch.aminmax(column)
        if int(low) < (-1 if self.missing else 0) or int(high) >= domain:
            self._raise_out_of_range(place, given, domain, start)
        absent = column < 0 if int(low) < 0 else None
        if not narrow:
            return column.to(torch.int64), absent
        extra = domain if self.missing else domain - 1
        column = column.to(narrow_dtype(extra + 1))
        return column if absent is None else column.masked_fill(absent, extra), absent

    def _raise_out_of_range(self, place: str, given: Tensor, states: int, start: int) -> NoReturn:
        """Say which states are out of range, or missing."""
        codes = comparable(given).to(torch.int64)
        missing = codes == -1
        if bool(missing.any()) and not self.missing:
            count = int(missing.sum())
            extent = "all of them" if count == len(codes) else f"first at row {start + int(missing.nonzero()[0])}"
            raise DataError(
                f"{place}: {count} of {len(codes)} values are missing ({extent}), and this learner needs complete rows: drop rows "
                "with missing values, or make 'missing' a state of its own."
            )
        row = int(((codes < -1) | (codes >= states)).nonzero()[0])
        raise DataError(
            f"{place}, row {start + row}: state {int(given[row].item())} is out of range; expected 0 to {states - 1}"
            f"{', or -1 for a missing value' if self.missing else ''}. Count states from 0, or make it a pandas category column, "
            "whose labels may be any numbers."
        )

    def _whole_numbers(self, place: str, column: Tensor, states: int, start: int, whole: bool) -> Tensor:
        """Floating-point states as integers, NaN as -1."""
        if not whole:
            also = "; it also holds NaN, and this learner takes no missing values" if column.isnan().any() else ""
            raise DataError(
                f"{place} holds {name_of(column.dtype)} values: expected integer states from 0 to {states - 1}. Cast it to "
                f"integers (or declare the variable Continuous()){also}."
            )
        codes, bad = whole_numbers(column)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise DataError(
                f"{place}, row {start + row}: expected a whole number from 0 to {states - 1}"
                f"{', or NaN for a missing value' if self.missing else ''}; got {float(column[row])}. If it is a number, "
                "declare the variable Continuous()."
            )
        return codes


def _require_one_device(columns: Mapping[str, Column], where: str) -> None:
    """Raise a DeviceError for tensors on different devices; columns of other kinds are on the CPU."""
    tensors = {v: c for v, c in columns.items() if isinstance(c, Tensor)}
    if not tensors:
        return
    other = next((v for v, c in columns.items() if isinstance(c, np.ndarray)), None)
    first = next(iter(tensors))
    device = tensors[first].device if other is None else torch.device("cpu")
    for v, column in tensors.items():
        require_device(f"{where}column '{v}'", column, device, f"column '{first if other is None else other}'")
