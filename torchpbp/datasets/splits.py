"""Splits into training and validation rows, and points to hide: by seed, the same for every learner."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import ArgumentError, DataError, ShapeError
from torchpbp.settings import whole


def cell_folds(x: Tensor, y: Tensor, cells: int, k: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Cross-validation over k-means cells: each fold validates on whole cells of every class and trains on the others.

    Validation rows differ from all training rows of their class in kind, as the rows of new writers do; random rows have
    near copies among the training rows, on which all settings look equally good.

    Args:
        x: (n, columns) complete rows.
        y: (n,) class of each row.
        cells: of each class.
        k: number of folds; each validates on ``cells / k`` cells of each class.
        seed: of the cells and of their order.

    Returns:
        k pairs of int64 row numbers (training rows, validation rows), ascending.
    """
    from sklearn.cluster import KMeans  # takes a second to import

    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ShapeError(
            f"cell_folds: expected (n, columns) and (n,), got shapes {tuple(x.shape)} and {tuple(y.shape)}."
        )
    k = whole(2).check("k", k)
    if whole(k).check("cells", cells) % k:
        raise ArgumentError(f"cells: expected a multiple of the {k} folds, got {cells}.")
    generator = np.random.default_rng(whole(0).check("seed", seed))
    fold = torch.empty(len(y), dtype=torch.int64)
    for value in sorted(set(y.tolist())):
        rows = (y == value).nonzero().flatten()
        if len(rows) < cells:
            raise DataError(f"Class {value}: expected at least {cells} rows for as many cells, got {len(rows)}.")
        means = KMeans(cells, n_init=1, random_state=int(generator.integers(2**31))).fit(x[rows].double().numpy())
        dealt = generator.permutation(cells) % k  # fold of each cell
        fold[rows] = torch.from_numpy(dealt[means.labels_])
    return [((fold != i).nonzero().flatten(), (fold == i).nonzero().flatten()) for i in range(k)]


def rows_per_class(y: Tensor, count: int, seed: int) -> Tensor:
    """Draw ``count`` rows of each class at random; with the same seed, a smaller count gives a subset of a larger one.

    Args:
        y: (n,) class of each row.
        count: rows of each class.
        seed: of the draw.

    Returns:
        (classes · count,) int64 row numbers, ascending.
    """
    if y.ndim != 1:
        raise ShapeError(f"rows_per_class: expected one class per row, got shape {tuple(y.shape)}.")
    count = whole(1).check("count", count)
    generator = np.random.default_rng(whole(0).check("seed", seed))
    drawn = []
    for value in sorted(set(y.tolist())):
        rows = (y == value).nonzero().flatten()
        if len(rows) < count:
            raise DataError(
                f"Class {value}: expected at least {count} rows to draw from, got {len(rows)}. Reduce the count."
            )
        drawn.append(rows[torch.from_numpy(generator.permutation(len(rows))[:count])])
    return torch.cat(drawn).sort().values if drawn else torch.empty(0, dtype=torch.int64)


def hide_points(x: Tensor, count: int, seed: int) -> Tensor:
    """Hide ``count`` points of each row, drawn uniformly at random row by row: both coordinates become NaN.

    Args:
        x: (n, 2 · points) coordinates x1, y1, x2, y2, …; not modified.
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
    if whole(0).check("count", count) > points:
        raise ArgumentError(f"hide_points: expected at most {points} points to hide, got count={count}.")
    order = np.random.default_rng(whole(0).check("seed", seed)).random((len(x), points)).argsort(axis=1, kind="stable")
    hidden = torch.from_numpy(order < count).to(x.device)  # (n, points); each row of order is a random permutation
    return x.masked_fill(hidden.repeat_interleave(2, dim=1), float("nan"))
