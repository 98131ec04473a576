"""Labelling sequences by noisy signals: a PBP chain, a CRF and a plain softmax on the same encoder, against Bayes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from torchpbp.datasets.label_sequences import LabelledSignals, LabelSequences
from torchpbp.distributed import process_rank
from torchpbp.errors import ArgumentError
from torchpbp.experiments.labelling.plots import write_label_curves, write_posteriors
from torchpbp.experiments.labelling.stages import CPU, log_posteriors, train_heads
from torchpbp.experiments.running.experiment import check_takes_graph, row_counts, seeds_of
from torchpbp.experiments.running.grid import measure_grid
from torchpbp.experiments.running.results import Metrics, environment, metrics_of, write_results
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.models.pbp import PBP
from torchpbp.settings import Settings, flag, setting, whole

MEASURES = ("kl", "log_loss", "accuracy")


@dataclass(frozen=True)
class LabellingSettings(Settings):
    """Settings of :func:`run_sequence_labelling`.

    Args:
        sizes: labelled sequences, validation rows included.
        label_only: further label sequences without signals, for the CRF and PBP to be fitted to.
        repeats: draws of all sequences and starting values; smaller sizes are parts of larger ones.
        window: sites that the encoder sees around each site, an odd number. Scores of a wide window already hold what
            neighbours say, and a chain on top counts it twice: either 1, or ``through_steps``.
        width: hidden units of the encoder.
        test_rows: sequences to test on, the same for all.
        steps: at most, of the encoder with the softmax head.
        refining_steps: at most, of encoder and structured head together; 0: none.
        through_steps: at most, of a fresh encoder through the fitted structured heads; 0: none.
        from_noise: also train the PBP head from random operators, which shows what the fit is worth.
    """

    sizes: tuple[int, ...] = setting((50, 200, 1000), row_counts(least=10))
    label_only: tuple[int, ...] = setting((0, 5000), row_counts(least=0))
    repeats: int = setting(3, whole(1))
    window: int = setting(1, whole(1))
    width: int = setting(32, whole(1))
    test_rows: int = setting(500, whole(1))
    steps: int = setting(600, whole(1))
    refining_steps: int = setting(80, whole(0))
    through_steps: int = setting(0, whole(0))
    from_noise: bool = setting(False, flag())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window % 2 == 0:
            raise ArgumentError(f"window: expected an odd number of sites, got {self.window}.")


def run_sequence_labelling(
    data: LabelSequences,
    learner: Callable[[LatentGraph], PBP],
    trainer: Mapping[str, Any] = CPU,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Metrics:
    """Accuracy, log-loss and KL(exact ‖ head) per site against the number of labelled sequences.

    A fifth of the labelled sequences is kept for validation. Nothing is chosen by test rows.

    Args:
        data: where sequences come from; knows the exact posterior.
        learner: makes a PBP model from a graph; it is fitted to label sequences.
        trainer: arguments of ``lightning.pytorch.Trainer``.
        seed: of the draws.
        output_dir: folder for metrics.json, metrics.csv (a row per head, stage, size and repeat), curves.png and
            posteriors.png (the first test sequence). ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).
        options: see :class:`LabellingSettings`.

    Returns:
        "kl/<series>/<size>", "log_loss/…" and "accuracy/…" (means over repeats), each with "…_standard_error/…" (``None``
        for one repeat), "train_seconds/…", "bayes/accuracy", "bayes/log_loss" and the facts of the run.
    """
    settings = LabellingSettings.from_dict(options)
    check_takes_graph("Sequence labelling", learner, "learner=pbp_pairs or learner=pbp")
    sizes, label_only = settings.sizes, settings.label_only
    test = data.sample(settings.test_rows, int(np.random.SeedSequence([seed]).generate_state(1)[0]))
    exact = data.posterior(test.signals)

    @lru_cache(maxsize=1)
    def drawn(repeat: int) -> tuple[LabelledSignals, Tensor, int]:
        row_seed, label_seed, start = seeds_of(seed, repeat, 3)
        return data.sample(max(sizes), row_seed), data.sample_labels(max(label_only), label_seed), start

    def one_size(repeat: int, size: int) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
        rows, more, start = drawn(repeat)
        split = size - max(2, size // 5)
        parts = slice(0, split), slice(split, size)
        train, validation = (LabelledSignals(*(x[part] for x in rows)) for part in parts)
        lines, first = [], {}
        for count, trained in train_heads(
            data,
            learner,
            train,
            validation,
            {k: more[:k] for k in label_only},
            trainer,
            start,
            settings.window,
            settings.width,
            settings.steps,
            settings.refining_steps,
            settings.through_steps,
            settings.from_noise,
        ):
            answer = log_posteriors(trained.module, test.signals)
            name = series_name(trained.head, trained.stage, count)
            where = {"series": name, "rows": size, "repeat": repeat, "head": trained.head, "stage": trained.stage}
            lines.append({**where, "label_only": count, **measure(answer, exact, test.labels), **trained.facts})
            if size == max(sizes) and trained.stage != "fitted":
                first[name] = answer[0].exp()
        return lines, first

    points = [(repeat, size) for repeat in range(settings.repeats) for size in sizes]
    rows: list[dict[str, Any]] = []
    shown: dict[str, Tensor] = {}
    for _, (lines, first) in measure_grid("sequence labelling", points, one_size, output_dir, verbose):
        rows += lines
        shown |= first
    table = pd.DataFrame(rows)
    summary = summarise(table)
    bayes = measure(exact.clamp(min=1e-300).log(), exact, test.labels)
    metrics = _metrics(summary, bayes)
    metrics |= {"rows/test": settings.test_rows, "repeats": settings.repeats, "window": settings.window, "seed": seed}
    metrics |= {"length": data.length, **environment()}
    if process_rank() > 0:
        return metrics  # the first process reports for all
    if output_dir is not None:
        folder = write_results(output_dir, metrics, table)
        write_label_curves(folder / "curves.png", summary, bayes["accuracy"], bayes["log_loss"])
        write_posteriors(folder / "posteriors.png", {"exact": exact[0], **shown}, test.labels[0])
    if verbose:
        print(format_summary(summary, bayes), flush=True)
    return metrics


def measure(answer: Tensor, exact: Tensor, labels: Tensor) -> dict[str, float]:
    """Means over rows and sites.

    Args:
        answer: (rows, length, labels) log-posteriors.
        exact: (rows, length, labels) exact posteriors.
        labels: (rows, length) the truth.
    """
    kl = (torch.xlogy(exact, exact) - torch.where(exact > 0, exact * answer, 0.0)).sum(dim=2).mean().clamp(min=0)
    log_loss = -answer.gather(2, labels.unsqueeze(2)).mean()
    accuracy = (answer.argmax(dim=2) == labels).double().mean()
    return {"kl": float(kl), "log_loss": float(log_loss), "accuracy": float(accuracy)}


def series_name(head: str, stage: str, label_only: int) -> str:
    """A head's name in tables and figures."""
    text = head if stage == "trained" else f"{head} {stage}"
    return f"{text} +{label_only} labels" if label_only else text


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Means and standard errors over repeats (NaN for one), by series and size."""
    groups = table.groupby(["series", "rows"], sort=False)
    columns = {m: (m, "mean") for m in MEASURES} | {f"{m}_error": (m, "sem") for m in MEASURES}
    times = {"fit_seconds": ("fit_seconds", "mean"), "train_seconds": ("train_seconds", "mean")}
    return groups.agg(**columns, **times).reset_index().sort_values("rows", kind="stable")


def format_summary(summary: pd.DataFrame, bayes: Mapping[str, float]) -> str:
    """The summary as text for a terminal."""
    lines = [f"{'rows':>6}  {'head':<26}  {'KL':>15}  {'log-loss':>15}  {'accuracy':>15}  {'fit s':>6}  {'train s':>7}"]
    for line in summary.to_dict("records"):
        cells = "  ".join(f"{line[m]:.4f} ± {line[f'{m}_error']:.4f}".replace(" ± nan", "").rjust(15) for m in MEASURES)
        times = f"{line['fit_seconds']:>6.2f}  {line['train_seconds']:>7.2f}"
        lines.append(f"{line['rows']:>6}  {line['series']:<26}  {cells}  {times}")
    cells = "  ".join(f"{bayes[m]:.4f}".rjust(15) for m in MEASURES)
    return "\n".join([*lines, f"{'':>6}  {'Bayes':<26}  {cells}"])


def _metrics(summary: pd.DataFrame, bayes: Mapping[str, float]) -> Metrics:
    metrics: Metrics = {"bayes/accuracy": bayes["accuracy"], "bayes/log_loss": bayes["log_loss"]}
    names = {name: column for m in MEASURES for name, column in ((m, m), (f"{m}_standard_error", f"{m}_error"))}
    names |= {"fit_seconds": "fit_seconds", "train_seconds": "train_seconds"}
    return metrics | metrics_of(summary, ("series", "rows"), names)
