"""Confidence intervals of answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchpbp.contract.frames import as_array, posterior_frame
from torchpbp.contract.latent_model import LatentModel
from torchpbp.inputs.evidence import Evidence, EvidenceLike, warn_of_observed_query
from torchpbp.lazy import is_frame
from torchpbp.lazy import pandas as pd
from torchpbp.settings import between


class Interval(NamedTuple):
    """An answer and the ends of its confidence interval, all of one shape."""

    estimate: Tensor
    lower: Tensor
    upper: Tensor


class Intervals(LatentModel):
    """A model with confidence intervals of its answers, over repeated samples of its training rows."""

    @abstractmethod
    def interval(self, query: str | Sequence[str] | None, evidence: EvidenceLike = None, level: float = 0.95) -> Any:
        """Confidence intervals of each entry of P(query | evidence), or of log P(evidence).

        Args:
            query: a variable, or several for their joint distribution; None for the log-evidence.
            evidence: as for ``posterior``.
            level: probability with which an interval covers the true value, over repeated samples of training rows.

        Returns:
            :class:`Interval` of (rows, states…) tensors, or (rows,) for the log-evidence. For a DataFrame of evidence a DataFrame
            with the same index and columns (estimate, lower, upper) over those of ``posterior``.
        """


def ask_interval(
    model: LatentModel,
    query: str | Sequence[str] | None,
    evidence: EvidenceLike,
    level: float,
    answer: Callable[[tuple[str, ...], Evidence], Interval],
) -> Any:
    """Check a query, compute its answer, and convert it to a DataFrame if the evidence is one.

    Args:
        model: the model with the variables.
        query, evidence, level: arguments of :meth:`Intervals.interval`.
        answer: (checked names, empty for the log-evidence; checked evidence) -> interval.
    """
    between(0, 1, ends=False).check("level", level)
    names = () if query is None else model.query_names(query)
    checked = model.read_evidence(evidence)
    if names:
        model.check_query(names)
        warn_of_observed_query(names, checked)
    result = answer(names, checked)
    if not is_frame(evidence):
        return result
    if not names:
        return pd.DataFrame({part: as_array(x) for part, x in result._asdict().items()}).set_axis(evidence.index)
    frames = {part: posterior_frame(model, names, x) for part, x in result._asdict().items()}
    return pd.concat(frames, axis=1).set_axis(evidence.index)
