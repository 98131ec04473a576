"""Pen digits recognised although points are hidden, against other ways to deal with that."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import Tensor, nn

from torchpbp.datasets.digits import POINTS
from torchpbp.datasets.splits import hide_points
from torchpbp.experiments.digits.baselines import Predictor, baselines
from torchpbp.experiments.digits.classification import check_data, check_learner, fit_classifier, predict
from torchpbp.experiments.running.experiment import one_or_more
from torchpbp.experiments.running.grid import measure_grid
from torchpbp.experiments.running.results import Metrics, environment, publish
from torchpbp.experiments.running.scores import accuracy
from torchpbp.settings import Settings, optional, setting, several, whole

if TYPE_CHECKING:
    from torchpbp.datasets.digits_module import DigitsDataModule


@dataclass(frozen=True)
class DigitsMissingSettings(Settings):
    """Settings of :func:`run_digits_missing`.

    Args:
        hidden: numbers of points to hide.
        limit: test rows at most; all by default.
    """

    hidden: tuple[int, ...] = setting((0, 2, 4, 6), one_or_more(several(whole(0, POINTS))))
    limit: int | None = setting(None, optional(whole(1)))


def run_digits_missing(
    data: DigitsDataModule,
    learner: nn.Module,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Metrics:
    """Test accuracy with some of the eight points hidden at random, next to three baselines on the same rows and points.

    The baselines (:mod:`torchpbp.experiments.digits.baselines`) are fitted to the same training rows.

    Args:
        data: the pen digits; its ``train_size`` sets the rows per class to learn from.
        learner: an unfitted model of the sixteen coordinates, copied for each class; fitted to complete rows.
        seed: of the points hidden. Those hidden of a smaller number are among those of a larger one.
        output_dir: folder for metrics.json and metrics.csv (a row per classifier). ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).
        options: see :class:`DigitsMissingSettings`.

    Returns:
        "test/accuracy/<classifier>/<hidden>" and "seconds/<classifier>" (fit and all predictions), and the facts of the
        run. The learner goes by the name of its class.
    """
    settings = DigitsMissingSettings.from_dict(options)
    check_learner(learner)
    check_data(data)
    tests = {count: hide_points(data.test_x, count, seed)[: settings.limit] for count in settings.hidden}
    test_y = data.test_y[: settings.limit].numpy()

    def fit_learner(x: Tensor, y: Tensor) -> Predictor:
        classifier, _ = fit_classifier(learner, x, y, False)
        return lambda rows: predict(classifier, rows)[0]

    classifiers: dict[str, Callable[[Tensor, Tensor], Predictor]] = {
        type(learner).__name__: fit_learner,
        **baselines(seed),
    }

    def one_classifier(name: str) -> dict[str, float]:
        start = time.perf_counter()
        predictor = classifiers[name](data.train_x, data.train_y)
        shares = {f"hidden_{count}": accuracy(predictor(rows), test_y) for count, rows in tests.items()}
        return {**shares, "seconds": time.perf_counter() - start}

    points = [(name,) for name in classifiers]
    metrics: Metrics = {}
    lines: list[dict[str, str | float]] = []
    for (name,), measured in measure_grid("hidden points", points, one_classifier, output_dir, verbose):
        lines.append({"classifier": name, **measured})
        metrics |= {f"test/accuracy/{name}/{count}": measured[f"hidden_{count}"] for count in tests}
        metrics[f"seconds/{name}"] = measured["seconds"]
    metrics |= {"rows/train": len(data.train_y), "rows/test": len(test_y), "seed": seed, **environment()}
    table = pd.DataFrame(lines)
    publish(output_dir, metrics, table, table.to_string(index=False, float_format="{:.4f}".format), verbose)
    return metrics
