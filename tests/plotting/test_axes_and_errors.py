"""What all drawings have in common: the axes they draw on, and their errors."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import torchpbp
from tests.plotting.pictures import DIAMOND, EVIDENCE, texts
from torchpbp import PBP, build_junction_tree, templates
from torchpbp.datasets import load_digits
from torchpbp.errors import ArgumentError, DataError, NotFittedError, QueryError, ShapeError, StructureError
from torchpbp.plotting import (
    plot_confusion,
    plot_diagnostics,
    plot_junction_tree,
    plot_learning_curves,
    plot_messages,
    plot_posteriors,
)
from torchpbp.plotting.digits import draw_digits

DRAWN: dict[str, Any] = {
    "tree": lambda m, ax: plot_junction_tree(m, ax=ax),
    "messages": lambda m, ax: plot_messages(m, {"a1": [2]}, ax=ax),
    "posteriors": lambda m, ax: plot_posteriors(m, {"a1": [2]}, truth=DIAMOND, ax=ax),
    "diagnostics": lambda m, ax: plot_diagnostics(m, ax=ax),
    "curves": lambda m, ax: plot_learning_curves(pd.DataFrame({"epoch": [0, 1], "loss": [2.0, 1.0]}), "loss", ax=ax),
    "confusion": lambda m, ax: plot_confusion([[3, 1], [0, 4]], ax=ax),
    "digits": lambda m, ax: draw_digits(load_digits().test_x[:3].numpy(), ax),
}


@pytest.mark.parametrize("name", DRAWN)
def test_the_axes_given_are_drawn_on_and_nothing_else_changes(name: str, model: PBP) -> None:
    figure = Figure(figsize=(6, 4))  # without pyplot: no window, no global list of figures
    mine, other = figure.subplots(1, 2)
    settings = dict(matplotlib.rcParams)
    assert DRAWN[name](model, mine) is mine
    assert plt.get_fignums() == []
    assert dict(matplotlib.rcParams) == settings
    assert not other.has_data()
    assert not other.texts
    figure.canvas.draw()
    own = DRAWN[name](model, None)
    assert plt.get_fignums() == [own.figure.number]


@pytest.mark.parametrize("name", ["messages", "posteriors", "diagnostics"])
def test_models_must_be_fitted(name: str) -> None:
    with pytest.raises(NotFittedError, match=r"not fitted yet. Call fit\(data\)"):
        DRAWN[name](PBP(DIAMOND.graph), None)
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda m: plot_junction_tree("tree"),
            StructureError,
            "Expected a PBP, a JunctionTree or a LatentGraph .* got str",
        ),
        (lambda m: plot_junction_tree(m, core_groups={99: ("a1",)}), StructureError, r"nodes 1 to 13, got \[99\]"),
        (lambda m: plot_junction_tree(build_junction_tree(templates.hmm(300))), StructureError, "too large to draw"),
        (lambda m: plot_messages(DIAMOND), StructureError, "expected a PBP model, got DiscreteNetwork"),
        (lambda m: plot_messages(m, EVIDENCE, row=2), ShapeError, "row: expected 0 to 1, .* got 2"),
        (lambda m: plot_messages(m, {"A": [0]}), QueryError, "it is latent"),
        (lambda m: plot_posteriors(m.tree), StructureError, "Expected a model that answers .* got JunctionTree"),
        (lambda m: plot_posteriors(m, truth=3), StructureError, "Expected a model that answers .* got int"),
        (
            lambda m: plot_posteriors(m, {"a1": [0]}, variables=["a1"]),
            QueryError,
            "no posterior of 'a1': it is observed",
        ),
        (
            lambda m: plot_posteriors(m, variables=["z"]),
            QueryError,
            "no posterior of 'z': the model can be asked for a1",
        ),
        (lambda m: plot_posteriors(m, {key: [0] for key in m.graph.observed}), QueryError, "nothing is left to draw"),
        (lambda m: plot_posteriors(m, truth={"a1": [0.5, 0.5]}), ShapeError, "'a1': expected 6 probabilities, got"),
        (lambda m: plot_posteriors(m, truth={"a1": 7}), QueryError, "'a1': expected one of 0, 1, .* got 7"),
        (lambda m: plot_diagnostics(m.graph), StructureError, "expected a PBP model, got LatentGraph"),
        (lambda m: plot_diagnostics(m, most=0), ArgumentError, "most: expected a whole number of at least 1, got 0"),
        (lambda m: plot_learning_curves(pd.DataFrame({"epoch": [1]}), "kl"), DataError, "no column 'kl'; .* epoch"),
        (
            lambda m: plot_learning_curves(pd.DataFrame({"epoch": [1], "kl": ["low"]}), "kl"),
            DataError,
            "column 'kl' holds .*, expected numbers",
        ),
        (
            lambda m: plot_learning_curves(pd.DataFrame({"epoch": [1], "kl": [np.nan]}), "kl"),
            DataError,
            "Nothing to draw",
        ),
        (lambda m: plot_confusion([0, 1], [0]), ShapeError, r"got \(2,\) and \(1,\)"),
        (lambda m: plot_confusion([], []), DataError, "at least one row"),
        (lambda m: plot_confusion([0, 1], [0, 1], names=[0]), DataError, r"leaves out \[1\]"),
        (lambda m: plot_confusion(np.zeros((2, 3))), ShapeError, r"expected shape \(classes, classes\), got \(2, 3\)"),
        (lambda m: plot_confusion(np.zeros(())), ShapeError, "expected shape"),
        (lambda m: plot_confusion(-np.eye(2)), DataError, "negative or non-finite"),
        (lambda m: plot_confusion([[np.nan]]), DataError, "negative or non-finite"),
        (lambda m: plot_confusion(np.eye(2), names=["a"]), ShapeError, "expected 2 names, one per class, got 1"),
    ],
)
def test_what_cannot_be_drawn_raises(call: Any, error: type[Exception], message: str, model: PBP) -> None:
    with pytest.raises(error, match=message):
        call(model)
    assert plt.get_fignums() == []


@pytest.mark.slow
def test_the_library_offers_plotting_without_loading_matplotlib() -> None:
    code = (
        "import sys, torchpbp; torchpbp.plotting.plot_messages; "
        "print('matplotlib' in sys.modules, 'lightning' in sys.modules)"
    )
    folder = Path(torchpbp.__file__).parents[1]
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=True)
    assert result.stdout.split() == ["False", "False"]


def test_the_figure_of_the_readme_can_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(__file__).parents[2] / "scripts" / "make_figures.py"
    specification = importlib.util.spec_from_file_location("make_figures", path)
    assert specification is not None
    assert specification.loader is not None
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    monkeypatch.setattr(script, "SIZES", (200, 20_000))
    figure = script.draw(networks=1)
    messages, posteriors, curve = figure.axes
    assert len(messages.child_axes) == 13
    assert texts(posteriors) == ["a2", "b1", "c1", "c2", "d1", "d2"]
    few, many = curve.containers[0][0].get_ydata()
    assert many < few
