"""Evidence: observed states, weights over states or values of each variable, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, Union

import torch
from torch import Tensor

from torchpbp.errors import DataError, QueryError, QueryWarning, ShapeError, warn_caller
from torchpbp.graph.domains import Domain, shape_of
from torchpbp.inputs.arrays import require_device
from torchpbp.inputs.columns import Column, read_column
from torchpbp.inputs.labels import check_alignment, require_unique
from torchpbp.inputs.missing_values import observed
from torchpbp.lazy import DataFrame, is_frame, is_series
from torchpbp.settings import whole


@dataclass(frozen=True)
class Evidence:
    """Checked evidence for a batch of rows.

    Args:
        batch: number of rows.
        hard: name -> (batch,) states as int64; -1 where the row does not observe the variable.
        soft: name -> (batch, states) non-negative weights.
        real: name -> (batch,) values of continuous variables as float64, or (batch, *shape) vectors or images as float32 or
            float64; NaN, in all entries, where not observed.
        log_scale: (batch,) log of the factors divided out of extreme weights; None: nothing was divided out.

    Example:
        >>> read_evidence({"x": [0, None], "y": 2}, {"x": 3, "y": 4, "z": 2}).hard
        {'x': tensor([ 0, -1]), 'y': tensor([2, 2])}
    """

    batch: int
    hard: dict[str, Tensor] = field(default_factory=dict)
    soft: dict[str, Tensor] = field(default_factory=dict)
    real: dict[str, Tensor] = field(default_factory=dict)
    log_scale: Tensor | None = None

    def observed_everywhere(self, name: str) -> bool:
        """Whether each row gives a state or value for ``name``."""
        if name in self.real:
            return bool(observed(self.real[name]).all())
        return name in self.hard and bool((self.hard[name] >= 0).all())

    def weights(self, name: str, states: int, dtype: torch.dtype, device: torch.device | str) -> Tensor | None:
        """(batch, states) likelihood weights of ``name``: one-hot, ones where missing; None if never mentioned."""
        if name in self.soft:
            return self.soft[name].to(dtype=dtype, device=device)
        if name in self.hard:
            one_hot = torch.eye(states, dtype=dtype, device=device)
            table = torch.cat([one_hot, one_hot.new_ones(1, states)])
            return table[self.hard[name].to(device)]  # index -1 takes the last row
        return None

    def repeat_interleave(self, times: int) -> Evidence:
        """Evidence with each row repeated ``times`` times, consecutively."""
        return Evidence(
            self.batch * times,
            {v: t.repeat_interleave(times) for v, t in self.hard.items()},
            {v: t.repeat_interleave(times, dim=0) for v, t in self.soft.items()},
            {v: t.repeat_interleave(times, dim=0) for v, t in self.real.items()},
            None if self.log_scale is None else self.log_scale.repeat_interleave(times),
        )

    def rows(self, chosen: slice | Tensor) -> Evidence:
        """The rows of a slice or of (n,) indices."""
        size = len(range(*chosen.indices(self.batch))) if isinstance(chosen, slice) else len(chosen)
        hard, soft, real = ({v: t[chosen] for v, t in group.items()} for group in (self.hard, self.soft, self.real))
        return Evidence(size, hard, soft, real, None if self.log_scale is None else self.log_scale[chosen])

    def moderate(self) -> Evidence:
        """Equivalent evidence with weights of moderate size, whose products and sums neither overflow nor underflow.

        Posteriors are unchanged; :meth:`scaled` restores the scale of log-probabilities.
        """
        soft, log_scale = dict(self.soft), self.log_scale
        for name, weights in self.soft.items():
            sizes = weights.detach().abs().amax(dim=1)
            if not _within(sizes, 1 / MODERATE, MODERATE):
                top = extreme_sizes(sizes)
                soft[name] = weights / top.unsqueeze(1)
                log_scale = top.double().log() + (0.0 if log_scale is None else log_scale)
        return self if log_scale is self.log_scale else Evidence(self.batch, self.hard, soft, self.real, log_scale)

    def scaled(self, log_probabilities: Tensor) -> Tensor:
        """(batch,) log-probabilities of the original evidence, from log-probabilities of its moderate form."""
        if self.log_scale is None:
            return log_probabilities
        return log_probabilities + self.log_scale.to(log_probabilities)


MODERATE = 1e18
"""Weights between the inverse of this number and the number itself are not rescaled."""


def extreme_sizes(sizes: Tensor) -> Tensor:
    """The (batch,) largest absolute weights of rows where these are extreme, otherwise 1."""
    return sizes.masked_fill(sizes.clamp(1 / MODERATE, MODERATE) == sizes, 1.0)


def _within(sizes: Tensor, least: float, most: float) -> bool:
    """Whether all numbers lie in a range; false for NaN."""
    ends = torch.aminmax(sizes) if len(sizes) else ()
    return all(least <= float(end) <= most for end in ends)


def one_hot_where_observed(states: Tensor, otherwise: Tensor) -> Tensor:
    """(batch, states) rows that are one-hot for observed states and ``otherwise`` where the state is -1.

    Args:
        states: (batch,) states; -1 where missing.
        otherwise: (batch, states) rows.
    """
    row = states.unsqueeze(0)
    one_hot = row == torch.arange(otherwise.shape[-1], device=states.device).unsqueeze(1)  # rows last, as in estimates
    return torch.where((row >= 0).mT, one_hot.mT.to(otherwise.dtype), otherwise)


EvidenceLike: TypeAlias = Union[Mapping[str, Any], DataFrame, Evidence, None]  # noqa: UP007  a forward reference knows no |
"""Name -> state, states (one per row; -1 or NaN where not observed), or (batch, states) weights; for a variable with a shape
one value, (batch, *shape) values (NaN where not observed), or a pair of these and (batch,) booleans, true where observed. None:
no evidence."""


def left_to_ask(names: Iterable[str], evidence: Evidence) -> list[str]:
    """Variables that are missing in some row; warns if there are none.

    Args:
        names: names of all variables with posteriors.
        evidence: evidence of a batch of rows.
    """
    wanted = [v for v in names if not evidence.observed_everywhere(v)]
    if not wanted:
        warn_of_no_question("every variable is observed in every row")
    return wanted


def warn_of_no_question(reason: str) -> None:
    """Warn that a result is empty for this reason."""
    warn_caller(
        f"Posteriors: {reason}, so nothing is left to ask and the answer is empty. log_evidence() has the log-probability of such "
        "rows; leave out a column to ask for it.",
        QueryWarning,
    )


def warn_of_observed_query(names: Iterable[str], evidence: Evidence) -> None:
    """Warn of queried variables that every row observes: their columns were probably left in by mistake."""
    observed_names = [v for v in names if evidence.batch and evidence.observed_everywhere(v)]
    if observed_names:
        warn_caller(
            f"Query of '{observed_names[0]}': every row observes it, so that nothing is predicted. Leave it out of the evidence "
            "to predict it from the other variables.",
            QueryWarning,
        )


def query_names(query: Any) -> tuple[str, ...]:
    """Names in a query, which is a name or an iterable of names."""
    try:
        names = (query,) if isinstance(query, str) else tuple(query)
    except TypeError:  # not iterable
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
    """Check evidence and convert it to one form.

    A single state stands for a batch of one row, and one row is repeated to the length of the others.

    Args:
        evidence: see :data:`EvidenceLike`.
        states: number of states (or range, if continuous) of each variable that may be observed.
        latent: names of latent variables, for a clearer message.
        labels: name -> labels of its states, for evidence by label.
        device: device of the model, on which tensors must be; lists, arrays and tables, which have no device, are moved to it.

    Raises:
        DeviceError: a tensor on another device.
        QueryError: unknown or latent variable.
        ShapeError: rows of different lengths, weights with the wrong number of states, values of another shape.
        DataError: states out of range, fractional states, negative or non-finite weights, values in part NaN.
    """
    if isinstance(evidence, Evidence):
        return _checked_evidence(evidence, states, latent, device)
    table: Any = {} if evidence is None else evidence
    of_pandas = is_frame(table) or is_series(table)
    if not of_pandas and not isinstance(table, Mapping):
        raise DataError(
            f"Evidence: expected a mapping of names to states, or a DataFrame; got {type(evidence).__name__}."
        )
    if of_pandas:
        require_unique(list(table.keys()), table.keys(), "Evidence: ")
    items: dict[str, Any] = {str(name): column for name, column in table.items()}
    check_alignment(items, "Evidence on")
    labels = labels or {}
    hard: dict[str, Tensor] = {}
    soft: dict[str, Tensor] = {}
    real: dict[str, Tensor] = {}
    for name, value in items.items():
        domain = _domain(name, states, latent)
        state = _single_state(value, domain, labels.get(name))
        if state is not None:
            hard[name] = torch.full((1,), state, device=device)
            continue
        tensor = _read(name, value, domain, labels.get(name), device, single=True)
        (hard, soft, real)[_kind(tensor, domain)][name] = tensor
    lengths = {name: len(t) for name, t in (*hard.items(), *soft.items(), *real.items())}
    batch = max((n for n in lengths.values() if n != 1), default=1)
    if is_frame(evidence):
        batch = len(evidence)  # a frame without columns still has rows
    for name, n in lengths.items():
        if n not in (1, batch):
            others = {k: v for k, v in lengths.items() if v == batch}
            raise ShapeError(
                f"Evidence on '{name}' has {n} rows, but '{next(iter(others))}' has {batch}. Give one length."
            )
        if n == 1 and batch != 1:
            group = hard if name in hard else real if name in real else soft
            group[name] = group[name].expand(batch, *group[name].shape[1:])
    return Evidence(batch, hard, soft, real).moderate()


def _domain(name: str, states: Mapping[str, Domain], latent: Sequence[str]) -> Domain:
    """Number of states or range of a variable that may be observed."""
    if name in states:
        return states[name]
    if name in latent:
        raise QueryError(f"Evidence on '{name}': it is latent and cannot be observed.")
    raise QueryError(f"Evidence on unknown variable '{name}'. The model observes: {', '.join(states)}.")


def _single_state(value: Any, domain: Domain, labels: Sequence[Any] | None) -> int | None:
    """The state of a single number or label, the most frequent kind of evidence; None for all others and invalid states."""
    if not isinstance(domain, int):
        return None
    if labels is None:
        return value if type(value) is int and -1 <= value < domain else None
    return labels.index(value) if type(value) is str and value in labels else None


def _read(
    name: str,
    value: Any,
    domain: Domain,
    labels: Sequence[Any] | None,
    device: torch.device | str,
    single: bool = False,
) -> Tensor:
    """(rows,) states, (rows, states) weights or (rows, *shape) values, checked, on a device."""
    where = f"Evidence on '{name}'"
    if isinstance(value, Tensor) and not shape_of(domain):
        require_device(where, value, device, "the model")
    column = Column.open(where, value, domain, labels, single)
    if isinstance(domain, int) and column.content.ndim == 2 and (weights := column.tensor()).is_floating_point():
        return _checked_weights(name, weights, domain).to(device)
    return column.checked().to(device)


def _kind(tensor: Tensor, domain: Domain) -> int:
    """0 for checked states (hard), 1 for weights over states (soft), 2 for values (real)."""
    return 2 if not isinstance(domain, int) else int(tensor.ndim == 2)


def _checked_evidence(
    evidence: Evidence, states: Mapping[str, Domain], latent: Sequence[str], device: torch.device | str
) -> Evidence:
    """Evidence constructed by the caller, checked; the same object unless something is converted."""
    whole().check("Evidence: batch", evidence.batch)
    groups = (evidence.hard, evidence.soft, evidence.real)  # in the order of _kind
    if twice := evidence.hard.keys() & evidence.soft.keys():
        raise DataError(f"Evidence on '{min(twice)}': expected states (hard) or weights (soft), got both.")
    parts: tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]] = ({}, {}, {})
    for group, part in zip(groups, parts, strict=True):
        for name, tensor in group.items():
            domain = _domain(name, states, latent)
            checked = _read(name, tensor, domain, None, device) if isinstance(tensor, Tensor) else None
            if checked is None or group is not groups[_kind(checked, domain)]:
                wanted = "states (hard) or weights (soft)" if isinstance(domain, int) else "values (real)"
                raise DataError(f"Evidence on '{name}': expected a tensor of {wanted} of this variable.")
            part[name] = checked
            if len(checked) != evidence.batch:
                raise ShapeError(f"Evidence on '{name}' has {len(checked)} rows, but batch={evidence.batch}.")
    same = all(group[v] is x for group, part in zip(groups, parts, strict=True) for v, x in part.items())
    return (evidence if same else Evidence(evidence.batch, *parts, evidence.log_scale)).moderate()


def _require_width(name: str, weights: Tensor, states: int) -> None:
    """Raise a ShapeError unless weights have the shape (rows, states)."""
    if weights.ndim != 2 or weights.shape[1] != states:
        raise ShapeError(f"Soft evidence on '{name}': expected shape (batch, {states}), got {tuple(weights.shape)}.")


def _invalid_weights(weights: Tensor, signed: bool = False) -> tuple[Tensor, Tensor]:
    """(rows,) mask of weights that are negative (unless ``signed``), infinite, NaN or all 0, and largest absolute weights."""
    detached = weights.detach()
    sizes = detached.abs().amax(dim=1)
    invalid = ~((sizes > 0) & (sizes < torch.inf))
    return (invalid if signed else invalid | (detached < 0).any(dim=1)), sizes


def _checked_weights(name: str, weights: Tensor, states: int) -> Tensor:
    """(rows, states) finite non-negative weights, not all 0 in any row."""
    _require_width(name, weights, states)
    invalid, _ = _invalid_weights(weights)
    if not bool(invalid.any()):
        return weights
    row = int(invalid.nonzero()[0])
    values = weights[row].tolist()
    fault = f"expected finite non-negative weights, got {values}."
    if not any(values):
        fault = "all weights are 0, which rules out every state."
    raise DataError(f"Soft evidence on '{name}', row {row}: {fault}")


LayerEvidence: TypeAlias = Mapping[str, Tensor | tuple[Tensor, Tensor]]
"""Name -> tensor, or for a vector or image a pair of values and (batch,) booleans, true where observed."""


def read_layer_evidence(
    evidence: LayerEvidence,
    domains: Mapping[str, Domain],
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    signed: bool = False,
) -> tuple[Evidence, Tensor]:
    """Evidence of a layer: tensors, read without control flow that depends on their values.

    Such control flow cannot be compiled, exported or vectorised. Invalid rows are marked instead, and their invalid entries
    become missing before inference: masking results afterwards would contaminate the gradients of all rows.

    Args:
        evidence: name -> (batch,) states (-1: not observed) or booleans, (batch, states) weights, or (batch,) values of a
            continuous variable (NaN: not observed). Values of a variable with a shape are (batch, *shape), all NaN or false in
            the second part of a pair (values, seen) where not observed.
        domains: number of states or range of each variable that may be observed.
        dtype: dtype of the model, in which weights are checked.
        device: device of the model.
        signed: allow negative weights.

    Returns:
        Evidence with invalid entries as not observed, and (batch,) booleans, true for invalid rows; (1,) without evidence.

    Raises:
        DeviceError: a tensor on another device than the model.
        DataError: values that are not tensors of real numbers.
        QueryError: unknown variables.
        ShapeError: wrong shapes, different numbers of rows.
    """
    if not isinstance(evidence, Mapping):
        raise DataError(
            f"Evidence: a layer takes a dict of tensors by name, {{}} for none; got {type(evidence).__name__}."
        )
    hard: dict[str, Tensor] = {}
    soft: dict[str, Tensor] = {}
    real: dict[str, Tensor] = {}
    batch: int | None = None
    invalid: Tensor | None = None
    log_scale: Tensor | None = None
    for name, value in evidence.items():
        if name not in domains:
            raise QueryError(f"Evidence on '{name}': the layer observes {', '.join(domains)}.")
        where, domain = f"Evidence on '{name}'", domains[name]
        pair = isinstance(value, tuple | list) and bool(shape_of(domain))
        for part in value if pair else (value,):
            if not isinstance(part, Tensor):
                kinds = (
                    "states (int64) or weights"
                    if isinstance(domain, int)
                    else "values, or pairs of tensors (values, seen)"
                )
                raise DataError(f"{where}: a layer takes tensors of {kinds}, got {type(value).__name__}.")
            require_device(where, part, device, "the model")
        if isinstance(domain, int) and isinstance(value, Tensor) and value.is_floating_point():
            _require_width(name, value, domain)
            weights = value.to(dtype)
            wrong, sizes = _invalid_weights(weights, signed)
            top = extreme_sizes(sizes.masked_fill(wrong, 1.0))
            read = soft[name] = weights.masked_fill(wrong.unsqueeze(1), 1.0) / top.unsqueeze(1)
            log_scale = top.log() if log_scale is None else log_scale + top.log()
        else:
            read, wrong = read_column(where, value, domain, strict=False)
            (hard if isinstance(domain, int) else real)[name] = read
        rows = read.shape[0]  # symbolic in an exported program, unlike len(read)
        if batch is not None and rows != batch:
            raise ShapeError(f"{where} has {rows} rows, others have {batch}.")
        batch = rows
        invalid = wrong if invalid is None else invalid | wrong
    if batch is None or invalid is None:
        return Evidence(1), torch.zeros(1, dtype=torch.bool, device=device)
    return Evidence(batch, hard, soft, real, log_scale), invalid
