"""Evidence of a layer: tensors, read without control flow that depends on their values.

Such control flow cannot be compiled, exported or vectorised. Invalid rows are marked instead, and their invalid entries become
missing before inference: masking results afterwards would contaminate the gradients of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from torchpbp.errors import DataError, QueryError, ShapeError
from torchpbp.graph.domains import Domain, shape_of
from torchpbp.inputs.arrays import UNSIGNED, dense_tensor, name_of, require_device
from torchpbp.inputs.evidence import Evidence, extreme_sizes
from torchpbp.inputs.leaves import along, check_seen, floating
from torchpbp.inputs.values import outside_range

LayerEvidence: TypeAlias = Mapping[str, Tensor | tuple[Tensor, Tensor]]
"""Name -> tensor, or for a vector or image a pair of values and (batch,) booleans, true where observed."""


def read_layer_evidence(
    evidence: LayerEvidence,
    domains: Mapping[str, Domain],
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    signed: bool = False,
) -> tuple[Evidence, Tensor]:
    """Evidence and a mask of its valid rows.

    Args:
        evidence: name -> (batch,) states (-1: not observed) or booleans, (batch, states) weights, or (batch,) values of a
            continuous variable (NaN: not observed). Values of a variable with a shape are (batch, *shape), all NaN or false in
            the second part of a pair (values, seen) where not observed.
        domains: number of states or range of each variable that may be observed.
        dtype: dtype of the model, in which weights are checked.
        device: device of the model.
        signed: allow negative weights.

    Returns:
        Evidence with invalid entries as not observed, and (batch,) booleans, true for valid rows; (1,) without evidence.

    Raises:
        DeviceError: a tensor on another device than the model.
        DataError: values that are not tensors of real numbers.
        QueryError: unknown variables.
        ShapeError: wrong shapes, different numbers of rows.
    """
    dense, seen = _dense(evidence, domains, device)
    batch = _rows(dense, domains)
    hard: dict[str, Tensor] = {}
    soft: dict[str, Tensor] = {}
    real: dict[str, Tensor] = {}
    valid: Tensor | None = None
    log_scale: Tensor | None = None
    for name, value in dense.items():
        domain = domains[name]
        if not isinstance(domain, int):
            real[name], good = _leaves(value, seen.get(name), domain) if shape_of(domain) else _values(value, domain)
        elif value.is_floating_point():
            weights, good = _weights(value.to(dtype), signed)
            top = extreme_sizes(weights)
            soft[name] = weights / top.unsqueeze(1)
            log_scale = top.log() if log_scale is None else log_scale + top.log()
        else:
            hard[name], good = _states(value, domain)
        valid = good if valid is None else valid & good
    if valid is None:
        valid = torch.ones(1, dtype=torch.bool, device=device)
    return Evidence(batch, hard, soft, real, log_scale), valid


def _dense(
    evidence: LayerEvidence, domains: Mapping[str, Domain], device: torch.device | str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The evidence as dense tensors of real numbers, and the masks of pairs (values, seen)."""
    if not isinstance(evidence, Mapping):
        raise DataError(
            f"Evidence: a layer takes a dict of tensors by name, {{}} for none; got {type(evidence).__name__}."
        )
    values: dict[str, Tensor] = {}
    seen: dict[str, Tensor] = {}
    for name, value in evidence.items():
        if name not in domains:
            raise QueryError(f"Evidence on '{name}': the layer observes {', '.join(domains)}.")
        where, shaped = f"Evidence on '{name}'", bool(shape_of(domains[name]))
        pair = shaped and isinstance(value, tuple | list) and len(value) == 2
        parts = [part for part in (value if pair else (value,)) if isinstance(part, Tensor)]
        if len(parts) < (2 if pair else 1):
            kinds = "values, or pairs of tensors (values, seen)" if shaped else "states (int64) or weights"
            raise DataError(f"{where}: a layer takes tensors of {kinds}, got {type(value).__name__}.")
        for part in parts:
            require_device(where, part, device, "the model")
        values[name], *marks = (dense_tensor(where, part, device) for part in parts)
        if marks:
            seen[name] = check_seen(where, marks[0], values[name].shape[0] if values[name].ndim else 0)
    return values, seen


def _rows(evidence: Mapping[str, Tensor], domains: Mapping[str, Domain]) -> int:
    """Number of rows of evidence, after a check of all shapes."""
    batch = 1
    for name, value in evidence.items():
        domain = domains[name]
        inner = (domain,) if value.is_floating_point() and isinstance(domain, int) else shape_of(domain)
        if value.ndim != 1 + len(inner) or tuple(value.shape[1:]) != inner:
            expected = (
                f"(batch,) states, or (batch, {domain}) weights" if isinstance(domain, int) else "(batch,) values"
            )
            if shape_of(domain):
                expected = f"values of shape (batch, {', '.join(map(str, inner))})"
            raise ShapeError(
                f"Evidence on '{name}': expected {expected}; got {name_of(value.dtype)} of shape {tuple(value.shape)}."
            )
        batch = value.shape[0]
    for name, value in evidence.items():
        if value.shape[0] != batch:
            raise ShapeError(f"Evidence on '{name}' has {value.shape[0]} rows, others have {batch}.")
    return batch


def _states(value: Tensor, states: int) -> tuple[Tensor, Tensor]:
    """(batch,) int64 states, -1 where not observed or invalid, and a (batch,) mask of valid rows."""
    codes = value.to(torch.int64)
    good = (codes >= (0 if value.dtype in UNSIGNED else -1)) & (codes < states)
    return codes.masked_fill(~good, -1), good


def _weights(value: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """(batch, states) weights, all 1 in invalid rows, and a (batch,) mask of valid rows."""
    possible = value.isfinite() if signed else (value >= 0) & (value < torch.inf)
    good = possible.all(dim=1) & (value != 0).any(dim=1)
    return torch.where(good.unsqueeze(1), value, 1.0), good


def _values(value: Tensor, domain: Domain) -> tuple[Tensor, Tensor]:
    """(batch,) values of a continuous variable, NaN where not observed or invalid, and a (batch,) mask of valid rows."""
    values = value if value.is_floating_point() else value.to(torch.float64)
    good = ~values.isinf() & ~outside_range(values, domain)
    return torch.where(good, values, torch.nan), good


def _leaves(value: Tensor, seen: Tensor | None, domain: Domain) -> tuple[Tensor, Tensor]:
    """(batch, *shape) vectors or images, NaN where not observed or invalid, and a (batch,) mask of valid rows."""
    values = floating(value)
    present = ~values.isnan().flatten(1).all(dim=1) if seen is None else seen
    good = ~present | (values.isfinite() & ~outside_range(values, domain)).flatten(1).all(dim=1)
    return torch.where(along(present & good, values), values, torch.nan), good
