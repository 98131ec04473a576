"""Models learned by two-stage regression: settings, learning, diagnostics and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from torchpbp.contract.abilities import Learner
from torchpbp.contract.frames import state_labels
from torchpbp.contract.model_files import SaveOptions, checked_labels, require_finite, require_none
from torchpbp.errors import DataError, DataWarning, StructureError, warn_caller
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.features.maps import KernelMap
from torchpbp.graph.conditioning import require_condition
from torchpbp.graph.cost import BUDGET
from torchpbp.graph.junction_tree import build_junction_tree
from torchpbp.graph.latent_graph import Continuous, LatentGraph, require_graph
from torchpbp.inference.density import warn_of_coarse_grids
from torchpbp.inference.observable import Observable
from torchpbp.inference.readout import Readout
from torchpbp.inputs.columns import ROWS_PER_BATCH, ColumnReader
from torchpbp.inputs.evidence import EvidenceLike
from torchpbp.inputs.missing_values import MissingValues
from torchpbp.inputs.sources import DataLike, open_data, with_progress
from torchpbp.lazy import pandas as pd
from torchpbp.learning.fitting import FitResult, Fitter, check_labels, clipping_floor
from torchpbp.learning.messages import Messages
from torchpbp.learning.population import learn_class_population, learn_population
from torchpbp.learning.rank_selection import RankScore
from torchpbp.learning.ridge import Ridge
from torchpbp.learning.stage1 import Regressor, RowRegressor
from torchpbp.learning.stage1_nets import PredictedMessage
from torchpbp.learning.two_stage import Solution
from torchpbp.models.conditioning import (
    adopt_classes,
    check_condition,
    make_fitter,
    planned_graph,
    register_classes,
    warn_of_classes,
)
from torchpbp.models.diagnostics import diagnostics_table, random_patterns
from torchpbp.models.leaf_maps import make_observables, read_features
from torchpbp.models.operator_model import OperatorModel
from torchpbp.models.saved_nets import pack_encoders, require_sizes, unpack_encoders
from torchpbp.models.saved_state import (
    copy_state,
    graph_fault,
    numbers_in_answers,
)
from torchpbp.models.stage1_predictions import nets_in_state, pack_stage1, predicted_messages, restore_stage1
from torchpbp.moments.class_rows import ClassRows
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
    seed,
    setting,
    several,
    text,
    whole,
)

EXACT_FLOOR = 1e-15
PROBE_SEED = 20200207
"""Added to the seed, so that the draws behind generic ranks differ from other draws."""


@dataclass(frozen=True, kw_only=True)
class TwoStageSettings(Settings):
    """Settings of a two-stage fit, see :class:`~torchpbp.PBP`."""

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
    seed: int = setting(0, seed())
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


class TwoStageModel(OperatorModel, Learner):
    """An operator model learned by two-stage regression. Arguments: see :class:`~torchpbp.PBP`.

    Attributes:
        settings: of the fit.
        regressor: stage-1 method.
        stage1: nets of stage 1, such as those of ``regressor=MLP()``; None without nets.
        rows: number of training rows; 0 for a population. With ``condition``, the number of rows with a class.
        prior, class_rows: (classes,) shares and training rows of the classes, with ``condition``.
        rank_scores: held-out scores of candidates, with ``rank="auto"``.
        bandwidth_scores: held-out scores of candidates, with ``bandwidth="validate"``.
    """

    rows: Tensor
    class_rows: Tensor
    stage1: nn.Module | None

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
        super().__init__()
        require_graph(graph, type(self).__name__)
        self.settings = TwoStageSettings(
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
        self.dtype: torch.dtype = floating_dtype().check("dtype", dtype)
        regressors = instance(Regressor, expected="Ridge(), KernelRidge(), MLP() or Messages()")
        self.regressor: Regressor = regressors.check("regressor", Ridge() if regressor is None else regressor)
        self.graph = graph
        self.kernel_map, self.encoders = read_features(graph, features, flag().check("context", context))
        self.register_module("stage1", None)
        self.readout: Readout | None = None
        self._check_structure()
        self.labels: dict[str, tuple[Any, ...]] = {}
        self.missing: dict[str, float] = {}
        self.rank_scores: list[RankScore] = []
        self.bandwidth_scores: dict[float, float] = {}
        self.fitted = False
        self._observables = make_observables(graph, self.kernel_map, self.encoders)
        self.register_buffer("floor", torch.tensor(EXACT_FLOOR, dtype=torch.float64))
        self.register_buffer("rows", torch.tensor(0, dtype=torch.int64))
        self.register_load_state_dict_pre_hook(nets_in_state)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_note_loaded)  # type: ignore[no-untyped-call]
        self._plan = None
        if self.condition is not None:
            register_classes(self, graph.num_states(self.condition))
        if self.settings.rank != "auto":
            planned = planned_graph(graph, self.condition)
            dims = {v: d for v, d in self.dims.items() if v in planned.variables}
            self.build(plan_graph(planned, dims, self.settings.plan_options, self.settings.root), self.dtype)

    @property
    def condition(self) -> str | None:
        return self.settings.condition

    def _check_structure(self) -> None:
        """Raise a StructureError if the graph and the settings contradict each other."""
        check_condition(self.graph, self.settings.condition, self.settings.rank)
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

    # -- learning ------------------------------------------------------------------------------------------------

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
        fitter = self.fitter()
        counted = fitter.discrete and not isinstance(self.regressor, RowRegressor)
        device = None if counted else fitter.device  # rows are counted on their device, and the counts moved
        reader = ColumnReader(self.evidence_domains(), self.graph.labels, missing=True, device=device)
        source = open_data(data, reader.states, columns)
        if not fitter.discrete and not source.reopenable:
            raise DataError(
                "Continuous variables need several passes over the data, but it is a one-way iterator. Pass a table, a list "
                "of mini-batches, a file or a DataLoader."
            )
        missing: MissingValues | None = None

        def tables() -> Iterator[dict[str, Tensor]]:
            nonlocal missing
            yield from with_progress(reader.tables(source, batch_size, counted), source.length)
            if missing is None:
                missing = reader.missing_values.over_processes()
                missing.check(stacklevel=2)

        with torch.no_grad():
            result = fitter.fit(tables, self._candidate_plans())
        check_labels(reader.labels)
        self.accept(result, reader.labels)
        if missing is not None:
            self.missing = missing.shares
        self.rank_scores, self.bandwidth_scores = result.rank_scores, result.bandwidth_scores
        return self

    def fit_population(self, network: DiscreteNetwork) -> Self:
        """Learn from the exact moments of a network, as if from infinitely many rows.

        With a regressor other than ridge, all joint states of the observables are enumerated and weighted.
        """
        self.check_population(network)
        classes = None
        if self.condition is None:
            solution = learn_population(self.plan, network, self.regressor)
        else:
            solution, classes = learn_class_population(self.plan, network, self.regressor, self.condition)
        self._adopt(solution, 0, EXACT_FLOOR, self._observables, classes=classes)
        self._keep_nets(solution)
        self.labels = {v: network.labels[v] for v in self.states if v in network.labels}
        self.missing = {}
        return self

    def check_population(self, network: DiscreteNetwork) -> None:
        """Raise an error if the model cannot be fitted to a network's exact probabilities."""
        instance(DiscreteNetwork, expected="a DiscreteNetwork").check("network", network)
        theirs = {v: network.states[v] for v in network.graph.observed}
        if theirs != self.states:
            raise StructureError(f"The network observes {theirs}, the model {self.states}. They must be the same.")
        if self.settings.rank == "auto":
            raise StructureError("rank='auto' is chosen on held-out rows; give a rank to fit a population.")

    def fitter(self) -> Fitter:
        """The fitter with the model's graph, features and settings."""
        return make_fitter(self)

    def accept(self, result: FitResult, labels: Mapping[str, tuple[Any, ...]]) -> None:
        """Set operators, statistics and labels to the result of a fit.

        Args:
            result: of the fit.
            labels: variable -> labels of its states, for columns given by label.
        """
        constant = [] if result.tables is None else result.tables.constant_variables()
        if constant:
            warn_caller(f"Columns {constant} hold one state only: the model learns that they never vary.", DataWarning)
        continuous = [o for o in result.observables if isinstance(o, Observable) and o.continuous]
        warn_of_coarse_grids(
            {o.name: (float(o.bounds.diff()), float(o.map.width)) for o in continuous if isinstance(o.map, KernelMap)}
        )
        exact = result.tables is not None and not isinstance(self.regressor, RowRegressor)
        marginals = result.tables.marginals() if exact and result.tables is not None else None
        floor = clipping_floor(result.rows)
        if result.classes is not None:
            warn_of_classes(result.classes, labels.get(result.classes.name, ()))
        self._adopt(result.solution, int(result.rows), floor, result.observables, marginals, result.classes)
        self._keep_nets(result.solution)
        self.labels = dict(labels)
        self.missing = {} if result.tables is None or not exact else result.tables.missing_shares()

    def _candidate_plans(self) -> dict[int, Plan]:
        """Rank -> candidate plan, with ``rank="auto"``; otherwise 0 -> the plan."""
        s = self.settings
        if s.rank != "auto":
            return {0: self.plan}
        return candidate_plans(self.graph, self.dims, s.plan_options, s.root, s.max_rank)

    def _adopt(
        self,
        solution: Solution,
        rows: int,
        floor: float,
        observables: nn.ModuleList,
        marginals: dict[str, Tensor] | None = None,
        classes: ClassRows | None = None,
    ) -> None:
        if solution.tree.plan is not self._plan:
            self.build(solution.tree.plan, self.dtype)
        self.set_operators(solution.tree.operators, solution.tree.root)
        with torch.no_grad():
            for operator, strengths, significant in zip(
                self.separator_operators, solution.strengths, solution.significant, strict=True
            ):
                operator.strengths.copy_(strengths)
                operator.significant.copy_(torch.as_tensor(significant, device="cpu"))
            if classes is not None:
                adopt_classes(self, classes)
            self.floor.fill_(floor)
            self.rows.fill_(rows)
        self._observables = observables.to(self.device)
        self.fitted = True
        self.set_marginals(marginals)

    def _keep_nets(self, solution: Solution) -> None:
        self.stage1 = None if solution.nets is None else solution.nets.to(self.device)

    # -- inspection ----------------------------------------------------------------------------------------------

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
        observables, tree = self.observables, self.operator_tree
        with torch.no_grad():
            estimates = tree.estimates(self.prepare(self.read_evidence(evidence)))
        discrete = {
            n: e
            for n, e in estimates.items()
            if not any(observables[v].continuous for v in self.tree.leaf_observables[n])
        }
        labels = [] if self.condition is None else state_labels(self, self.condition)
        return diagnostics_table(self.plan, self.separator_operators, discrete, labels)

    def predicted_messages(self, evidence: EvidenceLike = None) -> dict[str, PredictedMessage]:
        """Messages of all separators as predicted by the nets of stage 1 from the evidence outside each.

        Args:
            evidence: states and values, as in :meth:`posterior`. A row may observe any variables; the others are hidden from
                the nets.

        Returns:
            Separator, named as in :meth:`diagnostics`, -> :class:`~torchpbp.learning.stage1_nets.PredictedMessage`: the message
            (batch, rank) and the products below it (batch, sizes below…), both averages over the nets of all folds. With
            ``condition`` both have a leading class dimension.

        Raises:
            StructureError: a model without nets in stage 1.
            QueryError: weights of states.
        """
        return predicted_messages(self, self.read_evidence(evidence))

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

    def pack(self, name: object, options: SaveOptions) -> dict[str, Any]:
        self.require_fitted()
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
            "stage1": pack_stage1(self.stage1),
            "dtype": self.root.weight.dtype,
            "state": state,
        }

    def restore_parts(self, content: Mapping[str, Any]) -> None:
        """Create the modules of a file other than operators and encoders; their state is copied afterwards."""

    @classmethod
    def unpack(cls, content: Mapping[str, Any], name: object) -> Self:
        settings, state = dict(content["settings"]), dict(content["state"])
        graph = LatentGraph.from_dict(content["graph"])
        encoders = unpack_encoders(content["encoders"], content.get("user_encoders"), name)
        require_finite(numbers_in_answers(state), name)
        rank, condition = settings.pop("rank"), settings.pop("condition")
        if condition is not None:
            require_condition(graph, condition)
        model = cls(
            graph,
            rank="auto",  # operators are made from the saved plan instead of a new one
            dtype=content["dtype"],
            features=_saved_features(graph, content["features"], encoders),
            context=bool(encoders) and bool(content["encoders"]["context"]),
            **settings,
        )
        require_sizes(model.encoders, content["encoders"], name)
        model.settings = TwoStageSettings(rank=rank, condition=condition, **settings)
        if condition is not None:
            register_classes(model, graph.num_states(condition))
        resolved = planned = planned_graph(graph, condition)
        if content["resolved_graph"] is not None:
            resolved = LatentGraph.from_dict(content["resolved_graph"])
            require_none(graph_fault(planned, resolved), name)
        plan = Plan.from_list(build_junction_tree(resolved, model.settings.root), content["specification"])
        model.build(plan, model.dtype)
        require_none(restore_stage1(model, content["stage1"], state), name)
        model.restore_parts(content)
        require_none(copy_state(model, state), name)
        model.labels = checked_labels(content["labels"], graph.variables, name)
        model.missing = content["missing"]
        model.fitted = True
        return model


def _saved_features(
    graph: LatentGraph, saved: Mapping[str, Any] | None, encoders: Mapping[str, nn.Module]
) -> KernelMap | dict[str, nn.Module] | None:
    """The argument ``features`` of a model from its file."""
    kernel_map = None if saved is None else KernelMap.from_dict(saved)
    if not encoders:
        return kernel_map
    numbers = [v for v in graph.observed if isinstance(graph.variables[v], Continuous) and v not in encoders]
    return dict(encoders) | ({} if kernel_map is None else dict.fromkeys(numbers, kernel_map))


def _note_loaded(model: nn.Module, _: Any) -> None:
    """Mark a model as fitted after its operators were loaded by a state dict, such as that of an enclosing network."""
    if isinstance(model, TwoStageModel) and model._plan is not None and not model.root.weight.is_meta:
        model.fitted = model.fitted or bool(model.root.weight.any())
