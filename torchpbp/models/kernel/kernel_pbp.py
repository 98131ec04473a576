"""KernelPBP: predictive belief propagation with the kernel trick, for continuous and mixed variables [PBP §5].

Messages are functions, represented by their values at the training rows; one matrix per separator maps the product of the
messages below to the message above, without explicit features or outer products.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from torchpbp.contract.abilities import Learner, Sampling
from torchpbp.contract.model_files import SaveOptions, checked_labels, require_finite, require_none
from torchpbp.errors import ArgumentError, CheckpointError, DataError, QueryError, StructureError
from torchpbp.features.completion import complete_rows
from torchpbp.features.kernels import RBF, Kernel, check_span, median_bandwidth
from torchpbp.graph.domains import require_single_values
from torchpbp.graph.junction_tree import JunctionTree, build_junction_tree, checked_root
from torchpbp.graph.latent_graph import Continuous, LatentGraph, require_graph
from torchpbp.inference.density import GRID, Density, grid_density, read_points, warn_of_coarse_grids
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.inputs.evidence import Evidence, EvidenceLike, one_hot_where_observed
from torchpbp.inputs.missing_values import observed
from torchpbp.lazy import pandas as pd
from torchpbp.models.kernel.charts import Chart
from torchpbp.models.kernel.comparison import Comparison, rescale_
from torchpbp.models.kernel.gram_operators import GramOperator, full_operator, landmark_features, thin_operator
from torchpbp.planning.plan import Plan, SeparatorPlan
from torchpbp.settings import (
    Constraint,
    Settings,
    choice,
    flag,
    floating_dtype,
    optional,
    setting,
    several,
    text,
    whole,
)
from torchpbp.settings import positive as positive_number
from torchpbp.settings import seed as seed_constraint

MOST_STATES = 1 << 26
"""Largest number of states of a discrete observable; each answer has an entry per state."""
BATCH_ELEMENTS = 1 << 19
"""Entries of one (rows of evidence, training rows) matrix handled at once."""

Bandwidth = float | Mapping[str, float] | str
"""A number for all continuous variables, a number for each, or "median"."""


def _bandwidth() -> Constraint:
    """The constraint on a :data:`Bandwidth`."""
    number = positive_number()

    def read(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(v): number.read(width) for v, width in value.items()}
        return value if value == "median" else number.read(value)

    return Constraint("a positive number, one for each continuous variable, or 'median'", read)


@dataclass(frozen=True, kw_only=True)
class KernelPBPSettings(Settings):
    """Settings of :class:`~torchpbp.KernelPBP`."""

    bandwidth: Bandwidth = setting("median", _bandwidth())
    evidence_bandwidth: Bandwidth | None = setting(None, optional(_bandwidth()))
    ridge: tuple[float, float] = setting(
        (0.1, 0.1), several(positive_number(), 2, "two positive numbers (stage 1, stage 2)")
    )
    core_leaves: int = setting(1, whole(1))
    instrument_leaves: int = setting(2, whole(1))
    landmarks: int | None = setting(None, optional(whole(1)))
    sequences: tuple[tuple[str, ...], ...] = setting((), several(several(text())))
    positive: bool = setting(True, flag())
    root: tuple[str, ...] | None = None
    fill: str = setting("draw", choice("draw", "mean"))
    dtype: torch.dtype = setting(torch.float32, floating_dtype())
    max_bytes: int = setting(4 << 30, whole(1))
    seed: int = setting(0, seed_constraint())


class KernelPBP(nn.Module, Learner, Sampling):
    """Predictive belief propagation on Gram matrices.

    Args:
        graph: the structure. The latents' numbers of states are not used, and may be unknown.
        bandwidth: of the kernels of core groups and instruments, in units of the data; a number, one per continuous
            variable, or "median" for half the median distance between training values.
        evidence_bandwidth: of the kernel between evidence and training rows; ``bandwidth`` by default.
        kernel: for continuous variables; discrete ones are compared for equality.
        ridge: penalties (λ, λ₂) of stage 1 and stage 2, added to sums over rows.
        core_leaves: leaves in a core group, nearest to the separator first.
        instrument_leaves: leaves in an instrument, nearest first; their kernels are multiplied.
        plan: core groups and instruments in place of the nearest leaves; the kernels of an instrument's groups are added.
        landmarks: None for exact Gram matrices; a number of training rows for a low-rank approximation.
        sequences: groups of variables compared by increments (see :class:`~torchpbp.models.kernel.charts.Chart`).
        positive: whether messages, which estimate non-negative functions, are clipped at 0. Clipping reduces the variance of
            scores with few rows (pen digits), but the bias does not vanish with more rows: pass False for consistent posteriors.
        root: variables the root clique must contain.
        fill: completion of missing training values from similar rows (see :func:`~torchpbp.features.complete_table`): "draw"
            preserves the spread of the data; "mean" is closer to each single value, which suits classifiers.
        dtype: of messages and operators; solves are always done in float64.
        max_bytes: memory limit of the operators, checked before any allocation.
        seed: of the choice of landmarks, and of draws for missing training values.

    Attributes:
        settings: as a :class:`KernelPBPSettings`.
        tree: the junction tree.
        plan: core groups and instruments.
        names: the observables, in the order of the columns of ``examples``.
        chart: coordinates of continuous variables.
        examples: (rows, variables) training rows, completed.
        widths, evidence_widths: (variables,) bandwidths of learning and of evidence.
        bounds: (variables, 2) ranges of densities.
        operators: node -> operator of its separator.
    """

    examples: Tensor
    widths: Tensor
    evidence_widths: Tensor
    bounds: Tensor

    def __init__(
        self,
        graph: LatentGraph,
        *,
        bandwidth: Bandwidth = "median",
        evidence_bandwidth: Bandwidth | None = None,
        kernel: Kernel | None = None,
        ridge: tuple[float, float] = (0.1, 0.1),
        core_leaves: int = 1,
        instrument_leaves: int = 2,
        plan: Plan | None = None,
        landmarks: int | None = None,
        sequences: Sequence[Sequence[str]] = (),
        positive: bool = True,
        root: Sequence[str] | None = None,
        fill: str = "draw",
        dtype: torch.dtype = torch.float32,
        max_bytes: int = 4 << 30,
        seed: int = 0,
    ) -> None:
        super().__init__()
        require_graph(graph, "KernelPBP")
        require_single_values(graph.variables, "KernelPBP")
        if not isinstance(kernel, Kernel | None):
            raise ArgumentError(f"kernel: expected RBF(), Laplace(), Matern(…) or None, got {kernel!r}.")
        many = [v for v in graph.observed if isinstance(n := graph.variables[v], int) and n > MOST_STATES]
        if many:
            raise StructureError(
                f"KernelPBP: expected at most {MOST_STATES:,} states, {many[:8]} have more. Declare them Continuous()."
            )
        self.settings = KernelPBPSettings(
            bandwidth=bandwidth,
            evidence_bandwidth=evidence_bandwidth,
            ridge=ridge,
            core_leaves=core_leaves,
            instrument_leaves=instrument_leaves,
            landmarks=landmarks,
            sequences=sequences,  # type: ignore[arg-type]
            positive=positive,
            root=checked_root(root),
            fill=fill,
            dtype=dtype,
            max_bytes=max_bytes,
            seed=seed,
        )
        self.graph = graph
        self.names = graph.observed
        self._continuous = {v: i for i, v in enumerate(self.names) if isinstance(graph.variables[v], Continuous)}
        for widths in (self.settings.bandwidth, self._evidence_bandwidth):
            if isinstance(widths, Mapping) and not set(self._continuous) <= set(widths):
                raise ArgumentError(
                    f"bandwidth: expected a positive number for each of {list(self._continuous)}, got {dict(widths)}."
                )
        self.kernel = kernel or RBF()
        self.dtype = self.settings.dtype
        self.chart = Chart(self.names, self.settings.sequences)
        for v in self.chart.moved:
            if v not in self._continuous:
                raise StructureError(f"sequences: '{v}' is discrete; only continuous variables have increments.")
        self.tree = build_junction_tree(graph, self.settings.root)
        leaves = self.settings.core_leaves, self.settings.instrument_leaves
        self.plan = _nearest_leaves(self.tree, *leaves) if plan is None else _checked_plan(self.tree, plan)
        self.labels = {}
        self.missing = {}
        self.fitted = False
        self.operators = nn.ModuleDict()
        self.register_state_dict_pre_hook(_solve_first)  # type: ignore[no-untyped-call]

    @property
    def _evidence_bandwidth(self) -> Bandwidth:
        bandwidth = self.settings.evidence_bandwidth
        return self.settings.bandwidth if bandwidth is None else bandwidth

    @property
    def device(self) -> torch.device:
        """Device of the training rows."""
        return self.examples.device if self.fitted else torch.device("cpu")

    def __str__(self) -> str:
        state = f"fitted on {len(self.examples)} rows" if self.fitted else "not fitted"
        missing = self.extra_repr()
        return f"KernelPBP({self.graph!r}, {state}{missing and ', '}{missing})"

    def extra_repr(self) -> str:
        if not any(self.missing.values()):
            return ""
        return f"missing in training: {sum(self.missing.values()) / len(self.missing):.1%} of the values"

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(self, data: DataLike) -> KernelPBP:
        """Learn from data, which is stored in memory.

        Missing values (NaN, None, pandas NA, masked entries, -1 for discrete variables) are first completed from similar
        rows. Rows without any value are dropped, with a warning.

        Raises:
            DataError: bad data, a column without any value or with outliers too many bandwidths from the other values for
                ``dtype``, or Gram matrices larger than ``max_bytes``; the model is then unchanged.
        """
        reader = ColumnReader(self.evidence_domains(), self.graph.labels, missing=True, device=None)
        parts = list(reader.tables(data))
        columns = [torch.cat([p[v] for p in parts]) for v in self.names]
        rows = torch.stack([c.double().masked_fill(~observed(c), torch.nan) for c in columns], dim=1)
        reader.missing_values.check()
        numbers = (~rows.isnan().all(dim=1)).nonzero().squeeze(1)
        rows = rows[numbers] if reader.missing_values.empty else rows
        self._check_memory(len(rows))
        if len(rows) < 2:
            raise DataError(f"KernelPBP needs at least 2 rows, got {len(rows)}.")
        if reader.missing_values.any:  # similarity is measured with the evidence bandwidths
            domains, alike = list(self.evidence_domains().values()), self._bandwidths(self._evidence_bandwidth, rows)
            rows = complete_rows(rows, domains, alike, draw=self.settings.fill == "draw", seed=self.settings.seed)
        coordinates = self.chart.coordinates(rows)
        widths = self._bandwidths(self.settings.bandwidth, coordinates)
        evidence_widths = self._bandwidths(self._evidence_bandwidth, coordinates)
        self._check_spans(rows, torch.minimum(widths, evidence_widths), numbers)
        operators = self._solved(rows, widths)
        bounds = self._ranges(rows, evidence_widths)
        warn_of_coarse_grids(
            {
                v: (float(bounds[i].diff()), float(evidence_widths[i]))
                for v, i in self._continuous.items()
                if v not in self.chart.moved
            }
        )
        self._keep(rows, widths, evidence_widths, bounds, operators)
        self.labels = reader.labels
        self.missing = reader.missing_values.shares
        return self

    def _check_memory(self, rows: int) -> None:
        """Raise a DataError, before any allocation, if the operators and one solve would take more than ``max_bytes``."""
        count, most = len(self._inner_plans()), self.settings.max_bytes
        columns = rows if self.settings.landmarks is None else 2 * min(self.settings.landmarks, rows)
        needed = count * rows * columns * self.dtype.itemsize + 8 * 4 * rows * columns
        if needed > most:
            raise DataError(
                f"{count} separators over {rows} rows would take {needed / 2**30:.1f} GiB, more than max_bytes="
                f"{most / 2**30:.1f} GiB. Pass landmarks=<number> for a low-rank approximation, use "
                "PBP(features=Nystroem(...)), or fewer rows."
            )

    def _bandwidths(self, bandwidth: Bandwidth, coordinates: Tensor) -> Tensor:
        """(variables,) bandwidths for (rows, variables) coordinates, which may be NaN; 0 for discrete variables."""
        result = torch.zeros(len(self.names), dtype=torch.float64, device=coordinates.device)
        for v, i in self._continuous.items():
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

    def _check_spans(self, rows: Tensor, widths: Tensor, numbers: Tensor) -> None:
        """Raise a DataError for columns whose values are too many bandwidths apart.

        Args:
            rows: (rows, variables) training rows.
            widths: (variables,) bandwidths.
            numbers: (rows,) numbers of the rows in the data.
        """
        for v, i in self._continuous.items():
            column = rows[:, i]
            middle = float(column.median())
            row = int(numbers[(column - middle).abs().argmax()])
            check_span(v, float(column.min()), float(column.max()), middle, float(widths[i]), self.dtype, row)

    def _ranges(self, rows: Tensor, widths: Tensor) -> Tensor:
        """(variables, 2) ranges of densities: declared, or three evidence bandwidths around the data."""
        result = torch.stack([rows.amin(dim=0) - 3 * widths, rows.amax(dim=0) + 3 * widths], dim=1)
        for v, i in self._continuous.items():
            domain: Any = self.graph.variables[v]
            for end, bound in enumerate((domain.low, domain.high)):
                if bound is not None:
                    result[i, end] = bound
        return result

    def _solved(self, rows: Tensor, widths: Tensor) -> nn.ModuleDict:
        """Node -> operator from the product of the messages below it to its message. Equal rows give equal operators."""
        coordinates = self.chart.coordinates(rows)
        bar = tqdm(self._inner_plans(), desc="solving", unit="separator", delay=2, leave=False)
        return nn.ModuleDict({str(plan.node): self._operator(plan, coordinates, widths) for plan in bar})

    def _operator(self, plan: SeparatorPlan, rows: Tensor, widths: Tensor) -> GramOperator:
        """The operator of one separator, from (rows, variables) coordinates and (variables,) bandwidths."""
        s = self.settings
        groups = [plan.core], plan.instrument
        if s.landmarks is None or s.landmarks >= len(rows):
            core, instrument = (self._gram(g, rows, widths, slice(None)) for g in groups)
            return GramOperator(full_operator(core, instrument, *s.ridge).to(s.dtype))
        generator = torch.Generator().manual_seed(s.seed + plan.node)
        chosen = torch.randperm(len(rows), generator=generator, device="cpu")[: s.landmarks].to(rows.device)
        core, instrument = (self._gram(g, rows, widths, chosen) for g in groups)
        p, h = landmark_features(core, core[chosen]), landmark_features(instrument, instrument[chosen])
        left, right = thin_operator(p, h, *s.ridge)
        return GramOperator(left.to(s.dtype), right.to(s.dtype))

    def _gram(self, groups: Sequence[Sequence[str]], rows: Tensor, widths: Tensor, chosen: slice | Tensor) -> Tensor:
        """(rows, chosen rows) sum over groups of the product of their variables' kernels."""
        total = rows.new_zeros(len(rows), len(rows[chosen]))
        for group in groups:
            block = torch.ones_like(total)
            for v in group:
                i = self.names.index(v)
                values = rows[:, i]
                if v in self._continuous:
                    block = block * self.kernel.gram(values, values[chosen], float(widths[i]))
                else:
                    block = block * (values.unsqueeze(1) == values[chosen])
            total = total + block
        return total

    def _keep(
        self, examples: Tensor, widths: Tensor, evidence_widths: Tensor, bounds: Tensor, operators: nn.ModuleDict
    ) -> None:
        self.register_buffer("examples", examples)
        self.register_buffer("widths", widths)
        self.register_buffer("evidence_widths", evidence_widths)
        self.register_buffer("bounds", bounds)
        self.operators = operators
        self.fitted = True

    def _solved_operators(self) -> nn.ModuleDict:
        """The operators, solved from the training rows if the model's file did not hold them."""
        if self.fitted and len(self.operators) < len(self._inner_plans()):
            self.operators = self._solved(self.examples, self.widths)
        return self.operators

    def _inner_plans(self) -> list[SeparatorPlan]:
        """Plans of the separators above more than one leaf; a leaf's message needs no operator."""
        return [p for p in self.plan.separators if not self.tree.leaf_observables[p.node]]

    # -- queries -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def log_evidence(self, evidence: EvidenceLike = None) -> Tensor:
        """(batch,) log P(evidence); for continuous evidence the log of a kernel-smoothed density.

        An estimate that is not positive is replaced by the smallest positive number of its scale, so the result is finite.
        """
        parts = []
        for rows in self._chunks(self.read_evidence(evidence)):
            up, log_scale = self._upward(self._comparison(rows), keep=False)
            with _flushed_denormals():
                value = functools.reduce(torch.mul, [up[c] for c in self.tree.children[0]]).mean(dim=1)
            parts.append(rows.scaled(value.clamp(min=torch.finfo(value.dtype).tiny).log().double() + log_scale))
        return torch.cat(parts)

    @torch.no_grad()
    def posterior(self, query: str | Sequence[str], evidence: EvidenceLike = None, *, at: Any = None) -> Any:
        """P(query | evidence) of one variable.

        Returns:
            (batch, states) for a discrete variable. For a continuous one the (batch, n) density at the points ``at``, or
            without them a :class:`~torchpbp.inference.density.Density`. A DataFrame for a DataFrame.
        """

        def answer(names: tuple[str, ...], checked: Evidence) -> Any:
            (name,) = names
            if at is not None and not isinstance(self.graph.variables[name], Continuous):
                raise QueryError(f"Query of '{name}': at= is for continuous variables, and this one has states.")
            return _joined([self._answers([name], rows, at)[name] for rows in self._chunks(checked)])

        return self._ask(query, evidence, answer, at)

    @torch.no_grad()
    def posteriors(self, evidence: EvidenceLike = None) -> Any:
        """Posteriors of every observable that is not observed in all rows, from one upward and one downward pass.

        If every row observes everything, the result is empty, with a warning; :meth:`log_evidence` returns the probability.
        """

        def answer(names: list[str], checked: Evidence) -> dict[str, Any]:
            parts = [self._answers(names, rows) for rows in self._chunks(checked)]
            return {v: _joined([part[v] for part in parts]) for v in names}

        return self._ask_all(evidence, answer)

    forward = posteriors

    @torch.no_grad()
    def sample(self, n: int, evidence: EvidenceLike = None, seed: int | None = None) -> dict[str, Tensor]:
        """Draw all observables given evidence, leaf by leaf, each from a training row blurred by the evidence kernel.

        Draws follow the posterior density within each variable's range.

        Returns:
            name -> (n,) without evidence, (n, batch) with.
        """
        if not isinstance(self.kernel, RBF):
            raise QueryError("Sampling needs the RBF kernel: others have no noise to draw from here.")
        return self._draw(n, evidence, seed, self._draw_all)

    def _draw_all(self, rows: Evidence, generator: torch.Generator) -> dict[str, Tensor]:
        """One draw for each row of evidence."""
        self._check_charted([v for v in self.names if not rows.observed_everywhere(v)])
        current = Evidence(rows.batch, dict(rows.hard), dict(rows.soft), dict(rows.real))
        for leaf in self.tree.leaves:
            chosen = torch.cat([self._draw_rows(part, leaf, generator) for part in self._chunks(current)])
            for v in self.tree.leaf_observables[leaf]:
                i = self.names.index(v)
                drawn = self.examples[chosen, i]
                if v in self._continuous:
                    low, high = self._shares_below(i)[:, chosen]
                    share = torch.rand(len(drawn), generator=generator, dtype=torch.float64, device=drawn.device)
                    drawn = drawn + self.evidence_widths[i] * torch.special.ndtri(low + (high - low) * share)
                    drawn = drawn.clamp(*self.bounds[i].tolist())  # rounding
                    values = current.real.get(v)
                    current.real[v] = drawn if values is None else torch.where(values.isnan(), drawn, values)
                else:
                    drawn, states = drawn.long(), current.hard.get(v)
                    current.hard[v] = drawn if states is None else torch.where(states < 0, drawn, states)
                    current.soft.pop(v, None)
        return {v: current.real[v] if v in current.real else current.hard[v] for v in self.names}

    def _draw_rows(self, evidence: Evidence, leaf: int, generator: torch.Generator) -> Tensor:
        """(batch,) training rows drawn by the weights at a leaf, including evidence on the leaf; uniformly without weights."""
        comparison = self._comparison(evidence)
        up, _ = self._upward(comparison)
        weights = (self._downward(up, [leaf])[leaf] * up[leaf]).clamp(min=0).double()
        for v in self.tree.leaf_observables[leaf]:
            if v in self._continuous:  # draws are truncated to the range
                i = self.names.index(v)
                low, high = self._shares_below(i)
                weights = torch.where(comparison.rows[:, i].isnan().unsqueeze(1), weights * (high - low), weights)
        weights = weights + (weights.sum(dim=1, keepdim=True) <= 0)
        return torch.multinomial(weights, 1, generator=generator).squeeze(1)

    def _shares_below(self, column: int) -> Tensor:
        """(2, rows) probability of the blur around each training value below either end of the variable's range."""
        ends = self.bounds[column].unsqueeze(1)
        return torch.special.ndtr((ends - self.examples[:, column]) / self.evidence_widths[column])

    def _chunks(self, evidence: Evidence) -> Iterator[Evidence]:
        step = max(1, BATCH_ELEMENTS // len(self.examples))
        for start in range(0, max(1, evidence.batch), step):
            yield evidence.rows(slice(start, start + step))

    def _comparison(self, evidence: Evidence) -> Comparison:
        domains, widths = self.evidence_domains(), self.evidence_widths
        return Comparison(domains, self.chart, self.kernel, widths, self.examples, evidence, self.dtype)

    def _upward(self, comparison: Comparison, keep: bool = True) -> tuple[dict[int, Tensor], Tensor]:
        """Upward messages of a batch of rows.

        Args:
            comparison: of the evidence with the training rows.
            keep: whether messages of inner nodes are returned; otherwise a pass takes little memory and is faster.

        Returns:
            Node -> (batch, rows) values of its message at the training rows; and the (batch,) log of the extracted scales.
        """
        operators: Any = self._solved_operators()
        messages: dict[int, Tensor] = {}
        logs: list[Tensor] = []

        def below(node: int) -> list[Tensor]:
            for child in self.tree.children[node]:
                if self.tree.leaf_observables[child]:
                    messages[child], log_scale = comparison.leaf_values(self.tree.leaf_observables[child])
                    logs.append(log_scale)
            return [messages[c] if keep else messages.pop(c) for c in self.tree.children[node]]

        with _flushed_denormals():
            for node in reversed(self.tree.inner):
                product = functools.reduce(torch.mul, below(node))
                messages[node], log_scale = self._normalised(operators[str(node)].upward(product))
                logs.append(log_scale)
            top = dict(zip(self.tree.children[0], below(0), strict=True))
        return {**messages, **top}, torch.stack(logs).sum(dim=0)

    def _downward(self, up: Mapping[int, Tensor], leaves: Iterable[int]) -> dict[int, Tensor]:
        """Downward messages.

        Args:
            up: upward messages of all nodes.
            leaves: leaves whose messages are wanted.

        Returns:
            Node -> (batch, rows) coefficients of its message, for ``leaves`` and the nodes above them.
        """
        operators: Any = self._solved_operators()
        wanted: set[int] = set()
        for node in leaves:
            while node > 0:
                wanted.add(node)
                node = self.tree.parent[node]
        messages: dict[int, Tensor] = {}
        with _flushed_denormals():
            for node in [0, *(n for n in self.tree.inner if n in wanted)]:
                children = self.tree.children[node]
                above = operators[str(node)].downward(messages[node]) if node else torch.ones_like(up[children[0]])
                for child in wanted.intersection(children):
                    message = functools.reduce(torch.mul, [above, *(up[c] for c in children if c != child)])
                    messages[child] = self._normalised(message)[0]
        return messages

    def _normalised(self, message: Tensor) -> tuple[Tensor, Tensor]:
        """A message, modified in place, with a largest entry of 1, clipped if ``positive``; and the (batch,) log of its scale."""
        return rescale_(message.clamp_(min=0) if self.settings.positive else message)

    def _check_charted(self, names: Sequence[str]) -> None:
        for v in names:
            if v in self.chart.moved:
                raise QueryError(
                    f"Query of '{v}': it is compared by increments, which have no density of their own. Leave it out of sequences=."
                )

    def _answers(self, names: Sequence[str], evidence: Evidence, at: Any = None) -> dict[str, Any]:
        """Posteriors of variables for checked evidence; with ``at`` the density of a continuous variable at these points."""
        self._check_charted(names)
        comparison = self._comparison(evidence)
        up, _ = self._upward(comparison)
        down = self._downward(up, [self.tree.leaf_of[v] for v in names])
        result: dict[str, Any] = {}
        for v in names:
            weights, group = down[self.tree.leaf_of[v]], self.tree.leaf_observables[self.tree.leaf_of[v]]
            if len(group) > 1:
                weights = weights * comparison.leaf_values(group, skip=v)[0]
            if v not in self._continuous:
                result[v] = self._state_probabilities(v, weights, evidence)
            else:
                density = self._density(v, weights)
                result[v] = density if at is None else density.prob(read_points(at))
        return result

    def _state_probabilities(self, name: str, weights: Tensor, evidence: Evidence) -> Tensor:
        """(batch, states) posterior of a discrete variable; uniform if no training row has a positive weight.

        Args:
            name: of the variable.
            weights: (batch, rows) of the training rows, without the variable's own evidence.
            evidence: which may concern the variable itself.
        """
        values, states = self.examples[:, self.names.index(name)].long(), self.graph.num_states(name)
        estimate = weights @ nn.functional.one_hot(values, states).to(weights)
        if name in evidence.soft:
            estimate = estimate * evidence.soft[name].to(estimate)
        clipped = estimate.clamp(min=0)
        total = clipped.sum(dim=1, keepdim=True)
        result = torch.where(total > 0, clipped / total.clamp(min=1e-300), torch.full_like(clipped, 1 / states))
        if name in evidence.hard:
            result = one_hot_where_observed(evidence.hard[name], result)
        return result

    def _density(self, name: str, weights: Tensor) -> Density:
        """Posterior of a continuous variable from (batch, rows) weights of the training rows."""
        i, weights = self.names.index(name), weights.double()
        values, (low, high) = self.examples[:, i], self.bounds[i].tolist()
        points = torch.linspace(low, high, GRID, dtype=torch.float64, device=weights.device)
        total = weights.sum(dim=1)
        safe = torch.where(total > 0, total, torch.ones_like(total))
        centre = values.mean()  # squares of values far from 0 would cancel in the variance
        first, second = weights @ (values - centre) / safe, weights @ (values - centre).square() / safe
        plain = grid_density(points, weights @ self.kernel.gram(values, points, float(self.evidence_widths[i])))
        usable = (total > 0) & (first + centre >= low) & (first + centre <= high)
        mean = torch.where(usable, first + centre, plain.mean)
        spread = second - first.square()
        variance = torch.where(usable & (spread > 0), spread, plain.variance)
        return Density(points, plain.values, mean, variance)

    def diagnostics(self) -> pd.DataFrame:
        """One row per separator: its core group, its instrument, and the degrees of freedom of its operator.

        The degrees of freedom are the trace of the operator's matrix: near 1 if the instrument predicts only a constant, and
        at most the number of training rows. A separator above a single leaf has no operator.
        """
        self.require_fitted()
        operators = dict(self._solved_operators().items())
        rows = []
        for plan in self.plan.separators:
            operator: Any = operators.get(str(plan.node))
            rows.append(
                {
                    "separator": self.tree.separator_name(plan.node),
                    "core": plan.core,
                    "instrument": plan.instrument,
                    "degrees of freedom": float("nan") if operator is None else operator.trace(),
                }
            )
        return pd.DataFrame(rows)

    # -- files ---------------------------------------------------------------------------------------------------

    def _answering(self) -> dict[str, Tensor]:
        """name -> tensor on which answers depend, which must be finite; training rows are already completed."""
        buffers = {name: getattr(self, name) for name in ("examples", "widths", "evidence_widths", "bounds")}
        return {**buffers, **{f"operators.{name}": t for name, t in self.operators.named_buffers()}}

    def save(self, path: str | os.PathLike[str], operators: bool | None = None) -> None:
        """Write graph, settings, training rows and operators to one file.

        Args:
            path: of the file; an existing file is replaced only once the new one is complete.
            operators: whether the operators are written. Otherwise the file holds little more than the training rows, and the
                loaded model solves for the operators before its first answer: bit for bit the same with the same processor,
                libraries and number of threads, else up to the rounding of ``dtype``. By default exact operators are written,
                which take rows³ steps each to solve for, and those of ``landmarks`` are not, which are solved for quickly.

        Raises:
            CheckpointError: a kernel class defined by the user, NaN or infinity in parameters, or a file that cannot be written.
        """
        self._write(path, SaveOptions(operators=operators))

    def pack(self, name: object, options: SaveOptions) -> dict[str, Any]:
        """Graph, settings, training rows and, depending on ``options``, operators."""
        self.require_fitted()
        written = self.settings.landmarks is None if options.operators is None else options.operators
        named: Any = self._solved_operators().items() if written else ()
        require_finite(self._answering(), name, saving=True)
        return {
            "graph": self.graph.to_dict(),
            "settings": self.settings.to_dict(),
            "kernel": self.kernel.to_dict(),
            "specification": self.plan.to_list(),
            "labels": checked_labels(self.labels, self.graph.variables, name),
            "missing": self.missing,
            "examples": self.examples,
            "scales": [self.widths, self.evidence_widths, self.bounds],
            "operators": {node: [g.left, g.right] for node, g in named} if written else None,
        }

    @classmethod
    def unpack(cls, content: Mapping[str, Any], name: object) -> KernelPBP:
        """The model; operators missing in the file are solved for before the first answer."""
        model = cls.unfitted(content)
        rows, (widths, evidence_widths, bounds) = content["examples"], content["scales"]
        saved, count = content["operators"], len(model.names)
        if (rows.shape[1:], bounds.shape) != ((count,), (count, 2)) or {widths.shape, evidence_widths.shape} != {
            (count,)
        }:
            raise CheckpointError(
                f"'{name}': {tuple(rows.shape)} training values, their bandwidths or ranges do not fit its {count} variables."
            )
        require_finite({"examples": rows}, name)
        require_none(model._content_fault(rows, saved), name)
        operators = nn.ModuleDict({node: GramOperator(*parts) for node, parts in (saved or {}).items()})
        model._keep(rows, widths, evidence_widths, bounds, operators)
        require_finite(model._answering(), name)
        model.labels = checked_labels(content["labels"], model.graph.variables, name)
        model.missing = dict(content["missing"])
        return model

    def _content_fault(self, rows: Tensor, operators: Mapping[str, Sequence[Any]] | None) -> str | None:
        """The first training value that is no state, or the first operator that is missing or not between training rows."""
        for (v, states), column in zip(self.evidence_domains().items(), rows.T, strict=True):
            if isinstance(states, int) and bool(((column != column.round()) | (column < 0) | (column >= states)).any()):
                return f"examples of '{v}': expected states from 0 to {states - 1}"
        expected = {str(p.node) for p in self._inner_plans()}
        if operators is not None and set(operators) != expected:
            return f"expected operators of nodes {sorted(expected)}, got {sorted(operators)}"
        for node, (left, right) in (operators or {}).items():
            inner = len(rows) if right is None else len(right)
            if left.shape != (len(rows), inner) or (right is not None and right.shape != (inner, len(rows))):
                return f"operators.{node}: expected values at {len(rows)} training rows, got shape {tuple(left.shape)}"
        return None

    @classmethod
    def unfitted(cls, content: Mapping[str, Any]) -> KernelPBP:
        """An unfitted model with the graph and the settings of a file."""
        graph = LatentGraph.from_dict(content["graph"])
        tree = build_junction_tree(graph, content["settings"]["root"])
        return cls(
            graph,
            kernel=Kernel.from_dict(content["kernel"]),
            plan=Plan.from_list(tree, content["specification"]),
            **content["settings"],
        )


@contextmanager
def _flushed_denormals() -> Iterator[None]:
    """Context in which denormal numbers are 0: they are frequent in kernels, and up to 100 times slower."""
    before = float(torch.full((1,), torch.finfo(torch.float64).tiny, dtype=torch.float64, device="cpu").mul(0.5)) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _joined(parts: list[Any]) -> Any:
    """The concatenation of answers for parts of a batch."""
    if not isinstance(parts[0], Density):
        return torch.cat(parts)
    values, mean, variance = (torch.cat([getattr(p, name) for p in parts]) for name in ("values", "mean", "variance"))
    return Density(parts[0].points, values, mean, variance)


def _checked_plan(tree: JunctionTree, plan: Plan) -> Plan:
    """A plan of another model for the same tree, with core groups below their separators and instruments beside them."""
    nodes = [s.node for s in plan.separators]
    if nodes != list(range(1, len(tree))):
        raise StructureError(
            f"plan: expected plans for the {len(tree) - 1} separators of this graph's tree, got nodes {nodes}."
        )
    for separator in plan.separators:
        node, below, beside = separator.node, set(separator.core), set(separator.outside)
        if not below or not below <= tree.inside[node] or not beside <= tree.outside(node):
            raise StructureError(
                f"plan, separator {tree.separator_name(node)}: expected a core group below it and an instrument "
                f"beside it, got {sorted(below)} and {sorted(beside)}."
            )
    return Plan(tree, plan.separators)


def _nearest_leaves(tree: JunctionTree, core: int, instrument: int) -> Plan:
    """Core groups and instruments of the nearest leaves inside and outside each separator."""
    separators = []
    widest = max(len(tree.leaf_observables[leaf]) for leaf in tree.leaves)
    for node in range(1, len(tree)):
        inside = _inside_leaves(tree, node, core)
        outside = dict.fromkeys(tree.leaf_of[v] for _, v in tree.distances(node, instrument * widest))
        nearest: list[int] = list(outside)[:instrument]
        group = tuple(v for leaf in inside for v in tree.leaf_observables[leaf])
        instruments = (tuple(v for leaf in nearest for v in tree.leaf_observables[leaf]),)
        separators.append(SeparatorPlan(node, group, instruments, 0, 0, 0))
    return Plan(tree, tuple(separators))


def _inside_leaves(tree: JunctionTree, node: int, count: int) -> list[int]:
    ring, leaves = [node], list[int]()
    while ring and len(leaves) < count:
        leaves += [n for n in ring if tree.leaf_observables[n]]
        ring = [c for n in ring for c in tree.children[n]]
    return leaves[:count]


def _solve_first(model: KernelPBP, prefix: str, keep_vars: bool) -> None:
    """Hook before a state dict is made: solve for operators that the model's file did not hold."""
    model._solved_operators()
