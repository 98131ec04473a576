"""Small graphs with their rows, and trainers that say nothing: what tests of PBPModule are made of."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.warnings import PossibleUserWarning
from torch import Tensor, nn

from torchpbp import (
    PBP,
    ContextEncoder,
    Continuous,
    DiscreteNetwork,
    LatentGraph,
    PBPModule,
    PointEncoder,
    TableLoader,
    templates,
)

Table = dict[str, Tensor]
VECTORS = ("a", "b", "c", "d")


def loop_table(rows: int, seed: int) -> tuple[LatentGraph, Table]:
    """A loop of hidden variables with discrete leaves."""
    graph = templates.diamond(observed_states=4)
    return graph, DiscreteNetwork.random(graph, seed=5).sample(rows, seed=seed)


def mixed_table(rows: int, seed: int) -> tuple[LatentGraph, Table]:
    """Discrete, scalar and vector leaves of two hidden variables; what vectors say is in the angle, not in the mean."""
    variables: dict[str, Any] = {"h": 3, "k": 3, "e": 3, "s": Continuous()}
    variables |= {v: Continuous(shape=(2,)) for v in VECTORS}
    edges = [("h", "k"), *(("h", v) for v in "abe"), *(("k", v) for v in "cds")]
    generator = torch.Generator().manual_seed(seed)
    h = torch.randint(0, 3, (rows,), generator=generator)
    k = torch.where(torch.rand(rows, generator=generator) < 0.8, h, torch.randint(0, 3, (rows,), generator=generator))
    table = {}
    for v in VECTORS:
        turns = (h if v in "ab" else k) / 6 + torch.randint(0, 2, (rows,), generator=generator) / 2
        angle = 2 * math.pi * (turns + 0.05 * torch.randn(rows, generator=generator))
        table[v] = torch.stack([angle.cos(), angle.sin()], dim=1)
    noise = torch.randint(0, 3, (rows,), generator=generator)
    table["e"] = torch.where(torch.rand(rows, generator=generator) < 0.8, h, noise)
    table["s"] = k + 0.5 * torch.randn(rows, generator=generator)
    return LatentGraph(edges, variables, latent=["h", "k"]), table


def class_table(rows: int, seed: int) -> tuple[LatentGraph, Table]:
    """Vector leaves of two hidden variables, in turns that depend on a class, and a discrete leaf."""
    graph, table = mixed_table(rows, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    label = torch.randint(0, 2, (rows,), generator=generator)
    angle = math.pi / 3 * label
    rotation = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=1).reshape(rows, 2, 2)
    for v in ("b", "d"):
        table[v] = (rotation @ table[v].unsqueeze(2)).squeeze(2)
    variables = {v: graph.variables[v] for v in graph.names if v != "s"} | {"y": 2}
    edges = [*(e for e in graph.edges if "s" not in e), ("y", "b"), ("y", "d")]
    table = {v: x for v, x in table.items() if v != "s"} | {"y": label}
    return LatentGraph(edges, variables, latent=["h", "k"]), table


def point_model(graph: LatentGraph, features: int = 3, **options: Any) -> PBP:
    torch.manual_seed(0)
    return PBP(graph, features=PointEncoder((2,), features, width=16), **options)


def context_model(graph: LatentGraph, features: int = 3, **options: Any) -> PBP:
    torch.manual_seed(0)
    return PBP(graph, features=ContextEncoder(VECTORS, (2,), features, width=16, head=8), context=True, **options)


def quiet_trainer(epochs: int = 1, **options: Any) -> Trainer:
    """A trainer on the CPU that writes and shows nothing."""
    defaults = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    return Trainer(max_epochs=epochs, enable_model_summary=False, **{**defaults, **options})


def train(
    module: PBPModule, table: Mapping[str, Tensor], epochs: int = 1, batch_size: int = 100, **options: Any
) -> Trainer:
    """Train with Lightning's own remarks left out."""
    given = {key: options.pop(key) for key in ("val_dataloaders", "ckpt_path") if key in options}
    trainer = quiet_trainer(epochs, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", PossibleUserWarning)
        trainer.fit(module, TableLoader(table, batch_size), **given)
    return trainer


def solved(module: PBPModule, table: Mapping[str, Tensor]) -> PBPModule:
    """The module as it is, with kernel maps, scales and operators from rows, but without training."""
    module.model.prepare_leaves([dict(table)])
    module.solve(TableLoader(table, 1000, shuffle=False))
    return module


def held_out_loss(module: PBPModule, table: Mapping[str, Tensor]) -> float:
    return float(module.answers.scores(table)["loss"][0])


def resumed_from(folder: Path) -> str:
    (path,) = folder.glob("*.ckpt")
    return str(path)


def clone(table: Mapping[str, Tensor]) -> Table:
    return copy.deepcopy(dict(table))


KINDS: dict[str, Callable[[LatentGraph], PBP]] = {
    "point-wise": lambda graph: point_model(graph, condition="y"),
    "context": lambda graph: context_model(graph, condition="y"),
}


@cache
def finished(kind: str) -> PBPModule:
    """A module after a few steps; nobody changes it."""
    graph, table = class_table(300, 1)
    module = PBPModule(KINDS[kind](graph), hidden=[6])
    train(module, table, 2)
    return module.eval()


@cache
def finished_mixed() -> PBPModule:
    """A model with a target among its leaves, and a scalar leaf."""
    graph, table = mixed_table(600, 1)
    module = PBPModule(point_model(graph), "e", hidden=[6], learning_rate=0.01)
    train(module, table, 3)
    return module.eval()


def evidence(rows: int = 20) -> dict[str, Tensor]:
    table = class_table(rows, 5)[1]
    return {v: x for v, x in table.items() if v != "y"}


class Own(nn.Module):
    """An encoder that torchpbp does not know."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(2, outputs)

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = self.layer(values).tanh()
        return out
