"""The frame: what is fitted to what, and how columns become metrics, text and pictures."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
import pytest
import torch

from torchpbp import EM, PBP, DiscreteNetwork, MaximumLikelihood, templates
from torchpbp.errors import ArgumentError, StructureError, TorchPBPError
from torchpbp.experiments.compare.measures import HeldOut, HiddenStates, Maximum, Questions
from torchpbp.experiments.compare.real_tables import real_tables
from torchpbp.experiments.compare.task import compare
from torchpbp.experiments.grid import Run
from torchpbp.experiments.results import Result

GRAPH = templates.diamond()
TREE = templates.naive_bayes(4, states=2)
SHORT_EM = partial(EM, restarts=1, max_steps=3, progress=False)


def kls(**options: Any) -> Result:
    settings: dict[str, Any] = {"models": {"pbp": PBP}, "graphs": {"g": GRAPH}, "sizes": [300, 3000], "repeats": 2}
    return compare(**{"run": Run(0), "measures": {"kl": Questions([["b1", "a1", "c2"]])}, **settings, **options})


@pytest.fixture(scope="module")
def several() -> Result:
    """Two graphs, two models, two sizes, two measures."""
    models = {"likelihood": partial(MaximumLikelihood, progress=False), "em": SHORT_EM}
    measures = {"kl": Questions(2, 2), "states": HiddenStates(), "held_out": HeldOut()}
    return compare(models, Run(3), {"tree": TREE, "loop": GRAPH}, None, measures, (200, 400), 2, 50)


def test_metrics_are_means_of_the_rows_of_the_table(several: Result) -> None:
    table, metrics = several.table, several.metrics
    assert table is not None
    assert len(table) == 2 * 2 * 2 * 2
    rows = table[(table["graph"] == "tree") & (table["model"] == "em") & (table["rows"] == 400)]
    assert metrics["kl/tree/em/400"] == pytest.approx(rows["kl"].mean())
    assert metrics["kl_standard_error/tree/em/400"] == pytest.approx(rows["kl"].sem())
    assert metrics["cpu_seconds/tree/em/400"] == pytest.approx(rows["cpu_seconds"].median())
    first = metrics["kl/tree/likelihood/400"]
    assert metrics["kl_ratio/tree/em/400"] == pytest.approx(first / metrics["kl/tree/em/400"])
    speed = metrics["cpu_seconds/tree/em/400"] / metrics["cpu_seconds/tree/likelihood/400"]
    assert metrics["speed_ratio/tree/em/400"] == pytest.approx(speed)
    assert metrics["held_out/all/em"] == pytest.approx(table[table["model"] == "em"]["held_out"].mean())
    assert "kl_ratio/tree/likelihood/400" not in metrics
    assert "kl/all/em" not in metrics
    assert several.main
    assert set(several.main) <= set(metrics)


def test_the_text_names_measures_models_and_warnings(several: Result) -> None:
    text = several.described()
    assert "hidden_states" in text
    assert "em, 8 of 8 fits: ConvergenceWarning" in text
    assert " ± " in text


def test_one_graph_and_one_model_are_left_out_of_the_names() -> None:
    result = kls()
    assert {"kl/300", "kl/3000", "kl_standard_error/300"} <= set(result.metrics)
    assert result.main == ["kl/300", "kl/3000"]
    assert set(result.pictures) == {"curves"}
    assert set(kls(sizes=[300]).pictures) == {"measures"}


def test_a_result_does_not_depend_on_other_sizes_and_models() -> None:
    alone = kls(sizes=[300]).metrics["kl/300"]
    both = kls(sizes=[3000, 300], models={"em": SHORT_EM, "pbp": PBP}).metrics
    assert both["kl/pbp/300"] == pytest.approx(alone, rel=1e-9)
    assert kls(sizes=[300], run=Run(1)).metrics["kl/300"] != alone


def test_a_row_of_the_table_follows_from_the_seeds_of_its_repeat() -> None:
    row = kls(repeats=2).table.iloc[-1]  # type: ignore[union-attr]
    seeds = Run(0).seeds(1, 3)
    truth = DiscreteNetwork.random(GRAPH, seeds[0])
    model = PBP(GRAPH).fit(truth.sample(3000, seed=seeds[1]))
    values = torch.cartesian_prod(torch.arange(6), torch.arange(6))
    evidence = {"a1": values[:, 0], "c2": values[:, 1]}
    exact, learned = truth.posterior("b1", evidence), model.posterior("b1", evidence).detach()
    assert row["kl"] == pytest.approx(float((exact * (exact / learned).log()).sum(dim=1).mean()), rel=1e-6)


def test_missing_values_reach_the_models() -> None:
    seen: list[float] = []

    class Watching(EM):
        def fit(self, data: Any, *args: Any, **options: Any) -> EM:
            seen.append(float((torch.stack(list(data.values())) < 0).double().mean()))
            return super().fit(data, *args, **options)

    kls(models={"em": partial(Watching, restarts=1, max_steps=1, progress=False)}, sizes=[2000], repeats=1, missing=0.3)
    assert seen == [pytest.approx(0.3, abs=0.02)]


def test_a_model_that_cannot_answer_is_noted_and_one_alone_raises() -> None:
    class Refusing(EM):
        def fit(self, *args: Any, **options: Any) -> EM:
            raise StructureError("no such graph.")

    refusing = partial(Refusing, progress=False)
    result = kls(models={"pbp": PBP, "none": refusing}, repeats=1, sizes=[300])
    assert "none, 1 of 1 fits: StructureError: no such graph." in result.described()
    assert result.metrics["kl/none/300"] is None
    with pytest.raises(TorchPBPError, match="no such graph"):
        kls(models={"none": refusing})


def test_real_tables_stand_beside_graphs() -> None:
    graph, rows = real_tables()["junctions_classes"]
    few = {v: x[:100] for v, x in rows.items()}
    make = partial(EM, restarts=2, prior=0, progress=False)
    measures = {"maximum": Maximum(starts=2, max_steps=5)}
    result = compare({"em": make}, Run(0), {"tree": TREE}, {"junctions": (graph, few)}, measures, [200], 2)
    assert {"reached/junctions/100", "reached/tree/200", "reached/all/em"} <= set(result.metrics)
    with pytest.raises(StructureError, match="compares with a known network"):
        compare({"em": make}, Run(0), None, {"junctions": (graph, few)}, {"kl": Questions()})
    with pytest.raises(ArgumentError, match="graphs and tables of different names"):
        compare({"em": make}, Run(0), {"tree": TREE}, {"tree": (graph, few)})


def test_mistaken_numbers_raise() -> None:
    for options, text in [
        ({"sizes": [10.5]}, "sizes: .*got"),
        ({"repeats": 0}, "repeats: expected a whole number of at least 1, got 0"),
        ({"missing": 2.0}, "missing: expected"),
        ({"graphs": {}}, "Expected models, and graphs and tables"),
    ]:
        with pytest.raises(ArgumentError, match=text):
            kls(**options)
    with pytest.raises(StructureError, match="unknown cardinality"):
        kls(graphs={"g": templates.hmm(states=None)})


def test_summary_has_medians_of_seconds(several: Result) -> None:
    summary = several.tables["summary"]
    assert isinstance(summary, pd.DataFrame)
    assert "cpu_seconds_standard_error" not in summary
