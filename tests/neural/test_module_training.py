"""PBPModule learns: held-out answers get better than with encoders and nets left at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.neural.small import (
    class_table,
    context_model,
    held_out_loss,
    loop_table,
    mixed_table,
    point_model,
    train,
)
from torchpbp import PBP, DiscreteNetwork, LatentGraph, PBPModule, templates

Make = Callable[[int, int], tuple[LatentGraph, dict[str, Tensor]]]


def trained(
    make: Make, model: Callable[[LatentGraph], PBP], frozen: bool, epochs: int, rows: int = 200, **options: Any
) -> float:
    """Held-out loss after training on batches of so many rows.

    With ``frozen``, encoders and nets stay random, and only ridges and link are trained.
    """
    graph, table = make(2000, 1)
    module = PBPModule(model(graph), hidden=[16], learning_rate=0.01, warmup=10, **options)
    if frozen:
        for part in (module.model.encoders, module.model.nets.messages_, module.model.nets.instruments_):
            if part is not None:
                part.requires_grad_(False)
    train(module, table, epochs, batch_size=rows)
    return held_out_loss(module, make(2000, 2)[1])


CASES: dict[str, tuple[Make, Callable[[LatentGraph], PBP], dict[str, Any], int, float]] = {
    "loop of hidden variables, discrete leaves": (loop_table, PBP, {"target": "a1"}, 4, 0.03),
    "discrete, scalar and vector leaves": (mixed_table, point_model, {"target": "e"}, 4, 0.03),
    "no target": (mixed_table, point_model, {}, 4, 0.05),
    "classes": (class_table, lambda graph: point_model(graph, condition="y"), {}, 4, 0.1),
    "classes, context": (class_table, lambda graph: context_model(graph, condition="y"), {"rows": 400}, 40, 0.1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_training_beats_random_encoders_and_nets(name: str) -> None:
    make, model, options, epochs, margin = CASES[name]
    random = trained(make, model, True, epochs, **options)
    learned = trained(make, model, False, epochs, **options)
    assert learned < random - margin


@pytest.mark.slow
def test_a_loop_comes_close_to_the_true_network() -> None:
    """Between the marginal and the exact posterior, most of the way is covered."""
    graph = templates.diamond(observed_states=4)
    truth = DiscreteNetwork.random(graph, seed=5)
    rows = truth.sample(2000, seed=2)
    exact = truth.posterior("a1", {v: x for v, x in rows.items() if v != "a1"}).gather(1, rows["a1"].unsqueeze(1))
    nothing = truth.posterior("a1", {}).expand(2000, -1).gather(1, rows["a1"].unsqueeze(1))
    best, worst = -float(exact.log().mean()), -float(nothing.log().mean())
    found = trained(loop_table, PBP, False, 8, target="a1")
    assert best - 0.01 < found < best + 0.35 * (worst - best)


def test_stopped_gradients_leave_message_nets_alone() -> None:
    graph, table = class_table(200, 1)

    def weights(gradient: Any) -> tuple[list[Tensor], list[Tensor]]:
        model = point_model(graph, condition="y")
        module = PBPModule(model, hidden=[4], gradient=gradient)
        before = [p.detach().clone() for p in model.nets.messages_.parameters()]
        train(module, table)
        return before, [p.detach() for p in model.nets.messages_.parameters()]

    before, stopped = weights("stopped")
    assert all(map(torch.equal, before, stopped))
    _, through = weights("solve")
    assert not any(map(torch.equal, before[:1], through[:1]))
