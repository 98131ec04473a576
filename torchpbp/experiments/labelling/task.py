"""Labels of a sequence from noisy signals: a PBP chain, a CRF and a softmax on the same encoder, against exact posteriors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from lightning.pytorch import Trainer
from torch import Tensor

from torchpbp.datasets.label_sequences import LabelledSignals, LabelSequences
from torchpbp.distributed import process_rank
from torchpbp.errors import ArgumentError
from torchpbp.experiments.grid import Run
from torchpbp.experiments.labelling.pictures import curves_picture, posteriors_picture
from torchpbp.experiments.labelling.training import train_heads
from torchpbp.experiments.results import Metrics, Result, means_and_errors, metrics_of
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.models.pbp import PBP
from torchpbp.settings import several, whole

MEASURES = ("kl", "log_loss", "accuracy")
SECONDS = ["fit_seconds", "train_seconds"]
BY = ["series", "rows"]


def labelling(
    data: LabelSequences,
    model: Callable[[LatentGraph], PBP],
    trainer: Callable[..., Trainer],
    run: Run,
    sizes: Sequence[int] = (50, 200, 1000),
    label_only: Sequence[int] = (0, 5000),
    repeats: int = 3,
    test_rows: int = 500,
    window: int = 1,
    width: int = 32,
    steps: int = 600,
    refining_steps: int = 80,
    through_steps: int = 0,
) -> Result:
    """Accuracy, log-loss and KL(exact ‖ head) per site against the number of labelled sequences.

    A fifth of the labelled sequences is kept for validation. Nothing is selected on test rows.

    Args:
        data: source of the sequences, with exact posteriors.
        model: makes a PBP model for a graph; it is fitted to label sequences.
        trainer: makes Lightning's Trainer.
        run: the run.
        sizes: labelled sequences, validation rows included.
        label_only: further label sequences without signals, for the CRF and PBP to be fitted to.
        repeats: draws of all sequences and first weights; smaller sizes are parts of larger ones.
        test_rows: sequences to test on, the same for all.
        window: sites that the encoder sees around each site, an odd number. Scores of a wide window contain the neighbours'
            signals, and a chain on top counts them twice: either 1, or ``through_steps``.
        width: hidden units of the encoder.
        steps: at most, of the encoder with the softmax head.
        refining_steps: at most, of encoder and structured head together; 0: none.
        through_steps: at most, of a fresh encoder through the fitted structured heads; 0: none.

    Returns:
        "kl/<series>/<size>", "log_loss/…" and "accuracy/…" (means over repeats) with "…_standard_error/…", "fit_seconds/…" and
        "train_seconds/…"; "accuracy/exact" and "log_loss/exact" of the exact posterior.
    """
    several(whole(10)).check("task.sizes", sizes)
    several(whole()).check("task.label_only", label_only)
    for name, value in {"repeats": repeats, "test_rows": test_rows, "width": width, "steps": steps}.items():
        whole(1).check(f"task.{name}", value)
    if whole(1).check("task.window", window) % 2 == 0:
        raise ArgumentError(f"task.window: expected an odd number of sites, got {window}.")
    test = data.sample(test_rows, int(np.random.SeedSequence([run.seed]).generate_state(1)[0]))
    exact = data.posterior(test.signals)

    options: dict[str, Any] = {"window": window, "width": width, "steps": steps}
    options |= {"refining_steps": refining_steps, "through_steps": through_steps}

    @lru_cache(maxsize=1)
    def drawn(repeat: int) -> tuple[LabelledSignals, Tensor, int]:
        row_seed, label_seed, start = run.seeds(repeat, 3)
        return data.sample(max(sizes), row_seed), data.sample_labels(max(label_only), label_seed), start

    def one_size(repeat: int, size: int) -> dict[str, Any]:
        rows, more, start = drawn(repeat)
        split = size - max(2, size // 5)
        train, validation = (LabelledSignals(*(x[part] for x in rows)) for part in (slice(split), slice(split, size)))
        lines: list[dict[str, Any]] = []
        posteriors: dict[str, Any] = {}  # of the first test sequence
        extra = {count: more[:count] for count in label_only}
        for trained in train_heads(data, model, train, validation, extra, trainer, start, **options):
            with torch.no_grad():
                answer = trained.module(test.signals)
            line = {"series": trained.series, "rows": size, "repeat": repeat, "label_only": trained.label_only}
            lines.append({**line, **measured(answer, exact, test.labels), **trained.facts})
            if trained.stage != "fitted":
                posteriors[trained.series] = answer[0].exp().tolist()
        return {"lines": lines, "posteriors": posteriors}

    points = [(repeat, size) for repeat in range(repeats) for size in sorted(set(sizes))]
    found = [part for _, part in run.grid("labelling", points, one_size)]
    if process_rank() > 0:
        return Result({})  # the first process reports for all
    lines = [{"fit_seconds": 0.0, "train_seconds": 0.0, **line} for part in found for line in part["lines"]]
    table = pd.DataFrame(lines)
    summary = means_and_errors(table, BY, MEASURES).merge(table.groupby(BY)[SECONDS].mean().reset_index(), on=BY)
    bayes = measured(exact.clamp(min=1e-300).log(), exact, test.labels)
    metrics: Metrics = {f"{name}/exact": bayes[name] for name in ("accuracy", "log_loss")}
    shown = {name: torch.tensor(values) for name, values in found[-1]["posteriors"].items()}
    return Result(
        metrics_of(summary, BY) | metrics,
        table,
        described(summary, bayes),
        [f"kl/{name}/{max(sizes)}" for name in shown],
        {
            "curves": curves_picture(summary, bayes),
            "posteriors": posteriors_picture({"exact": exact[0], **shown}, test.labels[0]),
        },
    )


def measured(answer: Tensor, exact: Tensor, labels: Tensor) -> dict[str, float]:
    """Means over rows and sites: kl, log_loss and accuracy.

    Args:
        answer: (rows, length, labels) log-posteriors.
        exact: (rows, length, labels) exact posteriors.
        labels: (rows, length) the truth.
    """
    kl = (torch.xlogy(exact, exact) - torch.where(exact > 0, exact * answer, 0.0)).sum(dim=2).mean().clamp(min=0)
    log_loss = -answer.gather(2, labels.unsqueeze(2)).mean()
    accuracy = (answer.argmax(dim=2) == labels).double().mean()
    return {"kl": float(kl), "log_loss": float(log_loss), "accuracy": float(accuracy)}


def described(summary: pd.DataFrame, bayes: Mapping[str, float]) -> str:
    """A line for each size and series: means with standard errors, and seconds."""
    shown = summary[["rows", "series"]].copy()
    for name in MEASURES:
        pairs = zip(summary[name], summary[f"{name}_standard_error"], strict=True)
        shown[name] = [f"{mean:.4f} ± {error:.4f}".replace(" ± nan", "") for mean, error in pairs]
    shown[SECONDS] = summary[SECONDS].map("{:.2f}".format)
    exact = ", ".join(f"{name} {bayes[name]:.4f}" for name in ("log_loss", "accuracy"))
    return f"{shown.to_string(index=False)}\nexact posterior: {exact}"
