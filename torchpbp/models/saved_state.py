"""Checks and copies of the state of a saved :class:`~torchpbp.PBP`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.graph.latent_graph import LatentGraph


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
