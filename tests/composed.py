"""Configurations of train.py, composed as the program does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, open_dict

from torchpbp.experiments.overrides import CONF
from torchpbp.experiments.run import with_names, with_tiny_numbers


def composed(*overrides: str, output_dir: str | Path = "nowhere", hydra: bool = False) -> DictConfig:
    """The configuration for a command line.

    Args:
        overrides: such as "model=em".
        output_dir: of the run.
        hydra: whether Hydra's own settings are among the result.
    """
    given: Sequence[str] = [*overrides, f"output_dir='{output_dir}'"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", overrides=list(given), return_hydra_config=True)
    choices = cfg.hydra.runtime.choices
    if not hydra:
        with open_dict(cfg):
            del cfg.hydra
    return with_names(with_tiny_numbers(cfg, list(given)) if cfg.debug else cfg, choices)
