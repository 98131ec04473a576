"""Answers as pandas tables: states by their labels, rows by the index of the evidence.

Every model that answers questions takes these methods from here; they say in pandas what ``posterior``, ``posteriors`` and
``sample`` say in tensors.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from torchpbp.errors import QueryError, QueryWarning
from torchpbp.graph.latent_graph import Continuous, LatentGraph
from torchpbp.inputs.evidence import EvidenceLike, query_names
from torchpbp.lazy import is_frame, is_series
from torchpbp.lazy import pandas as pd

QUANTILES = (0.05, 0.5, 0.95)
"""Levels by which the density of a continuous variable is summed up."""


class Answering(Protocol):
    """What a model must have to answer in tables."""

    @property
    def graph(self) -> LatentGraph: ...
    @property
    def labels(self) -> Mapping[str, Sequence[Any]]: ...
    @property
    def posterior(self) -> Callable[..., Any]: ...
    @property
    def posteriors(self) -> Callable[..., Any]: ...


class Sampling(Answering, Protocol):
    """A model that can be sampled from as well."""

    @property
    def sample(self) -> Callable[..., Any]: ...


class Frames:
    """Questions answered by a pandas table. States without labels go by their numbers.

    Example:
        >>> from torchpbp import PBP, DiscreteNetwork, templates
        >>> truth = DiscreteNetwork.random(templates.naive_bayes(3, observed_states=2), seed=0)
        >>> model = PBP(truth.graph).fit(truth.sample_frame(1_000).replace({"x1": {0: "no", 1: "yes"}}))
        >>> model.posterior_frame("x1", pd.DataFrame({"x2": [0, 1]}, index=["Ann", "Ben"])).columns.tolist()
        ['no', 'yes']
    """

    def posterior_frame(
        self: Answering, query: str | Sequence[str], evidence: EvidenceLike = None, **options: Any
    ) -> pd.DataFrame:
        """P(query | evidence), a row per row of evidence.

        Args:
            query: a variable, or several for their joint distribution.
            evidence: as for ``posterior``. If it is a DataFrame, or holds Series with one index, the answer has that index.
            **options: of the model's ``posterior``.

        Returns:
            A column for each state, named by its label; for several variables the columns have one level for each. For a
            continuous variable the columns are the points ``at``, or else mean, std and quantiles.
        """
        names = query_names(query)
        answer = self.posterior(query, evidence, **options)
        if len(names) == 1:
            frame = _table(self, names[0], answer, options.get("at"))
        else:
            columns = pd.MultiIndex.from_product([state_labels(self, v) for v in names], names=names)
            frame = pd.DataFrame(_array(answer).reshape(len(answer), len(columns)), columns=columns)
        return frame.set_axis(_index(evidence, len(frame)))

    def posteriors_frame(self: Answering, evidence: EvidenceLike = None, **options: Any) -> pd.DataFrame:
        """Posteriors of all variables that some row does not observe, side by side.

        Args:
            evidence: as in :meth:`posterior_frame`.
            **options: of the model's ``posteriors``.

        Returns:
            A row per row of evidence; columns (variable, state) by label, or (variable, mean, std or quantile).
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QueryWarning)  # that nothing is left to ask is an error here
            answers = self.posteriors(evidence, **options)
        tables = {v: _table(self, v, answer) for v, answer in answers.items()}
        if not tables:
            raise QueryError("Every variable is observed in every row: nothing is left to ask. Leave some values out.")
        frame = pd.concat(tables, axis=1, names=["variable", "state"])
        return frame.set_axis(_index(evidence, len(frame)))

    def map_states(
        self: Answering, query: str | Sequence[str], evidence: EvidenceLike = None, **options: Any
    ) -> pd.Series[Any] | pd.DataFrame:
        """The most probable state of a discrete variable given the evidence, or the most probable joint state of several.

        Args:
            query: a variable, or several.
            evidence: as in :meth:`posterior_frame`; a row that observes the variable gets what it observes.
            **options: of the model's ``posterior``.

        Returns:
            Labels, a row per row of evidence: a Series for one variable, a DataFrame with a column for each of several.
        """
        names = query_names(query)
        for v in names:
            if isinstance(self.graph.variables.get(v), Continuous):
                raise QueryError(
                    f"Most probable state of '{v}': it is continuous and has no states. posterior_frame() has its mean."
                )
        answer = _array(self.posterior(query, evidence, **options))
        cells = answer.reshape(len(answer), math.prod(answer.shape[1:]))
        places = np.unravel_index(cells.argmax(axis=1), answer.shape[1:])
        columns = {v: labelled(self, v, codes) for v, codes in zip(names, places, strict=True)}
        frame = pd.DataFrame(columns).set_axis(_index(evidence, len(answer)))
        return frame[query] if isinstance(query, str) else frame

    def sample_frame(self: Sampling, n: int, evidence: EvidenceLike = None, **options: Any) -> pd.DataFrame:
        """Rows drawn from the model; variables with labels are category columns, so that a model can be fitted to them.

        Args:
            n: number of draws, per row of evidence.
            evidence: as in :meth:`posterior_frame`, for models that sample given evidence.
            **options: of the model's ``sample``, such as ``seed``.

        Returns:
            (n) rows without evidence; with it, rows (row of evidence, draw).
        """
        if not hasattr(self, "sample"):
            raise QueryError(f"{type(self).__name__} does not sample. PBP and EM do.")
        if evidence is not None and "evidence" not in inspect.signature(self.sample).parameters:
            raise QueryError(f"{type(self).__name__} samples without evidence only. PBP samples given evidence.")
        values = self.sample(n, **options) if evidence is None else self.sample(n, evidence, **options)
        columns = {v: labelled(self, v, _array(x).T.reshape(-1)) for v, x in values.items()}
        frame = pd.DataFrame(columns)
        if evidence is None:
            return frame
        given = _index(evidence, next(iter(values.values())).shape[1])
        draws: Any = [given, range(n)]
        return frame.set_axis(pd.MultiIndex.from_product(draws, names=[given.name or "row", "draw"]))


def state_labels(model: Answering, name: str) -> list[Hashable]:
    """Labels of all states of a variable; a state that no label is known of goes by its number."""
    known = list(model.labels.get(name, ()))
    return [*known, *range(len(known), model.graph.num_states(name))]


def labelled(model: Answering, name: str, values: np.ndarray) -> Any:
    """A column of labels for states; numbers stay as they are where there are no labels."""
    if not model.labels.get(name):
        return values
    return pd.Categorical.from_codes(values.astype(np.int64).tolist(), pd.Index(state_labels(model, name)))


def _table(model: Answering, name: str, answer: Any, at: Any = None) -> pd.DataFrame:
    """One variable's posterior, whatever it is."""
    if at is not None:
        return pd.DataFrame(_array(answer), columns=pd.Index(np.asarray(at), name=name))
    if isinstance(answer, Tensor):
        return pd.DataFrame(_array(answer), columns=pd.Index(state_labels(model, name), name=name))
    levels = answer.quantile(torch.tensor(QUANTILES, dtype=torch.float64))
    content = {"mean": _array(answer.mean), "std": np.sqrt(_array(answer.variance).clip(min=0))}
    content |= {f"{q:.0%}": x for q, x in zip(QUANTILES, _array(levels).T, strict=True)}
    return pd.DataFrame(content).rename_axis(columns=name)


def _index(evidence: EvidenceLike, rows: int) -> pd.Index[Any]:
    """The evidence's own index, if it has one of the right length."""
    found: list[pd.Index[Any]] = []
    if is_frame(evidence):
        found = [evidence.index]
    elif isinstance(evidence, Mapping):
        found = [column.index for column in evidence.values() if is_series(column)]
    if found and len(found[0]) == rows and all(other.equals(found[0]) for other in found[1:]):
        return found[0]
    return pd.RangeIndex(rows)


def _array(values: Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()
