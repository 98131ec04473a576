"""Jobs of a sweep that run at the same time (``hydra/launcher=joblib``): how many, and the threads of each."""

from __future__ import annotations

from typing import Any

import joblib
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from torchpbp.errors import ArgumentError

JOBLIB = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"


def jobs_at_once() -> int:
    """Jobs that the launcher of this sweep runs at the same time; 1 for a single run and for Hydra's own launcher.

    Raises:
        ArgumentError: a single run with a launcher of sweeps.
    """
    if not HydraConfig.initialized():
        return 1
    hydra = HydraConfig.get()
    if hydra.launcher._target_ != JOBLIB:
        return 1
    if hydra.mode != RunMode.MULTIRUN:
        raise ArgumentError("hydra/launcher=joblib: expected a multirun (train.py -m …), got a single run. Add -m.")
    jobs = int(hydra.launcher.n_jobs)
    return jobs if jobs > 0 else max(1, cores() + 1 + jobs)  # joblib's rule: -1 means all cores


def cores() -> int:
    """Processor cores that this process may use."""
    return int(joblib.cpu_count())


def threads_per_job(threads: int | None, jobs: int) -> int | None:
    """Threads that torch may use in each job; ``None`` leaves the choice to torch.

    Args:
        threads: the setting.
        jobs: that run at the same time.

    Raises:
        ArgumentError: the jobs together would have more threads than there are cores.
    """
    if jobs == 1:
        return threads
    share = max(1, cores() // jobs)
    if threads is not None and threads > share:
        raise ArgumentError(
            f"threads: expected at most {share} with {jobs} jobs at once on {cores()} cores, got {threads}. Give threads=null "
            f"(cores divided by jobs) or hydra.launcher.n_jobs={max(1, cores() // threads)}."
        )
    return share if threads is None else threads


def parallel_settings(cfg: DictConfig, jobs: int) -> DictConfig:
    """Settings of one of several jobs that run at the same time: no progress bars, which would overwrite each other.

    Raises:
        ArgumentError: a job that would start processes of its own.
    """
    if jobs == 1:
        return cfg
    if "trainer" in cfg and cfg.trainer.strategy == "ddp":
        raise ArgumentError(
            "trainer=ddp: expected jobs one after the other, got hydra/launcher=joblib: processes that a job starts cannot "
            "be started from one of several jobs. Leave out hydra/launcher, or choose trainer=cpu."
        )
    changes: dict[str, Any] = {"model": {"verbose": False}} if "verbose" in cfg.model else {}
    return OmegaConf.merge(cfg, changes)
