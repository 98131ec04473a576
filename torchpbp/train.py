"""Run an experiment described by the files in conf/: ``torchpbp-train model=digits``; ``--help`` lists choices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from lightning.fabric import Fabric
from omegaconf import DictConfig, OmegaConf

from torchpbp.distributed import process_rank
from torchpbp.errors import StructureError
from torchpbp.tasks.objective import checked_objective, objective_value
from torchpbp.tasks.results import Metrics

INSTALLED, CHECKOUT = Path(__file__).parent / "conf", Path(__file__).parents[1] / "conf"
CONF = INSTALLED if INSTALLED.is_dir() else CHECKOUT
"""Settings of the experiments: a wheel carries them inside the package, a checkout beside it."""


def train(cfg: DictConfig) -> Metrics:
    """Run the experiment ``cfg.model`` with the learner ``cfg.learner`` and return its metrics.

    Args:
        cfg: composed from conf/; files go to ``cfg.output_dir``, or nowhere if that is null.
    """
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    torch.set_flush_denormal(True)  # kernels of far-away points underflow, and denormal numbers are slow
    if cfg.trainer.strategy == "ddp":
        cfg = share_out(cfg)
    experiment = hydra.utils.instantiate(cfg.model, _convert_="all")
    learner = hydra.utils.instantiate(cfg.learner, _convert_="all")
    metrics: Metrics = experiment(learner=learner, seed=cfg.seed, output_dir=cfg.output_dir)
    return metrics


def share_out(cfg: DictConfig) -> DictConfig:
    """Start the other processes, each of which runs this program too; only the first prints and writes files."""
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
    if HydraConfig.initialized():  # not if called with a configuration of one's own
        run = HydraConfig.get()
        check_regressor(cfg, run.overrides.task, run.runtime.choices.regressor)
        check_size(run.runtime.choices.size, run.runtime.choices.model)
    print(OmegaConf.to_yaml(cfg, resolve=True), flush=True)
    objective = checked_objective(cfg.objective)  # before the run: a search without one is refused at once
    metrics = train(cfg)
    print(f"Output folder: {cfg.output_dir}", flush=True)
    return None if objective is None else objective_value(metrics, objective)


if __name__ == "__main__":
    main()
