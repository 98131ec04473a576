"""What an experiment knows of its run: seed, folder, parts that are done, and the loop over a grid of measurements."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from torchpbp.distributed import process_rank
from torchpbp.experiments.progress import Progress
from torchpbp.io import replacing
from torchpbp.lazy import pandas as pd

T = TypeVar("T")
Point = tuple[Any, ...]
"""One combination, such as (repeat, rows, name of a model)."""
PARTS = "parts"
"""Folder of a run for the parts that are done."""

log = logging.getLogger(__name__)


class Run:
    """The run that an experiment belongs to.

    Args:
        seed: of all draws.
        folder: of the run; ``None``: nothing is written.
        settings: everything that decides the results, as JSON values; parts are kept under a hash of them.
        progress: whether progress is shown.
    """

    def __init__(self, seed: int = 0, folder: Path | None = None, settings: Any = None, progress: bool = False) -> None:
        self.seed, self.folder, self.progress = seed, folder, progress
        self.key = hash_of(settings)

    def seeds(self, repeat: int, number: int) -> list[int]:
        """Independent seeds of one repeat; they depend on the run's seed and the number of the repeat only."""
        return [int(s) for s in np.random.SeedSequence([self.seed, repeat]).generate_state(number)]

    def say(self, text: str) -> None:
        """Tell what comes next, before work that shows no progress."""
        if self.progress and process_rank() == 0:
            log.info(text)

    def part(self, name: str, compute: Callable[[], T]) -> T:
        """The result of a part: read if it was kept with the same settings, otherwise computed and kept.

        Args:
            name: unique within the experiment.
            compute: gives numbers, texts, and lists and dicts of them; may depend on the settings only.
        """
        if self.folder is None:
            return compute()
        path = self.folder / PARTS / f"{hash_of([self.key, name])}.json"
        if path.exists():
            kept: T = json.loads(path.read_text(encoding="utf-8"))["result"]
            return kept
        result = compute()
        if process_rank() == 0:
            with replacing(path) as temporary:
                temporary.write_text(json.dumps({"part": name, "result": result}), encoding="utf-8")
        return result

    def grid(self, title: str, points: Iterable[Point], measure: Callable[..., T]) -> Iterator[tuple[Point, T]]:
        """Measure each point in turn, with a progress bar; finished points are not measured again.

        Objects that several points share, such as a network and its rows, belong into cached functions that ``measure`` calls:
        they are then made once, and not at all where every point that needs them is done.

        Args:
            title: of the progress bar.
            points: as text they must differ.
            measure: called with the entries of a point; see :meth:`part` for its result.
        """
        todo = list(points)
        with Progress(title, len(todo), "fit", shown=self.progress) as progress:
            for point in todo:
                yield point, self.part(f"{title} {','.join(map(str, point))}", lambda p=point: measure(*p))  # type: ignore[misc]
                progress.advance(note=", ".join(map(str, point)))

    def table(
        self, title: str, columns: Sequence[str], points: Iterable[Point], measure: Callable[..., Mapping[str, Any]]
    ) -> pd.DataFrame:
        """A row for each point of a :meth:`grid`: its entries, in the columns of these names, then the measurements."""
        rows = ({**dict(zip(columns, p, strict=True)), **found} for p, found in self.grid(title, points, measure))
        return pd.DataFrame(rows)


def hash_of(value: Any) -> str:
    """A short hash of JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:20]
