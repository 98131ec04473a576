"""Run an experiment described by the files in conf/: ``torchpbp-train model=digits``; ``--help`` lists choices."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from torchpbp import __version__
from torchpbp.distributed import process_rank
from torchpbp.errors import RunError, SettingError, StructureError, TorchPBPError
from torchpbp.experiments.running.objective import checked_objective, objective_value
from torchpbp.experiments.running.results import Metrics
from torchpbp.experiments.running.run_folder import run_folder, training_folder
from torchpbp.experiments.running.run_log import written_logs
from torchpbp.experiments.running.setting_types import check_setting, check_settings

INSTALLED, CHECKOUT = Path(__file__).parents[2] / "conf", Path(__file__).parents[3] / "conf"
CONF = INSTALLED if INSTALLED.is_dir() else CHECKOUT
"""Settings of the experiments: a wheel carries them inside the package, a checkout beside it."""


def train(cfg: DictConfig) -> Metrics:
    """Run the experiment ``cfg.model`` with the learner ``cfg.learner`` and return its metrics.

    Args:
        cfg: composed from conf/; files go to ``cfg.output_dir``, or nowhere if that is null;
            report.html among them shows the run to people.
    """
    check_types(cfg)
    check_devices(cfg.trainer.accelerator)
    check_resume(cfg)
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    torch.set_flush_denormal(True)  # kernels of far-away points underflow, and denormal numbers are slow
    if cfg.trainer.strategy == "ddp":
        cfg = share_out(cfg)
    if cfg.output_dir is None:
        return run(cfg, *made(cfg))
    settings, notes = decisive(cfg), records(cfg)
    if cfg.get("resume"):
        cfg = going_on(cfg)
    parts = made(cfg)  # settings that make no experiment are noticed before a folder changes
    with run_folder(cfg.output_dir, settings, bool(cfg.get("resume")), notes) as folder:
        if folder.finished:
            print(f"{folder.path}: this run is finished. Run it again without resume to start from the beginning.")
            return folder.metrics()
        with written_logs(folder.path):
            return run(cfg, *parts)


def made(cfg: DictConfig) -> tuple[Any, Any]:
    """The experiment and the learner that the configuration describes."""
    experiment = hydra.utils.instantiate(cfg.model, _convert_="all")
    return experiment, hydra.utils.instantiate(cfg.learner, _convert_="all")


def run(cfg: DictConfig, experiment: Any, learner: Any) -> Metrics:
    """Run an experiment and describe it."""
    start = time.perf_counter()
    metrics: Metrics = experiment(learner=learner, seed=cfg.seed, output_dir=cfg.output_dir)
    if cfg.output_dir is not None:
        describe(cfg, time.perf_counter() - start)
    return metrics


def describe(cfg: DictConfig, seconds: float) -> None:
    """Write report.html; what hinders it is printed instead, for the results themselves are written."""
    from torchpbp.experiments.running import (
        report,
    )  # loads matplotlib, which people who read the help need not wait for

    try:
        report.write_report(cfg.output_dir, OmegaConf.to_yaml(cfg, resolve=True), seconds)
    except Exception as error:  # whatever it is: hours of work are not to end in failure for a picture
        print(f"No {report.NAME}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def check_types(cfg: DictConfig) -> None:
    """Refuse values of the wrong type before anything is made."""
    check_setting("seed", cfg.seed, int, 0)
    check_setting("threads", cfg.threads, int | None, 1)
    check_setting("resume", cfg.get("resume", False), bool)
    for group in ("regressor", "learner", "model"):
        check_settings(OmegaConf.to_container(cfg[group], resolve=True), group)


def check_devices(accelerator: str) -> None:
    """Refuse a GPU that the machine does not have."""
    if accelerator in ("gpu", "cuda") and not torch.cuda.is_available() and not torch.backends.mps.is_available():
        raise SettingError(f"trainer.accelerator={accelerator}: expected a GPU, found none. Choose trainer=cpu.")


def decisive(cfg: DictConfig) -> dict[str, Any]:
    """The settings that decide a run's results."""
    settings: dict[str, Any] = OmegaConf.to_container(cfg, resolve=False)
    for key in ("output_dir", "resume", "objective"):
        settings.pop(key, None)
    for group, key in (("model", "verbose"), ("model", "ckpt_path"), ("regressor", "checkpoint")):
        settings.get(group, {}).pop(key, None)
    settings.get("trainer", {}).pop("enable_progress_bar", None)
    settings["versions"] = {"torchpbp": __version__, "torch": str(torch.__version__)}  # parts of two would not match
    return settings


def records(cfg: DictConfig) -> dict[str, str]:
    """File in the folder of the run -> text: the files that Hydra would write before the folder is claimed.

    Args:
        cfg: composed. One that Hydra did not start the program with is not recorded.
    """
    if not HydraConfig.initialized():
        return {}
    return {
        ".hydra/config.yaml": OmegaConf.to_yaml(cfg),
        ".hydra/hydra.yaml": OmegaConf.to_yaml(HydraConfig.instance().cfg),
        ".hydra/overrides.yaml": OmegaConf.to_yaml(HydraConfig.get().overrides.task),
    }


def check_resume(cfg: DictConfig) -> None:
    """Refuse to go on in several processes."""
    if cfg.get("resume") and cfg.trainer.strategy == "ddp":
        raise RunError(
            "resume: expected a run in one process, got trainer=ddp. Give model.ckpt_path= (model=digits_embedding) or "
            "regressor.checkpoint= (regressor=mlp) instead."
        )


def going_on(cfg: DictConfig) -> DictConfig:
    """Settings with which training keeps its state and goes on from one that an earlier run left."""
    found: dict[str, Any] = {}
    last = Path(cfg.output_dir) / "checkpoints" / "last.ckpt"
    if "ckpt_path" in cfg.model and cfg.model.ckpt_path is None and last.is_file():
        found["model"] = {"ckpt_path": str(last)}
    if "checkpoint" in cfg.regressor and cfg.regressor.checkpoint is None:
        found["regressor"] = {"checkpoint": str(training_folder(cfg.output_dir))}
    return OmegaConf.merge(cfg, found)


@contextmanager
def interruptible(output_dir: str | None) -> Iterator[None]:
    """After Ctrl-C, say how to go on; the exit code is that of other programs."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        # Lightning, interrupted, leaves the program by itself.
        if not isinstance(stop, KeyboardInterrupt) and not isinstance(stop.__context__, KeyboardInterrupt):
            raise
        kept = "" if output_dir is None else f" To go on: the same command with resume=true hydra.run.dir={output_dir}"
        print(f"\nInterrupted.{kept}", flush=True)
        raise SystemExit(130) from None


@contextmanager
def in_words(alone: bool) -> Iterator[None]:
    """A mistake in the settings ends the program with the message alone; HYDRA_FULL_ERROR=1 shows where it was noticed.

    Args:
        alone: whether this run is the whole program. Otherwise the error is let through: a sweep names its failed jobs, and
            a program that calls :func:`main` may catch it.
    """
    try:
        yield
    except TorchPBPError as error:
        if not alone or os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        raise SystemExit(f"{type(error).__name__}: {error}\nHYDRA_FULL_ERROR=1 shows where it was noticed.") from None


def share_out(cfg: DictConfig) -> DictConfig:
    """Start the other processes, each of which runs this program too; only the first prints and writes files."""
    from lightning.fabric import Fabric

    trainer = cfg.trainer
    Fabric(accelerator=trainer.accelerator, devices=trainer.devices, strategy=trainer.strategy).launch()
    if process_rank() > 0:
        cfg = OmegaConf.merge(cfg, {"output_dir": None, "model": {"verbose": False}})
    return cfg


def check_regressor(cfg: DictConfig, overrides: Sequence[str], choice: str) -> None:
    """Refuse a regressor that the learner would not look at.

    Args:
        cfg: composed.
        overrides: given by the user.
        choice: name of the regressor.
    """
    given = any(o.startswith("regressor") for o in overrides)
    if given and "regressor" not in cfg.learner and choice != "kernel_ridge":
        raise StructureError(
            f"regressor={choice}: {cfg.learner._target_} has kernel regressions of its own. Leave out learner= to get one that "
            "goes with the regressor, or choose learner=nystroem (pen digits) or learner=pbp (synthetic networks)."
        )


def check_size(size: str, model: str) -> None:
    """Refuse a size that the model has no numbers for.

    Args:
        size: the choice.
        model: name of the model.
    """
    folder = CONF / "size" / size
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if folder.is_dir() and model not in known:
        raise StructureError(
            f"size={size}: model={model} has no such size, only {', '.join(known)}. Leave out size= and set model.… numbers."
        )


@hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
def main(cfg: DictConfig) -> float | None:
    with in_words(HydraConfig.initialized() and HydraConfig.get().mode == RunMode.RUN):
        return run_and_tell(cfg)


def run_and_tell(cfg: DictConfig) -> float | None:
    """Check the choices, run the experiment and say where its files are; returns what a search looks at."""
    if HydraConfig.initialized():  # not if called with a configuration of one's own
        run = HydraConfig.get()
        check_regressor(cfg, run.overrides.task, run.runtime.choices.regressor)
        check_size(run.runtime.choices.size, run.runtime.choices.model)
    print(OmegaConf.to_yaml(cfg, resolve=True), flush=True)
    objective = checked_objective(cfg.objective)  # before the run: a search without one is refused at once
    with interruptible(cfg.output_dir):
        metrics = train(cfg)
    print(f"Output folder: {cfg.output_dir}", flush=True)
    return None if objective is None else objective_value(metrics, objective)


if __name__ == "__main__":
    main()
