"""Learning curves, confusion and diagnostics show the numbers they were given."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch

matplotlib.use("Agg")

from tests.plotting.pictures import DIAMOND, texts
from torchpbp import PBP
from torchpbp.plotting import plot_confusion, plot_diagnostics, plot_learning_curves


def test_learning_curves_average_repeats(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {
            "learner": ["pbp", "pbp", "pbp", "em", "em"],
            "rows": [1000, 100, 100, 100, 1000],
            "kl": [0.01, 0.1, 0.3, 0.5, np.nan],
        }
    )
    table.to_csv(tmp_path / "metrics.csv", index=False)
    for source in (table, tmp_path / "metrics.csv", str(tmp_path / "metrics.csv")):
        ax = plot_learning_curves(source, "kl", "rows", by="learner")
        (pbp, _, (bars,)), (em, _, _) = ax.containers
        assert pbp.get_xdata().tolist() == [100, 1000]
        assert pbp.get_ydata() == pytest.approx([0.2, 0.01])
        assert em.get_xdata().tolist() == [100]
        low, high = bars.get_segments()[0][:, 1]
        assert (high - low) / 2 == pytest.approx(0.1)  # standard error of 0.1 and 0.3
        assert [t.get_text() for t in ax.get_legend().get_texts()] == ["pbp", "em"]
        assert ax.get_xscale() == "linear"  # exactly a decade, not more
        assert ax.get_yscale() == "log"


def test_losses_of_a_training_log_are_a_line_each() -> None:
    log = pd.DataFrame({"epoch": [0, 0, 1, 1], "train": [3.0, np.nan, 2.0, np.nan], "val": [np.nan, 4.0, np.nan, 3.5]})
    ax = plot_learning_curves(log, ["train", "val"])
    assert [c[0].get_ydata().tolist() for c in ax.containers] == [[3.0, 2.0], [4.0, 3.5]]
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["train", "val"]


def test_given_errors_are_drawn_as_they_are() -> None:
    table = pd.DataFrame({"rows": [1, 2], "accuracy": [0.5, 0.6], "standard_error": [0.1, np.nan]})
    ax = plot_learning_curves(table, "accuracy", "rows", error="standard_error")
    spans = [s[1, 1] - s[0, 1] for s in ax.containers[0][2][0].get_segments()]
    assert spans == pytest.approx([0.2, 0.0])


def test_confusion_is_counted_from_classes() -> None:
    ax = plot_confusion(["a", "b", "b", "c"], ["a", "b", "c", "c"])
    assert texts(ax) == ["a", "b", "c"]
    cells = {t.get_position(): t.get_text() for t in ax.texts if t.get_position()[0] in (0, 1, 2)}
    assert cells == {(0, 0): "1", (1, 1): "1", (2, 1): "1", (2, 2): "1"}
    same = plot_confusion([[1, 0, 0], [0, 1, 1], [0, 0, 1]], names=["a", "b", "c"])
    assert [t.get_text() for t in same.texts] == [t.get_text() for t in ax.texts]
    assert texts(plot_confusion(torch.tensor([1, 0]), torch.tensor([1, 1]), names=[1, 0])) == ["1", "0"]


def test_confusion_shows_counts_and_shares() -> None:
    matrix = torch.tensor([[90, 10, 0], [0, 50, 0], [0, 0, 0]])
    ax = plot_confusion(matrix, names=["a", "b", "c"])
    assert [t.get_text() for t in ax.texts] == ["90", "10", "50", "90.0 %", "100.0 %", "no rows"]
    assert ax.get_title() == "140 of 150 right: 93.33 %"
    assert texts(ax) == ["a", "b", "c"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("predicted", "true")
    image = ax.images[0].get_array()
    assert np.all((image >= 0) & (image <= 1))
    assert np.allclose(image[2], 1)  # no rows: white
    assert image[0, 1, 0] > image[0, 1, 1]  # an error is red
    assert image[1, 1, 1] > image[1, 1, 0]  # the diagonal is green
    ax.figure.canvas.draw()


def test_confusion_without_errors_or_rows() -> None:
    for matrix in (np.eye(2), np.zeros((2, 2)), [[1]]):
        plot_confusion(matrix).figure.canvas.draw()


def test_diagnostics_show_correlations_and_ranks(model: PBP) -> None:
    table = model.diagnostics()
    ax = plot_diagnostics(model)
    assert [t.get_text() for t in ax.get_yticklabels()] == list(table["separator"])
    assert [dots.get_fillstyle() for dots in ax.lines] == ["full", "none"]
    assert (table["significant"] < table["rank"]).any()  # there are hollow dots
    assert (table["significant"] > 1).any()
    for place, (node, line) in enumerate(table.iterrows()):
        sure, unsure = ([x for x, y in zip(*dots.get_data(), strict=True) if y == place] for dots in ax.lines)
        assert sure + unsure == pytest.approx(
            model.operators.separators[node - 1].strengths[1:].tolist()
        )  # without the constant
        assert len(sure) == line["significant"] - 1
        written = [t.get_text() for t in ax.texts if t.get_position()[1] == place]
        numbers = [str(line[c]) for c in ("rank", "needed", "reached", "significant")]
        assert written == [*numbers, f"{line['condition']:.3g}"]


def test_the_weakest_separators_are_drawn_where_all_are_too_many(model: PBP) -> None:
    table = model.diagnostics()
    ax = plot_diagnostics(model, most=3)
    assert {t.get_text() for t in ax.get_yticklabels()} == set(table.nsmallest(3, "weakest")["separator"])
    assert "3 weakest of 13" in ax.get_title(loc="left")


def test_diagnostics_of_classes_are_those_of_the_worst() -> None:
    model = PBP(DIAMOND.graph, condition="a1").fit(DIAMOND.sample(2_000, seed=2))
    ax = plot_diagnostics(model)
    dots = sorted(x for line in ax.lines for x in line.get_xdata())
    table = model.diagnostics()
    worst = [op.strengths[table["class"].iloc[i]] for i, op in enumerate(model.operators.separator_operators)]
    assert np.allclose(dots, sorted(x for s in worst for x in s[1:].tolist()))
