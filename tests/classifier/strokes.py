"""Rows of pen digits, and a classifier of them."""

import numpy as np
import torch

from torchpbp import Continuous, GenerativeClassifier, KernelPBP, LatentGraph, templates
from torchpbp.datasets import load_digits, rows_per_class

NAN = float("nan")


def digits(classes, count, seed=0):
    """Rows of a few digits from the bundled training set: features, digits."""
    data = load_digits()
    chosen = torch.isin(data.train_y, torch.tensor(classes)).nonzero().flatten()
    rows = chosen[rows_per_class(data.train_y[chosen], count, seed)]
    return data.train_x[rows].numpy(), data.train_y[rows].numpy()


def strokes(**options):
    return GenerativeClassifier(templates.pen_strokes(), KernelPBP, {"bandwidth": 20.0, **options})


def mixed_graph():
    variables = {"h": 2, "a": Continuous(), "b": 3, "c": Continuous()}
    return LatentGraph([("h", "a"), ("h", "b"), ("h", "c")], variables, ["h"])


def mixed(count, seed=0):
    """Two classes of equal centre: one narrow, one wide, which also prefer different states."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=count)
    scale = np.array([0.3, 3.0])[y]
    b = (rng.random(count)[:, None] > np.array([[0.6, 0.8], [0.2, 0.4]])[y]).sum(axis=1)
    return np.stack([scale * rng.normal(size=count), b, scale * rng.normal(size=count)], axis=1), y
