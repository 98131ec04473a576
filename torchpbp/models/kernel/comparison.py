"""Comparison of evidence with training rows by kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.features.kernels import RBF, Kernel
from torchpbp.graph.latent_graph import Continuous, Domain
from torchpbp.inputs.evidence import Evidence
from torchpbp.models.kernel.charts import Chart

NEAR, NEAR_DOUBLE = 1e4, 1e2
"""Largest distances, in bandwidths, whose squares as differences of squares in double precision are exact to the precision of
float32, and to twelve digits for models in float64."""
SMALL = 256.0
"""Largest squared distance, in bandwidths, whose differences are exact to 1e-4 in float32."""
FARTHEST = 1e150
"""Bandwidths at which evidence is clamped: squares of larger distances overflow float64."""


class Comparison:
    """Kernels between rows of evidence and training rows.

    Args:
        domains: the variables, in the order of the training columns.
        chart: coordinates in which continuous variables are compared.
        kernel: for continuous variables; discrete ones are compared for equality.
        widths: (variables,) bandwidths.
        examples: (rows, variables) training rows.
        evidence: for a batch of rows.
        dtype: of the result.

    Attributes:
        rows: (batch, variables) values of the evidence, NaN where not observed.
    """

    def __init__(
        self,
        domains: Mapping[str, Domain],
        chart: Chart,
        kernel: Kernel,
        widths: Tensor,
        examples: Tensor,
        evidence: Evidence,
        dtype: torch.dtype,
    ) -> None:
        self._names = list(domains)
        self._continuous = [isinstance(d, Continuous) for d in domains.values()]
        self._chart, self._kernel, self._evidence, self._dtype = chart, kernel, evidence, dtype
        # Differences are taken in low precision, so values are first centred and divided by powers of two near the
        # bandwidths, which is exact; states stay integers.
        continuous = torch.tensor(self._continuous, device=examples.device)
        centre = torch.where(continuous, examples.mean(dim=0), torch.zeros_like(widths))
        unit = torch.where(continuous, _powers_of_two(widths), torch.ones_like(widths))
        for sequence in chart.sequences:  # increments are differences of neighbours
            unit[sequence] = unit[sequence].amax()
        self._widths, self._scaled_widths = widths, widths / unit
        self._states = examples
        self._training = (examples - centre) / unit
        self._examples = self._training.to(dtype)
        self.rows = self._table()
        self._seen = ~self.rows.isnan()
        self._successors = chart.successors(self.rows)
        self._scaled = ((self.rows - centre) / unit).clamp(-FARTHEST, FARTHEST).nan_to_num(0.0)

    def _table(self) -> Tensor:
        nothing = torch.full((self._evidence.batch,), torch.nan, dtype=torch.float64, device=self._states.device)
        columns = []
        for v in self._names:
            if v in self._evidence.real:
                columns.append(self._evidence.real[v])
            elif v in self._evidence.hard:
                states = self._evidence.hard[v].double()
                columns.append(torch.where(states < 0, nothing, states))
            else:
                columns.append(nothing)
        return torch.stack(columns, dim=1)

    def leaf_values(self, group: Sequence[str], skip: str | None = None) -> tuple[Tensor, Tensor]:
        """Upward message of a leaf, up to a factor per row.

        Args:
            group: observables of the leaf.
            skip: a variable whose own evidence is ignored.

        Returns:
            (batch, training rows) product of the observables' kernels, 1 without observed values; and the (batch,) log of the
            extracted factors: the kernels' peaks and integrals.
        """
        soft = self._evidence.soft
        places = {v: self._names.index(v) for v in group if v != skip}
        columns = [i for v, i in places.items() if v not in soft and bool(self._seen[:, i].any())]
        values, log_factor = self._product(columns)
        weighed = [v for v in places if v in soft]
        for v in weighed:
            values = values * soft[v].to(values)[:, self._states[:, places[v]].long()]
        for i in columns:
            if self._continuous[i]:
                log_factor -= self._seen[:, i] * math.log(float(self._widths[i]) * self._kernel.integral)
        if weighed or not all(self._by_distance(i) for i in columns):  # otherwise the largest is 1 already
            values, logs = rescale_(values)
            log_factor += logs
        return values, log_factor

    def _by_distance(self, column: int) -> bool:
        """Whether a variable's kernel is Gaussian, so that a product of several is a Gaussian of one distance."""
        return self._continuous[column] and isinstance(self._kernel, RBF)

    def _product(self, columns: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(batch, training rows) product of the kernels of some variables, and the (batch,) log of an extracted factor."""
        values, log_peak = self._near_product(columns)
        far = self._far(columns)
        if len(far):
            values[far], log_peak[far] = self._far_product(far, columns)
        return values, log_peak

    def _far(self, columns: Sequence[int]) -> Tensor:
        """Numbers of the rows with a value too far from all training rows for differences of squared distances."""
        most = NEAR_DOUBLE if self._dtype == torch.float64 else NEAR
        chosen = [i for i in columns if self._continuous[i]]
        return (self._scaled[:, chosen].abs() > most * self._scaled_widths[chosen]).any(dim=1).nonzero().squeeze(1)

    def _near_product(self, columns: Sequence[int]) -> tuple[Tensor, Tensor]:
        """As :meth:`_product`, for rows near the training rows.

        Exponents of Gaussian kernels are summed, and the exponent of the nearest training row is subtracted before the
        exponential, which would otherwise underflow for rows far from all training rows.
        """
        values: Tensor | None = None
        log_peak = self._scaled.new_zeros(len(self._scaled))
        gaussian = [i for i in columns if self._by_distance(i)]
        if gaussian:
            exponent = self._exponents(gaussian)
            peak = exponent.amax(dim=1)
            log_peak = peak.double()
            least = math.log(torch.finfo(self._dtype).tiny) + 0.1  # smaller exponentials are slow, and negligible
            values = exponent.sub_(peak.unsqueeze(1)).to(self._dtype).clamp_(min=least).exp_()
        low = self._scaled.to(self._dtype)
        for i in columns:
            if i in gaussian:
                continue
            difference = self._chart.differences(low, self._successors, i, self._examples)
            seen = self._seen[:, i : i + 1]
            if self._continuous[i]:
                kernel = self._kernel.profile(difference.abs() / self._scaled_widths[i].to(low.dtype))
                factor = torch.where(seen, kernel, torch.ones_like(kernel[:1, :1]))
            else:
                factor = ((difference == 0) | ~seen).to(low.dtype)
            values = factor if values is None else values * factor
        return low.new_ones(len(low), len(self._examples)) if values is None else values, log_peak

    def _exponents(self, columns: Sequence[int]) -> Tensor:
        """(batch, training rows) −½ Σ_c s_c (a_c − b_c)² over coordinates c, with s_c = 1 if a row has the coordinate, else 0.

        Computed as one matrix product with entries (Σ s a², s a, s) and (1, b, b²), in double precision if large squares cancel.
        """
        rows, training, successors = self._scaled, self._training, self._successors
        flags, evidence, examples = [], [], []
        for i in columns:
            following = {-1} if i not in self._chart.followed else set(successors[:, i].tolist())
            # a difference to another variable, which depends on the missing values of the row
            for successor in following:
                seen = self._seen[:, i]
                mask = seen if len(following) == 1 else seen & (successors[:, i] == successor)
                flags.append(mask.to(rows.dtype) / self._scaled_widths[i])
                evidence.append(rows[:, i] - rows[:, successor] if successor >= 0 else rows[:, i])
                examples.append(training[:, i] - training[:, successor] if successor >= 0 else training[:, i])
        flag, a, b = torch.stack(flags, dim=1), torch.stack(evidence, dim=1), torch.stack(examples)
        square = flag.square()
        left = torch.cat([-0.5 * (square * a.square()).sum(dim=1, keepdim=True), square * a, -0.5 * square], dim=1)
        right = torch.cat([torch.ones_like(b[:1]), b, b.square()])
        largest = -left[:, 0].min() + (left[:, len(b) + 1 :].amin(dim=0) * right[len(b) + 1 :].amax(dim=1)).sum().abs()
        dtype = self._dtype if float(largest) < SMALL else torch.float64
        return left.to(dtype) @ right.to(dtype)

    def _far_product(self, far: Tensor, columns: Sequence[int]) -> tuple[Tensor, Tensor]:
        """As :meth:`_near_product` for some rows, in double precision and without differences of nearly equal squares.

        The exponents of two training rows differ by (a − b)(a + b), where a − b is the difference of the two training rows,
        whose precision does not depend on the distance of the evidence.
        """
        rows, seen, successors, training = self._scaled[far], self._seen[far], self._successors[far], self._training
        values = rows.new_ones(len(rows), len(training))
        total, parts = torch.zeros_like(values), []
        for i in columns:
            mask = seen[:, i : i + 1]
            if not self._continuous[i]:
                values = values * ((self._chart.differences(rows, successors, i, training) == 0) | ~mask)
                continue
            offset = self._chart.differences(torch.zeros_like(rows), successors, i, training) / self._scaled_widths[i]
            place = self._chart.differences(rows, successors, i, torch.zeros_like(training[:1]))
            difference = offset + place / self._scaled_widths[i]
            if isinstance(self._kernel, RBF):
                total += mask * difference.square()
                parts.append((mask * offset, mask * difference))
            else:
                values = values * torch.where(mask, self._kernel.profile(difference.abs()), 1.0)
        nearest = total.argmin(dim=1, keepdim=True)
        apart = torch.zeros_like(values)
        for offset, difference in parts:
            apart += (offset - offset.gather(1, nearest)) * (difference + difference.gather(1, nearest))
        least = apart.amin(dim=1, keepdim=True)
        log_peak = -0.5 * (total.gather(1, nearest) + least).squeeze(1)
        return (values * (-0.5 * (apart - least)).exp()).to(self._dtype), log_peak


def rescale_(values: Tensor) -> tuple[Tensor, Tensor]:
    """Divide each row, in place, by its largest absolute value; returns the rows and the float64 logs of the divisors."""
    scale = torch.maximum(values.amax(dim=1), -values.amin(dim=1))
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return values.div_(scale.unsqueeze(1)), scale.double().log()


def _powers_of_two(sizes: Tensor) -> Tensor:
    """The next power of two above each positive number; undefined for 0."""
    mantissa, _ = torch.frexp(sizes)
    return sizes / mantissa
