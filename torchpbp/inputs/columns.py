"""Reading of columns: states, labels and values in any form, for training tables, evidence, batches and classifiers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import DataError, ShapeError
from torchpbp.graph.domains import Domain, shape_of
from torchpbp.inputs.arrays import (
    as_array,
    comparable,
    dense_tensor,
    name_of,
    number_tensor,
    require_device,
    whole_numbers,
)
from torchpbp.inputs.labels import (
    BOOLEANS,
    are_labels,
    check_alignment,
    found_labels,
    is_code_range,
    require_unique,
    states_from_categories,
    states_from_labels,
    warn_of_few_labels,
)
from torchpbp.inputs.leaves import leaf_values, open_leaves
from torchpbp.inputs.missing_values import MissingValues
from torchpbp.inputs.sources import DataLike, TableLike, narrow_dtype, open_data
from torchpbp.inputs.values import check_values, training_values
from torchpbp.lazy import is_categorical, is_frame, is_series
from torchpbp.lazy import pandas as pd

__all__ = ["ROWS_PER_BATCH", "Column", "ColumnReader", "DataLike", "read_column"]

ROWS_PER_BATCH = 1 << 17
"""Rows per batch of an in-memory table, which bound the memory of counting."""
ENTRIES_PER_BATCH = 1 << 24
"""Entries of vectors and images per batch: tables with such columns are read in smaller batches."""


def read_column(where: str, value: Any, domain: Domain, labels: Sequence[Any] | None = None) -> Tensor:
    """A column of a variable as checked states or values.

    Args:
        where: begins errors; names the variable.
        value: tensor, array, masked array, list or Series with an entry for each row: states, labels, or values of the
            variable's shape. None, NaN, NaT, pandas NA, masked entries and states of -1 are missing.
        domain: number of states, or range.
        labels: labels of the states, if they have any.

    Returns:
        (rows,) int64 states, -1 where missing, or (rows, *shape) values, NaN where missing: float32 for vectors and images of
        dtype float32 or uint8, otherwise float64. Values are differentiable.

    Raises:
        DataError: states out of range, fractions, unseen labels, values that are infinite or outside their range.
        ShapeError: other dimensions than the variable has.
    """
    column = Column.open(where, value, domain, labels)
    column.require_one_dimension()
    return checked_column(where, column.tensor(), domain)


@dataclass(frozen=True)
class Column:
    """An unread column of a variable: apart from categories, entries are converted only when a part of it is read.

    Args:
        where: begins errors; names the variable.
        content: (rows, …) tensor, array of numbers, labels or objects, or vectors and images.
        domain: domain of the variable.
        labels: labels of its states; None if label and state are the same number.
        first: number of its first row, for errors.
        seen: (rows,) booleans of vectors or images, false where the value is missing; None: missing values are NaN or None.
    """

    where: str
    content: Tensor | np.ndarray
    domain: Domain
    labels: Sequence[Any] | None = None
    first: int = 0
    seen: Tensor | None = None

    @classmethod
    def open(
        cls,
        where: str,
        value: Any,
        domain: Domain,
        labels: Sequence[Any] | None = None,
        single: bool = False,
        first: int = 0,
    ) -> Column:
        """A column in any form.

        Args:
            where, value, domain, labels: as for :func:`read_column`.
            single: accept one value without a dimension of rows as one row.
            first: number of the first row, for errors.
        """
        if shape := shape_of(domain):
            content, seen = open_leaves(where, value, shape, single)
            return cls(where, content, domain, None, first, seen)
        if isinstance(value, list | tuple) and value and all(isinstance(row, Tensor) for row in value):
            if len({row.shape for row in value}) > 1:
                raise ShapeError(f"{where}: got tensors of different shapes. Give each row the same.")
            value = torch.stack([dense_tensor(where, row) for row in value])  # numpy would detach gradients
        if is_series(value):
            value = value.array
        if isinstance(value, Tensor):
            content = dense_tensor(where, value)
        elif is_categorical(value) and isinstance(domain, int) and labels is not None:
            content = torch.from_numpy(states_from_categories(where, value, labels))
        elif is_categorical(value):
            if isinstance(domain, int) and not pd.api.types.is_integer_dtype(value.categories.dtype):
                raise DataError(
                    f"{where} has category labels, but the model was fitted on plain states. Pass column.cat.codes."
                )
            content = np.asarray(value.astype(object), dtype=object)
        else:
            content = as_array(where, value, expected_of(domain))
        if single and content.ndim == 0:
            content = content.reshape(1)
        return cls(where, content, domain, None if labels is None or is_code_range(labels) else labels, first)

    def __len__(self) -> int:
        return len(self.content)

    def require_one_dimension(self) -> None:
        """Raise a ShapeError unless each row has one state or number."""
        if not shape_of(self.domain) and self.content.ndim != 1:
            raise _wrong_shape(self.where, self.content, self.domain)

    def tensor(self, rows: slice | None = None, shared: bool = False) -> Tensor:
        """Some rows as unchecked numbers; labels as states, -1 where missing.

        Args:
            rows: slice of the rows; all by default.
            shared: allow a read-only tensor that shares memory with the column.
        """
        content = self.content if rows is None else self.content[rows]
        start = self.first if rows is None else self.first + rows.start
        if shape := shape_of(self.domain):
            seen = self.seen if self.seen is None or rows is None else self.seen[rows]
            return leaf_values(self.where, content, shape, seen, start)
        if isinstance(content, Tensor):
            return content
        labels = self.labels
        if labels is not None and (content.dtype == object or (content.ndim == 1 and are_labels(content, labels))):
            return torch.from_numpy(states_from_labels(self.where, content.astype(object), labels, start))
        if labels is not None and content.ndim == 1 and not pd.isna(content).all():
            raise DataError(
                f"{self.where}: expected labels out of {list(labels)[:6]}, got plain numbers. Pass labels, or an integer tensor "
                "of states."
            )
        remedy = " The model was fitted without labels for this variable." if isinstance(self.domain, int) else ""
        return number_tensor(self.where, content, expected_of(self.domain), shared, remedy)


def expected_of(domain: Domain) -> str:
    """Valid entries of a column, for errors."""
    return f"states from 0 to {domain - 1}" if isinstance(domain, int) else "numbers"


def checked_column(where: str, tensor: Tensor, domain: Domain) -> Tensor:
    """Checked numbers in the form returned by :func:`read_column`: (rows,) int64 states or (rows, *shape) values."""
    if shape_of(domain):
        check_values(where, tensor, domain, "finite values", "Make the whole value NaN if it is not observed.")
        return tensor
    if tensor.ndim != 1:
        raise _wrong_shape(where, tensor, domain)
    if isinstance(domain, int):
        return checked_states(where, tensor, domain)[0].to(torch.int64)
    values = tensor.to(torch.float64)
    check_values(where, values, domain, "a finite value or NaN", "Use NaN for a value that is not observed.")
    return values


def checked_states(
    where: str, column: Tensor, states: int, start: int = 0, missing: bool = True
) -> tuple[Tensor, Tensor | None]:
    """States in an integer dtype, -1 where missing, and (rows,) booleans, true where missing; None if none is missing.

    Args:
        where: begins errors; names the variable.
        column: (rows,) whole numbers of any type, NaN or -1 where missing.
        states: number of states.
        start: number of the first row, for errors.
        missing: whether missing values are allowed.
    """
    if column.is_floating_point():
        codes, bad = whole_numbers(column)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise DataError(
                f"{where}, row {start + row}: expected a whole number from 0 to {states - 1}, got {float(column[row])}. If it is "
                f"a number, declare the variable Continuous(); weights over states, in evidence, have shape (batch, {states})."
            )
    else:
        codes = comparable(column)
    if not len(codes):
        return codes, None
    low, high = (int(end) for end in torch.aminmax(codes))
    if low < (-1 if missing else 0) or high >= states:
        _raise_out_of_range(where, column, codes, states, start, missing)
    return codes, codes < 0 if low < 0 else None


def _wrong_shape(where: str, content: Tensor | np.ndarray, domain: Domain) -> ShapeError:
    kind = name_of(content.dtype) if isinstance(content, Tensor) else str(content.dtype)
    expected = "one real value per row (NaN where not observed)"
    if isinstance(domain, int):
        expected = f"one state per row, or in evidence floating-point weights of shape (batch, {domain})"
    remedy = " A list of rows is read by pandas: pass DataFrame(rows)." if content.ndim == 0 else ""
    return ShapeError(f"{where}: expected {expected}; got {kind} of shape {tuple(content.shape)}.{remedy}")


def _raise_out_of_range(where: str, column: Tensor, codes: Tensor, states: int, start: int, missing: bool) -> NoReturn:
    """Raise a DataError about the first state that is out of range or missing."""
    codes = codes.to(torch.int64)
    absent = codes == -1
    if not missing and bool(absent.any()):
        count = int(absent.sum())
        extent = "all of them" if count == len(codes) else f"first at row {start + int(absent.nonzero()[0])}"
        raise DataError(
            f"{where}: {count} of {len(codes)} values are missing ({extent}), and this learner needs complete rows: drop rows "
            "with missing values, or make 'missing' a state of its own."
        )
    row = int(((codes < -1) | (codes >= states)).nonzero()[0])
    raise DataError(
        f"{where}, row {start + row}: state {int(column[row].item())} is out of range; expected 0 to {states - 1}"
        f"{', or -1 for a missing value' if missing else ''}. Count states from 0, or make it a pandas category column, whose "
        "labels may be any numbers."
    )


class ColumnReader:
    """Converts tables to integer states and values by name.

    Labels of category, string and boolean columns are taken from the first table and reused for later ones.

    A column of vectors or images has the shape (rows, *shape); see :func:`torchpbp.inputs.leaves.open_leaves`.

    Missing values (see :func:`read_column`) raise an error unless they are allowed. Those of discrete variables become -1,
    or an additional last state in narrow tables, which may be unsigned; those of continuous variables become NaN, in all
    entries of a vector or image.

    Args:
        states: number of states (or range, if continuous) of each variable to read; other columns are ignored.
        labels: labels of the states of variables, declared or taken from earlier tables.
        missing: allow missing values.
        quiet: do not warn of variables with fewer labels than states, because another reader of the same data does.
        device: device of states and values; None: the device of the columns, the CPU for tables without a device.

    Attributes:
        missing_values: missing values of the last pass, or of the current one so far.
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
        self._declared = set(self.labels)
        self._quiet = quiet
        self._entries = sum(math.prod(shape) for d in self.states.values() if (shape := shape_of(d)))

    def batches(self, data: DataLike, rows: int = ROWS_PER_BATCH) -> Iterator[Tensor]:
        """Yield (variables, rows) int64 tensors of states, -1 where missing, where all variables are discrete."""
        for table in self.tables(data, rows):
            yield torch.stack(list(table.values()))

    def tables(self, data: DataLike, rows: int = ROWS_PER_BATCH, narrow: bool = False) -> Iterator[dict[str, Tensor]]:
        """Yield name -> (rows,) states as int64, or (rows, *shape) values of continuous variables.

        Values are float64, but vectors and images of dtype float32 or uint8 are float32.

        Args:
            data: data to read.
            rows: largest number of rows per table. Tables with vectors or images have at most :data:`ENTRIES_PER_BATCH`
                entries of these.
            narrow: yield states in the smallest dtype for counting (uint8, or int32 beyond 256 states). With ``missing=True``
                the additional state ``states`` stands for missing values. Columns may share memory with the data.

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
            columns = self._columns(table, where, source.streaming, total)
            length = len(next(iter(columns.values())))
            for start in range(0, length, rows):
                part = slice(start, start + rows)
                parts = {v: self._read(c, part, narrow) for v, c in columns.items()}
                self.missing_values.add(min(rows, length - start), {v: absent for v, (_, absent) in parts.items()})
                yield {v: column for v, (column, _) in parts.items()}
            total += length
        if total == 0 and self._read_before:
            raise DataError(
                "The data could be read only once: a further pass over it found no rows. Pass data that can be opened again, "
                "such as a table, a list of mini-batches, a file, or a DataLoader over a Dataset with indices."
            )
        if total == 0:
            raise DataError("The training data is empty: expected at least one row, got none.")
        if not self._read_before and not self._quiet:
            warn_of_few_labels({v: x for v, x in self.labels.items() if v not in self._declared}, self._counts)
        self._read_before = True

    def learn_labels(self, name: str, categories: list[Any], where: str = "") -> None:
        """Set the labels of a variable, in the order of its states; labels missing from existing ones raise a DataError.

        Args:
            name: name of the variable.
            categories: labels of the variable.
            where: begins errors.
        """
        labels = self.labels.get(name)
        if labels is not None:
            if list(labels) != categories and set(categories) - set(labels):
                raise DataError(
                    f"{where}column '{name}': categories {categories} differ from the known {list(labels)}."
                )
            return
        if len(categories) > self._counts[name]:
            raise DataError(
                f"{where}column '{name}' has {len(categories)} categories, but the graph gives it {self._counts[name]} states."
            )
        self.labels[name] = tuple(categories)

    def _columns(self, table: TableLike, where: str, streaming: bool, total: int) -> dict[str, Column]:
        absent = [v for v in self.states if v not in table]
        if absent:
            raise DataError(
                f"{where}missing columns {absent}. The data has: {', '.join(map(str, list(table)[:20])) or 'none'}."
            )
        if is_frame(table):
            require_unique(list(table.columns), self.states, where)
        else:
            check_alignment({v: table[v] for v in self.states}, f"{where}column")
        columns = {v: self._open(v, table[v], where, streaming, total) for v in self.states}
        lengths = {v: len(c) for v, c in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ShapeError(
                f"{where}columns have different lengths: {lengths}. Give each column the same number of rows."
            )
        _require_one_device({v: c.content for v, c in columns.items() if not shape_of(c.domain)}, where)
        return columns

    def _open(self, name: str, value: Any, where: str, streaming: bool, total: int) -> Column:
        """An unread column; its labels, if any, are learned."""
        place, domain = f"{where}column '{name}'", self.states[name]
        if isinstance(domain, int) and not isinstance(value, Tensor):
            value = value.array if is_series(value) else value
            categories = is_categorical(value)
            if not categories:
                value = as_array(place, value, expected_of(domain))
            labels = found_labels(place, value) if categories or name not in self.labels else None
            booleans = not categories and labels == list(BOOLEANS)
            if streaming and labels is not None and not categories and not booleans:
                raise DataError(
                    f"{place} holds strings. Mini-batches need pandas category columns, so that each batch knows all categories."
                )
            if labels is not None and (domain == len(BOOLEANS) or not booleans):
                self.learn_labels(name, labels, where)
        column = Column.open(place, value, domain, self.labels.get(name), first=0 if streaming else total)
        column.require_one_dimension()
        return column

    def _read(self, column: Column, rows: slice, narrow: bool) -> tuple[Tensor, Tensor | None]:
        """Checked states or values, and where they are missing, if anywhere.

        Args:
            column: column to read.
            rows: slice of the rows.
            narrow: as in :meth:`tables`.
        """
        where, domain, start = column.where, column.domain, column.first + rows.start
        tensor = column.tensor(rows, narrow).detach()
        if self.device is not None:
            tensor = tensor.to(self.device)
        if not isinstance(domain, int):
            return training_values(where, tensor, domain, start, self.missing)
        states, absent = checked_states(where, tensor, domain, start, self.missing)
        if not narrow:
            return states.to(torch.int64), absent
        extra = domain if self.missing else domain - 1
        states = states.to(narrow_dtype(extra + 1))
        return states if absent is None else states.masked_fill(absent, extra), absent


def _require_one_device(columns: Mapping[str, Tensor | np.ndarray], where: str) -> None:
    """Raise a DeviceError for tensors on different devices; columns of other kinds are on the CPU."""
    tensors = {v: c for v, c in columns.items() if isinstance(c, Tensor)}
    if not tensors:
        return
    other = next((v for v, c in columns.items() if isinstance(c, np.ndarray)), None)
    first = next(iter(tensors))
    device = tensors[first].device if other is None else torch.device("cpu")
    for v, column in tensors.items():
        require_device(f"{where}column '{v}'", column, device, f"column '{first if other is None else other}'")
