"""Pen digits recognised although points are hidden, against other ways to deal with that."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
from torch import Tensor, nn
from tqdm.auto import tqdm

from torchpbp.datasets.splits import hide_points
from torchpbp.errors import DataError
from torchpbp.experiments.digits.classification import accuracy, check_data, check_learner, fit_classifier, predict
from torchpbp.experiments.digits.rivals import Predictor, rivals
from torchpbp.experiments.running.results import Metrics, environment, write_results
from torchpbp.experiments.running.run_folder import Parts

if TYPE_CHECKING:
    from torchpbp.datasets.digits_module import DigitsDataModule


def run_digits_missing(
    data: DigitsDataModule,
    learner: nn.Module,
    hidden: Sequence[int] = (0, 2, 4, 6),
    seed: int = 0,
    limit: int | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
) -> Metrics:
    """Test accuracy with some of the eight points hidden at random, next to three rivals on the same rows and points.

    The rivals (:mod:`torchpbp.experiments.digits.rivals`) are fitted to the same training rows.

    Args:
        data: the pen digits; its ``train_size`` sets the rows per class to learn from.
        learner: an unfitted model of the sixteen coordinates, copied for each class; fitted to complete rows.
        hidden: numbers of points to hide.
        seed: of the points hidden. Those hidden of a smaller number are among those of a larger one.
        limit: test rows at most; all by default.
        output_dir: folder for metrics.json and metrics.csv (a row per classifier). ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).

    Returns:
        "test/accuracy/<classifier>/<hidden>" and "seconds/<classifier>" (fit and all predictions), and the facts of the
        run. The learner goes by the name of its class.
    """
    check_learner(learner)
    check_data(data, limit)
    if not hidden:
        raise DataError("hidden: expected one or more numbers of points to hide, got none.")
    tests = {int(k): hide_points(data.test_x, int(k), seed)[:limit] for k in hidden}
    test_y = data.test_y[:limit].numpy()

    def fit_learner(x: Tensor, y: Tensor) -> Predictor:
        classifier, _ = fit_classifier(learner, x, y, False)
        return lambda rows: predict(classifier, rows)[0]

    contestants: dict[str, Callable[[Tensor, Tensor], Predictor]] = {
        type(learner).__name__: fit_learner,
        **rivals(seed),
    }
    lines: list[dict[str, str | float]] = []
    parts = Parts(output_dir)
    with tqdm(total=len(contestants) * len(tests), desc="hidden points", disable=not verbose) as bar:

        def examined(fit: Callable[[Tensor, Tensor], Predictor]) -> dict[str, float]:
            found: dict[str, float] = {}
            start = time.perf_counter()
            predictor = fit(data.train_x, data.train_y)
            for count, rows in tests.items():
                found[f"hidden_{count}"] = accuracy(predictor(rows), test_y)
                bar.update()
            return {**found, "seconds": time.perf_counter() - start}

        for name, fit in contestants.items():
            bar.set_postfix_str(name, refresh=False)
            lines.append({"classifier": name, **parts.get(name, partial(examined, fit))})
            bar.update(len(lines) * len(tests) - bar.n)
    metrics: Metrics = {}
    for line in lines:
        metrics |= {f"test/accuracy/{line['classifier']}/{count}": line[f"hidden_{count}"] for count in tests}
        metrics[f"seconds/{line['classifier']}"] = line["seconds"]
    metrics |= {"rows/train": len(data.train_y), "rows/test": len(test_y), "seed": seed, **environment()}
    table = pd.DataFrame(lines)
    if output_dir is not None:
        write_results(output_dir, metrics, table)
    if verbose:
        print(table.to_string(index=False, float_format=lambda v: f"{v:.4f}"), flush=True)
    return metrics
