"""How well pen digits are recognised as the training set grows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import Tensor, nn

from torchpbp.datasets.splits import rows_per_class
from torchpbp.experiments.digits.classification import check_data, check_learner, fit_classifier, predict
from torchpbp.experiments.digits.plots import write_learning_curve
from torchpbp.experiments.running.experiment import row_counts
from torchpbp.experiments.running.grid import grid_table, measure_grid
from torchpbp.experiments.running.results import Metrics, environment, metrics_of, publish, text_table
from torchpbp.experiments.running.scores import accuracy
from torchpbp.settings import Settings, optional, setting, whole

if TYPE_CHECKING:
    from torchpbp.datasets.digits_module import DigitsDataModule


COLUMNS = {
    "rows_per_class": ("rows/class", "{}"),
    "learner": ("learner", "{}"),
    "accuracy": ("accuracy", "{:.4f}"),
    "standard_error": ("std err", "{:.4f}"),
    "fit_seconds": ("fit seconds", "{:.2f}"),
}


@dataclass(frozen=True)
class DigitsCurveSettings(Settings):
    """Settings of :func:`run_digits_curve`.

    Args:
        sizes: training rows of each class.
        repeats: draws of training rows.
        limit: test rows at most; all by default.
    """

    sizes: tuple[int, ...] = setting((20, 50, 100, 200, 650), row_counts(least=2))
    repeats: int = setting(3, whole(1))
    limit: int | None = setting(None, optional(whole(1)))


def run_digits_curve(
    data: DigitsDataModule,
    learner: nn.Module,
    others: Mapping[str, nn.Module] | None = None,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Metrics:
    """Test accuracy and fit time of learners against the number of training rows per class.

    All learners get the same rows. Repeat r draws its rows by seed + r; those of a smaller size are among those of a
    larger one. No choice is made from the results.

    Args:
        data: the pen digits.
        learner: an unfitted model of the sixteen coordinates.
        others: more of them, by name, to compare with.
        seed: of the draws.
        output_dir: folder for metrics.json, metrics.csv (a row per fit) and learning_curve.png. ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).
        options: see :class:`DigitsCurveSettings`.

    Returns:
        "test/accuracy/<learner>/<size>", "test/accuracy_standard_error/…" (over repeats; ``None`` for one repeat) and
        "fit_seconds/…" (mean), and the facts of the run. A learner goes by the name of its class, or by its own.
    """
    settings = DigitsCurveSettings.from_dict(options)
    learners = {
        name: check_learner(model) for name, model in {type(learner).__name__: learner, **(others or {})}.items()
    }
    check_data(data)
    test_x, test_y = data.test_x[: settings.limit], data.test_y[: settings.limit].numpy()

    @lru_cache(maxsize=1)
    def drawn(repeat: int, size: int) -> tuple[Tensor, Tensor]:
        chosen = rows_per_class(data.train_y, size, seed + repeat)
        return data.train_x[chosen], data.train_y[chosen]

    def one_fit(name: str, size: int, repeat: int) -> dict[str, float]:
        classifier, seconds = fit_classifier(learners[name], *drawn(repeat, size), False)
        return {"accuracy": accuracy(predict(classifier, test_x)[0], test_y), "fit_seconds": seconds}

    points = [
        (name, size, repeat) for repeat in range(settings.repeats) for size in settings.sizes for name in learners
    ]
    measured = measure_grid("learning curve", points, one_fit, output_dir, verbose)
    table = grid_table(("learner", "rows_per_class", "repeat"), measured)
    summary = summarise(table)
    names = {
        "test/accuracy": "accuracy",
        "test/accuracy_standard_error": "standard_error",
        "fit_seconds": "fit_seconds",
    }
    metrics = metrics_of(summary, ("learner", "rows_per_class"), names)
    metrics |= {"repeats": settings.repeats, "rows/test": len(test_y), "seed": seed, **environment()}
    folder = publish(output_dir, metrics, table, text_table(summary, COLUMNS), verbose)
    if folder is not None:
        write_learning_curve(folder / "learning_curve.png", summary)
    return metrics


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy, its standard error over repeats (NaN for one) and mean fit time, by learner and size."""
    groups = table.groupby(["learner", "rows_per_class"], sort=False)
    summary = groups.agg(
        accuracy=("accuracy", "mean"), standard_error=("accuracy", "sem"), fit_seconds=("fit_seconds", "mean")
    )
    return summary.reset_index().sort_values("rows_per_class", kind="stable")
