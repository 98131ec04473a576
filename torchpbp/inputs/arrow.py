"""Parquet files and Arrow tables, read in batches. pyarrow is an optional extra, imported on first use."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from torchpbp.errors import DataError
from torchpbp.graph.latent_graph import Domain
from torchpbp.inputs.labels import require_unique
from torchpbp.io import checked_path, open_for_reading
from torchpbp.lazy import pandas as pd

SUFFIXES = (".parquet", ".pq")
BATCHES_AHEAD = 1
"""Batches and files read ahead of the one in use: memory is bounded by a few batches and one row group."""


def _kind(data: Any) -> str:
    """Name of an Arrow class; '' for everything else. Does not import pyarrow."""
    names = [c.__name__ for c in type(data).__mro__ if c.__module__.split(".")[0] == "pyarrow"]
    return next((n for n in names if n in ("Table", "RecordBatch", "Dataset")), "")


def is_rows(data: Any) -> bool:
    """Whether data is an Arrow Dataset, Table or RecordBatch."""
    return _kind(data) != ""


def is_batch(data: Any) -> bool:
    """Whether data is an Arrow RecordBatch or Table in memory."""
    return _kind(data) in ("Table", "RecordBatch")


def open_parquet(path: str | os.PathLike[str]) -> Any:
    """A Dataset over a Parquet file or a folder of such files."""
    target = checked_path(path, "a Parquet file or folder")
    is_folder = os.path.isdir(target)
    if not is_folder:
        open_for_reading(target, "a Parquet file or folder", DataError).close()
    if not is_folder and target.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"'{path}' is not a Parquet file by its name (.parquet, .pq). Read other formats with pandas; its chunksize= gives "
            "mini-batches."
        )
    if is_folder and not any(f.suffix.lower() in SUFFIXES for f in target.rglob("*")):
        raise DataError(f"The folder '{path}' holds no Parquet files (.parquet, .pq).")
    try:
        import pyarrow.dataset
    except ImportError:
        raise DataError(
            "Parquet files are read by pyarrow, which is not installed. Run: pip install 'torchpbp[arrow]'."
        ) from None
    try:
        return pyarrow.dataset.dataset(str(target), format="parquet", partitioning="hive")
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"'{path}' cannot be read as Parquet: {error}") from error


class ArrowRows:
    """Rows of an Arrow Dataset, Table or RecordBatch.

    Args:
        data: Arrow object with the rows.
        states: variables to read, with their numbers of states.
    """

    def __init__(self, data: Any, states: Mapping[str, Domain]) -> None:
        self._data, self._states = data, dict(states)
        self._labelled: set[str] = set()
        present = data.schema.names
        absent = [v for v in states if v not in present]
        if absent:
            raise DataError(f"missing columns {absent}. The data has: {', '.join(present[:20]) or 'none'}.")
        require_unique(present, states, "")
        with _reading():
            self.length: int = data.count_rows() if _kind(data) == "Dataset" else data.num_rows

    def tables(self, rows: int) -> Iterator[dict[str, Any]]:
        """Batches of at most ``rows`` rows."""
        for batch in self._batches(list(self._states), rows):
            yield as_table(batch, self._states, shared=self._states.keys() - self._labelled)

    def labels(self, known: Iterable[str]) -> dict[str, list[Any]]:
        """Labels of string columns, sorted, and of dictionary columns, in the order of the dictionaries.

        Files and row groups may have different dictionaries, so these columns are read in a separate first pass, unless the
        first dictionary is complete.

        Args:
            known: variables whose labels are known.
        """
        self._labelled = set(known)
        wanted = [
            v
            for v, states in self._states.items()
            if v not in known and isinstance(states, int) and holds_labels(self._data.schema.field(v).type)
        ]
        labels: dict[str, dict[Any, None]] = {v: {} for v in wanted}
        left = list(wanted)
        if wanted:
            for batch in self._batches(wanted, 1 << 17):
                for v in left:
                    labels[v] |= dict.fromkeys(_encoded(batch.column(v)).dictionary.to_pylist())
                dictionaries = [v for v in left if not _is_text(self._data.schema.field(v).type)]
                left = [v for v in left if v not in dictionaries or len(labels[v]) < int(str(self._states[v]))]
                if not left:
                    break
        text = {v for v in wanted if _is_text(self._data.schema.field(v).type)}
        return {v: sorted(x) if v in text else list(x) for v, x in labels.items() if x}

    def _batches(self, names: list[str], rows: int) -> Iterator[Any]:
        if _kind(self._data) == "RecordBatch":
            selected = self._data.select(names)
            yield from (selected.slice(start, rows) for start in range(0, len(selected), rows))
        elif _kind(self._data) == "Table":
            yield from self._data.select(names).to_batches(max_chunksize=rows)
        else:
            with _reading():
                yield from self._data.to_batches(
                    columns=names, batch_size=rows, batch_readahead=BATCHES_AHEAD, fragment_readahead=BATCHES_AHEAD
                )


@contextmanager
def _reading() -> Iterator[None]:
    """Convert errors of pyarrow in reading files to a DataError."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        text = (str(error).splitlines() or [""])[0]
        raise DataError(f"The data cannot be read: {text} A file is damaged, or may not be read.") from error


def as_table(batch: Any, states: Mapping[str, Domain], shared: Collection[str] = ()) -> dict[str, Any]:
    """Columns of a RecordBatch or Table as tensors, arrays or pandas categories.

    Args:
        batch: RecordBatch or Table.
        states: variables to read, with their numbers of states.
        shared: variables without labels, whose states may be read-only tensors over Arrow's memory.
    """
    if _kind(batch) == "Table":
        batch = batch.unify_dictionaries().combine_chunks()
    present = [v for v in batch.schema.names if v in states]
    return {v: _column(_chunk(batch.column(v)), isinstance(states[v], int), v in shared) for v in present}


def _chunk(column: Any) -> Any:
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def _column(array: Any, discrete: bool, shared: bool) -> Tensor | np.ndarray | pd.Categorical:
    import pyarrow
    from pyarrow import types

    kind = array.type
    countable = types.is_signed_integer(kind) or types.is_uint8(kind)
    if discrete and shared and countable and not array.null_count:
        return from_dlpack(array)
    if discrete and holds_labels(kind):
        coded = _encoded(array)
        codes = coded.indices.cast(pyarrow.int32()).fill_null(-1).to_numpy(zero_copy_only=False)
        return pd.Categorical.from_codes(codes, categories=pd.Index(coded.dictionary.to_pylist(), dtype=object))
    if types.is_dictionary(kind):
        array = array.dictionary_decode()
    return np.asarray(array.to_numpy(zero_copy_only=False))  # NaN, or None among objects, where values are missing


def has_dictionary(table: Any, name: str) -> bool:
    """Whether a column of an Arrow table is dictionary-encoded."""
    from pyarrow import types

    return bool(types.is_dictionary(table.schema.field(name).type))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def holds_labels(kind: Any) -> bool:
    """Whether an Arrow type is a string or dictionary type."""
    from pyarrow import types

    return bool(types.is_dictionary(kind)) or _is_text(kind)


def _encoded(column: Any) -> Any:
    """The column as a dictionary array with distinct, non-missing labels."""
    from pyarrow import types

    array = _chunk(column)
    if not types.is_dictionary(array.type):
        return array.dictionary_encode()
    if array.dictionary.null_count or len(array.dictionary.unique()) < len(array.dictionary):
        return array.dictionary_decode().dictionary_encode()
    return array
