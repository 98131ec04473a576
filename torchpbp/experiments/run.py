"""Run an experiment described by the files in conf/: ``torchpbp-train model=digits``; ``--help`` lists choices."""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException, InstantiationException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from torchpbp.errors import ArgumentError, RunError, TorchPBPError
from torchpbp.experiments.overrides import CONF, GROUPS, check_model, check_overrides, explained, read_paths

if TYPE_CHECKING:
    from torchpbp.experiments.results import Result

log = logging.getLogger(__name__)


def train(cfg: DictConfig) -> Result:
    """Run the experiment of a composed configuration; its files go to ``cfg.output_dir``, or nowhere if that is null."""
    import torch

    from torchpbp import __version__
    from torchpbp.experiments.grid import Run
    from torchpbp.settings import flag, optional, seed, whole

    for name, constraint in (("seed", seed()), ("threads", optional(whole(1))), ("resume", flag())):
        constraint.check(name, cfg[name])
    folder = None if cfg.output_dir is None else Path(cfg.output_dir)
    first = os.environ.get("LOCAL_RANK", "0") == "0"  # of several processes, each of which runs the program
    if folder is not None and first:
        check_unfinished(folder, cfg.resume)
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    torch.set_flush_denormal(True)  # kernels of far-away points underflow, and denormal numbers are slow
    torch.manual_seed(cfg.seed)
    settings = {
        "task": OmegaConf.to_container(cfg.task, resolve=True),
        "seed": cfg.seed,
        "versions": [__version__, str(torch.__version__)],
    }
    task = instantiated(cfg)
    run = Run(cfg.seed, folder, without_paths(settings), progress=first)
    start = time.perf_counter()
    result: Result = task(run=run)
    if first:
        result.metrics = {
            **result.metrics,
            "seed": cfg.seed,
            "threads": torch.get_num_threads(),
            "torch": str(torch.__version__),
        }
        log.info("Results\n%s", result.described())
        if folder is not None:
            from torchpbp.experiments.report import write_report

            result.write(folder)
            write_report(folder, result, cfg, time.perf_counter() - start)
    return result


def instantiated(cfg: DictConfig) -> functools.partial[Result]:
    """The task with its models and data made, or ready to be made.

    Raises:
        ArgumentError: a constructor did not accept its settings; other errors of the library are passed on.
    """
    try:
        task: functools.partial[Result] = hydra.utils.instantiate(cfg.task, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, TorchPBPError):
            raise cause from None
        raise ArgumentError(str(error).replace("\n", " ")) from error
    check_keywords(task, "task")
    return task


def check_keywords(value: Any, path: str) -> None:
    """Reject settings that a function or class, to be called later, does not have."""
    if isinstance(value, functools.partial):
        known = inspect.signature(value.func).parameters
        options = [name for name, p in known.items() if p.kind is not p.VAR_KEYWORD]
        for name in value.keywords:
            if name not in known and len(options) == len(known):
                near = difflib.get_close_matches(name, options, 1)
                hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(options)}."
                raise ArgumentError(f"{path}.{name}: {value.func.__name__} has no such setting. {hint}")
        value = value.keywords
    if isinstance(value, Mapping):
        for name, item in value.items():
            check_keywords(item, f"{path}.{name}")


def with_names(cfg: DictConfig, choices: Mapping[str, Any]) -> DictConfig:
    """The configuration with the entries "main" of the task's models and graphs under the names of the chosen options, in front."""
    named = copy.deepcopy(cfg)
    for group, key in (("model", "models"), ("graph", "graphs")):
        entries = named.task.get(key) if isinstance(named.task, DictConfig) else None
        if entries and "main" in entries:
            name = "main" if choices[group] in entries else choices[group]
            order = ["main", *(other for other in entries if other != "main")]
            named.task[key] = {name if old == "main" else old: entries._get_node(old) for old in order}
    return named


def without_paths(settings: Any) -> Any:
    """Settings without those on which results do not depend: folders, loggers, callbacks that only show progress."""
    if not isinstance(settings, dict):
        return [without_paths(item) for item in settings] if isinstance(settings, list) else settings
    left_out = {"logger", "ckpt_path", "dirpath", "default_root_dir", "enable_progress_bar", "progress"}
    return {name: without_paths(item) for name, item in settings.items() if name not in left_out}


def with_tiny_numbers(cfg: DictConfig, overrides: list[str]) -> DictConfig:
    """The configuration with the experiment's block "tiny" merged in; settings of the command line win."""
    plain = copy.deepcopy(cfg)
    OmegaConf.set_struct(plain, False)  # tiny numbers may be of settings that the file leaves at their defaults
    tiny = OmegaConf.merge(plain, cfg.tiny)
    for override in OverridesParser.create().parse_overrides(overrides):
        if "." in override.key_or_group and not override.is_delete():
            OmegaConf.update(tiny, override.key_or_group, override.value(), force_add=True)
    assert isinstance(tiny, DictConfig)
    return tiny


def check_unfinished(folder: Path, resume: bool) -> None:
    """Raise where the results of a finished run would be replaced."""
    if not resume and (folder / "metrics.json").exists():
        raise RunError(
            f"Folder '{folder}' holds a finished run. Give resume=true to keep its finished parts and write the results again, "
            "or choose another folder with hydra.run.dir=<folder> (with -m hydra.sweep.dir=<folder>)."
        )


class FinishedRuns(Callback):
    """Refuses to write into the folder of a finished run before Hydra replaces the settings in it."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        self._check(Path(config.hydra.run.dir), config)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        for finished in sorted(Path(config.hydra.sweep.dir).glob("*/metrics.json")):
            self._check(finished.parent, config)

    def _check(self, folder: Path, config: DictConfig) -> None:
        resume = any(o.lstrip("+").lower() in ("resume=true", "resume=1") for o in config.hydra.overrides.task)
        try:
            check_unfinished(folder, resume)
        except RunError as error:  # Hydra would turn an exception into a warning
            raise SystemExit(f"RunError: {error}") from None


@contextmanager
def interruptible(output_dir: str | None) -> Iterator[None]:
    """After Ctrl-C, print the command that resumes; the exit code is that of other programs."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        # Lightning leaves the program when it is interrupted.
        if not isinstance(stop, KeyboardInterrupt) and not isinstance(stop.__context__, KeyboardInterrupt):
            raise
        sweep = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
        folder = f"hydra.sweep.dir={HydraConfig.get().sweep.dir}" if sweep else f"hydra.run.dir={output_dir}"
        print(f"\nInterrupted. To resume: the same command with resume=true {folder}", flush=True)
        raise SystemExit(130) from None


@hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
def start(cfg: DictConfig) -> float | None:
    """One job, as Hydra calls it; returns the metric that a search looks at."""
    job = HydraConfig.get()
    overrides, choices = list(job.overrides.task), job.runtime.choices
    try:
        check_model(cfg, choices)
        check_overrides(cfg, overrides, choices)
        if cfg.objective == "":
            raise ArgumentError("A search needs a metric: expected objective=<name in metrics.json>, got none.")
        if cfg.debug:
            cfg = with_tiny_numbers(cfg, overrides)
        cfg = with_names(cfg, choices)
        read = read_paths(OmegaConf.to_container(cfg, resolve=False))
        shown = ["experiment", *(group for group in GROUPS if group in read)]
        log.info(" ".join([*(f"{group}={choices[group]}" for group in shown), f"seed={cfg.seed}"]))
        with interruptible(cfg.output_dir):
            result = train(cfg)
    except TorchPBPError as error:
        if job.mode != RunMode.RUN or os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        raise SystemExit(f"{type(error).__name__}: {error}\nHYDRA_FULL_ERROR=1 shows the traceback.") from None
    if os.environ.get("LOCAL_RANK", "0") == "0":
        log.info(f"Report: {Path(cfg.output_dir) / 'report.html'}")
    return None if cfg.objective is None else objective_value(result.metrics, cfg.objective)


def objective_value(metrics: Mapping[str, Any], name: str) -> float:
    """The metric that a search minimises or maximises."""
    value = metrics.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
        numbers = [key for key, other in metrics.items() if isinstance(other, int | float)]
        raise ArgumentError(f"objective={name}: expected a metric with a number, got {value}. There are: {numbers}.")
    return float(value)


def main() -> None:
    """The program."""
    try:
        start()
    except KeyboardInterrupt:  # between two jobs of a sweep
        raise SystemExit(130) from None
    except SystemExit as stop:
        error = stop.__context__
        if isinstance(error, ConfigCompositionException):  # which Hydra has printed
            overrides = [argument for argument in sys.argv[1:] if "=" in argument and not argument.startswith("-")]
            print(explained(str(error), overrides, composed_without(str(error), overrides)), file=sys.stderr)
        raise


def composed_without(message: str, overrides: list[str]) -> DictConfig | None:
    """The configuration without the override that a message of Hydra names."""
    from hydra import compose, initialize_config_dir

    kept = [o for o in overrides if f"'{o.lstrip('+~').partition('=')[0]}'" not in message]
    words = " ".join(sys.argv[1:]).replace("--config-dir=", "--config-dir ").split()
    outside = [folder for word, folder in pairwise(words) if word in ("--config-dir", "-cd")]
    kept += [f"hydra.searchpath=[{','.join(f'file://{Path(folder).absolute()}' for folder in outside)}]"]
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose("config", kept)
    except HydraException:
        return None


if __name__ == "__main__":
    main()
