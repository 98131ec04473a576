"""Counting the rows of Parquet files, and reading them without counting, with one Arrow thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.implementation import Answer, Implementation
from torchpbp import PBP, templates
from torchpbp.inputs.columns import ROWS_PER_BATCH


@dataclass
class FromParquet(Implementation):
    """``PBP.count`` of a folder of Parquet files with the columns of the diamond."""

    library: ClassVar[str] = "torchpbp"
    folder: str

    def prepare(self) -> None:
        import pyarrow

        pyarrow.set_cpu_count(1)
        pyarrow.set_io_thread_count(1)
        self._model = PBP(templates.diamond())

    def run(self) -> Any:
        return self._model.count(self.folder).rows

    def answer(self, result: Any) -> Answer:
        return {"rows": np.array([result])}


@dataclass
class ReadParquet(FromParquet):
    """The same columns, read by pyarrow and dropped.

    Args:
        ahead: batches and files read ahead, as ``PBP.count`` does; pyarrow's default if None.
    """

    ahead: int | None = None

    def run(self) -> Any:
        import pyarrow.dataset

        dataset = pyarrow.dataset.dataset(self.folder, format="parquet")
        names = list(self._model.graph.observed)
        ahead = {} if self.ahead is None else {"batch_readahead": self.ahead, "fragment_readahead": self.ahead}
        return sum(len(batch) for batch in dataset.to_batches(columns=names, batch_size=ROWS_PER_BATCH, **ahead))
