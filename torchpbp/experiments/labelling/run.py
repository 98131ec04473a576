"""Labelling sequences by noisy signals: a PBP chain, a CRF and a plain softmax on the same encoder, against Bayes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.datasets.label_sequences import CHANNELS, LabelledSignals, LabelSequences
from torchpbp.distributed import process_rank
from torchpbp.experiments.labelling.heads import SignalEncoder
from torchpbp.experiments.labelling.plots import write_label_curves, write_posteriors
from torchpbp.experiments.labelling.stages import CPU, log_posteriors, train_heads
from torchpbp.experiments.running.experiment import ascending, check_positive, check_takes_graph, seeds_of
from torchpbp.experiments.running.results import Metrics, environment, metrics_of, write_results
from torchpbp.experiments.running.run_folder import Parts
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.models.pbp import PBP

MEASURES = ("kl", "log_loss", "accuracy")


def run_sequence_labelling(
    data: LabelSequences,
    learner: Callable[[LatentGraph], PBP],
    trainer: Mapping[str, Any] = CPU,
    sizes: Sequence[int] = (50, 200, 1000),
    label_only: Sequence[int] = (0, 5000),
    repeats: int = 3,
    seed: int = 0,
    window: int = 1,
    width: int = 32,
    test_rows: int = 500,
    steps: int = 600,
    refining_steps: int = 80,
    through_steps: int = 0,
    from_noise: bool = False,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
) -> Metrics:
    """Accuracy, log-loss and KL(exact ‖ head) per site against the number of labelled sequences.

    A fifth of the labelled sequences is kept for validation. Nothing is chosen by test rows.

    Args:
        data: where sequences come from; knows the exact posterior.
        learner: makes a PBP model from a graph; it is fitted to label sequences.
        trainer: arguments of ``lightning.pytorch.Trainer``.
        sizes: labelled sequences, validation rows included.
        label_only: further label sequences without signals, for the CRF and PBP to be fitted to.
        repeats: draws of all sequences and starting values; smaller sizes are parts of larger ones.
        seed: of the draws.
        window: sites that the encoder sees around each site, an odd number. Scores of a wide window already hold what
            neighbours say, and a chain on top counts it twice: either 1, or ``through_steps``.
        width: hidden units of the encoder.
        test_rows: sequences to test on, the same for all.
        steps: at most, of the encoder with the softmax head.
        refining_steps: at most, of encoder and structured head together; 0: none.
        through_steps: at most, of a fresh encoder through the fitted structured heads; 0: none.
        from_noise: also train the PBP head from random operators, which shows what the fit is worth.
        output_dir: folder for metrics.json, metrics.csv (a row per head, stage, size and repeat), curves.png and
            posteriors.png (the first test sequence). ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).

    Returns:
        "kl/<series>/<size>", "log_loss/…" and "accuracy/…" (means over repeats), each with "…_standard_error/…" (``None``
        for one repeat), "train_seconds/…", "bayes/accuracy", "bayes/log_loss" and the facts of the run.
    """
    check_takes_graph("Sequence labelling", learner, "learner=pbp_pairs or learner=pbp")
    sizes, label_only = ascending("sizes", sizes, least=10), ascending("label_only", label_only, least=0)
    check_positive(repeats=repeats, test_rows=test_rows, steps=steps)
    SignalEncoder(CHANNELS, data.labels, window, width)  # refuses bad numbers before any work is done
    test = data.sample(test_rows, int(np.random.SeedSequence([seed]).generate_state(1)[0]))
    exact = data.posterior(test.signals)
    rows: list[dict[str, Any]] = []
    shown: dict[str, Tensor] = {}
    done = Parts(output_dir)
    per_size = 1 + (4 + 2 * (through_steps > 0) + from_noise) * len(label_only)
    with tqdm(total=repeats * len(sizes) * per_size, desc="sequence labelling", disable=not verbose) as bar:

        def one_size(
            repeat: int, size: int, drawn: LabelledSignals, more: Tensor, start: int
        ) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
            lines, first = [], {}
            split = size - max(2, size // 5)
            train, validation = (LabelledSignals(*(x[part] for x in drawn)) for part in _parts(split, size))
            for count, found in train_heads(
                data, learner, train, validation, {k: more[:k] for k in label_only},
                trainer, start, window, width, steps, refining_steps, through_steps, from_noise,
            ):  # fmt: skip
                answer = log_posteriors(found.module, test.signals)
                measured = measure(answer, exact, test.labels)
                name = series_name(found.head, found.stage, count)
                where = {"series": name, "rows": size, "repeat": repeat, "head": found.head, "stage": found.stage}
                lines.append({**where, "label_only": count, **measured, **found.facts})
                if size == max(sizes) and found.stage != "fitted":
                    first[name] = answer[0].exp()
                bar.set_postfix_str(f"{size} {name}: KL={measured['kl']:.3f}", refresh=False)
                bar.update()
            return lines, first

        for repeat in range(repeats):
            seeds = seeds_of(seed, repeat, 3)
            drawn = data.sample(max(sizes), seeds[0])
            more = data.sample_labels(max(label_only), seeds[1])
            for size in sizes:
                lines, first = done.get(f"{repeat},{size}", partial(one_size, repeat, size, drawn, more, seeds[2]))
                rows, shown = [*rows, *lines], {**shown, **first}
                bar.update(len(rows) - bar.n)
    table = pd.DataFrame(rows)
    summary = summarise(table)
    bayes = measure(exact.clamp(min=1e-300).log(), exact, test.labels)
    metrics = _metrics(summary, bayes)
    metrics |= {"rows/test": test_rows, "repeats": repeats, "window": window, "seed": seed}
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


def _parts(split: int, size: int) -> tuple[slice, slice]:
    return slice(0, split), slice(split, size)
