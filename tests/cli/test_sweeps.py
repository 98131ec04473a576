"""Sweeps as people run them: the summary at the end of a multirun, and searches by Optuna."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from tests.cli.test_train import FILES
from tests.processes import run_script
from tests.robustness.runs import results
from torchpbp.errors import ArgumentError, DataError
from torchpbp.experiments.running.parallel_jobs import JOBLIB, jobs_at_once, parallel_settings, threads_per_job
from torchpbp.experiments.running.program import start

ROOT = Path(__file__).parents[2]
SEARCHES = sorted(path.stem for path in (ROOT / "conf" / "sweep" / "optuna").glob("*.yaml"))
QUICK = ("model=synthetic", "debug=default", "model.sizes=[200]", "model.questions=1")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_script(ROOT / "train.py", *arguments, folder=folder)


def composed(*overrides: str, hydra: bool = False) -> DictConfig:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("config", overrides=[*overrides, "output_dir=null"], return_hydra_config=hydra)


@pytest.mark.slow
def test_a_multirun_ends_with_its_summary(tmp_path: Path) -> None:
    result = run(tmp_path, "-m", *QUICK, "seed=1,2", "learner.ridge.1=0.1,1000")
    assert result.returncode == 0, result.stderr
    assert "raised" not in result.stderr  # a callback that fails leaves only a warning
    (sweep,) = (tmp_path / "multirun").iterdir()
    assert {"0", "1", "2", "3", "sweep.csv", "summary.csv", "sweep.png"} <= {path.name for path in sweep.iterdir()}
    assert all({path.name for path in (sweep / str(job)).iterdir()} == FILES for job in range(4))
    kl = [json.loads((sweep / str(job) / "metrics.json").read_text())["kl/200"] for job in range(4)]
    assert len(set(kl)) == 4  # both the seed and the ridge matter
    table = pd.read_csv(sweep / "summary.csv")
    assert table["learner.ridge.1"].tolist() == [0.1, 1000]
    assert table["runs"].tolist() == [2, 2]
    assert table["kl/200"].tolist() == pytest.approx([statistics.fmean(kl[0::2]), statistics.fmean(kl[1::2])])
    errors = [statistics.stdev(values) / 2**0.5 for values in (kl[0::2], kl[1::2])]
    assert table["kl/200 standard error"].tolist() == pytest.approx(errors)
    end = result.stdout[result.stdout.rindex("jobs, ") - 2 :]
    assert "4 jobs, 4 with results" in end
    assert f"{statistics.fmean(kl[0::2]):.4g} ± {errors[0]:.2g}" in end


@pytest.mark.slow
def test_a_multirun_with_a_failure_has_its_summary_too(tmp_path: Path) -> None:
    result = run(tmp_path, "-m", *QUICK[:3], "seed=1", "model.questions=[[a1,b1]],[[a1,A]]")
    assert result.returncode != 0
    assert "'A'" in result.stderr  # a latent, which the run notices
    assert "2 jobs, 1 with results" in result.stdout
    assert "job 1: no metrics.json: failed or not finished" in result.stdout
    (sweep,) = (tmp_path / "multirun").iterdir()
    assert pd.read_csv(sweep / "summary.csv")["failed"].tolist() == [0, 1]


@pytest.mark.slow
def test_jobs_run_at_once_and_an_interrupted_sweep_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs the extra 'sweep'")
    met, sweep = tmp_path / "met", tmp_path / "sweep"
    met.mkdir()
    meet = f"+callbacks.meet={{_target_:tests.cli.meeting.Meet,folder:'{met}',jobs:2}}"  # fails unless two run at once
    arguments = ("-m", "model=digits", "debug=default", "seed=1,2", meet, f"hydra.sweep.dir={sweep}")
    result = run(tmp_path, *arguments, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert result.returncode == 0, result.stderr
    assert "2 jobs, 2 with results" in result.stdout
    assert "step/s" not in result.stderr  # no progress bars that overwrite each other
    parallel, kept = [results(sweep / job) for job in "01"], (sweep / "0" / "metrics.json").stat().st_mtime_ns
    assert parallel[0] != parallel[1]
    shutil.rmtree(sweep / "1")  # as if the sweep had ended before it
    result = run(tmp_path, *arguments, "resume=true")  # one job after the other
    assert result.returncode == 0, result.stderr
    assert (sweep / "0" / "metrics.json").stat().st_mtime_ns == kept
    again = results(sweep / "1")
    assert {k: v for k, v in again.items() if isinstance(v, str)} == {
        k: v for k, v in parallel[1].items() if isinstance(v, str)
    }
    numbers = {k: v for k, v in parallel[1].items() if not isinstance(v, str)}
    assert {k: again[k] for k in numbers} == pytest.approx(numbers, rel=1e-6)
    assert pd.read_csv(sweep / "summary.csv")["runs"].tolist() == [2]  # resumed jobs are not another setting


def test_threads_are_shared_by_the_jobs_that_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    assert [threads_per_job(None, jobs) for jobs in (2, 3, 16)] == [4, 2, 1]
    assert threads_per_job(None, 1) is None
    assert (threads_per_job(16, 1), threads_per_job(4, 2)) == (16, 4)
    with pytest.raises(ArgumentError, match=r"expected at most 4 with 2 jobs at once on 8 cores, got 5.*n_jobs=1\."):
        threads_per_job(5, 2)


@pytest.mark.parametrize(("n_jobs", "jobs"), [(3, 3), (-1, 8), (-2, 7), (-20, 1)])
def test_jobs_at_once_are_counted_as_joblib_does(n_jobs: int, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hydra = {"launcher": {"_target_": JOBLIB, "n_jobs": n_jobs}, "mode": RunMode.MULTIRUN}
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(HydraConfig, "get", lambda: OmegaConf.create(hydra))
    assert jobs_at_once() == jobs
    hydra["mode"] = RunMode.RUN
    with pytest.raises(ArgumentError, match=r"expected a multirun \(train\.py -m …\), got a single run"):
        jobs_at_once()


def test_a_job_of_several_cannot_start_processes() -> None:
    cfg = composed("model=sequence_labelling", "trainer=ddp")
    assert parallel_settings(cfg, 1) == cfg
    with pytest.raises(ArgumentError, match=r"trainer=ddp: expected jobs one after the other"):
        parallel_settings(cfg, 2)
    assert not parallel_settings(composed(*QUICK), 2).model.verbose


def test_train_returns_its_objective(tmp_path: Path) -> None:
    value = start(composed(*QUICK, "objective=kl/200"))
    assert isinstance(value, float)
    assert 0 < value < 1
    assert start(composed(*QUICK)) is None
    with pytest.raises(DataError, match=r"objective=kl: the run has no such metric. Choose among: kl/200, "):
        start(composed(*QUICK, "objective=kl"))


def test_a_search_without_an_objective_stops_before_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ArgumentError, match="A search needs the metric it looks at"):
        start(composed(*QUICK, "objective=''"))
    assert "KL mean" not in capsys.readouterr().out


@pytest.mark.parametrize("model", SEARCHES)
def test_searched_settings_exist(model: str) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs the extra 'sweep'")
    cfg = composed("sweep=optuna", f"model={model}", hydra=True)
    params = cfg.hydra.sweeper.params
    assert params
    for setting in params:
        assert OmegaConf.select(cfg, setting) is not None, setting
    assert cfg.objective
    assert not cfg.objective.startswith("test/")  # nothing is chosen by test rows
    assert cfg.hydra.sweeper.direction == ("maximize" if "accuracy" in cfg.objective else "minimize")


def test_optuna_finds_the_best_of_its_trials(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs the extra 'sweep'")
    arguments = ("-m", "sweep=optuna", *QUICK, "hydra.sweeper.storage=sqlite:///study.db", "hydra.sweeper.n_trials=3")
    result = run(tmp_path, *arguments)
    assert result.returncode == 0, result.stderr
    (sweep,) = (tmp_path / "multirun").iterdir()
    kl = [json.loads((sweep / str(job) / "metrics.json").read_text())["kl/200"] for job in range(3)]
    assert len(set(kl)) == 3
    found = yaml.safe_load((sweep / "optimization_results.yaml").read_text())
    assert found["best_value"] == pytest.approx(min(kl))
    best = yaml.safe_load((sweep / str(kl.index(min(kl))) / ".hydra" / "overrides.yaml").read_text())
    for name, value in found["best_params"].items():
        assert f"{name}={value}" in best
    assert "3 jobs, 3 with results" in result.stdout
    assert (tmp_path / "study.db").exists()
