"""Answers as pandas tables: states by their labels, rows by the index of the evidence."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inputs.evidence import EvidenceLike
from torchpbp.inputs.labels import BOOLEANS
from torchpbp.lazy import is_frame, is_series
from torchpbp.lazy import pandas as pd

QUANTILES = (0.05, 0.5, 0.95)
"""Quantiles in the table of a continuous variable."""


class Labelled(Protocol):
    """A model with a graph and labels of states."""

    @property
    def graph(self) -> LatentGraph: ...
    @property
    def labels(self) -> Mapping[str, Sequence[Any]]: ...


def posterior_frame(model: Labelled, names: Sequence[str], answer: Any, at: Any = None) -> pd.DataFrame:
    """A posterior as a table, with a row per row of evidence.

    Args:
        model: the model of the answer.
        names: of the variables.
        answer: (rows, states…) tensor, a Density, or (rows, n) densities at points.
        at: (n,) points of the densities.

    Returns:
        A column for each state, named by its label; for several variables the columns have a level per variable. For a
        continuous variable the columns are the points ``at``, or mean, std and quantiles.
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
        model: the model of the answer.
        names: of the variables.
        answer: (rows, states…) tensor, or its table.
        evidence: of the query, for the index.
    """
    sizes = [model.graph.num_states(v) for v in names]
    table = answer.to_numpy() if is_frame(answer) else as_array(answer)
    best = table.reshape(len(table), math.prod(sizes)).argmax(axis=1)
    places = np.unravel_index(best, sizes)
    columns = {v: labelled(model, v, codes) for v, codes in zip(names, places, strict=True)}
    return pd.DataFrame(columns).set_axis(evidence_index(evidence, len(table)))


def draws_frame(model: Labelled, values: Mapping[str, Tensor]) -> pd.DataFrame:
    """(n,) or (n, rows of evidence) draws as a table, ordered by row of evidence."""
    return pd.DataFrame({v: labelled(model, v, as_array(x).T.reshape(-1)) for v, x in values.items()})


def state_labels(model: Labelled, name: str) -> list[Hashable]:
    """Labels of all states of a variable; a state without a label has its number."""
    labels = list(model.labels.get(name, ()))
    return [*labels, *range(len(labels), model.graph.num_states(name))]


def labelled(model: Labelled, name: str, values: np.ndarray) -> Any:
    """A column of states as labels or booleans; as numbers without labels."""
    labels = model.labels.get(name)
    if not labels:
        return values
    if tuple(labels) == BOOLEANS and all(isinstance(label, bool) for label in labels):
        return values.astype(bool)
    return pd.Categorical.from_codes(values.astype(np.int64).tolist(), pd.Index(state_labels(model, name)))


def evidence_index(evidence: EvidenceLike, rows: int) -> pd.Index[Any]:
    """The index of a DataFrame of evidence, or the common index of its Series; otherwise row numbers."""
    indices: list[pd.Index[Any]] = []
    if is_frame(evidence):
        indices = [evidence.index]
    elif isinstance(evidence, Mapping):
        indices = [column.index for column in evidence.values() if is_series(column)]
    if indices and len(indices[0]) == rows and all(other.equals(indices[0]) for other in indices[1:]):
        return indices[0]
    return pd.RangeIndex(rows)


def as_array(values: Tensor) -> np.ndarray:
    """A tensor on any device as a numpy array."""
    return values.detach().cpu().numpy()
