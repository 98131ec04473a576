"""A fit with one operator tree per class: the two stages, class by class, on a plan and feature maps that all classes share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.distributed import sum_over_processes
from torchpbp.errors import DataError, StructureError
from torchpbp.features.maps import KernelMap
from torchpbp.inference.observable import Observable
from torchpbp.inputs.missing_values import observed
from torchpbp.learning.feature_fitting import Tables
from torchpbp.learning.fitting import FitResult, Fitter
from torchpbp.learning.stage1 import RowRegressor
from torchpbp.learning.two_stage import Solution, learn, stacked
from torchpbp.moments.class_rows import ClassRows, class_tables
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.table_moments import TableMoments
from torchpbp.planning.plan import Plan


class ClassFitter(Fitter):
    """One fit of a model with an operator tree per class of an observed variable.

    Rows without a class are left out, except that feature maps of continuous variables are fitted to all rows.

    Args:
        observables, kernel_map: as for :class:`Fitter`, the class variable among the observables.
        condition: the class variable.
        shrinkage: pseudo-rows from the pooled distribution that are added to each class. Moments are weighted for it; a regressor
            that looks at rows gets as many rows of all classes.
        options: of :class:`Fitter`.
    """

    def __init__(
        self,
        observables: Mapping[str, Observable],
        kernel_map: KernelMap | None,
        *,
        condition: str,
        shrinkage: float,
        **options: Any,
    ) -> None:
        super().__init__(observables, kernel_map, **options)
        self.condition, self.shrinkage = condition, shrinkage
        others = {v: o for v, o in self.observables.items() if v != condition}
        self._single = Fitter(others, kernel_map, **options)

    def fit(self, tables: Tables, plans: Mapping[int, Plan]) -> FitResult:
        (plan,) = plans.values()
        if self.discrete and not isinstance(self.regressor, RowRegressor):
            counts = self.count(tables, self.required_tables([plan]))
            counts.sum_over_processes()
            return self.fit_counts(plan, counts)
        if isinstance(self.regressor, RowRegressor):
            parts = list(tables())
            tables = _with_class(lambda: iter(parts), self.condition)
            rows = self._class_rows(lambda: iter(parts))
            tables = self._in_memory(tables)
        else:
            rows = self._class_rows(tables)
        observables, bandwidth_scores = self._fit_observables(tables, plans)
        others = nn.ModuleList(o for o in observables if isinstance(o, Observable) and o.name != self.condition)
        self._single.share_thinned(self)
        known = _with_class(tables, self.condition)
        solutions = self._each(rows, lambda label: self._learn_class(plan, known, others, rows, label))
        return FitResult(stacked(solutions), rows.total, observables, bandwidth_scores=bandwidth_scores, classes=rows)

    def fit_counts(self, plan: Plan, counts: JointTables) -> FitResult:
        rows, tables = class_tables(counts.to(self.device), self.condition, self.shrinkage)
        solutions = self._each(
            rows, lambda c: learn(plan, TableMoments(tables[c]), self.regressor, self._penalties(tables[c].rows))
        )
        observables = nn.ModuleList(self.observables.values())
        return FitResult(stacked(solutions), rows.total, observables, counts, classes=rows)

    def required_tables(self, plans: Sequence[Plan]) -> list[tuple[str, ...]]:
        return [(*group, self.condition) for group in super().required_tables(plans)]

    # -- single classes ------------------------------------------------------------------------------------------

    def _each(self, rows: ClassRows, solve: Callable[[int], Solution]) -> list[Solution]:
        """Solutions of all classes; those without rows are solved once. An error says of which class it is."""
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
        return list(result.values())

    def _learn_class(
        self, plan: Plan, known: Tables, observables: nn.ModuleList, rows: ClassRows, label: int
    ) -> Solution:
        """Operators of one class, where counts are not enough."""
        if isinstance(self.regressor, RowRegressor):
            table = self._with_pseudo_rows(known, rows, label)
            return self._single.learn_tables(plan, lambda: iter([table]), observables)

        def weight(batch: Mapping[str, Tensor]) -> Tensor:
            return rows.row_weights(label, batch[self.condition])

        return self._single.learn_tables(plan, known, observables, weight)

    def _with_pseudo_rows(self, known: Tables, rows: ClassRows, label: int) -> dict[str, Tensor]:
        """The rows of a class in this process, and this process's share of pseudo-rows; all rows where the class has none."""
        parts = list(known())
        table = {v: torch.cat([part[v] for part in parts]) for v in self.observables}
        classes = table[self.condition]
        if label in rows.empty:
            return table
        generator = torch.Generator().manual_seed((self.seed + label) % (1 << 63))
        share = min(len(classes), round(rows.shrinkage * len(classes) / rows.total))
        drawn = torch.randperm(len(classes), generator=generator, device="cpu")[:share].to(classes.device)
        chosen = torch.cat([(classes == label).nonzero().squeeze(1), drawn])
        return {v: x[chosen] for v, x in table.items()}

    def _class_rows(self, tables: Tables) -> ClassRows:
        """Rows of each class, over all processes."""
        classes = self.states[self.condition]
        counts = torch.zeros(classes + 1, dtype=torch.float64, device=self.device)
        for table in tables():
            column = table[self.condition]
            counts += torch.bincount(torch.where(observed(column), column, classes), minlength=classes + 1)
        sum_over_processes(counts)
        return ClassRows(self.condition, counts[:classes], float(counts[classes]), self.shrinkage)


def _with_class(tables: Tables, name: str) -> Tables:
    """The rows whose class is known."""

    def chosen() -> Iterator[dict[str, Tensor]]:
        for table in tables():
            known = observed(table[name])
            yield table if bool(known.all()) else {v: x[known] for v, x in table.items()}

    return chosen
