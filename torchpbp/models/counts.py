"""Counts of joint states: the sufficient statistics of a discrete model, which can be merged and saved."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchpbp.contract.model_files import checked_labels, one_model, require_finite
from torchpbp.errors import CheckpointError, DataError
from torchpbp.inputs.labels import same_numbers
from torchpbp.io import REMEDY, read_file, write_file
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.table_layout import TableLayout


class Counts:
    """Counts of the joint states of groups of variables: the sufficient statistics of a discrete model.

    The sum of the counts of disjoint sets of rows is exactly the counts of all rows. Made by :meth:`torchpbp.PBP.count`.

    Args:
        tables: the counts.
        labels: labels of the states, for variables given by label.

    Example:
        >>> from torchpbp import PBP, DiscreteNetwork, templates
        >>> truth = DiscreteNetwork.random(templates.naive_bayes(3), seed=1)
        >>> model = PBP(truth.graph)
        >>> counts = model.count(truth.sample(500, seed=1)).merge(model.count(truth.sample(300, seed=2)))
        >>> print(model.fit_counts(counts))
        PBP(LatentGraph(directed, 3 observed, 1 latent, 3 edges), fitted on 800 rows)
    """

    def __init__(self, tables: JointTables, labels: Mapping[str, Sequence[Any]] | None = None) -> None:
        self.tables = tables.to("cpu")  # for merging and saving
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
        """An independent copy."""
        return Counts(self.tables.copy(), self.labels)

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
            left, right = self.labels.get(v), other.labels.get(v)
            if left != right and not same_numbers(left, right) and self.rows and other.rows:
                raise DataError(
                    f"Column '{v}' has labels {_listed(left)} in one of the counts and {_listed(right)} in the other, so their "
                    "states cannot be matched. Count with labels= the same for all parts."
                )
        self.tables.merge(other.tables)
        self.labels = {**other.labels, **self.labels}
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a file; an existing one is replaced only once the new one is complete.

        Raises:
            CheckpointError: counts that are NaN or infinite, or a file that cannot be written.
        """
        require_finite({"counts": self.tables.counts}, path, saving=True)
        checked_labels(self.labels, self.tables.states, path)
        write_file(path, {"class": "Counts", **self.to_dict()})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Counts:
        """Read counts written by :meth:`save`. Only tensors and plain values are read; no code is executed."""
        content = read_file(path)
        kind = content.get("class")
        if kind != "Counts":
            raise CheckpointError(f"'{path}' holds no Counts but a model of {kind}. Use torchpbp.load().")
        with one_model(path):
            return cls.from_dict(content, path)

    def to_dict(self) -> dict[str, Any]:
        """The counts as tensors and plain values."""
        return {
            "states": self.tables.states,
            "scopes": self.tables.scopes,
            "counts": self.tables.counts,
            "rows": self.tables.rows,
            "gaps": sorted(self.tables.incomplete),
            "labels": self.labels,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], path: object = "counts") -> Counts:
        """The inverse of :meth:`to_dict`.

        Args:
            content: as saved.
            path: of the file, for errors.

        Raises:
            CheckpointError: counts that do not fit the numbers of states, or are NaN or infinite; invalid labels.
        """
        scopes, states, incomplete = content["scopes"], dict(content["states"]), content["gaps"]
        counts, rows = content["counts"], content["rows"]
        if any(type(n) is not int or n < 1 for n in states.values()):
            raise CheckpointError(f"'{path}': expected numbers of states from 1 on, got {states!r:.100}. {REMEDY}")
        cells = TableLayout.of(scopes, states, incomplete).cells
        if counts.shape != (cells,):  # before tables of the declared sizes are allocated
            raise CheckpointError(f"'{path}': expected {cells:,} counts, got shape {tuple(counts.shape)}. {REMEDY}")
        require_finite({"counts": counts, "rows": torch.tensor(rows)}, path)
        labels = checked_labels(content["labels"], states, path)
        tables = JointTables(scopes, states, incomplete)
        tables.counts = counts.to("cpu", torch.float64)
        tables.rows = rows
        return cls(tables, labels)

    def __repr__(self) -> str:
        size = f"{len(self.tables.scopes)} tables, {self.nbytes:,} bytes"
        return f"Counts({self.rows:,} rows, {len(self.tables.states)} variables, {size})"


def _listed(labels: Sequence[Any] | None) -> str:
    return "none" if labels is None else str(list(labels)[:8])
