"""Optional abilities of models: a model without an ability does not have its methods."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from torchpbp.contract.frames import draws_frame, evidence_index
from torchpbp.contract.latent_model import LatentModel
from torchpbp.inputs.columns import DataLike
from torchpbp.inputs.evidence import Evidence, EvidenceLike, query_names
from torchpbp.lazy import pandas as pd
from torchpbp.settings import drawn_seed, whole


class Learner(LatentModel):
    """A model with :meth:`fit`."""

    @abstractmethod
    def fit(self, data: DataLike) -> Self:
        """Learn from rows of the observables.

        Args:
            data: a table, as for :meth:`torchpbp.PBP.fit`.

        Returns:
            The model itself.
        """


class JointQueries(LatentModel):
    """A model that also answers queries of several variables, with their joint distribution."""

    def query_names(self, query: Any) -> tuple[str, ...]:
        """The names in a query, one or several."""
        return query_names(query)


class Sampling(LatentModel):
    """A model with :meth:`sample`."""

    @abstractmethod
    def sample(self, n: int, evidence: EvidenceLike = None, seed: int | None = None) -> dict[str, Tensor]:
        """Draw the observables, given evidence.

        Args:
            n: number of draws, per row of evidence.
            evidence: as for ``posterior``.
            seed: of the draws; by default it is drawn from torch's global generator.

        Returns:
            name -> (n,) states or values without evidence, (n, rows) with.
        """

    def sample_frame(self, n: int, evidence: EvidenceLike = None, **options: Any) -> pd.DataFrame:
        """Draws as a table, to which a model can be fitted; variables with labels are category columns.

        Args:
            n, evidence: as for :meth:`sample`.
            **options: of the model's ``sample``, such as ``seed``.

        Returns:
            n rows without evidence; with evidence, rows (row of evidence, draw), where the former are named by the evidence's index.
        """
        values = self.sample(n, evidence, **options)
        if evidence is None:
            return draws_frame(self, values)
        rows = evidence_index(evidence, next(iter(values.values())).shape[1])
        draws: Any = [rows, range(n)]
        return draws_frame(self, values).set_axis(pd.MultiIndex.from_product(draws, names=[rows.name or "row", "draw"]))

    def _draw(
        self,
        n: int,
        evidence: EvidenceLike,
        seed: int | None,
        draw: Callable[[Evidence, torch.Generator], dict[str, Tensor]],
    ) -> dict[str, Tensor]:
        """Check the arguments of :meth:`sample`, draw, and arrange the draws.

        Args:
            n, evidence, seed: arguments of :meth:`sample`.
            draw: (evidence with each row repeated ``n`` times, generator on the model's device) -> name -> one value per row.
        """
        count = whole(0).check("n", n)
        checked = self.read_evidence(evidence)
        generator = torch.Generator(device=self.device)
        generator.manual_seed(drawn_seed(seed))
        values = draw(checked.repeat_interleave(count), generator)
        if evidence is None:
            return values
        return {v: x.reshape(checked.batch, count).T for v, x in values.items()}


class Counting(Learner):
    """A model learned from counts, which can be merged over files, processes and time."""

    @abstractmethod
    def count(self, data: DataLike) -> Any:
        """Count rows without changing the model."""

    @abstractmethod
    def fit_counts(self, counts: Any) -> Self:
        """Learn from counts."""

    @abstractmethod
    def partial_fit(self, data: DataLike) -> Self:
        """Learn from further rows and all earlier ones."""
