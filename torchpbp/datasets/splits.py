"""Rows to learn from, rows to check with, and points to hide; by place or by seed, the same for every learner."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import DataError, ShapeError


def block_folds(n: int, k: int) -> list[tuple[Tensor, Tensor]]:
    """Cross-validation over contiguous blocks: each fold checks with one block and learns from the others.

    Where neighbouring rows belong together (samples of one session, digits by one writer), rows drawn at random for
    checking have close relatives among the others, and scores come out too high. Blocks keep most relatives together.
    In a file without such an order, like the pen digits, they are as good as random folds and need no seed.

    Args:
        n: number of rows.
        k: number of blocks; their lengths differ by at most one.

    Returns:
        k pairs of int64 row numbers (rows to learn from, rows to check with), ascending.
    """
    _whole("k", k, 2)
    _whole("n", n, 1)
    if n < k:
        raise DataError(f"block_folds: expected at least one row per block, got {n} rows for {k} blocks. Lower k.")
    borders = [i * n // k for i in range(k + 1)]
    rows = torch.arange(n)
    return [(torch.cat([rows[:start], rows[stop:]]), rows[start:stop]) for start, stop in pairwise(borders)]


def rows_per_class(y: Tensor, count: int, seed: int) -> Tensor:
    """Draw ``count`` rows of each class at random; with one seed, the rows of a smaller count are among the larger's.

    Args:
        y: (n,) class of each row.
        count: rows wanted of each class.
        seed: of the draw.

    Returns:
        (classes · count,) int64 row numbers, ascending.
    """
    if y.ndim != 1:
        raise ShapeError(f"rows_per_class: expected one class per row, got shape {tuple(y.shape)}.")
    _whole("count", count, 1)
    generator = np.random.default_rng(_whole("seed", seed, 0))
    drawn = []
    for value in sorted(set(y.tolist())):
        rows = (y == value).nonzero().flatten()
        if len(rows) < count:
            raise DataError(
                f"Class {value}: expected at least {count} rows to draw from, got {len(rows)}. Ask for fewer."
            )
        drawn.append(rows[torch.from_numpy(generator.permutation(len(rows))[:count])])
    return torch.cat(drawn).sort().values if drawn else torch.empty(0, dtype=torch.int64)


def hide_points(x: Tensor, count: int, seed: int) -> Tensor:
    """Hide ``count`` points of each row, drawn uniformly at random row by row: both coordinates become NaN.

    Args:
        x: (n, 2 · points) coordinates x1, y1, x2, y2, …; left as it is.
        count: points to hide in each row.
        seed: of the draw.

    Returns:
        (n, 2 · points) copy of ``x`` with NaN where hidden.
    """
    if x.ndim != 2 or x.shape[1] % 2 or x.shape[1] == 0:
        raise ShapeError(f"hide_points: expected shape (rows, 2 · points), got {tuple(x.shape)}.")
    if not x.is_floating_point():
        raise DataError(f"hide_points: expected floating-point coordinates, which can be NaN, got {x.dtype}.")
    points = x.shape[1] // 2
    if _whole("count", count, 0) > points:
        raise DataError(f"hide_points: expected at most {points} points to hide, got count={count}.")
    order = np.random.default_rng(_whole("seed", seed, 0)).random((len(x), points)).argsort(axis=1, kind="stable")
    hidden = torch.from_numpy(order < count).to(x.device)  # (n, points); each row of order is a random permutation
    return x.masked_fill(hidden.repeat_interleave(2, dim=1), float("nan"))


def _whole(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise DataError(f"{name}: expected a whole number of at least {least}, got {value!r}.")
    return int(value)
