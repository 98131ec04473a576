"""A callback by which jobs of a sweep prove that they run at the same time."""

from __future__ import annotations

import time
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer


class Meet(Callback):
    """Training goes on only once so many jobs have begun theirs.

    Args:
        folder: where each job leaves a file.
        jobs: to wait for.
        seconds: after which to give up.
    """

    def __init__(self, folder: str, jobs: int, seconds: float = 240.0) -> None:
        self.folder, self.jobs, self.seconds = Path(folder), jobs, seconds

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        (self.folder / Path(str(trainer.default_root_dir)).name).touch()
        last = time.monotonic() + self.seconds
        while len(list(self.folder.iterdir())) < self.jobs:
            if time.monotonic() > last:
                raise TimeoutError("the other jobs did not begin")
            time.sleep(0.05)
