"""One library's implementation of a piece of work.

Light to import, and free of torch: each library's process loads this module and its own.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Answer = dict[str, Array]
"""Results to compare: name -> numbers."""


@dataclass(frozen=True)
class Tables:
    """A discrete network as plain arrays.

    Args:
        states: name -> number of states.
        parents: name -> its parents.
        cpts: name -> (states of each parent…, states of name) conditional probabilities.
    """

    states: dict[str, int]
    parents: dict[str, tuple[str, ...]]
    cpts: dict[str, Array]

    @property
    def edges(self) -> list[tuple[str, str]]:
        return [(p, v) for v, parents in self.parents.items() for p in parents]


@dataclass
class Implementation(ABC):
    """Work to be timed. Its fields are sent to the library's process, where :meth:`prepare` creates everything else.

    Args:
        label: name in tables and figures.
        threads: of its process; those of the whole run by default.
    """

    library: ClassVar[str]
    """Its name for pip."""
    label: str
    threads: int | None = field(default=None, kw_only=True)

    @abstractmethod
    def prepare(self) -> None:
        """Import, build and convert: everything that is not measured."""

    @abstractmethod
    def run(self) -> Any:
        """The work."""

    @abstractmethod
    def answer(self, result: Any) -> Answer:
        """A result of :meth:`run`, to be compared with the others'."""


def allowed_threads() -> int:
    """Number of threads that this process may use."""
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


def evidence_rows(evidence: dict[str, Array]) -> Iterator[dict[str, int]]:
    """Rows of (rows,) states with -1 where not observed, as one dictionary each."""
    for i in range(len(next(iter(evidence.values())))):
        yield {v: int(x[i]) for v, x in evidence.items() if x[i] >= 0}


def stacked(rows: list[dict[str, Array]], states: dict[str, int]) -> Answer:
    """Posteriors of single rows as name -> (rows, states), NaN where a row observes the variable."""
    result = {v: np.full((len(rows), k), np.nan) for v, k in states.items()}
    for i, row in enumerate(rows):
        for v, values in row.items():
            result[v][i] = values
    return result


def first_step(variable: str) -> str:
    """Name in an answer of a variable's table after a single iteration of EM."""
    return f"{variable} after one iteration"
