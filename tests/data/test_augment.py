"""Slanted copies of pen strokes."""

import pytest
import torch

from torchpbp.data import load_digits
from torchpbp.data.augment import slanted_copies
from torchpbp.errors import DataError, ShapeError


def test_copies_lean_and_stay_in_the_box():
    strokes = load_digits().train_x[:200]
    more = slanted_copies(strokes, copies=2, slant=0.15, seed=1)
    assert more.shape == (600, 16)
    assert more.dtype == strokes.dtype
    assert torch.equal(more[:200], strokes)
    copies = more[200:].reshape(-1, 8, 2)
    assert torch.allclose(copies.amin(dim=1), torch.zeros(400, 2), atol=1e-4)
    assert torch.allclose(copies.amax(dim=1), torch.full((400, 2), 100.0), atol=1e-4)
    assert torch.allclose(copies[..., 1], strokes.reshape(-1, 8, 2)[..., 1].repeat(2, 1), atol=1e-4)  # y is not moved
    moved = (copies[..., 0] - strokes.reshape(-1, 8, 2)[..., 0].repeat(2, 1)).abs().mean()
    assert 1 < moved < 15


def test_a_known_lean_is_undone_by_its_opposite():
    strokes = load_digits().train_x[:50].double()
    leaned = slanted_copies(strokes, copies=1, slant=0.2, seed=3)[50:]
    lean = 0.2 * torch.randn(50, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x, y = strokes[:, 0::2], strokes[:, 1::2]
    expected = x + lean * y
    expected = 100 * (expected - expected.amin(1, keepdim=True)) / (expected.amax(1) - expected.amin(1)).unsqueeze(1)
    assert torch.allclose(leaned[:, 0::2], expected)


def test_repeatable_and_harmless_without_copies_or_slant():
    strokes = load_digits().train_x[:20]
    assert torch.equal(slanted_copies(strokes, 1, 0.1, seed=2), slanted_copies(strokes, 1, 0.1, seed=2))
    assert torch.equal(slanted_copies(strokes, 0, 0.1), strokes)
    assert torch.allclose(slanted_copies(strokes, 1, 0.0)[20:], strokes, atol=1e-4)


def test_bad_input():
    with pytest.raises(ShapeError, match="2 x points"):
        slanted_copies(torch.zeros(3, 15), 1, 0.1)
    with pytest.raises(DataError, match="copies >= 0"):
        slanted_copies(torch.zeros(3, 16), -1, 0.1)
