"""RefinedPBP: the two-stage fit and its refinement in one learner."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from torchpbp.contract.model_files import SaveOptions
from torchpbp.distributed import world_size
from torchpbp.errors import DataError, StructureError, TorchPBPError
from torchpbp.graph.domains import require_single_values
from torchpbp.graph.latent_graph import LatentGraph, require_graph
from torchpbp.inputs.columns import ROWS_PER_BATCH, ColumnReader
from torchpbp.inputs.evidence import Evidence
from torchpbp.inputs.sources import DataLike, open_data
from torchpbp.models.conditioning import check_refinable
from torchpbp.models.refinement.descent import take
from torchpbp.models.refinement.guard import START, Guard, Trace
from torchpbp.models.refinement.objectives import (
    ClassLikelihood,
    ConditionalLikelihood,
    JointLikelihood,
    Objective,
    UserLoss,
)
from torchpbp.models.refinement.refine import LEAST_ROWS, Refinement
from torchpbp.models.refinement.settings import Form, RefinementSettings
from torchpbp.models.refinement.walk import Fold, adopt, descend, read_rows, repeat
from torchpbp.models.two_stage_model import TwoStageModel
from torchpbp.settings import whole

SAVED_OBJECTIVES: tuple[type[Objective], ...] = (JointLikelihood, ConditionalLikelihood, ClassLikelihood)


class RefinedPBP(TwoStageModel):
    """:class:`~torchpbp.PBP`, refined by descent after the two-stage fit, as far as held-out rows agree.

    The rows are dealt into folds. For each fold a two-stage model of the other rows is refined, and each candidate is
    scored on the fold. If some number of passes is better over all folds, and no worse on any guard, the two-stage model
    of all rows is refined by that many; otherwise it is returned as it is.

    Args:
        graph: the model's structure.
        objective, form, steps, batch_size, learning_rate, prior, penalty, patience: see
            :class:`~torchpbp.models.refinement.RefinementSettings`.
        folds: parts into which the rows are dealt, at least 2. More folds judge by larger models and take longer.
        progress: show progress bars.
        **options: all options of :class:`~torchpbp.PBP`; ``seed`` also decides folds and mini-batches.

    Attributes:
        refinement: report of the last fit; ``None`` before, and after loading.

    Example:
        >>> from torchpbp import DiscreteNetwork, templates
        >>> truth = DiscreteNetwork.random(templates.naive_bayes(3), seed=1)
        >>> model = RefinedPBP(truth.graph, steps=2, folds=2, progress=False).fit(truth.sample(200, seed=0))
        >>> model.posterior("x1", {"x2": [0, 3]}).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        graph: LatentGraph,
        *,
        objective: Objective | UserLoss | None = None,
        form: Form = "auto",
        steps: int = 30,
        batch_size: int = 4096,
        learning_rate: float | None = None,
        prior: float = 1.0,
        penalty: float = 10.0,
        patience: int = 4,
        folds: int = 3,
        progress: bool = True,
        **options: Any,
    ) -> None:
        require_graph(graph, "RefinedPBP")
        require_single_values(graph.variables, "RefinedPBP")
        super().__init__(graph, **options)
        check_refinable(self)
        self.refinement_settings = RefinementSettings(
            objective, form, steps, batch_size, learning_rate, prior, penalty, patience, self.settings.seed, progress
        )
        self.folds: int = whole(2).check("folds", folds)
        self.refinement_settings.resolved(self)
        self.refinement: Refinement | None = None

    def fit(self, data: DataLike, batch_size: int = ROWS_PER_BATCH, columns: Sequence[str] | None = None) -> Self:
        """Learn by two-stage regression, then refine. All rows are kept in memory while fitting.

        Args:
            data: as in :meth:`PBP.fit`. What a row lacks is summed over in refinement, which is right where it depends on
                nothing but values that are there; the two-stage fit takes values to be missing completely at random.
            batch_size: rows of a table handled at once by the two-stage fit.
            columns: names of the columns of arrays, as in :meth:`PBP.fit`.

        Raises:
            DataError: as :meth:`PBP.fit`, and if there are too few rows to hold some out; the model is then left as it was.
            StructureError: in one of several processes.
        """
        if isinstance(data, Iterator):
            data = list(data)
        if world_size() > 1:
            raise StructureError("Refinement works in a single process; learner=pbp can share rows among several.")
        reader = ColumnReader({v: o.domain for v, o in self.observables.items()}, missing=True, quiet=True)
        source = open_data(data, reader.states, columns)
        count = sum(len(next(iter(table.values()))) for table in reader.tables(source, batch_size))
        if count < self.folds * LEAST_ROWS:
            raise DataError(
                f"Refinement: expected at least {self.folds * LEAST_ROWS} rows for {self.folds} folds, got {count}. "
                "Lower folds, or use PBP."
            )
        before = copy.deepcopy(self)
        super().fit(data, batch_size, columns)
        try:
            rows = read_rows(self, source, check=False)  # done by the fit before
            settings = self.refinement_settings.resolved(self)
            trace = self._cross_validated(rows, settings, batch_size)
        except TorchPBPError:  # a fold may lack what all rows have
            self.__dict__.update(before.__dict__)
            raise
        best = trace.best()
        steps = None if best.step == START else best.step
        if steps is not None:
            operators = repeat(self._two_stage_copy(), rows, settings, steps)
            if operators is None:
                steps = None
            else:
                adopt(self, operators)
        self.refinement = Refinement(str(settings.form), settings.resolved_objective.name, steps, trace)
        return self

    def _cross_validated(self, rows: Evidence, settings: RefinementSettings, batch_size: int) -> Trace:
        order = torch.randperm(rows.batch, generator=torch.Generator().manual_seed(self.settings.seed))
        parts = []
        for fold in range(self.folds):
            held = order[fold :: self.folds]
            others = torch.cat([order[k :: self.folds] for k in range(self.folds) if k != fold])
            learning = take(rows, others)
            guard = Guard(settings.resolved_objective.guards, take(rows, held), self.settings.seed + fold)
            start = self._two_stage_copy()
            TwoStageModel.fit(start, _table(learning), batch_size)
            parts.append(Fold(start, learning, guard))
        return descend(parts, settings)[0]

    def _two_stage_copy(self) -> TwoStageModel:
        """A copy of the model as it is, without the report."""
        report, self.refinement = self.refinement, None
        try:
            return copy.deepcopy(self)
        finally:
            self.refinement = report

    def pack(self, name: object, options: SaveOptions) -> dict[str, Any]:
        """What the model's file holds; a loss function of one's own is not written."""
        settings = self.refinement_settings
        own = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in ("objective", "seed")}
        if isinstance(settings.objective, SAVED_OBJECTIVES):
            own["objective"] = [type(settings.objective).__name__, asdict(settings.objective)]  # type: ignore[call-overload]
        return {**super().pack(name, options), "refinement": {**own, "folds": self.folds}}

    @classmethod
    def unpack(cls, content: Mapping[str, Any], name: object) -> Self:
        model = super().unpack(content, name)
        own = dict(content["refinement"])
        model.folds = own.pop("folds", model.folds)
        kinds = {kind.__name__: kind for kind in SAVED_OBJECTIVES}
        kind, values = own.pop("objective", (None, {}))
        objective = kinds[kind](**values) if kind else None
        model.refinement_settings = RefinementSettings(**own, objective=objective, seed=model.settings.seed)
        return model


def _table(rows: Evidence) -> dict[str, Tensor]:
    return {**rows.hard, **rows.real}
