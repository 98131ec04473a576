"""Training data: tables of many kinds, read in mini-batches of integer states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import DataError, ShapeError
from torchpbp.graph.latent_graph import Domain
from torchpbp.inputs.gaps import MissingValues
from torchpbp.inputs.labels import (
    NO_LABELS,
    are_labels,
    as_array,
    is_code_range,
    object_numbers,
    own_tensor,
    refuse_misaligned,
    states_from_labels,
    warn_of_few_labels,
)
from torchpbp.inputs.sources import DataLike, Matrix, TableLike, narrow_dtype, open_data
from torchpbp.inputs.states import comparable, whole_numbers
from torchpbp.inputs.values import read_values
from torchpbp.lazy import is_categorical, is_frame, is_series
from torchpbp.lazy import pandas as pd

__all__ = ["ROWS_PER_BATCH", "ColumnReader", "DataLike"]

ROWS_PER_BATCH = 1 << 17
"""Rows of an in-memory table handled at once; bounds the memory of counting."""


class ColumnReader:
    """Turns tables into integer states, one row of the result per variable.

    Labels of category and string columns are learned from the first table and kept for the others.

    Missing values (NaN, None, pandas NA, masked or null entries, -1 for discrete variables) are refused, or come through:
    those of discrete variables as -1, or as one extra state behind the others in narrow tables, which may be unsigned;
    those of continuous variables as NaN.

    Args:
        states: number of states (or range, if continuous) of each variable wanted; other columns are ignored.
        labels: labels of variables known from before.
        missing: let missing values through; refused by default.
        quiet: say nothing of labels that are fewer than states, as another reader of the same data will.

    Attributes:
        gaps: what is missing in the rows of the last pass, or of the present one so far.
    """

    def __init__(
        self,
        states: Mapping[str, Domain],
        labels: Mapping[str, Sequence[Any]] | None = None,
        missing: bool = False,
        quiet: bool = False,
    ) -> None:
        self.states = dict(states)
        self.missing = missing
        self.gaps = MissingValues()
        self._read_before = False
        self._counts = {v: d for v, d in self.states.items() if isinstance(d, int)}
        self.labels: dict[str, tuple[Any, ...]] = {k: tuple(v) for k, v in (labels or {}).items()}
        self._known = set(self.labels)
        self._quiet = quiet

    def batches(self, data: DataLike, rows: int = ROWS_PER_BATCH) -> Iterator[Tensor]:
        """Yield (variables, rows) int64 tensors of states, -1 where missing, where all variables are discrete."""
        for table in self.tables(data, rows):
            yield torch.stack(list(table.values()))

    def tables(self, data: DataLike, rows: int = ROWS_PER_BATCH, narrow: bool = False) -> Iterator[dict[str, Tensor]]:
        """Yield name -> (rows,) states as int64, or values of continuous variables as float64.

        Args:
            data: what to read.
            rows: most rows of a table at once.
            narrow: yield states in the smallest dtype that is counted in (uint8, or int32 beyond 256 states). With
                ``missing=True`` there is one state more, number ``states``, for missing values.

        Raises:
            DataError: no rows, missing column, fractional values, states out of range, unseen category; missing values,
                unless they are let through.
            ShapeError: columns of different lengths or with more than one dimension.
        """
        source = open_data(data, self.states)
        for v, labels in source.labels(self.labels).items():
            self._learn_labels(v, labels, "")
        total = 0
        self.gaps = MissingValues()
        for number, table in enumerate(source.tables(rows)):
            where = f"mini-batch {number}, " if source.streaming else ""
            columns = self._columns(table, where, source.streaming)
            length = len(next(iter(columns.values())))
            first = 0 if source.streaming else total
            whole = self.missing or isinstance(table, Matrix)
            for start in range(0, length, rows):
                part = {v: c[start : start + rows] for v, c in columns.items()}
                read = {
                    v: self._states(v, c, where, first + start, whole, narrow)
                    if v in self._counts
                    else read_values(v, c, self.states[v], where, first + start, self.missing)
                    for v, c in part.items()
                }
                self.gaps.add(min(rows, length - start), {v: gap for v, (_, gap) in read.items()})
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

    def _columns(self, table: TableLike, where: str, streaming: bool) -> dict[str, Tensor | np.ndarray]:
        absent = [v for v in self.states if v not in table]
        if absent:
            raise DataError(
                f"{where}missing columns {absent}. The data has: {', '.join(map(str, list(table)[:20])) or 'none'}."
            )
        if not is_frame(table):
            refuse_misaligned({v: table[v] for v in self.states}, f"{where}column")
        columns: dict[str, Tensor | np.ndarray] = {}
        for v in self.states:
            columns[v] = self._column(v, table[v], where, streaming)
            if columns[v].ndim != 1:
                single = ". A list of rows is read by pandas: pass DataFrame(rows)" if columns[v].ndim == 0 else ""
                raise ShapeError(
                    f"{where}column '{v}': expected one state per row, got shape {tuple(columns[v].shape)}{single}."
                )
        lengths = {v: len(c) for v, c in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ShapeError(
                f"{where}columns have different lengths: {lengths}. Give each column the same number of rows."
            )
        return columns

    def _column(self, name: str, value: Any, where: str, streaming: bool) -> Tensor | np.ndarray:
        if isinstance(value, Tensor):
            return (value.to_dense() if value.layout != torch.strided else value).detach().cpu()
        if is_series(value):
            value = value.array
        if name not in self._counts:
            return value if isinstance(value, np.ndarray) else np.asarray(value)  # checked as numbers later
        if is_categorical(value):
            self._learn_labels(name, list(value.categories), where)
            return self._renumbered(name, value)
        try:
            array = as_array(value)
        except ValueError:
            raise DataError(
                f"{where}column '{name}': expected integer states, got entries of different lengths."
            ) from None
        if array.dtype == object and name not in self.labels:
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
                self._learn_labels(name, sorted(set(present)), where)
        return array

    def _renumbered(self, name: str, column: pd.Categorical) -> Tensor:
        """States of a category column; -1 where missing. Its categories may be fewer, or in another order."""
        states = pd.Index(list(self.labels[name]), dtype=object).get_indexer(list(column.categories))
        smallest = np.min_scalar_type(-len(self.labels[name]) - 1)
        return torch.from_numpy(np.append(states, -1).astype(smallest)[column.codes])

    def _learn_labels(self, name: str, categories: list[Any], where: str) -> None:
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

    def _states(
        self, name: str, column: Tensor | np.ndarray, where: str, start: int, whole: bool, narrow: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Checked states, and where they are missing, if anywhere. ``whole``: floating-point numbers will do."""
        labels = self.labels.get(name)
        if isinstance(column, np.ndarray):
            if column.dtype == object:
                column = self._from_objects(name, column, where, start)
            elif labels is not None and are_labels(column, labels):
                column = states_from_labels(f"{where}column '{name}'", column.astype(object), labels, start)
            elif labels is not None and not is_code_range(labels):
                raise DataError(
                    f"{where}column '{name}' has labels {list(labels)[:6]}, but this batch has plain numbers."
                )
            elif column.dtype.kind not in "biufc":
                raise DataError(
                    f"{where}column '{name}' holds {column.dtype} values: expected integer states from 0 to "
                    f"{self._counts[name] - 1}."
                )
            column = own_tensor(column)
        if whole and column.is_floating_point():
            column = self._whole_numbers(name, column, where, start)
        if column.is_floating_point() or column.is_complex():
            raise DataError(
                f"{where}column '{name}' holds {str(column.dtype).removeprefix('torch.')} values: expected integer states "
                f"from 0 to {self._counts[name] - 1}. Cast it to integers (or declare the variable Continuous())"
                + (
                    "; it also holds NaN, and this learner takes no missing values."
                    if bool(torch.isnan(column).any())
                    else "."
                )
            )
        given, column = column, comparable(column)
        low, high = torch.aminmax(column)
        if int(low) < (-1 if self.missing else 0) or int(high) >= self._counts[name]:
            self._refuse(name, given, where, start)
        gap = column < 0 if int(low) < 0 else None
        if not narrow:
            return column.to(torch.int64), gap
        extra = self._counts[name] if self.missing else self._counts[name] - 1
        column = column.to(narrow_dtype(extra + 1))
        return column if gap is None else column.masked_fill(gap, extra), gap

    def _from_objects(self, name: str, column: np.ndarray, where: str, start: int) -> np.ndarray:
        """States from labels, or from numbers among which some may be missing; fractional numbers stay as they are."""
        labels = self.labels.get(name)
        if labels is not None:
            return states_from_labels(f"{where}column '{name}'", column, labels, start)
        numbers = object_numbers(
            f"{where}column '{name}'", column, start, self._counts[name], "integer states", hint=NO_LABELS
        )
        filled = np.where(np.isnan(numbers), -1, numbers)
        return filled.astype(np.int64) if np.all(filled == np.round(filled)) else filled

    def _refuse(self, name: str, given: Tensor, where: str, start: int) -> NoReturn:
        """Say which states are out of range, or missing."""
        codes = comparable(given).to(torch.int64)
        missing = codes == -1
        if bool(missing.any()) and not self.missing:
            count = int(missing.sum())
            extent = "all of them" if count == len(codes) else f"first at row {start + int(missing.nonzero()[0])}"
            raise DataError(
                f"{where}column '{name}': {count} of {len(codes)} values are missing ({extent}), and this learner "
                "needs complete rows: drop rows with gaps, or make 'missing' a state of its own."
            )
        row = int(((codes < -1) | (codes >= self._counts[name])).nonzero()[0])
        raise DataError(
            f"{where}column '{name}', row {start + row}: state {int(given[row].item())} is out of range; expected 0 to "
            f"{self._counts[name] - 1}{', or -1 for a missing value' if self.missing else ''}. Count states from 0, or make it "
            "a pandas category column, whose labels may be any numbers."
        )

    def _whole_numbers(self, name: str, column: Tensor, where: str, start: int) -> Tensor:
        """Floating-point states as integers, NaN as -1."""
        codes, bad = whole_numbers(column)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise DataError(
                f"{where}column '{name}', row {start + row}: expected a whole number from 0 to {self._counts[name] - 1}"
                f"{', or NaN for a missing value' if self.missing else ''}; got {float(column[row])}. If it is a number, "
                "declare the variable Continuous()."
            )
        return codes
