"""OperatorTree: operators on a junction tree, and the messages that evidence sends along it.

Upward messages are functionals: P(evidence inside | Ω) = up · E[θ | Ω]. Downward messages are predictions,
E[θ 1(evidence outside)] [PBP eq. 2-5]. Each is divided by its largest entry per row and the logarithm kept, so that
trees of any size stay within floating-point range. Rows, and nodes of equal shape at equal depth, are handled together.
Everything is differentiable in operators and evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchpbp.inference.observable import Observable, prepare
from torchpbp.inference.schedule import Schedule, Step, build_schedule
from torchpbp.inputs.evidence import Evidence
from torchpbp.planning.plan import Plan


class UpwardMessages(NamedTuple):
    """Result of the upward pass.

    Args:
        messages: per node a (batch, rank) message (None for the root).
        log_scale: (batch,) log of all that was divided out.
    """

    messages: list[Tensor | None]
    log_scale: Tensor


class Mass(NamedTuple):
    """Estimates of P(evidence), up to a factor that was divided out.

    Args:
        value: (batch,) the estimates, which may be negative.
        size: (batch,) sums of the absolute terms behind each.
        log_scale: (batch,) log of the factor.
    """

    value: Tensor
    size: Tensor
    log_scale: Tensor

    def log(self, floor: float | Tensor) -> Tensor:
        """(batch,) log P(evidence); an estimate below ``floor`` times the sum of its absolute terms is raised to that.

        It is -inf where every term is 0, or where an estimate is not positive and there is no floor.
        """
        value, size, log_scale = self
        least = floor.to(value.dtype) * size if isinstance(floor, Tensor) else floor * size
        positive = torch.where(size > 0, torch.maximum(value, least), torch.ones_like(value))
        return torch.where(size > 0, positive.log() + log_scale, torch.full_like(value, -torch.inf))


class OperatorTree:
    """A learned distribution over observables: one operator per separator of a junction tree, and a root tensor.

    Evidence is :class:`~torchpbp.Evidence` by states or weights; values of continuous variables are turned into weights by
    :func:`~torchpbp.inference.observable.prepare` first.

    Args:
        plan: tree and message sizes.
        operators: per node (index 0 unused) a tensor with modes (message, children's messages…) or, at a leaf, (message,
            features of the leaf's observables…).
        root: tensor with one mode per child of the root.
        schedule: order of message passing; by default it is found from the operators' shapes.
    """

    def __init__(self, plan: Plan, operators: Sequence[Tensor], root: Tensor, schedule: Schedule | None = None) -> None:
        self.plan, self.operators, self.root = plan, operators, root
        self._schedule = schedule

    @property
    def schedule(self) -> Schedule:
        """Order of message passing."""
        if self._schedule is None:  # not a cached_property, whose lock torch.compile does not take
            self._schedule = build_schedule(self.plan.tree, [tuple(w.shape) for w in self.operators])
        return self._schedule

    def upward(self, evidence: Evidence) -> UpwardMessages:
        """Messages from the leaves to the root [PBP eq. 2-3]."""
        messages: list[Tensor | None] = [None] * len(self.operators)
        logs = []
        for step in self.schedule.leaves:
            logs.append(_store(messages, step, self._leaf_messages(step, evidence)))
        for step in self.schedule.inner:
            inputs = [_stack_messages(messages, nodes) for nodes in step.children]
            logs.append(_store(messages, step, upward_message(self._stack(step.nodes), inputs)))
        return UpwardMessages(messages, torch.stack(logs).sum(dim=0))

    def downward(self, upward: UpwardMessages, leaves: Sequence[int] | None = None) -> list[Tensor | None]:
        """Messages from the root to the leaves [PBP eq. 4-5].

        Args:
            upward: result of :meth:`upward`.
            leaves: leaves to be reached; all by default.

        Returns:
            Per node on the way a (batch, rank) message, scaled to a largest entry of 1.
        """
        messages: list[Tensor | None] = [None] * len(self.operators)
        wanted = range(len(self.operators)) if leaves is None else self._above(leaves)
        for k, child in enumerate(self.schedule.root_children):
            if child in wanted:
                others = [upward.messages[c] for c in self.schedule.root_children]
                messages[child] = _rescale(root_message(self.root, others, k))[0]
        for step in reversed(self.schedule.inner):
            chosen = [i for i, n in enumerate(step.nodes) if n in wanted]
            if not chosen:
                continue
            parents = tuple(step.nodes[i] for i in chosen)
            weight = self._stack(parents)
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

    def estimates(self, evidence: Evidence, leaves: Sequence[int] | None = None) -> dict[int, Tensor]:
        """Joint estimates E[φ(δ(C)) 1(evidence elsewhere)] at leaves, each up to a positive factor per row [PBP Step 4].

        Args:
            evidence: for a batch of rows.
            leaves: leaves wanted; all by default.

        Returns:
            leaf -> (batch, features of its observables…); evidence on these observables themselves is not included.
        """
        downward = self.downward(self.upward(evidence), leaves)
        result: dict[int, Tensor] = {}
        for step in self.schedule.leaves:
            chosen = [n for n in step.nodes if leaves is None or n in leaves]
            if chosen:
                weight = torch.stack([self.operators[n] for n in chosen])
                messages = torch.stack([m for m in (downward[n] for n in chosen) if m is not None])
                result.update(zip(chosen, leaf_table(weight, messages), strict=True))
        return result

    def mass(self, evidence: Evidence) -> Mass:
        """P(evidence) as it is estimated, T ×_all up: possibly negative, with the factor divided out."""
        upward = self.upward(evidence)
        below = [upward.messages[c] for c in self.schedule.root_children]
        last = below[-1]
        assert last is not None
        terms = root_message(self.root, below, self.root.ndim - 1) * last
        return Mass(terms.sum(dim=-1), terms.detach().abs().sum(dim=-1), upward.log_scale)

    def log_mass(self, evidence: Evidence, floor: float | Tensor = 0.0) -> Tensor:
        """(batch,) log P(evidence), see :meth:`Mass.log`."""
        return self.mass(evidence).log(floor)

    def sample(
        self,
        evidence: Evidence,
        observables: Mapping[str, Observable],
        floor: float | Tensor,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """Draw all observables given the evidence, one draw per row of evidence.

        The walk visits leaves from left to right. At each leaf the downward message sees the evidence everywhere and the
        values drawn so far; the draw then replaces the leaf's upward message. Each operator is used a fixed number of
        times, so a sample costs little more than a posterior.

        Args:
            evidence: states, weights and values as given by the user.
            observables: of the tree, with their feature maps.
            floor: least probability of a state, as a share of the mass.
            generator: of the draws.

        Returns:
            name -> (batch,) states or values.
        """
        up = list(self.upward(prepare(observables, evidence, self.root)).messages)
        children_of, values = self.plan.tree.children, {}
        # Work to do, last first: (node, k, message) sends down to child k, (node, None, None) refreshes the way up.
        stack: list[tuple[int, int | None, Tensor | None]] = [
            (0, k, None) for k in reversed(range(len(children_of[0])))
        ]
        while stack:
            node, k, above = stack.pop()
            children = children_of[node]
            below = [m.unsqueeze(0) for m in (up[c] for c in children) if m is not None]
            weight = self.operators[node].unsqueeze(0)
            if k is None:
                up[node] = _rescale(upward_message(weight, below)[0])[0]
                continue
            child = children[k]
            if above is None:
                message = _rescale(root_message(self.root, [up[c] for c in children], k))[0]
            else:
                message = _rescale(downward_message(weight, above.unsqueeze(0), below, k)[0])[0]
            leaf = [observables[v] for v in self.schedule.observables[child]]
            if leaf:
                drawn, up[child] = _draw(self.operators[child], message, leaf, evidence, floor, generator)
                values.update(drawn)
            else:
                stack.append((child, None, None))
                stack.extend((child, j, message) for j in reversed(range(len(children_of[child]))))
        return values

    def _above(self, leaves: Sequence[int]) -> set[int]:
        """Leaves and all nodes between them and the root."""
        nodes = set()
        for node in leaves:
            while node > 0:
                nodes.add(node)
                node = self.plan.tree.parent[node]
        return nodes

    def _stack(self, nodes: Sequence[int]) -> Tensor:
        if len(nodes) == 1:
            return self.operators[nodes[0]].unsqueeze(0)
        return torch.stack([self.operators[n] for n in nodes])

    def _leaf_messages(self, step: Step, evidence: Evidence) -> Tensor:
        """(nodes, batch, rank) messages from evidence: a gather where states are given, a product where weights are."""
        groups = [self.schedule.observables[n] for n in step.nodes]
        soft = [any(v in evidence.soft for v in g) for g in groups]
        weight = self._stack(step.nodes)
        if not any(soft):
            return _gathered(weight, groups, evidence)
        return torch.stack(
            [
                _weighted(weight[i], group, evidence) if soft[i] else _gathered(weight[i : i + 1], [group], evidence)[0]
                for i, group in enumerate(groups)
            ]
        )


# -- single messages -------------------------------------------------------------------------------------------------


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


def own_estimate(table: Tensor, position: int, zetas: Sequence[Tensor]) -> Tensor:
    """Estimate of one of a leaf's observables, the others summed out with their evidence.

    Args:
        table: (batch, features…), a joint estimate at a leaf.
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


def _gathered(weight: Tensor, groups: Sequence[tuple[str, ...]], evidence: Evidence) -> Tensor:
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


def _weighted(weight: Tensor, group: tuple[str, ...], evidence: Evidence) -> Tensor:
    message = weight.unsqueeze(0)  # (1 or batch, rank, states…)
    for k in range(len(group) - 1, -1, -1):
        zeta = evidence.weights(group[k], weight.shape[1 + k], weight.dtype, weight.device)
        if zeta is None:
            message = message.sum(dim=-1)
        else:
            message = (message * zeta.reshape(evidence.batch, *[1] * (message.ndim - 2), zeta.shape[-1])).sum(dim=-1)
    return message.expand(evidence.batch, -1)


def _draw(
    weight: Tensor,
    message: Tensor,
    leaf: Sequence[Observable],
    evidence: Evidence,
    floor: float | Tensor,
    generator: torch.Generator,
) -> tuple[dict[str, Tensor], Tensor]:
    """Draw a leaf's observables one after the other: name -> value, and the leaf's new upward message."""
    table = leaf_table(weight.unsqueeze(0), message.unsqueeze(0))[0]  # (batch, features…)
    zetas = [observable.zeta(evidence, table) for observable in leaf]
    values = {}
    for k, observable in enumerate(leaf):
        drawn = observable.draw(own_estimate(table, k, zetas), evidence, floor, generator)
        values[observable.name] = drawn
        zetas[k] = observable.drawn_zeta(drawn, table)
    upward = weight.unsqueeze(0).expand(len(message), *weight.shape)
    for zeta in reversed(zetas):
        upward = (upward * zeta.reshape(len(zeta), *[1] * (upward.ndim - 2), -1)).sum(dim=-1)
    return values, _rescale(upward)[0]


def _stack_messages(messages: Sequence[Tensor | None], nodes: Sequence[int]) -> Tensor:
    stacked = [m for m in (messages[n] for n in nodes) if m is not None]
    return torch.stack(stacked) if len(stacked) > 1 else stacked[0].unsqueeze(0)


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
