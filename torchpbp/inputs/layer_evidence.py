"""Evidence of a layer: tensors, read without a check that depends on their values.

Such a check could not be compiled, exported or vectorised. An invalid row is marked instead, and what is wrong in it is left
out: to answer it and hide the answer afterwards would spoil the gradients of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from torchpbp.errors import DataError, QueryError, ShapeError
from torchpbp.graph.latent_graph import Domain
from torchpbp.inputs.arrays import dense_tensor, name_of
from torchpbp.inputs.evidence import Evidence, extreme_sizes
from torchpbp.inputs.states import UNSIGNED
from torchpbp.inputs.values import outside_range


def read_layer_evidence(
    evidence: Mapping[str, Tensor],
    domains: Mapping[str, Domain],
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    signed: bool = False,
) -> tuple[Evidence, Tensor]:
    """Evidence, and which rows of it are valid.

    Args:
        evidence: name -> (batch,) states (-1: not observed) or booleans, (batch, states) weights, or (batch,) values of a
            continuous variable (NaN: not observed).
        domains: number of states or range of each variable that may be observed.
        dtype: of the model; weights are valid if they are so in this precision.
        device: of the model.
        signed: allow negative weights.

    Returns:
        Evidence in which what is invalid counts as not observed, and (batch,) booleans; (1,) where there is no evidence.

    Raises:
        DataError: values that are not tensors of real numbers.
        QueryError: unknown variables.
        ShapeError: wrong shapes, different numbers of rows.
    """
    evidence = _dense(evidence, domains, device)
    batch = _rows(evidence, domains)
    hard: dict[str, Tensor] = {}
    soft: dict[str, Tensor] = {}
    real: dict[str, Tensor] = {}
    valid = torch.ones(1, dtype=torch.bool, device=device)
    log_scale = torch.zeros(1, dtype=dtype, device=device)
    for name, value in evidence.items():
        domain = domains[name]
        if not isinstance(domain, int):
            real[name], good = _values(value, domain)
        elif value.is_floating_point():
            weights, good = _weights(value.to(dtype), signed)
            top = extreme_sizes(weights)
            soft[name] = weights / top.unsqueeze(1)
            log_scale = log_scale + top.log()
        else:
            hard[name], good = _states(value, domain)
        valid = valid & good
    return Evidence(batch, hard, soft, real, log_scale if soft else None), valid


def _dense(
    evidence: Mapping[str, Tensor], domains: Mapping[str, Domain], device: torch.device | str
) -> dict[str, Tensor]:
    """The same evidence in dense tensors of real numbers, on variables that the layer observes."""
    if not isinstance(evidence, Mapping):
        raise DataError(
            f"Evidence: a layer takes a dict of tensors by name, {{}} for none; got {type(evidence).__name__}."
        )
    for name, value in evidence.items():
        if name not in domains:
            raise QueryError(f"Evidence on '{name}': the layer observes {', '.join(domains)}.")
        if not isinstance(value, Tensor):
            raise DataError(
                f"Evidence on '{name}': a layer takes tensors of states (int64) or weights, got {type(value).__name__}."
            )
    return {name: dense_tensor(f"Evidence on '{name}'", value, device) for name, value in evidence.items()}


def _rows(evidence: Mapping[str, Tensor], domains: Mapping[str, Domain]) -> int:
    """Number of rows of evidence whose shapes are right."""
    batch = 1
    for name, value in evidence.items():
        domain = domains[name]
        weights = value.is_floating_point() and isinstance(domain, int)
        if value.ndim != (2 if weights else 1) or (weights and value.shape[1] != domain):
            expected = f"states, or (batch, {domain}) weights" if isinstance(domain, int) else "values"
            raise ShapeError(
                f"Evidence on '{name}': expected (batch,) {expected}; got {name_of(value.dtype)} of shape {tuple(value.shape)}."
            )
        batch = value.shape[0]
    for name, value in evidence.items():
        if value.shape[0] != batch:
            raise ShapeError(f"Evidence on '{name}' has {value.shape[0]} rows, others have {batch}.")
    return batch


def _states(value: Tensor, states: int) -> tuple[Tensor, Tensor]:
    """(batch,) int64 states, -1 where not observed or invalid, and (batch,) which are valid."""
    codes = value.to(torch.int64)
    good = (codes >= (0 if value.dtype in UNSIGNED else -1)) & (codes < states)
    return torch.where(good, codes, -1), good


def _weights(value: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """(batch, states) weights, all 1 where invalid, and (batch,) which are valid."""
    possible = value.isfinite() if signed else (value >= 0) & ~value.isinf()
    good = possible.all(dim=1) & (value != 0).any(dim=1)
    return torch.where(good.unsqueeze(1), value, 1.0), good


def _values(value: Tensor, domain: Domain) -> tuple[Tensor, Tensor]:
    """(batch,) values of a continuous variable, NaN where not observed or invalid, and (batch,) which are valid."""
    values = value if value.is_floating_point() else value.to(torch.float64)
    good = ~values.isinf() & ~outside_range(values, domain)
    return torch.where(good, values, torch.nan), good
