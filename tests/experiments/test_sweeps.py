"""Multirun folders: read, averaged over seeds, drawn; and nothing lost without a word."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest
import yaml

from torchpbp.__main__ import main
from torchpbp.errors import ArgumentError, DataError
from torchpbp.experiments.running.objective import check_objective, objective_value
from torchpbp.experiments.running.sweep_plots import draw_sweep
from torchpbp.experiments.running.sweep_report import write_sweep_report
from torchpbp.experiments.running.sweeps import (
    DONE,
    NO_METRICS,
    NOT_STARTED,
    choose_metrics,
    override_names,
    read_sweep,
    remarks,
    run_table,
    summarise,
)


def add_job(folder: Path, overrides: str, metrics: dict[str, Any] | None, job: str | None = None) -> Path:
    """Write what Hydra and a task leave behind; no metrics: the job failed."""
    path = folder / (job if job is not None else str(len([p for p in folder.glob("*") if p.is_dir()])))
    (path / ".hydra").mkdir(parents=True)
    (path / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(overrides.split()))
    if metrics is not None:
        (path / "metrics.json").write_text(json.dumps(metrics))
    return path


def add_plan(
    folder: Path, *overrides: str, sweeper: str = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
) -> None:
    plan = {"sweeper": {"_target_": sweeper, "params": None}, "overrides": {"task": list(overrides)}}
    (folder / "multirun.yaml").write_text(yaml.safe_dump({"hydra": plan}))


def test_mean_and_standard_error_over_seeds(tmp_path: Path) -> None:
    for overrides, kl in [("seed=1 a=x", 1.0), ("seed=2 a=x", 3.0), ("seed=1 a=y", 5.0)]:
        add_job(tmp_path, f"model=m {overrides}", {"kl": kl})
    runs = read_sweep(tmp_path)
    assert override_names(runs) == (["a"], ["model"])
    table = summarise(runs, ["kl"]).set_index("a")
    assert table["runs"].tolist() == [2, 1]
    assert table.loc["x", ["kl", "kl standard error"]].tolist() == pytest.approx([2.0, 1.0])
    assert table.loc["y", "kl"] == 5.0
    assert np.isnan(table.loc["y", "kl standard error"])  # one run has no spread
    assert remarks(runs, ["kl"]) == []


def test_averages_are_those_of_pandas(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [
        {"seed": s, "a": a, "b": b, "m": draw.normal(), "n": draw.normal()}
        for a, b, s in itertools.product([1, 2, 3], ["x", "y"], range(4))
    ]
    for row in rows:
        add_job(tmp_path, f"b={row['b']} seed={row['seed']} +a={row['a']}", {"m": row["m"], "n": row["n"]})
    expected = pd.DataFrame(rows).groupby(["a", "b"])[["m", "n"]].agg(["mean", "sem"])
    table = summarise(read_sweep(tmp_path), ["m", "n"])
    assert len(table) == 6
    for _, row in table.iterrows():
        for name in ("m", "n"):
            mean, error = expected.loc[(int(row["a"]), row["b"]), name]
            assert row[name] == pytest.approx(mean)
            assert row[f"{name} standard error"] == pytest.approx(error)


def test_failed_jobs_are_counted_and_named(tmp_path: Path) -> None:
    add_job(tmp_path, "a=1 seed=1", {"kl": 1.0})
    add_job(tmp_path, "a=1 seed=2", None)
    add_job(tmp_path, "a=2 seed=1", None)
    runs = read_sweep(tmp_path)
    table = summarise(runs, ["kl"])
    assert table[["runs", "failed"]].to_numpy().tolist() == [[1, 1], [0, 1]]
    assert np.isnan(table["kl"][1])
    assert run_table(runs)["status"].tolist() == [DONE, NO_METRICS, NO_METRICS]
    text = write_sweep_report(tmp_path)
    assert "3 jobs, 1 with results" in text
    assert f"job 2: {NO_METRICS} (a=2 seed=1)" in text


def test_jobs_that_never_started_are_named(tmp_path: Path) -> None:
    add_plan(tmp_path, "model=m", "seed=1,2", "sizes=[1,[2,3]],[4]", "name='p,q'")
    add_job(tmp_path, "model=m seed=1 sizes=[1,[2,3]] name='p,q'", {"kl": 1.0})
    add_job(tmp_path, "model=m seed=1 sizes=[4] name='p,q'", {"kl": 1.0})
    runs = read_sweep(tmp_path)
    assert [run.status for run in runs] == [DONE, DONE, NOT_STARTED, NOT_STARTED]
    assert runs[2].overrides == {"model": "m", "seed": "2", "sizes": "[1,[2,3]]", "name": "'p,q'"}
    assert runs[2].setting == runs[0].setting
    assert summarise(runs, ["kl"])["failed"].tolist() == [1, 1]


@pytest.mark.parametrize(("override", "sweeper"), [("a=range(1,9)", "x.BasicSweeper"), ("a=1,2,3", "x.OptunaSweeper")])
def test_no_jobs_are_invented_where_the_plan_cannot_be_read(tmp_path: Path, override: str, sweeper: str) -> None:
    add_plan(tmp_path, override, sweeper=sweeper)
    add_job(tmp_path, "a=1", {"kl": 1.0})
    assert len(read_sweep(tmp_path)) == 1


def test_missing_numbers_are_left_out_and_reported(tmp_path: Path) -> None:
    add_job(tmp_path, "seed=1", {"kl": 1.0, "acc": 0.5})
    add_job(tmp_path, "seed=2", {"kl": None, "acc": 0.7})
    add_job(tmp_path, "seed=3", {"acc": 0.9})
    runs = read_sweep(tmp_path)
    assert summarise(runs, ["kl", "acc"])[["kl", "acc"]].iloc[0].tolist() == pytest.approx([1.0, 0.7])
    assert remarks(runs, ["kl", "acc"]) == ["kl: no number in job 1, 2; left out of the mean"]


def test_the_same_seed_twice_is_one_run(tmp_path: Path) -> None:
    for job, kl in enumerate([1.0, 1.0, 1.0, 3.0]):
        add_job(tmp_path, "a=1" if job < 3 else "a=1 seed=7", {"kl": kl, "seed": 0 if job < 3 else 7})
    runs = read_sweep(tmp_path)
    assert [run.seed for run in runs] == ["0", "0", "0", "7"]
    line = summarise(runs, ["kl"]).iloc[0]
    assert (line["runs"], line["kl"], line["kl standard error"]) == pytest.approx((2, 2.0, 1.0))
    assert remarks(runs, ["kl"]) == ["jobs 0, 1, 2: same overrides, same seed; counted as one run"]


def test_jobs_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 2):
        add_job(tmp_path, f"a={number}", {"kl": 0.0}, job=str(number))
    assert [run.job for run in read_sweep(tmp_path)] == ["2", "9", "10"]


def test_metrics_shown_by_default(tmp_path: Path) -> None:
    facts = {"fit_seconds": 0.1, "kl_standard_error/9": 0.2, "rows": 3, "ok": True, "graph": "g", "concentration": 1.0}
    for seed in (1, 2):
        metrics = {k: v * seed if isinstance(v, float) else v for k, v in facts.items()}
        add_job(tmp_path, f"model.concentration={seed}", {"kl/9": 1.0 * seed, "same": 5.0, **metrics, "rows": seed})
    runs = read_sweep(tmp_path)
    assert choose_metrics(runs) == ["kl/9"]
    assert choose_metrics(runs, ["same", "kl*"]) == ["same", "kl/9", "kl_standard_error/9"]
    assert choose_metrics(runs[:1]) == ["kl/9", "same"]  # nothing differs


def test_settings_are_not_compared_by_test_rows_unless_asked(tmp_path: Path) -> None:
    for seed in (1, 2):
        add_job(tmp_path, f"seed={seed}", {"test/accuracy": 0.1 * seed, "val/accuracy": 0.2 * seed})
    runs = read_sweep(tmp_path)
    assert choose_metrics(runs) == ["val/accuracy"]
    assert choose_metrics(runs, ["test/accuracy"]) == ["test/accuracy"]


def test_a_wrong_metric_lists_those_there_are(tmp_path: Path) -> None:
    add_job(tmp_path, "seed=1", {"kl/10": 1.0, "graph": "g", "val/accuracy": 0.5})
    with pytest.raises(DataError, match=r"Metric 'kl': no finished run has it. There are: kl/10, val/accuracy\."):
        choose_metrics(read_sweep(tmp_path), ["kl"])


@pytest.mark.parametrize("content", ['{"kl": 1.0', "", "[1]", b"\xff\xfe{"])
def test_a_broken_metrics_file_is_named(tmp_path: Path, content: str | bytes) -> None:
    add_job(tmp_path, "seed=1", {"kl": 1.0})
    path = add_job(tmp_path, "seed=2", {"kl": 1.0}) / "metrics.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(
        DataError, match=r"1/metrics\.json: (not valid JSON|expected a mapping of names to values, got a list)"
    ):
        read_sweep(tmp_path)


@pytest.mark.parametrize(
    "plan", ["hydra: 5", "hydra: {sweeper: {_target_: [1]}}", "hydra: {}", "a: 1", "- 1", "a: [", "a: !!bool x"]
)
def test_an_odd_plan_raises(plan: str, tmp_path: Path) -> None:
    add_job(tmp_path, "seed=1", {"kl": 1.0})
    (tmp_path / "multirun.yaml").write_text(plan)
    with pytest.raises(DataError, match=r"multirun\.yaml: (expected what Hydra|expected a mapping|not valid YAML)"):
        read_sweep(tmp_path)


def test_whole_numbers_beyond_floating_point_are_left_out(tmp_path: Path) -> None:
    add_job(tmp_path, "seed=1", {"kl": 1.0, "huge": 10**400, "count": 3})
    (run,) = read_sweep(tmp_path)
    assert run.metrics == {"kl": 1.0, "count": 3.0}


@pytest.mark.parametrize(("content", "message"), [("a: [", "not valid YAML"), ("a: 1", "expected a YAML list")])
def test_a_broken_overrides_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = add_job(tmp_path, "seed=2", {"kl": 1.0}) / ".hydra" / "overrides.yaml"
    path.write_text(content)
    with pytest.raises(DataError, match=rf"0/\.hydra/overrides\.yaml: {message}"):
        read_sweep(tmp_path)


def test_folders_without_runs_raise(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere', which is not a folder"):
        read_sweep(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"expected a folder per job with \.hydra/overrides\.yaml, found none"):
        read_sweep(tmp_path)


def test_combinations_are_ranked_and_settings_have_effects(tmp_path: Path) -> None:
    means = {("p", "1"): 1.0, ("p", "2"): 2.0, ("q", "1"): 4.0, ("q", "2"): 9.0}
    for (a, b), kl in means.items():
        for seed in (1, 2):
            add_job(tmp_path, f"a={a} b={b} seed={seed}", {"kl": kl + 0.1 * seed, "accuracy": -kl})
    text = write_sweep_report(tmp_path, ["kl"])
    summary, table = pd.read_csv(tmp_path / "summary.csv"), pd.read_csv(tmp_path / "effects.csv")
    assert summary["rank"].tolist() == [1, 2, 3, 4]
    assert table["setting"].tolist() == ["a", "a", "b", "b"]  # a has the larger effect
    assert table["kl"].tolist() == pytest.approx([1.65, 6.65, 2.65, 5.65])
    assert table["runs"].tolist() == [4] * 4
    assert "effect of each setting on kl (smaller is better)" in text
    assert "not every combination" not in text
    write_sweep_report(tmp_path, ["accuracy"])
    assert pd.read_csv(tmp_path / "summary.csv")["rank"].tolist() == [1, 2, 3, 4]  # larger is better
    add_job(tmp_path, "a=r b=1 seed=1", {"kl": 0.5})
    add_job(tmp_path, "a=r b=2 seed=1", None)
    text = write_sweep_report(tmp_path, ["kl"])
    assert "not every combination has results" in text
    lines = [line.split() for line in text.splitlines()]
    assert lines[2][:3] == ["1", "r", "1"]
    assert ["-", "r", "2", "0", "1", "-"] in lines  # no result, no rank


def test_a_search_is_ranked_by_its_objective_and_cut_into_thirds(tmp_path: Path) -> None:
    for number in range(9):
        job = add_job(tmp_path, f"a={number / 8}", {"kl": 1.0 * number, "mine": 1.0 * number})
        (job / ".hydra" / "resolved.yaml").write_text("objective: mine")
        (job / ".hydra" / "hydra.yaml").write_text("hydra: {sweeper: {direction: maximize}}")
    text = write_sweep_report(tmp_path)
    assert "effect of each setting on mine (larger is better)" in text
    assert pd.read_csv(tmp_path / "summary.csv")["rank"].tolist() == list(range(9, 0, -1))
    table = pd.read_csv(tmp_path / "effects.csv")
    assert table["value"].tolist() == ["0 to 0.25", "0.375 to 0.625", "0.75 to 1"]
    assert table["mine"].tolist() == pytest.approx([1.0, 4.0, 7.0])


def test_a_metric_whose_better_values_are_unknown_is_not_ranked(tmp_path: Path) -> None:
    for a in (1, 2):
        add_job(tmp_path, f"a={a}", {"something": 1.0 * a})
    assert "effect of" not in write_sweep_report(tmp_path)
    assert "rank" not in pd.read_csv(tmp_path / "summary.csv")
    assert pd.read_csv(tmp_path / "effects.csv")["something"].tolist() == [1.0, 2.0]


def test_resumed_jobs_are_no_other_setting_and_missing_ones_have_a_remedy(tmp_path: Path) -> None:
    add_plan(tmp_path, "a=1", "seed=1,2,3", "resume=true")
    add_job(tmp_path, "a=1 seed=1", {"kl": 1.0})
    add_job(tmp_path, "a=1 seed=2 resume=true", {"kl": 2.0})
    text = write_sweep_report(tmp_path)
    assert pd.read_csv(tmp_path / "summary.csv")["runs"].tolist() == [2]
    assert f"To run what is missing (1): the same command with resume=true hydra.sweep.dir={tmp_path}" in text


def drawn(folder: Path) -> list[Any]:
    runs = read_sweep(folder)
    return draw_sweep(summarise(runs, ["kl"]), override_names(runs)[0], ["kl"]).axes


def test_numeric_overrides_are_drawn_as_lines(tmp_path: Path) -> None:
    for c, x, seed in itertools.product(["p", "q"], [100, 1, 10], [1, 2]):
        add_job(tmp_path, f"learner.ridge.0={x} c={c} seed={seed}", {"kl": x * (2.0 if c == "q" else 1.0) + seed})
    (axes,) = drawn(tmp_path)
    lines = {container.get_label(): container.lines[0] for container in axes.containers}
    assert list(lines) == ["c=p", "c=q"]
    assert lines["c=q"].get_xdata().tolist() == [1.0, 10.0, 100.0]  # from left to right
    assert lines["c=q"].get_ydata().tolist() == [3.5, 21.5, 201.5]
    assert (axes.get_xlabel(), axes.get_xscale()) == ("learner.ridge.0", "log")


def test_a_random_search_is_drawn_as_points_for_each_setting(tmp_path: Path) -> None:
    values = np.random.default_rng(1).uniform(1, 2, (8, 2)).tolist()
    for a, b in values:
        add_job(tmp_path, f"a={a} b={b}", {"kl": a + b})
    panels = drawn(tmp_path)
    assert [axes.get_xlabel() for axes in panels] == ["a", "b"]
    assert panels[1].containers[0].lines[0].get_xdata().tolist() == [b for _, b in values]


def test_choices_are_drawn_with_their_names(tmp_path: Path) -> None:
    for graph, learner in itertools.product(["hmm", "grid"], ["pbp", "em"]):
        add_job(tmp_path, f"model/graph={graph} my.learner={learner}", {"kl": 1.0})
    add_job(tmp_path, "model/graph=hmm", None)
    (axes,) = drawn(tmp_path)
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[0] == "model/graph=hmm, learner=pbp"
    assert labels[-1] == "model/graph=hmm, learner=default"
    assert len(labels) == 5


def test_command_line_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep, output = tmp_path / "sweep", tmp_path / "out"
    for a, seed in itertools.product([0.1, 0.123456789], [1, 2]):
        add_job(sweep, f"a={a} seed={seed}", {"kl": a + seed, "acc": 0.5 * seed})
    assert main(["sweep", str(sweep), "--metric", "kl", "--metric", "acc", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    line = ["2", "0.1235", "2", "1.623", "±", "0.5", "0.75", "±", "0.25"]  # the second in rank
    assert line in [line.split() for line in printed.splitlines()]
    assert str(output) in printed
    assert {path.name for path in output.iterdir()} == {
        *("sweep.csv", "summary.csv", "effects.csv", "sweep.png", "report.html")
    }
    assert (output / "sweep.png").read_bytes().startswith(b"\x89PNG")
    summary = pd.read_csv(output / "summary.csv")
    assert summary["a"].tolist() == [0.1, 0.123456789]
    assert summary["kl"].tolist() == pytest.approx([1.6, 1.623456789])
    assert pd.read_csv(output / "sweep.csv")["kl"].tolist() == pytest.approx([1.1, 2.1, 1.123456789, 2.123456789])


def test_the_page_of_a_sweep_leads_to_those_of_its_runs(tmp_path: Path) -> None:
    sweep = tmp_path / "my sweep"
    done = add_job(sweep, "a=<b> seed=1", {"kl": 0.25})
    (done / "report.html").write_text("run")
    add_job(sweep, "a=y seed=1", None)
    for output in (sweep, tmp_path / "elsewhere"):
        write_sweep_report(sweep, output=output)
        text = (output / "report.html").read_text(encoding="utf-8")
        (target,) = re.findall(r'<a href="([^"]+)">job 0: a=&lt;b&gt; seed=1</a>', text)
        assert (output / unquote(target)).read_text() == "run"
        assert "<li>job 1: a=y seed=1 (no metrics.json: failed or not finished)</li>" in text
        assert '<td class="number">0.25</td>' in text
        assert "data:image/png;base64," in text


def test_command_line_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(tmp_path / "nowhere")]) == 1
    assert "nowhere', which is not a folder" in capsys.readouterr().err
    add_job(tmp_path, "seed=1", {"kl": 1.0})
    assert main(["sweep", str(tmp_path), "--metric", "nix"]) == 1
    assert "There are: kl." in capsys.readouterr().err
    assert not (tmp_path / "summary.csv").exists()


def test_a_sweep_of_failures_still_has_a_report(tmp_path: Path) -> None:
    add_job(tmp_path, "seed=1", None)
    assert "1 jobs, 0 with results" in write_sweep_report(tmp_path)
    assert (tmp_path / "sweep.csv").exists()
    assert not (tmp_path / "sweep.png").exists()


def test_objective_is_a_finite_number_of_the_run() -> None:
    metrics = {"kl/10": 0.5, "rows": 3, "graph": "g", "error": None, "bad": float("nan")}
    assert objective_value(metrics, "kl/10") == 0.5
    assert type(objective_value(metrics, "rows")) is float
    with pytest.raises(DataError, match=r"objective=kl: the run has no such metric. Choose among: kl/10, rows, bad"):
        objective_value(metrics, "kl")
    for name in ("graph", "error", "bad"):
        with pytest.raises(DataError, match=f"objective={name}: expected a finite number, got"):
            objective_value(metrics, name)


def test_a_search_without_objective_raises() -> None:
    check_objective(None)
    check_objective("kl")
    with pytest.raises(ArgumentError, match=r"expected objective=<name in metrics\.json>, got none"):
        check_objective("")
