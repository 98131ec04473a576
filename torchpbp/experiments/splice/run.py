"""Splice junctions in DNA: generative models of each class, compared by grouped cross-validation [JT 9.2]."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.naive_bayes import CategoricalNB
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import SVC
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.classifier import GenerativeClassifier
from torchpbp.datasets.splice import LETTERS, SITES, SPLICE_CLASSES, Splice, load_splice
from torchpbp.errors import DataError, DataWarning, StructureError
from torchpbp.experiments.digits.classification import Labels, accuracy, confusion
from torchpbp.experiments.running.plots import write_confusion
from torchpbp.experiments.running.results import Metrics, environment, metrics_of, write_results
from torchpbp.experiments.running.run_folder import Parts
from torchpbp.experiments.splice.choice import Choice
from torchpbp.experiments.splice.plots import write_splice_plot
from torchpbp.graph.latent_graph import LatentGraph

Model = Callable[[LatentGraph], Any]
Predictor = Callable[[Tensor], Labels]
Contestant = Callable[["Rows"], tuple[Predictor, str]]
"""Learns from rows; returns what predicts, and the settings it chose."""


class Rows:
    """Rows to learn from.

    Args:
        data: all rows.
        filled: (n, 60) their states without unknown sites.
        chosen: numbers of the rows to learn from.
    """

    def __init__(self, data: Splice, filled: Tensor, chosen: Tensor) -> None:
        self.x, self.y, self.group = filled[chosen], data.y[chosen], data.group[chosen]


def run_splice(
    learner: Model,
    others: Mapping[str, Mapping[str, Any]] | None = None,
    structures: Sequence[Sequence[int]] = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 2)),
    ridges: Sequence[Sequence[float]] = ((1.0, 1.0), (1.0, 10.0), (1.0, 100.0), (1.0, 1000.0)),
    folds: int = 10,
    folds_used: int = 3,
    inner_folds: int = 3,
    sizes: Sequence[int | None] = (300, None),
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
) -> Metrics:
    """Accuracy and training time of learners in cross-validation, equal sequences always in one fold.

    Each class gets a non-homogeneous hidden Markov model of its own. For the main learner its order, number of hidden
    states and ridge are chosen within the training rows of each fold, by grouped cross-validation there. The others
    have fixed settings. Naive Bayes and a support vector machine from scikit-learn stand beside them. Unknown letters
    (in 15 of 3,190 rows) are drawn at random for learning and left open when predicting.

    Args:
        learner: makes a model for a graph, with an option ``ridge``.
        others: name -> {"learner": makes a model for a graph, "graph": that graph}.
        structures: the main learner's candidate pairs (order of the hidden chain, hidden states), the simplest first.
        ridges: candidate pairs of ridge penalties (stage 1, stage 2).
        folds: of the cross-validation.
        folds_used: how many of them are run.
        inner_folds: of the choice within the training rows.
        sizes: training rows, all classes together in their natural shares; ``None``: all of the fold's.
        seed: of folds and draws.
        output_dir: folder for metrics.json, metrics.csv (a row per fit), splice.png and confusion.png (main learner, the
            last size). ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).

    Returns:
        "accuracy/<name>/<rows>" (share of all rows checked), "accuracy_standard_error/…" (over folds) and
        "fit_seconds/…" (mean, with the choice of settings), rows "all" for ``None``; and the facts of the run.
    """
    if not 1 <= folds_used <= folds:
        raise DataError(f"folds_used: expected a number from 1 to folds={folds}, got {folds_used}.")
    if not sizes or any(n is not None and n < 30 for n in sizes):
        raise DataError(f"sizes: expected numbers of rows of at least 30, or null for all, got {list(sizes)}.")
    choice = Choice(learner, structures, ridges, inner_folds, seed)
    data = load_splice()
    filled = data.filled(seed)
    contestants: dict[str, Contestant] = {"PBP, chosen": _chosen(choice)}
    for name, entry in (others or {}).items():
        contestants[name] = _fixed(name, entry)
    contestants |= {"naive Bayes": _naive_bayes, "SVM": _support_vectors}
    lines: list[dict[str, Any]] = []
    predicted: list[Labels] = []
    checked: list[Labels] = []
    dealt = data.folds(folds, seed)[:folds_used]
    parts = Parts(output_dir)

    def one_fit(fold: int, size: int | None, fit: Contestant) -> dict[str, Any]:
        learn, check = dealt[fold]
        rows = Rows(data, filled, _drawn(data.y, learn, size, seed + fold))
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # introns begin with GT and end with AG: no variety
            predict, settings = fit(rows)
        seconds = time.perf_counter() - start
        return {"answer": torch.as_tensor(predict(data.x[check])), "fit_seconds": seconds, "settings": settings}

    with tqdm(total=len(dealt) * len(sizes) * len(contestants), desc="splice", unit="fit", disable=not verbose) as bar:
        for fold, (_, check) in enumerate(dealt):
            truth = data.y[check].numpy()
            for size in sizes:
                shown = "all" if size is None else size
                for name, fit in contestants.items():
                    found = parts.get(f"{fold},{shown},{name}", partial(one_fit, fold, size, fit))
                    answer = found.pop("answer").numpy()
                    share = accuracy(answer, truth)
                    line: dict[str, Any] = {"learner": name, "rows": shown, "fold": fold, "checked": len(truth)}
                    line |= {"right": int((answer == truth).sum()), "accuracy": share}
                    lines.append({**line, **found})
                    if name == next(iter(contestants)) and size == sizes[-1]:
                        predicted.append(answer)
                        checked.append(truth)
                    bar.set_postfix_str(f"{name} {shown}: {100 * share:.1f} %", refresh=False)
                    bar.update()
    table = pd.DataFrame(lines)
    summary = summarise(table)
    names = {"accuracy": "accuracy", "accuracy_standard_error": "standard_error", "fit_seconds": "fit_seconds"}
    metrics = metrics_of(summary, ("learner", "rows"), names)
    metrics |= {"folds": folds, "folds_used": folds_used, "seed": seed, **environment()}
    if output_dir is not None:
        folder = write_results(output_dir, metrics, table)
        whole = max(len(learn) for learn, _ in dealt)
        write_splice_plot(folder / "splice.png", summary.replace({"rows": {"all": whole}}))
        matrix = confusion(np.concatenate(predicted), np.concatenate(checked), range(len(SPLICE_CLASSES)))
        write_confusion(folder / "confusion.png", matrix, SPLICE_CLASSES)
    if verbose:
        print(format_table(summary), flush=True)
    return metrics


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Accuracy over all rows checked, its standard error over folds (NaN for one) and mean fit time."""
    groups = table.groupby(["learner", "rows"], sort=False)
    summary = groups.agg(
        right=("right", "sum"),
        checked=("checked", "sum"),
        standard_error=("accuracy", "sem"),
        fit_seconds=("fit_seconds", "mean"),
    ).reset_index()
    summary["accuracy"] = summary["right"] / summary["checked"]
    return summary


def format_table(summary: pd.DataFrame) -> str:
    """One line per learner and size."""
    lines = [f"{'learner':<20} {'rows':>6}  {'accuracy':>9}  {'± s.e.':>7}  {'fit':>9}"]
    for r in summary.to_dict("records"):
        error = "" if math.isnan(r["standard_error"]) else f"{100 * r['standard_error']:.2f} %"
        lines.append(
            f"{r['learner']:<20} {r['rows']:>6}  {100 * r['accuracy']:>7.2f} %  {error:>7}  {r['fit_seconds']:>7.2f} s"
        )
    return "\n".join(lines)


def _drawn(y: Tensor, rows: Tensor, size: int | None, seed: int) -> Tensor:
    """Rows drawn from those to learn from, each class with its natural share and at least two rows."""
    if size is None:
        return rows
    if size > len(rows):
        raise DataError(f"sizes: expected at most the {len(rows)} rows of a fold, got {size}. Use null for all.")
    generator = torch.Generator().manual_seed(seed)
    mixed = rows[torch.randperm(len(rows), generator=generator)]
    parts = []
    for value in range(len(SPLICE_CLASSES)):
        of_class = mixed[y[mixed] == value]
        parts.append(of_class[: max(2, round(size * len(of_class) / len(rows)))])
    return torch.cat(parts)


def _predictor(classifier: Any) -> Predictor:
    return lambda x: np.asarray(classifier.predict(x))


def _fixed(name: str, entry: Mapping[str, Any]) -> Contestant:
    if set(entry) != {"learner", "graph"}:
        raise StructureError(f"others.{name}: expected the entries learner and graph, got {', '.join(entry)}.")
    graph: LatentGraph = entry["graph"]
    if len(graph.observed) != SITES:
        raise StructureError(f"others.{name}.graph: expected {SITES} observables, got {len(graph.observed)}.")

    def fit(rows: Rows) -> tuple[Predictor, str]:
        return _predictor(GenerativeClassifier(graph, entry["learner"]).fit(rows.x, rows.y)), ""

    return fit


def _chosen(choice: Choice) -> Contestant:
    def fit(rows: Rows) -> tuple[Predictor, str]:
        best, settings = choice.fit(rows.x, rows.y, rows.group)
        return _predictor(best), settings

    return fit


def _naive_bayes(rows: Rows) -> tuple[Predictor, str]:
    model = CategoricalNB(min_categories=len(LETTERS)).fit(rows.x.numpy(), rows.y.numpy())
    tables = torch.tensor(np.stack(model.feature_log_prob_))  # (sites, classes, letters)

    def predict(x: Tensor) -> Labels:
        found = tables[torch.arange(SITES), :, x.clamp(min=0)]  # (rows, sites, classes)
        seen = torch.where((x >= 0).unsqueeze(-1), found, 0.0)  # an unknown letter says nothing
        return np.asarray((seen.sum(dim=1) + torch.tensor(model.class_log_prior_)).argmax(dim=1))

    return predict, ""


def _support_vectors(rows: Rows) -> tuple[Predictor, str]:
    encoder = OneHotEncoder(categories=[range(len(LETTERS))] * SITES, handle_unknown="ignore").fit(rows.x.numpy())
    model = SVC(C=3.0, gamma=0.02).fit(encoder.transform(rows.x.numpy()), rows.y.numpy())
    return lambda x: np.asarray(model.predict(encoder.transform(x.numpy()))), ""
