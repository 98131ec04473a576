"""Nets of separators: shapes, what they look at, and statistics."""

from __future__ import annotations

import pytest
import torch

from tests.learning.nets import GRAPHS, attached, mixed_model, random_leaves
from torchpbp import PBP, templates
from torchpbp.learning.message_nets import INSIDE_LEAVES, Family, NetBank, with_constant
from torchpbp.learning.net_fitting import random_masks


@pytest.mark.parametrize("name", [*GRAPHS, "mixed"])
def test_shapes_come_from_the_plan(name: str) -> None:
    model = mixed_model() if name == "mixed" else PBP(GRAPHS[name])
    nets, leaves = attached(model), random_leaves(model)
    messages, instruments = nets.messages(leaves), nets.instrument_features(leaves, leaves.seen)
    assert set(messages) == set(range(1, len(model.tree)))
    assert set(instruments) == set(nets.solved) == set(messages) - set(nets.own)
    for n, theta in messages.items():
        assert theta.shape == (30, model.plan[n].rank)
    for n, eta in instruments.items():
        assert eta.shape == (30, 1 + max(1, round(1.5 * (model.plan[n].rank - 1))))
        assert bool((eta[:, 0] == 1).all())
    families = [n for family in nets.families for n in family.nodes]
    assert sorted(families) == sorted(nets.solved)
    for family in nets.families:
        check_family(model, family)


def check_family(model: PBP, family: Family) -> None:
    shapes = model.plan.operator_shapes(model.dims)
    assert all(shapes[n] == (family.rank, *family.sizes) for n in family.nodes)
    for i, n in enumerate(family.nodes):
        assert tuple(nodes[i] for nodes in family.below) == (() if family.leaf else model.tree.children[n])


def test_a_leaf_with_as_many_features_as_its_message_is_its_own_message() -> None:
    model = PBP(templates.naive_bayes(3, states=3, observed_states=3))
    nets, leaves = attached(model), random_leaves(model)
    assert sorted(nets.own.values()) == ["x1", "x2", "x3"]
    assert not nets.solved
    assert not list(nets.messages_)
    messages = nets.messages(leaves)
    assert all(messages[n] is leaves.features[v] for n, v in nets.own.items())


@pytest.mark.parametrize("name", [*GRAPHS, "mixed"])
def test_messages_depend_on_the_inside_and_instruments_on_the_outside(name: str) -> None:
    model = mixed_model() if name == "mixed" else PBP(GRAPHS[name])
    nets, leaves = attached(model).eval(), random_leaves(model)
    for v in leaves.features:
        moved = leaves._replace(
            inputs={u: x + (u == v) for u, x in leaves.inputs.items()},
            features={u: x + (u == v) for u, x in leaves.features.items()},
        )
        before, after = nets.messages(leaves), nets.messages(moved)
        changed = {n for n in before if not torch.equal(before[n], after[n])}
        assert changed == {n for n in before if v in (nets.inside.get(n) or (nets.own[n],))}
        assert all(v in model.tree.inside[n] for n in changed)
        old, new = nets.instrument_features(leaves, leaves.seen), nets.instrument_features(moved, leaves.seen)
        changed = {n for n in old if not torch.equal(old[n], new[n])}
        assert changed == {n for n in old if v in model.plan[n].outside}
        assert all(v not in model.tree.inside[n] for n in changed)


def test_hidden_leaves_do_not_reach_instruments() -> None:
    model = mixed_model()
    nets, leaves = attached(model).eval(), random_leaves(model, missing=0.3)
    shown = torch.rand(leaves.seen.shape, generator=torch.Generator().manual_seed(3)) < 0.5
    noise = random_leaves(model, seed=9)
    kept = leaves.seen & shown
    mixed_inputs = {
        v: torch.where(kept[:, i, None], x, noise.inputs[v]) for i, (v, x) in enumerate(leaves.inputs.items())
    }
    before = nets.instrument_features(leaves, shown)
    after = nets.instrument_features(leaves._replace(inputs=mixed_inputs), shown)
    assert all(torch.equal(before[n], after[n]) for n in before)
    everything = nets.instrument_features(leaves, torch.ones_like(shown))
    assert any(not torch.equal(before[n], everything[n]) for n in before)


def test_long_chains_have_messages_of_a_few_leaves() -> None:
    model = PBP(templates.hmm(20, states=2, observed_states=3))
    nets = attached(model)
    assert max(map(len, nets.inside.values())) == INSIDE_LEAVES
    assert all(set(model.plan[n].core) <= set(group) for n, group in nets.inside.items())
    assert sum(len(f.nodes) for f in nets.families) == len(nets.solved)
    assert len(nets.families) < 5  # separators of equal shape are one batch


def test_banks_standardise_by_the_batch_in_training_and_by_what_is_kept_otherwise() -> None:
    columns = torch.tensor([[0, 1], [2, 3]])
    bank = NetBank(columns, [4, 3], torch.Generator().manual_seed(0)).double()
    inputs = torch.randn(50, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = torch.zeros(2, 50, dtype=torch.float64)
    weights[:, :20] = 1.0
    out = bank(inputs, weights)
    assert out.shape == (2, 50, 3)
    torch.testing.assert_close(out[:, :20].mean(dim=1), torch.zeros(2, 3, dtype=torch.float64))
    torch.testing.assert_close(out[:, :20].std(dim=1, unbiased=False), torch.ones(2, 3, dtype=torch.float64))
    torch.testing.assert_close(bank(inputs[:20]), bank(inputs, weights)[:, :20])
    bank.mean.fill_(0.5)
    bank.spread.fill_(2.0)
    torch.testing.assert_close(bank.eval()(inputs), (bank.raw(inputs) - 0.5) / 2)


def test_each_net_of_a_bank_is_a_perceptron_of_its_own_columns() -> None:
    bank = NetBank(torch.tensor([[0, 1], [3, 2]]), [4, 3], torch.Generator().manual_seed(0)).double()
    inputs = torch.randn(7, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for i, chosen in enumerate(([0, 1], [3, 2])):
        hidden = inputs[:, chosen] @ bank.weights[0][i] + bank.biases[0][i]
        expected = torch.nn.functional.gelu(hidden) @ bank.weights[1][i] + bank.biases[1][i]
        torch.testing.assert_close(bank.raw(inputs)[i], expected)


def test_copies_of_a_bank_are_banks_of_their_own() -> None:
    columns = torch.tensor([[0, 1], [3, 2]])
    bank = NetBank(columns, [4, 5, 3], torch.Generator().manual_seed(0), (2, 3), torch.float64)
    inputs = torch.randn(7, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.equal(bank.weights[1][0, 0], bank.weights[1][1, 2])  # initial weights are equal
    with torch.no_grad():
        for p in bank.parameters():
            p.copy_(torch.randn_like(p))
    out = bank.raw(inputs)
    assert out.shape == (2, 3, 2, 7, 3)
    single = NetBank(columns, [4, 5, 3], torch.Generator().manual_seed(0), dtype=torch.float64)
    for c, k in ((0, 1), (1, 2)):
        with torch.no_grad():
            for p, q in zip(single.parameters(), bank.parameters(), strict=True):
                p.copy_(q[c, k])
        torch.testing.assert_close(out[c, k], single.raw(inputs))


def test_rows_needed_for_a_separator() -> None:
    model = mixed_model()
    nets = attached(model)
    needed = nets.needed()
    assert set(needed) == {0, *nets.solved}
    for n in nets.solved:
        below = model.tree.leaf_observables[n]
        assert set(needed[n]) >= {*nets.inside[n], *below}
        assert set(needed[n]) <= set(model.tree.inside[n])


def test_heads_are_kept_in_the_state_and_printed_with_the_model() -> None:
    model = PBP(GRAPHS["chain"])
    nets = attached(model)
    heads = [
        (torch.randn_like(getattr(nets, f"head_a{i}")), torch.randn_like(getattr(nets, f"head_b{i}")))
        for i in range(len(nets.families))
    ]
    nets.set_heads(heads)
    state = model.state_dict()
    assert torch.equal(state["stage1.head_a0"], heads[0][0])
    assert torch.equal(state["stage1.head_b0"], heads[0][1])
    assert f"{len(nets.solved)} separators, hidden=[5]" in repr(model)


def test_initial_weights_depend_on_the_seed_only() -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        torch.rand(3)  # moves the global generator
        return [p.detach() for p in PBP(GRAPHS["chain"]).attach_nets(seed=seed).parameters()]

    assert all(map(torch.equal, weights(1), weights(1)))
    assert not all(map(torch.equal, weights(1), weights(2)))


def test_a_constant_is_put_in_front() -> None:
    assert with_constant(torch.zeros(2, 3, 1)).tolist() == [[[1.0, 0.0]] * 3] * 2


def test_random_masks_hide_leaves_in_the_share_asked_for() -> None:
    like = torch.zeros(4000, 8)
    hidden = ~random_masks(like, 0.5, 0.75, torch.Generator().manual_seed(0))
    shares = torch.bincount(hidden.sum(dim=1), minlength=7) / 4000
    assert torch.allclose(shares, torch.tensor([0.5] + [0.5 / 6] * 6), atol=0.03)
    assert torch.allclose(hidden.float().mean(dim=0), torch.full((8,), 0.5 * 3.5 / 8), atol=0.03)
    assert bool(random_masks(like, 0.0, 0.75, torch.Generator()).all())
    assert bool((~random_masks(like, 1.0, 1.0, torch.Generator())).any(dim=1).all())
