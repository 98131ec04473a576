"""Moments of linear forms of the observables' indicators: of two forms from pair tables, of more from the rows.

Indicators are centred, and divided by the share of rows with an observed value; a missing value is 0. If values are missing
completely at random, forms have the same conditional means as without missing values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.moments.rows import consecutive, row_products

ENTRIES_AT_ONCE = 1 << 23
"""Largest number of entries of the matrix of indicators of a block of rows."""


class FormMoments:
    """First and second moments of all indicators, over all processes.

    A form is a (values, 1 + indicators) matrix: a constant, then a coefficient for each state of each observable.

    Args:
        states: of the observables.
        table: name -> (rows,) states; -1 where missing.
        weights: (rows,) of the rows.

    Attributes:
        rows: total weight.
        mean: (indicators,) probabilities.
        second: (1 + indicators, 1 + indicators) second moments of the constant and the centred indicators.
        noise: the same for indicators with missing values as 0.
        joint: (indicators, indicators) probabilities of pairs of states, among the rows with both values.
        pairs: (observables, observables) weight of the rows with both values.
        owner: (indicators,) number of each indicator's observable.
        member: (indicators, observables) 1 if an indicator is of an observable, else 0.
    """

    def __init__(self, states: Mapping[str, int], table: Mapping[str, Tensor], weights: Tensor) -> None:
        self.states, self.table, self.weights = dict(states), table, weights
        self.place = consecutive(self.states)
        self.size = sum(self.states.values())
        self._block: tuple[Tensor, Tensor | None, Tensor] | None = None
        raw = weights.new_zeros(self.size, self.size)
        for indicators, _, part in self._blocks():
            raw += indicators.T @ (indicators * part[:, None])
        self.rows = float(sum_over_processes(weights.sum()))
        sum_over_processes(raw)
        widths = torch.tensor(list(self.states.values()), device=raw.device)
        self.owner = torch.repeat_interleave(torch.arange(len(widths), device=raw.device), widths)
        self.member = member = raw.new_zeros(self.size, len(widths)).scatter_(1, self.owner[:, None], 1.0)
        self.pairs = pairs = member.T @ raw @ member
        self.joint = joint = raw / (member @ pairs @ member.T).clamp(min=1e-300)
        marginal = (joint @ member) @ member.T  # [i, j]: of state i among the rows that observe the variable of state j
        self.mean = raw.diagonal() / (member @ pairs.diagonal()).clamp(min=1e-300)
        self.share = (member @ (pairs.diagonal() / self.rows)).clamp(min=1e-300)
        covariance = joint - marginal * marginal.T
        self.second = _with_constant(covariance)
        same = member @ member.T  # 1 for states of the same variable
        self.noise = _with_constant(covariance * (1 + same * (1 / self.share - 1)))

    def columns(self, names: Sequence[str]) -> Tensor:
        """Columns of the indicators of some observables in a form, whose column 0 is the constant."""
        places = [c for v in names for c in range(self.place[v].start + 1, self.place[v].stop + 1)]
        return torch.tensor(places, device=self.mean.device)

    def one_hot(self, name: str) -> Tensor:
        """The form whose values are an observable's indicators."""
        form = self.mean.new_zeros(self.states[name], 1 + self.size)
        form[:, 0] = self.mean[self.place[name]]
        form[:, 1 + self.place[name].start : 1 + self.place[name].stop].fill_diagonal_(1.0)
        return form

    def products(self, requests: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """E[⊗ forms] of each list of forms; those of three and more from a single pass over the rows."""
        result: list[Tensor] = []
        long = []
        for forms in requests:
            if len(forms) == 1:
                result.append(forms[0][:, 0])
            elif len(forms) == 2:
                result.append(forms[0] @ self.second @ forms[1].T)
            else:
                long.append(len(result))
                result.append(self.mean.new_zeros(math.prod(len(f) for f in forms[:-1]), len(forms[-1])))
        if long:
            every = torch.cat([form for i in long for form in requests[i]])
            for values, weights in self.values(every):
                parts = iter(torch.split(values, [len(form) for i in long for form in requests[i]], dim=1))
                for i in long:
                    product = row_products([next(parts) * weights[:, None], *(next(parts) for _ in requests[i][2:])])
                    result[i] += product.T @ next(parts)
        for i in long:
            result[i] = (sum_over_processes(result[i]) / self.rows).reshape([len(f) for f in requests[i]])
        return result

    def values(self, forms: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows, values) values of stacked forms and (rows,) weights, for blocks of rows."""
        scaled = forms[:, 1:] / self.share
        shift = scaled.T.contiguous()
        mean = torch.stack([(scaled[:, p] @ self.mean[p]) for p in self.place.values()])  # (observables, values)
        constant = forms[:, 0]
        for indicators, seen, weights in self._blocks():
            absent = mean.sum(dim=0) if seen is None else seen @ mean
            yield constant - absent + indicators @ shift, weights

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
        """Blocks of (rows, indicators) zeros and ones, the (rows, observables) mask of observed values, None if all are, and (rows,)
        weights; a single block is cached."""
        if self._block is not None:
            yield self._block
            return
        step = max(1, ENTRIES_AT_ONCE // self.size)
        for start in range(0, len(self.weights), step):
            weights = self.weights[start : start + step]
            indicators = weights.new_zeros(len(weights), self.size + 1, dtype=torch.float64)
            codes = torch.stack([x[start : start + step] for x in map(self.table.__getitem__, self.states)], dim=1)
            seen = codes >= 0
            starts = codes.new_tensor([place.start for place in self.place.values()])
            index = torch.where(seen, codes + starts, self.size)  # the last column is for missing values
            indicators.scatter_(1, index, 1.0)
            block = indicators[:, :-1], None if bool(seen.all()) else seen.double(), weights
            if step >= len(self.weights):
                self._block = block
            yield block


def _with_constant(covariance: Tensor) -> Tensor:
    """Second moments of a constant 1 and of centred variables."""
    second = covariance.new_zeros(len(covariance) + 1, len(covariance) + 1)
    second[0, 0], second[1:, 1:] = 1.0, covariance
    return second
