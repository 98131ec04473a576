"""Models to draw; no figure outlives its test."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib
import numpy as np
import pandas as pd
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from tests.plotting.pictures import DIAMOND
from torchpbp import PBP, Continuous, LatentGraph


@pytest.fixture(scope="session")
def model() -> PBP:
    return PBP(DIAMOND.graph).fit(DIAMOND.sample(5_000, seed=2))


@pytest.fixture(scope="session")
def fruit() -> PBP:
    """Labels, numbers and a continuous variable in one model."""
    domains = {"h": 2, "colour": 2, "size": Continuous(), "taste": 3}
    rng = np.random.default_rng(0)
    h = rng.integers(0, 2, 300)
    table = pd.DataFrame(
        {
            "colour": pd.Categorical.from_codes(np.where(rng.random(300) < 0.9, h, 1 - h), ["red", "green"]),
            "size": rng.normal(3.0 * h, 0.5),
            "taste": pd.Categorical.from_codes(h + rng.integers(0, 2, 300), ["sour", "mild", "sweet"]),
        }
    )
    return PBP(LatentGraph([("h", v) for v in domains if v != "h"], domains, ["h"])).fit(table)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    plt.close("all")  # of other tests
    yield
    plt.close("all")
