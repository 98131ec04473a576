"""The four learning rules of a single block, and product-space matrices."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.closeness import assert_same_up_to_rounding
from torchpbp.baselines.normal_graph import RULES, Rule, from_product, learn_block, to_product
from torchpbp.baselines.normal_graph.conversion import log_constant
from torchpbp.baselines.normal_graph.rules import block_log_likelihood, kl_step, ml_step, sharpened
from torchpbp.errors import ArgumentError, ShapeError


def random_block(seed: int, x: int, y: int, rows: int, sharpness: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """theta, f, b and a mask with zeros in it."""
    g = torch.Generator().manual_seed(seed)

    def distributions(*shape: int) -> Tensor:
        drawn = torch.rand(*shape, generator=g, dtype=torch.float64) ** sharpness + 1e-12
        return drawn / drawn.sum(dim=-1, keepdim=True)

    mask = (torch.rand(rows, generator=g) < 0.7).double()
    mask[0] = 1.0
    return distributions(x, y), distributions(rows, x), distributions(rows, y), mask


blocks = st.builds(
    random_block,
    st.integers(0, 10_000),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 30),
    st.sampled_from([0.0, 1.0, 4.0, 30.0]),
)


@given(blocks)
def test_ml_never_lowers_the_likelihood_of_its_block(block: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    theta, f, b, mask = block
    for _ in range(10):
        better = ml_step(theta, f, b, mask)
        assert torch.allclose(better.sum(dim=-1), torch.ones(len(better), dtype=torch.float64))
        before, after = (float(block_log_likelihood(t, f, b, mask)) for t in (theta, better))
        assert after >= before - 1e-9 * (1 + abs(before))
        theta = better


def divergence(theta: Tensor, f: Tensor, b: Tensor, mask: Tensor) -> Tensor:
    """Σ_n L[n] KL(b[n] ‖ θᵀ f[n]) [NG eq. 15]."""
    rows = (torch.xlogy(b, b) - torch.xlogy(b, f @ theta)).sum(dim=-1)
    return torch.where(mask > 0, mask * rows, torch.zeros_like(rows)).sum(dim=-1)


@given(blocks)
def test_kl_never_raises_the_divergence_of_its_block(block: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    theta, f, b, mask = block
    for _ in range(10):
        better = kl_step(theta, f, b, mask)
        assert torch.allclose(better.sum(dim=-1), torch.ones(len(better), dtype=torch.float64))
        before, after = (float(divergence(t, f, b, mask)) for t in (theta, better))
        assert after <= before + 1e-9 * (1 + abs(before))
        theta = better


def test_the_steps_are_those_of_the_paper() -> None:
    theta, f, b, mask = random_block(1, 3, 4, 8, 1.0)
    for step, same_denominator in ((ml_step, True), (kl_step, False)):
        expected = torch.zeros_like(theta)
        for i, j in itertools.product(range(3), range(4)):
            total = 0.0
            for n in range(8):
                if same_denominator:
                    below = sum(float(f[n, k] * theta[k, m] * b[n, m]) for k in range(3) for m in range(4))
                else:
                    below = sum(float(theta[k, j] * f[n, k]) for k in range(3))
                total += float(mask[n] * f[n, i] * b[n, j]) / below
            expected[i, j] = float(theta[i, j]) * total / float((mask * f[:, i]).sum())
        expected /= expected.sum(dim=1, keepdim=True)
        torch.testing.assert_close(step(theta, f, b, mask), expected)


def test_vit_and_var_are_those_of_the_paper() -> None:
    theta, f, b, mask = random_block(2, 3, 4, 8, 1.0)
    delta = 0.01
    sharp_f, sharp_b = torch.full((8, 3), delta), torch.full((8, 4), delta)
    for n in range(8):
        sharp_f[n, int(f[n].argmax())] += 1
        sharp_b[n, int(b[n].argmax())] += 1
    counts = sum(mask[n] * torch.outer(sharp_f[n], sharp_b[n]).double() for n in range(8))
    expected = counts / counts.sum(dim=1, keepdim=True)
    torch.testing.assert_close(Rule("vit", delta=delta)(theta, f, b, mask), expected, rtol=1e-6, atol=1e-7)
    soft = delta + sum(mask[n] * torch.outer(f[n], b[n]) for n in range(8))
    torch.testing.assert_close(Rule("var", delta=delta)(theta, f, b, mask), soft / soft.sum(dim=1, keepdim=True))
    assert sharpened(torch.tensor([[0.4, 0.4, 0.2]])).tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize("name", RULES)
def test_with_sharp_messages_every_rule_counts(name: str) -> None:
    g = torch.Generator().manual_seed(3)
    x, y = (torch.randint(k, (60,), generator=g) for k in (3, 4))
    mask = (torch.arange(60) < 50).double()
    counts = torch.zeros(3, 4, dtype=torch.float64)
    for i, j in zip(x[:50], y[:50], strict=True):
        counts[i, j] += 1
    assert bool((counts.sum(dim=1) > 0).all())
    theta = random_block(4, 3, 4, 1, 1.0)[0]
    f, b = torch.eye(3, dtype=torch.float64)[x], torch.eye(4, dtype=torch.float64)[y]
    learned = Rule(name, iterations=2, delta=0.0)(theta, f, b, mask)
    torch.testing.assert_close(learned, counts / counts.sum(dim=1, keepdim=True), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_rows_outside_the_mask_change_nothing(name: str) -> None:
    theta, f, b, _ = random_block(5, 3, 2, 20, 1.0)
    mask = (torch.arange(20) % 2).double()
    rule = Rule(name, iterations=4)
    other_f, other_b = f.clone(), b.clone()
    other_f[::2], other_b[::2] = f[::2].flip(1), b[::2].flip(1)
    assert_same_up_to_rounding(rule(theta, f, b, mask), rule(theta, other_f, other_b, mask))
    torch.testing.assert_close(rule(theta, f, b, mask), rule(theta, f[1::2], b[1::2], torch.ones(10).double()))
    assert not torch.allclose(rule(theta, f, b, mask), rule(theta, f, b, torch.ones(20).double()))


def test_iterations_are_steps_of_ml_and_kl_alone() -> None:
    theta, f, b, mask = random_block(6, 3, 3, 20, 2.0)
    for name, step in (("ml", ml_step), ("kl", kl_step)):
        thrice = step(step(step(theta, f, b, mask), f, b, mask), f, b, mask)
        torch.testing.assert_close(Rule(name, iterations=3, delta=0.0)(theta, f, b, mask), thrice)
        assert not torch.allclose(Rule(name, iterations=1)(theta, f, b, mask), thrice)
    for name in ("vit", "var"):
        assert torch.equal(Rule(name, iterations=1)(theta, f, b, mask), Rule(name, iterations=9)(theta, f, b, mask))


@pytest.mark.parametrize("name", RULES)
def test_many_blocks_in_one_call_learn_as_they_would_alone(name: str) -> None:
    single = [random_block(seed, 3, 4, 15, 3.0) for seed in range(4)]
    mask = single[0][3]
    together = Rule(name)(*(torch.stack([s[i] for s in single]) for i in range(3)), mask)
    for i, (theta, f, b, _) in enumerate(single):
        torch.testing.assert_close(together[i], Rule(name)(theta, f, b, mask))


@pytest.mark.parametrize("name", RULES)
def test_a_state_never_seen_keeps_its_row_or_becomes_uniform(name: str) -> None:
    theta = torch.tensor([[0.3, 0.7], [0.2, 0.8]], dtype=torch.float64)
    f = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    b = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    assert_same_up_to_rounding(Rule(name, delta=0.0)(theta, f, b, one)[1], theta[1])
    if name == "var":
        assert Rule(name, delta=0.1)(theta, f, b, one)[1].tolist() == pytest.approx([0.5, 0.5])


def test_delta_is_the_smallest_entry_of_ml_and_kl() -> None:
    theta = torch.full((2, 2), 0.5, dtype=torch.float64)
    f = b = torch.eye(2, dtype=torch.float64)
    for name in ("ml", "kl"):
        learned = Rule(name, delta=1e-3)(theta, f, b, torch.ones(2).double())
        assert float(learned.min()) == pytest.approx(1e-3, rel=2e-3)
        torch.testing.assert_close(learned.sum(dim=1), torch.ones(2).double())


def test_a_course_of_a_single_block() -> None:
    _, f, b, mask = random_block(7, 3, 4, 40, 3.0)
    values, held_out, course = learn_block(f, b, mask, Rule("ml", iterations=7, delta=0.0), 12)
    assert values.shape == held_out.shape == (13,)
    assert torch.equal(course[0], torch.full((3, 4), 0.25, dtype=torch.float64))
    torch.testing.assert_close(course[2], ml_step(ml_step(course[0], f, b, mask), f, b, mask))
    assert bool((values.diff() >= -1e-9).all())
    torch.testing.assert_close(held_out[-1], block_log_likelihood(course[-1], f, b, 1 - mask))
    _, _, other = learn_block(f, b, mask, Rule("var"), 3)
    assert torch.equal(other[1], other[3])


sizes_of_spaces = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(sizes_of_spaces)
def test_product_space_matrices(sizes: list[int]) -> None:
    total = math.prod(sizes)
    states = list(itertools.product(*[range(s) for s in sizes]))  # the last variable runs fastest
    down, up = from_product(sizes), to_product(sizes)
    for j, size in enumerate(sizes):
        kronecker = torch.ones(1, 1, dtype=torch.float64)
        for k, other in enumerate(sizes):
            part = torch.eye(size) if k == j else torch.ones(other, 1)
            kronecker = torch.kron(kronecker, part.double())
        assert torch.equal(down[j], kronecker)
        assert down[j].argmax(dim=1).tolist() == [state[j] for state in states]
        assert down[j].shape == (total, size)
        torch.testing.assert_close(up[j], down[j].T * size / total)
        for matrix in (down[j], up[j]):
            torch.testing.assert_close(matrix.sum(dim=1), torch.ones(len(matrix), dtype=torch.float64))
        assert bool(((up[j] > 0).sum(dim=1) == total // size).all())
    joint = torch.stack([m[0] for m in up]).prod(dim=0)  # all variables in their first state
    assert int((joint > 0).sum()) == 1
    assert math.log(float(joint.max())) == pytest.approx(log_constant(sizes), abs=1e-9)


def test_bad_input() -> None:
    theta, f, b, mask = random_block(8, 3, 2, 5, 1.0)
    with pytest.raises(ArgumentError, match="name: expected one of 'ml', 'kl', 'vit', 'var', got 'em'"):
        Rule("em")
    with pytest.raises(ArgumentError, match="iterations: expected a whole number of at least 1, got 0"):
        Rule("ml", iterations=0)
    with pytest.raises(ArgumentError, match="delta: expected a non-negative number"):
        Rule("ml", delta="small")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"iterations: expected a whole number of at least 1, got 1\.5"):
        Rule("ml", iterations=1.5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="delta: expected a non-negative number"):
        Rule("ml", delta=-1.0)
    with pytest.raises(ShapeError, match=r"expected f \(…, N, 3\), b \(…, N, 2\)"):
        Rule("ml")(theta, b, f, mask)
    with pytest.raises(ShapeError, match="and a mask"):
        Rule("ml")(theta, f, b, mask[:-1])
