"""Contractions of operators with messages and evidence: the single steps of message passing.

Operators of equal shape are stacked along a first dimension of nodes. A dimension of classes may follow; it is written … below, and
operators and messages both have it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchpbp.inputs.evidence import Evidence


def upward_message(weight: Tensor, below: Sequence[Tensor]) -> Tensor:
    """W ×_{S_1} up(S_1) … ×_{S_K} up(S_K).

    Args:
        weight: (nodes, …, rank, child ranks).
        below: per child (nodes, …, batch, child rank); a class dimension of size 1 stands for all classes.

    Returns:
        (nodes, …, batch, rank).
    """
    if len(below) == 1:
        return below[0] @ weight.mT
    pairs, matrix = _pairs(below[0], below[1]), weight.flatten(-2)
    if weight.ndim == 5 and pairs.shape[1] == 1:  # messages that all classes share: one product for all of them
        nodes, classes, rank, size = matrix.shape
        together = matrix.reshape(nodes, classes * rank, size) @ pairs.squeeze(1)
        return together.reshape(nodes, classes, rank, -1).mT
    return (matrix @ pairs).mT


def downward_message(weight: Tensor, above: Tensor, below: Sequence[Tensor], k: int) -> Tensor:
    """W ×_S down(S) ×_{j≠k} up(S_j): (nodes, …, batch, rank of child k)."""
    if len(below) == 1:
        return above @ weight
    own_last = weight if k == 1 else weight.mT  # (…, rank, the other child, child k)
    return (own_last.flatten(-3, -2).mT @ _pairs(above, below[1 - k])).mT


def root_message(root: Tensor, below: Sequence[Tensor | None], k: int) -> Tensor:
    """T ×_{j≠k} up(S_j).

    Args:
        root: (…, child ranks).
        below: per child (…, batch, child rank).
        k: which child.

    Returns:
        (…, batch, rank of child k).
    """
    first = root.ndim - len(below)
    batch = next(b for b in below if b is not None).shape[-2]
    own_last = root.movedim(first + k, -1)
    others = [b for j, b in enumerate(below) if j != k and b is not None]
    if not others:
        return own_last.unsqueeze(-2).expand(*own_last.shape[:-1], batch, -1)
    if len(others) == 1:
        return others[0] @ own_last
    return (own_last.flatten(-3, -2).mT @ _pairs(others[0], others[1])).mT


def _pairs(left: Tensor, right: Tensor) -> Tensor:
    """Outer products of each row, (…, left · right, batch).

    One product with a matrix then contracts both at once, instead of a small one for each row. Rows come last, which makes the
    inner loop of the product long: messages have few entries.
    """
    return (left.mT.contiguous().unsqueeze(-2) * right.mT.contiguous().unsqueeze(-3)).flatten(-3, -2)


def leaf_table(weight: Tensor, downward: Tensor) -> Tensor:
    """Ψ down(S): joint estimate over the leaf's observables.

    Args:
        weight: (nodes, …, rank, features of the leaf's observables).
        downward: (nodes, …, batch, rank).

    Returns:
        (nodes, …, batch, features of the leaf's observables).
    """
    leading = downward.ndim - 2
    flat = downward @ weight.flatten(leading + 1)
    return flat.reshape(*downward.shape[:-1], *weight.shape[leading + 1 :])


def leaf_messages(weight: Tensor, groups: Sequence[tuple[str, ...]], evidence: Evidence) -> Tensor:
    """Messages from evidence: a gather where states are given, a product where weights are.

    Args:
        weight: (nodes, …, rank, features of the leaf's observables).
        groups: per node the leaf's observables.
        evidence: states and weights, the same for all classes.

    Returns:
        (nodes, …, batch, rank).
    """
    own = weight.ndim - len(groups[0])
    leading = weight.shape[1:own]
    flat = weight.reshape(len(groups), -1, *weight.shape[own:])  # all classes are read at once
    soft = [any(v in evidence.soft for v in g) for g in groups]
    chosen = {kind: [i for i, s in enumerate(soft) if s is kind] for kind in set(soft)}
    parts = {}
    for kind, nodes in chosen.items():
        some = flat if len(nodes) == len(groups) else flat[nodes]
        read = _weighted if kind else _gathered
        parts[kind] = read(some, [groups[i] for i in nodes], evidence)
    if len(parts) == 1:
        (messages,) = parts.values()
    else:
        rows = {i: part[k] for kind, part in parts.items() for k, i in enumerate(chosen[kind])}
        messages = torch.stack([rows[i] for i in range(len(groups))])
    return messages.reshape(len(groups), evidence.batch, *leading).movedim(1, -2)


def _gathered(weight: Tensor, groups: Sequence[tuple[str, ...]], evidence: Evidence) -> Tensor:
    """(nodes, batch, rank) messages from states."""
    for dim in range(2, weight.ndim):  # the sum over each dimension is its entry for "not observed"
        weight = torch.cat([weight, weight.sum(dim=dim, keepdim=True)], dim=dim)
    table = weight.reshape(*weight.shape[:2], -1).mT  # (nodes, cells, rank)
    rows = torch.zeros(len(groups), evidence.batch, dtype=torch.int64, device=weight.device)
    for k, size in enumerate(weight.shape[2:]):
        missing = torch.full((evidence.batch,), size - 1, dtype=torch.int64, device=weight.device)
        columns = []
        for group in groups:
            states = evidence.hard.get(group[k])
            columns.append(missing if states is None else torch.where(states < 0, missing, states))
        rows = rows * size + torch.stack(columns)
    return torch.take_along_dim(table, rows.unsqueeze(-1), dim=1)


def _weighted(weight: Tensor, groups: Sequence[tuple[str, ...]], evidence: Evidence) -> Tensor:
    """(nodes, batch, rank) messages from weights."""
    message, modes = weight, "gr...s"  # "gnr...s" once there are rows
    for k in range(len(groups[0]) - 1, -1, -1):
        zetas = [evidence.weights(g[k], weight.shape[2 + k], weight.dtype, weight.device) for g in groups]
        if all(z is None for z in zetas):
            message = message.sum(dim=-1)
            continue
        ones = weight.new_ones(evidence.batch, weight.shape[2 + k])
        stacked = torch.stack([ones if z is None else z for z in zetas])
        message, modes = torch.einsum(f"{modes},gns->gnr...", message, stacked), "gnr...s"
    return message
