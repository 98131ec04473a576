"""Reading of columns: states, labels and values in any form, for training tables, evidence, batches and classifiers.

All values of a variable have its shape: () for states and numbers, (2,) for points, (1, 16, 8) for images. A value is observed
or missing as a whole. Missing are None, NaN (in all entries of a vector or image), NaT, pandas NA, masked entries, states of -1,
and the rows that are false in ``seen`` of a pair (values, seen).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, overload

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import DataError, ShapeError
from torchpbp.graph.domains import Continuous, Domain, shape_of
from torchpbp.inputs.arrays import (
    array_or_categories,
    as_array,
    as_tensor,
    dense_tensor,
    name_of,
    number_tensor,
    require_device,
)
from torchpbp.inputs.labels import (
    BOOLEANS,
    are_labels,
    found_labels,
    is_code_range,
    named_columns,
    states_from_categories,
    states_from_labels,
    warn_of_few_labels,
)
from torchpbp.inputs.missing_values import MissingValues, observed
from torchpbp.inputs.sources import DataLike, TableLike, narrow_dtype, open_data
from torchpbp.lazy import is_categorical, is_series
from torchpbp.lazy import pandas as pd

__all__ = ["ROWS_PER_BATCH", "Column", "ColumnReader", "DataLike", "read_column"]

ROWS_PER_BATCH = 1 << 17
"""Rows per batch of an in-memory table, which bound the memory of counting."""
ENTRIES_PER_BATCH = 1 << 24
"""Entries of vectors and images per batch: tables with such columns are read in smaller batches."""
ROUNDING = 5e-7
"""Tolerance for values outside the declared range, as a share of its larger end: single precision may round beyond the end."""
LARGEST = 1e150
"""Largest training value: squares of larger values, summed in variances, overflow float64."""
COMPARABLE = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
"""Integer dtypes with all comparisons; others become int64, in which uint64 wraps around below 0."""


@overload
def read_column(
    where: str, value: Any, domain: Domain, labels: Sequence[Any] | None = None, strict: Literal[True] = True
) -> Tensor: ...
@overload
def read_column(
    where: str, value: Any, domain: Domain, labels: Sequence[Any] | None = None, *, strict: Literal[False]
) -> tuple[Tensor, Tensor]: ...
def read_column(
    where: str, value: Any, domain: Domain, labels: Sequence[Any] | None = None, strict: bool = True
) -> Tensor | tuple[Tensor, Tensor]:
    """A column of a variable as checked states or values.

    Args:
        where: begins errors; names the variable.
        value: tensor, array, masked array, list or Series with an entry for each row: states, labels, or values of the
            variable's shape; for a vector or image also a pair of values and (rows,) booleans, true where observed.
        domain: number of states, or range.
        labels: labels of the states, if they have any.
        strict: raise errors about invalid entries. Otherwise they become missing, without control flow that depends on
            values, so that the reading of tensors can be compiled, exported and vectorised.

    Returns:
        (rows,) int64 states, -1 where missing, or (rows, *shape) values, NaN where missing: float32 for vectors and images of
        dtype float32 or uint8, otherwise float64. Values are differentiable. If not ``strict``, also a (rows,) mask of the
        invalid rows, and numbers keep a floating-point dtype.

    Raises:
        DataError: states out of range, fractions, unseen labels, values that are infinite, partly NaN or outside their range.
        ShapeError: other dimensions than the variable has.
    """
    column = Column.open(where, value, domain, labels)
    return column.checked() if strict else column.masked()


class Column(NamedTuple):
    """An unread column of a variable: apart from categories, entries are converted only when a part of it is read.

    Args:
        where: begins errors; names the variable.
        content: (rows, …) tensor, array of numbers, labels or objects.
        domain: domain of the variable.
        labels: labels of its states; None if label and state are the same number.
        shape: of the variable's values, () for states and numbers.
        first: number of its first row, for errors.
        seen: (rows,) booleans of vectors or images, false where the value is missing; None: missing values are NaN or None.
    """

    where: str
    content: Tensor | np.ndarray
    domain: Domain
    labels: Sequence[Any] | None = None
    shape: tuple[int, ...] = ()
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
        shape, seen = shape_of(domain), None
        if shape and _is_pair(value, shape):
            value, marks = value
            seen = _seen(where, marks)
        content: Tensor | np.ndarray
        if isinstance(value, Tensor):
            content = dense_tensor(where, value)
        elif type(value) is np.ndarray and value.dtype.kind in "biuf":
            content = value
        else:
            single = single and not is_series(value)  # a Series has rows
            content = _content(where, value, domain, labels, shape)
        if shape and content.shape[1:] != shape:
            content = _unusual(where, content, shape, single)
        elif single and content.ndim == 0:
            content = content[None]
        if seen is not None and seen.shape != content.shape[:1]:
            raise ShapeError(
                f"{where}: expected a pair (values, seen) with seen of shape ({len(content)},), one boolean for each row of "
                f"values; got shape {tuple(seen.shape)}."
            )
        if labels is not None and is_code_range(labels):
            labels = None
        return cls(where, content, domain, labels, shape, first, seen)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.content)

    def require_one_dimension(self) -> None:
        """Raise a ShapeError unless each row has one state or number."""
        if not self.shape and self.content.ndim != 1:
            raise _wrong_shape(self.where, self.content, self.domain)

    def part(self, rows: slice) -> Column:
        """The column of some rows."""
        seen = None if self.seen is None else self.seen[rows]
        return self._replace(content=self.content[rows], first=self.first + rows.start, seen=seen)

    def tensor(self, shared: bool = False) -> Tensor:
        """Unchecked numbers; labels as states, -1 where missing.

        Args:
            shared: allow a read-only tensor that shares memory with the column.
        """
        content, labels = self.content, self.labels
        if self.shape:
            if isinstance(content, np.ndarray) and content.dtype == object and content.ndim == 1:
                content = _stacked(self.where, content, self.shape, self.first)
            return floating(as_tensor(self.where, content))
        if isinstance(content, Tensor):
            return content
        if labels is not None and (content.dtype == object or (content.ndim == 1 and are_labels(content, labels))):
            return torch.from_numpy(states_from_labels(self.where, content.astype(object), labels, self.first))
        if labels is not None and content.ndim == 1 and not pd.isna(content).all():
            raise DataError(
                f"{self.where}: expected labels out of {list(labels)[:6]}, got plain numbers. Pass labels, or an integer tensor "
                "of states."
            )
        remedy = " The model was fitted without labels for this variable." if isinstance(self.domain, int) else ""
        return number_tensor(self.where, content, expected_of(self.domain), shared, remedy)

    def checked(self) -> Tensor:
        """Checked states or values, as :func:`read_column` returns them."""
        self.require_one_dimension()
        tensor = self.tensor()
        if isinstance(self.domain, int):
            return checked_states(self.where, tensor, self.domain, self.first)[0].to(torch.int64)
        if tensor.ndim > 1:
            return self._checked_values(tensor, "finite values", "Make the whole value NaN if it is not observed.")
        numbers = tensor.to(torch.float64)
        return self._checked_values(numbers, "a finite value or NaN", "Use NaN for a value that is not observed.")

    def training_values(self, values: Tensor, missing: bool) -> tuple[Tensor, Tensor | None]:
        """Checked training values of a continuous variable.

        Args:
            values: (rows, *shape) floating-point numbers, NaN where missing.
            missing: whether missing values are allowed.

        Returns:
            The values, and (rows,) booleans, true where missing; None if none is missing.

        Raises:
            DataError: values that are infinite, too large or outside the range; missing values, unless allowed.
        """
        finite = ("a finite number", "Drop such rows.")
        if self.shape:
            finite = ("finite numbers", "Make the whole value NaN, drop such rows, or scale the column.")
        values = self._checked_values(values, *finite, LARGEST)
        absent = ~observed(values)
        if not bool(absent.any()):
            return values, None
        if not missing:
            row = int(absent.nonzero()[0])
            raise DataError(
                f"{self.where}, row {self.first + row}: expected {finite[0]}, got nan. {int(absent.sum())} of {len(absent)} "
                "values are missing, and this learner needs complete rows: drop rows with missing values, or fill them in."
            )
        return values, absent

    def masked(self) -> tuple[Tensor, Tensor]:
        """States or values, missing in invalid rows, and a (rows,) mask of the invalid rows."""
        self.require_one_dimension()
        tensor = self.tensor()
        if isinstance(self.domain, int):
            codes, numbers = _whole(tensor) if tensor.is_floating_point() else (tensor.to(torch.int64),) * 2
            invalid = codes.clamp(_least(tensor), self.domain - 1) != numbers
            return codes.masked_fill(invalid, -1), invalid
        values = tensor if tensor.is_floating_point() else tensor.to(torch.float64)
        invalid = _invalid_values(values, self.domain, self.seen)
        hidden = invalid if self.seen is None else invalid | ~self.seen
        return values.masked_fill(_along(hidden, values), torch.nan), invalid

    def _checked_values(self, values: Tensor, expected: str, remedy: str, largest: float = math.inf) -> Tensor:
        """The values, NaN where not seen, after a check that they are finite and in range.

        Args:
            values: (rows, *shape).
            expected: describes valid values, for the error about infinite ones.
            remedy: ends errors.
            largest: largest absolute value.
        """
        seen = None if self.seen is None else self.seen.to(values.device)
        detached = values.detach()
        invalid = _invalid_values(detached, self.domain, seen, largest)
        if bool(invalid.any()):
            row = int(invalid.nonzero()[0])
            fault = _fault(detached[row], self.domain, largest, expected, remedy)
            raise DataError(f"{self.where}, row {self.first + row}{fault}")
        return values if seen is None else values.masked_fill(_along(~seen, values), torch.nan)


def expected_of(domain: Domain) -> str:
    """Valid entries of a column, for errors."""
    return f"states from 0 to {domain - 1}" if isinstance(domain, int) else "numbers"


def floating(values: Tensor) -> Tensor:
    """The same values in a floating-point dtype: float32 for float32 and uint8 (images), otherwise float64."""
    return values.to(torch.float32 if values.dtype in (torch.float32, torch.uint8) else torch.float64)


# -- forms -------------------------------------------------------------------------------------------------------------


def _is_pair(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether a value is a pair (values, seen), not two rows; a list is one too, since DataLoaders convert tuples to lists."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    values, marks = value
    if isinstance(value, tuple) and getattr(values, "ndim", 0) == len(shape) + 1:
        return True
    if hasattr(marks, "dtype"):
        return name_of(marks.dtype) in ("bool", "boolean") and marks.ndim < 2
    flags = marks if isinstance(marks, list | tuple) else [marks]
    return len(flags) > 0 and all(isinstance(mark, bool) for mark in flags)


def _seen(where: str, marks: Any) -> Tensor:
    """(rows,) booleans of a pair (values, seen)."""
    array = marks if isinstance(marks, Tensor) else as_array(where, marks, "booleans")
    if name_of(array.dtype) != "bool":
        raise DataError(
            f"{where}: expected a pair (values, seen) with booleans as seen, true where the value is observed; got "
            f"{name_of(array.dtype)}. Convert it: seen.to(torch.bool)."
        )
    seen = array if isinstance(array, Tensor) else torch.from_numpy(array.copy())
    return seen.reshape(1) if seen.ndim == 0 else seen


def _content(
    where: str, value: Any, domain: Domain, labels: Sequence[Any] | None, shape: tuple[int, ...]
) -> Tensor | np.ndarray:
    """A list, Series, array or other array-like object as an array, or a tensor of states or of stacked tensors."""
    value = value.array if is_series(value) else value
    if is_categorical(value):
        if isinstance(domain, int) and labels is not None:
            return torch.from_numpy(states_from_categories(where, value, labels))
        if isinstance(domain, int) and not pd.api.types.is_integer_dtype(value.categories.dtype):
            raise DataError(
                f"{where} has category labels, but the model was fitted on plain states. Pass column.cat.codes."
            )
        return np.asarray(value.astype(object), dtype=object)
    several = isinstance(value, list | tuple) and len(value) > 0
    if several and all(isinstance(row, Tensor) for row in value) and len({row.shape for row in value}) == 1:
        return torch.stack([dense_tensor(where, row) for row in value])  # numpy would detach gradients
    if not (several and shape):
        return as_array(where, value, expected_of(domain))
    if not any(isinstance(row, Tensor | np.ma.MaskedArray) for row in value):  # numpy would drop gradients and masks
        try:
            return as_array(where, value, "arrays of numbers")
        except DataError:  # rows of different shapes, missing ones among them
            pass
    return np.fromiter(value, dtype=object, count=len(value))


def _unusual(where: str, content: Tensor | np.ndarray, shape: tuple[int, ...], single: bool) -> Tensor | np.ndarray:
    """Vectors or images that are not (rows, *shape): a single one, or (rows,) objects, each a value or missing.

    Raises:
        ShapeError: values of another shape.
    """
    if content.ndim == 1 and content.dtype == object:
        return content
    if single and content.shape == shape:
        return content[None]
    if content.ndim == 1 or (content.ndim == 0 and single):  # no rows, or none with a value
        missing = content.isnan() if isinstance(content, Tensor) else pd.isna(content)
        if np.all(np.asarray(missing)):
            return np.full(content.shape or 1, None, dtype=object)
    raise _wrong_shape(where, content, Continuous(shape=shape), single)


def _stacked(where: str, entries: np.ndarray, shape: tuple[int, ...], start: int) -> Tensor:
    """(rows, *shape) numbers of objects, NaN in rows without a value."""
    present = np.flatnonzero(~np.asarray(pd.isna(entries)))
    rows = [as_tensor(f"{where}, row {start + i}", entries[i]) for i in present]
    for i, row in zip(present, rows, strict=True):
        if row.shape != shape:
            raise ShapeError(
                f"{where}, row {start + i}: expected numbers of shape {shape}, got {name_of(row.dtype)} of shape "
                f"{tuple(row.shape)}."
            )
    if not rows:
        return torch.full((len(entries), *shape), torch.nan, dtype=torch.float64)
    alike = len({row.dtype for row in rows}) == 1
    stacked = floating(torch.stack(rows if alike else [row.to(torch.float64) for row in rows]))
    if len(rows) == len(entries):
        return stacked
    places = torch.from_numpy(present).to(stacked.device)
    return stacked.new_full((len(entries), *shape), torch.nan).index_put((places,), stacked)


def _wrong_shape(where: str, content: Tensor | np.ndarray, domain: Domain, single: bool = False) -> ShapeError:
    shape, actual, remedy = shape_of(domain), tuple(content.shape), ""
    expected = "one real value per row (NaN where not observed)"
    if isinstance(domain, int):
        expected = f"one state per row, or in evidence floating-point weights of shape (batch, {domain})"
    if shape:
        entries = ", ".join(map(str, shape))
        expected = f"values of shape (rows, {entries})" + (f", or one value of shape {shape}" if single else "")
        flat = math.prod(actual[1:]) == math.prod(shape) and 1 in (len(actual) - 1, len(shape))
        if len(actual) > 1 and (flat or [n for n in actual[1:] if n > 1] == [n for n in shape if n > 1]):
            remedy = f" Reshape them: values.reshape(-1, {entries})."  # the axes are in the same order
    elif content.ndim == 0:
        remedy = " A list of rows is read by pandas: pass DataFrame(rows)."
    return ShapeError(f"{where}: expected {expected}; got {name_of(content.dtype)} of shape {actual}.{remedy}")


# -- checks ------------------------------------------------------------------------------------------------------------


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
        codes, numbers = _whole(column)
        if not torch.equal(codes.to(torch.float64), numbers):
            row = int((codes != numbers).nonzero()[0])
            raise DataError(
                f"{where}, row {start + row}: expected a whole number from 0 to {states - 1}, got {float(column[row])}. If it is "
                f"a number, declare the variable Continuous(); weights over states, in evidence, have shape (batch, {states})."
            )
    else:
        codes = column if column.dtype in COMPARABLE else column.to(torch.int64)
    if not len(codes):
        return codes, None
    low, high = (int(codes),) * 2 if len(codes) == 1 else (int(end) for end in torch.aminmax(codes))
    if low < (_least(column) if missing else 0) or high >= states:
        _raise_out_of_range(where, column, codes, states, start, missing)
    return codes, codes < 0 if low < 0 else None


def _whole(column: Tensor) -> tuple[Tensor, Tensor]:
    """Floating-point states as int64 and as float64, -1 in place of NaN; the two differ where a number is not whole."""
    numbers = column.detach().to(torch.float64).nan_to_num(-1.0, torch.inf, -torch.inf)
    return numbers.to(torch.int64), numbers


def _least(column: Tensor) -> int:
    """The smallest valid entry of states: -1 for a missing value, 0 in unsigned dtypes."""
    return -1 if column.dtype.is_signed else 0


def _raise_out_of_range(where: str, column: Tensor, codes: Tensor, states: int, start: int, missing: bool) -> NoReturn:
    """Raise a DataError about the first state that is out of range or missing."""
    codes = codes.to(torch.int64)
    absent = (codes == -1) & column.dtype.is_signed
    if not missing and bool(absent.any()):
        count = int(absent.sum())
        extent = "all of them" if count == len(codes) else f"first at row {start + int(absent.nonzero()[0])}"
        raise DataError(
            f"{where}: {count} of {len(codes)} values are missing ({extent}), and this learner needs complete rows: drop rows "
            "with missing values, or make 'missing' a state of its own."
        )
    row = int(((codes < _least(column)) | (codes >= states)).nonzero()[0])
    raise DataError(
        f"{where}, row {start + row}: state {int(column[row].item())} is out of range; expected 0 to {states - 1}"
        f"{', or -1 for a missing value' if missing else ''}. Count states from 0, or make it a pandas category column, whose "
        "labels may be any numbers."
    )


def _invalid_values(values: Tensor, domain: Domain, seen: Tensor | None, largest: float = math.inf) -> Tensor:
    """(rows,) mask of values that are partly NaN, NaN though seen, larger than ``largest`` or outside the declared range.

    Args:
        values: (rows, *shape) floating-point numbers.
        domain: domain of the variable.
        seen: (rows,) booleans, false where the value is ignored; None: a value is missing if all its entries are NaN.
        largest: largest absolute value; infinite values are invalid.
    """
    low, high = _limits(domain, values.dtype, largest)
    outside = (values < low) | (values > high)
    if values.ndim == 1:
        return outside
    gaps = values.isnan().flatten(1)
    seen = ~gaps.all(dim=1) if seen is None else seen
    return seen & (gaps | outside.flatten(1)).any(dim=1)


def _limits(domain: Domain, dtype: torch.dtype, largest: float) -> tuple[float, float]:
    """Ends of the declared range, extended by rounding, within the finite numbers up to ``largest``."""
    assert isinstance(domain, Continuous)
    largest = min(largest, torch.finfo(dtype).max)
    slack = ROUNDING * max(abs(domain.low or 0.0), abs(domain.high or 0.0))
    low = -largest if domain.low is None else max(domain.low - slack, -largest)
    return low, largest if domain.high is None else min(domain.high + slack, largest)


def _fault(value: Tensor, domain: Domain, largest: float, expected: str, remedy: str) -> str:
    """Description of an invalid value: its first entry at fault, and the reason."""
    gaps = value.isnan()
    if bool(gaps.all()):
        return (
            ": the value is marked as seen, but all its entries are NaN. Mark it as missing in the second part of the pair "
            "(values, seen)."
        )
    if bool(gaps.any()):
        return (
            f": {int(gaps.sum())} of {gaps.numel()} entries are NaN (the first at {tuple(gaps.nonzero()[0].tolist())}). A vector "
            "or image is observed or missing as a whole: fill these entries in, or make all of them NaN."
        )
    assert isinstance(domain, Continuous)
    low, high = _limits(domain, value.dtype, largest)
    entry = tuple(((value < low) | (value > high)).nonzero()[0].tolist())
    number, place = float(value[entry]), f", entry {entry}" if entry else ""
    if math.isinf(number):
        return f"{place}: expected {expected}, got {number}. {remedy}"
    if (domain.low is not None and number < low) or (domain.high is not None and number > high):
        return f"{place}: value {number} lies outside the declared range [{domain.low}, {domain.high}]. {remedy}"
    return (
        f"{place}: value {number} is too large: its square, of which variances are made, leaves the range of float64. Drop or "
        "clip such outliers, or scale the column."
    )


def _along(rows: Tensor, values: Tensor) -> Tensor:
    """(rows,) booleans in a shape that broadcasts with (rows, …) values."""
    return rows if values.ndim == 1 else rows.view(-1, *[1] * (values.ndim - 1))


class ColumnReader:
    """Converts tables to integer states and values by name.

    Labels of category, string and boolean columns are taken from the first table and reused for later ones.

    A column of vectors or images has the shape (rows, *shape); see :func:`read_column`.

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
            length = next(iter(columns.values())).rows
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
        unread = named_columns(table, self.states, where)
        columns = {v: self._open(v, x, where, streaming, total) for v, x in unread.items()}
        lengths = {v: c.rows for v, c in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ShapeError(
                f"{where}columns have different lengths: {lengths}. Give each column the same number of rows."
            )
        single = {v: c.content for v, c in columns.items() if not c.shape}
        if single:
            _require_one_device(single, where)
        return columns

    def _open(self, name: str, value: Any, where: str, streaming: bool, total: int) -> Column:
        """An unread column; its labels, if any, are learned."""
        place, domain = f"{where}column '{name}'", self.states[name]
        if isinstance(domain, int) and not isinstance(value, Tensor):
            value = array_or_categories(place, value, expected_of(domain))
            categories = is_categorical(value)
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
        part, domain = column.part(rows), column.domain
        tensor = part.tensor(narrow).detach()
        if self.device is not None:
            tensor = tensor.to(self.device)
        if not isinstance(domain, int):
            return part.training_values(tensor if tensor.ndim > 1 else tensor.to(torch.float64), self.missing)
        states, absent = checked_states(part.where, tensor, domain, part.first, self.missing)
        if not narrow:
            return states.to(torch.int64), absent
        extra = domain if self.missing else domain - 1
        states = states.to(narrow_dtype(extra + 1))
        return states if absent is None else states.masked_fill(absent, extra), absent


def _require_one_device(columns: Mapping[str, Tensor | np.ndarray], where: str) -> None:
    """Raise a DeviceError for tensors on different devices; columns of other kinds are on the CPU."""
    first, *others = sorted(columns, key=lambda v: isinstance(columns[v], Tensor))  # arrays before tensors
    content = columns[first]
    device = content.device if isinstance(content, Tensor) else torch.device("cpu")
    for v in others:
        column = columns[v]
        if isinstance(column, Tensor):
            require_device(f"{where}column '{v}'", column, device, f"column '{first}'")
