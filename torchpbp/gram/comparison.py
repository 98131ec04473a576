"""Comparison of training rows with each other, and of evidence with training rows, by kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.features.kernels import RBF, Kernel
from torchpbp.gram.charts import Chart
from torchpbp.graph.latent_graph import Continuous, Domain
from torchpbp.inputs.evidence import Evidence


class Comparison:
    """Kernels between rows of evidence and training rows.

    Args:
        domains: the variables, in the order of the training columns.
        chart: coordinates in which continuous variables are compared.
        kernel: for continuous variables; discrete ones are compared for equality.
        widths: (variables,) bandwidths.
        examples: (rows, variables) training rows.
        dtype: of the result.
    """

    def __init__(
        self,
        domains: Mapping[str, Domain],
        chart: Chart,
        kernel: Kernel,
        widths: Tensor,
        examples: Tensor,
        dtype: torch.dtype,
    ) -> None:
        self._names = list(domains)
        self._continuous = [isinstance(d, Continuous) for d in domains.values()]
        self._chart, self._kernel, self._dtype = chart, kernel, dtype
        self._widths = widths
        # Differences are taken in low precision, so everything is moved near 0 first; states stay whole numbers.
        moved = torch.tensor(self._continuous, device=examples.device)
        self._centre = torch.where(moved, examples.mean(dim=0), torch.zeros_like(widths))
        self._states = examples
        self._examples = (examples - self._centre).to(dtype)

    def table(self, evidence: Evidence) -> Tensor:
        """(batch, variables) values with NaN where not observed."""
        columns = []
        nothing = torch.full((evidence.batch,), torch.nan, dtype=torch.float64, device=self._states.device)
        for v in self._names:
            if v in evidence.real:
                columns.append(evidence.real[v])
            elif v in evidence.hard:
                states = evidence.hard[v].double()
                columns.append(torch.where(states < 0, nothing, states))
            else:
                columns.append(nothing)
        return torch.stack(columns, dim=1)

    def leaf_values(
        self, leaves: Mapping[int, Sequence[str]], evidence: Evidence, skip: str | None = None
    ) -> tuple[dict[int, Tensor], Tensor]:
        """Values that leaves send up, each row up to a factor.

        Args:
            leaves: leaf -> its observables.
            evidence: for a batch of rows.
            skip: a variable whose own evidence is left out.

        Returns:
            leaf -> (batch, training rows) product of its observables' kernels, 1 where nothing is observed; and the
            (batch,) log of the factors taken out: what the kernels' peaks and integrals come to.
        """
        rows = self.table(evidence)
        seen = ~rows.isnan()
        successors = self._chart.successors(rows)
        near = (rows - self._centre).nan_to_num(0.0).to(self._dtype)
        log_factor = torch.zeros(evidence.batch, dtype=torch.float64, device=rows.device)
        result = {}
        for leaf, group in leaves.items():
            columns = [self._names.index(v) for v in group if v != skip and v not in evidence.soft]
            columns = [i for i in columns if bool(seen[:, i].any())]
            values, log_peak = self._product(near, seen, successors, columns)
            log_factor += log_peak
            for v in group:
                if v in evidence.soft and v != skip:
                    values = values * evidence.soft[v].to(values)[:, self._states[:, self._names.index(v)].long()]
            for i in columns:
                if self._continuous[i]:
                    log_factor -= seen[:, i] * math.log(float(self._widths[i]) * self._kernel.integral)
            result[leaf] = values
        return result, log_factor

    def _product(
        self, rows: Tensor, seen: Tensor, successors: Tensor, columns: Sequence[int]
    ) -> tuple[Tensor, Tensor | float]:
        """(batch, training rows) product of kernels, and the log of a factor taken out of each row.

        Gaussian kernels are added up in the exponent, and the nearest training row's exponent is taken out before the
        exponential: a row far from all training rows would come to 0 otherwise.
        """
        values = rows.new_ones(len(rows), len(self._examples))
        exponent: Tensor | None = None
        for i in columns:
            difference = self._chart.differences(rows, successors, i, self._examples)
            if self._continuous[i] and isinstance(self._kernel, RBF):
                scaled = difference.mul_((seen[:, i] / self._widths[i]).to(rows.dtype).unsqueeze(1))
                exponent = scaled.square_() if exponent is None else exponent.addcmul_(scaled, scaled)
            elif self._continuous[i]:
                kernel = self._kernel.profile(difference.abs() / self._widths[i].to(rows.dtype))
                values = values * torch.where(seen[:, i : i + 1], kernel, torch.ones_like(kernel[:1, :1]))
            else:
                values = values * ((difference == 0) | ~seen[:, i : i + 1])
        if exponent is None:
            return values, 0.0
        nearest = exponent.amin(dim=1, keepdim=True)
        return values * exponent.sub_(nearest).mul_(-0.5).exp_(), -0.5 * nearest.squeeze(1).double()


class TrainingGram:
    """Kernels among training rows.

    Args:
        domains: the variables, in the order of the columns.
        kernel: for continuous variables; discrete ones are compared for equality.
        rows: (n, variables) training rows, in the chart's coordinates.
        widths: (variables,) bandwidths.
    """

    def __init__(self, domains: Mapping[str, Domain], kernel: Kernel, rows: Tensor, widths: Tensor) -> None:
        self._names = list(domains)
        self._continuous = [isinstance(d, Continuous) for d in domains.values()]
        self._kernel, self.rows, self._widths = kernel, rows, widths

    def block(self, groups: Sequence[Sequence[str]], columns: slice | Tensor) -> Tensor:
        """(n, columns) sum over groups of the product of their variables' kernels."""
        total = torch.zeros(len(self.rows), len(self.rows[columns]), dtype=torch.float64)
        for group in groups:
            block = torch.ones_like(total)
            for i in (self._names.index(v) for v in group):
                values = self.rows[:, i]
                if self._continuous[i]:
                    block = block * self._kernel.gram(values, values[columns], float(self._widths[i]))
                else:
                    block = block * (values.unsqueeze(1) == values[columns])
            total = total + block
        return total
