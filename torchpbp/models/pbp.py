"""PBP: a latent-variable graphical model learned by two-stage regression, as an ``nn.Module``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from typing_extensions import Self

from torchpbp.contract.abilities import Counting, JointQueries, Sampling
from torchpbp.contract.frames import state_labels
from torchpbp.contract.intervals import Interval, Intervals, ask_interval
from torchpbp.contract.model_files import SaveOptions, checked_labels, require_finite, require_none
from torchpbp.distributed import world_size
from torchpbp.errors import (
    ArgumentError,
    DataError,
    DataWarning,
    NotFittedError,
    QueryError,
    StructureError,
    warn_caller,
)
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.features.encoded import EncodedMap, Encoders
from torchpbp.features.encoded import require_finite as require_finite_features
from torchpbp.features.maps import KernelMap
from torchpbp.graph.clique_tree import directed_graph
from torchpbp.graph.cost import BUDGET
from torchpbp.graph.junction_tree import JunctionTree, build_junction_tree
from torchpbp.graph.latent_graph import Continuous, Domain, LatentGraph, require_graph
from torchpbp.inference.density import read_points, warn_of_coarse_grids
from torchpbp.inference.observable import Observable
from torchpbp.inference.operator_net import Answer, OperatorNet
from torchpbp.inputs.clusters import PartitionedTable, PartitionReader, partitioned
from torchpbp.inputs.columns import ROWS_PER_BATCH, ColumnReader
from torchpbp.inputs.evidence import Evidence, EvidenceLike
from torchpbp.inputs.missing_values import MissingValues, observed
from torchpbp.inputs.sources import DataLike, no_names_needed, open_data, with_progress
from torchpbp.lazy import pandas as pd
from torchpbp.learning.feature_fitting import Tables
from torchpbp.learning.fitting import CountFitter, FitResult, Fitter, RowFitter, check_labels
from torchpbp.learning.message_nets import InstrumentNets, Masking, MessageNets, PredictedMessage
from torchpbp.learning.messages import Messages
from torchpbp.learning.net_fitting import NetFitter
from torchpbp.learning.rank_selection import RankScore
from torchpbp.learning.ridge import Ridge
from torchpbp.learning.stage1 import Regressor, RowRegressor, SavedRegressor
from torchpbp.models.bootstrap import Bootstrap
from torchpbp.models.counts import Counts
from torchpbp.models.diagnostics import diagnostics_table, random_patterns
from torchpbp.models.leaf_maps import make_observables, read_features
from torchpbp.models.likelihood.learner import MaximumLikelihood
from torchpbp.models.saved_pbp import (
    copy_state,
    graph_fault,
    numbers_in_answers,
    pack_encoders,
    pack_nets,
    require_sizes,
    restore_nets,
    saved_features,
    unpack_encoders,
)
from torchpbp.moments.class_rows import ClassRows
from torchpbp.moments.covers import ROWS_AT_ONCE
from torchpbp.moments.joint_tables import count_partitions
from torchpbp.planning.plan import Plan, PlanOptions
from torchpbp.planning.planner import candidate_plans, plan_graph
from torchpbp.settings import (
    Settings,
    choice,
    either,
    flag,
    floating_dtype,
    instance,
    non_negative,
    optional,
    positive,
    setting,
    several,
    text,
    whole,
)
from torchpbp.settings import seed as seed_setting

PROBE_SEED = 20200207
"""Added to the seed, so that the draws behind generic ranks differ from other draws."""
MOST_NAMED = 8
"""Most classes named in a warning."""


@dataclass(frozen=True, kw_only=True)
class PBPSettings(Settings):
    """Settings of a fit, see :class:`~torchpbp.PBP`."""

    rank: int | Literal["auto"] | None = setting(None, either(optional(whole(1)), choice("auto")))
    ridge: tuple[float, float] = setting(
        (1.0, 10.0), several(non_negative(), 2, expected="two non-negative numbers (stage 1, stage 2)")
    )
    whitening: float = setting(1e-3, positive())
    singles: int = setting(8, whole(1))
    pool: int = setting(6, whole(1))
    largest_group: int = setting(4096, whole(1))
    strict: bool = setting(False, flag())
    max_rank: int = setting(8, whole(1))
    root: tuple[str, ...] | None = setting(None, optional(several(text(), expected="a list of names of variables")))
    seed: int = setting(0, seed_setting())
    condition: str | None = setting(None, optional(text()))
    shrinkage: float = setting(10.0, non_negative())
    budget: float | None = setting(BUDGET, optional(positive()))

    @property
    def plan_options(self) -> PlanOptions:
        """Options of the plan, without a rank if the rank is chosen on data."""
        rank = None if self.rank == "auto" else self.rank
        return PlanOptions(
            rank=rank,
            singles=self.singles,
            pool=self.pool,
            largest_group=self.largest_group,
            strict=self.strict,
            seed=PROBE_SEED + self.seed,
            budget=self.budget,
        )


class PBP(nn.Module, JointQueries, Sampling, Counting, Intervals):
    """Predictive Belief Propagation [PBP]: fit from data without EM, then ask P(X | any evidence).

    The graph becomes a junction tree whose leaves hold the observables. At each separator stage 1 predicts features of
    the inside from the outside (ridge), and stage 2 finds the linear operator between such predictions (least
    squares). Inference contracts the operators along the tree.

    Args:
        graph: the model's structure; discrete and continuous observables may mix.
        rank: largest number of dimensions of a message. ``None``: the rank implied by the latents' numbers of states. A
            number: an upper bound, and the number of states of latents of unknown cardinality. ``"auto"``: chosen on
            held-out rows while fitting.
        regressor: stage-1 method: :class:`~torchpbp.Ridge` (linear, closed form, the default),
            :class:`~torchpbp.KernelRidge`, :class:`~torchpbp.MLP`, or :class:`~torchpbp.Messages` (more precise on loops,
            a few times slower). Model files hold the nets of ``MLP``, as ``stage1``, but of the regressor only its name:
            to fit a loaded model again, set its ``regressor`` first, unless it is ``Ridge``.
        ridge: penalties (stage 1, stage 2), as a number of pseudo-rows: λ = ridge / rows. If all variables are
            discrete, their features are first scaled to unit variance; otherwise features are not scaled.
        features: kernel map for continuous variables, copied for each; :class:`~torchpbp.features.Nystroem` by default. Or an
            encoder: an ``nn.Module`` from (rows, *shape) values to (rows, d) features, shared by all leaves with a shape, such as
            :class:`~torchpbp.PointEncoder`; or a dict from leaves to such encoders, and to one kernel map for numbers. Leaves that
            are vectors or images need an encoder. :class:`~torchpbp.PBPModule` trains encoders; ``fit`` does not change them.
        context: the encoder is shared by all leaves and reads all observed leaves of a row:
            ``encoder({leaf: values}, {leaf: seen})`` returns leaf -> features, see :class:`~torchpbp.ContextEncoder`. Such a model
            answers queries of its training target only.
        whitening: regularisation of the whitening of kernel features before compression.
        singles: number of nearest outside leaves in a separator's instrument, each as a group of one.
        pool: number of nearest outside observables from which product groups are formed if the rank requires them.
        largest_group: most joint states (or features) of one product group.
        strict: raise an error, instead of a warning, if the structure's rank condition cannot be met.
        max_rank: largest candidate for ``rank="auto"``.
        root: variables the root clique must contain; chosen by cost by default.
        dtype: of the operators. Learning is always done in float64.
        seed: of the held-out split and of the random draws behind generic ranks.
        condition: a discrete observable with an operator tree for each of its states. The plan is made for the graph without it;
            its posterior follows from Bayes' rule with the shares of the classes as prior, and all other answers are mixtures
            over the classes. Operators then have a leading dimension of classes. Not with ``rank="auto"``.
        shrinkage: with ``condition``, the number of pseudo-rows from the distribution pooled over classes that are added to the
            moments of each class, so that classes with few rows are shrunk towards all rows. A class without rows has the
            pooled moments.
        budget: memory limit of planning and fitting in bytes, 4 GiB by default; None: no limit. It is compared with an estimate,
            ``model.plan.cost()``; a larger estimate raises a :class:`~torchpbp.errors.BudgetError`. Planning may take a minute,
            more with a larger budget.

    Attributes:
        operators: :class:`~torchpbp.inference.operator_net.OperatorNet`, the junction tree as modules; ``print`` shows the tree.
        settings: of the fit.
        regressor: stage-1 method.
        stage1: nets of stage 1, such as those of ``regressor=MLP()``; None without nets.
        rows: number of training rows; 0 for a population. With ``condition``, the number of rows with a class.
        prior, class_rows: (classes,) shares and training rows of the classes, with ``condition``.
        counts: counts of the training rows, stored for :meth:`partial_fit`; ``None`` if learning needs more than counts, and
            after loading a file without them. Set it to ``None`` to free their memory.
        rank_scores: held-out scores of candidates, with ``rank="auto"``.
        bandwidth_scores: held-out scores of candidates, with ``bandwidth="validate"``.

    Example:
        >>> from torchpbp import templates
        >>> truth = DiscreteNetwork.random(templates.diamond(), seed=1)
        >>> model = PBP(truth.graph).fit(truth.sample(10_000, seed=0))
        >>> model.posterior("d1", {"a1": [0, 5], "b1": [2, -1]}).shape
        torch.Size([2, 6])
    """

    rows: Tensor
    class_rows: Tensor
    stage1: nn.Module | None
    operators: OperatorNet

    def __init__(
        self,
        graph: LatentGraph,
        *,
        rank: int | Literal["auto"] | None = None,
        regressor: Regressor | None = None,
        ridge: tuple[float, float] = (1.0, 10.0),
        features: KernelMap | nn.Module | Mapping[str, nn.Module] | None = None,
        context: bool = False,
        whitening: float = 1e-3,
        singles: int = 8,
        pool: int = 6,
        largest_group: int = 4096,
        strict: bool = False,
        max_rank: int = 8,
        root: Sequence[str] | None = None,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
        condition: str | None = None,
        shrinkage: float = 10.0,
        budget: float | None = BUDGET,
    ) -> None:
        require_graph(graph, type(self).__name__)
        settings = PBPSettings(
            rank=rank,
            ridge=ridge,
            whitening=whitening,
            singles=singles,
            pool=pool,
            largest_group=largest_group,
            strict=strict,
            max_rank=max_rank,
            root=root,  # type: ignore[arg-type]
            seed=seed,
            condition=condition,
            shrinkage=shrinkage,
            budget=budget,
        )
        regressors = instance(Regressor, expected="Ridge(), KernelRidge(), MLP() or Messages()")
        checked = regressors.check("regressor", Ridge() if regressor is None else regressor)
        self._configure(
            graph, settings, checked, features, flag().check("context", context), floating_dtype().check("dtype", dtype)
        )
        self._check_structure()
        if settings.rank != "auto":
            planned = self._planned_graph()
            dims = {v: d for v, d in self.dims.items() if v in planned.variables}
            self.operators.build(plan_graph(planned, dims, settings.plan_options, settings.root))
            reader = self.operators.reader
            self.stage1 = checked.nets(self.plan, reader.dims(), reader.widths(), self.operators.classes)

    def _configure(
        self,
        graph: LatentGraph,
        settings: PBPSettings,
        regressor: Regressor,
        features: Any,
        context: bool,
        dtype: torch.dtype,
    ) -> None:
        """Set everything but the plan, which is made from the graph or read from a file."""
        nn.Module.__init__(self)
        self.graph, self.settings, self.regressor = graph, settings, regressor
        self.labels, self.missing = {}, {}
        self.counts: Counts | None = None
        self.rank_scores: list[RankScore] = []
        self.bandwidth_scores: dict[float, float] = {}
        self.fitted = False
        if settings.condition is not None:
            graph.require_condition(settings.condition)
        self.kernel_map, encoders = read_features(graph, features, context)
        observables = make_observables(graph, self.kernel_map, encoders)
        self.operators = OperatorNet(observables, encoders, settings.condition, dtype)
        self.register_module("stage1", None)
        self.register_buffer("rows", torch.tensor(0, dtype=torch.int64))
        if settings.condition is not None:
            self.register_buffer("class_rows", torch.zeros(graph.num_states(settings.condition), dtype=torch.int64))
        self.register_load_state_dict_post_hook(_note_loaded)  # type: ignore[no-untyped-call]

    def _check_structure(self) -> None:
        """Raise a StructureError if the graph and the settings contradict each other."""
        condition = self.settings.condition
        if condition is not None and self.settings.rank == "auto":
            raise StructureError(
                f"condition={condition!r}: rank='auto' chooses one rank on held-out rows of a single tree. Give a rank as a number."
            )
        continuous = [v for v in self.graph.observed if isinstance(self.graph.variables[v], Continuous)]
        if continuous and isinstance(self.regressor, Messages):
            raise StructureError(
                f"{self.regressor!r} needs discrete variables; {continuous} are continuous. Use Ridge()."
            )
        unknown = [v for v in self.graph.latent if self.graph.variables[v] is None]
        if self.settings.rank is None and unknown:
            raise StructureError(
                f"Latent variables {unknown} have no number of states. Pass rank=<int> to set it, or rank='auto' to have "
                "it chosen on held-out rows."
            )

    def _planned_graph(self) -> LatentGraph:
        """The graph of the junction tree: without the class variable."""
        condition = self.settings.condition
        return self.graph if condition is None else self.graph.conditional(condition)

    # -- structure -----------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The junction tree, with core group, instrument and message size of each separator."""
        return self.operators.plan

    @property
    def tree(self) -> JunctionTree:
        """The latent junction tree."""
        return self.plan.tree

    @property
    def condition(self) -> str | None:
        """The variable with an operator tree per class, or None."""
        return self.operators.condition

    @property
    def prior(self) -> Tensor:
        """(classes,) shares of the classes, in models with ``condition``."""
        return self.operators.prior

    @property
    def target(self) -> str | None:
        """The variable predicted in training, or None."""
        return self.operators.target

    @property
    def encoders(self) -> Encoders | None:
        """Encoders of leaves that are vectors or images; None without such leaves."""
        return self.operators.encoders

    @property
    def observables(self) -> dict[str, Observable]:
        """Observed variables with their feature maps, in the order of ``graph.observed``."""
        return self.operators.observables

    @property
    def states(self) -> dict[str, int]:
        """Number of states of each discrete observable."""
        return {v: o.map.dim for v, o in self.observables.items() if not o.continuous}

    @property
    def dims(self) -> dict[str, int]:
        """Feature dimensions of each observable."""
        return {v: o.map.dim for v, o in self.observables.items()}

    @property
    def dtype(self) -> torch.dtype:
        """Of the operators."""
        return self.operators.dtype

    @property
    def device(self) -> torch.device:
        return self.operators.device

    # -- learning ------------------------------------------------------------------------------------------------

    def fitter(self) -> Fitter:
        """The way in which the model is fitted: through nets of leaves, from counts, or from rows."""
        net, settings = self.operators, self.settings
        if isinstance(self.stage1, MessageNets):
            return NetFitter(self.stage1, net.reader, net.observables, self.condition, net.classes, settings.shrinkage)
        if net.context:
            raise StructureError(
                "fit: with context=True the features of a leaf depend on the others, so encoder and nets must be trained "
                "together. Train them by PBPModule(model); fit() then solves the operators on other rows."
            )
        discrete = not any(o.continuous for o in net.observables.values())
        counted = discrete and not isinstance(self.regressor, RowRegressor)
        return (CountFitter if counted else RowFitter)(net.observables, self.kernel_map, **self._fit_options())

    def _fit_options(self) -> dict[str, Any]:
        s = self.settings
        return {
            "regressor": self.regressor,
            "ridge": s.ridge,
            "whitening": s.whitening,
            "seed": s.seed,
            "device": self.device,
            "condition": s.condition,
            "shrinkage": s.shrinkage,
        }

    def _counting_fitter(self) -> CountFitter:
        """The fitter of a model that can be learned from counts; a StructureError for other models."""
        fitter = None if self.operators.context else self.fitter()
        if isinstance(fitter, CountFitter):
            return fitter
        if isinstance(fitter, NetFitter):
            raise StructureError(
                "Counting is not enough for nets of leaves, which need the rows themselves. Use fit()."
            )
        continuous = [v for v, o in self.observables.items() if o.continuous]
        if continuous:
            raise StructureError(
                f"Counting needs discrete variables, and {continuous} are continuous: their features, and the compressed "
                "products of these that are averaged, are chosen from all rows at once. Use fit(), or make them discrete."
            )
        raise StructureError(
            f"Counting works with regressor=Ridge() only: {self.regressor!r} needs the rows themselves. Use fit()."
        )

    def fit(self, data: DataLike, batch_size: int = ROWS_PER_BATCH, columns: Sequence[str] | None = None) -> Self:
        """Learn from data: in one pass if all variables are discrete, otherwise in four.

        Args:
            data: dict of columns (tensors, arrays, lists) or pandas DataFrame (numbers, category or string columns); array,
                memory map or tensor of shape (rows, variables), or structured array; path of a Parquet file or folder,
                Arrow Dataset or Table (extra ``arrow``); Dask DataFrame or Ray Dataset (extras ``dask``, ``ray``), counted on the
                cluster, for a :class:`~torchpbp.PBP` that learns from counts; or an iterable of tables as mini-batches, such as a
                DataLoader, whose batches may also be tuples of tensors. The result does not depend on the batches.
                With continuous variables the data is read several times and must come in the same order each time.
                Values may be missing (NaN, None, pandas NA, masked entries, -1 for discrete variables): a moment is then taken
                over the rows that observe its variables; in an instrument "missing" is one more state, or the mean
                features of a continuous variable. This is correct for values missing completely at random; if missingness
                depends on other values of the row, complete the table first
                (:func:`torchpbp.features.completion.complete_table`).
                For regressors other than ridge, which need complete rows, missing values are filled in from similar rows, an
                approximation. ``model.missing`` is the share of missing values in each column.
            batch_size: rows of a table handled at once; bounds the memory used.
            columns: names of the columns of arrays and tensors; ``graph.observed`` by default.

        Returns:
            The model itself.

        Raises:
            DataError: empty data, missing columns, states out of range, fractional states; a column without any value,
                or variables never seen together.
            ShapeError: columns of different lengths, arrays of the wrong width.
        """
        whole(1).check("batch_size", batch_size)
        if (table := partitioned(data)) is not None:
            return self._fit_partitions(table, batch_size, columns)
        fitter = self.fitter()
        trained = isinstance(fitter, NetFitter)  # on the labels of the training
        labels = (self.labels if trained else {}) or self.graph.labels
        reader = ColumnReader(self.evidence_domains(), labels, missing=True, device=fitter.device)
        source = open_data(data, reader.states, columns)
        if fitter.several_passes and not source.reopenable:
            raise DataError(
                f"{fitter.several_passes}, but it is a one-way iterator. Pass a table, a list of mini-batches, a file or a DataLoader."
            )
        batch_size = min(batch_size, fitter.largest_batch or batch_size)
        missing: MissingValues | None = None

        def tables() -> Iterator[dict[str, Tensor]]:
            nonlocal missing
            yield from with_progress(reader.tables(source, batch_size, fitter.narrow), source.length)
            if missing is None:
                missing = reader.missing_values.over_processes()
                missing.check(stacklevel=2)

        result = self._learn(fitter, tables)
        check_labels(reader.labels)
        self._adopt(result, reader.labels, {} if missing is None else missing.shares)
        return self

    @torch.no_grad()
    def _learn(self, fitter: Fitter, tables: Tables) -> FitResult:
        """Fit to rows."""
        with evaluation_mode(self.encoders, self.stage1):
            return fitter.fit(tables, self._candidate_plans())

    def solve(self, tables: Tables) -> Self:
        """Solve the operators on rows, for fixed encoders and nets.

        Args:
            tables: returns a new iterator over the rows of this process in mini-batches: observable -> states or values.
        """
        self._adopt(self._learn(self.fitter(), tables), self.labels or self.graph.labels, self.missing)
        return self

    def fit_population(self, network: DiscreteNetwork) -> Self:
        """Learn from the exact moments of a network, as if from infinitely many rows.

        With a regressor other than ridge, and with nets, all joint states of the observables are enumerated and weighted.
        """
        instance(DiscreteNetwork, expected="a DiscreteNetwork").check("network", network)
        theirs = {v: network.states[v] for v in network.graph.observed}
        if theirs != self.operators.domains:
            raise StructureError(
                f"The network observes {theirs}, the model {self.operators.domains}. They must be the same."
            )
        if self.settings.rank == "auto":
            raise StructureError("rank='auto' is chosen on held-out rows; give a rank to fit a population.")
        with evaluation_mode(self.encoders, self.stage1):
            result = self.fitter().fit_population(self.plan, network)
        self._adopt(result, {v: network.labels[v] for v in self.states if v in network.labels}, {})
        return self

    def _candidate_plans(self) -> dict[int, Plan]:
        """Rank -> candidate plan, with ``rank="auto"``; otherwise 0 -> the plan."""
        s = self.settings
        if s.rank != "auto":
            return {0: self.plan}
        return candidate_plans(self.graph, self.dims, s.plan_options, s.root, s.max_rank)

    def _adopt(self, result: FitResult, labels: Mapping[str, tuple[Any, ...]], missing: Mapping[str, float]) -> None:
        """Set operators, statistics and labels to the result of a fit.

        Args:
            result: of the fit.
            labels: variable -> labels of its states, for columns given by label.
            missing: variable -> share of missing values.
        """
        _warn_of_result(result, labels)
        net = self.operators
        net.set_tree(result.solution.tree)
        with torch.no_grad():
            for operator, strengths, significant in zip(
                net.separator_operators, result.solution.strengths, result.solution.significant, strict=True
            ):
                operator.strengths.copy_(strengths)
                operator.significant.copy_(torch.as_tensor(significant, device="cpu"))
            if result.classes is not None:
                net.prior.copy_(result.classes.prior)
                self.class_rows.copy_(result.classes.counts.long())
            net.floor.fill_(result.floor)
            self.rows.fill_(int(result.rows))
        if any(net.observables[v] is not o for v, o in result.observables.items()):
            net.set_observables(result.observables.values())
        net.set_marginals(None if result.counts is None else result.counts.marginals())
        self.stage1 = None if result.solution.nets is None else result.solution.nets.to(self.device)
        self.labels, self.missing = dict(labels), dict(missing)
        self.counts = None if result.counts is None else Counts(result.counts, labels)
        self.rank_scores, self.bandwidth_scores = list(result.rank_scores), dict(result.bandwidth_scores)
        self.fitted = True

    # -- counts --------------------------------------------------------------------------------------------------

    def count(
        self,
        data: DataLike,
        batch_size: int = ROWS_AT_ONCE,
        columns: Sequence[str] | None = None,
        labels: Mapping[str, Sequence[Any]] | None = None,
    ) -> Counts:
        """Count rows without changing the model.

        Counts of parts of the data can be made on any machine, saved, merged in any order and passed to :meth:`fit_counts` of a
        model with the same graph and options. In a process group, ``data`` alone is counted, not the rows of other processes.

        Args:
            data: as in :meth:`fit`.
            batch_size: rows of a table handled at once.
            columns: names of the columns of arrays.
            labels: labels of the states of columns given by label, in the order of the states; by default the labels of the
                fitted model or, before fitting, those of the data. Counts can be merged only if their labels agree.

        Raises:
            StructureError: a model that cannot be learned from counts.
            DataError: as :meth:`fit`.
        """
        whole(1).check("batch_size", batch_size)
        if labels is None:
            labels = self.labels or self.graph.labels
        if (table := partitioned(data)) is not None:
            return self._count_partitions(table, batch_size, columns, labels)[0]
        fitter = self._counting_fitter()
        reader = ColumnReader(self.evidence_domains(), labels, missing=True, device=None)
        source = open_data(data, reader.states, columns)

        def tables() -> Iterator[dict[str, Tensor]]:
            return with_progress(reader.tables(source, batch_size, narrow=True), source.length)

        return Counts(fitter.count(tables, self._counted_groups(fitter)), reader.labels)

    def _fit_partitions(self, table: PartitionedTable, batch_size: int, columns: Sequence[str] | None) -> Self:
        """Learn from a table on a cluster, which counts it."""
        if self.settings.rank == "auto":
            raise StructureError(
                "rank='auto' is chosen on held-out rows, and a table on a cluster is only counted. Give a rank, such as "
                "the one that a fit on a sample of the rows has chosen."
            )
        counts, missing = self._count_partitions(table, batch_size, columns, self.graph.labels)
        missing.check()
        return self.fit_counts(counts)

    def _count_partitions(
        self,
        table: PartitionedTable,
        batch_size: int,
        columns: Sequence[str] | None,
        labels: Mapping[str, Sequence[Any]],
    ) -> tuple[Counts, MissingValues]:
        """Counts and missing values of a table on a cluster."""
        no_names_needed(columns, "A table on a cluster")
        fitter = self._counting_fitter()
        groups = self._counted_groups(fitter)
        reader = PartitionReader.of(table, self.evidence_domains(), labels, batch_size)
        counts, missing = count_partitions(table, reader, groups, fitter.states)
        return Counts(counts, reader.labels), missing

    def _counted_groups(self, fitter: CountFitter) -> Sequence[tuple[str, ...]]:
        return fitter.required_tables([self.plan]) if self.counts is None else self.counts.tables.scopes

    def fit_counts(self, counts: Counts) -> Self:
        """Learn from counts: the same model as from their rows.

        Args:
            counts: from :meth:`count` of this model, or of a model with the same graph and options. They are copied.

        Raises:
            StructureError: counts of other variables or groups, or a model that cannot be learned from counts.
            DataError: no rows.
        """
        fitter = self._counting_fitter()
        if not isinstance(counts, Counts):
            raise DataError(
                f"fit_counts: expected Counts, got {type(counts).__name__}. Make them with model.count(rows)."
            )
        if counts.tables.states != fitter.states:
            raise StructureError(
                f"The counts are over variables with states {counts.tables.states}, the model observes {fitter.states}. Count "
                "with a model of the same graph."
            )
        absent = [group for group in fitter.required_tables([self.plan]) if not counts.tables.holds(group)]
        if absent:
            raise StructureError(
                f"The counts lack {len(absent)} groups of variables that this model learns from, such as {absent[0]}. Count with "
                "a model of the same graph and options (rank, singles, pool, largest_group, root, seed)."
            )
        if counts.rows == 0:
            raise DataError("The counts are empty: expected at least one row, got none.")
        counts = counts.copy()
        with torch.no_grad():
            result = fitter.fit_counts(self.plan, counts.tables)
        self._adopt(result, counts.labels, counts.tables.missing_shares())
        return self

    def partial_fit(
        self, data: DataLike, batch_size: int = ROWS_PER_BATCH, columns: Sequence[str] | None = None
    ) -> Self:
        """Learn from further rows: the same model as :meth:`fit` on these and all earlier rows.

        The counts of the new rows are added to :attr:`counts`, and the regressions are solved again; other changes of the
        operators since the last fit, such as training as a layer, are lost. A rank chosen by ``rank="auto"`` does not change.
        In a process group each process passes its share of the rows.

        Args:
            data: as in :meth:`fit`. The first call fixes the labels, so its category columns must have all categories.
            batch_size: rows of a table handled at once.
            columns: names of the columns of arrays.

        Raises:
            StructureError: continuous variables, or a regressor that needs the rows themselves.
            NotFittedError: a fitted model without counts.
            DataError: as :meth:`fit`; the model is then unchanged.
        """
        self._counting_fitter()
        if world_size() > 1 and partitioned(data) is not None:
            raise DataError(
                "partial_fit: expected this process's share of the rows, got a table on a cluster, which is counted as a whole. "
                "Call it in a single process."
            )
        if self.counts is None and self.fitted:
            raise NotFittedError(
                "This model is fitted, but the counts behind it are gone, so rows cannot be added. Save with counts=True to keep "
                "them in the file, or fit again."
            )
        new = self.count(data, batch_size, columns)
        new.tables.sum_over_processes()
        check_labels(new.labels)
        return self.fit_counts(new if self.counts is None else self.counts.copy().merge(new))

    def refine(self, data: DataLike, **options: Any) -> Self:
        """Replace the operators by those of the graph's maximum-likelihood network, solved from its exact moments.

        Two-stage regression is consistent but uses low-order moments only; with many rows maximum likelihood is more precise.
        An undirected graph is learned as a directed graph that represents its distributions, and latents of unknown cardinality
        have as many states as the chosen rank. If few observables determine a latent, the two-stage fit may be better:
        compare ``score`` on held-out rows. Discrete variables only.

        Args:
            data: rows, as in :meth:`fit`; values may be missing at random.
            **options: of :class:`~torchpbp.MaximumLikelihood`.

        Raises:
            StructureError: continuous variables, encoders, nets of leaves, or ``condition``.
        """
        continuous = [v for v, o in self.observables.items() if o.continuous]
        if self.condition is not None or continuous or isinstance(self.stage1, MessageNets):
            found = "continuous variables" if continuous else f"condition={self.condition!r}"
            found = "nets of leaves" if isinstance(self.stage1, MessageNets) else found
            raise StructureError(
                f"refine: expected discrete variables, one operator tree and no nets of leaves, got {found}. Encoders and nets are "
                "trained by PBPModule."
            )
        learned = MaximumLikelihood(directed_graph(self.tree.graph), **options).fit(data)
        fitter = CountFitter(self.observables, None, **{**self._fit_options(), "regressor": Ridge()})
        result = fitter.fit_population(self.plan, learned.network)
        self._adopt(replace(result, rows=round(learned.rows)), learned.labels, learned.missing)
        return self

    # -- nets of leaves ------------------------------------------------------------------------------------------

    @property
    def nets(self) -> MessageNets:
        """The nets of the model's separators.

        Raises:
            StructureError: a model without nets.
        """
        if not isinstance(self.stage1, MessageNets):
            raise StructureError("The model has no nets of leaves. PBPModule(model) attaches and trains them.")
        return self.stage1

    def attach_nets(
        self,
        hidden: Sequence[int] | None = None,
        instruments: float | None = None,
        seed: int = 0,
        target: str | None = None,
        masking: Masking | None = None,
    ) -> MessageNets:
        """Attach nets of leaves with random weights as stage 1, unless the model has nets already.

        Args:
            hidden: widths of the hidden layers, by default (48, 48).
            instruments: dimensions of an instrument per dimension of its message, by default 2.
            seed: of the initial weights.
            target: a variable whose probabilities are computed by a learned link; None: by clipping.
            masking: shares of hidden leaves in the solve of the operators.
        """
        net = self.operators
        if isinstance(self.stage1, MessageNets):
            nets = self.stage1
            if hidden not in (None, nets.hidden, list(nets.hidden)) or instruments not in (None, nets.instruments):
                raise ArgumentError(
                    f"hidden={hidden}, instruments={instruments}: the model has nets with hidden={list(nets.hidden)} and instruments="
                    f"{nets.instruments}. Leave these arguments out to train the nets further, or pass a model without nets."
                )
        else:
            dims, widths = net.reader.dims(), net.reader.widths()
            sizes = (48, 48) if hidden is None else hidden, 2.0 if instruments is None else instruments
            nets = MessageNets(self.plan, dims, widths, *sizes, seed, net.classes)
            self.stage1 = nets.to(self.device)
        if masking is not None:
            self.stage1.masking = masking
        if target is not None:
            net.set_target(target)
        # Training starts from a larger ridge than the initial one of encoders, log λ = −23.
        if net.encoders is not None and float(net.encoders.log_ridge.detach()) < -20:
            with torch.no_grad():
                net.encoders.log_ridge.fill_(-3.0)
        return self.stage1

    @torch.no_grad()
    def prepare_leaves(self, batches: Iterable[Mapping[str, Tensor]]) -> None:
        """Fit kernel maps, and estimate scales of values and marginals, before nets are trained.

        Args:
            batches: rows, observable -> states or values.
        """
        parts = list(batches)
        for v, observable in self.observables.items():
            values = torch.cat([part[v] for part in parts]).to(self.device)
            values = values[observed(values)]
            if len(values) == 0:
                raise DataError(f"'{v}' is missing in every row, so nothing can be learned about it. Drop it.")
            if isinstance(observable.map, EncodedMap):
                observable.map.centre.copy_(values.double().mean(dim=0))
                observable.map.set_scale(values.double().var(dim=0, unbiased=False))
            elif isinstance(observable.map, KernelMap):
                observable.fit(values.double())
            else:
                counts = torch.bincount(values, minlength=observable.map.dim).double()
                observable.marginal.copy_(counts / counts.sum())

    # -- queries -------------------------------------------------------------------------------------------------

    def evidence_domains(self) -> dict[str, Domain]:
        return self.operators.domains

    def _prepared(self, evidence: Evidence) -> Evidence:
        """Checked evidence with a vector for each continuous variable; the outputs of encoders must be finite.

        Layers, which cannot raise errors, skip the latter check.
        """
        net = self.operators
        prepared = net.prepare(evidence)
        if net.encoders is not None:
            for name in net.encoders.sizes:
                require_finite_features(name, prepared.soft[name].detach())
        return prepared

    def check_query(self, names: Sequence[str]) -> None:
        super().check_query(names)
        if self.operators.context and (len(names) > 1 or names[0] != self.target):
            raise QueryError(
                f"Query of {', '.join(names)}: the encoder looks at all leaves of a row (context=True), so only "
                f"'{self.target}' can be queried. Use a point-wise encoder for queries of leaves."
            )
        encoded = [v for v in names if isinstance(self.observables[v].map, EncodedMap)] if len(names) > 1 else []
        if encoded:
            raise QueryError(f"Joint query of {tuple(names)}: '{encoded[0]}' has an encoder. Ask for it alone.")

    def require_densities(self, what: str) -> None:
        """Raise a QueryError for context encoders: features that depend on other leaves give no probability of the leaves."""
        if self.operators.context:
            raise QueryError(
                f"{what}: the encoder looks at all leaves of a row (context=True), so the leaves have no probability of their own. "
                f"Ask for the posterior of '{self.target}', or use a point-wise encoder."
            )

    def posterior(
        self, query: str | Sequence[str], evidence: EvidenceLike = None, *, at: Any = None, raw: bool = False
    ) -> Any:
        """P(query | evidence).

        Args:
            query: an observable, or several discrete ones for their joint distribution.
            evidence: name -> state or value, states or values per row (-1 or NaN: not observed), or (batch, states) soft
                evidence. Each row may observe different variables.
            at: (n,) points at which the density of a continuous variable is evaluated.
            raw: return the normalised estimate without clipping: it sums (or integrates) to 1 but may have negative entries.

        For evidence of estimated probability 0, such as a state never seen in training, the result is the marginal.

        Returns:
            (batch, states) for a discrete variable, (batch, states, states, …) for several; in a row that observes the queried
            variable, a one-hot distribution. For a continuous variable, whose own value in a row is ignored, the
            (batch, n) density at ``at``, or, without ``at``, a :class:`~torchpbp.inference.density.Density` with mean,
            variance, quantiles and samples. For a DataFrame of evidence, a DataFrame with the same index.
        """

        def answer(names: tuple[str, ...], evidence: Evidence) -> Answer:
            net, prepared = self.operators, self._prepared(evidence)
            if len(names) > 1:
                return net.joint(names, prepared, raw)
            (name,) = names
            if at is None:
                return net.answer(name, net.estimates(prepared, names)[name], prepared, raw)
            observable = net.observables[name]
            if isinstance(observable.map, EncodedMap):
                raise QueryError(
                    f"Query of '{name}': at= needs a density, and a leaf with an encoder has mean and variance only."
                )
            if not observable.continuous:
                raise QueryError(f"Query of '{name}': at= is for continuous variables, and this one has states.")
            return observable.density_at(net.estimates(prepared, names)[name], read_points(at), raw)

        return self._ask(query, evidence, answer, at)

    def posteriors(self, evidence: EvidenceLike = None, raw: bool = False) -> Any:
        """Posteriors of every observable that is not observed in all rows, from one upward and one downward pass.

        ``model(evidence)`` calls this method. If every row observes everything, the result is empty, with a warning;
        :meth:`log_evidence` returns the probability of complete rows.

        Returns:
            name -> (batch, states), or a :class:`~torchpbp.inference.density.Density` for a continuous variable. For a
            DataFrame of evidence, a DataFrame with the same index.
        """

        def answer(wanted: list[str], evidence: Evidence) -> dict[str, Any]:
            net, prepared = self.operators, self._prepared(evidence)
            if net.context:
                wanted = [v for v in wanted if v == net.target]
            estimates = net.estimates(prepared, wanted, every_leaf=True)
            discrete = {} if raw else {v: e for v, e in estimates.items() if not net.observables[v].continuous}
            answers: dict[str, Any] = {**net.distributions(discrete, prepared)}
            return {v: answers[v] if v in answers else net.answer(v, e, prepared, raw) for v, e in estimates.items()}

        return self._ask_all(evidence, answer)

    def forward(self, evidence: EvidenceLike = None, raw: bool = False) -> Any:
        """:meth:`posteriors`."""
        return self.posteriors(evidence, raw)

    # -- probability of evidence ---------------------------------------------------------------------------------

    @overload
    def log_evidence(self, evidence: EvidenceLike = None, raw: Literal[False] = False) -> Tensor: ...
    @overload
    def log_evidence(self, evidence: EvidenceLike, raw: Literal[True]) -> tuple[Tensor, Tensor]: ...
    def log_evidence(self, evidence: EvidenceLike = None, raw: bool = False) -> Any:
        """(batch,) log P(evidence); with continuous evidence the log of a kernel-smoothed density.

        Leaves with encoders contribute the ratio of their density to their marginal density: the result is relative to the
        product of their marginals.

        An estimate that is not positive is replaced by ``floor`` times the sum of its absolute terms, so the result is
        finite; it is -inf only if every term is 0, as for a state never seen in training.

        Args:
            evidence: as in :meth:`posterior`.
            raw: return (sign, log of the absolute value) of the estimate without replacement, like ``slogdet``.
        """
        self.require_densities("log_evidence")
        mass = self.operators.mass(self._prepared(self.read_evidence(evidence)))
        if not raw:
            return mass.log(self.operators.floor)
        value, _, log_scale = mass
        return value.sign(), value.abs().log() + log_scale

    # -- samples -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(self, n: int, evidence: EvidenceLike = None, seed: int | None = None) -> dict[str, Tensor]:
        """Draw all observables from the learned distribution, given evidence.

        Args:
            n: number of draws per row of evidence.
            evidence: as in :meth:`posterior`.
            seed: of the draws; by default it is drawn from torch's global generator.

        Returns:
            name -> (n,) states or values without evidence, (n, batch) with.
        """

        self.require_densities("sample")
        return self._draw(n, evidence, seed, lambda rows, random: self.operators.sample(self._prepared(rows), random))

    # -- inspection ----------------------------------------------------------------------------------------------

    def interval(
        self,
        query: str | Sequence[str] | None,
        evidence: EvidenceLike = None,
        level: float = 0.95,
        *,
        data: DataLike | None = None,
        replicates: int = 1000,
        seed: int = 0,
    ) -> Any:
        """Confidence intervals of each entry of P(query | evidence), or of log P(evidence), by the bootstrap.

        The training rows are resampled with replacement, and both stages solved for each replicate; the ends of an interval are
        quantiles of the answers. Intervals reflect variance, not bias, and cover somewhat less than their level
        (docs/precision.md). Supported for discrete models with ridge regression, in one process.

        Args:
            query: a variable, or several for their joint distribution; None for the log-evidence.
            evidence: as for :meth:`posterior`.
            level: probability with which an interval covers the true value, over repeated samples of training rows.
            data: the training rows; the model's counts are not enough.
            replicates: bootstrap samples.
            seed: of their draws.

        Returns:
            :class:`~torchpbp.contract.intervals.Interval` (estimate, lower, upper) of (rows, states…) tensors, or (rows,) for the
            log-evidence. For a DataFrame of evidence a DataFrame with the same index.

        Raises:
            ArgumentError: no data.
            StructureError: continuous variables, a regressor that needs the rows themselves, or ``condition``.
        """
        whole(2).check("replicates", replicates)
        seed_setting().check("seed", seed)
        if data is None:
            raise ArgumentError(
                "interval: expected data=, the rows that the model was fitted to; a PBP model keeps counts of small groups only."
            )
        fitter = self._counting_fitter()

        def answer(names: tuple[str, ...], checked: Evidence) -> Interval:
            return Bootstrap(self, fitter, data, replicates, seed).interval(names, checked, level)

        return ask_interval(self, query, evidence, level, answer)

    def diagnostics(self, evidence: EvidenceLike = None, rows: int = 500, seed: int = 0) -> pd.DataFrame:
        """How well each separator was learned, as a table.

        Columns: the separator, its core group and instrument; the message's rank, the rank required by the structure and the
        rank that the instrument reaches for almost all parameters; the number of statistically significant dimensions (if it is
        below the rank, the data have no further dependence or the regressor misses it); the weakest canonical correlation;
        the condition number of stage 2; at leaves of discrete variables the clipped mass, the share of negative
        probability in estimates; and a remedy if the structure or the data are insufficient. With ``condition``, a separator's
        figures are those of its worst class, named in the column ``class``: the class with the fewest significant dimensions
        and, among these, the weakest correlation. The clipped mass is that of all classes together.

        Args:
            evidence: evidence of the estimates whose clipped mass is shown; by default rows sampled from the model with values
                hidden at random, and no evidence for a model with encoders, which cannot sample.
            rows: number of sampled rows.
            seed: of the sampled rows and hidden values.
        """
        self.require_fitted()
        if evidence is None and self.encoders is None:
            evidence = random_patterns(self.sample(rows, seed=seed), seed)
        net = self.operators
        with torch.no_grad():
            estimates = net.tree.estimates(self._prepared(self.read_evidence(evidence)))
        discrete = {
            n: e
            for n, e in estimates.items()
            if not any(net.observables[v].continuous for v in self.tree.leaf_observables[n])
        }
        labels = [] if self.condition is None else state_labels(self, self.condition)
        return diagnostics_table(self.plan, net.separator_operators, discrete, labels)

    def predicted_messages(self, evidence: EvidenceLike = None) -> dict[str, PredictedMessage]:
        """Messages of all separators as predicted by the nets of stage 1 from the evidence outside each.

        Args:
            evidence: states and values, as in :meth:`posterior`. A row may observe any variables; the others are hidden from
                the nets.

        Returns:
            Separator, named as in :meth:`diagnostics`, -> :class:`~torchpbp.learning.message_nets.PredictedMessage`: the message
            (batch, rank) and the products below it (batch, sizes below…), both averages over the nets of all folds. With
            ``condition`` both have a leading class dimension.

        Raises:
            StructureError: a model without nets in stage 1.
            QueryError: weights of states.
        """
        checked = self.read_evidence(evidence)
        if not isinstance(self.stage1, InstrumentNets):
            raise StructureError(
                f"predicted_messages: stage 1 of this model has no nets, its regressor is {self.regressor!r}. Fit it with "
                "regressor=MLP()."
            )
        if checked.soft:
            raise QueryError(
                f"predicted_messages: expected states and values, got weights of states of {', '.join(checked.soft)}. Nets are "
                "trained on values: leave the variable out, or give its state."
            )
        if self.condition in {*checked.hard, *checked.real}:
            raise QueryError(
                f"predicted_messages: '{self.condition}' is the condition, and the answer has an entry for each of its states. "
                "Leave it out."
            )
        by_node = self.stage1.predict(self.operators.reader.features_of(checked, self.device))
        return {self.tree.separator_name(n): message for n, message in by_node.items()}

    def __str__(self) -> str:
        state = "not fitted"
        if self.fitted:
            state = f"fitted on {int(self.rows)} rows" if int(self.rows) else "fitted to a population"
            if any(self.missing.values()):
                state += f", {sum(self.missing.values()) / len(self.missing):.1%} of the values missing"
            if self.stage1 is not None:
                state += f", {sum(p.numel() for p in self.stage1.parameters()):,} parameters in stage-1 nets"
        condition = "" if self.condition is None else f", condition={self.condition!r}"
        return f"{type(self).__name__}({self.graph!r}{condition}, {state})"

    # -- files ---------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], counts: bool = False) -> None:
        """Write graph, settings and operators to one file; an existing file is replaced only once the new one is complete.

        Args:
            path: of the file.
            counts: write the counts of the training rows as well, for :meth:`partial_fit` after loading. They take
                ``model.counts.nbytes`` bytes.

        Raises:
            CheckpointError: NaN or infinity in parameters, invalid labels, or a file that cannot be written.
        """
        self._write(path, SaveOptions(counts=counts))

    def pack(self, name: object, options: SaveOptions) -> dict[str, Any]:
        self.require_fitted()
        if options.counts and self.counts is None:
            raise NotFittedError("This model keeps no counts that could be saved. Save it with counts=False.")
        state = dict(self.state_dict())
        require_finite(numbers_in_answers(state), name, saving=True)
        graph, resolved = self.graph.to_dict(), self.tree.graph.to_dict()
        return {
            "graph": graph,
            "resolved_graph": None if resolved == graph else resolved,
            "settings": self.settings.to_dict(),
            "features": None if self.kernel_map is None else self.kernel_map.to_dict(),
            "encoders": pack_encoders(self.encoders),
            "specification": self.plan.to_list(),
            "labels": checked_labels(self.labels, self.graph.variables, name),
            "missing": self.missing,
            **pack_nets(self),
            "regressor": repr(self.regressor),
            "dtype": self.operators.root.weight.dtype,
            "state": state,
            "counts": self.counts.to_dict() if options.counts and self.counts is not None else None,
        }

    @classmethod
    def unpack(cls, content: Mapping[str, Any], name: object) -> Self:
        state = dict(content["state"])
        require_finite(numbers_in_answers(state), name)
        graph, settings = LatentGraph.from_dict(content["graph"]), PBPSettings.from_dict(content["settings"])
        encoders = unpack_encoders(content["encoders"], content.get("user_encoders"), name)
        features = saved_features(graph, content["features"], encoders)
        context = bool(encoders) and bool(content["encoders"]["context"])
        model = cls.__new__(cls)
        regressor = Ridge() if content["regressor"] == repr(Ridge()) else SavedRegressor(str(content["regressor"]))
        model._configure(graph, settings, regressor, features, context, content["dtype"])
        require_sizes(model.encoders, content["encoders"], name)
        resolved = planned = model._planned_graph()
        if content["resolved_graph"] is not None:
            resolved = LatentGraph.from_dict(content["resolved_graph"])
            require_none(graph_fault(planned, resolved), name)
        tree = build_junction_tree(resolved, settings.root)
        model.operators.build(Plan.from_list(tree, content["specification"]))
        restore_nets(model, content)
        require_none(copy_state(model, state), name)
        model.labels = checked_labels(content["labels"], graph.variables, name)
        model.missing = content["missing"]
        model.counts = None if content["counts"] is None else Counts.from_dict(content["counts"], name)
        model.fitted = True
        return model.eval()  # encoders may contain dropout and batch normalisation


@contextmanager
def evaluation_mode(*modules: nn.Module | None) -> Iterator[None]:
    """Context in which modules are in evaluation mode; each submodule has its former mode afterwards."""
    modes = {m: m.training for module in modules if module is not None for m in module.modules()}
    for m in modes:
        m.training = False
    try:
        yield
    finally:
        for m, training in modes.items():
            m.training = training


def _note_loaded(model: PBP, _: Any) -> None:
    """Mark a model as fitted after its operators were loaded by a state dict, and drop results of an earlier fit."""
    if model.operators.planned and not model.operators.root.weight.is_meta:
        model.fitted = model.fitted or bool(model.operators.root.weight.any())
    model.counts, model.rank_scores, model.bandwidth_scores = None, [], {}


def _warn_of_result(result: FitResult, labels: Mapping[str, Sequence[Any]]) -> None:
    """Warn of constant columns, coarse grids, and classes without rows."""
    if result.constant:
        warn_caller(
            f"Columns {list(result.constant)} hold one state only: the model learns that they never vary.", DataWarning
        )
    kernels = {v: (o.bounds, o.map) for v, o in result.observables.items() if isinstance(o.map, KernelMap)}
    warn_of_coarse_grids({v: (float(bounds.diff()), float(map.width)) for v, (bounds, map) in kernels.items()})
    if result.classes is not None and result.rows:
        _warn_of_classes(result.classes, labels.get(result.classes.name, ()))


def _warn_of_classes(classes: ClassRows, labels: Any) -> None:
    """Warn of classes without rows and of rows without a class.

    Args:
        classes: of the fit.
        labels: of the states of the class variable; empty if it was given by number.
    """
    if classes.empty:
        class_labels = [*labels, *range(len(labels), len(classes))]
        named = ", ".join(str(class_labels[c]) for c in classes.empty[:MOST_NAMED])
        named += f", … ({len(classes.empty)} in all)" if len(classes.empty) > MOST_NAMED else ""
        warn_caller(
            f"No row has '{classes.name}' = {named}. Given such a class, answers are those of all rows together; without it, its "
            "probability is 0 before clipping. Give rows of these classes, or a graph with fewer states.",
            DataWarning,
        )
    if classes.missing:
        warn_caller(
            f"{int(classes.missing):,} of {int(classes.missing + classes.total):,} rows have no value of '{classes.name}'. They do "
            "not enter the moments of its classes.",
            DataWarning,
        )
