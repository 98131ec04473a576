"""Encoders, nets and readout of a model in its file.

A file holds tensors and plain values, never code. Encoders of torchpbp's classes are reconstructed from their settings; others
are passed when the file is read, as modules of the same shapes.
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
"""Class of encoders that files can reconstruct -> its module; each has ``settings``, its arguments as plain values."""


def pack_encoders(encoders: Encoders | None) -> dict[str, Any] | None:
    """The content of a file about encoders, except their state."""
    if encoders is None:
        return None
    kinds = []
    for module in encoders.modules_:
        kind = type(module).__name__
        built_in = ENCODERS.get(kind) == type(module).__module__
        settings: Any = getattr(module, "settings", None)
        kinds.append({"kind": kind, "settings": dict(settings) if built_in else None})
    return {
        "modules": kinds,
        "module_of": dict(encoders.module_of),
        "context": encoders.context,
        "residual": encoders.residual,
        "sizes": dict(encoders.sizes),
    }


def unpack_encoders(saved: Mapping[str, Any] | None, given: Any, name: object) -> dict[str, nn.Module]:
    """Leaf -> encoder, for a model's argument ``features``.

    Args:
        saved: the result of :func:`pack_encoders`.
        given: modules passed by the user: one for all leaves, or a dict by leaf; None for none.
        name: of the file.

    Raises:
        CheckpointError: an encoder of a user's class, without ``given``.
    """
    if saved is None:
        return {}
    leaves = dict(saved["module_of"])
    if given is not None:
        modules = given if isinstance(given, Mapping) else dict.fromkeys(leaves, given)
        return {v: modules[v] for v in leaves}
    encoders: list[nn.Module] = []
    for part in saved["modules"]:
        if part["settings"] is None or part["kind"] not in ENCODERS:
            raise CheckpointError(
                f"'{name}' has an encoder of the class {part['kind']}, and files hold no code. Make one with the same shapes and give it: "
                f"torchpbp.load(path, features={part['kind']}(…))."
            )
        kind = getattr(importlib.import_module(ENCODERS[part["kind"]]), part["kind"])
        encoders.append(kind(**part["settings"]))
    return {v: encoders[i] for v, i in leaves.items()}


def require_sizes(encoders: Encoders | None, saved: Mapping[str, Any] | None, name: object) -> None:
    """Raise a CheckpointError for encoders whose numbers of features differ from those in the file."""
    sizes, saved_sizes = {} if encoders is None else encoders.sizes, {} if saved is None else saved["sizes"]
    wrong = [v for v in sizes if sizes[v] != saved_sizes.get(v)]
    if wrong:
        raise CheckpointError(
            f"'{name}': the encoder of '{wrong[0]}' gives {sizes[wrong[0]]} features, but the model was made with {saved_sizes.get(wrong[0])}. Give "
            "features= an encoder of the same shapes."
        )


def pack_nets(model: NetModel) -> dict[str, Any]:
    """The content of a file about stage-1 nets and readout, except their state."""
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
    """Attach the nets and the readout of a file to a model; their state is copied afterwards."""
    encoders, nets = content["encoders"], content["message_nets"]
    if encoders is not None and encoders["residual"] and model.encoders is not None:
        model.encoders.add_residuals()
    if nets is not None:
        attached = model.attach_nets(nets["hidden"], nets["instruments"], nets["seed"], None, Masking(*nets["masking"]))
        attached.messages_.to(nets["dtype"])
        attached.instruments_.to(nets["dtype"])
    if content["readout"] is not None:
        model.readout = Readout(str(content["readout"]))
