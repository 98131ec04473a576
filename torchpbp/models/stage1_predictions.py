"""Nets of stage 1 as part of a model: their predictions, and their reconstruction from files and state dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchpbp.errors import CheckpointError, QueryError, StructureError
from torchpbp.inference.leaf_features import LeafFeatures
from torchpbp.inputs.evidence import Evidence
from torchpbp.learning.class_nets import ClassNets
from torchpbp.learning.separator_nets import SeparatorNets
from torchpbp.learning.stage1_nets import PredictedMessage, RegressionNets, Stage1Nets
from torchpbp.models.saved_state import shape_fault

if TYPE_CHECKING:
    from torchpbp.models.two_stage_model import TwoStageModel

KINDS: dict[str, type[RegressionNets]] = {kind.__name__: kind for kind in (SeparatorNets, ClassNets)}
"""Name -> class of nets that files can reconstruct."""


def predicted_messages(model: TwoStageModel, evidence: Evidence) -> dict[str, PredictedMessage]:
    """Separator -> prediction of its net, see :meth:`~torchpbp.models.two_stage_model.TwoStageModel.predicted_messages`."""
    if not isinstance(model.stage1, Stage1Nets):
        raise StructureError(
            f"predicted_messages: stage 1 of this model has no nets, its regressor is {model.regressor!r}. Fit it with "
            "regressor=MLP()."
        )
    by_node = model.stage1.predict(evidence_features(model, evidence))
    return {model.tree.separator_name(n): message for n, message in by_node.items()}


def evidence_features(model: TwoStageModel, evidence: Evidence) -> LeafFeatures:
    """Features of the leaves in a batch of evidence.

    Raises:
        QueryError: weights of states, on which nets are not trained, or a value of the condition variable.
    """
    if evidence.soft:
        raise QueryError(
            f"predicted_messages: expected states and values, got weights of states of {', '.join(evidence.soft)}. Nets are trained on "
            "values: leave the variable out, or give its state."
        )
    if model.condition in {*evidence.hard, *evidence.real}:
        raise QueryError(
            f"predicted_messages: '{model.condition}' is the condition, and the answer has an entry for each of its states. Leave it out."
        )
    reader, table = model.leaf_reader(), {}
    for v, observable in reader.observables.items():
        if observable.continuous:
            empty = torch.full(
                (evidence.batch, *model.leaf_shape(v)), torch.nan, dtype=torch.float64, device=model.device
            )
            table[v] = evidence.real.get(v, empty)
        else:
            empty = torch.full((evidence.batch,), -1, dtype=torch.int64, device=model.device)
            table[v] = evidence.hard.get(v, empty)
    seen = reader.seen(table)
    return reader.features(table, reader.encode(table, seen, seen), seen)


# -- files and states ----------------------------------------------------------------------------------------------


def pack_stage1(nets: nn.Module | None) -> dict[str, Any] | None:
    """The content of a file about nets, except their state; None without nets that files can reconstruct."""
    kind = type(nets).__name__
    return {"kind": kind, **nets.to_dict()} if isinstance(nets, RegressionNets) and kind in KINDS else None


def restore_stage1(model: TwoStageModel, saved: Mapping[str, Any] | None, state: Mapping[str, Tensor]) -> str | None:
    """Reconstruct the nets of a file if their tensors have the right shapes; their state is copied afterwards.

    Returns:
        The first mismatch; None if all shapes match.
    """
    if saved is None:
        return None
    kind = KINDS.get(str(saved.get("kind")))
    if kind is None:
        raise CheckpointError(f"Nets of stage 1: expected one of {', '.join(KINDS)}, got {saved.get('kind')!r}.")
    shapes = kind.saved_shapes(model.plan, leaf_dims(model), saved)
    fault = shape_fault({f"stage1.{name}": shape for name, shape in shapes.items()}, state)
    if fault is None:
        model.stage1 = kind.from_dict(model.plan, leaf_dims(model), saved).to(model.device)
    return fault


def nets_in_state(model: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Hook before loading a state dict: attach its nets to a model without nets."""
    start = f"{prefix}stage1."
    tensors = {name.removeprefix(start): t for name, t in state.items() if name.startswith(start)}
    if not tensors or model._plan is None or model.stage1 is not None:
        return
    for kind in KINDS.values():
        saved = kind.settings_of_state(tensors)
        if saved is not None:
            model.stage1 = kind.from_dict(model.plan, leaf_dims(model), saved).to(model.device)
            return


def leaf_dims(model: Any) -> dict[str, int]:
    """Feature dimensions of the leaves of a model's tree, in order."""
    return {v: d for v, d in model.dims.items() if v in model.tree.leaf_of}
