"""Other strokes from given ones: slanted, distorted."""

from dataclasses import replace

import pytest
import torch

from torchpbp.datasets import load_digits
from torchpbp.errors import ArgumentError, DataError, ShapeError
from torchpbp.experiments.train.distortions import (
    NONE,
    Distortions,
    distorted,
    resampled,
    slanted_copies,
)


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


AMOUNTS = {"rotation": 10.0, "shear": 0.2, "warp": 0.2, "jitter": 2.0, "resampling": 0.3}


def only(**amounts):
    return replace(NONE, varied=False, **amounts)


def test_distorted_strokes_fill_the_box_and_differ_from_row_to_row():
    strokes = load_digits().train_x[:1].repeat(300, 1)
    other = distorted(strokes, Distortions(), torch.Generator().manual_seed(0))
    assert other.shape == strokes.shape
    assert other.dtype == strokes.dtype
    points = other.reshape(300, 8, 2)
    assert torch.allclose(points.amin(dim=1), torch.zeros(300, 2), atol=1e-3)
    assert torch.allclose(points.amax(dim=1), torch.full((300, 2), 100.0), atol=1e-3)
    assert 1 < other.std(dim=0).mean() < 15
    assert (other.mean(dim=0) - strokes[0]).abs().mean() < 6  # another hand, the same digit


def test_varied_distortions_are_smaller_and_some_strokes_stay_nearly_as_they_were():
    strokes = load_digits().train_x[:1].repeat(400, 1)
    moved = {
        varied: (distorted(strokes, Distortions(varied=varied), torch.Generator().manual_seed(1)) - strokes)
        .abs()
        .mean(1)
        for varied in (False, True)
    }
    assert 0.35 < float(moved[True].mean() / moved[False].mean()) < 0.65
    assert int((moved[True] < 1).sum()) > 10 > int((moved[False] < 1).sum())


@pytest.mark.parametrize("kind", AMOUNTS)
def test_each_distortion_acts_alone_and_none_leaves_strokes_alone(kind):
    strokes = load_digits().train_x[:50]
    assert torch.allclose(distorted(strokes, NONE), strokes, atol=1e-3)
    moved = distorted(strokes, only(**{kind: AMOUNTS[kind]}), torch.Generator().manual_seed(0)) - strokes
    assert moved.abs().mean() > 0.5
    if kind == "shear":
        assert torch.allclose(moved[:, 1::2], torch.zeros(50, 8), atol=1e-3)  # y is not moved


def test_a_rotation_turns_by_what_was_drawn():
    square = torch.tensor([[0.0, 0, 100, 0, 100, 100, 0, 100, 50, 50, 0, 50, 50, 0, 100, 50]], dtype=torch.float64)
    turned = distorted(square, only(rotation=10.0), torch.Generator().manual_seed(5))
    angle = torch.randn(1, generator=torch.Generator().manual_seed(5)).double() * 10 * torch.pi / 180
    cos, sin = angle.cos(), angle.sin()
    x, y = square[:, 0::2] - 50, square[:, 1::2] - 50
    expected = torch.stack([cos * x - sin * y, sin * x + cos * y], dim=-1)
    low, high = expected.amin(dim=1, keepdim=True), expected.amax(dim=1, keepdim=True)
    assert torch.allclose(turned.reshape(1, 8, 2), 100 * (expected - low) / (high - low))


def test_resampled_points_lie_on_the_stroke_between_its_ends():
    line = torch.stack([torch.arange(8.0), 2 * torch.arange(8.0)], dim=1).expand(20, 8, 2)
    gaps = 0.5 * torch.randn(20, 7, generator=torch.Generator().manual_seed(0))
    moved = resampled(line, gaps)
    assert torch.allclose(moved[..., 1], 2 * moved[..., 0], atol=1e-5)
    assert torch.equal(moved[:, [0, -1]], line[:, [0, -1]])
    found = moved[..., 0].diff(dim=1)
    assert torch.allclose(found / found[:, :1], (gaps - gaps[:, :1]).exp(), atol=1e-4)  # distances are as asked for
    assert torch.allclose(resampled(line, torch.zeros(20, 7)), line, atol=1e-5)
    assert torch.equal(resampled(line[:, :2], gaps[:, :1]), line[:, :2])


def test_distortion_of_a_straight_line_is_finite():
    line = torch.tensor([[50.0, t] for t in range(0, 80, 10)]).reshape(1, 16)
    assert bool(distorted(line, NONE).isfinite().all())


def test_bad_distortions():
    with pytest.raises(ShapeError, match="2 x points"):
        distorted(torch.zeros(3, 15), Distortions())
    with pytest.raises(ArgumentError, match="shear: expected a non-negative number"):
        Distortions(shear=-1.0)
