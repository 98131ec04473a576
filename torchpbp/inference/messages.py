"""Predictive message passing: pure functions of operators and evidence, batched over rows and equal nodes.

Upward messages are functionals: P(evidence inside | Ω) = up · E[θ | Ω]. Downward messages are predictions,
E[θ 1(evidence outside)] [PBP eq. 2-5]. Each is divided by its largest entry per row and the logarithm kept, so that
trees of any size stay within floating-point range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchpbp.inference.schedule import Schedule, Step
from torchpbp.inputs.evidence import Evidence


class Upward(NamedTuple):
    """Result of the upward pass.

    Args:
        messages: per node a (batch, rank) message (None for the root).
        log_scale: (batch,) log of all that was divided out.
    """

    messages: list[Tensor | None]
    log_scale: Tensor


def upward_pass(operators: Sequence[Tensor], schedule: Schedule, evidence: Evidence) -> Upward:
    """From the leaves to the root [PBP eq. 2-3]."""
    messages: list[Tensor | None] = [None] * len(operators)
    logs = []
    for step in schedule.leaves:
        raw = _leaf_messages(step, operators, schedule, evidence)
        logs.append(_store(messages, step, raw))
    for step in schedule.inner:
        weight = _stack(operators, step.nodes)
        inputs = [_stack_messages(messages, nodes) for nodes in step.children]
        logs.append(_store(messages, step, upward_message(weight, inputs)))
    return Upward(messages, torch.stack(logs).sum(dim=0))


def downward_pass(
    operators: Sequence[Tensor], root: Tensor, schedule: Schedule, upward: Upward, nodes: set[int] | None = None
) -> list[Tensor | None]:
    """From the root to the leaves [PBP eq. 4-5].

    Args:
        operators: one tensor per node.
        root: root tensor.
        schedule: order of the pass.
        upward: result of :func:`upward_pass`.
        nodes: nodes whose messages are wanted, closed under parents; all by default.

    Returns:
        Per node a (batch, rank) message, scaled to a largest entry of 1.
    """
    messages: list[Tensor | None] = [None] * len(operators)
    wanted = range(len(operators)) if nodes is None else nodes
    for k, child in enumerate(schedule.root_children):
        if child in wanted:
            others = [upward.messages[c] for c in schedule.root_children]
            messages[child] = _rescale(root_message(root, others, k))[0]
    for step in reversed(schedule.inner):
        chosen = [i for i, n in enumerate(step.nodes) if n in wanted]
        if not chosen:
            continue
        parents = tuple(step.nodes[i] for i in chosen)
        weight = _stack(operators, parents)
        above = _stack_messages(messages, parents)
        below = [_stack_messages(upward.messages, tuple(c[i] for i in chosen)) for c in step.children]
        for k, children in enumerate(step.children):
            targets = [children[i] for i in chosen]
            if not any(t in wanted for t in targets):
                continue
            message = _rescale(downward_message(weight, above, below, k))[0]
            for i, target in enumerate(targets):
                messages[target] = message[i]
    return messages


def upward_message(weight: Tensor, below: Sequence[Tensor]) -> Tensor:
    """W ×_{S_1} up(S_1) … ×_{S_K} up(S_K).

    Args:
        weight: (nodes, rank, child ranks…).
        below: per child (nodes, batch, child rank).

    Returns:
        (nodes, batch, rank).
    """
    if len(below) == 1:
        return below[0] @ weight.mT
    partial = torch.einsum("gabc,gnc->gnab", weight, below[1])
    return torch.einsum("gnab,gnb->gna", partial, below[0])


def downward_message(weight: Tensor, above: Tensor, below: Sequence[Tensor], k: int) -> Tensor:
    """W ×_S down(S) ×_{j≠k} up(S_j): (nodes, batch, rank of child k)."""
    if len(below) == 1:
        return above @ weight
    if k == 0:
        return torch.einsum("gnab,gna->gnb", torch.einsum("gabc,gnc->gnab", weight, below[1]), above)
    return torch.einsum("gnac,gna->gnc", torch.einsum("gabc,gnb->gnac", weight, below[0]), above)


def root_message(root: Tensor, below: Sequence[Tensor | None], k: int) -> Tensor:
    """T ×_{j≠k} up(S_j): (batch, rank of child k)."""
    batch = next(b for b in below if b is not None).shape[0]
    message, modes = root, "abc"[: root.ndim]
    # Two operands at a time: with more, einsum looks for a path on every call.
    for j in sorted((j for j in range(root.ndim) if j != k), reverse=True):
        letter = "abc"[j]
        rest = "n" + modes.replace(letter, "").removeprefix("n")
        message = torch.einsum(f"{modes},n{letter}->{rest}", message, below[j])
        modes = rest
    return message if "n" in modes else message.expand(batch, -1)


def leaf_table(weight: Tensor, downward: Tensor) -> Tensor:
    """Ψ down(S): joint estimate over the leaf's observables.

    Args:
        weight: (nodes, rank, states…).
        downward: (nodes, batch, rank).

    Returns:
        (nodes, batch, states…).
    """
    flat = downward @ weight.reshape(*weight.shape[:2], -1)
    return flat.reshape(*downward.shape[:2], *weight.shape[2:])


def extended(weight: Tensor) -> Tensor:
    """Append to each state dimension of (nodes, rank, states…) the sum over it: the entry for "not observed"."""
    for dim in range(2, weight.ndim):
        weight = torch.cat([weight, weight.sum(dim=dim, keepdim=True)], dim=dim)
    return weight


def _leaf_messages(step: Step, operators: Sequence[Tensor], schedule: Schedule, evidence: Evidence) -> Tensor:
    """(nodes, batch, rank) messages from evidence: a gather where states are given, a product where weights are."""
    groups = [schedule.observables[n] for n in step.nodes]
    soft = [any(v in evidence.soft for v in g) for g in groups]
    weight = _stack(operators, step.nodes)
    if not any(soft):
        return _gathered(weight, groups, evidence)
    parts = []
    for i, group in enumerate(groups):
        parts.append(
            _weighted(weight[i], group, evidence) if soft[i] else _gathered(weight[i : i + 1], [group], evidence)[0]
        )
    return torch.stack(parts)


def _gathered(weight: Tensor, groups: Sequence[tuple[str, ...]], evidence: Evidence) -> Tensor:
    wide = extended(weight)  # (nodes, rank, states + 1…)
    sizes = wide.shape[2:]
    table = wide.reshape(*wide.shape[:2], -1).mT  # (nodes, cells, rank)
    rows = torch.zeros(len(groups), evidence.batch, dtype=torch.int64, device=weight.device)
    for k, size in enumerate(sizes):
        missing = torch.full((evidence.batch,), size - 1, dtype=torch.int64, device=weight.device)
        columns = []
        for group in groups:
            states = evidence.hard.get(group[k])
            columns.append(missing if states is None else torch.where(states < 0, missing, states))
        rows = rows * size + torch.stack(columns)
    return torch.take_along_dim(table, rows.unsqueeze(-1), dim=1)


def _weighted(weight: Tensor, group: tuple[str, ...], evidence: Evidence) -> Tensor:
    message = weight.unsqueeze(0)  # (1 or batch, rank, states…)
    for k in range(len(group) - 1, -1, -1):
        zeta = evidence.weights(group[k], weight.shape[1 + k], weight.dtype, weight.device)
        if zeta is None:
            message = message.sum(dim=-1)
        else:
            message = (message * zeta.reshape(evidence.batch, *[1] * (message.ndim - 2), zeta.shape[-1])).sum(dim=-1)
    return message.expand(evidence.batch, -1)


def _stack(operators: Sequence[Tensor], nodes: Sequence[int]) -> Tensor:
    return torch.stack([operators[n] for n in nodes]) if len(nodes) > 1 else operators[nodes[0]].unsqueeze(0)


def _stack_messages(messages: Sequence[Tensor | None], nodes: Sequence[int]) -> Tensor:
    found = [m for m in (messages[n] for n in nodes) if m is not None]
    return torch.stack(found) if len(found) > 1 else found[0].unsqueeze(0)


def _store(messages: list[Tensor | None], step: Step, raw: Tensor) -> Tensor:
    scaled, log_scale = _rescale(raw)
    for i, n in enumerate(step.nodes):
        messages[n] = scaled[i]
    return log_scale.sum(dim=0)


def _rescale(message: Tensor) -> tuple[Tensor, Tensor]:
    """Divide by the largest absolute entry of the last dimension; rows of zeros stay as they are."""
    scale = message.detach().abs().amax(dim=-1, keepdim=True)
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return message / safe, safe.squeeze(-1).log()
