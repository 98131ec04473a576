"""Run an experiment described by the files in conf/: ``python train.py model=digits``; ``--help`` lists choices."""

from __future__ import annotations

import hydra
import torch
from omegaconf import DictConfig, OmegaConf

from torchpbp.tasks.objective import checked_objective, objective_value
from torchpbp.tasks.results import Metrics


def train(cfg: DictConfig) -> Metrics:
    """Run the experiment ``cfg.model`` with the learner ``cfg.learner`` and return its metrics.

    Args:
        cfg: composed from conf/; files go to ``cfg.output_dir``, or nowhere if that is null.
    """
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    torch.set_flush_denormal(True)  # kernels of far-away points underflow, and denormal numbers are slow
    experiment = hydra.utils.instantiate(cfg.model, _convert_="all")
    learner = hydra.utils.instantiate(cfg.learner, _convert_="all")
    metrics: Metrics = experiment(learner=learner, seed=cfg.seed, output_dir=cfg.output_dir)
    return metrics


@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def main(cfg: DictConfig) -> float | None:
    print(OmegaConf.to_yaml(cfg, resolve=True), flush=True)
    objective = checked_objective(cfg.objective)  # before the run: a search without one is refused at once
    metrics = train(cfg)
    print(f"Output folder: {cfg.output_dir}", flush=True)
    return None if objective is None else objective_value(metrics, objective)


if __name__ == "__main__":
    main()
