"""Learning of a KernelPBP: bandwidths, ranges, and one operator per separator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from torchpbp.errors import ArgumentError, DataError
from torchpbp.features.kernels import median_bandwidth
from torchpbp.features.scales import check_span
from torchpbp.graph.latent_graph import Continuous, Domain, LatentGraph
from torchpbp.models.kernel.comparison import TrainingGram
from torchpbp.models.kernel.gram_operators import GramOperator, full_operator, landmark_features, thin_operator
from torchpbp.planning.plan import SeparatorPlan
from torchpbp.settings import Constraint
from torchpbp.settings import positive as positive_number

Bandwidth = float | Mapping[str, float] | str
"""A number for all continuous variables, a number for each, or "median"."""


def bandwidth_constraint() -> Constraint:
    """The constraint on a :data:`Bandwidth`."""
    number = positive_number()

    def read(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(v): number.read(width) for v, width in value.items()}
        return value if value == "median" else number.read(value)

    return Constraint("a positive number, one for each continuous variable, or 'median'", read)


def check_bandwidth(bandwidth: Bandwidth, graph: LatentGraph) -> None:
    """Raise an ArgumentError for a mapping without some continuous variable."""
    continuous = [v for v in graph.observed if isinstance(graph.variables[v], Continuous)]
    if isinstance(bandwidth, Mapping) and not set(continuous) <= set(bandwidth):
        raise ArgumentError(f"bandwidth: expected a positive number for each of {continuous}, got {dict(bandwidth)}.")


def bandwidths(bandwidth: Bandwidth, domains: Mapping[str, Domain], coordinates: Tensor) -> Tensor:
    """(variables,) bandwidths for (rows, variables) coordinates, which may be NaN; 0 for discrete variables."""
    result = torch.zeros(len(domains), dtype=torch.float64, device=coordinates.device)
    for i, (v, domain) in enumerate(domains.items()):
        if not isinstance(domain, Continuous):
            continue
        if isinstance(bandwidth, str):
            column = coordinates[:, i][~coordinates[:, i].isnan()]
            if bool((column == column[0]).all()):
                raise DataError(
                    f"Column '{v}' is constant ({float(column[0])}): the median rule needs different values. Give "
                    "bandwidth= as a number, or drop the column."
                )
            result[i] = 0.5 * median_bandwidth(column)
        else:
            result[i] = bandwidth[v] if isinstance(bandwidth, Mapping) else float(bandwidth)
    return result


def check_spans(
    domains: Mapping[str, Domain], rows: Tensor, widths: Tensor, dtype: torch.dtype, numbers: Tensor | None = None
) -> None:
    """Raise a DataError for columns whose values are too many bandwidths apart.

    Args:
        domains: the variables, in the order of the columns.
        rows: (rows, variables) training rows; NaN where missing.
        widths: (variables,) bandwidths.
        dtype: of the comparison of rows.
        numbers: (rows,) numbers of the rows in the data; None if ``rows`` are all rows.
    """
    for i, (v, domain) in enumerate(domains.items()):
        if isinstance(domain, Continuous):
            column = rows[:, i]
            seen, middle = column[~column.isnan()], float(column.nanmedian())
            farthest = int((column - middle).abs().nan_to_num(-1.0).argmax())
            row = farthest if numbers is None else int(numbers[farthest])
            check_span(v, float(seen.min()), float(seen.max()), middle, float(widths[i]), dtype, row)


def ranges(domains: Mapping[str, Domain], rows: Tensor, widths: Tensor) -> Tensor:
    """(variables, 2) ranges of densities: declared, or three evidence bandwidths around the data."""
    low, high = rows.amin(dim=0), rows.amax(dim=0)
    margin = 3 * widths
    result = torch.stack([low - margin, high + margin], dim=1)
    for i, domain in enumerate(domains.values()):
        if isinstance(domain, Continuous):
            result[i, 0] = result[i, 0] if domain.low is None else domain.low
            result[i, 1] = result[i, 1] if domain.high is None else domain.high
    return result


@dataclass(frozen=True, kw_only=True)
class OperatorSettings:
    """Settings of the solve of operators.

    Args:
        ridge: penalties of stage 1 and stage 2.
        landmarks: None for exact Gram matrices; a number of training rows for a low-rank approximation.
        dtype: of the operators; solves are done in float64.
        seed: of the choice of landmarks.
    """

    ridge: tuple[float, float]
    landmarks: int | None
    dtype: torch.dtype
    seed: int

    def nbytes(self, separators: int, rows: int) -> int:
        """Bytes of the operators, including the workspace of one solve."""
        item = torch.finfo(self.dtype).bits // 8
        columns = rows if self.landmarks is None else 2 * min(self.landmarks, rows)
        return separators * rows * columns * item + 8 * 4 * rows * columns


def check_memory(settings: OperatorSettings, separators: int, rows: int, most: int) -> None:
    """Raise a DataError, before any allocation, if the operators would take more than ``most`` bytes."""
    needed = settings.nbytes(separators, rows)
    if needed > most:
        raise DataError(
            f"{separators} separators over {rows} rows would take {needed / 2**30:.1f} GiB, more than max_bytes="
            f"{most / 2**30:.1f} GiB. Pass landmarks=<number> for a low-rank approximation, use "
            "PBP(features=Nystroem(...)), or fewer rows."
        )


def learn_operators(plans: Sequence[SeparatorPlan], gram: TrainingGram, settings: OperatorSettings) -> nn.ModuleDict:
    """Node -> operator from the product of the messages below it to its message. Equal rows give equal operators."""
    bar = tqdm(plans, desc="solving", unit="separator", delay=2, leave=False)
    return nn.ModuleDict({str(plan.node): _operator(plan, gram, settings) for plan in bar})


def _operator(plan: SeparatorPlan, gram: TrainingGram, settings: OperatorSettings) -> GramOperator:
    rows, dtype = len(gram.rows), settings.dtype
    if settings.landmarks is None or settings.landmarks >= rows:
        everything = slice(None)
        core = gram.block([plan.core], everything)
        return GramOperator(full_operator(core, gram.block(plan.instrument, everything), *settings.ridge).to(dtype))
    generator = torch.Generator().manual_seed(settings.seed + plan.node)
    chosen = torch.randperm(rows, generator=generator, device="cpu")[: settings.landmarks].to(gram.rows.device)
    core, instrument = gram.block([plan.core], chosen), gram.block(plan.instrument, chosen)
    p, h = landmark_features(core, core[chosen]), landmark_features(instrument, instrument[chosen])
    left, right = thin_operator(p, h, *settings.ridge)
    return GramOperator(left.to(dtype), right.to(dtype))
