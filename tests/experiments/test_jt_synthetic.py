"""Joint probabilities on the structures of the spectral algorithm's paper."""

from __future__ import annotations

import functools
import json

import numpy as np
import pandas as pd
import pytest
import torch

from torchpbp import EM, PBP, DiscreteNetwork, SpectralJunctionTree, templates
from torchpbp.errors import ArgumentError, StructureError
from torchpbp.experiments import run_jt_synthetic
from torchpbp.experiments.jt_synthetic.run import measure

GRAPHS = {"chain": templates.hmm(4, states=2, observed_states=3), "class": templates.naive_bayes(3, states=2)}
OTHERS = {
    "spectral": SpectralJunctionTree,
    "EM": functools.partial(EM, restarts=1, max_steps=5, progress=False),
}
SMALL = {"sizes": [100, 300], "repeats": 2, "test_rows": 40, "concentration": 1.0, "verbose": False}


class Told:
    """A learner that answers with the truth times a factor, whatever it is shown."""

    def __init__(self, network, factors):
        self.network, self.factors = network, factors

    def __call__(self, graph):
        return self

    def fit(self, data):
        self.rows = len(next(iter(data.values())))

    def log_evidence(self, evidence):
        return self.network.log_evidence(evidence) + self.factors.log()


def test_the_error_is_the_relative_one():
    network = DiscreteNetwork.random(GRAPHS["chain"], seed=0)
    test = network.sample(4, seed=1)
    told = Told(network, torch.tensor([1.0, 1.5, 0.5, 3.0], dtype=torch.float64))
    model, found = measure(told, network.graph, network.sample(10, seed=0), test, network.log_evidence(test))
    assert model.rows == 10
    assert found["error"] == pytest.approx((0 + 0.5 + 0.5 + 2) / 4)
    assert found["signed_error"] == found["error"]
    assert found["median_error"] == pytest.approx(0.5)
    assert found["negative_share"] == 0


@pytest.mark.parametrize("learner", [PBP, SpectralJunctionTree])
def test_negative_estimates_count_as_they_are_in_the_signed_error_only(learner):
    network = DiscreteNetwork.random(templates.factorial_hmm(3, observed_states=8), seed=0, concentration=0.2)
    data, test = network.sample(60, seed=1), network.sample(500, seed=2)
    exact = network.log_evidence(test)
    model, found = measure(learner, network.graph, data, test, exact)
    with torch.no_grad():
        sign, size = model.log_evidence(test, raw=True)
        signed = sign * size.exp()
        clipped = model.log_evidence(test).exp()
    truth = exact.exp()
    assert found["negative_share"] == pytest.approx(float((signed <= 0).double().mean()))
    assert found["negative_share"] > 0
    assert found["signed_error"] == pytest.approx(float(((signed - truth).abs() / truth).mean()))
    assert found["error"] == pytest.approx(float(((clipped - truth).abs() / truth).mean()))
    assert found["signed_error"] > found["error"]


def test_results_files_and_seeds(tmp_path, capsys):
    options = {**SMALL, "verbose": True}
    metrics = run_jt_synthetic(GRAPHS, PBP, OTHERS, **options, seed=3, output_dir=tmp_path)
    shown = capsys.readouterr()
    assert "chain" in shown.out
    assert "spectral" in shown.out
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert len(table) == 2 * 2 * 2 * 3  # structures, repeats, sizes, learners
    assert set(table["learner"]) == {"PBP", "spectral", "EM"}
    saved = json.loads((tmp_path / "metrics.json").read_text())
    assert saved == metrics
    for structure in GRAPHS:
        for learner in ("PBP", "spectral", "EM"):
            for size in (100, 300):
                chosen = table.query("structure == @structure and learner == @learner and rows == @size")
                name = f"{structure}/{learner}/{size}"
                for what in ("error", "signed_error", "median_error", "negative_share", "seconds"):
                    assert metrics[f"{what}/{name}"] == pytest.approx(chosen[what].mean())
                assert metrics[f"error_standard_error/{name}"] == pytest.approx(chosen["error"].sem())
    assert (tmp_path / "errors.png").read_bytes()[:4] == b"\x89PNG"
    again = run_jt_synthetic(GRAPHS, PBP, OTHERS, **SMALL, seed=3)
    timed = ("seconds/",)
    assert {k: v for k, v in again.items() if not k.startswith(timed)} == {
        k: v for k, v in metrics.items() if not k.startswith(timed)
    }
    alone = run_jt_synthetic(GRAPHS, SpectralJunctionTree, **{**SMALL, "sizes": [300]}, seed=3)
    spectral = metrics["error/chain/spectral/300"]
    assert alone["error/chain/SpectralJunctionTree/300"] == pytest.approx(spectral, rel=1e-9)
    assert run_jt_synthetic(GRAPHS, PBP, **SMALL, seed=4)["error/chain/PBP/300"] != metrics["error/chain/PBP/300"]


def test_the_error_of_independence_is_that_of_the_marginals():
    graph = templates.hmm(2, states=2, observed_states=2)
    metrics = run_jt_synthetic(
        {"pair": graph}, PBP, sizes=[50], repeats=1, test_rows=2000, concentration=1.0, verbose=False
    )
    table = DiscreteNetwork.random(graph, *network_seeds()).joint(graph.observed)
    product = torch.outer(table.sum(1), table.sum(0))
    expected = float((product - table).abs().sum())  # the mean over rows drawn from the table, for many of them
    assert metrics["error_of_independence/pair"] == pytest.approx(expected, rel=0.2)
    assert metrics["error_standard_error/pair/PBP/50"] is None


def network_seeds():
    return [int(np.random.SeedSequence([0, 0]).generate_state(3)[0])]


def test_pbp_is_no_worse_than_spectral():
    """On small stand-ins of two of the structures; means over networks that differ from any used to choose a setting."""
    graphs = {
        "second order": templates.hmm(5, states=2, observed_states=4, order=2),
        "factorial": templates.factorial_hmm(3, observed_states=8),
    }
    found = run_jt_synthetic(
        graphs, PBP, {"spectral": SpectralJunctionTree}, sizes=[2_000], repeats=5, test_rows=300, seed=77, verbose=False
    )
    for name in graphs:
        pbp, spectral = found[f"error/{name}/PBP/2000"], found[f"error/{name}/spectral/2000"]
        assert pbp <= 1.1 * spectral
        assert pbp < found[f"error_of_independence/{name}"]


def test_bad_input():
    with pytest.raises(ArgumentError, match="sizes: expected one or more whole numbers of at least 1"):
        run_jt_synthetic(GRAPHS, PBP, sizes=[0])
    with pytest.raises(ArgumentError, match="test_rows: expected a whole number of at least 1, got 0"):
        run_jt_synthetic(GRAPHS, PBP, test_rows=0)
    with pytest.raises(StructureError, match="graphs: expected at least one graph"):
        run_jt_synthetic({}, PBP)
    with pytest.raises(StructureError, match="expected a learner that takes the model's graph, got a PBP"):
        run_jt_synthetic(GRAPHS, PBP(GRAPHS["chain"]))
    with pytest.raises(ArgumentError, match="'PBP' is the name of the main learner"):
        run_jt_synthetic(GRAPHS, functools.partial(PBP, pool=4), {"PBP": PBP}, **SMALL)
