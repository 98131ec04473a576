"""Encoders, nets and readout of a model in its file.

A file holds numbers and plain values, never code. Encoders of torchpbp's own classes are made again from their settings; others must
be given when the file is read, as modules of the same shapes.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from torchpbp.errors import CheckpointError
from torchpbp.features.encoded import Encoders
from torchpbp.inference.readout import Readout
from torchpbp.learning.message_nets import Masking, MessageNets

if TYPE_CHECKING:
    from torchpbp.models.net_model import NetModel

ENCODERS = {"PointEncoder": "torchpbp.neural.encoders", "ContextEncoder": "torchpbp.neural.encoders"}
"""Classes of encoders that are made again from a file -> module; each has ``settings``, its arguments as plain values."""


def pack_encoders(encoders: Encoders | None) -> dict[str, Any] | None:
    """What a file says of encoders besides their numbers."""
    if encoders is None:
        return None
    kinds = []
    for module in encoders.modules_:
        kind = type(module).__name__
        own = ENCODERS.get(kind) == type(module).__module__
        settings: Any = getattr(module, "settings", None)
        kinds.append({"kind": kind, "settings": dict(settings) if own else None})
    return {
        "modules": kinds,
        "module_of": dict(encoders.module_of),
        "context": encoders.context,
        "residual": encoders.residual,
        "sizes": dict(encoders.sizes),
    }


def unpack_encoders(saved: Mapping[str, Any] | None, given: Any, name: object) -> dict[str, nn.Module]:
    """Leaf -> encoder, to be given to a model as ``features``.

    Args:
        saved: what :func:`pack_encoders` returned.
        given: modules that the user gave: one for all leaves, or a dict by leaf; None for none.
        name: of the file.

    Raises:
        CheckpointError: encoders of one's own that were not given.
    """
    if saved is None:
        return {}
    leaves = dict(saved["module_of"])
    if given is not None:
        modules = given if isinstance(given, Mapping) else dict.fromkeys(leaves, given)
        return {v: modules[v] for v in leaves}
    made: list[nn.Module] = []
    for part in saved["modules"]:
        if part["settings"] is None or part["kind"] not in ENCODERS:
            raise CheckpointError(
                f"'{name}' has an encoder of the class {part['kind']}, and files hold no code. Make one with the same shapes and give it: "
                f"torchpbp.load(path, features={part['kind']}(…))."
            )
        kind = getattr(importlib.import_module(ENCODERS[part["kind"]]), part["kind"])
        made.append(kind(**part["settings"]))
    return {v: made[i] for v, i in leaves.items()}


def require_sizes(encoders: Encoders | None, saved: Mapping[str, Any] | None, name: object) -> None:
    """Raise a CheckpointError for encoders with other numbers of features than those that were saved."""
    own, theirs = {} if encoders is None else encoders.sizes, {} if saved is None else saved["sizes"]
    wrong = [v for v in own if own[v] != theirs.get(v)]
    if wrong:
        raise CheckpointError(
            f"'{name}': the encoder of '{wrong[0]}' gives {own[wrong[0]]} features, but the model was made with {theirs.get(wrong[0])}. Give "
            "features= an encoder of the same shapes."
        )


def pack_nets(model: NetModel) -> dict[str, Any]:
    """What a file says of stage-1 nets and readout besides their numbers."""
    nets = model.stage1
    saved = None
    if isinstance(nets, MessageNets):
        saved = {
            "hidden": nets.hidden,
            "instruments": nets.instruments,
            "seed": nets.seed,
            "masking": list(nets.masking),
            "dtype": nets.dtype,
        }
    return {"message_nets": saved, "readout": model.target}


def attach_saved(model: NetModel, content: Mapping[str, Any]) -> None:
    """Give a model the nets and the readout that its file names; their numbers are copied afterwards."""
    encoders, nets = content["encoders"], content["message_nets"]
    if encoders is not None and encoders["residual"] and model.encoders is not None:
        model.encoders.add_residuals()
    if nets is not None:
        attached = model.attach_nets(nets["hidden"], nets["instruments"], nets["seed"], None, Masking(*nets["masking"]))
        attached.messages_.to(nets["dtype"])
        attached.instruments_.to(nets["dtype"])
    if content["readout"] is not None:
        model.readout = Readout(str(content["readout"]))
