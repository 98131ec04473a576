"""A fit with one operator tree per class: both stages are solved per class, with a common plan and common feature maps."""

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

    Rows without a class are excluded, but feature maps of continuous variables are fitted to all rows.

    Args:
        observables, kernel_map: as for :class:`Fitter`, the class variable among the observables.
        condition: the class variable.
        shrinkage: number of pseudo-rows from the pooled distribution added to each class: as weights of moments, or as rows
            sampled from all classes for a :class:`RowRegressor`.
        options: further arguments of :class:`Fitter`.
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
        labelled = _with_class(tables, self.condition)
        solutions = self._each(rows, lambda label: self._learn_class(plan, labelled, others, rows, label))
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
        """Solutions of all classes, with one common solution for classes without rows. Errors name the class."""
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
        self, plan: Plan, labelled: Tables, observables: nn.ModuleList, rows: ClassRows, label: int
    ) -> Solution:
        """Operators of one class, learned from rows."""
        if isinstance(self.regressor, RowRegressor):
            table = self._with_pseudo_rows(labelled, rows, label)
            return self._single.learn_tables(plan, lambda: iter([table]), observables)

        def weight(batch: Mapping[str, Tensor]) -> Tensor:
            return rows.row_weights(label, batch[self.condition])

        return self._single.learn_tables(plan, labelled, observables, weight)

    def _with_pseudo_rows(self, labelled: Tables, rows: ClassRows, label: int) -> dict[str, Tensor]:
        """Rows and pseudo-rows of a class in this process; all rows for a class without any."""
        parts = list(labelled())
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
        """Numbers of rows of each class, over all processes."""
        classes = self.states[self.condition]
        counts = torch.zeros(classes + 1, dtype=torch.float64, device=self.device)
        for table in tables():
            column = table[self.condition]
            counts += torch.bincount(torch.where(observed(column), column, classes), minlength=classes + 1)
        sum_over_processes(counts)
        return ClassRows(self.condition, counts[:classes], float(counts[classes]), self.shrinkage)


def _with_class(tables: Tables, name: str) -> Tables:
    """The rows with a class."""

    def chosen() -> Iterator[dict[str, Tensor]]:
        for table in tables():
            labelled = observed(table[name])
            yield table if bool(labelled.all()) else {v: x[labelled] for v, x in table.items()}

    return chosen
