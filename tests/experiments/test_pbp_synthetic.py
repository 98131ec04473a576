"""Predictive belief propagation against EM: what is measured, and what is written."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch

from torchpbp import EM, PBP, DiscreteNetwork, LatentGraph, OnlineEM, templates
from torchpbp.errors import ArgumentError, StructureError
from torchpbp.experiments import run_pbp_synthetic
from torchpbp.experiments.pbp_synthetic.run import summarise

GRAPH = templates.loopy_network(observed_states=3)
QUICK = {"restarts": 2, "relative_tolerance": 0.01, "progress": False}
OTHERS = {"em": partial(EM, **QUICK), "online_em": partial(OnlineEM, exponents=[0.7], **QUICK)}


class Oracle:
    """Knows the answers by heart: those of the networks that the experiment draws."""

    truths: ClassVar[dict[int, DiscreteNetwork]] = {}

    def __init__(self, graph: LatentGraph) -> None:
        self.graph = graph

    def fit(self, data: dict[str, torch.Tensor]) -> None:
        """The network whose data these are."""
        self.network = max(self.truths.values(), key=lambda n: float(n.log_evidence(data).sum()))

    def posterior(self, query: str, evidence: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.network.posterior(query, evidence)


class Prior(Oracle):
    """Looks at no evidence."""

    def posterior(self, query: str, evidence: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.network.posterior(query).expand(len(next(iter(evidence.values()))), -1)


def test_kl_is_zero_for_the_truth_and_known_for_the_marginal(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = DiscreteNetwork.random

    def remembered(graph: LatentGraph, seed: int, concentration: float) -> DiscreteNetwork:
        Oracle.truths[seed] = draw(graph, seed, concentration)
        return Oracle.truths[seed]

    monkeypatch.setattr(DiscreteNetwork, "random", remembered)
    monkeypatch.setattr(Oracle, "truths", {})
    metrics = run_pbp_synthetic(GRAPH, Oracle, {"prior": Prior}, sizes=[200], repeats=2, verbose=False)
    assert metrics["kl/pbp/200"] == pytest.approx(0.0, abs=1e-12)
    assert metrics["kl/prior/200"] == pytest.approx(metrics["kl_ignoring_evidence"])
    assert float(metrics["kl/prior/200"]) > 1e-3


def test_files_and_metrics_say_the_same(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"sizes": [300, 1500], "repeats": 2, "verbose": False}
    metrics = run_pbp_synthetic(GRAPH, PBP, OTHERS, output_dir=tmp_path, **settings)
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.json", "metrics.csv", "kl_and_seconds.png"}
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics
    assert (tmp_path / "kl_and_seconds.png").read_bytes().startswith(b"\x89PNG")
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert len(table) == 3 * 2 * 2
    assert len(table[["learner", "rows", "repeat"]].drop_duplicates()) == len(table)
    for name in ("pbp", "em", "online_em"):
        lines = table[(table["learner"] == name) & (table["rows"] == 1500)]
        assert metrics[f"kl/{name}/1500"] == pytest.approx(lines["kl"].mean())
        assert metrics[f"fit_seconds/{name}/1500"] == pytest.approx(lines["fit_seconds"].median())
    assert metrics["kl_ratio/em/300"] == pytest.approx(metrics["kl/pbp/300"] / metrics["kl/em/300"])
    seconds = metrics["fit_seconds/online_em/300"] / metrics["fit_seconds/pbp/300"]
    assert metrics["seconds_ratio/online_em/300"] == pytest.approx(seconds)
    assert metrics["question"] == "P(d | g, h, e) at all 27 values"
    again = run_pbp_synthetic(GRAPH, PBP, OTHERS, **settings)
    timed = ("fit_seconds", "seconds_ratio")
    assert {k: v for k, v in again.items() if not k.startswith(timed)} == {
        k: v for k, v in metrics.items() if not k.startswith(timed)
    }


def test_a_size_is_measured_alike_whichever_others_are_asked_for() -> None:
    both = run_pbp_synthetic(GRAPH, PBP, OTHERS, sizes=[1500, 300], repeats=1, seed=3, verbose=False)
    one = run_pbp_synthetic(GRAPH, PBP, sizes=[1500], repeats=1, seed=3, verbose=False)
    assert one["kl/pbp/1500"] == pytest.approx(both["kl/pbp/1500"], rel=1e-9)
    assert one["kl_standard_error/pbp/1500"] is None
    assert not [k for k in one if "ratio/" in k]


def test_the_summary_averages_kl_and_takes_the_median_of_seconds() -> None:
    rows = [("a", 10, 0, 1.0, 5.0), ("a", 10, 1, 2.0, 1.0), ("a", 10, 2, 3.0, 2.0), ("b", 10, 0, 4.0, 7.0)]
    found = summarise(pd.DataFrame(rows, columns=["learner", "rows", "repeat", "kl", "fit_seconds"]))
    assert found["learner"].tolist() == ["a", "b"]
    assert found["kl"].tolist() == [2.0, 4.0]
    assert found["fit_seconds"].tolist() == [2.0, 7.0]
    assert found["kl_standard_error"][0] == pytest.approx(1 / 3**0.5)


def test_bad_input() -> None:
    with pytest.raises(ArgumentError, match="others: 'pbp' is the name of the main learner"):
        run_pbp_synthetic(GRAPH, PBP, {"pbp": PBP})
    with pytest.raises(StructureError, match="em: expected a learner that takes the model's graph, got a PBP"):
        run_pbp_synthetic(GRAPH, PBP, {"em": PBP(GRAPH)})  # type: ignore[dict-item]
    with pytest.raises(ArgumentError, match="sizes: expected one or more whole numbers of at least 1, got"):
        run_pbp_synthetic(GRAPH, PBP, sizes=[])
    with pytest.raises(ArgumentError, match="repeats: expected a whole number of at least 1, got 0"):
        run_pbp_synthetic(GRAPH, PBP, repeats=0)
    with pytest.raises(ArgumentError, match="expected a query followed by its evidence variables"):
        run_pbp_synthetic(GRAPH, PBP, question=["d"])
