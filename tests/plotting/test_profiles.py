"""Pictures of profiles show the tables of a latent."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
import pytest

matplotlib.use("Agg")

from torchpbp import PBP, DiscreteNetwork, LatentGraph, MaximumLikelihood, templates
from torchpbp.errors import QueryError, StructureError
from torchpbp.plotting import plot_profiles

TRUTH = DiscreteNetwork.random(templates.naive_bayes(3, 2, 3), seed=1)


def test_profiles_are_those_of_the_model() -> None:
    rows = TRUTH.sample_frame(500, seed=0)
    rows["x1"] = pd.Categorical.from_codes(rows["x1"].tolist(), ["no", "perhaps", "yes"])
    graph = LatentGraph.from_frame(rows, latent={"class": 2})
    model = MaximumLikelihood(graph, progress=False).fit(rows)
    ax = plot_profiles(model, "class", variables=["x2", "x1"])
    expected = model.profiles("class").loc[["x2", "x1"]]
    assert np.allclose(np.asarray(ax.images[0].get_array()), expected)
    assert [t.get_text() for t in ax.get_yticklabels()] == [f"x2 = {i}" for i in range(3)] + [
        "x1 = no",
        "x1 = perhaps",
        "x1 = yes",
    ]
    shares = model.posterior("class")[0]
    assert ax.get_xticklabels()[0].get_text() == f"0\n({float(shares[0]):.0%})"
    assert len(ax.lines) == 1
    with pytest.raises(QueryError, match=r"\['y'\] are not observables"):
        plot_profiles(model, "class", variables=["y"])


def test_models_without_hidden_tables_raise() -> None:
    with pytest.raises(StructureError, match=r"expected a model with hidden tables, .* got PBP"):
        plot_profiles(PBP(TRUTH.graph), "h")  # type: ignore[arg-type]
