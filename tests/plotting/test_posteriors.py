"""Pictures of posteriors show what the model answers."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

from tests.plotting.pictures import DIAMOND, EVIDENCE, heights, texts
from torchpbp import EM, PBP, DiscreteNetwork, KernelPBP, templates
from torchpbp.plotting import plot_posteriors


def test_posteriors_are_those_of_the_model_and_the_truth(model: PBP) -> None:
    ax = plot_posteriors(model, EVIDENCE, truth=DIAMOND, row=0)
    names = [v for v in DIAMOND.graph.observed if v not in EVIDENCE]
    assert texts(ax) == names
    expected = [float(p) for v in names for p in model.posterior(v, EVIDENCE)[0].detach()]
    assert heights(ax) == pytest.approx(expected)
    diamonds = [line for line in ax.lines if line.get_marker() == "D"]
    drawn = [y for line in diamonds for y in line.get_ydata()]
    assert drawn == pytest.approx([float(p) for v in names for p in DIAMOND.posterior(v, EVIDENCE)[0]])
    assert texts(ax, minor=True) == [str(s) for v in names for s in range(6)]


def test_the_row_decides_which_variables_are_left(model: PBP) -> None:
    assert "b1" in texts(plot_posteriors(model, EVIDENCE, row=1))
    chosen = plot_posteriors(model, EVIDENCE, variables=["d1", "a2"])
    assert texts(chosen) == ["d1", "a2"]
    assert heights(chosen)[6:] == pytest.approx(model.posterior("a2", EVIDENCE)[0].tolist())


def test_labels_and_a_curve_for_a_continuous_variable(fruit: PBP) -> None:
    ax = plot_posteriors(fruit, {"colour": ["green"]}, truth={"taste": "mild", "size": 2.0})
    assert texts(ax) == ["size", "taste"]
    assert texts(ax, minor=True)[2:] == ["sour", "mild", "sweet"]
    assert "colour = green" in ax.get_title()
    density = fruit.posterior("size", {"colour": ["green"]})
    curve = ax.lines[0].get_ydata()
    assert curve == pytest.approx((density.values[0] / density.values.max()).detach().numpy())
    assert heights(ax) == pytest.approx(fruit.posterior("taste", {"colour": ["green"]})[0].tolist())
    (diamond,) = [line for line in ax.lines if line.get_marker() == "D"]
    assert np.array_equal(diamond.get_ydata(), [np.nan, 1.0, np.nan], equal_nan=True)
    (true_line,) = [line for line in ax.lines if line.get_linestyle() == "--"]
    low, high = float(density.points[0]), float(density.points[-1])
    assert true_line.get_xdata()[0] == pytest.approx(-0.4 + 0.8 * (2.0 - low) / (high - low))


@pytest.mark.parametrize("kind", ["EM", "KernelPBP", "DiscreteNetwork"])
def test_other_models_are_asked_as_well(kind: str) -> None:
    network = DiscreteNetwork.random(templates.naive_bayes(3, 2, 3), seed=0)
    data = network.sample(200, seed=1)
    first, second, *_ = network.graph.observed
    made: dict[str, Any] = {
        "EM": lambda: EM(network.graph, restarts=1, max_steps=3, progress=False).fit(data),
        "KernelPBP": lambda: KernelPBP(network.graph).fit(data),
        "DiscreteNetwork": lambda: network,
    }
    asked = made[kind]()
    ax = plot_posteriors(asked, {first: [1]}, variables=[second])
    assert heights(ax) == pytest.approx(asked.posterior(second, {first: [1]})[0].tolist())


def test_names_of_variables_stay_clear_of_long_labels() -> None:
    network = DiscreteNetwork.random(templates.naive_bayes(3, states=2, observed_states=2), seed=0)
    network.labels = dict.fromkeys(network.graph.observed, ("i", "WWWWWWWW"))  # the widest letter there is
    ax = plot_posteriors(network)
    ax.figure.canvas.draw()  # type: ignore[attr-defined]
    labels = [text.get_window_extent().y0 for text in ax.get_xticklabels(minor=True)]
    names = [text.get_window_extent().y1 for text in ax.get_xticklabels()]
    assert max(names) < min(labels)


def test_the_legend_has_the_marks_that_are_drawn_and_covers_no_curve(model: PBP, fruit: PBP) -> None:
    colour = {"colour": ["green"]}
    for ax, entries, line, marker, label in (
        (plot_posteriors(model, EVIDENCE, truth=DIAMOND), ["model", "truth"], "None", "D", "probability"),
        (plot_posteriors(fruit, colour), ["model", "mean"], ":", "None", "probability; density, scaled"),
        (
            plot_posteriors(fruit, colour, truth={"taste": "mild", "size": 2.0}),
            ["model", "mean", "truth"],
            "--",
            "D",
            "probability; density, scaled",
        ),
        (
            plot_posteriors(fruit, colour, truth={"size": 2.0}, variables=["size"]),
            ["model", "mean", "truth"],
            "--",
            "None",
            "density, scaled",
        ),
    ):
        legend = ax.get_legend()
        assert [t.get_text() for t in legend.get_texts()] == entries
        last = legend.get_lines()[-1]
        assert (str(last.get_linestyle()), str(last.get_marker() or "None")) == (line, marker)
        assert ax.get_ylabel() == label
        if "mean" in entries:
            ax.figure.canvas.draw()  # type: ignore[attr-defined]
            box = legend.get_window_extent().transformed(ax.transData.inverted())
            assert box.y0 > 1.0  # the height of every curve
            assert box.x0 > ax.get_xlim()[0]
    assert plot_posteriors(model, EVIDENCE).get_legend() is None
