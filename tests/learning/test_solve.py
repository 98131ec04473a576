"""solve: one function for fits and for training, with or without gradient, with or without classes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.learning.nets import GRAPHS, attached, random_leaves
from tests.learning.test_net_moments import sums_of
from tests.learning.test_net_stage1 import setting
from torchpbp import PBP, DiscreteNetwork, PBPModule
from torchpbp.learning import net_fitting, two_stage
from torchpbp.learning.net_fitting import penalties_of
from torchpbp.learning.net_moments import ClassLayout
from torchpbp.learning.net_stage1 import NetStage1
from torchpbp.learning.stage1 import Penalties
from torchpbp.learning.two_stage import solve, stacked
from torchpbp.neural import support


@pytest.mark.parametrize("name", GRAPHS)
def test_gradients_reach_moments_and_penalties(name: str) -> None:
    nets, sums = setting(name, True)
    moments = [m[:2].clone().requires_grad_() for m in sums.averages(2.0)]
    first, second = (r.clone().requires_grad_() for r in nets.log_ridge.detach().exp())

    def operators(first: Tensor, second: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        symmetric = [
            (m + m.mT) / 2 if m.ndim == 4 and m.shape[-1] == m.shape[-2] and i % 3 == 0 else m
            for i, m in enumerate(given)
        ]
        tree = solve(nets.plan, NetStage1(nets, symmetric, True), Penalties(first, second)).tree
        return tuple(tree.operators[n] for n in nets.solved)

    assert torch.autograd.gradcheck(operators, (first, second, *moments), fast_mode=True, atol=1e-6, rtol=1e-4)


def test_classes_are_solved_as_each_by_itself() -> None:
    nets, sums = setting("loop", True)
    moments = sums.averages(2.0)
    together = solve(nets.plan, NetStage1(nets, moments, True), penalties_of(nets))
    alone = stacked(
        [
            solve(nets.plan, NetStage1(nets, [m[c : c + 1] for m in moments], False), penalties_of(nets))
            for c in range(4)
        ]
    )
    for n in nets.solved:
        torch.testing.assert_close(together.tree.operators[n], alone.tree.operators[n])
    torch.testing.assert_close(together.tree.root, alone.tree.root)


def test_the_same_function_serves_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """PBP.fit, a fit with nets and a training step all come through solve."""
    truth = DiscreteNetwork.random(GRAPHS["chain"], seed=0)
    rows, calls = truth.sample(100, seed=0), []

    def noted(plan: object, moments: object, penalties: object) -> object:
        calls.append(type(moments).__name__)
        return solve(plan, moments, penalties)  # type: ignore[arg-type]

    for module in (two_stage, net_fitting, support):
        monkeypatch.setattr(module, "solve", noted)
    PBP(truth.graph).fit(rows)
    model = PBP(truth.graph)
    step = PBPModule(model, "x1", hidden=[4])
    seen = step.reader.seen(rows)
    support.solve_support(model, rows, seen, seen, seen)
    model.fit(rows)
    assert calls == ["LinearStage1", "NetStage1", "NetStage1"]


def test_moments_of_no_row_give_finite_operators() -> None:
    model = PBP(GRAPHS["loop"])
    nets, leaves = attached(model).eval(), random_leaves(model)
    nobody = leaves._replace(seen=torch.zeros_like(leaves.seen))
    sums = sums_of(nets, nobody, ClassLayout(None, 1, 30))
    tree = solve(nets.plan, NetStage1(nets, sums.averages(), False), penalties_of(nets)).tree
    assert all(bool(tree.operators[n].isfinite().all()) for n in nets.solved)
