"""OperatorTree: operators on a junction tree, and the messages that evidence sends along it.

Upward messages are functionals: P(evidence inside | Ω) = up · E[θ | Ω]. Downward messages are predictions,
E[θ 1(evidence outside)] [PBP eq. 2-5]. Each is divided by its largest entry per row and the logarithm kept, so that
trees of any size stay within floating-point range. Rows, and nodes of equal shape at equal depth, are handled together.
Everything is differentiable in operators and evidence.

All operators may have a leading dimension of classes, whose evidence is the same. Messages then have it as well:
:class:`~torchpbp.inference.class_trees.ClassTrees` is made of that.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchpbp.inference.contractions import downward_message, leaf_messages, leaf_table, root_message, upward_message
from torchpbp.inference.observable import Observable, prepare
from torchpbp.inference.schedule import Schedule, build_schedule
from torchpbp.inputs.evidence import Evidence
from torchpbp.planning.plan import Plan


class UpwardMessages(NamedTuple):
    """Result of the upward pass.

    Args:
        messages: per node a (batch, rank) message (None for the root).
        log_scale: (batch,) log of all that was divided out.
        own_scales: per node (batch,) the part of it that was divided out at this node (None for the root).
    """

    messages: list[Tensor | None]
    log_scale: Tensor
    own_scales: list[Tensor | None]


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
        scales: list[Tensor | None] = [None] * len(self.operators)
        logs = []

        def store(nodes: Sequence[int], raw: Tensor) -> None:
            scaled, log_scale = _rescale(raw)
            logs.append(log_scale.sum(dim=0))
            for n, message, scale in zip(nodes, scaled.unbind(), log_scale.unbind(), strict=True):
                messages[n], scales[n] = message, scale

        for step in self.schedule.leaves:
            groups = [self.schedule.observables[n] for n in step.nodes]
            store(step.nodes, leaf_messages(self._stack(step.nodes), groups, evidence))
        for step in self.schedule.inner:
            inputs = [_stack_messages(messages, nodes) for nodes in step.children]
            store(step.nodes, upward_message(self._stack(step.nodes), inputs))
        return UpwardMessages(messages, functools.reduce(torch.add, logs), scales)

    def downward(self, upward: UpwardMessages, leaves: Sequence[int] | None = None) -> list[Tensor | None]:
        """Messages from the root to the leaves [PBP eq. 4-5].

        Args:
            upward: result of :meth:`upward`.
            leaves: leaves to be reached; all by default.

        Returns:
            Per node on the way a (batch, rank) message, scaled to a largest entry of 1.
        """
        return self._downward(upward, leaves)[0]

    def _downward(
        self, upward: UpwardMessages, leaves: Sequence[int] | None
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Messages from the root to the leaves, and per node (batch,) the log of what was divided out at this node."""
        messages: list[Tensor | None] = [None] * len(self.operators)
        scales: list[Tensor | None] = [None] * len(self.operators)
        wanted = range(len(self.operators)) if leaves is None else self._above(leaves)
        for k, child in enumerate(self.schedule.root_children):
            if child in wanted:
                others = [upward.messages[c] for c in self.schedule.root_children]
                messages[child], scales[child] = _rescale(root_message(self.root, others, k))
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
                message, scale = _rescale(downward_message(weight, above, below, k))
                for i, target in enumerate(targets):
                    messages[target], scales[target] = message[i], scale[i]
        return messages, scales

    def estimates(self, evidence: Evidence, leaves: Sequence[int] | None = None) -> dict[int, Tensor]:
        """Joint estimates E[φ(δ(C)) 1(evidence elsewhere)] at leaves, each up to a positive factor per row [PBP Step 4].

        Args:
            evidence: for a batch of rows.
            leaves: leaves wanted; all by default.

        Returns:
            leaf -> (batch, features of its observables…); evidence on these observables themselves is not included.
        """
        return self._leaf_tables(self.downward(self.upward(evidence), leaves), leaves)

    def scaled_estimates(
        self, evidence: Evidence, leaves: Sequence[int] | None = None
    ) -> dict[int, tuple[Tensor, Tensor]]:
        """:meth:`estimates` together with their factors: leaf -> (estimate, (batch,) log of what was divided out of it)."""
        upward = self.upward(evidence)
        downward, scales = self._downward(upward, leaves)
        return {
            leaf: (t, self._outside_scale(leaf, upward, scales))
            for leaf, t in self._leaf_tables(downward, leaves).items()
        }

    def _leaf_tables(self, downward: Sequence[Tensor | None], leaves: Sequence[int] | None) -> dict[int, Tensor]:
        result: dict[int, Tensor] = {}
        for step in self.schedule.leaves:
            chosen = [n for n in step.nodes if leaves is None or n in leaves]
            if chosen:
                tables = leaf_table(self._stack(chosen), _stack_messages(downward, chosen))
                result.update(zip(chosen, tables, strict=True))
        return result

    def _outside_scale(self, node: int, upward: UpwardMessages, downward: Sequence[Tensor | None]) -> Tensor:
        """(batch,) log of what was divided out of a downward message: upwards off the way from the root, downwards on it."""
        total = upward.log_scale
        while node > 0:
            up, down = upward.own_scales[node], downward[node]
            assert up is not None
            assert down is not None
            total, node = total - up + down, self.plan.tree.parent[node]
        return total

    def mass(self, evidence: Evidence) -> Mass:
        """P(evidence) as it is estimated, T ×_all up: possibly negative, with the factor divided out."""
        upward = self.upward(evidence)
        below = [upward.messages[c] for c in self.schedule.root_children]
        last = below[-1]
        assert last is not None
        terms = root_message(self.root, below, len(below) - 1) * last
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
    if len({m.shape for m in stacked}) > 1:  # messages that all classes share beside messages of each class
        stacked = list(torch.broadcast_tensors(*stacked))  # type: ignore[no-untyped-call]
    return torch.stack(stacked) if len(stacked) > 1 else stacked[0].unsqueeze(0)


def _rescale(message: Tensor) -> tuple[Tensor, Tensor]:
    """Divide by the largest absolute entry of the last dimension; rows of zeros stay as they are."""
    scale = message.detach().abs().amax(dim=-1, keepdim=True)
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return message / safe, safe.squeeze(-1).log()


def observable_estimates(
    tree: Any,
    observables: Mapping[str, Observable],
    evidence: Evidence,
    names: Sequence[str],
    every_leaf: bool = False,
) -> dict[str, Tensor]:
    """Estimates of observables that leave their own evidence out, up to a positive factor per row.

    Args:
        tree: an :class:`OperatorTree`, or anything with its ``plan``, ``root`` and ``estimates``.
        observables: of the tree.
        evidence: prepared.
        names: of the observables wanted.
        every_leaf: the downward pass may reach all leaves, which is faster where most of them are asked about.

    Returns:
        name -> (batch, features).
    """
    structure = tree.plan.tree
    all_leaves = every_leaf or len(names) == len(structure.leaf_of)
    leaves = None if all_leaves else sorted({structure.leaf_of[v] for v in names})
    tables = tree.estimates(evidence, leaves)
    result = {}
    for v in names:
        group = structure.leaf_observables[structure.leaf_of[v]]
        zetas = [tree.root if u == v else observables[u].zeta(evidence, tree.root) for u in group]
        result[v] = own_estimate(tables[structure.leaf_of[v]], group.index(v), zetas)
    return result
