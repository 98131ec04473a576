"""KernelPBP: predictive belief propagation with the kernel trick, for continuous and mixed variables [PBP §5].

Messages are functions, kept by their values at the training rows; one matrix per separator takes the product of the
messages below to the message above. No features are chosen and no outer products formed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.arguments import check_counts, check_seed, is_number, is_series, whole_number
from torchpbp.errors import CheckpointError, DataError, NotFittedError, StructureError
from torchpbp.features.completion import complete_rows
from torchpbp.features.kernels import RBF, Kernel
from torchpbp.files.checkpoint import (
    checked_labels,
    read_model,
    require_finite,
    require_none,
    whole_model,
    write_checkpoint,
)
from torchpbp.files.tensors import with_own_storage
from torchpbp.graph.junction_tree import build_junction_tree, checked_root
from torchpbp.graph.latent_graph import Continuous, Domain, LatentGraph, require_graph
from torchpbp.inference.density import warn_of_coarse_grids
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.inputs.gaps import observed
from torchpbp.models.kernel.answers import GramAnswers
from torchpbp.models.kernel.charts import Chart
from torchpbp.models.kernel.comparison import TrainingGram
from torchpbp.models.kernel.learning import (
    Bandwidth,
    OperatorSettings,
    bandwidths,
    check_memory,
    check_spans,
    checked_bandwidth,
    learn_operators,
    ranges,
)
from torchpbp.models.kernel.operators import GramOperator
from torchpbp.models.kernel.structure import check_specification, nearest_leaves
from torchpbp.moments.table_layout import LARGEST_TABLE
from torchpbp.planning.plan import SeparatorPlan, Specification


class KernelPBP(GramAnswers):
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
        sequences: groups of variables that are compared by increments (see :class:`~torchpbp.models.kernel.charts.Chart`).
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
        require_graph(graph, "KernelPBP")
        check_counts(core_leaves=core_leaves, instrument_leaves=instrument_leaves, max_bytes=max_bytes)
        seed = check_seed(seed)
        if landmarks is not None and whole_number("landmarks", landmarks) < 1:
            raise StructureError(f"landmarks: expected None or at least 1, got {landmarks}.")
        pair = tuple(ridge) if is_series(ridge) else ()
        if len(pair) != 2 or not all(is_number(r) and 0 < r < math.inf for r in pair):
            raise StructureError(f"ridge: expected two positive numbers, got {ridge!r}.")
        if not isinstance(kernel, Kernel | None):
            raise StructureError(f"kernel: expected RBF(), Laplace(), Matern(…) or None, got {kernel!r}.")
        if fill not in ("draw", "mean"):
            raise StructureError(f"fill: expected 'draw' or 'mean', got {fill!r}.")
        many = [v for v in graph.observed if isinstance(n := graph.variables[v], int) and n > LARGEST_TABLE]
        if many:  # each answer has an entry for each of them
            raise StructureError(
                f"KernelPBP: expected at most {LARGEST_TABLE:,} states, {many[:8]} have more. Declare them Continuous()."
            )
        self.fill = fill
        self.missing: dict[str, float] = {}
        self.graph = graph
        self.names = graph.observed
        self.kernel = kernel or RBF()
        self.bandwidth = checked_bandwidth(bandwidth, graph)
        self.evidence_bandwidth = (
            self.bandwidth if evidence_bandwidth is None else checked_bandwidth(evidence_bandwidth, graph)
        )
        self.ridge = (float(pair[0]), float(pair[1]))
        self.landmarks = landmarks
        self.positive = positive
        self.dtype, self.max_bytes, self.seed = dtype, max_bytes, seed
        self.chart = Chart(self.names, sequences)
        for v in self.chart.moved:
            if not isinstance(graph.variables[v], Continuous):
                raise StructureError(f"sequences: '{v}' is discrete; only continuous variables have increments.")
        self.root_variables = checked_root(root)
        self.tree = build_junction_tree(graph, self.root_variables)
        if specification is not None:
            check_specification(self.tree, specification)
        self.specification = specification or nearest_leaves(self.tree, core_leaves, instrument_leaves)
        self.labels = {}
        self.fitted = False
        self.operators = nn.ModuleDict()
        self.register_state_dict_pre_hook(_solve_first)  # type: ignore[no-untyped-call]

    def __str__(self) -> str:
        state = f"fitted on {len(self.examples)} rows" if self.fitted else "not fitted"
        gaps = self.extra_repr()
        return f"KernelPBP({self.graph!r}, {state}{gaps and ', '}{gaps})"

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(self, data: DataLike) -> KernelPBP:
        """Learn from data, which is held in memory.

        Values may be missing (NaN, None, pandas NA, masked entries, -1 for discrete variables): they are completed from rows
        like theirs first. Rows without any value are left out, with a warning.

        Raises:
            DataError: bad data, a column without any value or with outliers so many bandwidths from the other values that
                ``dtype`` cannot compare them, or Gram matrices larger than ``max_bytes``; nothing is changed then.
        """
        reader = ColumnReader(self._domains(), missing=True)
        parts = list(reader.tables(data))
        columns = [torch.cat([p[v] for p in parts]) for v in self.names]
        rows = torch.stack([c.double().masked_fill(~observed(c), torch.nan) for c in columns], dim=1)
        reader.gaps.check()
        numbers = (~rows.isnan().all(dim=1)).nonzero().squeeze(1)
        rows = rows[numbers] if reader.gaps.empty else rows
        check_memory(self._operator_settings(), len(self._inner_plans()), len(rows), self.max_bytes)
        if len(rows) < 2:
            raise DataError(f"KernelPBP needs at least 2 rows, got {len(rows)}.")
        if reader.gaps.any:
            rows = self._completed(rows)
        coordinates = self.chart.coordinates(rows)
        widths = bandwidths(self.bandwidth, self._domains(), coordinates)
        evidence_widths = bandwidths(self.evidence_bandwidth, self._domains(), coordinates)
        check_spans(self._domains(), rows, torch.minimum(widths, evidence_widths), self.dtype, numbers)
        operators = self._solved(rows, widths)
        bounds = ranges(self._domains(), rows, evidence_widths)
        with_density = [i for i, v in enumerate(self.names) if evidence_widths[i] > 0 and v not in self.chart.moved]
        warn_of_coarse_grids(
            {self.names[i]: (float(bounds[i].diff()), float(evidence_widths[i])) for i in with_density}
        )
        self._keep(rows, widths, evidence_widths, bounds, operators)
        self.labels = reader.labels
        self.missing = reader.gaps.shares
        return self

    def _solved(self, rows: Tensor, widths: Tensor) -> nn.ModuleDict:
        gram = TrainingGram(self._domains(), self.kernel, self.chart.coordinates(rows), widths)
        return learn_operators(self._inner_plans(), gram, self._operator_settings())

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
        """The operators; those of a model whose file does not hold them are solved for now."""
        if self.fitted and len(self.operators) < len(self._inner_plans()):
            self.operators = self._solved(self.examples.cpu(), self.widths.cpu()).to(self.examples.device)
        return self.operators

    def _inner_plans(self) -> list[SeparatorPlan]:
        """Plans of the separators above more than one leaf; a leaf's message needs no operator."""
        return [p for p in self.specification.plans if not self.tree.leaf_observables[p.node]]

    def _operator_settings(self) -> OperatorSettings:
        return OperatorSettings(self.ridge, self.landmarks, self.dtype, self.seed)

    def extra_repr(self) -> str:
        if not any(self.missing.values()):
            return ""
        return f"missing in training: {sum(self.missing.values()) / len(self.missing):.1%} of the values"

    def _completed(self, rows: Tensor) -> Tensor:
        """Rows without gaps; likeness is judged by the evidence bandwidth, variable by variable."""
        widths = bandwidths(self.evidence_bandwidth, self._domains(), rows)
        domains = list(self._domains().values())
        return complete_rows(rows, domains, widths, draw=self.fill == "draw", seed=self.seed)

    # -- saving --------------------------------------------------------------------------------------------------

    def _answering(self) -> dict[str, Tensor]:
        """The tensors that answers are made of, by name, which must be finite: missing training values are completed first."""
        found = {name: getattr(self, name) for name in ("examples", "widths", "evidence_widths", "bounds")}
        return {**found, **{f"operators.{name}": t for name, t in self.operators.named_buffers()}}

    def save(self, path: str | os.PathLike[str], operators: bool | None = None) -> None:
        """Write graph, settings, training rows and operators to one file.

        Args:
            path: of the file; an existing one is replaced only once the new one is whole.
            operators: whether the operators are written. Without them the file holds little more than the training rows, and
                they are solved for when the loaded model is first asked, from the same rows in the same way: bit for bit
                the same with the same processor, libraries and number of threads, else up to the rounding of ``dtype``.
                Exact ones have rows² entries per separator and take rows³ steps each, so they are written by default;
                those of ``landmarks`` are large for what they hold and quickly solved for, so they are not.

        Raises:
            CheckpointError: a kernel of one's own, NaN or infinity in what answers are made of, or a file that cannot be
                written.
        """
        if not self.fitted:
            raise NotFittedError("This KernelPBP model is not fitted yet. Call fit(data) before save().")
        written = self.landmarks is None if operators is None else operators
        named: Any = self._solved_operators().items() if written else ()
        require_finite(self._answering(), path, saving=True)
        content = {
            "learner": "KernelPBP",
            "graph": self.graph.to_dict(),
            "settings": {
                "bandwidth": _plain(self.bandwidth),
                "evidence_bandwidth": _plain(self.evidence_bandwidth),
                "ridge": list(self.ridge),
                "landmarks": self.landmarks,
                "sequences": [[self.names[i] for i in sequence] for sequence in self.chart.sequences],
                "positive": bool(self.positive),
                "root": None if self.root_variables is None else list(self.root_variables),
                "fill": self.fill,
                "max_bytes": self.max_bytes,
                "seed": self.seed,
            },
            "kernel": self.kernel.to_dict(),
            "dtype": str(self.dtype).removeprefix("torch."),
            "specification": self.specification.to_list(),
            "labels": {v: list(x) for v, x in checked_labels(self.labels, self.graph.variables, path).items()},
            "missing": self.missing,
            "examples": self.examples,
            "scales": [self.widths, self.evidence_widths, self.bounds],
            "operators": {node: [g.left, g.right] for node, g in named} if written else None,
        }
        write_checkpoint(path, content)

    @classmethod
    @whole_model
    def load(cls, path: str | os.PathLike[str], map_location: torch.device | str = "cpu") -> KernelPBP:
        """Read a model written by :meth:`save`. Only tensors and plain values are read; no code is executed."""
        saved = read_model(path, "KernelPBP", "model learned by KernelPBP")
        model = cls.unfitted(saved)
        rows, (widths, evidence_widths, bounds) = saved["examples"], map(with_own_storage, saved["scales"])
        rows = with_own_storage(rows)
        count = len(model.names)
        if (
            rows.shape[1:] != (count,)
            or bounds.shape != (count, 2)
            or {widths.shape, evidence_widths.shape} != {(count,)}
        ):
            raise CheckpointError(
                f"'{path}': {tuple(rows.shape)} training values, their bandwidths or ranges do not fit its {count} variables."
            )
        require_finite({"examples": rows}, path)
        require_none(_example_fault(rows, model._domains()), path)
        operators = nn.ModuleDict()
        if saved["operators"] is not None:
            expected = {str(p.node) for p in model._inner_plans()}
            if set(saved["operators"]) != expected:
                raise CheckpointError(
                    f"'{path}': expected operators of nodes {sorted(expected)}, got {sorted(saved['operators'])}."
                )
            require_none(_operator_fault(saved["operators"], len(rows)), path)
            operators.update({node: _own_operator(*parts) for node, parts in saved["operators"].items()})
        model._keep(rows, widths, evidence_widths, bounds, operators)
        require_finite(model._answering(), path)
        model.labels = checked_labels(saved["labels"], model.graph.variables, path)
        model.missing = dict(saved["missing"])
        return model.to(map_location)

    @classmethod
    def unfitted(cls, saved: Mapping[str, Any]) -> KernelPBP:
        """A model with the graph and the settings that a file holds, and nothing learned."""
        settings = dict(saved["settings"])
        settings["ridge"] = tuple(settings["ridge"])
        dtype = getattr(torch, saved["dtype"])
        if not isinstance(dtype, torch.dtype):
            raise StructureError(f"dtype: expected the name of a dtype, got {saved['dtype']!r}.")
        return cls(
            LatentGraph.from_dict(saved["graph"]),
            kernel=Kernel.from_dict(saved["kernel"]),
            specification=Specification.from_list(saved["specification"]),
            dtype=dtype,
            **settings,
        )


def _solve_first(model: KernelPBP, prefix: str, keep_vars: bool) -> None:
    """A state is whole."""
    model._solved_operators()


def _example_fault(rows: Tensor, domains: Mapping[str, Domain]) -> str | None:
    """The first discrete variable that has training values which are none of its states."""
    for (v, states), column in zip(domains.items(), rows.T, strict=True):
        if isinstance(states, int) and bool(((column != column.round()) | (column < 0) | (column >= states)).any()):
            return f"examples of '{v}': expected states from 0 to {states - 1}"
    return None


def _operator_fault(saved: Mapping[str, tuple[Tensor, Tensor | None]], rows: int) -> str | None:
    """The first operator that does not take values at the training rows to values there."""
    for node, (left, right) in saved.items():
        inner = rows if right is None else right.shape[0]
        if left.shape != (rows, inner) or (right is not None and right.shape != (inner, rows)):
            shapes = tuple(left.shape), None if right is None else tuple(right.shape)
            return f"operators.{node}: expected values at {rows} training rows, got shapes {shapes}"
    return None


def _own_operator(left: Tensor, right: Tensor | None) -> GramOperator:
    return GramOperator(with_own_storage(left), None if right is None else with_own_storage(right))


def _plain(bandwidth: Bandwidth) -> Any:
    return {v: float(b) for v, b in bandwidth.items()} if isinstance(bandwidth, Mapping) else bandwidth
