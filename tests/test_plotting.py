"""Pictures show the numbers they were asked to show."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import torchpbp
from torchpbp import EM, PBP, Continuous, DiscreteNetwork, KernelPBP, LatentGraph, build_junction_tree, templates
from torchpbp.errors import DataError, NotFittedError, QueryError, ShapeError, StructureError
from torchpbp.plotting import (
    plot_confusion,
    plot_diagnostics,
    plot_junction_tree,
    plot_learning_curves,
    plot_messages,
    plot_posteriors,
)

DIAMOND = DiscreteNetwork.random(templates.diamond(), seed=1)
EVIDENCE = {"a1": [0, 3], "b1": [1, -1]}


@pytest.fixture(scope="module")
def model() -> PBP:
    return PBP(DIAMOND.graph).fit(DIAMOND.sample(5_000, seed=2))


@pytest.fixture(scope="module")
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
    yield
    plt.close("all")


def heights(ax: Any) -> list[float]:
    return [bar.get_height() for bar in ax.patches]


def texts(ax: Any, minor: bool = False) -> list[str]:
    return [t.get_text() for t in ax.get_xticklabels(minor=minor)]


# -- trees -------------------------------------------------------------------------------------------------------


def test_a_tree_is_drawn_from_model_tree_or_graph(model: PBP) -> None:
    from_model = [t.get_text() for t in plot_junction_tree(model).texts]
    assert "B, C\nα: b1, d1" in from_model
    for source in (model.tree, DIAMOND.graph):
        plain = [t.get_text() for t in plot_junction_tree(source).texts]
        assert "B, C" in plain
        assert sum("α" in t for t in plain) == 0
    named = [t.get_text() for t in plot_junction_tree(model.tree, core_groups={2: ("a1", "a2")}).texts]
    assert [t for t in named if "α" in t] == ["A\nα: a1, a2"]
    assert "root" in plot_junction_tree(PBP(DIAMOND.graph)).texts[len(model.tree) - 1].get_text()  # needs no fit


def test_messages_are_those_of_the_operators(model: PBP) -> None:
    """Each chart, recomputed from the operators and the charts below it."""
    tree = model.tree
    charts = {c.get_label(): heights(c) for c in plot_messages(model, EVIDENCE, row=0).child_axes}
    assert set(charts) == {f"separator {n}" for n in range(1, len(tree))}
    states = {"a1": 0, "b1": 1}
    for node in range(1, len(tree)):
        weight = model.operators[node - 1].weight.detach()
        if tree.leaf_observables[node]:
            (name,) = tree.leaf_observables[node]
            message = weight[:, states[name]] if name in states else weight.sum(dim=1)
        else:
            first, second = (torch.tensor(charts[f"separator {c}"]).double() for c in tree.children[node])
            message = torch.einsum("abc,b,c->a", weight, first, second)
        assert charts[f"separator {node}"] == pytest.approx((message / message.abs().max()).tolist(), abs=1e-9), node


def test_messages_show_where_evidence_is(model: PBP) -> None:
    ax = plot_messages(model, EVIDENCE, row=1)
    boxes = [t.get_text() for t in ax.texts]
    assert "A\n[a1 = 3]" in boxes
    assert "B\n[b1]" in boxes  # -1: this row does not observe it
    assert "a1 = 3" in ax.get_title()
    assert "b1" not in ax.get_title()
    silent = [heights(c) for c in plot_messages(model).child_axes]
    for bars in silent:
        assert bars == pytest.approx([1.0] + [0.0] * (len(bars) - 1), abs=1e-9)


def test_messages_that_are_not_compressed_have_an_entry_per_state() -> None:
    model = PBP(DIAMOND.graph, compressed=False).fit(DIAMOND.sample(500, seed=2))
    ax = plot_messages(model, {"a1": [4]})
    charts = {c.get_label(): heights(c) for c in ax.child_axes}
    assert charts[f"separator {model.tree.leaf_of['a1']}"] == pytest.approx([0, 0, 0, 0, 1, 0], abs=0.1)
    assert charts[f"separator {model.tree.leaf_of['a2']}"] == pytest.approx([1] * 6, abs=0.1)
    assert "constant" not in [t.get_text() for t in ax.get_legend().get_texts()]


def test_continuous_evidence_sends_messages_too(fruit: PBP) -> None:
    ax = plot_messages(fruit, {"size": [0.1]})
    assert "h\n[size = 0.1]" in [t.get_text() for t in ax.texts]
    spoken = {c.get_label(): heights(c) for c in ax.child_axes}[f"separator {fruit.tree.leaf_of['size']}"]
    assert max(abs(h) for h in spoken[1:]) > 0.1


# -- posteriors --------------------------------------------------------------------------------------------------


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
        "EM": lambda: EM(network.graph, restarts=1, iterations=3, progress=False).fit(data),
        "KernelPBP": lambda: KernelPBP(network.graph).fit(data),
        "DiscreteNetwork": lambda: network,
    }
    asked = made[kind]()
    ax = plot_posteriors(asked, {first: [1]}, variables=[second])
    assert heights(ax) == pytest.approx(asked.posterior(second, {first: [1]})[0].tolist())


# -- results -----------------------------------------------------------------------------------------------------


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


# -- diagnostics -------------------------------------------------------------------------------------------------


def test_diagnostics_show_correlations_and_ranks(model: PBP) -> None:
    table = model.diagnostics()
    ax = plot_diagnostics(model)
    assert [t.get_text() for t in ax.get_yticklabels()] == list(table["separator"])
    assert [dots.get_fillstyle() for dots in ax.lines] == ["full", "none"]
    assert (table["significant"] < table["rank"]).any()  # there are hollow dots
    assert (table["significant"] > 1).any()
    for place, (node, line) in enumerate(table.iterrows()):
        sure, unsure = ([x for x, y in zip(*dots.get_data(), strict=True) if y == place] for dots in ax.lines)
        assert sure + unsure == pytest.approx(model.operators[node - 1].strengths[1:].tolist())  # without the constant
        assert len(sure) == line["significant"] - 1
        written = [t.get_text() for t in ax.texts if t.get_position()[1] == place]
        numbers = [str(line[c]) for c in ("rank", "needed", "reached", "significant")]
        assert written == [*numbers, f"{line['condition']:.3g}"]


def test_the_weakest_separators_are_drawn_where_all_are_too_many(model: PBP) -> None:
    table = model.diagnostics()
    ax = plot_diagnostics(model, most=3)
    assert {t.get_text() for t in ax.get_yticklabels()} == set(table.nsmallest(3, "weakest")["separator"])
    assert "3 weakest of 13" in ax.get_title(loc="left")


# -- all of them -------------------------------------------------------------------------------------------------

DRAWN: dict[str, Any] = {
    "tree": lambda m, ax: plot_junction_tree(m, ax=ax),
    "messages": lambda m, ax: plot_messages(m, {"a1": [2]}, ax=ax),
    "posteriors": lambda m, ax: plot_posteriors(m, {"a1": [2]}, truth=DIAMOND, ax=ax),
    "diagnostics": lambda m, ax: plot_diagnostics(m, ax=ax),
    "curves": lambda m, ax: plot_learning_curves(pd.DataFrame({"epoch": [0, 1], "loss": [2.0, 1.0]}), "loss", ax=ax),
    "confusion": lambda m, ax: plot_confusion([[3, 1], [0, 4]], ax=ax),
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
        (lambda m: plot_diagnostics(m, most=0), StructureError, "at least 1 separator, got 0"),
        (lambda m: plot_learning_curves("nowhere.csv", "kl"), DataError, "no file 'nowhere.csv'"),
        (lambda m: plot_learning_curves(5, "kl"), DataError, "expected a DataFrame or the path .* got int"),
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
        (lambda m: plot_confusion([1, 2, 3]), ShapeError, "expected shape"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call: Any, error: type[Exception], message: str, model: PBP) -> None:
    with pytest.raises(error, match=message):
        call(model)
    assert plt.get_fignums() == []


def test_the_library_offers_plotting_without_loading_matplotlib() -> None:
    code = (
        "import sys, torchpbp; torchpbp.plotting.plot_messages; "
        "print('matplotlib' in sys.modules, 'lightning' in sys.modules)"
    )
    folder = Path(torchpbp.__file__).parents[1]
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=True)
    assert result.stdout.split() == ["False", "False"]


def test_the_figure_of_the_readme_can_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(__file__).parents[1] / "scripts" / "make_figures.py"
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
