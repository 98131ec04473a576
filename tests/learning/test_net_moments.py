"""Moments of messages that nets make, against loops over rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.learning.nets import GRAPHS, attached, mixed_model, random_leaves
from torchpbp import PBP
from torchpbp.inference.leaf_features import LeafFeatures
from torchpbp.learning.message_nets import MessageNets
from torchpbp.learning.net_moments import BatchRows, ClassLayout, MomentSums, fully_observed_rows, zero_sums
from torchpbp.moments.rows import row_products

LABELS = torch.tensor([2, 0, 0, -1, 2, 0, 0, 2, -1, 0] * 3)
"""Four classes: 0 with five rows in ten, 2 with three, 1 and 3 with none; two rows in ten have no class."""


def sums_of(nets: MessageNets, leaves: LeafFeatures, layout: ClassLayout) -> MomentSums:
    messages, instruments = nets.messages(leaves), nets.instrument_features(leaves, leaves.seen)
    return BatchRows(nets, leaves, messages, instruments, layout, fully_observed_rows(nets, leaves)).sums()


def by_loop(nets: MessageNets, leaves: LeafFeatures, labels: Tensor, classes: int, weights: Tensor) -> MomentSums:
    """The same sums, one row after the other."""
    messages, instruments = nets.messages(leaves), nets.instrument_features(leaves, leaves.seen)
    order, needed, tree = list(leaves.features), nets.needed(), nets.plan.tree
    empty = zero_sums(nets, classes)
    sums, counts = [x.clone() for x in empty.sums], [x.clone() for x in empty.counts]

    def product(parts: list[Tensor]) -> Tensor:
        result = torch.ones((), dtype=torch.float64)
        for part in parts:
            result = torch.tensordot(result, part, dims=0)
        return result

    for row in range(leaves.rows):
        c = int(labels[row])
        if c < 0:
            continue
        for i, family in enumerate(nets.families):
            for k, n in enumerate(family.nodes):
                if not all(bool(leaves.seen[row, order.index(v)]) for v in needed[n]):
                    continue
                eta = instruments[n][row]
                leaf = tree.leaf_observables[n]
                below = [leaves.features[v][row] for v in leaf] or [messages[j][row] for j in tree.children[n]]
                for j, left in enumerate((eta, messages[n][row], product(below).flatten())):
                    sums[3 * i + j][c, k] += weights[row] * torch.outer(left, eta)
                    counts[3 * i + j][c, k] += weights[row]
        if all(bool(leaves.seen[row, order.index(v)]) for v in needed[0]):
            sums[-1][c] += weights[row] * product([messages[j][row] for j in tree.children[0]])
            counts[-1][c] += weights[row]
    return MomentSums(tuple(sums), tuple(counts))


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("classes", [None, 4])
@pytest.mark.parametrize("name", [*GRAPHS, "mixed"])
def test_sums_equal_a_loop_over_rows(name: str, classes: int | None, missing: float) -> None:
    model = mixed_model() if name == "mixed" else PBP(GRAPHS[name])
    nets, leaves = attached(model).eval(), random_leaves(model, missing=missing)
    labels = None if classes is None else LABELS
    weights = torch.rand(30, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.no_grad():
        found = sums_of(nets, leaves, ClassLayout(labels, classes or 1, 30, weights=weights))
        plain = torch.zeros(30, dtype=torch.int64) if labels is None else labels
        expected = by_loop(nets, leaves, plain, classes or 1, weights)
    for a, b in zip((*found.sums, *found.counts), (*expected.sums, *expected.counts), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    if missing:
        assert float(found.counts[0].min()) < float(weights.sum())


@pytest.mark.parametrize("labels", [None, LABELS])
def test_sums_add_up_over_batches(labels: Tensor | None) -> None:
    model = mixed_model()
    nets, leaves = attached(model).eval(), random_leaves(model, missing=0.1)

    def part(rows: slice) -> MomentSums:
        own = LeafFeatures(
            {v: x[rows] for v, x in leaves.features.items()},
            {v: x[rows] for v, x in leaves.inputs.items()},
            leaves.seen[rows],
        )
        return sums_of(nets, own, ClassLayout(None if labels is None else labels[rows], 4, own.rows))

    with torch.no_grad():
        whole = part(slice(None))
        parts = part(slice(0, 7)) + part(slice(7, 8)) + part(slice(8, 8)) + part(slice(8, 30))  # one of them is empty
    for a, b in zip((*whole.sums, *whole.counts), (*parts.sums, *parts.counts), strict=True):
        torch.testing.assert_close(a, b)


def test_classes_without_rows_have_the_pooled_moments_and_shrinkage_adds_pseudo_rows() -> None:
    total = torch.tensor([[6.0], [0.0], [10.0]], dtype=torch.float64).reshape(3, 1, 1, 1)
    count = torch.tensor([[2.0], [0.0], [8.0]], dtype=torch.float64)
    sums = MomentSums((total,), (count,))
    assert sums.averages()[0].flatten().tolist() == [3.0, 1.6, 1.25]
    shrunk = sums.averages(shrinkage=4.0)[0].flatten()
    expected = torch.tensor([(6 + 4 * 1.6) / 6, 1.6, (10 + 4 * 1.6) / 12], dtype=torch.float64)
    torch.testing.assert_close(shrunk, expected)
    single = MomentSums((total[:1],), (count[:1],))
    assert single.averages(shrinkage=4.0)[0].flatten().tolist() == [3.0]  # there is nothing to shrink towards


def test_without_any_rows_moments_are_zeros() -> None:
    sums = zero_sums(attached(PBP(GRAPHS["chain"])), 2)
    assert all(bool((m == 0).all()) for m in sums.averages(1.0))


def test_layout_pads_classes_to_the_largest() -> None:
    layout = ClassLayout(torch.tensor([1, -1, 1, 0, 1]), 3, 5)
    assert layout.filled.tolist() == [[1, 0, 0], [1, 1, 1], [0, 0, 0]]
    values = torch.arange(5.0).unsqueeze(1)
    arranged = layout.arrange([values, values + 10])
    assert arranged.shape == (2, 3, 3, 1)
    assert arranged[:, 1, :, 0].tolist() == [[0, 2, 4], [10, 12, 14]]
    assert layout.weights([None, torch.tensor([0.0, 1, 1, 1, 0.5])]).tolist() == [
        [[1, 0, 0], [1, 1, 1], [0, 0, 0]],
        [[1, 0, 0], [0, 1, 0.5], [0, 0, 0]],
    ]
    nobody = ClassLayout(torch.tensor([-1, -1]), 2, 2)
    assert float(nobody.filled.sum()) == 0
    nothing = ClassLayout(torch.zeros(0, dtype=torch.int64), 2, 0)
    assert nothing.arrange([torch.zeros(0, 3)]).shape == (1, 2, 0, 3)


def test_products_of_rows() -> None:
    parts = [torch.randn(4, d, generator=torch.Generator().manual_seed(d)) for d in (2, 3, 2)]
    expected = torch.einsum("na,nb,nc->nabc", *parts).flatten(1)
    torch.testing.assert_close(row_products(parts), expected)
