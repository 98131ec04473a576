"""Averages of models: several structures or bandwidths behind one score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from torchpbp.errors import StructureError
from torchpbp.inputs.columns import DataLike
from torchpbp.inputs.evidence import EvidenceLike


class ScoreAverage(nn.Module):
    """A weighted average of log-evidence over member models of the same observables.

    The average of logarithms is a geometric mean: a score for comparing rows or classes, not a normalised density.
    Queries other than log_evidence are answered by the first member.

    Args:
        members: unfitted models with ``fit`` and ``log_evidence``.
        weights: one non-negative number per member; equal by default.
        floor: least log-evidence of a member that counts, so that one member cannot veto alone.
    """

    def __init__(
        self, members: Sequence[nn.Module], weights: Sequence[float] | None = None, floor: float = -1000.0
    ) -> None:
        super().__init__()
        if not members:
            raise StructureError("ScoreAverage: expected at least one member, got none.")
        chosen = [1.0] * len(members) if weights is None else [float(w) for w in weights]
        if len(chosen) != len(members) or not all(0 <= w < math.inf for w in chosen) or not sum(chosen) > 0:
            raise StructureError(
                f"ScoreAverage: expected one non-negative weight per member ({len(members)}), not all 0; got {weights}."
            )
        observed = [set(getattr(m, "graph").observed) for m in members]  # noqa: B009
        if any(o != observed[0] for o in observed):
            raise StructureError("ScoreAverage: the members must have the same observables.")
        self.members = nn.ModuleList(members)
        self.weights = [w / sum(chosen) for w in chosen]
        self.floor = floor

    @property
    def graph(self) -> Any:
        return self.members[0].graph

    @property
    def missing(self) -> dict[str, float]:
        """Share of missing values in each column of the training data, as the first member counted them."""
        return dict(getattr(self.members[0], "missing", {}))

    def fit(self, data: DataLike) -> ScoreAverage:
        """Fit every member to the same data; each deals with missing values in its own way."""
        for member in self.members:
            member.fit(data)  # type: ignore[operator]
        return self

    def log_evidence(self, evidence: EvidenceLike = None) -> Tensor:
        """(batch,) weighted average of the members' log-evidence."""
        parts = [
            w * m.log_evidence(evidence).clamp(min=self.floor)  # type: ignore[operator]
            for w, m in zip(self.weights, self.members, strict=True)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def posterior(self, *args: Any, **kwargs: Any) -> Any:
        return self.members[0].posterior(*args, **kwargs)  # type: ignore[operator]

    def posteriors(self, *args: Any, **kwargs: Any) -> Any:
        return self.members[0].posteriors(*args, **kwargs)  # type: ignore[operator]

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        return self.members[0].sample(*args, **kwargs)  # type: ignore[operator]
