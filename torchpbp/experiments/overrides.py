"""Checks of the command line that need no heavy package: settings that nothing reads, and models that do not suit."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from torchpbp.errors import ArgumentError

INSTALLED, CHECKOUT = Path(__file__).parents[1] / "conf", Path(__file__).parents[2] / "conf"
CONF = INSTALLED if INSTALLED.is_dir() else CHECKOUT
"""Settings of the experiments: a wheel carries them inside the package, a checkout beside it."""
READ = (
    "task",
    "seed",
    "threads",
    "resume",
    "objective",
    "output_dir",
    "accepts",
    "replaces",
    "tiny",
    "debug",
)
"""Settings that the program itself reads; the task leads to the others."""
GROUPS = ("model", "regressor", "graph", "data", "trainer")
"""Groups of which an experiment that refers to them needs a choice; callbacks and loggers may be none."""
PRESETS = ("experiment", "hparams_search", "debug")
REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)")


def check_overrides(cfg: DictConfig, overrides: Iterable[str], choices: Mapping[str, Any]) -> None:
    """Reject overrides that change nothing.

    Args:
        cfg: composed.
        overrides: from the command line.
        choices: group -> option chosen.

    Raises:
        ArgumentError: a setting that nothing reads, or that the experiment replaces.
    """
    plain = OmegaConf.to_container(cfg, resolve=False)
    read = read_paths(plain)
    experiment = choices.get("experiment")
    for group in sorted(path for path in read if plain.get(path) is None and path in GROUPS):
        raise ArgumentError(f"{group}: experiment={experiment} needs one. Choose {group}={'|'.join(_options(group))}.")
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        group, _, package = key.partition("@")
        path = package.replace("_global_.", "") or group.replace("/", ".")
        if group in PRESETS or path.startswith("hydra"):
            continue
        if any(_within(path, replaced) for replaced in cfg.replaces):
            raise ArgumentError(
                f"{key}: experiment={experiment} sets it itself, so the value would change nothing. Leave it out, or set the "
                "numbers of the experiment (task.…)."
            )
        if not any(_within(path, known) or _within(known, path) for known in read):
            raise ArgumentError(
                f"{key}: nothing reads it in experiment={experiment}, model={choices.get('model')}, so it would change nothing. "
                f"{suggestion(override, plain, read)}"
            )


def check_model(cfg: DictConfig, choices: Mapping[str, Any]) -> None:
    """Reject a model that the experiment does not take; models from outside the package are left to the experiment.

    Raises:
        ArgumentError: a model for other experiments.
    """
    model, experiment = choices.get("model"), choices.get("experiment")
    if cfg.accepts is None or model in cfg.accepts or not (CONF / "model" / f"{model}.yaml").is_file():
        return
    others = [name for name, taken in models_taken() if taken is not None and model in taken]
    raise ArgumentError(
        f"model={model}: experiment={experiment} takes model={', '.join(cfg.accepts)}. Experiments for model={model}: "
        f"{', '.join(others)}."
    )


def models_taken() -> Iterator[tuple[str, list[str] | None]]:
    """Each experiment of the package and the models that it takes (``None``: any)."""
    for path in sorted((CONF / "experiment").glob("*.yaml")):
        yield path.stem, yaml.safe_load(path.read_text(encoding="utf-8")).get("accepts")


def read_paths(plain: Any) -> set[str]:
    """Dotted paths that the program reads: its own settings and everything that they refer to."""
    found: set[str] = set()
    todo = list(READ)
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += [reference for text in _texts(_selected(plain, path)) for reference in REFERENCE.findall(text)]
    return found


def suggestion(override: str, plain: Any, read: Iterable[str]) -> str:
    """A setting or choice that a mistaken override may have meant; "" if nothing is near."""
    key, _, value = override.lstrip("+~").partition("=")
    known = [p for top in read for p in _paths(_selected(plain, top), top)]
    groups = {path.name: _options(path.name) for path in CONF.iterdir() if path.is_dir()}
    near = difflib.get_close_matches(key, [*known, *groups], 1, 0.75)
    if not near:
        near = [f"{group}={value}" for group, options in groups.items() if value in options and group not in PRESETS]
    if near and near[0] != key:
        return f"Did you mean {' or '.join(near[:2])}?"
    group = key.partition(".")[0]
    if group in groups and plain.get(group) is None:
        return f"No {group} is chosen. There are: {', '.join(groups[group])}."
    return "Leave it out; --cfg job shows all settings."


def explained(message: str, overrides: Iterable[str], composed: DictConfig | None) -> str:
    """A remedy for the mistaken override of a message of Hydra; "" for other messages.

    Args:
        message: of Hydra.
        overrides: from the command line.
        composed: the configuration without the mistaken override, if there is one.
    """
    if re.search(r"'hydra/(launcher/joblib|sweeper/optuna)'", message):
        return 'It comes with the extra "sweep": pip install -c constraints.txt -e ".[sweep]"'
    match = re.search(r"Could not (?:override|append to config\. An item is already at) '([^']+)'", message)
    wrong = [o for o in overrides if match and o.lstrip("+~").partition("=")[0] == match[1]]
    if not wrong or composed is None:
        return ""
    if "already at" in message:
        return f"It exists: leave out the plus, {wrong[0].lstrip('+')}."
    plain = OmegaConf.to_container(composed, resolve=False)
    return suggestion(wrong[0], plain, read_paths(plain))


def _options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def _within(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}.")


def _selected(plain: Any, path: str) -> Any:
    for name in path.split("."):
        plain = plain.get(name) if isinstance(plain, dict) else None
    return plain


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for item in node.values() if isinstance(node, dict) else node:
            yield from _texts(item)


def _paths(node: Any, path: str) -> Iterator[str]:
    yield path
    if isinstance(node, dict):
        for name, item in node.items():
            yield from _paths(item, f"{path}.{name}")
