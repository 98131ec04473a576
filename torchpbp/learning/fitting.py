"""The steps of a fit: plan → moments → stage 1 → compression → stage 2 → operators.

:meth:`Fitter.fit` fits feature maps of continuous variables, chooses the plan on held-out rows if there are several ranks, computes
moments in one pass, and solves the two stages of :mod:`torchpbp.learning.two_stage`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.distributed import gather_objects, gather_rows
from torchpbp.errors import DataError
from torchpbp.features.completion import complete_table
from torchpbp.features.maps import KernelMap
from torchpbp.inference.observable import Observable
from torchpbp.inputs.evidence import Evidence
from torchpbp.inputs.missing_values import observed
from torchpbp.learning.feature_fitting import Tables, fit_observables, mean_features, thinned_rows
from torchpbp.learning.rank_selection import HoldOut, RankScore, choose_rank, leave_one_out
from torchpbp.learning.stage1 import Penalties, Regressor, RowRegressor
from torchpbp.learning.two_stage import Solution, learn
from torchpbp.moments.class_rows import ClassRows
from torchpbp.moments.feature_moments import FeatureMoments
from torchpbp.moments.joint_tables import JointTables, count_tables
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import TrainingRows
from torchpbp.moments.table_moments import TableMoments
from torchpbp.moments.thinning import ThinnedRows
from torchpbp.planning.plan import Plan

RowWeights = Callable[[Mapping[str, Tensor]], Tensor]
"""Returns (rows,) weights for the rows of a mini-batch."""
FLOOR_ROWS = 3.0
"""Smallest probability of an estimate, in rows: 3 / N."""
BANDWIDTH_SCALES = (0.1, 0.2, 0.35, 0.6, 1.0)
"""Candidates for ``bandwidth="validate"``, as multiples of the median distance between training values."""


@dataclass(frozen=True)
class FitResult:
    """Result of a fit.

    Args:
        solution: operators on the chosen plan.
        rows: number of rows, over all processes.
        observables: observables with fitted feature maps.
        tables: joint tables of the moments, if all variables are discrete.
        rank_scores: scores of the candidates for the rank.
        bandwidth_scores: scores of the candidates for the bandwidth.
        classes: rows of each class, for one operator tree per class.
    """

    solution: Solution
    rows: float
    observables: nn.ModuleList
    tables: JointTables | None = None
    rank_scores: list[RankScore] = field(default_factory=list)
    bandwidth_scores: dict[float, float] = field(default_factory=dict)
    classes: ClassRows | None = None


class Fitter:
    """One fit of a model.

    Args:
        observables: observables of the model, in its order; they are not modified.
        kernel_map: map for continuous variables.
        regressor: stage-1 method.
        ridge: penalties of the stages, in pseudo-rows.
        whitening: regularisation of the whitening of kernel features.
        seed: seed of the held-out split.
        device: device of the model, on which the stages are solved.
    """

    def __init__(
        self,
        observables: Mapping[str, Observable],
        kernel_map: KernelMap | None,
        *,
        regressor: Regressor,
        ridge: tuple[float, float],
        whitening: float,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.observables, self.kernel_map, self.regressor = dict(observables), kernel_map, regressor
        self.device = torch.device(device)
        self.ridge, self.whitening, self.seed = ridge, whitening, seed
        self.states = {v: o.map.dim for v, o in self.observables.items() if not o.continuous}
        self.discrete = len(self.states) == len(self.observables)
        self._thinned: ThinnedRows | None = None  # training values of the feature maps

    # -- the steps -----------------------------------------------------------------------------------------------

    def fit(self, tables: Tables, plans: Mapping[int, Plan]) -> FitResult:
        """Learn the plan; of several plans, the one that scores best on held-out rows.

        Args:
            tables: the rows of this process.
            plans: candidates by rank.
        """
        if isinstance(self.regressor, RowRegressor):
            tables = self._in_memory(tables)
        observables, bandwidth_scores = self._fit_observables(tables, plans)
        plan, moments, rank_scores = self._choose_plan(tables, observables, plans)
        solution = self._learn(plan, moments, tables, observables)
        counts = None
        if isinstance(moments, TableMoments):
            counts = moments.tables if len(plans) == 1 else moments.tables.restricted(self.required_tables([plan]))
        return FitResult(solution, moments.rows, observables, counts, rank_scores, bandwidth_scores)

    def fit_counts(self, plan: Plan, counts: JointTables) -> FitResult:
        """Learn from counts, for discrete variables and linear stage 1."""
        moments = TableMoments(counts.to(self.device))
        solution = learn(plan, moments, self.regressor, self._penalties(counts.rows))
        return FitResult(solution, counts.rows, nn.ModuleList(self.observables.values()), counts)

    def required_tables(self, plans: Sequence[Plan]) -> list[tuple[str, ...]]:
        """Groups of variables whose joint tables some plans need."""
        return [group for plan in plans for group in self.regressor.required_tables(plan)]

    def count(self, tables: Tables, groups: Iterable[Iterable[str]]) -> JointTables:
        """Count the rows of this process, for discrete variables."""
        return count_tables(tables(), groups, self.states)

    # -- rows and features ---------------------------------------------------------------------------------------

    def _in_memory(self, tables: Tables) -> Tables:
        """All rows in memory, for regressors on rows; missing values are imputed from similar rows."""
        parts = list(tables())
        if not all(bool(observed(x).all()) for part in parts for x in part.values()):
            table = {v: torch.cat([part[v] for part in parts]) for v in self.observables}
            parts = [complete_table(table, {v: o.domain for v, o in self.observables.items()}, self.seed)]
        return lambda: iter(parts)

    def _fit_observables(self, tables: Tables, plans: Mapping[int, Plan]) -> tuple[nn.ModuleList, dict[float, float]]:
        """Observables with fitted feature maps, and scores of bandwidths if one is chosen on held-out rows."""
        if self.discrete:
            return nn.ModuleList(self.observables.values()), {}
        rows = self._thinned = thinned_rows(self.observables, tables)
        if self.kernel_map is None or self.kernel_map.bandwidth != "validate":
            return fit_observables(self.observables, self.kernel_map, rows), {}
        candidates = {s: fit_observables(self.observables, self.kernel_map, rows, s) for s in BANDWIDTH_SCALES}
        scores = {}
        for scale, observables in candidates.items():
            by_rank, _, _ = self._held_out_scores(tables, observables, plans)
            scores[scale] = max(float(s.mean()) for s in by_rank.values())
        return candidates[max(scores, key=scores.__getitem__)], scores

    # -- plan and moments ----------------------------------------------------------------------------------------

    def _choose_plan(
        self, tables: Tables, observables: nn.ModuleList, plans: Mapping[int, Plan]
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
            moments.tables.merge(rest.to(self.device))
            return plans[chosen], TableMoments(moments.tables), scores
        return plans[chosen], self._moments([plans[chosen]], tables, observables), scores

    def _moments(
        self, plans: Sequence[Plan], tables: Tables, observables: nn.ModuleList, weight: RowWeights | None = None
    ) -> Moments:
        """Moments for learning some plans, over all processes: one pass, or one per plan for kernel features.

        Args:
            plans: plans to learn.
            tables: the rows of this process.
            observables: observables with fitted feature maps.
            weight: returns (rows,) weights for the moments of a mini-batch.
        """
        if self.discrete:
            counts = self.count(tables, self.required_tables(plans))
            counts.sum_over_processes()
            return TableMoments(counts.to(self.device))
        separators = [s for plan in plans for s in self.regressor.required_separators(plan)]
        pairs = [] if separators else [pair for plan in plans for pair in self.regressor.required_pairs(plan)]
        missing = {} if self._thinned is None else mean_features(observables, self._thinned)
        options = (separators, weight, self.device)
        return FeatureMoments(_maps(observables), tables, pairs, self.whitening, missing, *options)

    def _held_out_scores(
        self, tables: Tables, observables: nn.ModuleList, plans: Mapping[int, Plan]
    ) -> tuple[dict[int, Tensor], Moments, dict[str, Tensor]]:
        """Scores of each plan on the held-out rows of all processes, moments of the other rows, and local held-out rows."""
        hold_out = HoldOut(tables, self.seed)
        moments = self._moments(list(plans.values()), hold_out.learning_rows, observables)
        hold_out.check_counts(moments.rows)
        held = {v: (x if x.is_floating_point() else x.long()).to(self.device) for v, x in hold_out.rows.items()}
        named = {o.name: o for o in observables if isinstance(o, Observable)}
        evidence = Evidence(
            len(next(iter(held.values()))),
            {v: x.where(x != self.states[v], -1) for v, x in held.items() if not named[v].continuous},
            real={v: x for v, x in held.items() if named[v].continuous},
        )
        scores = {}
        for rank, plan in plans.items():
            tree = self._learn(plan, moments, hold_out.learning_rows, observables).tree
            scores[rank] = gather_rows(leave_one_out(tree, named, evidence, clipping_floor(moments.rows)))
        return scores, moments, held

    # -- the two stages ------------------------------------------------------------------------------------------

    def learn_tables(
        self, plan: Plan, tables: Tables, observables: nn.ModuleList, weight: RowWeights | None = None
    ) -> Solution:
        """Operators of a plan from all rows of some tables, with fitted feature maps."""
        return self._learn(plan, self._moments([plan], tables, observables, weight), tables, observables)

    def share_thinned(self, other: Fitter) -> None:
        """Use the training values of another fit's feature maps."""
        self._thinned = other._thinned

    def _learn(self, plan: Plan, moments: Moments, tables: Tables, observables: nn.ModuleList) -> Solution:
        rows = None
        if isinstance(self.regressor, RowRegressor):
            parts, maps = list(tables()), _maps(observables)
            rows = TrainingRows.of({v: torch.cat([part[v] for part in parts]) for v in maps}, maps)
        return learn(plan, moments, self.regressor, self._penalties(moments.rows), rows)

    def _penalties(self, rows: float) -> Penalties:
        return Penalties(self.ridge[0] / rows, self.ridge[1] / rows)


def _maps(observables: nn.ModuleList) -> dict[str, Any]:
    return {o.name: o.map for o in observables if isinstance(o, Observable)}


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
