"""Parts, results, progress, reports and sweeps of runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest
import yaml
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from torchpbp import PBP, DiscreteNetwork, templates
from torchpbp.errors import ArgumentError, RunError
from torchpbp.experiments.grid import Run
from torchpbp.experiments.progress import Progress, duration
from torchpbp.experiments.report import write_report
from torchpbp.experiments.results import Picture, Result, means_and_errors, metrics_of
from torchpbp.experiments.run import check_unfinished, objective_value, without_paths
from torchpbp.experiments.sweep import averaged, printed, read_jobs

# -- parts -----------------------------------------------------------------------------------------------------------


def test_finished_parts_are_not_computed_again(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []

    def measure(rows: int, repeat: int) -> dict[str, float]:
        calls.append((rows, repeat))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return {"kl": rows / 3 + repeat, "none": math.nan}

    points = [(rows, repeat) for rows in (10, 20) for repeat in range(2)]
    with pytest.raises(KeyboardInterrupt):
        Run(0, tmp_path, {"a": 1}).table("kl", ("rows", "repeat"), points, measure)
    table = Run(0, tmp_path, {"a": 1}).table("kl", ("rows", "repeat"), points, measure)
    assert calls == [(10, 0), (10, 1), (20, 0), (20, 0), (20, 1)]
    assert table["kl"].tolist() == [rows / 3 + repeat for rows, repeat in points]
    assert table["none"].isna().all()
    again = Run(0, tmp_path, {"a": 1}).table("kl", ("rows", "repeat"), points, measure)
    assert again.equals(table)
    assert len(calls) == 5
    Run(0, tmp_path, {"a": 2}).table("kl", ("rows", "repeat"), points, measure)  # other settings
    assert len(calls) == 9


def test_without_a_folder_nothing_is_kept() -> None:
    run = Run(3)
    assert [run.part("a", lambda: 1), run.part("a", lambda: 2)] == [1, 2]
    assert run.seeds(4, 2) == Run(3).seeds(4, 3)[:2]
    assert run.seeds(4, 2) != run.seeds(5, 2)


def test_folders_and_loggers_do_not_decide_results() -> None:
    settings = {"task": {"logger": {"csv": {}}, "callbacks": {"progress": 1, "stop": {"patience": 3}}, "rows": [1]}}
    assert without_paths(settings) == {"task": {"callbacks": {"stop": {"patience": 3}}, "rows": [1]}}


def test_a_finished_run_is_not_replaced(tmp_path: Path) -> None:
    check_unfinished(tmp_path, False)
    Result({"kl": 1.0}).write(tmp_path)
    check_unfinished(tmp_path, True)
    with pytest.raises(RunError, match="holds a finished run"):
        check_unfinished(tmp_path, False)


# -- results ---------------------------------------------------------------------------------------------------------


def test_results_become_files(tmp_path: Path) -> None:
    truth = DiscreteNetwork.random(templates.naive_bayes(3), seed=1)
    model = PBP(truth.graph).fit(truth.sample(200, seed=0))
    figure = Figure()
    figure.subplots().plot([1, 2])
    result = Result(
        {"none": math.inf, "name": "<PBP>", "kl/PBP/10": 0.5},
        pd.DataFrame({"rows": [10], "kl": [0.5]}),
        main=("kl/PBP/10", "not measured in this run"),
        pictures={"kl": Picture(figure, "KL by rows & <more>.")},
        tables={"more": pd.DataFrame({"a": range(300)})},
        models={"model": model},
    )
    result.write(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"metrics.json", "metrics.csv", "more.csv", "kl.png", "model.pt"}
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert list(metrics.items()) == [("kl/PBP/10", 0.5), ("none", None), ("name", "<PBP>")]  # the main one first
    assert PBP.load(tmp_path / "model.pt").fitted
    cfg = OmegaConf.create({"task": {"_target_": "package.some_task"}, "seed": 3})
    page = write_report(tmp_path, result, cfg, 75.0).read_text()
    assert "some task" in page
    assert "after 1 min 15 s" in page
    assert page.index("<b>0.5</b>kl/PBP/10") < page.index("data:image/png;base64,") < page.index("All metrics")
    assert "KL by rows &amp; &lt;more&gt;." in page
    assert "&lt;PBP&gt;" in page
    assert "100 more rows are in the file" in page
    assert "model: diagnostics" in page
    assert "seed: 3" in page
    assert "http" not in page.replace("http-equiv", "")  # nothing is fetched
    assert "0.5" in result.described()


def test_means_come_with_standard_errors() -> None:
    table = pd.DataFrame({"model": ["b", "b", "a"], "rows": [1, 1, 1], "kl": [1.0, 3.0, 5.0]})
    summary = means_and_errors(table, ("model", "rows"), ["kl"])
    assert metrics_of(summary, ("model", "rows")) == {
        "kl/b/1": 2.0,
        "kl_standard_error/b/1": 1.0,
        "kl/a/1": 5.0,
        "kl_standard_error/a/1": None,
    }


def test_a_search_looks_at_a_number() -> None:
    metrics = {"kl": 0.5, "none": None, "model": "PBP"}
    assert objective_value(metrics, "kl") == 0.5
    for name in ("none", "model", "lk"):
        with pytest.raises(ArgumentError, match=rf"objective={name}: expected a metric with a number.*\['kl'\]"):
            objective_value(metrics, name)


# -- progress --------------------------------------------------------------------------------------------------------


def test_progress_is_a_line_per_tenth_where_output_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("fits", 25) as progress:
        for i in range(25):
            progress.advance(note=f"number {i}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("fits: 12 % after ")
    assert "left, number 2" in lines[0]
    assert lines[-1].endswith(", number 24")
    with Progress("fits", 3, shown=False) as progress:
        progress.advance(3)
    assert capsys.readouterr().err == ""


def test_durations_are_written_as_people_do() -> None:
    assert [duration(s) for s in (3.14, 75, 7322)] == ["3.1 s", "1 min 15 s", "2 h 2 min"]


# -- sweeps ----------------------------------------------------------------------------------------------------------


def test_a_sweep_is_averaged_over_seeds(tmp_path: Path) -> None:
    jobs = [("ridge", 1, 0.1), ("ridge", 2, 0.3), ("mlp", 1, 0.2), ("mlp", 2, None)]
    for number, (regressor, seed, kl) in enumerate(jobs):
        folder = tmp_path / str(number)
        (folder / ".hydra").mkdir(parents=True)
        overrides = ["experiment=compare", f"+regressor={regressor}", f"seed={seed}", "resume=true"]
        (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(overrides))
        if kl is not None:
            metrics = {"kl": kl, "graph": "diamond", "seed": seed, "none": None}
            (folder / "metrics.json").write_text(json.dumps(metrics))
    settings, numbers = read_jobs(tmp_path)
    table = averaged(settings, numbers)
    assert list(table) == ["regressor", "jobs", "kl", "kl ±"]
    assert table["jobs"].tolist() == [2, 1]  # the last job has no results
    assert table["kl"].tolist() == pytest.approx([0.2, 0.2])
    assert table["kl ±"][0] == pytest.approx(0.1)
    assert "0.2 ± 0.1" in printed(table)
    seeds_only = averaged(settings[:2], numbers[:2])
    assert list(seeds_only) == ["jobs", "kl", "kl ±"]
