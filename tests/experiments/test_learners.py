"""All learners, all kinds of questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from torchpbp import EM, DiscreteNetwork, LatentGraph, templates
from torchpbp.errors import ArgumentError, QueryError, StructureError
from torchpbp.experiments.learners.questions import kinds, kl, thinned
from torchpbp.experiments.learners.run import run_learners

CHAIN = templates.hmm(4, 2, 3)


class Truth:
    """Knows the network it is asked to learn."""

    def __init__(self, network: DiscreteNetwork) -> None:
        self.network = network

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)


class Blind:
    """Knows no questions but one."""

    def __init__(self, graph: LatentGraph) -> None:
        self.graph = graph

    def fit(self, data: dict[str, torch.Tensor]) -> Blind:
        return self

    def log_evidence(self, evidence: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.zeros(len(next(iter(evidence.values()))))

    def posterior(self, *question: Any) -> torch.Tensor:
        raise QueryError("Blind: cannot see.")

    posteriors = posterior


@pytest.mark.parametrize("graph", [CHAIN, templates.diamond(2, 3, 1)], ids=["chain", "loop"])
def test_the_truth_answers_every_question_without_error(graph: LatentGraph) -> None:
    network = DiscreteNetwork.random(graph, seed=3)
    rows = network.sample(200, seed=4)
    other = Truth(DiscreteNetwork.random(graph, seed=5))
    for kind in kinds():
        assert kind.ask(Truth(network), network, rows) == pytest.approx(0, abs=1e-10), kind.name
        assert kind.ask(other, network, rows) > 1e-3, kind.name


def test_latent_states_may_be_numbered_otherwise() -> None:
    network = DiscreteNetwork.random(CHAIN, seed=3)
    latent = next(k for k in kinds() if k.name == "P(latent | row)")
    tables = dict(network.cpts)
    tables["h1"] = tables["h1"].flip(0)
    tables["h2"], tables["x1"] = tables["h2"].flip(0), tables["x1"].flip(0)
    assert latent.ask(Truth(DiscreteNetwork(CHAIN, tables)), network, network.sample(50, seed=0)) == pytest.approx(
        0, abs=1e-12
    )


def test_thinned_rows_keep_a_value_and_about_half_of_all() -> None:
    rows = {v: torch.zeros(4000, dtype=torch.int64) for v in "abc"}
    hidden = torch.stack(list(thinned(rows).values())) < 0
    assert int(hidden.all(dim=0).sum()) == 0
    assert 0.4 < float(hidden.float().mean()) < 0.5
    assert not (thinned(rows, share=0.0)["a"] < 0).any()


def test_kl_is_zero_for_equals_and_counts_impossible_answers() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    assert kl(p, p).tolist() == [0.0, 0.0]
    assert float(kl(p, torch.tensor([[0.25, 0.75, 0.0], [0.0, 1.0, 0.0]]))[1]) > 100


def test_run_notes_errors_of_answers_and_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = run_learners(
        lambda graph: EM(graph, restarts=1, max_steps=30, progress=False),
        {"chain": CHAIN},
        {"blind": Blind},
        rows=2000,
        test_rows=100,
        repeats=2,
        output_dir=tmp_path,
    )
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics
    assert {p.name for p in tmp_path.iterdir()} == {"metrics.json", "metrics.csv", "learners.png"}
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert len(table) == 2 * 2 * 10  # learners, networks, questions with two speeds
    assert metrics["P(one | all others)/chain/PBP"] < 0.05
    assert metrics["learned from gaps/chain/PBP"] < 0.1
    assert metrics["P(complete row)/chain/blind"] > 1
    assert metrics["P(one | all others)/chain/blind"] is None
    assert metrics["refusal/P(one | all others)/chain/blind"] == "Blind: cannot see."
    printed = capsys.readouterr().out
    assert printed.count("Blind: cannot see.") == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rows": 0}, ArgumentError, "rows: expected a whole number of at least 1, got 0"),
        ({"graphs": {}}, StructureError, "graphs: expected at least one graph"),
    ],
)
def test_bad_settings(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run_learners(**{"learner": EM, "graphs": {"chain": CHAIN}, **options})
