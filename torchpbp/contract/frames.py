"""Answers as pandas tables: states by their labels, rows by the index of the evidence."""

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


class Labelled(Protocol):
    """What the tables of a model's answers are made with."""

    @property
    def graph(self) -> LatentGraph: ...
    @property
    def labels(self) -> Mapping[str, Sequence[Any]]: ...


def posterior_frame(model: Labelled, names: Sequence[str], answer: Any, at: Any = None) -> pd.DataFrame:
    """A posterior as a table, a row per row of evidence.

    Args:
        model: that answered.
        names: of the variables.
        answer: (rows, states…) tensor, a Density, or (rows, n) densities at points.
        at: (n,) those points.

    Returns:
        A column for each state, named by its label; for several variables the columns have one level for each. For a
        continuous variable the columns are the points ``at``, or else mean, std and quantiles.
    """
    if len(names) > 1:
        columns = pd.MultiIndex.from_product([state_labels(model, v) for v in names], names=list(names))
        return pd.DataFrame(as_array(answer).reshape(len(answer), len(columns)), columns=columns)
    (name,) = names
    if at is not None:
        return pd.DataFrame(as_array(answer), columns=pd.Index(np.asarray(at), name=name))
    if isinstance(answer, Tensor):
        return pd.DataFrame(as_array(answer), columns=pd.Index(state_labels(model, name), name=name))
    levels = answer.quantile(torch.tensor(QUANTILES, dtype=torch.float64))
    content = {"mean": as_array(answer.mean), "std": np.sqrt(as_array(answer.variance).clip(min=0))}
    content |= {f"{q:.0%}": x for q, x in zip(QUANTILES, as_array(levels).T, strict=True)}
    return pd.DataFrame(content).rename_axis(columns=name)


def posteriors_frame(model: Labelled, answers: Mapping[str, Any], index: pd.Index[Any]) -> pd.DataFrame:
    """Posteriors of several variables side by side: columns (variable, state) by label, or (variable, mean, std or quantile)."""
    if not answers:
        return pd.DataFrame(index=index)
    tables = {v: posterior_frame(model, [v], answer) for v, answer in answers.items()}
    return pd.concat(tables, axis=1, names=["variable", "state"]).set_axis(index)


def map_frame(
    model: Labelled, names: Sequence[str], answer: Tensor | pd.DataFrame, evidence: EvidenceLike
) -> pd.DataFrame:
    """The most probable states in a posterior, a column of labels for each variable.

    Args:
        model: that answered.
        names: of the variables.
        answer: (rows, states…) tensor, or the table of it.
        evidence: it was given, for the index.
    """
    sizes = [model.graph.num_states(v) for v in names]
    table = answer.to_numpy() if is_frame(answer) else as_array(answer)
    best = table.reshape(len(table), math.prod(sizes)).argmax(axis=1)
    places = np.unravel_index(best, sizes)
    columns = {v: labelled(model, v, codes) for v, codes in zip(names, places, strict=True)}
    return pd.DataFrame(columns).set_axis(evidence_index(evidence, len(table)))


def draws_frame(model: Labelled, values: Mapping[str, Tensor]) -> pd.DataFrame:
    """Draws as a table: (n,) rows, or those of (n, rows of evidence) draws, row of evidence by row of evidence."""
    return pd.DataFrame({v: labelled(model, v, as_array(x).T.reshape(-1)) for v, x in values.items()})


def state_labels(model: Labelled, name: str) -> list[Hashable]:
    """Labels of all states of a variable; a state that no label is known of goes by its number."""
    known = list(model.labels.get(name, ()))
    return [*known, *range(len(known), model.graph.num_states(name))]


def labelled(model: Labelled, name: str, values: np.ndarray) -> Any:
    """A column of labels for states; numbers stay as they are where there are no labels."""
    if not model.labels.get(name):
        return values
    return pd.Categorical.from_codes(values.astype(np.int64).tolist(), pd.Index(state_labels(model, name)))


def evidence_index(evidence: EvidenceLike, rows: int) -> pd.Index[Any]:
    """The index of a DataFrame of evidence, or that which all its Series have; otherwise numbers."""
    indices: list[pd.Index[Any]] = []
    if is_frame(evidence):
        indices = [evidence.index]
    elif isinstance(evidence, Mapping):
        indices = [column.index for column in evidence.values() if is_series(column)]
    if indices and len(indices[0]) == rows and all(other.equals(indices[0]) for other in indices[1:]):
        return indices[0]
    return pd.RangeIndex(rows)


def as_array(values: Tensor) -> np.ndarray:
    """A tensor's values for numpy, wherever it is."""
    return values.detach().cpu().numpy()


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
            frame = posterior_frame(self, names, answer, options.get("at"))
        else:
            columns = pd.MultiIndex.from_product([state_labels(self, v) for v in names], names=list(names))
            frame = pd.DataFrame(as_array(answer).reshape(len(answer), len(columns)), columns=columns)
        return frame.set_axis(evidence_index(evidence, len(frame)))

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
        tables = {v: posterior_frame(self, [v], answer) for v, answer in answers.items()}
        if not tables:
            raise QueryError("Every variable is observed in every row: nothing is left to ask. Leave some values out.")
        frame = pd.concat(tables, axis=1, names=["variable", "state"])
        return frame.set_axis(evidence_index(evidence, len(frame)))

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
        answer = as_array(self.posterior(query, evidence, **options))
        cells = answer.reshape(len(answer), math.prod(answer.shape[1:]))
        places = np.unravel_index(cells.argmax(axis=1), answer.shape[1:])
        columns = {v: labelled(self, v, codes) for v, codes in zip(names, places, strict=True)}
        frame = pd.DataFrame(columns).set_axis(evidence_index(evidence, len(answer)))
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
        columns = {v: labelled(self, v, as_array(x).T.reshape(-1)) for v, x in values.items()}
        frame = pd.DataFrame(columns)
        if evidence is None:
            return frame
        given = evidence_index(evidence, next(iter(values.values())).shape[1])
        draws: Any = [given, range(n)]
        return frame.set_axis(pd.MultiIndex.from_product(draws, names=[given.name or "row", "draw"]))
