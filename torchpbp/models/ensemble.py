"""Averages of models: several structures or bandwidths behind one score."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.contract.abilities import Learner, Sampling
from torchpbp.contract.model_files import SaveOptions, packed
from torchpbp.errors import ArgumentError, LabelWarning, StructureError
from torchpbp.files.loading import class_in_file, from_content
from torchpbp.inputs.columns import DataLike
from torchpbp.inputs.evidence import EvidenceLike
from torchpbp.lazy import pandas as pd
from torchpbp.settings import Constraint, Settings, non_negative, setting, several


def _floor() -> Constraint:
    def read(value: Any) -> float:
        number = float(value)
        if isinstance(value, str | bool) or not number < math.inf:
            raise ValueError
        return number

    return Constraint("a number, or minus infinity for none", read)


@dataclass(frozen=True)
class ScoreAverageSettings(Settings):
    """Settings of :class:`ScoreAverage`, described there; the weights add up to 1."""

    weights: tuple[float, ...] = setting((1.0,), several(non_negative(), expected="one non-negative weight per member"))
    floor: float = setting(-1000.0, _floor())


class ScoreAverage(nn.Module, Learner, Sampling):
    """A weighted average of log-evidence over member models of the same observables.

    The average of logarithms is a geometric mean: a score for comparing rows or classes, not a normalised density.
    Queries other than log_evidence are answered by the first member, with the options that it has.

    Args:
        members: unfitted models that are torch modules, such as ``KernelPBP(graph)``.
        weights: one non-negative number per member; equal by default.
        floor: least log-evidence of a member that counts, so that one member cannot veto alone.

    Attributes:
        settings: as a :class:`ScoreAverageSettings`.
        labels, missing: as the first member has them.
    """

    def __init__(
        self, members: Sequence[nn.Module], weights: Sequence[float] | None = None, floor: float = -1000.0
    ) -> None:
        super().__init__()
        if not members:
            raise StructureError("ScoreAverage: expected at least one member, got none.")
        others = [type(m).__name__ for m in members if not isinstance(m, nn.Module) or not isinstance(m, Learner)]
        if others:
            raise StructureError(f"ScoreAverage: expected models such as KernelPBP(graph), got {others}.")
        given = ScoreAverageSettings([1.0] * len(members) if weights is None else weights, floor)  # type: ignore[arg-type]
        total = sum(given.weights)
        if len(given.weights) != len(members) or total <= 0:
            raise ArgumentError(
                f"weights: expected one non-negative weight per member ({len(members)}), not all 0; got {weights}."
            )
        exact = math.isclose(total, 1.0, rel_tol=1e-12)  # those of a file: to divide again would round again
        self.settings = given if exact else ScoreAverageSettings(tuple(w / total for w in given.weights), floor)
        self.members = nn.ModuleList(members)
        observed = [set(m.graph.observed) for m in self._models]
        if any(o != observed[0] for o in observed):
            raise StructureError("ScoreAverage: the members must have the same observables.")
        self._adopt()

    def _adopt(self) -> None:
        """Describe the model as the first member is described."""
        first = self._models[0]
        self.graph, self.labels, self.missing = first.graph, first.labels, first.missing
        self.fitted = all(m.fitted for m in self._models)

    @property
    def _models(self) -> list[Any]:
        return list(self.members)

    @property
    def device(self) -> torch.device:
        """Where the first member is."""
        return self._models[0].device

    def fit(self, data: DataLike) -> ScoreAverage:
        """Fit every member to the same data; each deals with missing values in its own way."""
        for i, member in enumerate(self._models):
            with warnings.catch_warnings():
                if i:
                    warnings.simplefilter("ignore", LabelWarning)  # the first member has said it for all
                member.fit(data)
        self._adopt()
        return self

    def log_evidence(self, evidence: EvidenceLike = None) -> Tensor:
        """(batch,) weighted average of the members' log-evidence."""
        self.require_fitted()
        parts = [
            w * m.log_evidence(evidence).clamp(min=self.settings.floor)
            for w, m in zip(self.settings.weights, self._models, strict=True)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def posterior(self, query: str | Sequence[str], evidence: EvidenceLike = None, **options: Any) -> Any:
        """P(query | evidence) of the first member."""
        self.require_fitted()
        return self._models[0].posterior(query, evidence, **options)

    def posteriors(self, evidence: EvidenceLike = None, **options: Any) -> Any:
        """Posteriors of the first member."""
        self.require_fitted()
        return self._models[0].posteriors(evidence, **options)

    def sample(self, n: int, evidence: EvidenceLike = None, seed: int | None = None) -> dict[str, Tensor]:
        """Draws of the first member."""
        self.require_fitted()
        drawn: dict[str, Tensor] = self._models[0].sample(n, evidence, seed)
        return drawn

    def diagnostics(self) -> pd.DataFrame:
        """Those of all members, one below the other, with the number of the member in front."""
        self.require_fitted()
        tables = [m.diagnostics() for m in self._models]
        return pd.concat(tables, keys=range(1, len(tables) + 1), names=["member", None]).reset_index("member")

    # -- files ---------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], operators: bool | None = None) -> None:
        """Write all members and their weights to one file; training rows that members share are written once.

        Args:
            path: of the file; an existing one is replaced only once the new one is complete.
            operators: of kernel models, as in :meth:`torchpbp.KernelPBP.save`.

        Raises:
            CheckpointError: a member without a file format, or NaN or infinity in what answers are made of.
        """
        self._write(path, SaveOptions(operators=operators))

    def pack(self, name: object, options: SaveOptions) -> dict[str, Any]:
        """The members, their weights and the floor."""
        self.require_fitted()
        members = [packed(m, f"ScoreAverage, member {i}", options) for i, m in enumerate(self._models, 1)]
        share_examples(members)
        return {"members": members, "weights": list(self.settings.weights), "floor": self.settings.floor}

    @classmethod
    def unpack(cls, content: Mapping[str, Any], name: object) -> ScoreAverage:
        """The model with its fitted members."""
        members = [from_content(m, f"{name}, member {i}") for i, m in enumerate(content["members"], 1)]
        return cls(members, content["weights"], content["floor"])

    @classmethod
    def unfitted(cls, content: Mapping[str, Any]) -> ScoreAverage | None:
        """A model of members with the settings that a file holds; None if it does not hold those of all."""
        members = [class_in_file(m, "member").unfitted(m) for m in content["members"]]
        return None if None in members else cls(members, content["weights"], content["floor"])


def share_examples(parts: Sequence[dict[str, Any]]) -> None:
    """Let models with equal training rows hold one tensor, which a file keeps once."""
    known: list[Tensor] = []
    for part in parts:
        rows = part.get("examples")
        if not isinstance(rows, Tensor):
            continue
        same = next((k for k in known if k.dtype == rows.dtype and torch.equal(k, rows)), None)
        if same is None:
            known.append(rows)
        else:
            part["examples"] = same
