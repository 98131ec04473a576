"""The experiments with normal graphs: what they measure, and what they write."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from torchpbp import EM, DiscreteNetwork, NormalGraphLearner
from torchpbp.baselines.normal_graph import RULES, learn_block
from torchpbp.baselines.normal_graph.rules import Rule, block_log_likelihood
from torchpbp.errors import ArgumentError, StructureError
from torchpbp.experiments import run_ng_deep_graph, run_ng_one_embedding, run_ng_single_block
from torchpbp.experiments.normal_graph.comparison import compare
from torchpbp.experiments.normal_graph.deep_graph import deep_graph
from torchpbp.experiments.normal_graph.one_embedding import embedding_graph, embedding_network
from torchpbp.experiments.normal_graph.rules import Case, learn_rule, lines_of, truth_line
from torchpbp.experiments.normal_graph.single_block import draw_messages

SMALL: dict[Any, dict[str, Any]] = {
    run_ng_single_block: {"inputs": [2, 3], "outputs": [3, 2], "exponents": [1, 20], "rows": 30, "iterations": 5},
    run_ng_one_embedding: {
        "rows": 60,
        "mismatched": [2],
        "split_rows": 40,
        "generalised": [4],
        "epochs": 5,
        "swept_iterations": [1, 3],
        "starts": 3,
    },
    run_ng_deep_graph: {"rows": 30, "epochs": 5},
}
FILES = {
    run_ng_single_block: {"log_likelihood.png", "coefficients.png"},
    run_ng_one_embedding: {"log_likelihood.png", "coefficients.png", "inner_iterations.png"},
    run_ng_deep_graph: {"log_likelihood.png", "coefficients.png"},
}


def run(task: Any, **options: Any) -> dict[str, Any]:
    return task(**{"learner": NormalGraphLearner, "repeats": 3, "verbose": False, **SMALL[task], **options})


@pytest.mark.parametrize("task", SMALL)
def test_files_agree_with_the_metrics_returned(task: Any, tmp_path: Path) -> None:
    metrics = run(task, output_dir=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.json", "metrics.csv"} | FILES[task]
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics
    for name in FILES[task]:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    table = pd.read_csv(tmp_path / "metrics.csv")
    measure = "log_likelihood" if task is run_ng_single_block else "aggregated"
    case = table["case"][0]
    for rule in RULES:
        values = table.loc[(table["case"] == case) & (table["rule"] == rule), measure]
        assert len(values) == metrics[f"repeats/{case}"] == 3
        assert metrics[f"{measure}/{case}/{rule}"] == pytest.approx(values.mean())
        assert metrics[f"{measure}_standard_error/{case}/{rule}"] == pytest.approx(values.std() / math.sqrt(3))


@pytest.mark.parametrize("task", SMALL)
def test_the_seed_decides_and_a_run_without_output_is_quiet(task: Any, capfd: pytest.CaptureFixture[str]) -> None:
    first = run(task)
    assert first == run(task) != run(task, seed=1)
    assert capfd.readouterr() == ("", "")


def test_results_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    metrics = run(run_ng_deep_graph, verbose=True)
    out, err = capfd.readouterr()
    assert f"deep, aggregated: ml {metrics['aggregated/deep/ml']:.1f} ± " in out
    holds, gain = (metrics[f"aggregated_{name}/deep/ml>=kl"] for name in ("holds", "gain"))
    assert f"ml>=kl {holds}/3 ({gain:+.2f} ± " in out
    assert "4/4" in err


def test_how_often_one_rule_is_at_least_as_good_as_the_next() -> None:
    values = {"ml": [1.0, 2.0, 3.0], "kl": [1.0, 3.0, 2.0], "vit": [0.0, 0.0, 9.0], "truth": [5.0, 5.0, 5.0]}
    table = pd.DataFrame(
        [
            {"case": "c", "repeat": i, "rule": rule, "score": v}
            for rule, column in values.items()
            for i, v in enumerate(column)
        ]
    )
    metrics = compare(table, ["score"])
    assert metrics["score_holds/c/ml>=kl"] == 2  # a tie counts
    assert metrics["score_holds/c/kl>=vit"] == 2
    assert "score_holds/c/vit>=var" not in metrics
    assert metrics["score_gain/c/kl>=vit"] == pytest.approx((1 + 3 - 7) / 3)
    assert metrics["score_gain_standard_error/c/ml>=kl"] == pytest.approx(1 / math.sqrt(3))  # of 0, -1 and 1
    assert metrics["score/c/kl"] == 2.0
    assert metrics["score_standard_error/c/truth"] == 0.0
    assert metrics["repeats/c"] == 3
    assert compare(table[table["repeat"] == 0], ["score"])["score_standard_error/c/ml"] is None


def test_repeats_learned_together_are_those_learned_alone() -> None:
    """From random matrices, so that the start does not depend on the rows."""
    truth = embedding_network()
    samples = [truth.sample(50, seed=s) for s in range(3)]
    mask = (torch.arange(50) < 30).double()
    options: dict[str, Any] = {"start": "parameters", "epochs": 6}
    seeds = [s * 1_000_003 for s in (7, 8, 9)]  # of the first start of learners with seeds 7, 8 and 9
    case = Case("c", embedding_graph(3), samples, seeds, mask=mask, options=options)
    traces = {rule: learn_rule(NormalGraphLearner, case, rule) for rule in RULES}
    lines = pd.DataFrame(lines_of("c", traces, True))
    for rule in RULES:
        for i, sample in enumerate(samples):
            alone = NormalGraphLearner(embedding_graph(3), rule=rule, seed=7 + i, progress=False, **options)
            line = lines[(lines["rule"] == rule) & (lines["repeat"] == i)].iloc[0]
            (course,) = alone.fit(sample, mask).runs
            assert line["log_evidence"] == pytest.approx(course.log_evidence[-1])
            assert line["test_aggregated"] == pytest.approx(course.held_out_aggregated[-1])


def test_the_figures_of_the_truth() -> None:
    truth = embedding_network()
    data = truth.sample(20, seed=1)
    line = truth_line("c", 0, truth, data, (torch.arange(20) < 5).double())
    assert line["log_evidence"] == pytest.approx(float(truth.log_evidence(data)[:5].sum()))
    total = 0.0
    for row in range(5, 20):
        for v in data:
            others = {u: x[row : row + 1] for u, x in data.items() if u != v}
            total += math.log(float(truth.posterior(v, others)[0, int(data[v][row])]))
    assert line["test_aggregated"] == pytest.approx(total)


def test_the_network_is_that_of_the_paper() -> None:
    truth = embedding_network()
    assert [truth.states[v] for v in ("S", "X1", "X2", "X3")] == [4, 2, 2, 3]
    rows = truth.sample(20_000, seed=1)
    shares = torch.bincount(rows["X3"]).double() / 20_000
    torch.testing.assert_close(shares, truth.posterior("X3")[0], rtol=0, atol=0.015)
    assert truth.posterior("X1")[0, 0].item() == pytest.approx((0.1 + 0.1 + 0.9 + 0.3) / 4)


def test_the_deep_graph_has_the_sizes_of_the_paper_and_can_be_learned() -> None:
    graph = deep_graph()
    assert graph.parents("Y2") == ("S1", "S2")
    assert graph.parents("X3") == ("Y2", "S3")
    assert graph.observed == ("X1", "X2", "X3")
    model = NormalGraphLearner(graph, epochs=2, progress=False)
    fixed = {name: tuple(b.fixed.shape) for name, b in model.converted.graph.blocks.items() if b.fixed is not None}
    assert sorted(fixed.values()) == [(2, 8), (3, 12), (4, 8), (4, 12)]
    model.fit(DiscreteNetwork.random(graph, seed=1).sample(50, seed=2))
    assert len(model.thetas) == 8


def test_ml_beats_the_others_on_the_rows_of_its_block() -> None:
    """Four states, soft messages: what ML maximises is what is measured, so no other rule may pass it."""
    metrics = run(run_ng_single_block, rows=60, iterations=300)
    for case in ("2x3_exponent_1", "3x2_exponent_20"):
        best = metrics[f"log_likelihood/{case}/ml"]
        for rule in ("kl", "vit", "var", "random matrix"):
            assert best >= metrics[f"log_likelihood/{case}/{rule}"] - 1e-3
        assert metrics[f"log_likelihood_holds/{case}/ml>=kl"] == 3


def test_single_block_figures_can_be_had_again() -> None:
    metrics = run(run_ng_single_block)
    f, b, reference = draw_messages(0, 3, 30, 2, 3, 1)
    ones = torch.ones(30, dtype=torch.float64)
    values, _, _ = learn_block(f, b, ones, Rule("kl"), 5)
    assert metrics["log_likelihood/2x3_exponent_1/kl"] == pytest.approx(float(values[-1].mean()))
    drawn = block_log_likelihood(reference, f, b, ones)
    assert metrics["log_likelihood/2x3_exponent_1/random matrix"] == pytest.approx(float(drawn.mean()))
    half = (torch.arange(30) < 15).double()
    _, held_out, _ = learn_block(f, b, half, Rule("var"), 5)
    assert metrics["test_log_likelihood/2x3_exponent_1/var"] == pytest.approx(float(held_out[-1].mean()))


def test_larger_exponents_make_sharper_messages() -> None:
    peaks = [float(draw_messages(0, 2, 200, 4, 4, e)[0].amax(dim=-1).mean()) for e in (1, 5, 50)]
    assert peaks[0] < peaks[1] < peaks[2]
    f, b, theta = draw_messages(0, 2, 5, 3, 4, 1000)
    for values in (f, b, theta):
        torch.testing.assert_close(values.sum(dim=-1), torch.ones(values.shape[:-1], dtype=torch.float64))


@pytest.mark.parametrize(
    ("task", "options", "error", "text"),
    [
        (run_ng_single_block, {"inputs": [2]}, ArgumentError, "expected one number per case in each, got 1, 2 and 2"),
        (run_ng_single_block, {"rows": 1}, ArgumentError, "rows: expected a whole number of at least 2"),
        (
            run_ng_single_block,
            {"iterations": 0},
            ArgumentError,
            "iterations: expected a whole number of at least 1, got 0",
        ),
        (run_ng_one_embedding, {"mismatched": []}, ArgumentError, "mismatched: expected one or more"),
        (run_ng_one_embedding, {"split_rows": 1}, ArgumentError, "split_rows: expected a whole number of at least 2"),
        (run_ng_one_embedding, {"repeats": 0}, ArgumentError, "repeats: expected a whole number of at least 1, got 0"),
        (run_ng_deep_graph, {"epochs": 0}, ArgumentError, "epochs: expected a whole number of at least 1, got 0"),
        (run_ng_deep_graph, {"learner": EM}, StructureError, "Choose learner=normal_graph"),
        (run_ng_one_embedding, {"learner": partial(EM)}, StructureError, "whose blocks learn by rules"),
    ],
)
def test_bad_settings_raise(task: Any, options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(task, **options)
