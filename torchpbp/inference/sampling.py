"""Sampling from the learned distribution: one walk over the tree, leaf by leaf."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchpbp.graph.clique_tree import CliqueTree
from torchpbp.inference.messages import (
    downward_message,
    leaf_table,
    root_message,
    upward_message,
    upward_pass,
)
from torchpbp.inference.queries import as_distribution
from torchpbp.inference.schedule import Schedule
from torchpbp.inputs.evidence import Evidence


def sample_leaves(
    operators: Sequence[Tensor],
    root: Tensor,
    schedule: Schedule,
    tree: CliqueTree,
    evidence: Evidence,
    floor: float,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Draw all observables given the evidence, one row of the result per row of evidence.

    The walk visits leaves from left to right. At each leaf the downward message sees the evidence everywhere and the
    values drawn so far; the draw then replaces the leaf's upward message. Each operator is used a fixed number of
    times, so a sample costs little more than a posterior.

    Returns:
        name -> (batch,) states.
    """
    up = list(upward_pass(operators, schedule, evidence).messages)
    values: dict[str, Tensor] = {}
    # Work to do, last first: enter node `n` with its downward message, or refresh its upward message.
    stack: list[tuple[int, int | None, Tensor | None]] = [(0, k, None) for k in reversed(range(len(tree.children[0])))]
    while stack:
        node, k, above = stack.pop()
        children = tree.children[node]
        if k is None:
            below = [m.unsqueeze(0) for m in (up[c] for c in children) if m is not None]
            up[node] = _unit(upward_message(operators[node].unsqueeze(0), below)[0])
            continue
        child = children[k]
        if node == 0:
            message = root_message(root, [up[c] for c in children], k)
        else:
            assert above is not None
            below = [m.unsqueeze(0) for m in (up[c] for c in children) if m is not None]
            message = downward_message(operators[node].unsqueeze(0), above.unsqueeze(0), below, k)[0]
        message = _unit(message)
        if schedule.observables[child]:
            up[child] = _draw(
                operators[child], message, schedule.observables[child], evidence, floor, generator, values
            )
        else:
            stack.append((child, None, None))
            stack.extend((child, j, message) for j in reversed(range(len(tree.children[child]))))
    return values


def _draw(
    weight: Tensor,
    message: Tensor,
    observables: Sequence[str],
    evidence: Evidence,
    floor: float,
    generator: torch.Generator,
    values: dict[str, Tensor],
) -> Tensor:
    """Draw the leaf's observables jointly, note their values, and return the leaf's new upward message."""
    table = leaf_table(weight.unsqueeze(0), message.unsqueeze(0))[0]  # (batch, states…)
    allowed = torch.ones_like(table)
    for k, v in enumerate(observables):
        zeta = evidence.weights(v, table.shape[1 + k], table.dtype, table.device)
        if zeta is not None:
            allowed = allowed * zeta.reshape([evidence.batch] + [-1 if i == k else 1 for i in range(table.ndim - 1)])
    sizes = table.shape[1:]
    probabilities = as_distribution(table.flatten(1), floor) * allowed.flatten(1)
    code = torch.multinomial(probabilities, 1, generator=generator).squeeze(1)
    flat = weight.flatten(1).T[code]
    for k in reversed(range(len(sizes))):
        values[observables[k]] = code % sizes[k]
        code = code // sizes[k]
    return _unit(flat)


def _unit(message: Tensor) -> Tensor:
    scale = message.abs().amax(dim=-1, keepdim=True)
    return message / torch.where(scale > 0, scale, torch.ones_like(scale))
