"""Pictures of trees and of messages show the tree and the messages."""

from __future__ import annotations

import matplotlib
import pytest
import torch

matplotlib.use("Agg")

from tests.plotting.pictures import DIAMOND, EVIDENCE, heights
from torchpbp import PBP
from torchpbp.errors import QueryError
from torchpbp.plotting import plot_junction_tree, plot_messages


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
        weight = model.operators.separators[node - 1].weight.detach()
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


def test_continuous_evidence_sends_messages_too(fruit: PBP) -> None:
    ax = plot_messages(fruit, {"size": [0.1]})
    assert "h\n[size = 0.1]" in [t.get_text() for t in ax.texts]
    spoken = {c.get_label(): heights(c) for c in ax.child_axes}[f"separator {fruit.tree.leaf_of['size']}"]
    assert max(abs(h) for h in spoken[1:]) > 0.1


def test_messages_of_a_model_with_classes_are_those_of_the_class_given() -> None:
    model = PBP(DIAMOND.graph, condition="a1").fit(DIAMOND.sample(2_000, seed=2))
    plot_junction_tree(model)
    evidence = {"a1": [2, -1], "b1": [1, 0]}
    ax = plot_messages(model, evidence)
    with torch.no_grad():
        up = model.operators.tree.of_class(2).upward(model.operators.prepare(model.read_evidence(evidence))).messages
    for child in ax.child_axes:
        message = up[int(child.get_label().removeprefix("separator "))]
        assert heights(child) == pytest.approx(message[0].tolist(), abs=1e-9)
    with pytest.raises(QueryError, match="expected the state of 'a1' in the evidence"):
        plot_messages(model, evidence, row=1)
