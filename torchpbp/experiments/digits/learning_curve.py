"""How well pen digits are recognised as the training set grows."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from torch import Tensor, nn
from tqdm.auto import tqdm

from torchpbp.datasets.splits import rows_per_class
from torchpbp.experiments.digits.classification import accuracy, check_data, check_learner, fit_classifier, predict
from torchpbp.experiments.running.experiment import ascending, check_positive
from torchpbp.experiments.running.plots import write_learning_curve
from torchpbp.experiments.running.results import Metrics, environment, metrics_of, write_results
from torchpbp.experiments.running.run_folder import Parts

if TYPE_CHECKING:
    from torchpbp.datasets.digits_module import DigitsDataModule


def run_digits_curve(
    data: DigitsDataModule,
    learner: nn.Module,
    others: Mapping[str, nn.Module] | None = None,
    sizes: Sequence[int] = (20, 50, 100, 200, 650),
    repeats: int = 3,
    seed: int = 0,
    limit: int | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
) -> Metrics:
    """Test accuracy and fit time of learners against the number of training rows per class.

    All learners get the same rows. Repeat r draws its rows by seed + r; those of a smaller size are among those of a
    larger one. No choice is made from the results.

    Args:
        data: the pen digits.
        learner: an unfitted model of the sixteen coordinates.
        others: more of them, by name, to compare with.
        sizes: training rows of each class.
        repeats: draws of training rows.
        seed: of the draws.
        limit: test rows at most; all by default.
        output_dir: folder for metrics.json, metrics.csv (a row per fit) and learning_curve.png. ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).

    Returns:
        "test/accuracy/<learner>/<size>", "test/accuracy_standard_error/…" (over repeats; ``None`` for one repeat) and
        "fit_seconds/…" (mean), and the facts of the run. A learner goes by the name of its class, or by its own.
    """
    check_data(data, limit)
    sizes = ascending("sizes", sizes, least=2)
    check_positive(repeats=repeats)
    learners = {
        name: check_learner(model) for name, model in {type(learner).__name__: learner, **(others or {})}.items()
    }
    test_x, test_y = data.test_x[:limit], data.test_y[:limit].numpy()
    rows: list[dict[str, str | int | float]] = []
    parts = Parts(output_dir)
    with tqdm(total=repeats * len(sizes) * len(learners), desc="learning curve", disable=not verbose) as bar:
        for repeat in range(repeats):
            for size in sizes:
                chosen = rows_per_class(data.train_y, size, seed + repeat)
                for name, model in learners.items():
                    training = data.train_x[chosen], data.train_y[chosen]
                    ask = partial(_measured, model, training, (test_x, test_y))
                    found = parts.get(f"{repeat},{size},{name}", ask)
                    rows.append({"learner": name, "rows_per_class": size, "repeat": repeat, **found})
                    bar.set_postfix_str(f"{name} {size}: {100 * found['accuracy']:.2f} %", refresh=False)
                    bar.update()
    table = pd.DataFrame(rows)
    summary = summarise(table)
    names = {
        "test/accuracy": "accuracy",
        "test/accuracy_standard_error": "standard_error",
        "fit_seconds": "fit_seconds",
    }
    metrics = metrics_of(summary, ("learner", "rows_per_class"), names)
    metrics |= {"repeats": repeats, "rows/test": len(test_y), "seed": seed, **environment()}
    if output_dir is not None:
        folder = write_results(output_dir, metrics, table)
        write_learning_curve(folder / "learning_curve.png", summary)
    if verbose:
        print(format_curve(summary), flush=True)
    return metrics


def _measured(model: nn.Module, training: tuple[Tensor, Tensor], test: tuple[Tensor, np.ndarray]) -> dict[str, float]:
    """Accuracy and seconds of one fit."""
    classifier, seconds = fit_classifier(model, *training, False)
    return {"accuracy": accuracy(predict(classifier, test[0])[0], test[1]), "fit_seconds": seconds}


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy, its standard error over repeats (NaN for one) and mean fit time, by learner and size."""
    groups = table.groupby(["learner", "rows_per_class"], sort=False)
    summary = groups.agg(
        accuracy=("accuracy", "mean"), standard_error=("accuracy", "sem"), fit_seconds=("fit_seconds", "mean")
    )
    return summary.reset_index().sort_values("rows_per_class", kind="stable")


def format_curve(summary: pd.DataFrame) -> str:
    """The summary as text for a terminal."""
    lines = [f"{'rows/class':>10}  {'learner':<14}  {'accuracy':>8}  {'std err':>8}  {'fit seconds':>11}"]
    for line in summary.to_dict("records"):
        error = float(line["standard_error"])
        shown = "-" if math.isnan(error) else f"{error:.4f}"
        lines.append(
            f"{line['rows_per_class']:>10}  {line['learner']:<14}  {line['accuracy']:>8.4f}  {shown:>8}  "
            f"{line['fit_seconds']:>11.2f}"
        )
    return "\n".join(lines)
