"""Run an experiment described by the files in conf/: ``torchpbp-train model=digits``; ``--help`` lists choices."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException, InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from torchpbp import __version__
from torchpbp.distributed import process_rank
from torchpbp.errors import ArgumentError, StructureError, TorchPBPError
from torchpbp.experiments.running.configuration import (
    CONF,
    check_configuration,
    check_overrides,
    check_size,
    explain_missing_group,
)
from torchpbp.experiments.running.objective import check_objective, objective_value
from torchpbp.experiments.running.parallel_jobs import jobs_at_once, parallel_settings, threads_per_job
from torchpbp.experiments.running.results import Metrics
from torchpbp.experiments.running.run_folder import check_unfinished, run_folder, training_folder
from torchpbp.experiments.running.run_log import written_logs
from torchpbp.graph.templates import hmm

REPORT = "report.html"
SHOWN_GROUPS = ("experiment", "model", "learner", "regressor", "trainer")
"""Choices that the first line of the output names."""


def train(cfg: DictConfig) -> Metrics:
    """Run the experiment ``cfg.model`` with the learner ``cfg.learner`` and return its metrics.

    Args:
        cfg: composed from conf/; files go to ``cfg.output_dir``, or nowhere if that is null;
            report.html among them shows the run to people.
    """
    check_configuration(cfg)
    jobs = jobs_at_once()
    cfg, threads = parallel_settings(cfg, jobs), threads_per_job(cfg.threads, jobs)
    if threads is not None:
        torch.set_num_threads(threads)
    if cfg.output_dir and not cfg.resume:
        check_unfinished(cfg.output_dir)  # before other processes are started
    torch.set_flush_denormal(True)  # kernels of far-away points underflow, and denormal numbers are slow
    if several_processes(cfg):
        cfg = launch_processes(cfg)
    if cfg.output_dir is None:
        return run(cfg, *build(cfg))
    settings, records = result_settings(cfg), hydra_records(cfg)
    if cfg.resume:
        cfg = resume_settings(cfg)
    parts = build(cfg)  # settings from which nothing can be built raise before a folder changes
    with run_folder(cfg.output_dir, settings, bool(cfg.resume), records) as folder:
        if folder.finished:
            print(f"{folder.path}: this run is finished. Delete the folder to start from the beginning.")
            return folder.metrics()
        with written_logs(folder.path):
            return run(cfg, *parts)


def build(cfg: DictConfig) -> tuple[Any, Any]:
    """The experiment and the learner that the configuration describes.

    Raises:
        TorchPBPError: what a constructor raised.
        ArgumentError: any other error of a constructor.
    """
    try:
        experiment = hydra.utils.instantiate(cfg.model, _convert_="all")
        learner = hydra.utils.instantiate(cfg.learner, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, TorchPBPError):
            raise cause from None
        raise ArgumentError(str(error).replace("\n", " ")) from error
    if isinstance(learner, functools.partial):
        check_learner_settings(learner, experiment.keywords.get("graph"))
    return experiment, learner


def check_learner_settings(learner: functools.partial[Any], graph: Any) -> None:
    """Make a learner once, so that invalid and unknown settings raise before anything is written.

    Args:
        learner: takes a graph.
        graph: of the experiment; ``None`` if it has several or makes its own: a small chain takes its place then, and what
            the learner says about the structure is left to the experiment.
    """
    try:
        inspect.signature(learner.func).bind(graph, *learner.args, **learner.keywords)
    except TypeError as error:
        raise ArgumentError(
            f"learner: {learner.func.__name__} {error}. Leave it out, or choose another learner."
        ) from None
    if graph is not None:
        learner(graph)
        return
    with suppress(StructureError):
        learner(hmm(4, 2, 4))


def run(cfg: DictConfig, experiment: Any, learner: Any) -> Metrics:
    """Run an experiment and write its report."""
    start = time.perf_counter()
    metrics: Metrics = experiment(learner=learner, seed=cfg.seed, output_dir=cfg.output_dir)
    if cfg.output_dir is not None:
        write_run_report(cfg, time.perf_counter() - start)
    return metrics


def write_run_report(cfg: DictConfig, seconds: float) -> None:
    """Write report.html; an error is printed, not raised, since the results themselves are written."""
    from torchpbp.experiments.running import report  # loads matplotlib, which takes seconds

    try:
        report.write_report(cfg.output_dir, OmegaConf.to_yaml(cfg, resolve=True), seconds)
    except Exception as error:  # whatever it is: hours of work are not to end in failure for a picture
        print(f"No {REPORT}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def result_settings(cfg: DictConfig) -> dict[str, Any]:
    """The settings on which a run's results depend."""
    settings: dict[str, Any] = OmegaConf.to_container(cfg, resolve=False)
    for key in ("output_dir", "resume", "objective", "ckpt_path", "logger"):
        settings.pop(key, None)
    for group, key in (("model", "verbose"), ("regressor", "checkpoint"), ("callbacks", "progress_bar")):
        settings.get(group, {}).pop(key, None)
    settings.get("trainer", {}).pop("enable_progress_bar", None)
    settings["versions"] = {"torchpbp": __version__, "torch": str(torch.__version__)}  # parts of two would not match
    return settings


def hydra_records(cfg: DictConfig) -> dict[str, str]:
    """File in the folder of the run -> text: those that Hydra would write before the folder is claimed, and resolved settings.

    Args:
        cfg: composed. One that Hydra did not start the program with is not recorded.
    """
    if not HydraConfig.initialized():
        return {}
    return {
        ".hydra/config.yaml": OmegaConf.to_yaml(cfg),
        ".hydra/resolved.yaml": OmegaConf.to_yaml(cfg, resolve=True),
        ".hydra/hydra.yaml": OmegaConf.to_yaml(HydraConfig.instance().cfg),
        ".hydra/overrides.yaml": OmegaConf.to_yaml(HydraConfig.get().overrides.task),
    }


def resume_settings(cfg: DictConfig) -> DictConfig:
    """Settings with which training keeps its state and continues from one that an earlier run left."""
    changes: dict[str, Any] = {}
    last = os.path.join(cfg.output_dir, "checkpoints", "last.ckpt")
    if cfg.ckpt_path is None and os.path.isfile(last):
        changes["ckpt_path"] = last
    if "checkpoint" in (cfg.get("regressor") or {}) and cfg.regressor.checkpoint is None:
        changes["regressor"] = {"checkpoint": str(training_folder(cfg.output_dir))}
    return OmegaConf.merge(cfg, changes)


def several_processes(cfg: DictConfig) -> bool:
    """Whether the run is shared by processes that Lightning starts."""
    return "trainer" in cfg and cfg.trainer.strategy == "ddp"


def launch_processes(cfg: DictConfig) -> DictConfig:
    """Start the other processes, each of which runs this program too; only the first prints and writes files."""
    from lightning.fabric import Fabric

    trainer = cfg.trainer
    Fabric(accelerator=trainer.accelerator, devices=trainer.devices, strategy=trainer.strategy).launch()
    if process_rank() > 0:
        cfg = OmegaConf.merge(cfg, {"output_dir": None, "model": {"verbose": False}})
    return cfg


@contextmanager
def interruptible(output_dir: str | None) -> Iterator[None]:
    """After Ctrl-C, say how to resume; the exit code is that of other programs."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        # Lightning, interrupted, leaves the program by itself.
        if not isinstance(stop, KeyboardInterrupt) and not isinstance(stop.__context__, KeyboardInterrupt):
            raise
        kept = (
            "" if output_dir is None else f" To resume: the same command with resume=true {_folder_setting(output_dir)}"
        )
        print(f"\nInterrupted.{kept}", flush=True)
        raise SystemExit(130) from None


def _folder_setting(output_dir: str) -> str:
    """The setting that leads to a folder again: that of the run, or of the sweep that it belongs to."""
    if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
        return f"hydra.sweep.dir={HydraConfig.get().sweep.dir}"
    return f"hydra.run.dir={output_dir}"


@contextmanager
def short_errors(alone: bool) -> Iterator[None]:
    """An error of the library ends the program with its message alone; HYDRA_FULL_ERROR=1 shows the traceback.

    Args:
        alone: whether this run is the whole program. Otherwise the error is passed on: a sweep names its failed jobs, and
            a program that calls :func:`main` may catch it.
    """
    try:
        yield
    except TorchPBPError as error:
        if not alone or os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        raise SystemExit(f"{type(error).__name__}: {error}\nHYDRA_FULL_ERROR=1 shows the traceback.") from None


def main() -> None:
    """The program."""
    try:
        start()
    except KeyboardInterrupt:  # a sweep between two jobs, or one whose jobs run in processes of their own
        raise SystemExit(130) from None
    except SystemExit as stop:
        if isinstance(stop.__context__, ConfigCompositionException):  # which Hydra has printed
            print(explain_missing_group(str(stop.__context__)), end="", file=sys.stderr)
        raise


@hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
def start(cfg: DictConfig) -> float | None:
    """One job, as Hydra calls it."""
    with short_errors(HydraConfig.initialized() and HydraConfig.get().mode == RunMode.RUN):
        return run_and_report(cfg)


def run_and_report(cfg: DictConfig) -> float | None:
    """Check the choices, run the experiment and say where its report is; returns what a search looks at."""
    if HydraConfig.initialized():  # not if called with a configuration of one's own
        job = HydraConfig.get()
        choices = job.runtime.choices
        check_overrides(cfg, job.overrides.task)
        check_size(choices.size, choices.model)
        check_configuration(cfg)
        chosen = {group: choices.get(group) for group in SHOWN_GROUPS}
        print(*(f"{g}={c}" for g, c in chosen.items() if c is not None), f"seed={cfg.seed}", flush=True)
    check_objective(cfg.objective)  # before the run: a search without one raises at once
    with interruptible(cfg.output_dir):
        metrics = train(cfg)
    if cfg.output_dir is not None and process_rank() == 0:
        report = Path(cfg.output_dir) / REPORT
        print(f"Report: {report}" if report.is_file() else f"Output folder: {cfg.output_dir}", flush=True)
    return None if cfg.objective is None else objective_value(metrics, cfg.objective)


if __name__ == "__main__":
    main()
