"""Checks of a composed configuration before anything is made: values, settings that nothing uses, devices, sizes."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from torchpbp.errors import ArgumentError, RunError
from torchpbp.experiments import EXPERIMENTS, Experiment, settings_class
from torchpbp.settings import Settings, flag, optional, seed, setting, whole

INSTALLED, CHECKOUT = Path(__file__).parents[2] / "conf", Path(__file__).parents[3] / "conf"
CONF = INSTALLED if INSTALLED.is_dir() else CHECKOUT
"""Settings of the experiments: a wheel carries them inside the package, a checkout beside it."""
SHARING = {"torchpbp.PBP", "torchpbp.EM", "torchpbp.OnlineEM", "torchpbp.SpectralJunctionTree"}
"""Learners that add up what several processes count."""
USERS = {
    "regressor": "learner=pbp, learner=pbp_pairs and learner=nystroem (pen digits)",
    "trainer": "learner=neural (pen digits), regressor=mlp and model=sequence_labelling; with several processes (trainer=ddp) also "
    "models that share rows among them, with the learners pbp, pbp_pairs, nystroem, em, online_em and spectral",
    "logger": "learner=neural (pen digits)",
    "callbacks": "learner=neural (pen digits)",
    "ckpt_path": "learner=neural (pen digits)",
}
"""Group or setting -> what uses it."""
LOGGERS = {"TensorBoardLogger": "tensorboard", "MLFlowLogger": "mlflow", "WandbLogger": "wandb"}
"""Logger -> the package it needs, which is also the extra that brings it."""
LEFT_OVER = {"regressor": {"_target_": "torchpbp.Ridge"}}
"""What remains of a group, unasked for, if the learner that brought it is left out (``~model.others.nystroem``)."""
OWN = Experiment("", "")
"""Stands for experiments of one's own."""


@dataclasses.dataclass(frozen=True)
class RunSettings(Settings):
    """Settings of every run.

    Args:
        seed: same seed, same results.
        threads: CPU threads torch may use; ``None`` leaves the choice to torch.
        resume: continue what the same command left in the folder.
    """

    seed: int = setting(0, seed())
    threads: int | None = setting(1, optional(whole(1)))
    resume: bool = setting(False, flag())


def check_configuration(cfg: DictConfig) -> None:
    """Check what can be checked before anything is made.

    Raises:
        ArgumentError: a value that is not accepted, a setting that nothing uses, or a GPU that is not there.
        RunError: a run that cannot be resumed.
    """
    plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)
    RunSettings(**{f.name: plain[f.name] for f in dataclasses.fields(RunSettings)})
    check_model_settings(plain["model"], plain["learner"])
    check_used(cfg)
    check_logger(plain.get("logger") or {})
    trainer = plain.get("trainer") or {}
    accelerator = trainer.get("accelerator")
    if accelerator in ("gpu", "cuda") and not torch.cuda.is_available() and not torch.backends.mps.is_available():
        raise ArgumentError(f"trainer.accelerator={accelerator}: expected a GPU, found none. Choose trainer=cpu.")
    if trainer.get("strategy") != "ddp" and trainer.get("devices", 1) != 1:
        raise ArgumentError(
            f"trainer.devices={trainer['devices']}: expected 1 with strategy={trainer.get('strategy')}. Several devices are for "
            "trainer=ddp."
        )
    if plain["resume"] and trainer.get("strategy") == "ddp":
        raise RunError(
            "resume: expected a run in one process, got trainer=ddp. Give regressor.checkpoint= (regressor=mlp) or ckpt_path= "
            "(learner=neural) instead."
        )


def check_model_settings(model: dict[str, Any], learner: dict[str, Any]) -> None:
    """Check the settings of an experiment, apart from the objects that are still to be built (graphs, learners, data)."""
    name = _experiment_name(model)
    if name not in EXPERIMENTS:
        return  # an experiment of one's own checks its settings itself
    values = {k: v for k, v in model.items() if not k.startswith("_") and not isinstance(v, dict)}
    flag().check("model.verbose", values.pop("verbose", True))
    declared = settings_class(name)
    known = [f.name for f in dataclasses.fields(declared)]
    unknown = [key for key in values if key not in known]
    if unknown:
        raise ArgumentError(f"model.{unknown[0]}: {name} has no such setting. There are: {', '.join(known)}.")
    try:
        read = declared(**values)
    except ArgumentError as error:
        raise ArgumentError(f"model.{error}") from None
    kind = str(learner["_target_"]).rpartition(".")[2]
    for key in EXPERIMENTS[name].unused.get(kind, ()):
        if getattr(read, key) != getattr(declared(), key):
            raise _without_effect(key, name, kind)


def _without_effect(key: str, experiment: str, learner: str) -> ArgumentError:
    return ArgumentError(
        f"model.{key}: {experiment} with the learner {learner} does not use it, so it would change nothing. Leave it out, or "
        "choose another learner."
    )


def check_logger(logger: dict[str, Any]) -> None:
    """Raise where the package behind a logger is not installed."""
    package = LOGGERS.get(str(logger.get("_target_", "")).rpartition(".")[2])
    if package is not None and importlib.util.find_spec(package) is None:
        raise ArgumentError(
            f"logger={package}: the package {package} is not installed. Install the extra: "
            f'pip install -c constraints.txt -e ".[{package}]", or choose logger=csv.'
        )


def check_used(cfg: DictConfig) -> None:
    """Raise where a group such as the regressor has settings that the experiment and its learner do not use."""
    for group in unused_groups(cfg):
        if cfg[group] != LEFT_OVER.get(group):
            raise _unused(group, cfg)


def unused_groups(cfg: DictConfig) -> list[str]:
    """Groups that nothing refers to, as in ``regressor: ${regressor}``."""
    plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=False)
    experiment = EXPERIMENTS.get(_experiment_name(plain["model"]), OWN)
    unused = [group for group in USERS if plain.get(group) is not None and not _refers(plain, group)]
    shared = experiment.shares_rows and cfg.learner._target_ in SHARING
    if "trainer" in unused and cfg.trainer.strategy == "ddp" and shared:
        unused.remove("trainer")  # the processes share the rows
    return unused


def _unused(name: str, cfg: DictConfig) -> ArgumentError:
    group = name.partition(".")[0]
    return ArgumentError(
        f"{name}: {_experiment_name(cfg.model)} with the learner {cfg.learner._target_} uses no {group}, so it would change "
        f"nothing. It is used by {USERS[group]}. Leave out {name}, or choose one of these."
    )


def explain_missing_group(message: str) -> str:
    """What to add to Hydra's message about a missing plugin, or a group that the run does not have; empty for others."""
    if any(f"'hydra/{plugin}'" in message for plugin in ("launcher/joblib", "sweeper/optuna")):
        return 'It comes with the extra "sweep": pip install -c constraints.txt -e ".[sweep]"\n'
    for group, users in USERS.items():
        if f"override '{group}." in message:
            return f"The chosen model and learner use no {group}. It is used by {users}.\n"
    return ""


def check_overrides(cfg: DictConfig, overrides: Iterable[str]) -> None:
    """Raise where the command line sets something that the run does not use, or that the experiment sets itself.

    Args:
        cfg: composed.
        overrides: given by the user.
    """
    name, kind = _experiment_name(cfg.model), str(cfg.learner._target_).rpartition(".")[2]
    experiment = EXPERIMENTS.get(name, OWN)
    unused, replaced = unused_groups(cfg), experiment.replaces
    for override in overrides:
        full = override.partition("=")[0].lstrip("+~")
        group, _, key = full.partition(".")
        if group in unused:
            raise _unused(full, cfg)
        if group == "model" and key in experiment.unused.get(kind, ()):
            raise _without_effect(key, name, kind)
        if group == "learner" and key.partition(".")[0] in replaced:
            raise ArgumentError(
                f"{full}: {name} sets it itself, so the value would change nothing. Set those of the experiment (model.…) "
                "instead, or choose another model."
            )


def check_size(size: str, model: str) -> None:
    """Raise where the model has no numbers for a size.

    Args:
        size: the choice.
        model: name of the model.
    """
    folder = CONF / "size" / size
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if folder.is_dir() and model not in known:
        raise ArgumentError(
            f"size={size}: model={model} has no such size, only {', '.join(known)}. Leave out size= and set model.… numbers."
        )


def _experiment_name(model: Any) -> str:
    return str(model["_target_"]).rpartition(".")[2]


def _refers(plain: dict[str, Any], group: str) -> bool:
    """Whether anything outside of a group refers to it."""
    others = {key: value for key, value in plain.items() if key != group}
    return f"${{{group}}}" in OmegaConf.to_yaml(OmegaConf.create(others))
