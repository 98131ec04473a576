"""Every setting of PBPModule changes what is learned or measured."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.neural.small import class_table, point_model, train
from torchpbp import PBPModule, TableLoader
from torchpbp.neural.module import ModuleSettings

OTHERS: dict[str, Any] = {
    "hide": 0.1,
    "most_hidden": 0.25,
    "support": 0.3,
    "hidden": (4, 4),
    "instruments": 1.0,
    "residual": False,
    "link": False,
    "gradient": "stopped",
    "learning_rate": 0.01,
    "weight_decay": 0.5,
    "warmup": 2,
    "clip": 1e-6,
    "validation_rows": 40,
    "seed": 3,
}
"""Setting -> another value than the default."""


@cache
def trained(name: str | None) -> tuple[Tensor, float]:
    """Answers after three steps, and the loss of a validation, with one setting changed."""
    graph, table = class_table(200, 1)
    given = {"hidden": (4,)} | ({} if name is None else {name: OTHERS[name]})
    module = PBPModule(point_model(graph, condition="y"), **given)
    rows = {v: x[:40] for v, x in class_table(200, 2)[1].items()}
    trainer = train(module, table, 3, 200, val_dataloaders=TableLoader(rows, 40), num_sanity_val_steps=0)
    evidence = {v: x for v, x in rows.items() if v != "y"}
    return module.model.posterior("y", evidence).detach(), float(trainer.callback_metrics["val/loss"])


def test_all_settings_are_here() -> None:
    assert set(OTHERS) == {field.name for field in dataclasses.fields(ModuleSettings)}


@pytest.mark.parametrize("name", OTHERS)
def test_a_setting_has_an_effect(name: str) -> None:
    (plain, loss), (answers, other) = trained(None), trained(name)
    if name == "validation_rows":  # of validations only
        assert torch.equal(answers, plain)
    else:
        assert float((answers - plain).abs().max()) > 1e-5
    assert other != pytest.approx(loss, rel=1e-6)
