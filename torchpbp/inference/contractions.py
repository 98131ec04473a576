"""Contractions of operators with messages and evidence: the single steps of message passing.

Operators of equal shape are stacked along a first dimension of nodes. An optional dimension of classes, written … below, follows in
both operators and messages. The rows of a batch come last, which makes all inner loops long: messages have few entries.

For single rows the overhead of each torch call exceeds its arithmetic, so the code makes few calls and prefers cheap ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.exact.contraction import rescaled
from torchpbp.inference.schedule import Place, Runs
from torchpbp.inputs.evidence import Evidence


def upward_message(weight: Tensor, below: Sequence[Tensor]) -> Tensor:
    """W ×_{S_1} up(S_1) … ×_{S_K} up(S_K).

    Args:
        weight: (nodes, …, rank, child ranks).
        below: per child (nodes, …, child rank, batch); a class dimension of size 1 stands for all classes.

    Returns:
        (nodes, …, rank, batch).
    """
    if len(below) == 1:
        return _product(weight, below[0])
    pairs, matrix = _pairs(below[0], below[1]), weight.flatten(-2)
    if weight.ndim == 5 and pairs.shape[1] == 1:  # messages shared by all classes: one product for all of them
        return (matrix.flatten(1, 2) @ pairs.squeeze(1)).reshape(*matrix.shape[:3], pairs.shape[-1])
    return _product(matrix, pairs)


def downward_message(weight: Tensor, above: Tensor, below: Sequence[Tensor | None], k: int) -> Tensor:
    """W ×_S down(S) ×_{j≠k} up(S_j): (nodes, …, rank of child k, batch)."""
    beside = below[1 - k] if len(below) == 2 else None
    if beside is None:
        return _product(weight.mT, above)
    child_last = weight if k == 1 else weight.mT  # (…, rank, the other child, child k)
    return _product(child_last.flatten(-3, -2).mT, _pairs(above, beside))


def root_message(root: Tensor, below: Sequence[Tensor | None], k: int, batch: int) -> Tensor:
    """T ×_{j≠k} up(S_j).

    Args:
        root: (…, child ranks).
        below: per child (…, child rank, batch); the entry of child ``k`` is not used.
        k: index of the child that receives the message.
        batch: number of rows.

    Returns:
        (…, rank of child k, batch).
    """
    others = [b for j, b in enumerate(below) if j != k and b is not None]
    if not others:
        return root.unsqueeze(-1).expand(*root.shape, batch)
    if len(others) == 1:
        matrix, beside = root.mT if k else root, others[0]
    else:
        child_last = root if k == 2 else root.movedim(root.ndim - 3 + k, -1)
        matrix, beside = child_last.flatten(-3, -2).mT, _pairs(others[0], others[1])
    return torch.mm(matrix, beside) if matrix.ndim == 2 else matrix @ beside


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Matrix product; ``bmm`` for two batches of matrices, which, like ``mm``, skips the broadcasting logic of ``@``."""
    return torch.bmm(left, right) if left.ndim == right.ndim == 3 else left @ right


def _pairs(left: Tensor, right: Tensor) -> Tensor:
    """Outer product of each row, (…, left · right, batch).

    One matrix product then contracts both factors for all rows.
    """
    return (left.unsqueeze(-2) * right.unsqueeze(-3)).flatten(-3, -2)


def leaf_table(weight: Tensor, downward: Tensor) -> Tensor:
    """Ψ down(S): joint estimate over the leaf's observables.

    Args:
        weight: (nodes, …, rank, features of the leaf's observables).
        downward: (nodes, …, rank, batch).

    Returns:
        (nodes, …, features of the leaf's observables, batch).
    """
    features_from = downward.ndim - 1
    if weight.ndim == features_from + 1:  # one observable
        return _product(weight.mT, downward)
    table = _product(weight.flatten(features_from).mT, downward)
    return table.reshape(*table.shape[:-2], *weight.shape[features_from:], table.shape[-1])


def leaf_messages(
    weight: Tensor, groups: Sequence[tuple[str, ...]], evidence: Evidence
) -> tuple[Tensor, Tensor | None]:
    """Messages from evidence: a gather for states, a product for weights.

    Args:
        weight: (nodes, …, rank, features of the leaf's observables).
        groups: per node the leaf's observables.
        evidence: states and weights, the same for all classes.

    Returns:
        (nodes, …, rank, batch) messages, and the (nodes, …, 1, batch) scale divided out of the weights; None for states.
    """
    features_from = weight.ndim - len(groups[0])
    # (nodes, classes · rank, features…)
    flat = weight if features_from == 2 else weight.reshape(len(groups), -1, *weight.shape[features_from:])
    soft = [any(v in evidence.soft for v in g) for g in groups] if evidence.soft else [False]
    if all(soft):
        messages, scale = _weighted(flat, groups, evidence)
    elif not any(soft):
        messages, scale = _gathered(flat, groups, evidence), None
    else:
        nodes = list(zip(flat.unbind(), groups, soft, strict=True))
        hard, weighted = ([(w, g) for w, g, s in nodes if s is kind] for kind in (False, True))
        gathered = _gathered(torch.stack([w for w, _ in hard]), [g for _, g in hard], evidence)
        message, scales = _weighted(torch.stack([w for w, _ in weighted]), [g for _, g in weighted], evidence)
        one = scales.new_ones(1, evidence.batch)
        parts = {False: iter(gathered.unbind()), True: iter(message.unbind())}
        messages = torch.stack([next(parts[s]) for s in soft])
        sizes = iter(scales.expand(len(weighted), 1, evidence.batch).unbind())
        scale = torch.stack([next(sizes) if s else one for s in soft])
    if features_from == 2:
        return messages, scale
    return messages.reshape(*weight.shape[:features_from], evidence.batch), None if scale is None else scale.unsqueeze(
        1
    )


def _gathered(weight: Tensor, groups: Sequence[tuple[str, ...]], evidence: Evidence) -> Tensor:
    """(nodes, rank, batch) messages from states."""
    for dim in range(2, weight.ndim):  # the sum over the states is prepended: state -1, not observed
        weight = torch.cat([weight.sum(dim=dim, keepdim=True), weight], dim=dim)
    unobserved: Tensor | None = None
    cells: Tensor | None = None
    for k, size in enumerate(weight.shape[2:]):
        if unobserved is None and not all(g[k] in evidence.hard for g in groups):
            unobserved = torch.full((evidence.batch,), -1, dtype=torch.int64, device=weight.device)
        columns = [evidence.hard.get(g[k], unobserved) for g in groups]
        states = torch.stack([c for c in columns if c is not None]) + 1
        cells = states if cells is None else cells * size + states
    assert cells is not None
    table = weight if weight.ndim == 3 else weight.flatten(2)
    return table.gather(2, cells.unsqueeze(1).expand(-1, table.shape[1], -1))


def _weighted(weight: Tensor, groups: Sequence[tuple[str, ...]], evidence: Evidence) -> tuple[Tensor, Tensor]:
    """(nodes, rank, batch) messages from weights divided by their largest entries, and these entries, (nodes, 1, batch)."""
    message, scale, rows = weight, weight.new_ones(1, 1, 1), False
    for k in range(len(groups[0]) - 1, -1, -1):
        zetas = [evidence.weights(g[k], weight.shape[2 + k], weight.dtype, weight.device) for g in groups]
        if all(z is None for z in zetas):
            message = message.sum(dim=-2 if rows else -1)
            continue
        ones = weight.new_ones(evidence.batch, weight.shape[2 + k])
        stacked = torch.stack([ones if z is None else z for z in zetas]).mT  # (nodes, features, batch)
        stacked, largest = rescaled(stacked)
        scale = scale * largest
        if rows:
            inner = stacked.reshape(len(stacked), *[1] * (message.ndim - 3), *stacked.shape[1:])
            message = (message * inner).sum(dim=-2)
        else:
            flat = message.flatten(1, -2) @ stacked
            message, rows = flat.reshape(*message.shape[:-1], evidence.batch), True
    return message, scale


def gather_messages(parts: Sequence[Tensor], runs: Runs) -> Tensor:
    """(nodes, …, rank, batch) messages gathered from their parts, without a copy where they are contiguous."""
    if len(runs) == 1:
        part, first, length = runs[0]
        return parts[part] if length is None else parts[part].narrow(0, first, length)
    messages = [parts[p] if length is None else parts[p].narrow(0, first, length) for p, first, length in runs]
    # The batch dimension is not compared: it is symbolic in programs compiled for batches of any size.
    if len({m.shape[1:-1] for m in messages}) > 1:  # messages shared by all classes next to messages per class
        leading = [max(sizes) for sizes in zip(*(m.shape[1:-1] for m in messages), strict=True)]
        messages = [m.expand(-1, *leading, -1) for m in messages]
    return torch.cat(messages)


def messages_by_node(parts: Sequence[Tensor], places: Mapping[int, Place], count: int) -> list[Tensor | None]:
    """Per node a (…, batch, rank) message with a largest entry of 1; None for nodes without a message."""
    messages = {n: parts[part][i] for n, (part, i) in places.items()}
    return [rescaled(messages[n])[0].mT if n in messages else None for n in range(count)]
