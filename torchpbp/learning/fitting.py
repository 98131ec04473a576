"""How a model is fitted: from counts, from rows, or through nets of leaves.

Each way is a :class:`Fitter`, which turns rows, or the exact probabilities of a network, into operators:
plan → moments → stage 1 → compression → stage 2. With a class variable both stages are solved per class, with a common plan
and common feature maps; a class is shrunk towards all rows by pseudo-rows from the pooled distribution.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from torchpbp.distributed import gather_objects, gather_rows, sum_over_processes
from torchpbp.errors import DataError, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.features.completion import complete_table
from torchpbp.features.maps import KernelMap
from torchpbp.inference.observable import Observable
from torchpbp.inference.operator_net import EXACT_FLOOR
from torchpbp.inputs.evidence import Evidence
from torchpbp.inputs.missing_values import observed
from torchpbp.learning.feature_fitting import Tables, fit_observables, mean_features, thinned_rows
from torchpbp.learning.population import population_rows
from torchpbp.learning.rank_selection import HoldOut, RankScore, choose_rank, leave_one_out
from torchpbp.learning.stage1 import Penalties, Regressor, RowRegressor
from torchpbp.learning.two_stage import Solution, learn, stacked
from torchpbp.moments.class_rows import ClassRows, class_tables
from torchpbp.moments.feature_moments import FeatureMoments
from torchpbp.moments.joint_tables import JointTables, count_tables
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import TrainingRows
from torchpbp.moments.table_moments import TableMoments
from torchpbp.moments.thinning import ThinnedRows
from torchpbp.planning.plan import Plan

FLOOR_ROWS = 3.0
"""Smallest probability of an estimate, in rows: 3 / N."""
BANDWIDTH_SCALES = (0.1, 0.2, 0.35, 0.6, 1.0)
"""Candidates for ``bandwidth="validate"``, as multiples of the median distance between training values."""

Observables = Mapping[str, Observable]
RowWeights = Callable[[Mapping[str, Tensor]], Tensor]
"""Returns (rows,) weights for the rows of a mini-batch."""


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """Result of a fit.

    Args:
        solution: operators on the chosen plan.
        rows: number of rows over all processes, of rows with a class if there are classes; 0 for a population.
        floor: smallest probability in answers.
        observables: observables with fitted feature maps, in the order of the model.
        counts: joint tables of the rows, after a fit from counts.
        constant: variables of which the rows hold one state only.
        classes: rows of each class.
        rank_scores: scores of the candidates for the rank.
        bandwidth_scores: scores of the candidates for the bandwidth.
    """

    solution: Solution
    rows: float
    floor: float
    observables: Observables
    counts: JointTables | None = None
    constant: Sequence[str] = ()
    classes: ClassRows | None = None
    rank_scores: Sequence[RankScore] = ()
    bandwidth_scores: Mapping[float, float] = field(default_factory=dict)


class Fitter(ABC):
    """One way to fit a model.

    Attributes:
        device: of the rows that :meth:`fit` reads; None: rows stay on their device.
        narrow: whether states are read in the smallest integer dtype.
        several_passes: the reason for several passes over the rows, which begins the error about one-way iterators; empty if one
            pass suffices.
        largest_batch: most rows of a table at once; None: no limit.
    """

    device: torch.device | None
    narrow = False
    several_passes = ""
    largest_batch: int | None = None

    @abstractmethod
    def fit(self, tables: Tables, plans: Mapping[int, Plan]) -> FitResult:
        """Learn the plan; of several plans, the one that scores best on held-out rows.

        Args:
            tables: the rows of this process.
            plans: candidates by rank.
        """

    @abstractmethod
    def fit_population(self, plan: Plan, network: DiscreteNetwork) -> FitResult:
        """Learn from the exact probabilities of a network, the limit of infinitely many rows, without penalties."""


class TwoStageFitter(Fitter):
    """A fit by both closed-form stages.

    Args:
        observables: observables of the model, in its order; they are not modified.
        kernel_map: map for continuous variables.
        regressor: stage-1 method.
        ridge: penalties of the stages, in pseudo-rows.
        whitening: regularisation of the whitening of kernel features.
        seed: of the held-out split.
        device: of the model, on which the stages are solved.
        condition: the class variable, among the observables; None for a single tree. Rows without a class are excluded, but
            feature maps of continuous variables are fitted to all rows.
        shrinkage: number of pseudo-rows added to each class.
    """

    def __init__(
        self,
        observables: Observables,
        kernel_map: KernelMap | None,
        *,
        regressor: Regressor,
        ridge: tuple[float, float],
        whitening: float,
        seed: int,
        device: torch.device | str = "cpu",
        condition: str | None = None,
        shrinkage: float = 0.0,
    ) -> None:
        self.observables, self.kernel_map, self.regressor = dict(observables), kernel_map, regressor
        self.ridge, self.whitening, self.seed = ridge, whitening, seed
        self.solve_device = torch.device(device)
        self.condition, self.shrinkage = condition, shrinkage
        self.states = {v: o.map.dim for v, o in self.observables.items() if not o.continuous}

    def penalties(self, rows: float) -> Penalties:
        """Penalties λ of both stages for a number of rows."""
        return Penalties(self.ridge[0] / rows, self.ridge[1] / rows)

    def required_tables(self, plans: Iterable[Plan]) -> list[tuple[str, ...]]:
        """Groups of variables whose joint tables some plans need."""
        classes = () if self.condition is None else (self.condition,)
        return [(*group, *classes) for plan in plans for group in self.regressor.required_tables(plan)]

    def count(self, tables: Tables, groups: Iterable[Iterable[str]]) -> JointTables:
        """Joint tables of the rows of this process, for discrete variables."""
        return count_tables(tables(), groups, self.states)

    def _choose_plan(
        self, tables: Tables, observables: Observables, plans: Mapping[int, Plan]
    ) -> tuple[Plan, Moments, list[RankScore]]:
        """The plan to learn, moments of all rows, and scores of the ranks."""
        if len(plans) == 1:
            (plan,) = plans.values()
            return plan, self._moments([plan], tables, observables), []
        by_rank, moments, held = self._held_out_scores(tables, observables, plans)
        chosen, scores = choose_rank(by_rank)
        if isinstance(moments, TableMoments):
            rest = self.count(lambda: iter([held]), moments.tables.scopes)
            rest.sum_over_processes()
            moments.tables.merge(rest.to(self.solve_device))
            counts = moments.tables.restricted(self.required_tables([plans[chosen]]))
            return plans[chosen], TableMoments(counts), scores
        return plans[chosen], self._moments([plans[chosen]], tables, observables), scores

    @abstractmethod
    def _moments(self, plans: Sequence[Plan], tables: Tables, observables: Observables) -> Moments:
        """Moments for learning some plans, over all processes."""

    @abstractmethod
    def _learn(self, plan: Plan, moments: Moments, tables: Tables, observables: Observables) -> Solution:
        """Operators from the moments of rows."""

    def _held_out_scores(
        self, tables: Tables, observables: Observables, plans: Mapping[int, Plan]
    ) -> tuple[dict[int, Tensor], Moments, dict[str, Tensor]]:
        """Scores of each plan on the held-out rows of all processes, moments of the other rows, and local held-out rows."""
        hold_out = HoldOut(tables, self.seed)
        moments = self._moments(list(plans.values()), hold_out.learning_rows, observables)
        hold_out.check_counts(moments.rows)
        rows = hold_out.rows
        held = {v: (x if x.is_floating_point() else x.long()).to(self.solve_device) for v, x in rows.items()}
        evidence = Evidence(
            len(next(iter(held.values()))),
            {v: x.where(x != self.states[v], -1) for v, x in held.items() if v in self.states},
            real={v: x for v, x in held.items() if v not in self.states},
        )
        scores = {}
        for rank, plan in plans.items():
            tree = self._learn(plan, moments, hold_out.learning_rows, observables).tree
            scores[rank] = gather_rows(leave_one_out(tree, observables, evidence, clipping_floor(moments.rows)))
        return scores, moments, held

    def _each(self, rows: ClassRows, solve: Callable[[int], Solution]) -> Solution:
        """Solutions of all classes, one common solution for classes without rows. Errors name the class."""
        result: dict[int, Solution] = {}
        for label in range(len(rows)):
            if label in rows.empty[1:]:
                result[label] = result[rows.empty[0]]
                continue
            try:
                result[label] = solve(label)
            except (DataError, StructureError) as error:
                count = int(rows.counts[label])
                raise type(error)(f"State {label} of '{self.condition}', which {count:,} rows have: {error}") from None
        return stacked(list(result.values()))


class CountFitter(TwoStageFitter):
    """A fit from counts of small groups of discrete variables, in one pass."""

    device = None
    narrow = True

    def fit(self, tables: Tables, plans: Mapping[int, Plan]) -> FitResult:
        plan, moments, scores = self._choose_plan(tables, self.observables, plans)
        assert isinstance(moments, TableMoments)
        return replace(self.fit_counts(plan, moments.tables), rank_scores=scores)

    def fit_counts(self, plan: Plan, counts: JointTables) -> FitResult:
        """Learn from counts of all rows."""
        solution, classes = self.solve(plan, counts)
        rows = counts.rows if classes is None else classes.total
        return FitResult(
            solution=solution,
            rows=rows,
            floor=clipping_floor(rows),
            observables=self.observables,
            counts=counts,
            constant=counts.constant_variables(),
            classes=classes,
        )

    def fit_population(self, plan: Plan, network: DiscreteNetwork) -> FitResult:
        exact = copy.copy(self)
        exact.ridge, exact.shrinkage = (0.0, 0.0), 0.0
        tables = JointTables(exact.required_tables([plan]), self.states, device=network.device)
        tables.fill(network.joint)
        solution, classes = exact.solve(plan, tables)
        return FitResult(solution=solution, rows=0, floor=EXACT_FLOOR, observables=self.observables, classes=classes)

    def solve(self, plan: Plan, counts: JointTables) -> tuple[Solution, ClassRows | None]:
        """Both stages, and the rows of each class; counts may have a leading dimension of bootstrap replicates."""
        counts = counts.to(self.solve_device)
        if self.condition is None:
            return learn(plan, TableMoments(counts), self.regressor, self.penalties(counts.rows)), None
        rows, tables = class_tables(counts, self.condition, self.shrinkage)

        def solve_class(label: int) -> Solution:
            return learn(plan, TableMoments(tables[label]), self.regressor, self.penalties(tables[label].rows))

        return self._each(rows, solve_class), rows

    def _moments(self, plans: Sequence[Plan], tables: Tables, observables: Observables) -> Moments:
        counts = self.count(tables, self.required_tables(plans))
        counts.sum_over_processes()
        return TableMoments(counts.to(self.solve_device))

    def _learn(self, plan: Plan, moments: Moments, tables: Tables, observables: Observables) -> Solution:
        return learn(plan, moments, self.regressor, self.penalties(moments.rows))


class RowFitter(TwoStageFitter):
    """A fit from the rows themselves: for continuous variables, and for regressors that need rows."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.device = self.solve_device
        self.discrete = len(self.states) == len(self.observables)
        self.several_passes = "" if self.discrete else "Continuous variables need several passes over the data"
        self._thinned: ThinnedRows | None = None  # training values of the feature maps

    def fit(self, tables: Tables, plans: Mapping[int, Plan]) -> FitResult:
        if self.condition is not None:
            return self._fit_classes(tables, plans)
        if isinstance(self.regressor, RowRegressor):
            tables = self._completed(tables)
        observables, bandwidth_scores = self._fit_observables(tables, plans)
        plan, moments, rank_scores = self._choose_plan(tables, observables, plans)
        return FitResult(
            solution=self._learn(plan, moments, tables, observables),
            rows=moments.rows,
            floor=clipping_floor(moments.rows),
            observables=observables,
            constant=moments.tables.constant_variables() if isinstance(moments, TableMoments) else (),
            rank_scores=rank_scores,
            bandwidth_scores=bandwidth_scores,
        )

    def fit_population(self, plan: Plan, network: DiscreteNetwork) -> FitResult:
        """The rows of a :class:`RowRegressor` are all joint states of the observables, weighted."""
        tables = JointTables(self.required_tables([plan]), self.states, device=network.device)
        tables.fill(network.joint)
        worlds = population_rows(network, self.states, f"a model with {self.regressor!r}")
        exact = Penalties(0.0, 0.0)
        classes = None
        if self.condition is None:
            solution = learn(plan, TableMoments(tables), self.regressor, exact, worlds)
        else:
            name = self.condition
            classes, by_class = class_tables(tables, name, 0.0)
            chosen = [label if share else None for label, share in enumerate(classes.counts.tolist())]
            solution = stacked(
                [
                    learn(plan, TableMoments(part), self.regressor, exact, worlds.given(name, label))
                    for part, label in zip(by_class, chosen, strict=True)
                ]
            )
        return FitResult(solution=solution, rows=0, floor=EXACT_FLOOR, observables=self.observables, classes=classes)

    # -- rows and features ---------------------------------------------------------------------------------------

    def _completed(self, tables: Tables) -> Tables:
        """All rows in memory, for regressors on rows; missing values are imputed from similar rows."""
        parts = list(tables())
        if not all(bool(observed(x).all()) for part in parts for x in part.values()):
            table = {v: torch.cat([part[v] for part in parts]) for v in self.observables}
            parts = [complete_table(table, {v: o.domain for v, o in self.observables.items()}, self.seed)]
        return lambda: iter(parts)

    def _fit_observables(self, tables: Tables, plans: Mapping[int, Plan]) -> tuple[Observables, dict[float, float]]:
        """Observables with fitted feature maps, and scores of bandwidths if one is chosen on held-out rows."""
        if self.discrete:
            return self.observables, {}
        rows = self._thinned = thinned_rows(self.observables, tables)
        if self.kernel_map is None or self.kernel_map.bandwidth != "validate":
            return fit_observables(self.observables, self.kernel_map, rows), {}
        candidates = {s: fit_observables(self.observables, self.kernel_map, rows, s) for s in BANDWIDTH_SCALES}
        scores = {}
        for scale, observables in candidates.items():
            by_rank, _, _ = self._held_out_scores(tables, observables, plans)
            scores[scale] = max(float(s.mean()) for s in by_rank.values())
        return candidates[max(scores, key=scores.__getitem__)], scores

    def _moments(
        self, plans: Sequence[Plan], tables: Tables, observables: Observables, weight: RowWeights | None = None
    ) -> Moments:
        """Moments for learning some plans: one pass, or one per plan for kernel features.

        Args:
            plans: plans to learn.
            tables: the rows of this process.
            observables: observables with fitted feature maps.
            weight: returns (rows,) weights for the moments of a mini-batch.
        """
        if self.discrete:
            groups = [group for plan in plans for group in self.regressor.required_tables(plan)]
            counts = self.count(tables, groups)
            counts.sum_over_processes()
            return TableMoments(counts.to(self.solve_device))
        separators = [s for plan in plans for s in self.regressor.required_separators(plan)]
        pairs = [] if separators else [pair for plan in plans for pair in self.regressor.required_pairs(plan)]
        missing = {} if self._thinned is None else mean_features(observables, self._thinned)
        maps = {v: o.map for v, o in observables.items()}
        return FeatureMoments(maps, tables, pairs, self.whitening, missing, separators, weight, self.solve_device)

    def _learn(self, plan: Plan, moments: Moments, tables: Tables, observables: Observables) -> Solution:
        rows = None
        if isinstance(self.regressor, RowRegressor):
            parts, maps = list(tables()), {v: o.map for v, o in observables.items()}
            rows = TrainingRows.of({v: torch.cat([part[v] for part in parts]) for v in maps}, maps)
        return learn(plan, moments, self.regressor, self.penalties(moments.rows), rows)

    # -- classes -------------------------------------------------------------------------------------------------

    def _fit_classes(self, tables: Tables, plans: Mapping[int, Plan]) -> FitResult:
        """Learn the operators of each class, with common feature maps."""
        (plan,) = plans.values()
        if isinstance(self.regressor, RowRegressor):
            parts = list(tables())
            rows = self._class_rows(lambda: iter(parts))
            tables = self._completed(self._labelled(lambda: iter(parts)))
        else:
            rows = self._class_rows(tables)
        observables, bandwidth_scores = self._fit_observables(tables, plans)
        others = {v: o for v, o in observables.items() if v != self.condition}
        labelled = self._labelled(tables)
        solution = self._each(rows, lambda label: self._learn_class(plan, labelled, others, rows, label))
        return FitResult(
            solution=solution,
            rows=rows.total,
            floor=clipping_floor(rows.total),
            observables=observables,
            classes=rows,
            bandwidth_scores=bandwidth_scores,
        )

    def _learn_class(
        self, plan: Plan, labelled: Tables, observables: Observables, rows: ClassRows, label: int
    ) -> Solution:
        """Operators of one class; the class is a weight of rows, or for a :class:`RowRegressor` a choice of rows."""
        weight: RowWeights | None = None
        if isinstance(self.regressor, RowRegressor):
            table = self._with_pseudo_rows(labelled, rows, label)
            tables: Tables = lambda: iter([table])  # noqa: E731
        else:
            tables = labelled
            weight = lambda batch: rows.row_weights(label, batch[rows.name])  # noqa: E731
        return self._learn(plan, self._moments([plan], tables, observables, weight), tables, observables)

    def _with_pseudo_rows(self, labelled: Tables, rows: ClassRows, label: int) -> dict[str, Tensor]:
        """Rows and pseudo-rows of a class in this process; all rows for a class without any."""
        parts = list(labelled())
        table = {v: torch.cat([part[v] for part in parts]) for v in self.observables}
        classes = table[rows.name]
        if label in rows.empty:
            return table
        generator = torch.Generator().manual_seed((self.seed + label) % (1 << 63))
        share = min(len(classes), round(rows.shrinkage * len(classes) / rows.total))
        drawn = torch.randperm(len(classes), generator=generator, device="cpu")[:share].to(classes.device)
        chosen = torch.cat([(classes == label).nonzero().squeeze(1), drawn])
        return {v: x[chosen] for v, x in table.items()}

    def _class_rows(self, tables: Tables) -> ClassRows:
        """Numbers of rows of each class, over all processes."""
        assert self.condition is not None
        classes = self.states[self.condition]
        counts = torch.zeros(classes + 1, dtype=torch.float64, device=self.solve_device)
        for table in tables():
            column = table[self.condition]
            counts += torch.bincount(torch.where(observed(column), column, classes), minlength=classes + 1)
        sum_over_processes(counts)
        return ClassRows(self.condition, counts[:classes], float(counts[classes]), self.shrinkage)

    def _labelled(self, tables: Tables) -> Tables:
        """The rows with a class."""
        name = self.condition
        assert name is not None

        def chosen() -> Iterator[dict[str, Tensor]]:
            for table in tables():
                labelled = observed(table[name])
                yield table if bool(labelled.all()) else {v: x[labelled] for v, x in table.items()}

        return chosen


def clipping_floor(rows: float) -> float:
    """Smallest probability in the posteriors of a model learned from ``rows`` rows."""
    return min(FLOOR_ROWS / rows, 0.01)


def check_labels(labels: Mapping[str, Sequence[Any]]) -> None:
    """Raise a DataError if processes have read different labels."""
    for rank, theirs in enumerate(gather_objects(dict(labels))):
        if theirs != dict(labels):
            raise DataError(
                f"Process {rank} has read other labels than this one: {theirs} and {dict(labels)}. Use category columns with "
                "the same categories in every share of the data."
            )
