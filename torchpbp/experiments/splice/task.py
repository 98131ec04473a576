"""Splice junctions in DNA: generative models of each class, compared by grouped cross-validation [JT 9.2]."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from torchpbp.classifier import GenerativeClassifier
from torchpbp.datasets.splice import SITES, SPLICE_CLASSES, load_splice
from torchpbp.errors import ArgumentError, DataWarning, TorchPBPWarning
from torchpbp.experiments.grid import Run
from torchpbp.experiments.results import Picture, Result, metrics_of
from torchpbp.experiments.scores import confusion, confusion_picture
from torchpbp.experiments.splice.baselines import NaiveBayes, support_vectors
from torchpbp.experiments.splice.choice import Choice
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.plotting import plot_learning_curves
from torchpbp.settings import optional, positive, several, whole

NAIVE_BAYES, SVM = "naive Bayes", "SVM"


def splice(
    models: Mapping[str, Callable[..., Any]],
    graph: LatentGraph,
    run: Run,
    structures: Sequence[Sequence[int]] = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 2)),
    ridges: Sequence[Sequence[float]] = ((1.0, 1.0), (1.0, 10.0), (1.0, 100.0), (1.0, 1000.0)),
    folds: int = 10,
    folds_used: int = 3,
    inner_folds: int = 3,
    sizes: Sequence[int | None] = (300, None),
) -> Result:
    """Accuracy and training time in cross-validation; equal sequences are always in one fold.

    Each class has a non-homogeneous hidden Markov model. Order, number of hidden states and ridge of the first model are chosen
    within the training rows of each fold, by grouped cross-validation there. The other models have fixed settings. Naive
    Bayes and a support vector machine from scikit-learn are baselines. Missing letters (in 15 of 3,190 rows) are drawn at
    random for training and left open when predicting.

    Args:
        models: name -> makes a model for a graph; the first one has an option ``ridge``.
        graph: of the other models, with an observable for each site.
        run: the run.
        structures: the first model's candidate pairs (order of the hidden chain, hidden states), the simplest first.
        ridges: its candidate pairs of ridge penalties (stage 1, stage 2).
        folds: of the cross-validation.
        folds_used: number of folds that are run.
        inner_folds: of the choice within the training rows.
        sizes: training rows, all classes together in their natural shares; ``None``: all of the fold's.

    Returns:
        "accuracy/<model>/<rows>" (share of all rows checked), "accuracy_standard_error/…" (over folds) and "fit_seconds/…"
        (mean, with the choice of settings). The first model's name is "<name>, chosen"; rows are "all" for ``None``.
    """
    several(several(whole(1), 2)).check("task.structures", structures)
    several(several(positive(), 2)).check("task.ridges", ridges)
    several(optional(whole(30))).check("task.sizes", sizes)
    whole(1, whole(2).check("task.folds", folds)).check("task.folds_used", folds_used)
    if len(graph.observed) != SITES:
        raise ArgumentError(
            f"task.graph: expected {SITES} observables, got {len(graph.observed)}. Set graph.length={SITES}."
        )
    first, *others = models
    chosen, last = f"{first}, chosen", "all" if sizes[-1] is None else sizes[-1]
    data = load_splice()
    filled = data.filled(run.seed)
    parts = data.folds(folds, run.seed)[:folds_used]
    choice = Choice(models[first], structures, ridges, inner_folds, run.seed)

    def fitted(name: str, x: Tensor, y: Tensor, group: Tensor) -> tuple[Any, str]:
        if name == chosen:
            return choice.fit(x, y, group)
        if name == NAIVE_BAYES:
            return NaiveBayes(x, y), ""
        return support_vectors(x, y) if name == SVM else GenerativeClassifier(graph, models[name]).fit(x, y), ""

    def measure(fold: int, rows: int | str, name: str) -> dict[str, Any]:
        learn, check = parts[fold]
        learn = learn if rows == "all" else drawn(data.y, learn, int(rows), run.seed + fold)
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", TorchPBPWarning)
            warnings.simplefilter("ignore", DataWarning)  # introns begin with GT and end with AG: no variety
            classifier, settings = fitted(name, filled[learn], data.y[learn], data.group[learn])
        seconds = time.perf_counter() - start
        answer = np.asarray(classifier.predict(data.x[check]))
        right = int((answer == data.y[check].numpy()).sum())
        line = {"right": right, "checked": len(check), "accuracy": right / len(check), "fit_seconds": seconds}
        named = ", ".join(sorted({w.category.__name__ for w in caught if issubclass(w.category, TorchPBPWarning)}))
        return {**line, "settings": settings, "warnings": named, "answer": answer.tolist()}

    names = [chosen, *others, NAIVE_BAYES, SVM]
    points = [(fold, "all" if n is None else n, name) for fold in range(folds_used) for n in sizes for name in names]
    table = run.table("splice", ("fold", "rows", "model"), points, measure)
    answers = table[(table["model"] == chosen) & (table["rows"] == last)]["answer"]
    truths = np.concatenate([data.y[check].numpy() for _, check in parts])
    matrix = confusion(np.concatenate(list(answers)), truths, range(len(SPLICE_CLASSES)))
    summary = summarised(table)
    return Result(
        metrics_of(summary, ("model", "rows")),
        table.drop(columns="answer"),
        described(summary, table),
        [f"accuracy/{name}/{last}" for name in (chosen, NAIVE_BAYES, SVM)],
        {
            "errors": errors_picture(summary.replace({"rows": {"all": max(len(learn) for learn, _ in parts)}})),
            "confusion": confusion_picture(matrix, SPLICE_CLASSES),
        },
    )


def drawn(y: Tensor, rows: Tensor, size: int, seed: int) -> Tensor:
    """Rows drawn from training rows, each class with its natural share and at least two rows."""
    if size > len(rows):
        raise ArgumentError(
            f"task.sizes: expected at most the {len(rows)} rows of a fold, got {size}. Use null for all."
        )
    mixed = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    classes = [mixed[y[mixed] == value] for value in range(len(SPLICE_CLASSES))]
    return torch.cat([part[: max(2, round(size * len(part) / len(rows)))] for part in classes])


def summarised(table: pd.DataFrame) -> pd.DataFrame:
    """Columns model, rows, accuracy over all rows checked, its standard error over folds (NaN for one) and mean fit_seconds."""
    groups = table.groupby(["model", "rows"], sort=False)
    accuracy = groups["right"].sum() / groups["checked"].sum()
    columns = {"accuracy": accuracy, "accuracy_standard_error": groups["accuracy"].sem()}
    return pd.DataFrame({**columns, "fit_seconds": groups["fit_seconds"].mean()}).reset_index()


def described(summary: pd.DataFrame, table: pd.DataFrame) -> str:
    """The summary as text, then the warnings of fits."""
    styles = {"accuracy": "{:.2%}", "accuracy_standard_error": "{:.2%}", "fit_seconds": "{:.2f}"}
    lines = [summary.to_string(index=False, formatters={name: style.format for name, style in styles.items()})]
    for (model, text), part in table[table["warnings"] != ""].groupby(["model", "warnings"], sort=False):
        lines.append(f"{model}: {text} in {len(part)} of {int((table['model'] == model).sum())} fits")
    return "\n".join(lines)


def errors_picture(summary: pd.DataFrame) -> Picture:
    """Errors and training time against the number of training rows, a line per model.

    Args:
        summary: columns model, rows (numbers), accuracy, accuracy_standard_error (NaN: none), fit_seconds.
    """
    wrong = summary.assign(
        rows=summary["rows"].astype(float),
        wrong=100 * (1 - summary["accuracy"]),
        error=100 * summary["accuracy_standard_error"],
        none=0.0,
    )
    figure = Figure(figsize=(9.5, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot_learning_curves(wrong, "wrong", "rows", by="model", error="error", ax=left)
    plot_learning_curves(wrong, "fit_seconds", "rows", by="model", error="none", ax=right)
    right.get_legend().remove()  # the same as at the left
    left.set(xscale="log", yscale="linear", xlabel="training rows", ylabel="wrong, %")
    right.set(xscale="log", yscale="log", xlabel="training rows", ylabel="seconds to train three classes")
    return Picture(
        figure, "Share of test rows classified wrongly, with standard errors over folds, and seconds of training."
    )
