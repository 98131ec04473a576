"""Labelling sequences by noisy signals: a PBP chain, a CRF and a plain softmax on the same encoder, against Bayes.

The encoder is trained with the softmax head first. The structured heads start from there: their own part is fitted to label
sequences alone, by counting pairs (CRF) or by two-stage regression (PBP), and takes the encoder's scores as evidence. That
is the stage "fitted". The stage "refined" trains encoder and head together from there, as far as validation rows agree. The
stage "through" trains a fresh encoder through the fitted head, which stays as it is.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from torchpbp.data.label_sequences import CHANNELS, LabelledSignals, LabelSequences
from torchpbp.distributed import own_share, process_rank
from torchpbp.errors import DataError, StructureError
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.model.pbp import PBP
from torchpbp.tasks.label_heads import CRFHead, LabelHead, PBPHead, SignalEncoder, SoftmaxHead
from torchpbp.tasks.label_plots import write_label_curves, write_posteriors
from torchpbp.tasks.results import Metrics, write_csv, write_json
from torchpbp.tasks.run_folder import Parts

if TYPE_CHECKING:
    from torchpbp.tasks.label_training import LabelModule

LEARNING_RATE = 1e-2
REFINING_RATE = 1e-3
HEAD_RATES = {"crf": 1e-2, "pbp": 3e-4}
"""Steps of this size are right for a CRF's scores; on PBP's operators, ten times smaller ones already spoil a good fit."""
MEASURES = ("kl", "log_loss", "accuracy")
CPU: Mapping[str, Any] = {"accelerator": "cpu", "devices": 1}


class Trained(NamedTuple):
    """One encoder and head after training.

    Args:
        head: "softmax", "crf" or "pbp".
        stage: "trained" (softmax), "fitted", "refined", "through", or "from noise".
        module: signals -> log-posteriors.
        facts: of the training, by name.
    """

    head: str
    stage: str
    module: LabelModule
    facts: dict[str, float | int]


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
    if isinstance(learner, nn.Module):
        raise StructureError(
            f"Sequence labelling: expected a learner that takes a graph, got a {type(learner).__name__} with a graph of its "
            "own. Choose learner=pbp_pairs or learner=pbp."
        )
    sizes, label_only = _checked(sizes, label_only, repeats=repeats, test_rows=test_rows, steps=steps)
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
            seeds = [int(s) for s in np.random.SeedSequence([seed, repeat]).generate_state(3)]
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
    metrics |= {"length": data.length, "threads": torch.get_num_threads(), "torch": str(torch.__version__)}
    if process_rank() > 0:
        return metrics  # the first process reports for all
    if output_dir is not None:
        folder = Path(output_dir)
        write_json(folder / "metrics.json", metrics)
        write_csv(folder / "metrics.csv", table)
        write_label_curves(folder / "curves.png", summary, bayes["accuracy"], bayes["log_loss"])
        write_posteriors(folder / "posteriors.png", {"exact": exact[0], **shown}, test.labels[0])
    if verbose:
        print(format_summary(summary, bayes), flush=True)
    return metrics


def train_heads(
    data: LabelSequences,
    learner: Callable[[LatentGraph], PBP],
    train: LabelledSignals,
    validation: LabelledSignals,
    label_only: Mapping[int, Tensor],
    trainer: Mapping[str, Any] = CPU,
    seed: int = 0,
    window: int = 1,
    width: int = 32,
    steps: int = 600,
    refining_steps: int = 80,
    through_steps: int = 0,
    from_noise: bool = False,
) -> Iterator[tuple[int, Trained]]:
    """Train all heads on the same rows; yields them one by one, with the number of label-only sequences used.

    Args:
        data: gives the graph and names of the labels; no row is drawn from it.
        learner: makes a PBP model from a graph.
        train: rows to learn from.
        validation: rows that say when to stop.
        label_only: number -> (number, length) label sequences without signals.
        trainer, seed, window, width, steps, refining_steps, through_steps, from_noise: see :func:`run_sequence_labelling`.
    """
    from torchpbp.tasks.label_training import LabelModule, train_labels  # Lightning takes seconds to import

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = SignalEncoder(CHANNELS, data.labels, window, width)
    encoder = deepcopy(fresh)
    plain = LabelModule(encoder, SoftmaxHead(), LEARNING_RATE, LEARNING_RATE)
    facts = train_labels(plain, train, validation, trainer, steps, seed)
    yield 0, Trained("softmax", "trained", plain, {"fit_seconds": 0.0, **facts})

    def pbp_head(labels: Tensor) -> PBPHead:
        share = labels[own_share(len(labels))]  # the fit adds up what the processes count
        return PBPHead(learner(data.network.graph).fit(_columns(data, share)), data.names)

    def crf_head(labels: Tensor) -> CRFHead:
        return CRFHead(labels, data.labels)

    makers: dict[str, Callable[[Tensor], LabelHead]] = {"crf": crf_head, "pbp": pbp_head}
    for count, more in label_only.items():
        labels = torch.cat([train.labels, more])
        for name, make in makers.items():
            start = time.perf_counter()
            head = make(labels)
            fit_seconds = time.perf_counter() - start
            for stage, most in (("fitted", 0), ("refined", refining_steps)):
                module = LabelModule(deepcopy(encoder), deepcopy(head), REFINING_RATE, HEAD_RATES[name])
                facts = train_labels(module, train, validation, trainer, most, seed, 10, 4, start_counts=True)
                yield count, Trained(name, stage, module, {"fit_seconds": fit_seconds, **facts})
            if through_steps:
                module = LabelModule(deepcopy(fresh), deepcopy(head).requires_grad_(False), LEARNING_RATE, 0.0)
                facts = train_labels(module, train, validation, trainer, through_steps, seed)
                yield count, Trained(name, "through", module, {"fit_seconds": fit_seconds, **facts})
        if from_noise:
            noise = pbp_head(labels)
            noise.layer.initialise(seed=seed)
            module = LabelModule(deepcopy(fresh), noise, LEARNING_RATE, LEARNING_RATE)
            facts = train_labels(module, train, validation, trainer, steps, seed)
            yield count, Trained("pbp", "from noise", module, {"fit_seconds": 0.0, **facts})


@torch.no_grad()
def log_posteriors(module: LabelModule, signals: Tensor) -> Tensor:
    """(rows, length, labels) log-posteriors, without gradients."""
    return module(signals)


def measure(answer: Tensor, exact: Tensor, labels: Tensor) -> dict[str, float]:
    """Means over rows and sites.

    Args:
        answer: (rows, length, labels) log-posteriors.
        exact: (rows, length, labels) exact posteriors.
        labels: (rows, length) the truth.
    """
    kl = (torch.xlogy(exact, exact) - torch.where(exact > 0, exact * answer, 0.0)).sum(dim=2).mean()
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
    for line in summary.to_dict("records"):
        key = f"{line['series']}/{line['rows']}"
        for m in MEASURES:
            error = float(line[f"{m}_error"])
            metrics[f"{m}/{key}"] = float(line[m])
            metrics[f"{m}_standard_error/{key}"] = None if math.isnan(error) else error
        metrics[f"fit_seconds/{key}"] = float(line["fit_seconds"])
        metrics[f"train_seconds/{key}"] = float(line["train_seconds"])
    return metrics


def _columns(data: LabelSequences, labels: Tensor) -> dict[str, Tensor]:
    return {v: labels[:, t] for t, v in enumerate(data.names)}


def _parts(split: int, size: int) -> tuple[slice, slice]:
    return slice(0, split), slice(split, size)


def _checked(sizes: Sequence[int], label_only: Sequence[int], **numbers: int) -> tuple[list[int], list[int]]:
    """Ascending whole numbers; 1e3 on a command line arrives as a float."""
    if not sizes or any(n < 10 or n != int(n) for n in sizes):
        raise DataError(f"sizes: expected one or more whole numbers of at least 10, got {list(sizes)}.")
    if not label_only or any(n < 0 or n != int(n) for n in label_only):
        raise DataError(f"label_only: expected one or more whole numbers, 0 for none, got {list(label_only)}.")
    for name, value in numbers.items():
        if value < 1:
            raise DataError(f"{name}: expected at least 1, got {value}.")
    return sorted({int(n) for n in sizes}), sorted({int(n) for n in label_only})
