"""Profiles of latents."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest

from torchpbp import PBP, DiscreteNetwork, plotting, templates
from torchpbp.errors import QueryError, StructureError


def test_cells_are_the_profiles() -> None:
    network = DiscreteNetwork.random(templates.naive_bayes(3, states=2, observed_states=3), seed=1)
    ax = plotting.plot_profiles(network, "h", variables=["x3", "x1"])
    (image,) = ax.images
    table = network.profiles("h")
    assert np.allclose(image.get_array(), np.concatenate([table.loc["x3"], table.loc["x1"]]).T)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["x3", "x1"]
    assert len(ax.get_yticklabels()) == 2
    plt.close(ax.figure)
    with pytest.raises(QueryError, match="expected observables to draw"):
        plotting.plot_profiles(network, "h", variables=["h"])
    with pytest.raises(QueryError, match="Expected the name of a latent"):
        plotting.plot_profiles(network, "x1")
    with pytest.raises(StructureError, match="tables of latents"):
        plotting.plot_profiles(PBP(network.graph), "h")
