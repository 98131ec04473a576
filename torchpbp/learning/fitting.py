"""From rows to operators: feature maps, moments, choices on held-out rows, and the two stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.distributed import gather_objects, gather_rows, sum_over_processes
from torchpbp.errors import DataError
from torchpbp.features.completion import complete_table
from torchpbp.features.maps import KernelMap
from torchpbp.features.scales import check_span
from torchpbp.inference.operators import operator_shapes
from torchpbp.inference.schedule import build_schedule
from torchpbp.inference.variables import Observable, make_map
from torchpbp.inputs.evidence import Evidence
from torchpbp.inputs.gaps import observed
from torchpbp.learning.linear import learn, required_pairs, required_scopes
from torchpbp.learning.messages import Messages
from torchpbp.learning.own_messages import distinct_rows, learn_by_messages
from torchpbp.learning.rank_selection import HoldOut, RankScore, choose_rank, leave_one_out
from torchpbp.learning.regressed import learn_regressed, required_own_pairs, required_own_scopes
from torchpbp.learning.regressor import Regressor
from torchpbp.learning.two_stage import Learned, targets
from torchpbp.moments.feature_moments import FeatureMoments
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import Rows
from torchpbp.moments.table_moments import TableMoments
from torchpbp.moments.thinning import ThinnedRows
from torchpbp.planning.planner import Plan

FLOOR_ROWS = 3.0
"""An estimate is clipped at this many rows' worth of probability: 3 / N."""
MAP_ROWS = 20_000
"""Most rows from which feature maps of continuous variables are fitted; they are spread evenly over the data."""
BANDWIDTH_SCALES = (0.1, 0.2, 0.35, 0.6, 1.0)
"""Candidates for ``bandwidth="validate"``, as multiples of the median distance between training values."""

Tables = Callable[[], Iterator[dict[str, Tensor]]]
"""Gives a fresh iterator over the rows of this process in mini-batches."""


@dataclass
class Fitted:
    """What a fit has found.

    Args:
        plan: tree and specification chosen.
        learned: operators.
        rows: number of rows, over all processes.
        observables: with their feature maps.
        constant: discrete columns that hold one state only.
        counts: tables behind the operators, where nothing else is.
        rank_scores: of the candidates for the rank.
        bandwidth_scores: of the candidates for the bandwidth.
    """

    plan: Plan
    learned: Learned
    rows: float
    observables: nn.ModuleList
    constant: list[str]
    counts: JointTables | None = None
    rank_scores: list[RankScore] = field(default_factory=list)
    bandwidth_scores: dict[float, float] = field(default_factory=dict)

    @property
    def floor(self) -> float:
        """What answers are clipped at."""
        return clipping_floor(self.rows)


class Fitter:
    """One fit of a model.

    Args:
        observables: of the model, in its order; they are left as they are.
        kernel_map: map for continuous variables.
        regressor: stage-1 method.
        ridge: penalties of the stages, in pseudo-rows.
        whitening: regularisation of the whitening of kernel features.
        compressed: whether messages are compressed.
        seed: of the held-out split.
    """

    def __init__(
        self,
        observables: Mapping[str, Observable],
        kernel_map: KernelMap | None,
        regressor: Regressor,
        ridge: tuple[float, float],
        whitening: float,
        compressed: bool,
        seed: int,
    ) -> None:
        self.observables, self.kernel_map = dict(observables), kernel_map
        self.regressor, self.ridge = regressor, ridge
        self.whitening, self.compressed, self.seed = whitening, compressed, seed
        self.states = {v: o.map.dim for v, o in self.observables.items() if not o.continuous}
        self.discrete = len(self.states) == len(self.observables)
        self._thinned = ThinnedRows([], MAP_ROWS)

    @property
    def takes_gaps(self) -> bool:
        """Whether training rows may have missing values."""
        return self.compressed or self.regressor.needs_rows

    def fit(self, tables: Tables, plans: Mapping[int, Plan]) -> Fitted:
        """Learn the plan given, or the one of several that does best on held-out rows."""
        if self.regressor.needs_rows:  # they stay in memory anyway
            parts = self._completed(list(tables()))

            def tables() -> Iterator[dict[str, Tensor]]:
                return iter(parts)

        bandwidth_scores: dict[float, float] = {}
        observables = nn.ModuleList(self.observables.values())
        if not self.discrete:
            observables, bandwidth_scores = self._with_maps(tables, plans)
        if len(plans) > 1:
            chosen, scores, moments = self._select(tables, observables, plans)
        else:
            chosen, scores, moments = next(iter(plans)), [], self._moments(list(plans.values()), tables, observables)
        learned = self._learn(plans[chosen], moments, tables, observables)
        constant = moments.tables.constant_variables() if isinstance(moments, TableMoments) else []
        counts = None
        if isinstance(moments, TableMoments) and not self.regressor.needs_rows:
            counts = moments.tables if len(plans) == 1 else moments.tables.restricted(required_scopes(*plans[chosen]))
        return Fitted(plans[chosen], learned, moments.rows, observables, constant, counts, scores, bandwidth_scores)

    def _completed(self, parts: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Rows for regressors, which look at whole rows: gaps are filled from rows like theirs."""
        if all(bool(observed(x).all()) for part in parts for x in part.values()):
            return parts
        table = {v: torch.cat([part[v] for part in parts]) for v in self.observables}
        return [complete_table(table, {v: o.domain for v, o in self.observables.items()}, self.seed)]

    def count(self, tables: Tables, scopes: Iterable[Iterable[str]]) -> JointTables:
        """Count the rows of this process, where all variables are discrete.

        Room for missing values is made where the first ones turn up.
        """
        counts = JointTables(scopes, self.states)
        for table in tables():
            if len(next(iter(table.values()))):
                counts.widen(v for v, n in self.states.items() if v not in counts.gaps and int(table[v].max()) == n)
            counts.add([table[v] for v in self.states])
        return counts

    def solve(self, plan: Plan, counts: JointTables) -> Fitted:
        """Learn from counts, where all variables are discrete and stage 1 is linear."""
        learned = learn(*plan, TableMoments(counts), *self._penalties(counts.rows), self.compressed)
        observables = nn.ModuleList(self.observables.values())
        return Fitted(plan, learned, counts.rows, observables, counts.constant_variables(), counts)

    def _penalties(self, rows: float) -> tuple[float, float]:
        return self.ridge[0] / rows, self.ridge[1] / rows

    def _learn(self, plan: Plan, moments: Moments, tables: Tables, observables: nn.ModuleList) -> Learned:
        penalties = self._penalties(moments.rows)
        if not self.regressor.needs_rows:
            return learn(*plan, moments, *penalties, self.compressed)
        maps = {o.name: o.map for o in observables if isinstance(o, Observable)}
        parts = list(tables())
        table = {v: torch.cat([part[v] for part in parts]) for v in maps}
        if isinstance(self.regressor, Messages):
            table, weights = distinct_rows(table, self.states)
            return learn_by_messages(*plan, moments, Rows.of(table, maps, weights), self.regressor, *penalties)
        return learn_regressed(*plan, moments, Rows.of(table, maps), self.regressor, *penalties)

    def _moments(self, plans: Sequence[Plan], tables: Tables, observables: nn.ModuleList) -> Moments:
        """Moments that learning some plans needs, over all processes: one pass, and one per plan for kernel features."""
        by_groups = not self.regressor.needs_rows or self.regressor.starts_linear
        if self.discrete:
            needed = required_scopes if by_groups else required_own_scopes
            counts = self.count(tables, [scope for plan in plans for scope in needed(*plan)])
            counts.sum_over_processes()
            return TableMoments(counts)
        maps = {o.name: o.map for o in observables if isinstance(o, Observable)}
        linear = by_groups and self.compressed
        wanted = required_pairs if by_groups else required_own_pairs
        pairs = [] if linear else [pair for _, s in plans for pair in wanted(s)]
        below = [(p, targets(tree, s, p.node)) for tree, s in plans for p in s.plans] if linear else []
        return FeatureMoments(maps, tables, pairs, self.whitening, self._blanks(observables), below)

    def _blanks(self, observables: nn.ModuleList) -> dict[str, Tensor]:
        """Mean features of the variables that have gaps."""
        rows = self._thinned
        named = [o for o in observables if isinstance(o, Observable) and o.name in rows.gaps]
        values = {o.name: rows.values(o.name) if o.continuous else rows.values(o.name).long() for o in named}
        return {o.name: o.map.features(values[o.name]).mean(dim=0) for o in named}

    def _select(
        self, tables: Tables, observables: nn.ModuleList, plans: Mapping[int, Plan]
    ) -> tuple[int, list[RankScore], Moments]:
        """Score candidate ranks on held-out rows; then take all rows for the final fit."""
        found, moments, held = self._held_out_scores(tables, observables, plans)
        chosen, scores = choose_rank(found)
        if isinstance(moments, TableMoments):
            counts = moments.tables
            rest = self.count(lambda: iter([held]), counts.scopes)
            rest.sum_over_processes()
            counts.merge(rest)
            return chosen, scores, TableMoments(counts)
        return chosen, scores, self._moments([plans[chosen]], tables, observables)

    def _with_maps(self, tables: Tables, plans: Mapping[int, Plan]) -> tuple[nn.ModuleList, dict[float, float]]:
        """New observables with fitted feature maps."""
        rows = self._thinned = ThinnedRows(list(self.observables), MAP_ROWS)
        for table in tables():
            rows.add(table)
        rows.gather()
        if self.kernel_map is None or self.kernel_map.bandwidth != "validate":
            return self._fitted_maps(rows, None), {}
        candidates = {scale: self._fitted_maps(rows, scale) for scale in BANDWIDTH_SCALES}
        scores = {}
        for scale, observables in candidates.items():
            found, _, _ = self._held_out_scores(tables, observables, plans)
            scores[scale] = max(float(s.mean()) for s in found.values())
        return candidates[max(scores, key=scores.__getitem__)], scores

    def _fitted_maps(self, rows: ThinnedRows, scale: float | None) -> nn.ModuleList:
        result = nn.ModuleList()
        for v, old in self.observables.items():
            observable = Observable(v, old.domain, make_map(old.domain, self.kernel_map))
            if isinstance(observable.map, KernelMap):
                low, high = rows.extent(v)
                if low == high and isinstance(observable.map.bandwidth, str):
                    raise DataError(
                        f"Column '{v}' is constant ({low}): the median rule for its bandwidth needs different "
                        "values. Drop it, declare it discrete, or give a bandwidth as a number."
                    )
                if scale is not None:
                    observable.map.bandwidth_scale = scale
                observable.fit(rows.values(v), (low, high))
                middle = float(rows.values(v).median())
                check_span(v, low, high, middle, float(observable.map.width), torch.float64)
            result.append(observable)
        return result

    def _held_out_scores(
        self, tables: Tables, observables: nn.ModuleList, plans: Mapping[int, Plan]
    ) -> tuple[dict[int, Tensor], Moments, dict[str, Tensor]]:
        """Scores of held-out rows of all processes under each plan, the moments of the others, and own held-out rows."""
        hold_out = HoldOut(self.seed)

        def learning_rows() -> Iterator[dict[str, Tensor]]:
            nonlocal hold_out
            before = hold_out.rows if hold_out.count else {}
            hold_out = HoldOut(self.seed)  # the same split in every pass
            for table in tables():
                yield hold_out.split(table)
            if before and not hold_out.same(before):
                raise DataError(
                    "The rows came in another order in the second pass, so rows to learn from and rows to score on would mix. "
                    "Turn off shuffling, or give rank and bandwidth as numbers."
                )

        moments = self._moments(list(plans.values()), learning_rows, observables)
        count = int(sum_over_processes(torch.tensor(hold_out.count)))
        if count < 10 or moments.rows < 10:
            raise DataError(
                f"A rank or bandwidth chosen on data needs rows to hold out: got {int(moments.rows)} to learn from and "
                f"{count} to score on, at least 10 each are needed. Give it as a number instead."
            )
        held = {v: x if x.is_floating_point() else x.long() for v, x in hold_out.rows.items()}
        named = {o.name: o for o in observables if isinstance(o, Observable)}
        evidence = Evidence(
            len(next(iter(held.values()))),
            {v: x.where(x != self.states[v], -1) for v, x in held.items() if not named[v].continuous},
            real={v: x for v, x in held.items() if named[v].continuous},
        )
        floor = clipping_floor(moments.rows)
        scores = {}
        for rank, (tree, specification) in plans.items():
            learned = self._learn((tree, specification), moments, learning_rows, observables)
            schedule = build_schedule(
                tree, operator_shapes(tree, specification, {v: o.map.dim for v, o in named.items()})
            )
            own = leave_one_out(learned.operators, learned.root, schedule, tree.parent, named, evidence, floor)
            scores[rank] = gather_rows(own)
        return scores, moments, held


def clipping_floor(rows: float) -> float:
    """Smallest probability in answers of a model learned from so many rows."""
    return min(FLOOR_ROWS / rows, 0.01)


def check_labels(labels: Mapping[str, Sequence[Any]]) -> None:
    """Refuse processes whose shares of the data have given states different labels."""
    for rank, theirs in enumerate(gather_objects(dict(labels))):
        if theirs != dict(labels):
            raise DataError(
                f"Process {rank} has read other labels than this one: {theirs} and {dict(labels)}. Use category columns with "
                "the same categories in every share of the data."
            )
