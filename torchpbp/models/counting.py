"""Learning from counts: kept, saved, merged, and added to as rows come in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from torchpbp.errors import CheckpointError, DataError, NotFittedError, StructureError
from torchpbp.files.checkpoint import (
    REMEDY,
    checked_labels,
    read_checkpoint,
    require_finite,
    whole_model,
    write_checkpoint,
)
from torchpbp.files.tensors import with_own_storage
from torchpbp.inputs.columns import ROWS_PER_BATCH, ColumnReader
from torchpbp.inputs.sources import DataLike, open_data, with_progress
from torchpbp.learning.fitting import Fitted, Fitter, check_labels
from torchpbp.learning.linear import required_scopes
from torchpbp.models.answers import Answers
from torchpbp.moments.joint_tables import JointTables, layout_of
from torchpbp.moments.table_layout import Scope
from torchpbp.planning.plan import Specification

FORMAT = "torchpbp.Counts"

M = TypeVar("M", bound="CountedModel")


class Counts:
    """How often the joint states of some groups of variables occur: all that a discrete model learns from.

    Counts of disjoint sets of rows add up to the counts of all rows, exactly. Made by :meth:`torchpbp.PBP.count`.

    Args:
        tables: the counts.
        labels: labels of the states of variables that were given by label.

    Example:
        >>> from torchpbp import PBP, DiscreteNetwork, templates
        >>> truth = DiscreteNetwork.random(templates.naive_bayes(3), seed=1)
        >>> model = PBP(truth.graph)
        >>> counts = model.count(truth.sample(500, seed=1)).merge(model.count(truth.sample(300, seed=2)))
        >>> print(model.fit_counts(counts))
        PBP(LatentGraph(directed, 3 observed, 1 latent, 3 edges), fitted on 800 rows)
    """

    def __init__(self, tables: JointTables, labels: Mapping[str, Sequence[Any]] | None = None) -> None:
        self.tables = tables
        self.labels: dict[str, tuple[Any, ...]] = {v: tuple(x) for v, x in (labels or {}).items()}

    @property
    def rows(self) -> int:
        """Number of rows counted."""
        return int(self.tables.rows)

    @property
    def nbytes(self) -> int:
        """Size in memory and, nearly, in a file: 8 bytes for each cell of each table."""
        return self.tables.counts.nbytes

    def copy(self) -> Counts:
        """Counts of their own with the same content."""
        return Counts(self.tables.restricted(self.tables.scopes), self.labels)

    def merge(self, other: Counts) -> Counts:
        """Add the counts of other rows to these.

        Returns:
            These counts.

        Raises:
            StructureError: different variables, numbers of states or groups.
            DataError: different labels.
        """
        if not isinstance(other, Counts):
            raise DataError(f"merge: expected Counts, got {type(other).__name__}. Make them with model.count(rows).")
        for v in dict.fromkeys((*self.labels, *other.labels)):
            here, there = self.labels.get(v), other.labels.get(v)
            if here != there and self.rows and other.rows:
                raise DataError(
                    f"Column '{v}' has labels {_listed(here)} in one of the counts and {_listed(there)} in the other, so their "
                    "states cannot be told to be the same. Count with labels= the same for all parts."
                )
        self.tables.merge(other.tables)
        self.labels = {**other.labels, **self.labels}
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a file; an existing one is replaced only once the new one is whole.

        Raises:
            CheckpointError: counts that are NaN or infinite, or a file that cannot be written.
        """
        require_finite({"counts": self.tables.counts}, path, saving=True)
        checked_labels(self.labels, self.tables.states, path)
        write_checkpoint(path, self.to_dict(), FORMAT)

    @classmethod
    @whole_model
    def load(cls, path: str | os.PathLike[str]) -> Counts:
        """Read counts written by :meth:`save`. Only tensors and plain values are read; no code is executed."""
        return cls.from_dict(read_checkpoint(path, "cpu", FORMAT), path)

    def to_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        return {
            "states": self.tables.states,
            "scopes": [list(s) for s in self.tables.scopes],
            "counts": self.tables.counts,
            "rows": self.tables.rows,
            "gaps": sorted(self.tables.gaps),
            "labels": {v: list(x) for v, x in self.labels.items()},
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], path: object = "counts") -> Counts:
        """The inverse of :meth:`to_dict`.

        Args:
            content: as saved.
            path: of the file, for errors.

        Raises:
            CheckpointError: counts that do not fit the numbers of states, or are NaN or infinite; labels that are no labels.
        """
        scopes, states, gaps = content["scopes"], dict(content["states"]), content.get("gaps", ())
        counts, rows = content["counts"], float(content["rows"])
        if any(type(n) is not int or n < 1 for n in states.values()):
            raise CheckpointError(f"'{path}': expected numbers of states from 1 on, got {states!r:.100}. {REMEDY}")
        cells = layout_of(scopes, states, gaps).cells
        if counts.shape != (cells,):  # before tables of the declared sizes are allocated
            raise CheckpointError(f"'{path}': expected {cells:,} counts, got shape {tuple(counts.shape)}. {REMEDY}")
        require_finite({"counts": counts, "rows": torch.tensor(rows)}, path)
        labels = checked_labels(content["labels"], states, path)
        tables = JointTables(scopes, states, gaps)
        tables.counts = with_own_storage(counts.to("cpu", torch.float64))
        tables.rows = rows
        return cls(tables, labels)

    def __repr__(self) -> str:
        size = f"{len(self.tables.scopes)} tables, {self.nbytes:,} bytes"
        return f"Counts({self.rows:,} rows, {len(self.tables.states)} variables, {size})"


class CountedModel(Answers):
    """The part of a model that learns from counts.

    Attributes:
        counts: counts behind the fit, kept for :meth:`partial_fit`; ``None`` where learning needs more than counts, and
            after loading a file without them. Set it to ``None`` to free their memory.
    """

    additive: ClassVar[bool] = True
    """Whether counts are all that fitting needs."""
    counts: Counts | None

    @property
    def specification(self) -> Specification:
        raise NotImplementedError

    def _fitter(self) -> Fitter:
        raise NotImplementedError

    def _adopt(self, found: Fitted, labels: Mapping[str, tuple[Any, ...]]) -> None:
        raise NotImplementedError

    def count(
        self,
        data: DataLike,
        batch_size: int = ROWS_PER_BATCH,
        columns: Sequence[str] | None = None,
        labels: Mapping[str, Sequence[Any]] | None = None,
    ) -> Counts:
        """Count rows without learning from them; the model stays as it is.

        Parts of the data can be counted anywhere, saved, merged in any order and given to :meth:`fit_counts` of a model
        with the same graph and options. In a process group, too, these are the counts of the rows given here only.

        Args:
            data: as in :meth:`fit`.
            batch_size: rows of a table handled at once.
            columns: names of the columns of arrays.
            labels: labels of the states of columns given by label, in the order of the states; those of the fitted model by
                default, else as found in the data. Parts that are to be merged need the same.

        Raises:
            StructureError: a model that counts are not enough for.
            DataError: as :meth:`fit`.
        """
        fitter = self._counting_fitter()
        known = self.labels if labels is None else labels
        reader = ColumnReader({v: o.domain for v, o in self.observables.items()}, known, fitter.takes_gaps)
        source = open_data(data, reader.states, columns)

        def tables() -> Iterator[dict[str, Tensor]]:
            return with_progress(reader.tables(source, batch_size, narrow=True), source.length)

        kept = None if self.counts is None else self.counts.tables.scopes
        return Counts(fitter.count(tables, self._scopes() if kept is None else kept), reader.labels)

    def fit_counts(self: M, counts: Counts) -> M:
        """Learn from counts: the same model as from their rows.

        Args:
            counts: made by :meth:`count` of this model, or of one with the same graph and options. They are copied.

        Raises:
            StructureError: counts of other variables or groups, or a model that counts are not enough for.
            DataError: no rows.
        """
        fitter = self._counting_fitter()
        if not isinstance(counts, Counts):
            raise DataError(
                f"fit_counts: expected Counts, got {type(counts).__name__}. Make them with model.count(rows)."
            )
        if counts.tables.states != fitter.states:
            raise StructureError(
                f"The counts are over variables with states {counts.tables.states}, the model observes {fitter.states}. Count "
                "with a model of the same graph."
            )
        absent = [scope for scope in self._scopes() if not counts.tables.holds(scope)]
        if absent:
            raise StructureError(
                f"The counts lack {len(absent)} groups of variables that this model learns from, such as {absent[0]}. Count with "
                "a model of the same graph and options (rank, singles, pool, largest_group, root, compressed, seed)."
            )
        if counts.rows == 0:
            raise DataError("The counts are empty: expected at least one row, got none.")
        own = counts.copy()
        with torch.no_grad():
            found = fitter.solve((self.tree, self.specification), own.tables)
        self._adopt(found, own.labels)
        return self

    def partial_fit(
        self: M, data: DataLike, batch_size: int = ROWS_PER_BATCH, columns: Sequence[str] | None = None
    ) -> M:
        """Learn from further rows: the same model as :meth:`fit` on these and all rows before.

        New rows are counted, their counts added to those kept, and the regressions solved again; whatever has changed the
        operators since the last fit, such as training as a layer, is lost. A rank chosen by ``rank="auto"`` stays. In a
        process group each process gives its share.

        Args:
            data: as in :meth:`fit`. Labels must be known from the first call: give category columns with all categories.
            batch_size: rows of a table handled at once.
            columns: names of the columns of arrays.

        Raises:
            StructureError: continuous variables, or a regressor or learner that needs the rows themselves.
            NotFittedError: a model whose counts were not kept.
            DataError: as :meth:`fit`; the model is then left as it was.
        """
        if self.counts is None and self.fitted and self.additive:
            self._counting_fitter()
            raise NotFittedError(
                "This model is fitted, but the counts behind it are gone, so rows cannot be added. Save with counts=True to keep "
                "them in the file, or fit again."
            )
        new = self.count(data, batch_size, columns)
        new.tables.sum_over_processes()
        check_labels(new.labels)
        return self.fit_counts(new if self.counts is None else self.counts.copy().merge(new))

    def _scopes(self) -> list[Scope]:
        return required_scopes(self.tree, self.specification)

    def _counting_fitter(self) -> Fitter:
        fitter = self._fitter()
        if not fitter.discrete:
            continuous = [v for v, o in self.observables.items() if o.continuous]
            raise StructureError(
                f"Counting needs discrete variables, and {continuous} are continuous: their features, and the compressed "
                "products of these that are averaged, are chosen from all rows at once. Use fit(), or make them discrete."
            )
        if fitter.regressor.needs_rows:
            raise StructureError(
                f"Counting works with regressor=Ridge() only: {fitter.regressor!r} needs the rows themselves. Use fit()."
            )
        if not self.additive:
            raise StructureError(
                f"{type(self).__name__} needs the rows themselves, not only counts. Use fit(), or PBP."
            )
        return fitter


def _listed(labels: Sequence[Any] | None) -> str:
    return "none" if labels is None else str(list(labels)[:8])
