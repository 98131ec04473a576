"""More training strokes from the ones there are: slanted, distorted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.datasets.digits import LARGEST
from torchpbp.errors import DataError, ShapeError
from torchpbp.settings import Settings, flag, non_negative, setting


def slanted_copies(points: Tensor, copies: int, slant: float, seed: int = 0) -> Tensor:
    """Copies of pen strokes with a random slant, brought back into the 0-100 box as the originals were.

    Each copy moves x by ``s · y`` with s drawn from a normal distribution, then scales both axes to their full range.

    Args:
        points: (n, 16) strokes x1, y1, …, x8, y8.
        copies: slanted copies of each stroke.
        slant: standard deviation of s; 0.15 leans a vertical line by about 9 degrees.
        seed: of the slants.

    Returns:
        (n · (copies + 1), 16): the originals, then the copies, in the same order each time.
    """
    if points.ndim != 2 or points.shape[1] % 2:
        raise ShapeError(f"points: expected shape (n, 2 x points), got {tuple(points.shape)}.")
    if copies < 0 or not slant >= 0:
        raise DataError(f"Expected copies >= 0 and slant >= 0, got copies={copies}, slant={slant}.")
    generator = torch.Generator().manual_seed(seed)
    parts = [points]
    strokes = points.double().reshape(len(points), -1, 2)
    for _ in range(copies):
        lean = slant * torch.randn(len(points), 1, generator=generator, dtype=torch.float64)
        moved = torch.stack([strokes[..., 0] + lean * strokes[..., 1], strokes[..., 1]], dim=-1)
        low, high = moved.amin(dim=1, keepdim=True), moved.amax(dim=1, keepdim=True)
        boxed = (moved - low) * (100 / (high - low).clamp(min=1e-9))
        parts.append(boxed.reshape(len(points), -1).to(points.dtype))
    return torch.cat(parts)


@dataclass(frozen=True)
class Distortions(Settings):
    """How far :func:`distorted` strokes are from the originals: standard deviations of normal draws, new ones for each stroke.

    Args:
        rotation: degrees.
        shear: by how much x moves per unit of y.
        warp: bend of each axis by a parabola that leaves its ends in place; 0.1 moves the middle by a tenth of the
            half-width.
        jitter: of each coordinate by itself, in units of the data.
        resampling: of the logarithms of the distances between neighbouring points along the stroke, which keeps its form
            and its ends.
        varied: multiply all amounts of a stroke by a number drawn uniformly between 0 and 1, so that some strokes stay
            nearly as they were.
    """

    rotation: float = setting(12.0, non_negative())
    shear: float = setting(0.3, non_negative())
    warp: float = setting(0.15, non_negative())
    jitter: float = setting(3.0, non_negative())
    resampling: float = setting(0.15, non_negative())
    varied: bool = setting(True, flag())


NONE = Distortions(rotation=0.0, shear=0.0, warp=0.0, jitter=0.0, resampling=0.0)
"""Strokes stay as they are."""


def distorted(points: Tensor, amounts: Distortions, generator: torch.Generator | None = None) -> Tensor:
    """Each pen stroke as another hand might have written it: turned, slanted, warped, trembling, with points elsewhere.

    The result fills the 0-100 box on both axes, as the originals do; a stroke without width or height keeps that axis at 0.

    Args:
        points: (n, 2 · points) complete strokes x1, y1, x2, y2, …
        amounts: how far.
        generator: of the draws, on the CPU; torch's global one by default.

    Returns:
        (n, 2 · points) strokes of the same type on the same device.
    """
    if points.ndim != 2 or points.shape[1] % 2:
        raise ShapeError(f"points: expected shape (n, 2 x points), got {tuple(points.shape)}.")
    n = len(points)

    def draw(*shape: int) -> Tensor:
        # Drawn on the CPU whatever the device, so that one seed means one set of strokes everywhere.
        return torch.randn(shape, generator=generator).to(points)

    scale = torch.rand(n, generator=generator).to(points) if amounts.varied else points.new_ones(n)
    half = LARGEST / 2
    strokes = points.reshape(n, -1, 2) / half - 1  # (n, points, 2) within [-1, 1]
    angle, lean = draw(n) * scale * (amounts.rotation * math.pi / 180), draw(n) * scale * amounts.shear
    across = torch.stack([angle.cos(), -angle.sin() + lean], dim=1)
    up = torch.stack([angle.sin(), angle.cos()], dim=1)
    strokes = torch.einsum("nij,ntj->nti", torch.stack([across, up], dim=1), strokes)
    wide = scale.reshape(n, 1, 1)
    strokes = strokes + amounts.warp * wide * draw(n, 1, 2) * (1 - strokes.clamp(-1, 1).square())
    strokes = resampled(strokes, amounts.resampling * scale.unsqueeze(1) * draw(n, max(0, strokes.shape[1] - 1)))
    strokes = strokes + amounts.jitter / half * wide * draw(*strokes.shape)
    low, high = strokes.amin(dim=1, keepdim=True), strokes.amax(dim=1, keepdim=True)
    return ((strokes - low) * (LARGEST / (high - low).clamp(min=1e-6))).reshape(n, -1)


def resampled(strokes: Tensor, log_gaps: Tensor) -> Tensor:
    """Points at other places of the same polygons; the first and the last stay.

    Args:
        strokes: (n, points, 2).
        log_gaps: (n, points - 1) logarithms of the distances between neighbours along the stroke, up to a common factor.

    Returns:
        (n, points, 2).
    """
    steps = strokes.shape[1] - 1
    if steps < 2:
        return strokes
    gaps = log_gaps.exp()
    places = gaps.cumsum(dim=1)[:, :-1] * (steps / gaps.sum(dim=1, keepdim=True))  # (n, points - 2) inner ones
    before = places.floor().clamp(0, steps - 1).long()
    share = (places - before).unsqueeze(2)
    index = before.unsqueeze(2).expand(-1, -1, strokes.shape[2])
    inner = strokes.gather(1, index) * (1 - share) + strokes.gather(1, index + 1) * share
    return torch.cat([strokes[:, :1], inner, strokes[:, -1:]], dim=1)
