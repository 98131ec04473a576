"""The runs of a multirun folder, gathered into one table and averaged over seeds."""

from __future__ import annotations

import fnmatch
import itertools
import math
import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from torchpbp.errors import DataError
from torchpbp.experiments.running.reading import REMEDY, folder_of, read_mapping, read_texts

SEED = "seed"
RESUME = "resume"  # no setting of the experiment: resumed jobs are repeats of those that were not
PLAN = "multirun.yaml"
"""What Hydra notes about a sweep over listed values before its first job."""
DONE, NO_METRICS, NOT_STARTED = "done", "no metrics.json: failed or not finished", "not started"
MOST_DEFAULT_METRICS = 6
LARGEST = 10**300  # whole numbers beyond are not metrics, and no floating-point numbers


@dataclass(frozen=True)
class Run:
    """One job of a sweep.

    Args:
        job: its folder, seen from the sweep's.
        overrides: given on its command line, key -> value as written.
        status: ``DONE``, ``NO_METRICS`` or ``NOT_STARTED``.
        metrics: its numbers; NaN where the file has null. Texts are left out.
        counts: names of the metrics that are whole numbers.
    """

    job: str
    overrides: dict[str, str]
    status: str
    metrics: dict[str, float]
    counts: frozenset[str] = frozenset()

    @property
    def setting(self) -> tuple[tuple[str, str], ...]:
        """The overrides without the seed: runs that share it are repeats of each other."""
        return tuple(sorted((k, v) for k, v in self.overrides.items() if k != SEED))

    @property
    def seed(self) -> str:
        """As overridden, else as the run reports it; empty if neither says."""
        reported = self.metrics.get(SEED, math.nan)
        return self.overrides.get(SEED, "" if math.isnan(reported) else f"{reported:g}")


def read_sweep(folder: str | os.PathLike[str]) -> list[Run]:
    """All jobs of a multirun folder, in their order: finished, failed, and those that never started.

    Args:
        folder: holds a folder per job, each with .hydra/overrides.yaml and, if the job succeeded, metrics.json. Jobs that
            never started are known from multirun.yaml, where the sweep was one of listed values.

    Raises:
        DataError: no folder, no job in it, or a file that cannot be read.
    """
    root = folder_of(folder, "a multirun folder, such as multirun/<date_time>")
    jobs = {path.parent.parent for path in root.rglob(".hydra/overrides.yaml")}
    if not jobs:
        raise DataError(
            f"{root}: expected a folder per job with .hydra/overrides.yaml, found none. Give the folder of one multirun, "
            "such as multirun/<date_time>."
        )
    names = {path.relative_to(root).as_posix(): path for path in jobs}
    runs = [_read_run(name, names[name]) for name in sorted(names, key=_natural)]
    if all(name.isdigit() for name in names):
        for number, overrides in enumerate(_planned(root / PLAN)):
            if str(number) not in names:
                runs.append(Run(str(number), overrides, NOT_STARTED, {}))
    return sorted(runs, key=lambda run: _natural(run.job))


def metric_names(runs: Sequence[Run]) -> list[str]:
    """Names of the metrics that are a number in at least one run, in the order of the files."""
    numbers = (name for run in runs for name, value in run.metrics.items() if not math.isnan(value))
    return list(dict.fromkeys(numbers))


def choose_metrics(runs: Sequence[Run], wanted: Sequence[str] | None = None) -> list[str]:
    """The metrics to report.

    By default those that differ between runs, without timings, standard errors, whole numbers and settings, six at most.
    Where there are validation metrics ("val/…"), only those: settings are not to be chosen by test rows.

    Args:
        runs: of a sweep.
        wanted: names, or patterns such as ``kl/*``.

    Raises:
        DataError: no run has such a metric.
    """
    names = metric_names(runs)
    if wanted:
        chosen = []
        for pattern in wanted:
            matching = [n for n in names if n == pattern] or fnmatch.filter(names, pattern)
            if not matching:
                raise DataError(f"Metric {pattern!r}: no finished run has it. There are: {', '.join(names) or 'none'}.")
            chosen += matching
        return list(dict.fromkeys(chosen))
    counts = {name for run in runs for name in run.counts}
    settings = {key.rpartition(".")[2] for run in runs for key in run.overrides}
    left_out = counts | settings
    names = [n for n in names if n not in left_out and "seconds" not in n and "standard_error" not in n]
    names = [n for n in names if n.startswith("val/")] or names
    differing = [n for n in names if len({run.metrics[n] for run in runs if n in run.metrics}) > 1]
    return (differing or names)[:MOST_DEFAULT_METRICS]


def override_names(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """Overrides other than the seed: those that differ between runs, and those that all runs share."""
    keys = list(dict.fromkeys(key for run in runs for key in run.overrides if key != SEED))
    differing = [k for k in keys if len({run.overrides.get(k) for run in runs}) > 1]
    return differing, [k for k in keys if k not in differing]


def run_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per job: job, status, overrides, seed, and all its metrics."""
    differing, shared = override_names(runs)
    rows = [
        {"job": run.job, "status": run.status}
        | {key: run.overrides.get(key, "") for key in [*differing, *shared]}
        | {SEED: run.seed}
        | {name: run.metrics.get(name, math.nan) for name in metric_names(runs) if name != SEED}
        for run in runs
    ]
    return pd.DataFrame(rows)


def summarise(runs: Sequence[Run], metrics: Sequence[str]) -> pd.DataFrame:
    """One row per combination of overrides other than the seed, averaged over seeds.

    Runs that repeat a seed of the same combination are averaged first, for they tell nothing about the spread over seeds.

    Args:
        runs: of a sweep.
        metrics: which to average.

    Returns:
        Columns: the overrides; runs (seeds with results); failed (jobs without results); and for each metric its mean,
        under its name, and "<name> standard error" (NaN for fewer than two seeds).
    """
    differing, shared = override_names(runs)
    settings = list(dict.fromkeys(run.setting for run in runs))
    rows = []
    for setting in settings:
        members = [run for run in runs if run.setting == setting]
        done = [run for run in members if run.status == DONE]
        row: dict[str, Any] = {key: dict(setting).get(key, "") for key in [*differing, *shared]}
        row |= {"runs": len({run.seed for run in done}), "failed": len(members) - len(done)}
        for name in metrics:
            row[name], row[standard_error(name)] = _mean_and_error(done, name)
        rows.append(row)
    return pd.DataFrame(rows)


def standard_error(name: str) -> str:
    """Column of a metric's standard error."""
    return f"{name} standard error"


def remarks(runs: Sequence[Run], metrics: Sequence[str]) -> list[str]:
    """What the averages leave out: jobs without results, missing values, seeds run twice. Empty if nothing is."""
    notes = [f"job {run.job}: {run.status} ({_written(run.overrides)})" for run in runs if run.status != DONE]
    done = [run for run in runs if run.status == DONE]
    for name in metrics:
        without = [run.job for run in done if math.isnan(run.metrics.get(name, math.nan))]
        if without:
            notes.append(f"{name}: no number in job {', '.join(without)}; left out of the mean")
    for _, members in itertools.groupby(
        sorted(done, key=lambda r: (r.setting, r.seed)), key=lambda r: (r.setting, r.seed)
    ):
        jobs = [run.job for run in members]
        if len(jobs) > 1:
            notes.append(f"jobs {', '.join(jobs)}: same overrides, same seed; counted as one run")
    return notes


def _read_run(name: str, folder: Path) -> Run:
    overrides = dict(_split(item) for item in read_texts(folder / ".hydra" / "overrides.yaml"))
    overrides.pop(RESUME, None)
    path = folder / "metrics.json"
    if not path.exists():
        return Run(name, overrides, NO_METRICS, {})
    content = read_mapping(path)
    numbers = {
        k: v for k, v in content.items() if type(v) is float or (type(v) is int and abs(v) < LARGEST)
    }  # not bool
    metrics = {k: float(numbers.get(k, math.nan)) for k, v in content.items() if v is None or k in numbers}
    return Run(name, overrides, DONE, metrics, frozenset(k for k, v in numbers.items() if isinstance(v, int)))


def _planned(path: Path) -> Iterator[dict[str, str]]:
    """Overrides of all jobs of a sweep over listed values, job 0 first; nothing for other kinds of sweeps."""
    if not path.exists():
        return
    plan = read_mapping(path)
    try:
        hydra = plan["hydra"]
        if not hydra["sweeper"]["_target_"].endswith(".BasicSweeper"):
            return  # a search decides as it goes
        items = [f"{k}={v}" for k, v in (hydra["sweeper"].get("params") or {}).items()] + hydra["overrides"]["task"]
        values = {key: _listed(value) for key, value in map(_split, items) if key != RESUME}
    except (AttributeError, LookupError, TypeError) as error:
        raise DataError(f"{path}: expected what Hydra notes about a multirun, got something else. {REMEDY}") from error
    if any(re.match(r"(choice|range|interval|glob|sort|shuffle)\(", v[0]) for v in values.values()):
        return
    yield from (dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values()))


def _listed(value: str) -> list[str]:
    """The values between commas; commas inside brackets or quotes belong to a value."""
    parts, depth, quote = [""], 0, ""
    for letter in value:
        if letter == "," and not depth and not quote:
            parts.append("")
            continue
        parts[-1] += letter
        if letter in "\"'" and quote in ("", letter):
            quote = "" if quote else letter
        elif not quote:
            depth += (letter in "[{(") - (letter in "]})")
    return [part.strip() for part in parts]


def _split(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key.lstrip("+"), value


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts job 10 after job 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _mean_and_error(runs: Sequence[Run], name: str) -> tuple[float, float]:
    """Mean over seeds and its standard error, from the runs that have a number."""
    by_seed: dict[str, list[float]] = {}
    for run in runs:
        value = run.metrics.get(name, math.nan)
        if not math.isnan(value):
            by_seed.setdefault(run.seed, []).append(value)
    means = [statistics.fmean(values) for values in by_seed.values()]
    error = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else math.nan
    return statistics.fmean(means) if means else math.nan, error


def _written(overrides: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in overrides.items())
