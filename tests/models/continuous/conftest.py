"""Models that several files ask; none of them changes one."""

import pytest

from tests.models.continuous.mixed_model import mixed, mixed_graph
from torchpbp import PBP


@pytest.fixture(scope="session")
def model():
    return PBP(mixed_graph()).fit(mixed(20_000, 0))


@pytest.fixture(scope="session")
def widths(model):
    return {v: float(model.observables[v].map.width) for v in "xy"}


@pytest.fixture(scope="session")
def rough():
    """Few rows and hardly a penalty: an estimate full of negative values."""
    return PBP(mixed_graph(), ridge=(1e-3, 1e-3)).fit(mixed(40, 3))
