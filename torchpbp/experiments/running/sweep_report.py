"""Tables and a picture of a multirun: ``python -m torchpbp sweep multirun/<date_time>``.

train.py writes the same at the end of each multirun, by way of :class:`SweepSummary`.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
from hydra.experimental.callback import Callback

from torchpbp.errors import DataError, TorchPBPError
from torchpbp.experiments.running import html
from torchpbp.experiments.running.empty_folders import nearest_existing, remove_empty
from torchpbp.experiments.running.report import NAME as REPORT
from torchpbp.experiments.running.results import write_csv
from torchpbp.experiments.running.sweep_effects import Criterion, add_ranks, balanced, criterion, effects
from torchpbp.experiments.running.sweep_plots import write_sweep_plot
from torchpbp.experiments.running.sweeps import (
    DONE,
    PLAN,
    Run,
    choose_metrics,
    metric_names,
    override_names,
    read_sweep,
    remarks,
    run_table,
    standard_error,
    summarise,
)
from torchpbp.files.replacing import replacing


def write_sweep_report(
    folder: str | os.PathLike[str],
    metrics: Sequence[str] | None = None,
    output: str | os.PathLike[str] | None = None,
) -> str:
    """Summarise a multirun: combinations averaged over seeds and ranked, and the effect of each setting.

    Writes sweep.csv (a row per job), summary.csv (a row per combination), effects.csv (a row per value of a setting; if
    any setting but the seed was varied), sweep.png and report.html.

    Args:
        folder: of the multirun.
        metrics: names or patterns; the default is that of :func:`torchpbp.experiments.running.sweeps.choose_metrics`.
        output: folder for the files; the multirun's own by default.

    Returns:
        The summary as text.

    Raises:
        DataError: nothing to read, a broken file, no such metric, or files that cannot be written.
    """
    runs = read_sweep(folder)
    chosen = choose_metrics(runs, metrics)
    varied, by = override_names(runs)[0], criterion(folder, runs, chosen)
    summary = add_ranks(summarise(runs, chosen), by)
    effect = effects(summary, varied, chosen, by)
    text = format_report(runs, chosen, summary, effect, by)
    target = Path(folder if output is None else output)
    try:
        write_csv(target / "sweep.csv", run_table(runs))
        write_csv(target / "summary.csv", summary)
        if len(effect):
            write_csv(target / "effects.csv", effect)
        if chosen:  # no run has finished otherwise: nothing to draw
            write_sweep_plot(target / "sweep.png", summary, varied, chosen)
        with replacing(target / REPORT) as temporary:
            page = _page(Path(folder), target, runs, ranked(summary), effect, text, bool(chosen))
            temporary.write_text(page, encoding="utf-8")
    except OSError as error:
        raise DataError(f"Sweep report in {target}: could not be written: {error}. Choose another --output.") from error
    missing = sum(run.status != DONE for run in runs)
    if missing and (Path(folder) / PLAN).is_file():
        text += f"\nTo run what is missing ({missing}): the same command with resume=true hydra.sweep.dir={folder}"
    return f"{text}\nReport: {target / REPORT}"


def _page(
    folder: Path,
    target: Path,
    runs: Sequence[Run],
    summary: pd.DataFrame,
    effect: pd.DataFrame,
    text: str,
    drawn: bool,
) -> str:
    """The summary as a page that leads to the pages of the runs."""
    jobs = []
    for run in runs:
        page = folder / run.job / REPORT
        given = " ".join(f"{key}={value}" for key, value in run.overrides.items())
        status = "" if run.status == DONE else f" ({run.status})"
        where = Path(os.path.relpath(page, target)).as_posix() if page.is_file() else ""
        jobs.append((f"job {run.job}: {given}{status}", where))
    pictures = [html.picture((target / "sweep.png").read_bytes(), "sweep.png")] if drawn else []
    return html.page(
        f"Sweep {folder.name}",
        text.partition("\n")[0],
        [
            html.section("Means over seeds", html.table(summary)),
            *([html.section("Effect of each setting", html.table(effect))] if len(effect) else []),
            html.section("Pictures", html.pictures(pictures)),
            html.section("Jobs", html.listed(jobs)),
            html.section("As printed", html.code(text)),
        ],
    )


def ranked(summary: pd.DataFrame) -> pd.DataFrame:
    """The summary, best combination first; in the order of the jobs if there is no rank."""
    return summary.sort_values("rank", kind="stable", ignore_index=True) if "rank" in summary else summary


def format_report(
    runs: Sequence[Run], metrics: Sequence[str], summary: pd.DataFrame, effect: pd.DataFrame, by: Criterion | None
) -> str:
    """The summary as text for a terminal.

    Args:
        runs: of the sweep.
        metrics: those to show.
        summary: of :func:`torchpbp.experiments.running.sweeps.summarise`, with ranks.
        effect: of :func:`torchpbp.experiments.running.sweep_effects.effects`.
        by: what combinations are ranked by.
    """
    summary = ranked(summary)
    differing, shared = override_names(runs)
    done = sum(run.status == DONE for run in runs)
    lines = [f"{len(runs)} jobs, {done} with results; mean ± standard error over seeds"]
    if shared:
        lines.append("all runs: " + " ".join(f"{key}={runs[0].overrides[key]}" for key in shared))
    table = summary[["rank"]].astype(object).fillna("-") if "rank" in summary else pd.DataFrame()
    for key in differing:
        table[key] = [_brief(value) for value in summary[key]]
    table["runs"] = summary["runs"]
    if summary["failed"].any():
        table["failed"] = summary["failed"]
    for name in metrics:
        pairs = zip(summary[name], summary[standard_error(name)], strict=True)
        table[name] = [_with_error(mean, error) for mean, error in pairs]
    lines.append(table.to_string(index=False))
    if len(effect) and by is not None:
        better = "larger" if by.larger else "smaller"
        lines.append(f"effect of each setting on {by.metric} ({better} is better), mean over the other settings")
        columns = effect[["setting", "value", "runs"]].assign(**{by.metric: effect[by.metric].map("{:.4g}".format)})
        lines.append(columns.to_string(index=False))
        if not balanced(summary, differing):
            lines.append("(not every combination has results: part of an effect may be that of other settings)")
    lines += remarks(runs, metrics)
    hidden = [name for name in metric_names(runs) if name not in metrics]
    if hidden:
        lines.append(
            f"{len(hidden)} more metrics are in sweep.csv; python -m torchpbp sweep <folder> --metric shows them"
        )
    return "\n".join(lines)


class SweepSummary(Callback):
    """Hydra callback that reports on a multirun when it ends, whether or not all its jobs succeeded.

    Where a job fails, Hydra leaves without a further call; the report is then made as Python exits. If all jobs until then
    were rejected, no run has changed, and the folder of the multirun is left as it was.

    Args:
        metrics: see :func:`write_sweep_report`.
    """

    def __init__(self, metrics: Sequence[str] | None = None) -> None:
        self.metrics = None if metrics is None else [str(name) for name in metrics]
        self.folder: Path | None = None
        self.existing: Path | None = None
        self.jobs: dict[Path, tuple[int, int]] = {}
        self.plan: bytes | None = None

    def on_multirun_start(self, config: Any, **kwargs: Any) -> None:
        self.folder = Path(config.hydra.sweep.dir).absolute()
        self.existing, self.jobs = nearest_existing(self.folder), _job_records(self.folder)
        plan = self.folder / PLAN
        self.plan = plan.read_bytes() if plan.is_file() else None
        atexit.register(self.stop)

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        atexit.unregister(self.stop)
        self.show()

    def stop(self) -> None:
        """Report on a multirun that a job ended; if no job was accepted, take back what Hydra wrote for the multirun."""
        if self.folder is None or self.existing is None or _job_records(self.folder) != self.jobs:
            self.show()
            return
        with suppress(OSError):
            if self.plan is None:
                (self.folder / PLAN).unlink(missing_ok=True)
            elif (self.folder / PLAN).read_bytes() != self.plan:
                with replacing(self.folder / PLAN) as temporary:
                    temporary.write_bytes(self.plan)
        remove_empty(self.folder, self.existing)

    def show(self) -> None:
        """Print the report; what hinders it is printed instead, for the runs themselves are done."""
        if self.folder is None or not self.folder.is_dir():
            return  # the sweep was rejected before its first job
        try:
            print(write_sweep_report(self.folder, self.metrics), flush=True)
        except TorchPBPError as error:
            print(f"No sweep summary: {error}", file=sys.stderr, flush=True)


def _job_records(folder: Path) -> dict[Path, tuple[int, int]]:
    """What tells whether a job has begun since: each that does writes its settings anew."""
    records = {path: path.stat() for path in folder.rglob(".hydra/overrides.yaml")}
    return {path: (facts.st_ino, facts.st_mtime_ns) for path, facts in records.items()}


def _brief(value: str) -> str:
    """An override as the table shows it: numbers that a search drew have too many digits; summary.csv keeps them all."""
    try:
        return f"{float(value):.4g}" if len(value) > 8 else value or "default"
    except ValueError:
        return value


def _with_error(mean: float, error: float) -> str:
    if math.isnan(mean):
        return "-"
    return f"{mean:.4g}" if math.isnan(error) else f"{mean:.4g} ± {error:.2g}"
