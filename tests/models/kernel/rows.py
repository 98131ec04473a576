"""Rows and graphs for kernel models: pen strokes, and a mixture of kinds of variables."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

from torchpbp import Continuous, LatentGraph, templates

NAN = float("nan")
WIDTH = 0.8


def strokes(rows: int, seed: int = 0, points: int = 5) -> dict[str, torch.Tensor]:
    """Pen points of a random walk; x and y of a point depend on each other."""
    rng = np.random.default_rng(seed)
    place = rng.normal(size=(rows, 2))
    table = {}
    for t in range(1, points + 1):
        place = 0.8 * place + 0.6 * rng.normal(size=(rows, 2))
        table[f"x{t}"] = torch.from_numpy(place[:, 0] + 0.3 * rng.normal(size=rows))
        table[f"y{t}"] = torch.from_numpy(place[:, 1] + 0.5 * place[:, 0] + 0.3 * rng.normal(size=rows))
    return table


def hidden_parts(rows: int = 12, seed: int = 5) -> dict[str, torch.Tensor]:
    """Rows in which each coordinate is hidden with its own probability, from nothing to nearly everything."""
    table = strokes(rows, seed)
    generator = torch.Generator().manual_seed(seed)
    share = torch.linspace(0, 0.9, rows)
    for v in table:
        table[v] = torch.where(torch.rand(rows, generator=generator) < share, NAN, table[v])
    return table


def stroke_graph(points: int = 5) -> LatentGraph:  # five: the smallest number with separators above more than one leaf
    return templates.pen_strokes(points, low=-9.0, high=9.0)


def clique_graph(points: int, reach: float) -> LatentGraph:
    """All coordinates in one clique without latents, from -reach to reach: its kernel model is a kernel density estimate."""
    names = [f"{axis}{t}" for t in range(1, points + 1) for axis in "xy"]
    domains = dict.fromkeys(names, Continuous(-reach, reach))
    return LatentGraph(itertools.combinations(names, 2), domains, (), directed=False)


def settings(**changes: Any) -> dict[str, Any]:
    return {"bandwidth": WIDTH, "positive": False, "dtype": torch.float64, **changes}


def mixed_graph() -> LatentGraph:
    variables = {"h": None, "x": Continuous(), "y": Continuous(-1.0, 1.5), "c": 3}
    return LatentGraph([("h", "x"), ("h", "y"), ("h", "c")], variables, ["h"])


def mixed(rows: int, seed: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    kind = rng.integers(3, size=rows)
    centre = np.array([-1.5, 0.0, 2.0])[kind]
    c = np.where(rng.random(rows) < 0.8, kind, rng.integers(3, size=rows))
    y = np.clip(0.4 * centre + 0.5 * rng.normal(size=rows), -1.0, 1.5)
    return {
        "x": torch.from_numpy(centre + 0.6 * rng.normal(size=rows)),
        "y": torch.from_numpy(y),
        "c": torch.from_numpy(c),
    }
