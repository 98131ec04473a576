"""A :class:`~torchpbp.PBP` in its file: encoders, nets, readout and the state of its modules.

A file holds tensors and plain values, never code. Encoders of torchpbp's classes are reconstructed from their settings; others
are passed when the file is read, as modules of the same shapes.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchpbp.errors import CheckpointError
from torchpbp.features.encoded import Encoders
from torchpbp.features.maps import KernelMap
from torchpbp.graph.latent_graph import Continuous, LatentGraph
from torchpbp.inference.readout import Readout
from torchpbp.learning.message_nets import InstrumentNets, MessageNets

if TYPE_CHECKING:
    from torchpbp.models.pbp import PBP

ENCODERS = {"PointEncoder": "torchpbp.neural.encoders", "ContextEncoder": "torchpbp.neural.encoders"}
"""Class of encoders that files can reconstruct -> its module; each has ``settings``, its arguments as plain values."""


# -- features and encoders ---------------------------------------------------------------------------------------------


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


def saved_features(
    graph: LatentGraph, saved: Mapping[str, Any] | None, encoders: Mapping[str, nn.Module]
) -> KernelMap | dict[str, nn.Module] | None:
    """The argument ``features`` of a model from its file."""
    kernel_map = None if saved is None else KernelMap.from_dict(saved)
    if not encoders:
        return kernel_map
    numbers = [v for v in graph.observed if isinstance(graph.variables[v], Continuous) and v not in encoders]
    return dict(encoders) | ({} if kernel_map is None else dict.fromkeys(numbers, kernel_map))


# -- nets and readout --------------------------------------------------------------------------------------------------


def pack_nets(model: PBP) -> dict[str, Any]:
    """The content of a file about stage-1 nets and readout, except their state."""
    nets = model.stage1
    saved = None
    if isinstance(nets, InstrumentNets):
        saved = {"learned_messages": isinstance(nets, MessageNets), "settings": nets.settings}
    return {"nets": saved, "readout": model.operators.target}


def restore_nets(model: PBP, content: Mapping[str, Any]) -> None:
    """Attach the nets and the readout of a file to a model; their state is copied afterwards."""
    net, encoders, nets = model.operators, content["encoders"], content["nets"]
    if encoders is not None and encoders["residual"] and net.encoders is not None:
        net.encoders.add_residuals()
    if nets is not None:
        kind = MessageNets if nets["learned_messages"] else InstrumentNets
        restored = kind(model.plan, net.reader.dims(), net.reader.widths(), classes=net.classes, **nets["settings"])
        model.stage1 = restored.requires_grad_(nets["learned_messages"]).to(model.device)
    if content["readout"] is not None:
        net.readout = Readout(str(content["readout"]))


# -- state -------------------------------------------------------------------------------------------------------------


def numbers_in_answers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a state on which answers depend, which must be finite.

    The others may hold NaN: the strengths of separators are only shown by ``diagnostics()``, and the kernel map that is
    copied for each variable is never fitted.
    """
    return {k: t for k, t in state.items() if not (k.endswith(".strengths") or k.startswith("kernel_map."))}


def graph_fault(graph: LatentGraph, resolved: LatentGraph) -> str | None:
    """A difference between two graphs of a file other than numbers of states unknown in the first; None without any.

    Args:
        graph: the user's.
        resolved: the graph of the tree, with a number of states for each variable.
    """
    mine, other = (dict(g.to_dict(), variables=list(g.variables), labels={}) for g in (graph, resolved))
    if mine != other:
        return "its two graphs have different variables or edges"
    for v, states in graph.variables.items():
        if isinstance(states, int) and states != resolved.variables[v]:
            return f"its two graphs give '{v}' {states} and {resolved.variables[v]} states"
    return None


def shape_fault(expected: Mapping[str, Sequence[int]], state: Mapping[str, Any]) -> str | None:
    """The first tensor that is absent or does not have its expected shape; None if all do.

    Args:
        expected: name -> shape.
        state: name -> tensor.
    """
    for name, shape in expected.items():
        tensor = state.get(name)
        if not isinstance(tensor, Tensor):
            return f"{name}: expected a tensor of shape {tuple(shape)}, got {type(tensor).__name__}"
        if tensor.shape != tuple(shape):
            return f"{name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}"
    return None


def copy_state(model: nn.Module, state: Mapping[str, Tensor]) -> str | None:
    """Copy a state into a model like ``load_state_dict``, whose time is quadratic in the number of modules.

    Args:
        model: with parameters and buffers of the right shapes.
        state: name -> tensor, of exactly these parameters and buffers.

    Returns:
        The first mismatch; None if all tensors match.
    """
    present = model.state_dict(keep_vars=True)
    unmatched = [*(present.keys() - state.keys()), *(state.keys() - present.keys())]
    if unmatched:
        return f"{sorted(map(str, unmatched))[0]}: missing in the file, or unknown to the model"
    fault = shape_fault({name: tensor.shape for name, tensor in present.items()}, state)
    if fault:
        return fault
    with torch.no_grad():
        for name, tensor in present.items():
            saved = state[name]
            if saved.is_complex() or saved.is_floating_point() != tensor.is_floating_point():
                return f"{name}: expected {tensor.dtype}, got {saved.dtype}"
            tensor.copy_(saved)
    return None
