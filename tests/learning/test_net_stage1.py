"""Stage 1 with nets, and the operators solved from it, against the textbook formula written out densely."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.learning.nets import GRAPHS, attached, mixed_model, random_leaves
from tests.learning.test_net_moments import LABELS, sums_of
from torchpbp import PBP
from torchpbp.learning.message_nets import MessageNets
from torchpbp.learning.net_fitting import penalties_of
from torchpbp.learning.net_moments import ClassLayout, MomentSums
from torchpbp.learning.net_stage1 import NetStage1
from torchpbp.learning.stage1 import Penalties
from torchpbp.learning.two_stage import solve

ROWS = 200


def setting(name: str, classes: bool) -> tuple[MessageNets, MomentSums]:
    """Nets with a ridge of its own for each separator, and moments of rows."""
    model = mixed_model() if name == "mixed" else PBP(GRAPHS[name])
    nets, leaves = attached(model).eval(), random_leaves(model, ROWS)
    with torch.no_grad():
        nets.log_ridge.copy_(torch.linspace(-6, -1, nets.log_ridge.numel()).reshape(nets.log_ridge.shape))
        labels = LABELS.repeat(ROWS)[:ROWS] if classes else None
        return nets, sums_of(nets, leaves, ClassLayout(labels, 4 if classes else 1, ROWS))


def textbook(gram: Tensor, message: Tensor, product: Tensor, first: float, second: float) -> Tensor:
    """(1 + messages, products) operator from E[ηηᵀ], E[θηᵀ], E[yηᵀ] with η = (1, g) and θ = (1, f)."""
    mean = gram[0, 1:]
    c = gram[1:, 1:] - torch.outer(mean, mean) + first * torch.eye(len(mean), dtype=torch.float64)
    t = message[1:, 1:] - torch.outer(message[1:, 0], mean)
    b = product[:, 1:] - torch.outer(product[:, 0], mean)
    inverse = torch.linalg.inv(c)
    normal = t @ inverse @ t.T
    w = b @ inverse @ t.T @ torch.linalg.inv(normal + second * torch.eye(len(normal), dtype=torch.float64))
    return torch.cat([(product[:, 0] - w @ message[1:, 0]).unsqueeze(1), w], dim=1).T


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize("name", [*GRAPHS, "mixed"])
def test_operators_are_the_instrumental_variable_estimate(name: str, classes: bool) -> None:
    nets, sums = setting(name, classes)
    moments = sums.averages(2.0)
    with torch.no_grad():
        tree = solve(nets.plan, NetStage1(nets, moments, classes), penalties_of(nets)).tree
    ridges = nets.log_ridge.detach().exp()
    for i, family in enumerate(nets.families):
        for k, n in enumerate(family.nodes):
            assert tree.operators[n].shape == (*([4] if classes else []), family.rank, *family.sizes)
            for c in range(4 if classes else 1):
                own = [m[c, k] for m in moments[3 * i : 3 * i + 3]]
                expected = textbook(*own, float(ridges[0, n - 1]), float(ridges[1, n - 1]))
                found = tree.operators[n][c] if classes else tree.operators[n]
                torch.testing.assert_close(found.flatten(1), expected, rtol=1e-6, atol=1e-8)
    for n, v in nets.own.items():
        operator = tree.operators[n][0] if classes else tree.operators[n]
        assert torch.equal(operator, torch.eye(nets.dims[v], dtype=torch.float64))
    torch.testing.assert_close(tree.root, moments[-1] if classes else moments[-1][0])


def test_plain_numbers_are_penalties_of_all_separators() -> None:
    nets, sums = setting("chain", False)
    stage1 = NetStage1(nets, sums.averages(), False)
    many = torch.full((len(nets.plan.separators),), 0.3, dtype=torch.float64)
    a = solve(nets.plan, stage1, Penalties(0.3, 0.3)).tree.operators
    b = solve(nets.plan, stage1, Penalties(many, many)).tree.operators
    for n in nets.solved:
        torch.testing.assert_close(a[n], b[n])


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize("name", [*GRAPHS, "mixed"])
def test_heads_are_ridge_regressions_with_a_free_constant(name: str, classes: bool) -> None:
    nets, sums = setting(name, classes)
    moments = sums.averages(2.0)
    heads = NetStage1(nets, moments, classes).heads(penalties_of(nets))
    assert len(heads) == len(nets.families)
    for i, family in enumerate(nets.families):
        for k, n in enumerate(family.nodes):
            ridge = float(nets.log_ridge.detach()[0, n - 1].exp())
            for c in range(4 if classes else 1):
                gram, message, product = (m[c, k] for m in moments[3 * i : 3 * i + 3])
                penalty = ridge * torch.eye(len(gram), dtype=torch.float64)
                penalty[0, 0] = 0
                for head, cross in zip(heads[i], (message, product), strict=True):
                    own = (head[c] if classes else head)[k]
                    torch.testing.assert_close(own, torch.linalg.solve(gram + penalty, cross.T), rtol=1e-6, atol=1e-8)


def test_heads_predict_messages_as_well_as_regressions_on_the_rows() -> None:
    model = PBP(GRAPHS["chain"])
    nets, leaves = attached(model).eval(), random_leaves(model, ROWS)
    with torch.no_grad():
        nets.log_ridge.fill_(-20.0)
        sums = sums_of(nets, leaves, ClassLayout(None, 1, ROWS))
        nets.set_heads(NetStage1(nets, sums.averages(), False).heads(penalties_of(nets)))
        messages, instruments = nets.messages(leaves), nets.instrument_features(leaves, leaves.seen)
    for i, family in enumerate(nets.families):
        for k, n in enumerate(family.nodes):
            best = torch.linalg.lstsq(instruments[n], messages[n]).solution
            predicted = instruments[n] @ getattr(nets, f"head_a{i}")[k]
            torch.testing.assert_close(predicted, instruments[n] @ best, rtol=1e-5, atol=1e-6)
            assert torch.allclose(predicted[:, 0], torch.ones(ROWS, dtype=torch.float64), atol=1e-6)


def test_strengths_are_shares_explained_and_those_of_the_worst_class() -> None:
    nets, sums = setting("chain", True)
    moments = sums.averages(2.0)
    together = NetStage1(nets, moments, True).predictions(penalties_of(nets))
    for n in nets.solved:
        strengths = together.strengths[n]
        assert strengths.shape == (nets.plan[n].rank,)
        assert float(strengths[0]) == 1
        assert bool(((strengths >= 0) & (strengths <= 1)).all())
    single = [
        NetStage1(nets, [m[c : c + 1] for m in moments], False).predictions(penalties_of(nets)).strengths
        for c in range(4)
    ]
    for n in nets.solved:
        assert float(together.strengths[n].min()) == pytest.approx(min(float(s[n].min()) for s in single))
