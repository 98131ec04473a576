"""A row of evidence, and its text in plots."""

from __future__ import annotations

from typing import Any

from torchpbp.contract.frames import state_labels
from torchpbp.contract.latent_model import LatentModel
from torchpbp.errors import ShapeError, StructureError
from torchpbp.inputs.evidence import Evidence, EvidenceLike
from torchpbp.inputs.missing_values import observed

MOST_NAMED = 6


def one_row(model: Any, evidence: EvidenceLike, row: int) -> Evidence:
    """One row of checked evidence.

    Args:
        model: any learner or exact network.
        evidence: as for ``model.posterior``.
        row: number of the row.
    """
    if not isinstance(model, LatentModel):
        raise StructureError(
            f"Expected a model that answers queries, such as a fitted PBP, EM or DiscreteNetwork; got {type(model).__name__}."
        )
    checked = model.read_evidence(evidence)
    if not 0 <= row < checked.batch:
        raise ShapeError(
            f"row: expected 0 to {checked.batch - 1}, for the evidence has {checked.batch} rows; got {row}."
        )
    return checked.rows(slice(row, row + 1))


def written_values(model: Any, evidence: Evidence) -> dict[str, str]:
    """Observable -> its state, label or value, for the variables with evidence in a row."""
    values = {}
    for v in model.graph.names:
        if v in evidence.hard and int(evidence.hard[v][0]) >= 0:
            values[v] = str(state_labels(model, v)[int(evidence.hard[v][0])])
        elif v in evidence.real and bool(observed(evidence.real[v])[0]):
            value = evidence.real[v][0]
            values[v] = f"{float(value):.3g}" if value.ndim == 0 else " × ".join(map(str, value.shape)) + " values"
        elif v in evidence.soft:
            values[v] = "weights"
    return values


def condition(values: dict[str, str]) -> str:
    """ "a1 = 0, b2 = 1", truncated after :data:`MOST_NAMED` variables."""
    parts = [f"{v} = {value}" for v, value in values.items()]
    return ", ".join(parts[:MOST_NAMED]) + (f", … ({len(parts)} in all)" if len(parts) > MOST_NAMED else "")
