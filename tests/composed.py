"""Configurations of train.py, composed as the program does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, open_dict

from torchpbp.experiments.overrides import CONF, check_model, check_overrides
from torchpbp.experiments.run import with_names, with_tiny_numbers


def composed(*overrides: str, output_dir: str | Path | None = "nowhere", hydra: bool = False) -> DictConfig:
    """The configuration for a command line.

    Args:
        overrides: such as "model=em".
        output_dir: of the run; ``None``: nothing is written.
        hydra: whether Hydra's own settings are among the result.
    """
    folder = "null" if output_dir is None else f"'{output_dir}'"
    given: Sequence[str] = [*overrides, f"output_dir={folder}"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", overrides=list(given), return_hydra_config=True)
    choices = cfg.hydra.runtime.choices
    if not hydra:
        with open_dict(cfg):
            del cfg.hydra
    return with_names(with_tiny_numbers(cfg, list(given)) if cfg.debug else cfg, choices)


def accept(overrides: list[str]) -> None:
    """Check a command line as the program does before anything is made."""
    cfg = composed(*overrides, hydra=True)
    choices = cfg.hydra.runtime.choices
    check_model(cfg, choices)
    check_overrides(cfg, overrides, choices)
