"""Answers from messages: estimates at leaves and the probability of evidence, made valid where they are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.inference.messages import Upward, downward_pass, leaf_table, root_message, upward_pass
from torchpbp.inference.schedule import Schedule
from torchpbp.inputs.evidence import Evidence


def leaf_estimates(
    operators: Sequence[Tensor],
    root: Tensor,
    schedule: Schedule,
    evidence: Evidence,
    parents: Sequence[int],
    leaves: Sequence[int] | None = None,
) -> dict[int, Tensor]:
    """Joint estimates E[φ(δ(C)) 1(evidence elsewhere)] at leaves, each up to a positive factor per row [PBP Step 4].

    Args:
        operators: one tensor per node.
        root: root tensor.
        schedule: order of message passing.
        evidence: for a batch of rows.
        parents: parent of each node.
        leaves: leaves wanted; all by default.

    Returns:
        leaf -> (batch, features of its observables…); evidence on these observables themselves is not included.
    """
    upward = upward_pass(operators, schedule, evidence)
    nodes = None
    if leaves is not None:
        nodes = set()
        for node in leaves:
            while node > 0:
                nodes.add(node)
                node = parents[node]
    downward = downward_pass(operators, root, schedule, upward, nodes)
    result: dict[int, Tensor] = {}
    for step in schedule.leaves:
        chosen = [n for n in step.nodes if leaves is None or n in leaves]
        if chosen:
            weight = torch.stack([operators[n] for n in chosen])
            messages = torch.stack([m for m in (downward[n] for n in chosen) if m is not None])
            result.update(zip(chosen, leaf_table(weight, messages), strict=True))
    return result


def own_estimate(table: Tensor, position: int, zetas: Sequence[Tensor]) -> Tensor:
    """Estimate of one of a leaf's observables, the others summed out with their evidence.

    Args:
        table: (batch, features…) from :func:`leaf_estimates`.
        position: which observable.
        zetas: per observable its evidence vector, (batch, features) or (features,); at ``position`` anything.

    Returns:
        (batch, features of the observable).
    """
    for k in reversed(range(len(zetas))):
        if k != position:
            zeta = zetas[k] if zetas[k].ndim == 2 else zetas[k].unsqueeze(0)
            moved = table.movedim(1 + k, -1)
            table = (moved * zeta.reshape(len(zeta), *[1] * (moved.ndim - 2), zeta.shape[-1])).sum(dim=-1)
    return table


def as_distribution(estimate: Tensor, floor: float | Tensor, fallback: Tensor | None = None) -> Tensor:
    """Clip a (batch, states) estimate at ``floor`` times its mass and normalise.

    The mass is the sum of absolute values, so that the floor means the same whatever the scale. Negative entries are
    sampling noise, and where they make up a share s of the mass the rest holds about as much noise again; so the result
    is mixed with ``fallback`` in the proportion 2s. A row that holds no information (all zeros, or half of it negative)
    becomes the fallback.

    Args:
        estimate: (batch, states), any scale.
        floor: least probability, as a share of the mass.
        fallback: (states,) or (batch, states) distribution to retreat to; without one, only empty rows are replaced, by
            the uniform distribution.
    """
    absolute = estimate.abs().sum(dim=-1, keepdim=True)
    empty = absolute == 0
    mass = torch.where(empty, 1.0, absolute)
    least = floor.to(estimate.dtype) if isinstance(floor, Tensor) else torch.full_like(mass, floor)
    clipped = torch.maximum(estimate / mass.detach(), least) + empty.to(estimate.dtype)
    result = clipped / clipped.sum(dim=-1, keepdim=True)
    if fallback is None:
        return result
    # Twice the negative share: |e| − e is 0 where e is positive and 2|e| where it is negative.
    noise = (1 - estimate.sum(dim=-1, keepdim=True) / mass).clamp(max=1)
    return torch.lerp(result, fallback.expand_as(result), noise)


def negative_mass(estimate: Tensor) -> Tensor:
    """(batch,) share of the absolute mass of a (batch, states) estimate that is negative."""
    mass = estimate.abs().sum(dim=-1)
    negative = estimate.clamp(max=0).abs().sum(dim=-1)
    return torch.where(mass > 0, negative / mass.clamp(min=1e-300), torch.zeros_like(mass))


def evidence_estimate(root: Tensor, schedule: Schedule, upward: Upward) -> tuple[Tensor, Tensor, Tensor]:
    """T ×_all up, as (value, sum of absolute terms, log of the factor divided out), each (batch,)."""
    messages = [upward.messages[c] for c in schedule.root_children]
    last = messages[-1]
    assert last is not None
    partial = root_message(root, messages, root.ndim - 1)  # all but the last child
    terms = partial * last
    return terms.sum(dim=-1), terms.detach().abs().sum(dim=-1), upward.log_scale


def joint_states(
    evidence: Evidence, states: Mapping[str, int], device: torch.device | str = "cpu"
) -> tuple[Evidence, Tensor]:
    """Evidence with each joint state of some variables added in turn, as one larger batch.

    Args:
        evidence: for a batch of rows.
        states: variables to go through, with their numbers of states.
        device: of the evidence.

    Returns:
        Evidence with batch · cells rows, row by row in the order of the cells, and (batch · cells,) the weight that the
        evidence itself gives to the state: 0 where it says otherwise.
    """
    grid = torch.cartesian_prod(*[torch.arange(s, device=device) for s in states.values()]).reshape(-1, len(states))
    wide = evidence.repeat_interleave(len(grid))
    hard, soft = dict(wide.hard), dict(wide.soft)
    allowed = torch.ones(wide.batch, dtype=torch.float64, device=device)
    for i, v in enumerate(states):
        own = grid[:, i].repeat(evidence.batch)
        if v in soft:
            allowed = allowed * soft.pop(v).gather(1, own.unsqueeze(1)).squeeze(1)
        if v in hard:
            allowed = allowed * ((hard[v] == own) | (hard[v] < 0))
        hard[v] = own
    return Evidence(wide.batch, hard, soft, wide.real), allowed
