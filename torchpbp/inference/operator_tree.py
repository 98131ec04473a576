"""OperatorTree: operators on a junction tree, and message passing along it.

Upward messages are functionals: P(evidence inside | Ω) = up · E[θ | Ω]. Downward messages are predictions,
E[θ 1(evidence outside)] [PBP eq. 2-5]. Each message is divided by its largest entry per row, and the factors are stored, so
trees of any size stay within floating-point range; messages of observed states, which are entries of an operator, are not
rescaled. Rows, and nodes of equal shape at equal depth, are handled together: (nodes, …, rank, batch).
Everything is differentiable in operators and evidence.

Operators may have a leading dimension, of the classes of an observed variable or of bootstrap replicates, which share the
evidence; messages then have it too. Classes are mixed: P(evidence) = Σ_c P(c) w_c P(evidence on the others | c), with w the
evidence on the class. Each class has its log scales, which are brought to a common scale before classes are summed: no
class is divided by its noisy mass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchpbp.exact.contraction import rescaled
from torchpbp.inference.contractions import (
    downward_message,
    gather_messages,
    leaf_messages,
    leaf_table,
    messages_by_node,
    root_message,
    upward_message,
)
from torchpbp.inference.observable import Observable
from torchpbp.inference.schedule import Place, Route, Schedule, build_schedule
from torchpbp.inputs.evidence import Evidence
from torchpbp.planning.plan import Plan

UNUSED = torch.empty(0)
"""Placeholder of messages that were not computed."""


class UpwardMessages(NamedTuple):
    """Result of the upward pass.

    Args:
        parts: messages that are used together, (nodes, …, rank, batch).
        places: node -> place of its message among the parts.
        weights: per step, leaves first, the stacked operators.
        scales: per step the (nodes, …, 1, batch) factors divided out; None for steps without rescaling.
        batch: number of rows.
    """

    parts: list[Tensor]
    places: Mapping[int, Place]
    weights: list[Tensor]
    scales: list[Tensor | None]
    batch: int

    @property
    def messages(self) -> list[Tensor | None]:
        """Per node a (…, batch, rank) message with a largest entry of 1 (None for the root)."""
        return messages_by_node(self.parts, self.places, 1 + len(self.places))

    def message(self, node: int) -> Tensor:
        """(…, rank, batch)."""
        part, i = self.places[node]
        return self.parts[part].select(0, i)


class DownwardMessages(NamedTuple):
    """Result of the downward pass.

    Args:
        parts: messages that are computed together, (nodes, …, rank, batch).
        scales: per descent of the route the (nodes, …, 1, batch) factors divided out of its nodes' messages; None for
            descents from the root, without rescaling.
        route: route of the pass.
    """

    parts: list[Tensor]
    scales: list[Tensor | None]
    route: Route


class Mass(NamedTuple):
    """Estimates of P(evidence), up to a separate factor.

    Args:
        value: (batch,) the estimates, which may be negative.
        size: (batch,) sums of the absolute terms of each estimate.
        log_scale: (batch,) log of the factor.
    """

    value: Tensor
    size: Tensor
    log_scale: Tensor

    def log(self, floor: float | Tensor) -> Tensor:
        """(batch,) log P(evidence), with estimates clamped to at least ``floor`` times the sum of their absolute terms.

        It is -inf where every term is 0, or where the estimate is not positive and ``floor`` is 0.
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
        plan: tree and message sizes, without the class variable.
        operators: per node (index 0 unused) a tensor with modes (message, children's messages…) or, at a leaf, (message,
            features of the leaf's observables…); with classes or replicates, these have a leading dimension.
        root: tensor with one mode per child of the root.
        condition: the variable over whose classes the trees are mixed; None for no mixture.
        prior: (classes,) probabilities of the classes.
        schedule: order of message passing; computed from the operators' shapes by default.
    """

    def __init__(
        self,
        plan: Plan,
        operators: Sequence[Tensor],
        root: Tensor,
        condition: str | None = None,
        prior: Tensor | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.plan, self.operators, self.root = plan, operators, root
        self.condition, self.prior = condition, prior
        self._schedule = schedule

    @property
    def schedule(self) -> Schedule:
        """Order of message passing."""
        if self._schedule is None:  # not a cached_property: torch.compile does not support its lock
            self._schedule = build_schedule(self.plan.tree, [tuple(w.shape) for w in self.operators])
        return self._schedule

    def upward(self, evidence: Evidence, leaves: Sequence[int] | None = None) -> UpwardMessages:
        """Messages from the leaves to the root [PBP eq. 2-3].

        Args:
            evidence: evidence of a batch of rows.
            leaves: targets of the following downward pass; upward messages that it does not use may be omitted.
        """
        schedule = self.schedule
        unused = schedule.route(leaves).unused if leaves is not None else ()
        parts: list[Tensor] = []
        weights: list[Tensor] = []
        scales: list[Tensor | None] = []
        for number, step in enumerate(schedule.steps):
            weight = self._stack(step.nodes)
            weights.append(weight)
            if number in unused:
                scales.append(None)
                parts += [UNUSED] * len(step.sizes)
                continue
            if number < len(schedule.leaves):
                message, scale = leaf_messages(weight, step.groups, evidence)
            else:
                message, scale = rescaled(upward_message(weight, [gather_messages(parts, r) for r in step.inputs]))
            scales.append(scale)
            parts += (message,) if len(step.sizes) == 1 else torch.split_with_sizes(message, step.sizes)
        return UpwardMessages(parts, schedule.places, weights, scales, evidence.batch)

    def downward(self, upward: UpwardMessages, leaves: Sequence[int] | None = None) -> list[Tensor | None]:
        """Messages from the root to the leaves [PBP eq. 4-5].

        Args:
            upward: result of :meth:`upward`.
            leaves: target leaves; all by default.

        Returns:
            Per node on the route a (batch, rank) message, scaled to a largest entry of 1; None for other nodes.
        """
        down = self._downward(upward, leaves)
        return messages_by_node(down.parts, down.route.places, len(self.operators))

    def _downward(self, upward: UpwardMessages, leaves: Sequence[int] | None) -> DownwardMessages:
        """Messages from the root to some leaves, or to all."""
        route = self.schedule.route(leaves)
        below_root = [
            None if route.start == (k,) else upward.message(c) for k, c in enumerate(self.schedule.root_children)
        ]
        parts = [root_message(self.root, below_root, k, upward.batch).unsqueeze(0) for k in route.start]
        scales: list[Tensor | None] = []
        for step, _, chosen, above, inputs, targets in route.descents:
            weight = upward.weights[step] if chosen is None else upward.weights[step][chosen]
            message, scale = gather_messages(parts, above), None
            if above[0].part >= len(route.start):  # messages of the root are products of rescaled messages
                message, scale = rescaled(message)
            below = [gather_messages(upward.parts, runs) if runs else None for runs in inputs]
            parts += [downward_message(weight, message, below, k) for k in targets]
            scales.append(scale)
        return DownwardMessages(parts, scales, route)

    # -- estimates -----------------------------------------------------------------------------------------------

    def observable_estimates(
        self, observables: Mapping[str, Observable], evidence: Evidence, names: Sequence[str], every_leaf: bool = False
    ) -> dict[str, Tensor]:
        """Estimates of observables that exclude evidence on them, up to a positive factor per row.

        Args:
            observables: observables of the tree.
            evidence: prepared evidence.
            names: names of the queried observables, the class variable possibly among them.
            every_leaf: send messages to all leaves, which is faster if most of them are queried.

        Returns:
            name -> (batch, features).
        """
        structure = self.plan.tree
        inside = [v for v in names if v != self.condition]
        tables: dict[int, Tensor] = {}
        if inside:
            all_leaves = every_leaf or len(inside) == len(structure.leaf_of)
            tables = self.estimates(evidence, None if all_leaves else sorted({structure.leaf_of[v] for v in inside}))
        result = {}
        for v in names:
            if v == self.condition:
                result[v] = self.class_estimates(evidence)
                continue
            table = tables[structure.leaf_of[v]]
            group = structure.leaf_observables[structure.leaf_of[v]]
            if len(group) > 1:
                zetas = [self.root if u == v else observables[u].zeta(evidence, self.root) for u in group]
                table = variable_estimate(table, group.index(v), zetas)
            result[v] = table
        return result

    def estimates(self, evidence: Evidence, leaves: Sequence[int] | None = None) -> dict[int, Tensor]:
        """Joint estimates E[φ(δ(C)) 1(evidence elsewhere)] at leaves, each up to a positive factor per row [PBP Step 4].

        Args:
            evidence: evidence of a batch of rows.
            leaves: leaves to estimate; all by default.

        Returns:
            leaf -> (batch, features of its observables…), excluding evidence on these observables; classes are averaged.
        """
        if self.condition is None:
            upward = self.upward(evidence, leaves)
            return self._leaf_tables(upward, self._downward(upward, leaves))
        weights, result = self._usable_weights(evidence), {}
        for leaf, (table, log_scale) in self.scaled_estimates(evidence, leaves).items():
            factors, _ = _common_scale(weights, log_scale.mT)
            result[leaf] = torch.einsum("nc,cn...->n...", factors, table)
        return result

    def scaled_estimates(
        self, evidence: Evidence, leaves: Sequence[int] | None = None
    ) -> dict[int, tuple[Tensor, Tensor]]:
        """Estimates of each class or replicate, with their scales.

        Returns:
            leaf -> ((…, batch, features of its observables…) estimate, (…, batch) log of the factor divided out of it).
        """
        upward = self.upward(evidence, leaves)
        downward = self._downward(upward, leaves)
        tables, total = self._leaf_tables(upward, downward), self._log_scale(upward)
        up: dict[int, Tensor] = {}
        for step, scale in zip(self.schedule.steps, upward.scales, strict=True):
            if scale is not None:
                up.update({n: scale[i] for i, n in enumerate(step.nodes)})
        down: dict[int, Tensor] = {}
        for descent, scale in zip(downward.route.descents, downward.scales, strict=True):
            if scale is not None:
                down.update({n: scale[i] for i, n in enumerate(descent.nodes)})
        return {leaf: (t, total + self._outside_scale(leaf, up, down)) for leaf, t in tables.items()}

    def _leaf_tables(self, upward: UpwardMessages, downward: DownwardMessages) -> dict[int, Tensor]:
        """leaf -> (…, batch, features of its observables…)."""
        result: dict[int, Tensor] = {}
        batch = self.root.ndim - len(self.schedule.root_children)  # dimension of the batch
        for step, nodes, chosen, above in downward.route.arrivals:
            weight = upward.weights[step] if chosen is None else upward.weights[step][chosen]
            tables = leaf_table(weight, gather_messages(downward.parts, above))
            rows_first = tables.mT if tables.ndim == 3 + batch else tables.movedim(-1, 1 + batch)
            result.update(zip(nodes, rows_first.unbind(), strict=True))
        return result

    def _log_scale(self, upward: UpwardMessages) -> Tensor:
        """(…, batch) log of the product of all upward scales."""
        leading = self.root.shape[: self.root.ndim - len(self.schedule.root_children)]
        total = self.root.new_zeros(*leading, upward.batch)
        for scale in upward.scales:
            if scale is not None:
                total = total + scale.log().sum(dim=0).squeeze(-2)
        return total

    def _outside_scale(self, node: int, up: Mapping[int, Tensor], down: Mapping[int, Tensor]) -> Tensor | float:
        """(batch,) log scale of the downward messages, excluding the upward scales they replace.

        Args:
            node: node that receives the message.
            up, down: node -> (…, 1, batch) factor divided out of its message in each direction.
        """
        total: Tensor | float = 0.0
        while node > 0:
            if node in up:
                total = total - up[node].squeeze(-2).log()
            if node in down:
                total = total + down[node].squeeze(-2).log()
            node = self.plan.tree.parent[node]
        return total

    # -- probabilities of evidence -------------------------------------------------------------------------------

    def mass(self, evidence: Evidence) -> Mass:
        """Estimate of P(evidence), T ×_all up: possibly negative, with the factor divided out."""
        if self.condition is None:
            return self._mass(evidence)
        value, size, log_scale = self.class_masses(evidence)
        factors, shift = _common_scale(self.class_weights(evidence), log_scale)
        return Mass((factors * value).sum(dim=-1), (factors.detach().abs() * size).sum(dim=-1), shift)

    def _mass(self, evidence: Evidence) -> Mass:
        """(…, batch) estimates of each class or replicate."""
        upward = self.upward(evidence)
        below = [upward.message(c) for c in self.schedule.root_children]
        terms = root_message(self.root, below, len(below) - 1, evidence.batch) * below[-1]
        return Mass(terms.sum(dim=-2), terms.detach().abs().sum(dim=-2), self._log_scale(upward))

    def log_mass(self, evidence: Evidence, floor: float | Tensor = 0.0) -> Tensor:
        """(batch,) log P(evidence), see :meth:`Mass.log`."""
        return self.mass(evidence).log(floor)

    # -- classes -------------------------------------------------------------------------------------------------

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.root.shape[0]

    def of_class(self, label: int) -> OperatorTree:
        """The operators of one class."""
        operators = [w[label] if n else self.root[label] for n, w in enumerate(self.operators)]
        return OperatorTree(self.plan, operators, self.root[label], schedule=self.schedule)

    def class_masses(self, evidence: Evidence) -> Mass:
        """Estimates of P(evidence on the others | class), (batch, classes), with one log scale per entry."""
        return Mass(*(part.mT for part in self._mass(evidence)))

    def class_estimates(self, evidence: Evidence) -> Tensor:
        """(batch, classes) estimates of P(class, evidence on the others), up to a positive factor per row."""
        assert self.prior is not None
        value, _, log_scale = self.class_masses(evidence)
        factors, _ = _common_scale(self.prior.to(value).expand_as(value), log_scale)
        return factors * value

    def class_weights(self, evidence: Evidence) -> Tensor:
        """(batch, classes) P(class) · weight of the class in the evidence."""
        assert self.prior is not None
        prior = self.prior.to(self.root).expand(evidence.batch, -1)
        weights = self._class_evidence(evidence)
        return prior if weights is None else prior * weights

    def _class_evidence(self, evidence: Evidence) -> Tensor | None:
        """(batch, classes) weights of the classes in the evidence; None without evidence on the class."""
        assert self.condition is not None
        return evidence.weights(self.condition, self.classes, self.root.dtype, self.root.device)

    def _usable_weights(self, evidence: Evidence) -> Tensor:
        """:meth:`class_weights`, without P(class) in rows whose evidence allows only classes of probability 0."""
        weights, in_evidence = self.class_weights(evidence), self._class_evidence(evidence)
        if in_evidence is None:
            return weights
        return torch.where((weights == 0).all(dim=-1, keepdim=True), in_evidence, weights)

    # -- samples -------------------------------------------------------------------------------------------------

    def sample(
        self,
        evidence: Evidence,
        observables: Mapping[str, Observable],
        floor: float | Tensor,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """Draw all observables given the evidence, one draw per row of evidence; the class variable first.

        Leaves are visited from left to right. At each leaf the downward message is conditioned on all evidence and on the
        values drawn so far; the draw then replaces the leaf's upward message. Each operator is used a fixed number of
        times, so a sample costs little more than a posterior.

        Args:
            evidence: prepared evidence.
            observables: observables of the tree, with their feature maps, and the class variable.
            floor: least probability of a state, as a share of the mass.
            generator: random generator of the draws.

        Returns:
            name -> (batch,) states or values.
        """
        if self.condition is not None:
            labels = observables[self.condition].draw(self.class_estimates(evidence), evidence, floor, generator)
            values: dict[str, Tensor] = {self.condition: labels}
            for label in sorted(set(labels.tolist())):
                rows = (labels == label).nonzero().squeeze(1)
                drawn = self.of_class(label).sample(evidence.rows(rows), observables, floor, generator)
                for v, x in drawn.items():
                    if v not in values:
                        values[v] = x.new_empty(len(labels))
                    values[v][rows] = x
            return values
        upward = self.upward(evidence)
        up = {n: upward.message(n).unsqueeze(0) for n in upward.places}  # (1, rank, batch)
        children_of = self.plan.tree.children
        values = {}
        # Stack of tasks: (node, k, message) sends a message down to child k, (node, None, None) recomputes the node's upward message.
        stack: list[tuple[int, int | None, Tensor | None]] = [
            (0, k, None) for k in reversed(range(len(children_of[0])))
        ]
        while stack:
            node, k, above = stack.pop()
            children = children_of[node]
            below = [up[c] for c in children]
            weight = self.operators[node].unsqueeze(0)
            if k is None:
                up[node] = rescaled(upward_message(weight, below))[0]
                continue
            child = children[k]
            if above is None:
                message = root_message(self.root, [b[0] for b in below], k, evidence.batch).unsqueeze(0)
                message = rescaled(message)[0]
            else:
                message = rescaled(downward_message(weight, above, below, k))[0]
            leaf = [observables[v] for v in self.plan.tree.leaf_observables[child]]
            if leaf:
                drawn, up[child] = _draw(self.operators[child].unsqueeze(0), message, leaf, evidence, floor, generator)
                values.update(drawn)
            else:
                stack.append((child, None, None))
                stack.extend((child, j, message) for j in reversed(range(len(children_of[child]))))
        return values

    def _stack(self, nodes: Sequence[int]) -> Tensor:
        if len(nodes) == 1:
            return self.operators[nodes[0]].unsqueeze(0)
        return torch.stack([self.operators[n] for n in nodes])


def variable_estimate(table: Tensor, position: int, zetas: Sequence[Tensor]) -> Tensor:
    """Estimate of one of a leaf's observables, the others summed out with their evidence.

    Args:
        table: (batch, features…), a joint estimate at a leaf.
        position: index of the observable.
        zetas: evidence vector of each observable, (batch, features) or (features,); the entry at ``position`` is ignored.

    Returns:
        (batch, features of the observable).
    """
    for k in reversed(range(len(zetas))):
        if k != position:
            zeta = zetas[k] if zetas[k].ndim == 2 else zetas[k].unsqueeze(0)
            moved = table.movedim(1 + k, -1)
            table = (moved * zeta.reshape(zeta.shape[0], *[1] * (moved.ndim - 2), zeta.shape[-1])).sum(dim=-1)
    return table


def _draw(
    weight: Tensor,
    message: Tensor,
    leaf: Sequence[Observable],
    evidence: Evidence,
    floor: float | Tensor,
    generator: torch.Generator,
) -> tuple[dict[str, Tensor], Tensor]:
    """Draw a leaf's observables one after the other: name -> value, and the leaf's new upward message, (1, rank, batch).

    Args:
        weight: (1, rank, features…).
        message: (1, rank, batch) downward message.
        leaf: observables of the leaf.
        evidence: prepared evidence.
        floor: least probability of a state, as a share of the mass.
        generator: random generator of the draws.
    """
    table = leaf_table(weight, message)[0].movedim(-1, 0)  # (batch, features…)
    zetas = [observable.zeta(evidence, table) for observable in leaf]
    values = {}
    for k, observable in enumerate(leaf):
        drawn = observable.draw(variable_estimate(table, k, zetas), evidence, floor, generator)
        values[observable.name] = drawn
        zetas[k] = observable.drawn_zeta(drawn, table)
    upward = weight.unsqueeze(-1)
    for zeta in reversed(zetas):
        upward = (upward * zeta.mT).sum(dim=-2)
    return values, rescaled(upward)[0]


def _common_scale(weights: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of classes, multiplied so that their values share one scale per row.

    Args:
        weights: (batch, classes).
        log_scale: (batch, classes) log of the factor divided out of each class.

    Returns:
        (batch, classes) weights · exp(log_scale − shift), and (batch,) shift, the largest log scale among weighted classes.
    """
    shift = torch.where(weights == 0, -torch.inf, log_scale).amax(dim=-1)
    shift = torch.where(shift.isinf(), torch.zeros_like(shift), shift)
    return weights * (log_scale - shift.unsqueeze(-1)).clamp(max=0).exp(), shift
