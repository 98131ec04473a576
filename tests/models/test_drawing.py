"""Pictures of trees."""

import matplotlib

matplotlib.use("Agg")

import pytest

from torchpbp import PBP, build_junction_tree, templates
from torchpbp.errors import StructureError


def test_drawing_shows_cliques_separators_root_and_core_groups(tmp_path):
    model = PBP(templates.diamond())
    ax = model.tree.draw(model.plan.core_groups)
    texts = [t.get_text() for t in ax.texts]
    assert any(t == "A, B, C\nroot" for t in texts)
    assert any(t == "D\n[d1]" for t in texts)
    assert any(t == "B, C\nα: b1, d1" for t in texts)
    assert len(texts) == len(model.tree) + len(model.tree) - 1
    ax.figure.savefig(tmp_path / "tree.png")
    assert (tmp_path / "tree.png").stat().st_size > 5_000


def test_huge_trees_are_printed_not_drawn():
    tree = build_junction_tree(templates.hmm(300))
    with pytest.raises(StructureError, match="too large to draw"):
        tree.draw()
    assert "x300" in str(tree)
