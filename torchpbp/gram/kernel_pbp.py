"""KernelPBP: predictive belief propagation with the kernel trick, for continuous and mixed variables [PBP §5].

Messages are functions, kept by their values at the training rows; one matrix per separator takes the product of the
messages below to the message above. No features are chosen and no outer products formed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from torchpbp.errors import DataError, NotFittedError, QueryError, ShapeError, StructureError
from torchpbp.features.completion import complete_rows
from torchpbp.features.kernels import RBF, Kernel, median_bandwidth
from torchpbp.frames import Frames
from torchpbp.gram.charts import Chart
from torchpbp.gram.comparison import Comparison, TrainingGram
from torchpbp.gram.operators import GramOperator, full_operator, landmark_features, thin_operator
from torchpbp.gram.structure import check_specification, nearest_leaves
from torchpbp.graph.junction_tree import JunctionTree, build_junction_tree
from torchpbp.graph.latent_graph import Continuous, Domain, LatentGraph
from torchpbp.inference.density import GRID, Density, grid_density
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.inputs.evidence import Evidence, EvidenceLike, read_evidence
from torchpbp.inputs.gaps import observed
from torchpbp.model.answers import check_query
from torchpbp.specification.specification import SeparatorPlan, Specification

BATCH_ELEMENTS = 1 << 22
"""Entries of one (rows of evidence, training rows) matrix handled at once."""


class KernelPBP(Frames, nn.Module):
    """Predictive belief propagation on Gram matrices.

    Args:
        graph: the structure. Latents need no number of states: nothing here depends on it.
        bandwidth: of the kernels of core groups and instruments, in units of the data; a number, one per continuous
            variable, or "median" for half the median distance between training values.
        evidence_bandwidth: of the kernel by which evidence is compared with training rows; as ``bandwidth`` by default.
        kernel: for continuous variables. Discrete ones are compared for equality.
        ridge: penalties (λ, λ₂) of stage 1 and stage 2, added to sums over rows.
        core_leaves: leaves in a core group, nearest to the separator first.
        instrument_leaves: leaves in an instrument, nearest first; their kernels are multiplied.
        specification: core groups and instruments to use instead; an instrument's groups are added up.
        landmarks: None for exact Gram matrices; a number of training rows for a low-rank approximation.
        sequences: groups of variables that are compared by increments (see :class:`~torchpbp.gram.charts.Chart`).
        positive: whether messages are clipped at 0, as functions that stand for probabilities should be. Clipping steadies
            scores a great deal with few rows (pen digits), but biases them, so that errors stop falling with more rows:
            pass False where posteriors must be consistent.
        root: variables the root clique must contain.
        fill: how missing training values are completed from rows like theirs (see :mod:`torchpbp.features.completion`): "draw"
            keeps the spread of the data; "mean" is closer to each single value, which suits classifiers.
        dtype: of messages and operators; solves are always done in float64.
        max_bytes: memory that the operators may take; more is refused before anything is allocated.
        seed: of the choice of landmarks, and of draws for missing training values.

    Attributes:
        missing: share of missing values in each column of the training data.
    """

    examples: Tensor
    widths: Tensor
    evidence_widths: Tensor
    bounds: Tensor

    def __init__(
        self,
        graph: LatentGraph,
        *,
        bandwidth: float | Mapping[str, float] | str = "median",
        evidence_bandwidth: float | Mapping[str, float] | str | None = None,
        kernel: Kernel | None = None,
        ridge: tuple[float, float] = (0.1, 0.1),
        core_leaves: int = 1,
        instrument_leaves: int = 2,
        specification: Specification | None = None,
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
        for name, value in (("core_leaves", core_leaves), ("instrument_leaves", instrument_leaves)):
            if value < 1:
                raise StructureError(f"{name}: expected at least 1, got {value}.")
        if landmarks is not None and landmarks < 1:
            raise StructureError(f"landmarks: expected None or at least 1, got {landmarks}.")
        if len(ridge) != 2 or not all(r > 0 for r in ridge):
            raise StructureError(f"ridge: expected two positive numbers, got {ridge!r}.")
        if fill not in ("draw", "mean"):
            raise StructureError(f"fill: expected 'draw' or 'mean', got {fill!r}.")
        self.fill = fill
        self.missing: dict[str, float] = {}
        self.graph = graph
        self.names: tuple[str, ...] = graph.observed
        self.kernel = kernel or RBF()
        self.bandwidth = _checked_bandwidth(bandwidth, graph)
        self.evidence_bandwidth = (
            self.bandwidth if evidence_bandwidth is None else _checked_bandwidth(evidence_bandwidth, graph)
        )
        self.ridge = (float(ridge[0]), float(ridge[1]))
        self.landmarks = landmarks
        self.positive = positive
        self.dtype, self.max_bytes, self.seed = dtype, max_bytes, seed
        self.chart = Chart(self.names, sequences)
        for v in self.chart.moved:
            if not isinstance(graph.variables[v], Continuous):
                raise StructureError(f"sequences: '{v}' is discrete; only continuous variables have increments.")
        self.tree: JunctionTree = build_junction_tree(graph, root)
        if specification is not None:
            check_specification(self.tree, specification)
        self.specification = specification or nearest_leaves(self.tree, core_leaves, instrument_leaves)
        self.labels: dict[str, tuple[Any, ...]] = {}
        self.fitted = False
        self.operators = nn.ModuleDict()

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(self, data: DataLike) -> KernelPBP:
        """Learn from data, which is held in memory.

        Values may be missing (NaN, None, pandas NA, masked entries, -1 for discrete variables): they are completed from rows
        like theirs first. Rows without any value are left out, with a warning.

        Raises:
            DataError: bad data, a column without any value, or Gram matrices larger than ``max_bytes``; nothing is changed then.
        """
        reader = ColumnReader(self._domains(), missing=True)
        parts = list(reader.tables(data))
        columns = [torch.cat([p[v] for p in parts]) for v in self.names]
        rows = torch.stack([c.double().masked_fill(~observed(c), torch.nan) for c in columns], dim=1)
        reader.gaps.check()
        rows = rows[~rows.isnan().all(dim=1)] if reader.gaps.empty else rows
        self._check_memory(len(rows))
        if len(rows) < 2:
            raise DataError(f"KernelPBP needs at least 2 rows, got {len(rows)}.")
        if reader.gaps.any:
            rows = self._completed(rows)
        coordinates = self.chart.coordinates(rows)
        widths = self._widths(self.bandwidth, coordinates)
        operators = nn.ModuleDict()
        inner = [p for p in self.specification.plans if not self.tree.leaf_observables[p.node]]
        gram = TrainingGram(self._domains(), self.kernel, coordinates, widths)
        for plan in tqdm(inner, desc="solving", unit="separator", delay=2, leave=False):
            operators[str(plan.node)] = self._operator(plan, gram)
        self.operators = operators
        evidence_widths = self._widths(self.evidence_bandwidth, coordinates)
        for name, value in (
            ("examples", rows),
            ("widths", widths),
            ("evidence_widths", evidence_widths),
            ("bounds", self._bounds(rows, evidence_widths)),
        ):
            self.register_buffer(name, value)
        self.labels = reader.labels
        self.missing = reader.gaps.shares
        self.fitted = True
        return self

    def extra_repr(self) -> str:
        if not any(self.missing.values()):
            return ""
        return f"missing in training: {sum(self.missing.values()) / len(self.missing):.1%} of the values"

    def _completed(self, rows: Tensor) -> Tensor:
        """Rows without gaps; likeness is judged by the evidence bandwidth, variable by variable."""
        widths = self._widths(self.evidence_bandwidth, rows)
        domains = list(self._domains().values())
        return complete_rows(rows, domains, widths, draw=self.fill == "draw", seed=self.seed)

    def _operator(self, plan: SeparatorPlan, gram: TrainingGram) -> GramOperator:
        if self.landmarks is None or self.landmarks >= len(gram.rows):
            everything = slice(None)
            core = gram.block([plan.core], everything)
            return GramOperator(
                full_operator(core, gram.block(plan.instrument, everything), *self.ridge).to(self.dtype)
            )
        generator = torch.Generator().manual_seed(self.seed + plan.node)
        chosen = torch.randperm(len(gram.rows), generator=generator)[: self.landmarks]
        core, instrument = gram.block([plan.core], chosen), gram.block(plan.instrument, chosen)
        p, h = landmark_features(core, core[chosen]), landmark_features(instrument, instrument[chosen])
        left, right = thin_operator(p, h, *self.ridge)
        return GramOperator(left.to(self.dtype), right.to(self.dtype))

    def _check_memory(self, rows: int) -> None:
        inner = sum(1 for p in self.specification.plans if not self.tree.leaf_observables[p.node])
        item = torch.empty(0, dtype=self.dtype).element_size()
        columns = rows if self.landmarks is None else 2 * min(self.landmarks, rows)
        needed = inner * rows * columns * item + 8 * 4 * rows * columns
        if needed > self.max_bytes:
            raise DataError(
                f"{inner} separators over {rows} rows would take {needed / 2**30:.1f} GiB, more than max_bytes="
                f"{self.max_bytes / 2**30:.1f} GiB. Pass landmarks=<number> for a low-rank approximation, use "
                "PBP(features=Nystroem(...)), or fewer rows."
            )

    def _widths(self, bandwidth: float | Mapping[str, float] | str, coordinates: Tensor) -> Tensor:
        """(variables,) bandwidths for (rows, variables) coordinates, which may be NaN; 0 for discrete variables."""
        result = torch.zeros(len(self.names), dtype=torch.float64)
        for i, v in enumerate(self.names):
            if not isinstance(self.graph.variables[v], Continuous):
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

    def _bounds(self, rows: Tensor, widths: Tensor) -> Tensor:
        """(variables, 2) ranges of densities: declared, or three evidence bandwidths around the data."""
        low, high = rows.amin(dim=0), rows.amax(dim=0)
        margin = 3 * widths
        result = torch.stack([low - margin, high + margin], dim=1)
        for i, v in enumerate(self.names):
            domain = self.graph.variables[v]
            if isinstance(domain, Continuous):
                result[i, 0] = result[i, 0] if domain.low is None else domain.low
                result[i, 1] = result[i, 1] if domain.high is None else domain.high
        return result

    # -- queries -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def log_evidence(self, evidence: EvidenceLike = None) -> Tensor:
        """(batch,) log P(evidence); for continuous evidence the log of a kernel-smoothed density.

        An estimate that is not positive is replaced by the smallest positive number of its scale, so the result is finite.
        """
        checked = self._read(evidence)
        parts = []
        for rows in self._chunks(checked):
            up = self._upward(rows)
            value = product([up.messages[c] for c in self.tree.children[0]]).mean(dim=1)
            parts.append(value.clamp(min=torch.finfo(value.dtype).tiny).log().double() + up.log_scale)
        return torch.cat(parts)

    @torch.no_grad()
    def posterior(self, query: str, evidence: EvidenceLike = None, *, at: Any = None) -> Any:
        """P(query | evidence).

        Returns:
            (batch, states) for a discrete variable. For a continuous one the (batch, n) density at the points ``at``, or
            without them a :class:`~torchpbp.inference.density.Density`.
        """
        checked = self._read(evidence)
        if not isinstance(query, str):
            raise QueryError(f"KernelPBP answers about one variable at a time, got {query!r}.")
        check_query(self.graph, (query,), checked)
        domain = self.graph.variables[query]
        if at is not None and not isinstance(domain, Continuous):
            raise QueryError(f"Query of '{query}': at= is for continuous variables, and this one has states.")
        parts = [self._answer(query, self._weights(rows, [query])[query], rows, at) for rows in self._chunks(checked)]
        return _joined(parts)

    @torch.no_grad()
    def posteriors(self, evidence: EvidenceLike = None) -> dict[str, Any]:
        """Posteriors of every observable that is not observed in all rows, from one pass up and one down."""
        checked = self._read(evidence)
        wanted = [v for v in self.names if not checked.observed_everywhere(v)]
        parts: dict[str, list[Any]] = {v: [] for v in wanted}
        for rows in self._chunks(checked):
            weights = self._weights(rows, wanted)
            for v in wanted:
                parts[v].append(self._answer(v, weights[v], rows, None))
        return {v: _joined(p) for v, p in parts.items()}

    forward = posteriors

    @torch.no_grad()
    def sample(self, n: int, evidence: EvidenceLike = None, seed: int | None = None) -> dict[str, Tensor]:
        """Draw all observables given evidence: leaf by leaf, each from a training row blurred by the evidence kernel.

        Draws stay within each variable's range, and follow its posterior density there.

        Returns:
            name -> (n,) without evidence, (n, batch) with.
        """
        if n < 0:
            raise ShapeError(f"n: expected a non-negative number of draws, got {n}.")
        if not isinstance(self.kernel, RBF):
            raise QueryError("Sampling needs the RBF kernel: others have no noise to draw from here.")
        checked = self._read(evidence)
        self._check_charted([v for v in self.names if not checked.observed_everywhere(v)])
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, (1,))) if seed is None else seed)
        wide = checked.repeat_interleave(n)
        current = Evidence(wide.batch, dict(wide.hard), dict(wide.soft), dict(wide.real))
        for leaf in self.tree.leaves:
            group = self.tree.leaf_observables[leaf]
            chosen = torch.cat([self._draw_rows(rows, leaf, generator) for rows in self._chunks(current)])
            for v in group:
                i = self.names.index(v)
                drawn = self.examples[chosen, i]
                if isinstance(self.graph.variables[v], Continuous):
                    low, high = self._share_below(i)[:, chosen]
                    level = low + (high - low) * torch.rand(len(drawn), generator=generator, dtype=torch.float64)
                    drawn = drawn + self.evidence_widths[i] * torch.special.ndtri(level)
                    drawn = drawn.clamp(*self.bounds[i].tolist())  # rounding
                    known = current.real.get(v)
                    current.real[v] = drawn if known is None else torch.where(known.isnan(), drawn, known)
                else:
                    states = current.hard.get(v)
                    current.hard[v] = drawn.long() if states is None else torch.where(states < 0, drawn.long(), states)
                    current.soft.pop(v, None)
        values = {v: current.real[v] if v in current.real else current.hard[v] for v in self.names}
        if evidence is None:
            return values
        return {v: x.reshape(checked.batch, n).T for v, x in values.items()}

    # -- inner workings ------------------------------------------------------------------------------------------

    def _read(self, evidence: EvidenceLike) -> Evidence:
        if not self.fitted:
            raise NotFittedError("This KernelPBP model is not fitted yet. Call fit(data).")
        return read_evidence(
            evidence, self._domains(), latent=self.graph.latent, labels=self.labels, device=self.examples.device
        )

    def _chunks(self, evidence: Evidence) -> Iterator[Evidence]:
        step = max(1, BATCH_ELEMENTS // len(self.examples))
        for start in range(0, max(1, evidence.batch), step):
            yield evidence.rows(slice(start, start + step))

    def _upward(self, evidence: Evidence) -> _Upward:
        """Values of every upward message at the training rows."""
        leaf_values, log_scale = self._leaf_values(evidence)
        messages: list[Tensor] = [torch.empty(0)] * len(self.tree)
        for leaf, values in leaf_values.items():
            messages[leaf], logs = _rescaled(values)
            log_scale += logs
        for node in reversed(self.tree.inner):
            operator = self.operators[str(node)]
            assert isinstance(operator, GramOperator)
            message = operator.upward(product([messages[c] for c in self.tree.children[node]]))
            messages[node], logs = _rescaled(message.clamp(min=0) if self.positive else message)
            log_scale += logs
        return _Upward(messages, log_scale)

    def _leaf_values(self, evidence: Evidence, skip: str | None = None) -> tuple[dict[int, Tensor], Tensor]:
        leaves = {leaf: self.tree.leaf_observables[leaf] for leaf in self.tree.leaves}
        return self._comparison().leaf_values(leaves, evidence, skip)

    def _domains(self) -> dict[str, Domain]:
        return {v: self.graph.variables[v] for v in self.names}

    def _comparison(self) -> Comparison:
        return Comparison(self._domains(), self.chart, self.kernel, self.evidence_widths, self.examples, self.dtype)

    def _downward(self, up: _Upward, leaves: set[int]) -> dict[int, Tensor]:
        """Coefficients over the training rows that arrive at the leaves wanted."""
        wanted: set[int] = set()
        for node in leaves:
            while node > 0:
                wanted.add(node)
                node = self.tree.parent[node]
        messages: dict[int, Tensor] = {}
        for node in [0, *self.tree.inner]:
            if node and node not in wanted:
                continue
            if node == 0:
                above = torch.ones_like(up.messages[self.tree.children[0][0]])
            else:
                operator = self.operators[str(node)]
                assert isinstance(operator, GramOperator)
                above = operator.downward(messages[node])
            for child in self.tree.children[node]:
                if child in wanted:
                    others = [up.messages[c] for c in self.tree.children[node] if c != child]
                    message = above * product(others) if others else above
                    messages[child] = _rescaled(message.clamp(min=0) if self.positive else message)[0]
        return messages

    def _weights(self, evidence: Evidence, names: Sequence[str]) -> dict[str, Tensor]:
        """(batch, rows) weights of the training rows for each variable, its own evidence left out."""
        self._check_charted(names)
        up = self._upward(evidence)
        leaves = {self.tree.leaf_of[v] for v in names}
        down = self._downward(up, leaves)
        result = {}
        for v in names:
            leaf = self.tree.leaf_of[v]
            weights = down[leaf]
            if len(self.tree.leaf_observables[leaf]) > 1:
                weights = weights * self._leaf_values(evidence, skip=v)[0][leaf]
            result[v] = weights
        return result

    def _check_charted(self, names: Sequence[str]) -> None:
        for v in names:
            if v in self.chart.moved:
                raise QueryError(
                    f"Query of '{v}': it is compared by increments, which have no density of their own. Leave it out of sequences=."
                )

    def _answer(self, name: str, weights: Tensor, evidence: Evidence, at: Any) -> Any:
        i = self.names.index(name)
        values = self.examples[:, i]
        domain = self.graph.variables[name]
        if isinstance(domain, int):
            onehot = torch.nn.functional.one_hot(values.long(), domain).to(weights)
            estimate = weights @ onehot
            if name in evidence.soft:
                estimate = estimate * evidence.soft[name].to(estimate)
            clipped = estimate.clamp(min=0)
            total = clipped.sum(dim=1, keepdim=True)
            result = torch.where(total > 0, clipped / total.clamp(min=1e-300), torch.full_like(clipped, 1 / domain))
            states = evidence.hard.get(name)
            if states is not None:
                known = torch.nn.functional.one_hot(states.clamp(min=0), domain).to(result)
                result = torch.where((states >= 0).unsqueeze(1), known, result)
            return result
        weights = weights.double()
        low, high = self.bounds[i].tolist()
        points = torch.linspace(low, high, GRID, dtype=torch.float64, device=weights.device)
        total = weights.sum(dim=1)
        safe = torch.where(total > 0, total, torch.ones_like(total))
        centre = values.mean()  # squares of values far from 0 would drown their variance
        first, second = weights @ (values - centre) / safe, weights @ (values - centre).square() / safe
        plain = grid_density(points, weights @ self.kernel.gram(values, points, float(self.evidence_widths[i])))
        usable = (total > 0) & (first + centre >= low) & (first + centre <= high)
        mean = torch.where(usable, first + centre, plain.mean)
        spread = second - first.square()
        variance = torch.where(usable & (spread > 0), spread, plain.variance)
        density = Density(points, plain.values, mean, variance)
        if at is None:
            return density
        where = torch.as_tensor(at, dtype=torch.float64)
        if where.ndim != 1:
            raise ShapeError(f"at: expected (n,) points, got shape {tuple(where.shape)}.")
        if not bool(where.isfinite().all()):
            raise QueryError("at: expected finite points, got NaN or infinity.")
        return density.prob(where)

    def _draw_rows(self, evidence: Evidence, leaf: int, generator: torch.Generator) -> Tensor:
        """(batch,) training rows drawn by the weights at a leaf, evidence on the leaf included."""
        up = self._upward(evidence)
        weights = (self._downward(up, {leaf})[leaf] * up.messages[leaf]).clamp(min=0).double()
        table = self._comparison().table(evidence)
        for v in self.tree.leaf_observables[leaf]:
            i = self.names.index(v)
            if isinstance(self.graph.variables[v], Continuous):  # the share of each row's blur that lies in the range
                low, high = self._share_below(i)
                weights = torch.where(table[:, i].isnan().unsqueeze(1), weights * (high - low), weights)
        weights = weights + (weights.sum(dim=1, keepdim=True) <= 0)
        return torch.multinomial(weights, 1, generator=generator).squeeze(1)

    def _share_below(self, column: int) -> Tensor:
        """(2, rows) share of the Gaussian blur around each training value that lies below either end of the range."""
        ends = self.bounds[column].unsqueeze(1)
        return torch.special.ndtr((ends - self.examples[:, column]) / self.evidence_widths[column])


@dataclass(frozen=True)
class _Upward:
    """Values of upward messages, and the (batch,) log of all that was taken out of them."""

    messages: list[Tensor]
    log_scale: Tensor


def product(parts: Sequence[Tensor]) -> Tensor:
    """Elementwise product."""
    result = parts[0]
    for part in parts[1:]:
        result = result * part
    return result


def _rescaled(message: Tensor) -> tuple[Tensor, Tensor]:
    """Divide each row by its largest absolute value; also return the logs, as float64."""
    scale = message.abs().amax(dim=1)
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return message / safe.unsqueeze(1), safe.double().log()


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], Density):
        joined: Callable[[str], Tensor] = lambda name: torch.cat([getattr(p, name) for p in parts])  # noqa: E731
        return Density(parts[0].points, joined("values"), joined("mean"), joined("variance"))
    return torch.cat(parts)


def _checked_bandwidth(
    bandwidth: float | Mapping[str, float] | str, graph: LatentGraph
) -> float | Mapping[str, float] | str:
    continuous = [v for v in graph.observed if isinstance(graph.variables[v], Continuous)]
    if isinstance(bandwidth, str):
        if bandwidth != "median":
            raise StructureError(f"bandwidth: expected positive numbers or 'median', got {bandwidth!r}.")
    elif isinstance(bandwidth, Mapping):
        missing = [v for v in continuous if v not in bandwidth]
        if missing or not all(float(b) > 0 for b in bandwidth.values()):
            raise StructureError(
                f"bandwidth: expected a positive number for each of {continuous}, got {dict(bandwidth)}."
            )
    elif not bandwidth > 0:
        raise StructureError(f"bandwidth: expected a positive number, got {bandwidth}.")
    return bandwidth
