"""Pen digits by one generative model per digit: accuracy by rows and hidden points, beside classifiers without a graph."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from torchpbp.classifier import GenerativeClassifier
from torchpbp.contract.model_files import Saved
from torchpbp.datasets.digits import CLASSES, POINTS
from torchpbp.datasets.digits_module import DigitsDataModule
from torchpbp.datasets.splits import rows_per_class
from torchpbp.errors import ArgumentError
from torchpbp.experiments.grid import Run
from torchpbp.experiments.kernel_digits.baselines import BASELINES, Learner
from torchpbp.experiments.kernel_digits.strokes import completed_picture, samples_picture
from torchpbp.experiments.results import Metrics, Picture, Result, means_and_errors, metrics_of
from torchpbp.experiments.scores import class_table, confusion, confusion_picture
from torchpbp.experiments.train.distortions import slanted_copies
from torchpbp.experiments.train.leaf_data import Table
from torchpbp.experiments.train.pictures import hidden_picture
from torchpbp.experiments.train.strokes import DIGIT, POINT_NAMES, coordinates, point_columns
from torchpbp.experiments.train.task import Questions
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.io import load
from torchpbp.plotting import plot_learning_curves
from torchpbp.settings import between

ALL = "all"
"""Stands for all training rows in tables and metrics."""
MODEL_FILE = "classifier"
MOST_MISSING = 0.99


def kernel_digits(
    data: DigitsDataModule,
    graph: LatentGraph,
    models: Mapping[str, Callable[[LatentGraph], Any]],
    run: Run,
    sizes: Sequence[int | None] = (None,),
    repeats: int = 1,
    hidden: Sequence[int] = (0, 2, 4, 6),
    copies: int = 0,
    slant: float = 0.15,
    missing: float = 0.0,
    baselines: bool = True,
    samples: int = 4,
    limit: int | None = None,
) -> Result:
    """Fit one model per digit for each model, size and repeat, and predict rows with some of their points hidden.

    Args:
        data: the pen digits. Test rows are left alone with ``split="cells"``, which is for choosing settings.
        graph: over the sixteen coordinates.
        models: name -> function of the graph that makes an unfitted model. Metrics without a name are those of the first.
        run: seed, folder and kept parts.
        sizes: training rows of each digit, drawn at random; ``None``: all of them.
        repeats: draws of training rows. Those of a smaller size are among those of a larger one.
        hidden: numbers of points to hide when predicting; the same points for all classifiers.
        copies: slanted copies of each training stroke to learn from as well.
        slant: how far they lean, see :func:`~torchpbp.experiments.train.distortions.slanted_copies`.
        missing: share of the training coordinates that are hidden at random; KernelPBP fills them in.
        baselines: also measure 1-NN by partial distance, an SVM after imputation, and gradient boosting.
        samples: strokes drawn from each model for a picture.
        limit: validation and test rows at most.

    Returns:
        "<rows>/accuracy", "…/log_loss" (nats), "…/calibration_error" of the first model at the last size for complete rows and
        with half of the points hidden ("…_half_hidden"); "<rows>/accuracy/<classifier>/<rows per class>/<hidden>" and
        "<rows>/log_loss/…" of all, with standard errors over repeats; "fit_seconds/<classifier>/<rows per class>" and
        "predict_seconds/…". With a single model, size and repeat also its confusions, predictions, pictures and file.
    """
    if not set(hidden) <= set(range(POINTS + 1)):
        raise ArgumentError(f"task.hidden: expected numbers of points from 0 to {POINTS}, got {list(hidden)}.")
    between(0.0, MOST_MISSING).check("task.missing", missing)
    if missing and copies:
        raise ArgumentError(
            f"task.copies: expected 0, since only complete strokes can be slanted (task.missing={missing})."
        )
    data.setup()
    tables = {"val": point_columns(data.val_x[:limit], data.val_y[:limit])}
    if data.split == "official":
        tables["test"] = point_columns(data.test_x[:limit], data.test_y[:limit])
    questions = Questions(tables, POINT_NAMES, DIGIT, sorted({0, *hidden}), draws=1)
    main, *others = models
    single = not others and len(sizes) == repeats == 1 and isinstance(models[main](graph), Saved)
    learners: dict[str, Learner] = {
        **{name: functools.partial(ModelPerDigit.fitted, make, graph) for name, make in models.items()},
        **(BASELINES if baselines else {}),
    }
    fitted: dict[str, ModelPerDigit] = {}

    @functools.lru_cache(maxsize=1)
    def training_rows(size: int | None, repeat: int) -> Table:
        return training_table(data, size, run.seeds(repeat, 3), copies, slant, missing)

    def measure(name: str, size: int | str, repeat: int) -> Any:
        rows = training_rows(None if size == ALL else int(size), repeat)
        run.say(f"{name}: learning from {len(rows[DIGIT]):,} rows, then predicting others")
        start = time.perf_counter()
        classify = learners[name](rows)
        seconds = time.perf_counter() - start
        if single and isinstance(classify, ModelPerDigit):
            fitted[name] = classify
            if run.folder is not None:
                classify.classifier.save(run.folder / f"{MODEL_FILE}.pt")
        return questions.judged(name, classify).assign(fit_seconds=seconds).to_dict("records")

    points = [(name, ALL if n is None else n, r) for r in range(repeats) for n in sizes for name in learners]
    found = [
        {"rows_per_class": size, "repeat": repeat, **line}
        for (_, size, repeat), lines in run.grid("pen digits", points, measure)
        for line in lines
    ]
    table = pd.DataFrame(found).rename(columns={"seconds": "predict_seconds"})
    metrics, last = collected(table, main), list(tables)[-1]
    rows = len(data.train_y) if sizes[-1] is None else CLASSES * sizes[-1]
    metrics |= {"rows/train": rows, **{f"rows/{part}": len(t[DIGIT]) for part, t in tables.items()}}
    result = Result(metrics, table, described(table, metrics, last))
    result.main = [f"{last}/{figure}" for figure in ("accuracy", "accuracy_half_hidden", "log_loss")]
    asked = table[table["rows"] == last]
    if len(sizes) > 1:
        result.pictures = {"learning_curve": learning_picture(asked, len(data.train_y) // CLASSES)}
    else:
        means = asked.groupby(["classifier", "hidden"], sort=False)["accuracy"].mean().reset_index()
        result.pictures = {"hidden": hidden_picture(means, POINTS)}
    if single:
        run.say(f"{main}: confusions, samples and completed strokes")
        if main not in fitted and run.folder is not None:  # kept by an earlier run
            fitted[main] = ModelPerDigit(load(run.folder / f"{MODEL_FILE}.pt"))
        add_details(result, fitted[main], tables[last], samples, run)
    return result


class ModelPerDigit:
    """A generative model per digit, as a classifier of named points.

    Args:
        classifier: fitted to the sixteen coordinates.
    """

    def __init__(self, classifier: GenerativeClassifier) -> None:
        self.classifier = classifier

    @classmethod
    def fitted(cls, make: Callable[[LatentGraph], Any], graph: LatentGraph, table: Table) -> ModelPerDigit:
        """Models made for a graph and fitted to training rows."""
        return cls(GenerativeClassifier(learner=make(graph)).fit(coordinates(table).double(), table[DIGIT]))

    def __call__(self, table: Table) -> Tensor:
        """(rows, classes) log-probabilities."""
        return torch.from_numpy(self.classifier.predict_log_proba(coordinates(table).double()))


def training_table(
    data: DigitsDataModule, size: int | None, seeds: Sequence[int], copies: int, slant: float, missing: float
) -> Table:
    """Training rows as named points.

    Args:
        data: the pen digits.
        size: rows of each digit; all by default.
        seeds: of the rows drawn, of the slants and of the hidden coordinates.
        copies: slanted copies of each row, after the rows themselves.
        slant: how far they lean.
        missing: share of the coordinates that are hidden.
    """
    x, y = data.train_x, data.train_y
    if size is not None:
        chosen = rows_per_class(y, size, seeds[0])
        x, y = x[chosen], y[chosen]
    x, y = slanted_copies(x, copies, slant, seeds[1]), y.repeat(copies + 1)
    hidden = np.random.default_rng(seeds[2]).random(x.shape) < missing
    return point_columns(x.masked_fill(torch.from_numpy(hidden), torch.nan), y)


def add_details(result: Result, model: ModelPerDigit, table: Table, samples: int, run: Run) -> None:
    """Add confusions, predictions, pictures of strokes and the model's file to the result of a single fit."""
    classes, true, answers = list(model.classifier.classes_), table[DIGIT].numpy(), model(table).numpy()
    predicted = model.classifier.classes_[answers.argmax(axis=1)]
    matrix = confusion(predicted, true, classes)
    predictions = {"true": true, "predicted": predicted, "probability": np.exp(answers.max(axis=1))}
    result.pictures = {
        **result.pictures,
        "confusion": confusion_picture(matrix, classes),
        "completed": completed_picture(model.classifier, coordinates(table), table[DIGIT]),
        "samples": samples_picture(model.classifier, samples, run.seed),
    }
    result.tables = {
        "predictions": pd.DataFrame(predictions).rename_axis("row").reset_index(),
        "classes": class_table(matrix, classes),
    }
    if run.folder is not None:
        result.models = {MODEL_FILE: model.classifier}


def learning_picture(table: pd.DataFrame, all_rows: int) -> Picture:
    """Accuracy on complete rows and seconds to learn against training rows per class, a line per classifier.

    Args:
        table: columns classifier, rows_per_class, hidden, accuracy and fit_seconds; rows that differ in the repeat are averaged.
        all_rows: number of rows per class where all are used.
    """
    rows = table["rows_per_class"].replace(ALL, all_rows).astype(int)
    complete = table.assign(rows=rows, percent=100 * table["accuracy"])[table["hidden"] == 0]
    figure = Figure(figsize=(9.5, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, column, label in ((left, "percent", "accuracy, %"), (right, "fit_seconds", "seconds to learn")):
        plot_learning_curves(complete, column, "rows", by="classifier", ax=axes)
        axes.set(xscale="log", xlabel="training rows per class", ylabel=label)
        axes.minorticks_off()
        axes.set_xticks(sorted(set(rows)), [str(n) for n in sorted(set(rows))])
    left.set(yscale="linear")
    if right.get_legend() is not None:
        right.get_legend().remove()  # the same as at the left
    return Picture(figure, "Accuracy on complete rows and seconds to learn, by the number of training rows per class.")


def collected(table: pd.DataFrame, main: str) -> Metrics:
    """Flat results; those of the main model at its last size come first, without a name."""
    last = table["rows_per_class"].iloc[-1]
    of_main = table[(table["classifier"] == main) & (table["rows_per_class"] == last)]
    metrics: Metrics = {}
    for (part, count), lines in of_main.groupby(["rows", "hidden"], sort=False):
        if count in (0, POINTS // 2):
            suffix = "_half_hidden" if count else ""
            for figure in ("accuracy", "log_loss", "calibration_error"):
                metrics[f"{part}/{figure}{suffix}"] = float(lines[figure].mean())
    by = ["classifier", "rows_per_class", "hidden"]
    for part, lines in table.groupby("rows", sort=False):
        means = means_and_errors(lines, by, ["accuracy", "log_loss"])
        found = metrics_of(means.rename(columns={c: f"{part!s}/{c}" for c in means if c not in by}), by)
        metrics |= {name: value for name, value in found.items() if value is not None}
    complete = table[table["hidden"] == 0].groupby(by[:2], sort=False)[["fit_seconds", "predict_seconds"]]
    return metrics | metrics_of(complete.last().reset_index(), by[:2])


def described(table: pd.DataFrame, metrics: Metrics, last: str) -> str:
    """Accuracies in percent by classifier, rows per class and number of hidden points, and the figures of the first model."""
    asked = table[table["rows"] == last]
    groups = asked.groupby(["classifier", "rows_per_class", "hidden"], sort=False)["accuracy"].mean()
    names = [f"{last}/{figure}" for figure in ("accuracy", "accuracy_half_hidden", "log_loss", "calibration_error")]
    wide = (100 * groups).unstack("hidden", sort=False).rename_axis(columns="hidden points").reset_index()
    lines = [f"{last} accuracy, %", wide.to_string(index=False, float_format="{:.2f}".format)]
    return "\n".join([*lines, *(f"{name:<26} {metrics[name]:.4f}" for name in names if name in metrics)])
