"""The one number of a run that a search over settings looks at."""

from __future__ import annotations

import math

from torchpbp.errors import DataError
from torchpbp.experiments.running.results import Metrics


def checked_objective(name: str | None) -> str | None:
    """The name as given; ``None`` outside of searches.

    Raises:
        DataError: an empty name, which is what a search has until it is told what to look for.
    """
    if name == "":
        raise DataError("A search needs the metric it looks at: expected objective=<name in metrics.json>, got none.")
    return name


def objective_value(metrics: Metrics, name: str) -> float:
    """The number that a search minimises or maximises.

    Args:
        metrics: of a run.
        name: of one of them.

    Raises:
        DataError: no such metric, or it is not a finite number.
    """
    numbers = [k for k, v in metrics.items() if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if name not in metrics:
        raise DataError(f"objective={name}: the run has no such metric. There are: {', '.join(numbers)}.")
    value = metrics[name]
    if name not in numbers or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise DataError(
            f"objective={name}: expected a finite number, got {value!r}. Choose among: {', '.join(numbers)}."
        )
    return float(value)
