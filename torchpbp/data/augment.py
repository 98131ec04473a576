"""More training strokes from the ones there are: hands differ most in how far their writing leans."""

from __future__ import annotations

import torch
from torch import Tensor

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
