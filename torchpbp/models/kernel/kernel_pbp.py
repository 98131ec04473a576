"""KernelPBP: predictive belief propagation with the kernel trick, for continuous and mixed variables [PBP §5].

Messages are functions, represented by their values at the training rows; one matrix per separator maps the product of the
messages below to the message above, without explicit features or outer products.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.contract.model_files import SaveOptions, checked_labels, require_finite, require_none
from torchpbp.errors import ArgumentError, CheckpointError, DataError, StructureError
from torchpbp.features.completion import complete_rows
from torchpbp.features.kernels import RBF, Kernel
from torchpbp.graph.domains import require_single_values
from torchpbp.graph.junction_tree import build_junction_tree, checked_root
from torchpbp.graph.latent_graph import Continuous, LatentGraph, require_graph
from torchpbp.inference.density import warn_of_coarse_grids
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.inputs.missing_values import observed
from torchpbp.lazy import pandas as pd
from torchpbp.models.kernel.charts import Chart
from torchpbp.models.kernel.comparison import TrainingGram
from torchpbp.models.kernel.gram_answers import GramAnswers
from torchpbp.models.kernel.gram_learning import (
    Bandwidth,
    OperatorSettings,
    bandwidths,
    check_bandwidth,
    check_memory,
    check_spans,
    learn_operators,
    ranges,
)
from torchpbp.models.kernel.gram_operators import GramOperator
from torchpbp.models.kernel.kernel_settings import KernelPBPSettings
from torchpbp.models.kernel.saved_rows import example_fault, operator_fault
from torchpbp.models.kernel.structure import nearest_leaves, plan_on
from torchpbp.planning.plan import Plan, SeparatorPlan

MOST_STATES = 1 << 26
"""Largest number of states of a discrete observable; each answer has an entry per state."""


class KernelPBP(GramAnswers):
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
        for widths in (self.settings.bandwidth, self._evidence_bandwidth):
            check_bandwidth(widths, graph)
        self.graph = graph
        self.names = graph.observed
        self.kernel = kernel or RBF()
        self.positive, self.dtype = self.settings.positive, self.settings.dtype
        self.chart = Chart(self.names, self.settings.sequences)
        for v in self.chart.moved:
            if not isinstance(graph.variables[v], Continuous):
                raise StructureError(f"sequences: '{v}' is discrete; only continuous variables have increments.")
        self.tree = build_junction_tree(graph, self.settings.root)
        leaves = self.settings.core_leaves, self.settings.instrument_leaves
        self.plan = nearest_leaves(self.tree, *leaves) if plan is None else plan_on(self.tree, plan)
        self.labels = {}
        self.missing = {}
        self.fitted = False
        self.operators = nn.ModuleDict()
        self.register_state_dict_pre_hook(_solve_first)  # type: ignore[no-untyped-call]

    @property
    def _evidence_bandwidth(self) -> Bandwidth:
        bandwidth = self.settings.evidence_bandwidth
        return self.settings.bandwidth if bandwidth is None else bandwidth

    def __str__(self) -> str:
        state = f"fitted on {len(self.examples)} rows" if self.fitted else "not fitted"
        missing = self.extra_repr()
        return f"KernelPBP({self.graph!r}, {state}{missing and ', '}{missing})"

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
        check_memory(self._operator_settings(), len(self._inner_plans()), len(rows), self.settings.max_bytes)
        if len(rows) < 2:
            raise DataError(f"KernelPBP needs at least 2 rows, got {len(rows)}.")
        if reader.missing_values.any:
            rows = self._completed(rows)
        coordinates = self.chart.coordinates(rows)
        widths = bandwidths(self.settings.bandwidth, self.evidence_domains(), coordinates)
        evidence_widths = bandwidths(self._evidence_bandwidth, self.evidence_domains(), coordinates)
        check_spans(self.evidence_domains(), rows, torch.minimum(widths, evidence_widths), self.dtype, numbers)
        operators = self._solved(rows, widths)
        bounds = ranges(self.evidence_domains(), rows, evidence_widths)
        with_density = [i for i, v in enumerate(self.names) if evidence_widths[i] > 0 and v not in self.chart.moved]
        warn_of_coarse_grids(
            {self.names[i]: (float(bounds[i].diff()), float(evidence_widths[i])) for i in with_density}
        )
        self._keep(rows, widths, evidence_widths, bounds, operators)
        self.labels = reader.labels
        self.missing = reader.missing_values.shares
        return self

    def _solved(self, rows: Tensor, widths: Tensor) -> nn.ModuleDict:
        gram = TrainingGram(self.evidence_domains(), self.kernel, self.chart.coordinates(rows), widths)
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
        """The operators, solved from the training rows if the model's file did not hold them."""
        if self.fitted and len(self.operators) < len(self._inner_plans()):
            self.operators = self._solved(self.examples, self.widths)
        return self.operators

    def _inner_plans(self) -> list[SeparatorPlan]:
        """Plans of the separators above more than one leaf; a leaf's message needs no operator."""
        return [p for p in self.plan.separators if not self.tree.leaf_observables[p.node]]

    def _operator_settings(self) -> OperatorSettings:
        s = self.settings
        return OperatorSettings(ridge=s.ridge, landmarks=s.landmarks, dtype=s.dtype, seed=s.seed)

    def extra_repr(self) -> str:
        if not any(self.missing.values()):
            return ""
        return f"missing in training: {sum(self.missing.values()) / len(self.missing):.1%} of the values"

    def _completed(self, rows: Tensor) -> Tensor:
        """Rows with completed missing values; similarity is measured with the evidence bandwidths."""
        widths = bandwidths(self._evidence_bandwidth, self.evidence_domains(), rows)
        domains = list(self.evidence_domains().values())
        return complete_rows(rows, domains, widths, draw=self.settings.fill == "draw", seed=self.settings.seed)

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
        count = len(model.names)
        if (
            rows.shape[1:] != (count,)
            or bounds.shape != (count, 2)
            or {widths.shape, evidence_widths.shape} != {(count,)}
        ):
            raise CheckpointError(
                f"'{name}': {tuple(rows.shape)} training values, their bandwidths or ranges do not fit its {count} variables."
            )
        require_finite({"examples": rows}, name)
        require_none(example_fault(rows, model.evidence_domains()), name)
        operators = nn.ModuleDict()
        if content["operators"] is not None:
            expected = {str(p.node) for p in model._inner_plans()}
            if set(content["operators"]) != expected:
                raise CheckpointError(
                    f"'{name}': expected operators of nodes {sorted(expected)}, got {sorted(content['operators'])}."
                )
            require_none(operator_fault(content["operators"], len(rows)), name)
            operators.update({node: GramOperator(*parts) for node, parts in content["operators"].items()})
        model._keep(rows, widths, evidence_widths, bounds, operators)
        require_finite(model._answering(), name)
        model.labels = checked_labels(content["labels"], model.graph.variables, name)
        model.missing = dict(content["missing"])
        return model

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


def _solve_first(model: KernelPBP, prefix: str, keep_vars: bool) -> None:
    """Hook before a state dict is made: solve for operators that the model's file did not hold."""
    model._solved_operators()
