"""Averages of models: several structures or bandwidths behind one score."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.errors import LabelWarning, StructureError
from torchpbp.files.checkpoint import read_model, require_finite, whole_model, write_checkpoint
from torchpbp.files.loading import packed, unfitted, unpacked
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
        strangers = [
            type(m).__name__ for m in members if not isinstance(m, nn.Module) or not hasattr(m, "log_evidence")
        ]
        if strangers:
            raise StructureError(f"ScoreAverage: expected models such as KernelPBP(graph), got {strangers}.")
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
    def labels(self) -> dict[str, tuple[Any, ...]]:
        """Labels of the states of variables that were given by label."""
        return dict(getattr(self.members[0], "labels", {}))

    @property
    def missing(self) -> dict[str, float]:
        """Share of missing values in each column of the training data, as the first member counted them."""
        return dict(getattr(self.members[0], "missing", {}))

    def fit(self, data: DataLike) -> ScoreAverage:
        """Fit every member to the same data; each deals with missing values in its own way."""
        for i, member in enumerate(self.members):
            with warnings.catch_warnings():
                if i:
                    warnings.simplefilter("ignore", LabelWarning)  # the first member has said it for all
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

    # -- saving --------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], operators: bool | None = None) -> None:
        """Write all members and their weights to one file; training rows that members share are written once.

        Args:
            path: of the file; an existing one is replaced only once the new one is whole.
            operators: of kernel models, as in :meth:`torchpbp.KernelPBP.save`.

        Raises:
            CheckpointError: a member that has no file format, or NaN or infinity in what answers are made of.
        """
        require_finite(_answering(self.weights, self.floor), path, saving=True)
        parts = [packed(m, f"ScoreAverage, member {i}", operators) for i, m in enumerate(self.members, 1)]
        share_examples(parts)
        content = {"learner": "ScoreAverage", "members": parts, "weights": self.weights, "floor": float(self.floor)}
        write_checkpoint(path, content)

    @classmethod
    @whole_model
    def load(cls, path: str | os.PathLike[str], map_location: torch.device | str = "cpu") -> ScoreAverage:
        """Read a model written by :meth:`save`. Only tensors and plain values are read; no code is executed."""
        saved = read_model(path, "ScoreAverage")
        require_finite(_answering(saved["weights"], saved["floor"]), path)
        members = [unpacked(m, f"{path}, member {i}", map_location) for i, m in enumerate(saved["members"], 1)]
        model = cls(members, saved["weights"], saved["floor"])
        model.weights = [float(w) for w in saved["weights"]]  # to divide by their sum again would round again
        return model

    @classmethod
    def unfitted(cls, saved: Mapping[str, Any]) -> ScoreAverage | None:
        """A model of members with the settings that a file holds; None if it does not hold those of all."""
        members = [unfitted(m) for m in saved["members"]]
        if any(m is None for m in members):
            return None
        model = cls(members, saved["weights"], saved["floor"])
        model.weights = [float(w) for w in saved["weights"]]
        return model


def _answering(weights: Sequence[float], floor: float) -> dict[str, Tensor]:
    """Numbers that must be finite; a floor of -inf means none."""
    return {"weights": torch.tensor(weights), "floor": torch.tensor(0.0 if floor == -math.inf else floor)}


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
