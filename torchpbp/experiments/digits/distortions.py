"""More training strokes from the ones there are: hands differ most in how far their writing leans."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchpbp.datasets.digits import LARGEST
from torchpbp.errors import DataError, ShapeError


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


def distorted(
    points: Tensor,
    rotation: float,
    shear: float,
    warp: float,
    jitter: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Each pen stroke as another hand might have written it: turned, slanted, warped and trembling a little.

    All amounts are standard deviations of normal draws, new ones for each stroke. The result fills the 0-100 box on both
    axes, as the originals do; a stroke without width or height keeps that axis at 0.

    Args:
        points: (n, 2 · points) complete strokes x1, y1, x2, y2, …
        rotation: degrees.
        shear: by how much x moves per unit of y.
        warp: bend of each axis by a parabola that leaves its ends in place; 0.1 moves the middle by a tenth of the
            half-width.
        jitter: of each coordinate by itself, in units of the data.
        generator: of the draws, on the CPU; torch's global one by default.

    Returns:
        (n, 2 · points) strokes of the same type on the same device.
    """
    if points.ndim != 2 or points.shape[1] % 2:
        raise ShapeError(f"points: expected shape (n, 2 x points), got {tuple(points.shape)}.")
    amounts = {"rotation": rotation, "shear": shear, "warp": warp, "jitter": jitter}
    for name, amount in amounts.items():
        if not amount >= 0:
            raise DataError(f"{name}: expected a standard deviation of at least 0, got {amount}.")
    n = len(points)

    def draw(*shape: int) -> Tensor:
        # Drawn on the CPU whatever the device, so that one seed means one set of strokes everywhere.
        return torch.randn(shape, generator=generator).to(points)

    half = LARGEST / 2
    strokes = points.reshape(n, -1, 2) / half - 1  # (n, points, 2) within [-1, 1]
    angle, lean = draw(n) * (rotation * math.pi / 180), draw(n) * shear
    across = torch.stack([angle.cos(), -angle.sin() + lean], dim=1)
    up = torch.stack([angle.sin(), angle.cos()], dim=1)
    strokes = torch.einsum("nij,ntj->nti", torch.stack([across, up], dim=1), strokes)
    strokes = strokes + warp * draw(n, 1, 2) * (1 - strokes.clamp(-1, 1).square())
    strokes = strokes + jitter / half * draw(*strokes.shape)
    low, high = strokes.amin(dim=1, keepdim=True), strokes.amax(dim=1, keepdim=True)
    return ((strokes - low) * (LARGEST / (high - low).clamp(min=1e-6))).reshape(n, -1)


def hidden_at_random(points: Tensor, share: float, most: int, generator: torch.Generator | None = None) -> Tensor:
    """Hide 1 to ``most`` points (NaN) in a random ``share`` of the strokes: practice for evidence with missing values.

    Args:
        points: (n, 2 · points) strokes.
        share: of the strokes, from 0 to 1; the others stay complete.
        most: points to hide in one stroke; each number from 1 to this is as likely.
        generator: of the draws, on the CPU; torch's global one by default.
    """
    if points.ndim != 2 or points.shape[1] % 2:
        raise ShapeError(f"points: expected shape (n, 2 x points), got {tuple(points.shape)}.")
    n, count = len(points), points.shape[1] // 2
    if not 0 <= share <= 1:
        raise DataError(f"share: expected a number from 0 to 1, got {share}.")
    if not 1 <= most <= count:
        raise DataError(f"most: expected 1 to {count} points to hide, got {most}.")
    numbers = torch.randint(1, most + 1, (n, 1), generator=generator)
    numbers = torch.where(torch.rand(n, 1, generator=generator) < share, numbers, 0)
    ranks = torch.rand(n, count, generator=generator).argsort(dim=1)  # each row a random permutation
    hidden = (ranks < numbers).repeat_interleave(2, dim=1)
    return points.masked_fill(hidden.to(points.device), float("nan"))
