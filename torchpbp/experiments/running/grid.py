"""The loop of all experiments: every combination of network, size and learner is measured, and kept for a resumed run."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from tqdm.auto import tqdm

from torchpbp.experiments.running.run_folder import Parts
from torchpbp.lazy import pandas as pd

T = TypeVar("T")
Point = tuple[Any, ...]
"""One combination, such as (repeat, rows, name of a learner)."""


def measure_grid(
    name: str,
    points: Iterable[Point],
    measure: Callable[..., T],
    output_dir: str | os.PathLike[str] | None,
    verbose: bool,
    always: Collection[Point] = (),
) -> Iterator[tuple[Point, T]]:
    """Measure each point in turn, or take what an interrupted run has kept of it.

    What several points share, such as a network and its rows, belongs into cached functions that ``measure`` calls: it is then
    made once, and not at all where every point that needs it is done.

    Args:
        name: of the experiment, for the progress bar.
        points: to measure, in this order; as text they must differ.
        measure: called with the entries of a point; gives what :class:`~torchpbp.experiments.running.run_folder.Parts` can
            keep.
        output_dir: of the run.
        verbose: show a progress bar (stderr).
        always: points that are measured even if they were kept.

    Yields:
        Each point with its result.
    """
    parts = Parts(output_dir)
    todo = list(points)
    with tqdm(todo, desc=name, unit="fit", disable=not verbose) as bar:
        for point in bar:
            bar.set_postfix_str(", ".join(map(str, point)), refresh=False)
            compute = partial(measure, *point)
            yield point, compute() if point in always else parts.get(",".join(map(str, point)), compute)


def grid_table(columns: Sequence[str], measured: Iterable[tuple[Point, Mapping[str, Any]]]) -> pd.DataFrame:
    """A row for each point of :func:`measure_grid`: its entries, in the columns of these names, and what was measured."""
    return pd.DataFrame({**dict(zip(columns, point, strict=True)), **found} for point, found in measured)
