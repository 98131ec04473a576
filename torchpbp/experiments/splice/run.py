"""Splice junctions in DNA: generative models of each class, compared by grouped cross-validation [JT 9.2]."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.naive_bayes import CategoricalNB
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import SVC
from torch import Tensor

from torchpbp.classifier import GenerativeClassifier
from torchpbp.datasets.splice import LETTERS, SITES, SPLICE_CLASSES, Splice, load_splice
from torchpbp.errors import ArgumentError, DataWarning, StructureError
from torchpbp.experiments.running.experiment import MakeModel, one_or_more
from torchpbp.experiments.running.grid import measure_grid
from torchpbp.experiments.running.plots import write_confusion
from torchpbp.experiments.running.results import Metrics, environment, metrics_of, text_table, write_results
from torchpbp.experiments.running.scores import Labels, accuracy, confusion
from torchpbp.experiments.splice.choice import Choice
from torchpbp.experiments.splice.plots import write_splice_plot
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.settings import Settings, optional, positive, setting, several, whole

Predictor = Callable[[Tensor], Labels]
Classifier = Callable[["SpliceRows"], tuple[Predictor, str]]
"""Learns from rows; returns what predicts, and the settings it chose."""
MAIN = "PBP, chosen"
"""Name of the main learner in the results."""


COLUMNS = {
    "learner": ("learner", "{}"),
    "rows": ("rows", "{}"),
    "accuracy": ("accuracy", "{:.2%}"),
    "standard_error": ("± s.e.", "{:.2%}"),
    "fit_seconds": ("fit", "{:.2f} s"),
}


@dataclass(frozen=True)
class SpliceSettings(Settings):
    """Settings of :func:`run_splice`.

    Args:
        structures: the main learner's candidate pairs (order of the hidden chain, hidden states), the simplest first.
        ridges: candidate pairs of ridge penalties (stage 1, stage 2).
        folds: of the cross-validation.
        folds_used: how many of them are run.
        inner_folds: of the choice within the training rows.
        sizes: training rows, all classes together in their natural shares; ``None``: all of the fold's.
    """

    structures: tuple[tuple[int, int], ...] = setting(
        ((1, 1), (1, 2), (1, 4), (1, 8), (2, 2)),
        one_or_more(several(several(whole(1), 2), expected="pairs (order, hidden states) of whole numbers from 1 on")),
    )
    ridges: tuple[tuple[float, float], ...] = setting(
        ((1.0, 1.0), (1.0, 10.0), (1.0, 100.0), (1.0, 1000.0)),
        one_or_more(several(several(positive(), 2), expected="pairs of positive numbers (stage 1, stage 2)")),
    )
    folds: int = setting(10, whole(2))
    folds_used: int = setting(3, whole(1))
    inner_folds: int = setting(3, whole(2))
    sizes: tuple[int | None, ...] = setting(
        (300, None),
        one_or_more(several(optional(whole(30)), expected="numbers of rows of at least 30, or null for all")),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folds_used > self.folds:
            raise ArgumentError(f"folds_used: expected a number from 1 to folds={self.folds}, got {self.folds_used}.")


class SpliceRows:
    """Rows to learn from.

    Args:
        data: all rows.
        filled: (n, 60) their states without unknown sites.
        chosen: numbers of the rows to learn from.
    """

    def __init__(self, data: Splice, filled: Tensor, chosen: Tensor) -> None:
        self.x, self.y, self.group = filled[chosen], data.y[chosen], data.group[chosen]


def run_splice(
    learner: MakeModel,
    others: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Metrics:
    """Accuracy and training time of learners in cross-validation, equal sequences always in one fold.

    Each class gets a non-homogeneous hidden Markov model of its own. For the main learner its order, number of hidden
    states and ridge are chosen within the training rows of each fold, by grouped cross-validation there. The others
    have fixed settings. Naive Bayes and a support vector machine from scikit-learn stand beside them. Unknown letters
    (in 15 of 3,190 rows) are drawn at random for learning and left open when predicting.

    Args:
        learner: makes a model for a graph, with an option ``ridge``.
        others: name -> {"learner": makes a model for a graph, "graph": that graph}.
        seed: of folds and draws.
        output_dir: folder for metrics.json, metrics.csv (a row per fit), splice.png and confusion.png (main learner, the
            last size). ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).
        options: see :class:`SpliceSettings`.

    Returns:
        "accuracy/<name>/<rows>" (share of all rows checked), "accuracy_standard_error/…" (over folds) and
        "fit_seconds/…" (mean, with the choice of settings), rows "all" for ``None``; and the facts of the run.
    """
    settings = SpliceSettings.from_dict(options)
    choice = Choice(learner, settings.structures, settings.ridges, settings.inner_folds, seed)
    classifiers: dict[str, Classifier] = {MAIN: _chosen(choice)}
    for name, entry in (others or {}).items():
        classifiers[name] = _fixed(name, entry)
    classifiers |= {"naive Bayes": _naive_bayes, "SVM": _support_vectors}
    data = load_splice()
    filled = data.filled(seed)
    folds = data.folds(settings.folds, seed)[: settings.folds_used]
    sizes = {"all" if size is None else size: size for size in settings.sizes}

    def one_fit(fold: int, rows: int | str, name: str) -> dict[str, Any]:
        learn, check = folds[fold]
        chosen = SpliceRows(data, filled, _drawn(data.y, learn, sizes[rows], seed + fold))
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # introns begin with GT and end with AG: no variety
            predict, chosen_settings = classifiers[name](chosen)
        seconds = time.perf_counter() - start
        return {"answer": torch.as_tensor(predict(data.x[check])), "fit_seconds": seconds, "settings": chosen_settings}

    points = [(fold, rows, name) for fold in range(len(folds)) for rows in sizes for name in classifiers]
    lines: list[dict[str, Any]] = []
    predicted: list[Labels] = []
    for (fold, rows, name), measured in measure_grid("splice", points, one_fit, output_dir, verbose):
        truth, answer = data.y[folds[fold][1]].numpy(), measured.pop("answer").numpy()
        line: dict[str, Any] = {"learner": name, "rows": rows, "fold": fold, "checked": len(truth)}
        line |= {"right": int((answer == truth).sum()), "accuracy": accuracy(answer, truth)}
        lines.append({**line, **measured})
        if name == MAIN and rows == list(sizes)[-1]:
            predicted.append(answer)
    table = pd.DataFrame(lines)
    summary = summarise(table)
    names = {"accuracy": "accuracy", "accuracy_standard_error": "standard_error", "fit_seconds": "fit_seconds"}
    metrics = metrics_of(summary, ("learner", "rows"), names)
    metrics |= {"folds": settings.folds, "folds_used": settings.folds_used, "seed": seed, **environment()}
    if output_dir is not None:
        folder = write_results(output_dir, metrics, table)
        most = max(len(learn) for learn, _ in folds)
        write_splice_plot(folder / "splice.png", summary.replace({"rows": {"all": most}}))
        truths = np.concatenate([data.y[check].numpy() for _, check in folds])
        matrix = confusion(np.concatenate(predicted), truths, range(len(SPLICE_CLASSES)))
        write_confusion(folder / "confusion.png", matrix, SPLICE_CLASSES)
    if verbose:
        print(text_table(summary, COLUMNS), flush=True)
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


def _drawn(y: Tensor, rows: Tensor, size: int | None, seed: int) -> Tensor:
    """Rows drawn from those to learn from, each class with its natural share and at least two rows."""
    if size is None:
        return rows
    if size > len(rows):
        raise ArgumentError(f"sizes: expected at most the {len(rows)} rows of a fold, got {size}. Use null for all.")
    generator = torch.Generator().manual_seed(seed)
    mixed = rows[torch.randperm(len(rows), generator=generator)]
    parts = []
    for value in range(len(SPLICE_CLASSES)):
        of_class = mixed[y[mixed] == value]
        parts.append(of_class[: max(2, round(size * len(of_class) / len(rows)))])
    return torch.cat(parts)


def _predictor(classifier: Any) -> Predictor:
    return lambda x: np.asarray(classifier.predict(x))


def _fixed(name: str, entry: Mapping[str, Any]) -> Classifier:
    if set(entry) != {"learner", "graph"}:
        raise StructureError(f"others.{name}: expected the entries learner and graph, got {', '.join(entry)}.")
    graph: LatentGraph = entry["graph"]
    if len(graph.observed) != SITES:
        raise StructureError(f"others.{name}.graph: expected {SITES} observables, got {len(graph.observed)}.")

    def fit(rows: SpliceRows) -> tuple[Predictor, str]:
        return _predictor(GenerativeClassifier(graph, entry["learner"]).fit(rows.x, rows.y)), ""

    return fit


def _chosen(choice: Choice) -> Classifier:
    def fit(rows: SpliceRows) -> tuple[Predictor, str]:
        best, settings = choice.fit(rows.x, rows.y, rows.group)
        return _predictor(best), settings

    return fit


def _naive_bayes(rows: SpliceRows) -> tuple[Predictor, str]:
    model = CategoricalNB(min_categories=len(LETTERS)).fit(rows.x.numpy(), rows.y.numpy())
    tables = torch.tensor(np.stack(model.feature_log_prob_))  # (sites, classes, letters)

    def predict(x: Tensor) -> Labels:
        logs = tables[torch.arange(SITES), :, x.clamp(min=0)]  # (rows, sites, classes)
        seen = torch.where((x >= 0).unsqueeze(-1), logs, 0.0)  # an unknown letter says nothing
        return np.asarray((seen.sum(dim=1) + torch.tensor(model.class_log_prior_)).argmax(dim=1))

    return predict, ""


def _support_vectors(rows: SpliceRows) -> tuple[Predictor, str]:
    encoder = OneHotEncoder(categories=[range(len(LETTERS))] * SITES, handle_unknown="ignore").fit(rows.x.numpy())
    model = SVC(C=3.0, gamma=0.02).fit(encoder.transform(rows.x.numpy()), rows.y.numpy())
    return lambda x: np.asarray(model.predict(encoder.transform(x.numpy()))), ""
