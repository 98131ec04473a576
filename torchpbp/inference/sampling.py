"""Sampling from the learned distribution: one walk over the tree, leaf by leaf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.graph.clique_tree import CliqueTree
from torchpbp.inference.messages import downward_message, leaf_table, root_message, upward_message, upward_pass
from torchpbp.inference.queries import own_estimate
from torchpbp.inference.schedule import Schedule
from torchpbp.inference.variables import Observable, prepare
from torchpbp.inputs.evidence import Evidence


def sample_leaves(
    operators: Sequence[Tensor],
    root: Tensor,
    schedule: Schedule,
    tree: CliqueTree,
    observables: Mapping[str, Observable],
    evidence: Evidence,
    floor: float | Tensor,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Draw all observables given the evidence, one row of the result per row of evidence.

    The walk visits leaves from left to right. At each leaf the downward message sees the evidence everywhere and the
    values drawn so far; the draw then replaces the leaf's upward message. Each operator is used a fixed number of
    times, so a sample costs little more than a posterior.

    Returns:
        name -> (batch,) states or values.
    """
    up = list(upward_pass(operators, schedule, prepare(observables, evidence, root)).messages)
    values: dict[str, Tensor] = {}
    # Work to do, last first: (node, k, message) sends down to child k, (node, None, None) refreshes the way up.
    stack: list[tuple[int, int | None, Tensor | None]] = [(0, k, None) for k in reversed(range(len(tree.children[0])))]
    while stack:
        node, k, above = stack.pop()
        children = tree.children[node]
        below = [m.unsqueeze(0) for m in (up[c] for c in children) if m is not None]
        if k is None:
            up[node] = _unit(upward_message(operators[node].unsqueeze(0), below)[0])
            continue
        child = children[k]
        if above is None:
            message = _unit(root_message(root, [up[c] for c in children], k))
        else:
            message = _unit(downward_message(operators[node].unsqueeze(0), above.unsqueeze(0), below, k)[0])
        if schedule.observables[child]:
            leaf = [observables[v] for v in schedule.observables[child]]
            up[child] = _draw(operators[child], message, leaf, evidence, floor, generator, values)
        else:
            stack.append((child, None, None))
            stack.extend((child, j, message) for j in reversed(range(len(tree.children[child]))))
    return values


def _draw(
    weight: Tensor,
    message: Tensor,
    leaf: Sequence[Observable],
    evidence: Evidence,
    floor: float | Tensor,
    generator: torch.Generator,
    values: dict[str, Tensor],
) -> Tensor:
    """Draw a leaf's observables one after the other, note their values, and return the leaf's new upward message."""
    table = leaf_table(weight.unsqueeze(0), message.unsqueeze(0))[0]  # (batch, features…)
    zetas = [observable.zeta(evidence, table) for observable in leaf]
    for k, observable in enumerate(leaf):
        drawn = observable.draw(own_estimate(table, k, zetas), evidence, floor, generator)
        values[observable.name] = drawn
        zetas[k] = observable.drawn_zeta(drawn, table)
    upward = weight.unsqueeze(0).expand(len(message), *weight.shape)
    for zeta in reversed(zetas):
        upward = (upward * zeta.reshape(len(zeta), *[1] * (upward.ndim - 2), -1)).sum(dim=-1)
    return _unit(upward)


def _unit(message: Tensor) -> Tensor:
    scale = message.abs().amax(dim=-1, keepdim=True)
    return message / torch.where(scale > 0, scale, torch.ones_like(scale))
