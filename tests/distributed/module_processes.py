"""Trains a PBPModule in one of several processes, each with its share of the rows; run by test_module_processes.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor

from tests.neural.small import class_table, context_model, loop_table, quiet_trainer
from torchpbp import PBP, PBPModule, TableLoader
from torchpbp.distributed import own_share, process_rank, world_size

ROWS, SUPPORT = 120, 72


class Gradients(Callback):
    """Keeps the gradients of the first step, before they are clipped."""

    def __init__(self) -> None:
        self.first: dict[str, Tensor] | None = None

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        if self.first is None:
            named = pl_module.named_parameters()
            self.first = {name: p.grad.clone() for name, p in named if p.grad is not None}


def modules() -> dict[str, tuple[PBPModule, dict[str, Tensor]]]:
    """Modules in double precision with one batch of rows, some values missing: with classes and encoders, and discrete."""
    graph, table = class_table(ROWS, 0)
    table["a"][::7] = torch.nan
    table["y"][3] = -1
    classes = PBPModule(context_model(graph, condition="y"), support=SUPPORT / ROWS).double()
    loop, states = loop_table(ROWS, 0)
    states["b1"][::5] = -1
    return {
        "classes": (classes, {v: x.double() if x.is_floating_point() else x for v, x in table.items()}),
        "leaves": (PBPModule(PBP(loop), support=SUPPORT / ROWS).double(), states),
    }


def train_all(processes: int) -> dict[str, Any]:
    """First gradients, weights after three steps of the same batch, and operators solved on all rows."""
    found: dict[str, Any] = {}
    options = {"devices": processes, "strategy": "ddp" if processes > 1 else "auto", "use_distributed_sampler": False}
    for name, (module, table) in modules().items():
        keep = Gradients()
        support, query = (torch.arange(ROWS)[part] for part in (slice(SUPPORT), slice(SUPPORT, None)))
        seed_everything(0, verbose=False)
        trainer = quiet_trainer(3, callbacks=[keep], **options)
        trainer.fit(module, Share(table, support, query))
        assert keep.first is not None
        module.solve([{v: x[own_share(ROWS)] for v, x in table.items()}])
        solved = {n for n, _ in module.named_parameters() if "operators" in n or "root" in n}
        weights = {n: p.detach() for n, p in module.named_parameters()}
        found[name] = {
            "gradients": keep.first,
            "weights": {n: p for n, p in weights.items() if n not in solved},
            "operators": {n: weights[n] for n in solved},
            "skipped": int(module.skipped),
        }
    module, table = modules()["classes"]
    quiet_trainer(2, **options).fit(module, TableLoader(table, 40))  # uneven shares, rows without a class
    found["loader"] = {"weights": torch.cat([p.detach().reshape(-1) for p in module.parameters()])}
    return found


class Share(torch.utils.data.DataLoader[Any]):
    """One batch: this process's share of the support rows and of the others."""

    def __init__(self, table: dict[str, Tensor], support: Tensor, query: Tensor) -> None:
        super().__init__([0], batch_size=None)
        self.table, self.parts = table, (support, query)

    def __iter__(self) -> Any:
        own = torch.cat([part[own_share(len(part))] for part in self.parts])
        yield {v: x[own] for v, x in self.table.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = train_all(2)
    assert world_size() == 2
    torch.save(found, Path(sys.argv[1]) / f"module{process_rank()}.pt")
