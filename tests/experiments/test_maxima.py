"""The experiment on maxima compares what it says it compares."""

from __future__ import annotations

import pandas as pd
import pytest

from torchpbp import EM, PBP, MaximumLikelihood, templates
from torchpbp.errors import ArgumentError, StructureError
from torchpbp.experiments import run_maxima
from torchpbp.experiments.precision import maxima
from torchpbp.experiments.precision.real_sets import real_sets

GRAPHS = {"survey": templates.naive_bayes(3, 2, 2)}
TINY = {"rows": 200, "repeats": 2, "starts": 5, "max_steps": 500, "real": False, "verbose": False}


def test_a_fit_to_the_maximum_reaches_it_and_one_step_of_em_does_not(tmp_path):
    metrics = run_maxima(lambda g: MaximumLikelihood(g, prior=0, progress=False), GRAPHS, output_dir=tmp_path, **TINY)
    assert metrics["reached"] == metrics["reached/survey"] == 1
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert (table["best"] - table["objective"] - table["short"]).abs().max() < 1e-9
    assert ((table["starts"] > 0) & (table["starts"] <= 1)).all()
    early = run_maxima(lambda g: EM(g, restarts=1, max_steps=1, prior=0, progress=False), GRAPHS, **TINY)
    assert early["reached"] == 0
    assert early["short/survey"] > 0.1


@pytest.mark.parametrize("prior", [0.1, 1.0])
def test_em_has_the_prior_of_the_learner(prior):
    metrics = run_maxima(lambda g: MaximumLikelihood(g, prior=prior, progress=False), GRAPHS, **TINY)
    assert metrics["reached"] == 1
    assert abs(metrics["short/survey"]) < 0.1


def test_a_learner_without_tables_raises(tmp_path):
    with pytest.raises(
        StructureError, match=r"maxima: PBP has no tables with a prior\. Choose learner=maximum_likelihood"
    ):
        run_maxima(PBP, GRAPHS, output_dir=tmp_path, **TINY)
    assert not list(tmp_path.iterdir())


def test_no_graphs_raise():
    with pytest.raises(StructureError, match="graphs: expected at least one graph"):
        run_maxima(MaximumLikelihood, {})


def test_real_tables_have_the_states_of_their_graphs():
    tables = real_sets()
    assert len(tables) == 5
    for graph, rows in tables.values():
        assert set(rows) == set(graph.observed)
        for v, x in rows.items():
            assert set(x.unique().tolist()) - {-1} == set(range(graph.num_states(v)))


def test_real_tables_are_lines_of_the_results(monkeypatch):
    graph, rows = real_sets()["junctions_classes"]
    few = {v: x[:100] for v, x in rows.items()}
    monkeypatch.setattr(maxima, "real_sets", lambda: {"junctions": (graph, few)})
    metrics = run_maxima(lambda g: EM(g, restarts=2, prior=0, progress=False), GRAPHS, **TINY | {"real": True})
    assert {"reached/junctions", "reached/survey"} <= set(metrics)


def test_a_graph_with_the_name_of_a_real_table_raises():
    with pytest.raises(ArgumentError, match=r"model\.graphs: \['strokes_tree'\] are names of real data"):
        run_maxima(lambda g: EM(g, prior=0), {"strokes_tree": GRAPHS["survey"]}, **TINY | {"real": True})
