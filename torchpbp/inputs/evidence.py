"""Evidence: what is known about each variable, row by row, as states, as weights over states, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from torchpbp.errors import DataError, QueryError, ShapeError
from torchpbp.graph.latent_graph import Domain
from torchpbp.inputs.labels import (
    are_labels,
    as_array,
    is_code_range,
    own_tensor,
    refuse_misaligned,
    states_from_labels,
)


@dataclass(frozen=True)
class Evidence:
    """Checked evidence for a batch of rows.

    Args:
        batch: number of rows.
        hard: name -> (batch,) states as int64; -1 where the row does not observe the variable.
        soft: name -> (batch, states) non-negative weights.
        real: name -> (batch,) values of continuous variables as float64; NaN where not observed.

    Example:
        >>> read_evidence({"x": [0, None], "y": 2}, {"x": 3, "y": 4, "z": 2}).hard
        {'x': tensor([ 0, -1]), 'y': tensor([2, 2])}
    """

    batch: int
    hard: dict[str, Tensor] = field(default_factory=dict)
    soft: dict[str, Tensor] = field(default_factory=dict)
    real: dict[str, Tensor] = field(default_factory=dict)

    def observed_everywhere(self, name: str) -> bool:
        """Whether each row gives a state or value for ``name``."""
        if name in self.real:
            return not bool(self.real[name].isnan().any())
        return name in self.hard and bool((self.hard[name] >= 0).all())

    def weights(self, name: str, states: int, dtype: torch.dtype, device: torch.device | str) -> Tensor | None:
        """(batch, states) likelihood weights of ``name``: one-hot, ones where missing; None if never mentioned."""
        if name in self.soft:
            return self.soft[name].to(dtype=dtype, device=device)
        if name in self.hard:
            table = torch.cat(
                [torch.eye(states, dtype=dtype, device=device), torch.ones(1, states, dtype=dtype, device=device)]
            )
            return table[self.hard[name].to(device)]  # index -1 takes the last row: all ones
        return None

    def repeat_interleave(self, times: int) -> Evidence:
        """Each row ``times`` times in a row."""
        return Evidence(
            self.batch * times,
            {v: t.repeat_interleave(times) for v, t in self.hard.items()},
            {v: t.repeat_interleave(times, dim=0) for v, t in self.soft.items()},
            {v: t.repeat_interleave(times) for v, t in self.real.items()},
        )

    def rows(self, chosen: slice) -> Evidence:
        """A slice of the rows."""
        size = len(range(*chosen.indices(self.batch)))
        parts = ({v: t[chosen] for v, t in group.items()} for group in (self.hard, self.soft, self.real))
        return Evidence(size, *parts)


EvidenceLike: TypeAlias = Mapping[str, Any] | pd.DataFrame | Evidence | None
"""Name -> state, states (one per row; -1 or NaN where not observed), or (batch, states) weights. None: no evidence."""


def query_names(query: Any) -> tuple[str, ...]:
    """The names in a query, which may be a single one."""
    try:
        names = (query,) if isinstance(query, str) else tuple(query)
    except TypeError:  # nothing to go through
        names = (None,)
    if not all(isinstance(name, str) for name in names):
        raise QueryError(f"Expected the name of a variable to query, or several names; got {query!r}.")
    return names


def read_evidence(
    evidence: EvidenceLike,
    states: Mapping[str, Domain],
    *,
    latent: Sequence[str] = (),
    labels: Mapping[str, Sequence[Any]] | None = None,
    device: torch.device | str = "cpu",
) -> Evidence:
    """Check evidence and bring it into one form.

    A single state stands for a batch of one row, and one row is repeated to the length of the others.

    Args:
        evidence: see :data:`EvidenceLike`.
        states: number of states (or range, if continuous) of each variable that may be observed.
        latent: names that exist but cannot be observed, for a clearer message.
        labels: name -> labels of its states, if evidence may be given by label.
        device: where the tensors go.

    Raises:
        QueryError: unknown or latent variable.
        ShapeError: rows of different lengths, or weights with the wrong number of states.
        DataError: states out of range, fractional states, negative or non-finite weights.
    """
    if isinstance(evidence, Evidence):
        return evidence
    if not isinstance(evidence, Mapping | pd.DataFrame | pd.Series | None):
        raise DataError(
            f"Evidence: expected a mapping of names to states, or a DataFrame; got {type(evidence).__name__}."
        )
    if isinstance(evidence, pd.DataFrame | pd.Series) and not evidence.keys().is_unique:
        twice = sorted({str(v) for v in evidence.keys()[evidence.keys().duplicated()]})
        raise DataError(f"Evidence names {twice} more than once. Give each variable one column.")
    items: dict[str, Any] = {} if evidence is None else {str(name): column for name, column in evidence.items()}
    refuse_misaligned(items, "Evidence on")
    hard: dict[str, Tensor] = {}
    soft: dict[str, Tensor] = {}
    real: dict[str, Tensor] = {}
    for name, value in items.items():
        if name not in states:
            if name in latent:
                raise QueryError(f"Evidence on '{name}': it is latent and cannot be observed.")
            raise QueryError(f"Evidence on unknown variable '{name}'. The model observes: {', '.join(states)}.")
        domain = states[name]
        tensor = _as_tensor(
            name, value, (labels or {}).get(name), "integer states" if isinstance(domain, int) else "numbers"
        )
        if not isinstance(domain, int):
            real[name] = _checked_values(name, tensor).to(device)
        elif tensor.ndim == 2 and tensor.is_floating_point():
            soft[name] = _checked_weights(name, tensor, domain).to(device)
        else:
            hard[name] = _checked_states(name, tensor, domain).to(device)
    lengths = {name: len(t) for name, t in (*hard.items(), *soft.items(), *real.items())}
    batch = max((n for n in lengths.values() if n != 1), default=1)
    for name, n in lengths.items():
        if n not in (1, batch):
            others = {k: v for k, v in lengths.items() if v == batch}
            raise ShapeError(
                f"Evidence on '{name}' has {n} rows, but '{next(iter(others))}' has {batch}. Give one length."
            )
        if n == 1 and batch != 1:
            if name in hard:
                hard[name] = hard[name].expand(batch)
            elif name in real:
                real[name] = real[name].expand(batch)
            else:
                soft[name] = soft[name].expand(batch, -1)
    return Evidence(batch, hard, soft, real)


def _as_tensor(name: str, value: Any, labels: Sequence[Any] | None, expected: str = "integer states") -> Tensor:
    if isinstance(value, Tensor):
        if value.is_complex():
            raise DataError(f"Evidence on '{name}': expected states or weights, got complex numbers.")
        value = value if value.layout == torch.strided else value.to_dense()
        return value.reshape(1) if value.ndim == 0 else value
    if isinstance(value, list | tuple) and value and all(isinstance(row, Tensor) for row in value):
        if len({row.shape for row in value}) > 1:
            raise ShapeError(f"Evidence on '{name}': got tensors of different shapes. Give each row the same.")
        return _as_tensor(name, torch.stack(list(value)), labels)  # numpy would cut gradients off
    if isinstance(value, pd.Series):
        value = value.array
    if isinstance(value, pd.Categorical):
        if labels is None and not pd.api.types.is_integer_dtype(value.categories.dtype):
            raise DataError(f"Evidence on '{name}' has category labels, but the model was fitted on plain states.")
        value = np.asarray(value.astype(object), dtype=object)
    try:
        array = np.atleast_1d(as_array(value))
    except ValueError:
        raise DataError(
            f"Evidence on '{name}': expected states or weights, got entries of different lengths."
        ) from None
    if array.dtype == object:
        array = states_from_labels(name, array, labels, "Evidence on", expected)
    elif array.dtype.kind not in "biuf":
        raise DataError(f"Evidence on '{name}': expected states or weights, got {array.dtype} values.")
    elif labels is not None and array.ndim == 1 and are_labels(array, labels):
        array = states_from_labels(name, array.astype(object), labels, "Evidence on")
    elif labels is not None and array.ndim == 1 and not is_code_range(labels) and not pd.isna(array).all():
        raise DataError(
            f"Evidence on '{name}': the model knows this variable by labels {list(labels)[:6]}, got plain numbers. "
            "Pass labels, or an integer tensor of state indices."
        )
    return own_tensor(array)


def _checked_values(name: str, tensor: Tensor) -> Tensor:
    if tensor.ndim != 1 or tensor.is_complex():
        raise ShapeError(
            f"Evidence on '{name}': expected one real value per row (NaN where not observed), got "
            f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}."
        )
    values = tensor.to(torch.float64)
    if bool(values.detach().isinf().any()):
        row = int(values.detach().isinf().nonzero()[0])
        raise DataError(f"Evidence on '{name}', row {row}: expected a finite value or NaN, got {float(values[row])}.")
    return values


def _checked_states(name: str, tensor: Tensor, states: int) -> Tensor:
    if tensor.ndim != 1:
        raise ShapeError(
            f"Evidence on '{name}': expected one state per row, or floating-point weights of shape (batch, {states}); "
            f"got {str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}."
        )
    if tensor.is_floating_point():
        missing = tensor.isnan()
        filled = torch.where(missing, torch.full_like(tensor, -1), tensor)
        whole = (filled == filled.round()) & (filled.abs() < 2**53)  # beyond, whole numbers are not exact; no infinity
        if not bool(whole.all()):
            row = int((~whole).nonzero()[0])
            raise DataError(
                f"Evidence on '{name}', row {row}: expected a whole number from 0 to {states - 1}, got {float(tensor[row])}. "
                f"Weights over states have shape (batch, {states})."
            )
        tensor = filled
    codes = tensor.to(torch.int64)
    bad = (codes < -1) | (codes >= states)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise DataError(
            f"Evidence on '{name}', row {row}: state {int(codes[row])} is out of range; expected 0 to {states - 1}, or "
            "-1 for not observed."
        )
    return codes


def _checked_weights(name: str, tensor: Tensor, states: int) -> Tensor:
    if tensor.shape[1] != states:
        raise ShapeError(f"Soft evidence on '{name}': expected shape (batch, {states}), got {tuple(tensor.shape)}.")
    detached = tensor.detach()
    bad = ~(detached >= 0) | detached.isinf()
    if bool(bad.any()):
        row = int(bad.any(dim=1).nonzero()[0])
        raise DataError(
            f"Soft evidence on '{name}', row {row}: expected finite non-negative weights, got {detached[row].tolist()}."
        )
    if not bool(detached.any(dim=1).all()):
        row = int((~detached.any(dim=1)).nonzero()[0])
        raise DataError(f"Soft evidence on '{name}', row {row}: all weights are 0, which rules out every state.")
    return tensor
