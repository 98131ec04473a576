"""The one number of a run that a search over settings looks at."""

from __future__ import annotations

import math

from torchpbp.errors import ArgumentError, DataError
from torchpbp.experiments.running.results import Metrics


def check_objective(name: str | None) -> None:
    """Raise for the empty name that a search has until one is given; ``None`` outside of searches is fine."""
    if name == "":
        raise ArgumentError(
            "A search needs the metric it looks at: expected objective=<name in metrics.json>, got none."
        )


def objective_value(metrics: Metrics, name: str) -> float:
    """The metric that a search minimises or maximises.

    Raises:
        DataError: no such metric, or it is not a finite number.
    """
    numbers = {k: v for k, v in metrics.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    if not math.isfinite(numbers.get(name, math.nan)):
        problem = (
            f"expected a finite number, got {metrics[name]!r}" if name in metrics else "the run has no such metric"
        )
        raise DataError(f"objective={name}: {problem}. Choose among: {', '.join(numbers)}.")
    return float(numbers[name])
