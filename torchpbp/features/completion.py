"""Hot-deck imputation: missing values are filled in from similar rows, for learners on complete rows (Gram matrices, networks).

A missing value is taken from other rows (donors), weighted by a kernel on the observed values of the incomplete row. Donors may
have missing values too: first, rows are compared by the values observed in both, and means are over donors with the value; then
this is repeated with the completed donors. Drawing one donor for all missing values of a row preserves the variance of the data
and the dependences between these values. Up to the kernel's smoothing it is unbiased for values missing at random. The mean over
donors has a smaller error, but too little variance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.errors import DataError
from torchpbp.features.kernels import median_bandwidth
from torchpbp.graph.domains import require_single_values
from torchpbp.graph.latent_graph import Continuous, Domain
from torchpbp.inputs.columns import ColumnReader
from torchpbp.inputs.missing_values import observed
from torchpbp.lazy import is_frame
from torchpbp.lazy import pandas as pd
from torchpbp.settings import seed as checked_seed

MOST_DONORS = 4096
"""Largest number of donors, evenly spread over the data."""
MISMATCH = 14.0
"""Squared distance between different states of a discrete variable: a weight of e^-7, for rows without a matching donor."""
FARTHEST = 1e6
"""Limit of distances, in bandwidths: squares of larger ones would cancel the digits of others."""
ENTRIES = 1 << 22
"""Largest number of entries of a (rows, donors) matrix."""


def complete_rows(
    rows: Tensor, domains: Sequence[Domain], widths: Tensor, *, draw: bool = True, seed: int = 0, rounds: int = 3
) -> Tensor:
    """Fill in the missing values of a table.

    Args:
        rows: (n, variables) values and states, NaN where missing. Each row and each column has a value.
        domains: domains of the variables.
        widths: (variables,) bandwidths of continuous variables, in units of the data.
        draw: fill in the values of one donor, drawn by weight; otherwise their weighted mean (for states, the most probable
            one).
        seed: seed of the draws.
        rounds: number of repetitions with completed donors.

    Returns:
        (n, variables) complete rows; observed values are unchanged.
    """
    incomplete = rows.isnan().any(dim=1).nonzero().squeeze(1)
    if not len(incomplete):
        return rows
    imputation = _Imputation(rows, domains, widths, draw, seed)
    spaced = torch.linspace(0, len(rows) - 1, min(len(rows), MOST_DONORS), dtype=torch.float64, device="cpu")
    places = spaced.round().long().to(rows.device)
    result = rows.clone()
    for _ in tqdm(range(rounds + 1), desc="completing rows", delay=2, leave=False):
        donors = result[places]
        parts = [
            imputation.filled(rows[chosen], donors, chosen.unsqueeze(1) == places)
            for chosen in torch.split(incomplete, max(1, ENTRIES // len(places)))
        ]
        result[incomplete] = torch.cat(parts)
    return result


@overload
def complete_table(table: Mapping[str, Tensor], domains: Mapping[str, Domain], seed: int = 0) -> dict[str, Tensor]: ...
@overload
def complete_table(table: pd.DataFrame, domains: Mapping[str, Domain], seed: int = 0) -> pd.DataFrame: ...
def complete_table(table: Any, domains: Mapping[str, Domain], seed: int = 0) -> Any:
    """Fill in the missing values of a table of columns by draws, with half the median distance as bandwidth.

    Args:
        table: name -> (n,) states, -1 where missing, or values, NaN where missing; or a DataFrame, whose states may be labels
            or booleans. Each column has a value.
        domains: domains of the variables.
        seed: seed of the draws.

    Returns:
        name -> complete columns, without empty rows; the table itself if no value is missing. A DataFrame for a DataFrame,
        with the index and labels of its rows.

    Raises:
        DataError: columns that are absent or empty, or values outside of a variable's domain.
        ShapeError: columns of different lengths.
        StructureError: variables that are vectors or images.
    """
    checked_seed().check("seed", seed)
    require_single_values(domains, "complete_table")
    reader = ColumnReader(domains, missing=True, quiet=True, device=None)
    parts = list(reader.tables(table))
    columns = {v: torch.cat([part[v] for part in parts]) for v in domains}
    seen = torch.stack([observed(x) for x in columns.values()], dim=1)
    empty = [v for v, some in zip(domains, seen.any(dim=0).tolist(), strict=True) if not some]
    if empty:
        raise DataError(f"complete_table: columns {empty} have no value to fill from. Leave them out.")
    if bool(seen.all()) and not is_frame(table):
        return dict(table)
    some = seen.any(dim=1)
    rows = torch.stack([x.double() for x in columns.values()], dim=1).masked_fill(~seen, torch.nan)[some]
    widths = rows.new_ones(len(domains))
    for i, domain in enumerate(domains.values()):
        values = rows[~rows[:, i].isnan(), i]
        if isinstance(domain, Continuous) and bool((values != values[0]).any()):
            widths[i] = 0.5 * median_bandwidth(values)
    complete = complete_rows(rows, list(domains.values()), widths, seed=seed).T
    filled = {v: x.to(columns[v].dtype) for v, x in zip(domains, complete, strict=True)}
    if not is_frame(table):
        return {v: x.to(table[v].dtype) if isinstance(table[v], Tensor) else x for v, x in filled.items()}
    result = table.loc[some.numpy(), list(domains)].copy()
    for v, gaps in zip(domains, ~seen[some].T.numpy(), strict=True):
        if gaps.any():
            drawn, labels = filled[v].numpy(), reader.labels.get(v)
            result[v] = result[v].mask(gaps, drawn if labels is None else np.array(labels, dtype=object)[drawn])
    return result.infer_objects()


class _Imputation:
    """Imputation of missing values from donors, which may have missing values too."""

    def __init__(self, rows: Tensor, domains: Sequence[Domain], widths: Tensor, draw: bool, seed: int) -> None:
        self._discrete = {i: d for i, d in enumerate(domains) if isinstance(d, int)}
        self._limits = {i: (d.low, d.high) for i, d in enumerate(domains) if isinstance(d, Continuous)}
        self._usual = rows.nanmean(dim=0)
        for i in self._discrete:
            self._usual[i] = rows[~rows[:, i].isnan(), i].mode().values
        numbers = rows.new_tensor([isinstance(d, Continuous) for d in domains])
        self._centre = rows.nanmean(dim=0)  # centred, since squares of values far from 0 would cancel their differences
        self._scale = numbers / torch.where(numbers > 0, widths, torch.ones_like(widths))  # 0 for states
        if bool(((rows - self._centre) * self._scale).abs().nan_to_num(0.0).max() > FARTHEST):
            self._centre = rows.nanmedian(dim=0).values  # robust to the outlier
        self._draw, self._generator = draw, torch.Generator().manual_seed(seed)

    def filled(self, rows: Tensor, donors: Tensor, same: Tensor) -> Tensor:
        """(n, variables) complete rows; ``same`` is (n, donors), true where a donor is the row."""
        weights = self._weights(rows, donors, same)
        complete = not bool(donors.isnan().any())
        values = self._drawn(weights, donors) if self._draw and complete else self._averaged(weights, donors)
        return torch.where(rows.isnan(), values, rows)

    def _weights(self, rows: Tensor, donors: Tensor, same: Tensor) -> Tensor:
        """(n, donors) weights by the distance in commonly observed variables, rescaled to all observed variables of the row."""
        seen, donor_seen = (~rows.isnan()).to(rows), (~donors.isnan()).to(rows)
        x, y = (((t - self._centre) * self._scale).clamp(-FARTHEST, FARTHEST).nan_to_num(0.0) for t in (rows, donors))
        distance = (x.square() @ donor_seen.T + seen @ y.square().T - 2 * (x @ y.T)).clamp(min=0)
        for i in self._discrete:
            differ = (rows[:, i : i + 1] != donors[:, i]) * (seen[:, i : i + 1] * donor_seen[:, i])
            distance = distance + MISMATCH * differ
        both = seen @ donor_seen.T
        distance = distance * (seen.sum(dim=1, keepdim=True) / both.clamp(min=1))
        distance = distance.masked_fill(both == 0, 1e6).masked_fill(same, torch.inf)
        nearest = distance.amin(dim=1, keepdim=True)
        # The floor admits distant donors if no near donor has the missing value.
        return (-0.5 * (distance - nearest)).exp().clamp(min=1e-12).masked_fill(same, 0.0)

    def _drawn(self, weights: Tensor, donors: Tensor) -> Tensor:
        """A donor for each row: the first arrival of Poisson processes with these rates, drawn on the CPU."""
        times = torch.empty(weights.shape, dtype=weights.dtype, device="cpu").exponential_(generator=self._generator)
        return donors[(weights / times.to(weights.device)).argmax(dim=1)]

    def _averaged(self, weights: Tensor, donors: Tensor) -> Tensor:
        """(n, variables) means or most probable states, over the donors that observe the variable."""
        donor_seen = (~donors.isnan()).to(weights)
        total = weights @ donor_seen
        values = weights @ donors.nan_to_num(0.0) / total.clamp(min=1e-300)
        for i, (low, high) in self._limits.items():
            if low is not None or high is not None:
                values[:, i] = values[:, i].clamp(low, high)
        for i, states in self._discrete.items():
            onehot = torch.nn.functional.one_hot(donors[:, i].nan_to_num(0.0).long(), states).to(weights)
            values[:, i] = (weights @ (onehot * donor_seen[:, i : i + 1])).argmax(dim=1).to(values)
        return torch.where(total > 0, values, self._usual)
