"""Exact message passing on a clique tree with known potentials: sum-product [MP 3-5] and belief update [MP 8-12].

Both run on a batch of rows, each with its own evidence. Messages are rescaled per row by their largest entry and the
logarithms added up, so that long trees neither underflow nor overflow.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchpbp.contraction import contract
from torchpbp.errors import StructureError
from torchpbp.graph.clique_tree import CliqueTree

ROW = object()
"""Mode label of the batch dimension."""

Scope = tuple[str, ...]
Part = tuple[Tensor, tuple[Hashable, ...]]
"""A tensor with its modes."""


@dataclass(frozen=True)
class PotentialTree:
    """A clique tree with a table on each clique.

    Args:
        tree: the cliques and how they hang together.
        scopes: variables of each clique, in the order of its table's dimensions.
        potentials: one table per clique.
    """

    tree: CliqueTree
    scopes: tuple[Scope, ...]
    potentials: tuple[Tensor, ...]

    @cached_property
    def separators(self) -> tuple[Scope, ...]:
        return tuple(tuple(sorted(s)) for s in self.tree.separators)

    @cached_property
    def top(self) -> dict[str, int]:
        """The clique nearest the root that holds each variable; evidence on the variable enters there by default."""
        result: dict[str, int] = {}
        for node, scope in enumerate(self.scopes):
            for v in scope:
                result.setdefault(v, node)
        return result


def potential_tree(
    tree: CliqueTree, states: Mapping[str, int], factors: Sequence[tuple[Scope, Tensor]]
) -> PotentialTree:
    """Multiply each factor into the smallest clique that contains its scope."""
    scopes = tuple(tuple(sorted(c)) for c in tree.cliques)
    like = factors[0][1]
    holders: dict[str, list[int]] = {}
    for node, scope in enumerate(scopes):
        for v in scope:
            holders.setdefault(v, []).append(node)
    assigned: list[list[tuple[Scope, Tensor]]] = [[] for _ in scopes]
    for scope, table in factors:
        fitting = [n for n in (holders.get(scope[0], []) if scope else [0]) if set(scope) <= tree.cliques[n]]
        if not fitting:
            raise StructureError(f"Family preservation fails: no clique holds the factor over {scope}.")
        assigned[min(fitting, key=lambda n: len(scopes[n]))].append((scope, table))
    potentials = []
    for scope, group in zip(scopes, assigned, strict=True):
        ones: list[tuple[Scope, Tensor]] = [((v,), like.new_ones(states[v])) for v in scope] or [
            ((), like.new_ones(()))
        ]
        parts = [*group, *ones]
        potentials.append(contract([t for _, t in parts], [s for s, _ in parts], scope))
    return PotentialTree(tree, scopes, tuple(potentials))


@dataclass(frozen=True)
class Calibration:
    """Result of message passing: marginals on demand.

    Args:
        log_evidence: (batch,) log of the evidence's probability (for undirected models: times the partition function).
        parts: for each clique the tensors whose product is its belief, with their modes.
        upward: (batch, *separator) message from each node to its parent; empty where the scheme keeps none.
        downward: (batch, *separator) message from each node's parent; empty likewise.
    """

    log_evidence: Tensor
    parts: tuple[tuple[tuple[Tensor, tuple[Hashable, ...]], ...], ...]
    upward: tuple[Tensor, ...] = ()
    downward: tuple[Tensor, ...] = ()

    def marginal(self, node: int, variables: Sequence[str]) -> Tensor:
        """(batch, *variables) normalised marginal of variables of one clique; NaN for impossible evidence."""
        parts = self.parts[node]
        table = contract([t for t, _ in parts], [s for _, s in parts], (ROW, *variables))
        total = table.sum(dim=tuple(range(1, table.ndim)), keepdim=True)
        return table / total


def shafer_shenoy(
    model: PotentialTree, weights: Mapping[str, Tensor], batch: int, hosts: Mapping[str, int] | None = None
) -> Calibration:
    """Sum-product message passing: one upward and one downward pass [MP 3-5].

    Args:
        model: tree and potentials.
        weights: name -> (batch, states) evidence weights.
        batch: number of rows.
        hosts: clique at which each variable's evidence enters, where it matters for the messages.
    """
    tree = model.tree
    local, up, log_total = _upward(model, weights, batch, hosts)
    count = len(tree)
    rows = torch.ones_like(log_total)
    down: list[Part] = [(rows, (ROW,))] * count
    for node in range(1, count):
        parent = tree.parent[node]
        siblings = [up[s] for s in tree.children[parent] if s != node]
        above = [down[parent]] if parent > 0 else []
        message, _ = _rescaled(_product(local[parent] + siblings + above, model.separators[node], rows))
        down[node] = (message, (ROW, *model.separators[node]))
    beliefs = tuple(
        tuple(local[n] + [up[c] for c in tree.children[n]] + ([down[n]] if n else [])) for n in range(count)
    )
    return Calibration(
        log_total + _product(list(beliefs[0]), (), rows).log(),
        beliefs,
        tuple(t for t, _ in up),
        tuple(t for t, _ in down),
    )


def log_evidence(model: PotentialTree, weights: Mapping[str, Tensor], batch: int) -> Tensor:
    """(batch,) log of the evidence's probability from the upward pass alone; differentiable in the potentials."""
    local, up, log_total = _upward(model, weights, batch, None)
    parts = local[0] + [up[c] for c in model.tree.children[0]]
    return log_total + _product(parts, (), torch.ones_like(log_total)).log()


def _upward(
    model: PotentialTree, weights: Mapping[str, Tensor], batch: int, hosts: Mapping[str, int] | None
) -> tuple[list[list[Part]], list[Part], Tensor]:
    """What enters at each clique, the message from each node to its parent, and the logarithms of their scales."""
    local: list[list[Part]] = [[(p, s)] for p, s in zip(model.potentials, model.scopes, strict=True)]
    for name, w in weights.items():
        local[(hosts or model.top)[name]].append((w, (ROW, name)))
    rows = model.potentials[0].detach().new_ones(batch)
    local[0].append((rows, (ROW,)))
    up: list[Part] = [(rows, (ROW,))] * len(model.tree)
    log_total = torch.zeros_like(rows)
    for node in range(len(model.tree) - 1, 0, -1):
        parts = local[node] + [up[child] for child in model.tree.children[node]]
        message, log_scale = _rescaled(_product(parts, model.separators[node], rows))
        up[node] = (message, (ROW, *model.separators[node]))
        log_total = log_total + log_scale
    return local, up, log_total


def hugin(model: PotentialTree, weights: Mapping[str, Tensor], batch: int) -> Calibration:
    """Belief update: cliques and separators keep full beliefs; messages divide out what was sent before [MP 8-12]."""
    tree = model.tree
    beliefs = []
    for node, scope in enumerate(model.scopes):
        table = model.potentials[node].unsqueeze(0)
        for v in scope:
            if model.top[v] == node and v in weights:
                table = table * _broadcast(weights[v], (v,), scope)
        beliefs.append(table.expand(batch, *table.shape[1:]))
    separators = [model.potentials[0].new_ones(batch)] * len(tree)
    log_total = torch.zeros_like(separators[0])

    def send(source: int, target: int, edge: int) -> Tensor:
        scope = model.separators[edge]
        summed = tuple(i + 1 for i, v in enumerate(model.scopes[source]) if v not in scope)
        message, log_scale = _rescaled(beliefs[source].sum(dim=summed) if summed else beliefs[source])
        old = separators[edge].reshape(batch, *[1] * len(scope)) if separators[edge].ndim == 1 else separators[edge]
        ratio = torch.where(
            old != 0, message / torch.where(old != 0, old, torch.ones_like(old)), torch.zeros_like(message)
        )
        beliefs[target] = beliefs[target] * _broadcast(ratio, scope, model.scopes[target])
        separators[edge] = message
        return log_scale

    for node in range(len(tree) - 1, 0, -1):
        log_total = log_total + send(node, tree.parent[node], node)
    log_total = log_total + beliefs[0].unsqueeze(1).flatten(1).sum(dim=1).log()
    for node in range(1, len(tree)):
        send(tree.parent[node], node, node)
    parts = tuple(((b, (ROW, *scope)),) for b, scope in zip(beliefs, model.scopes, strict=True))
    return Calibration(log_total, parts)


def _product(parts: Sequence[tuple[Tensor, tuple[Hashable, ...]]], output: Scope, rows: Tensor) -> Tensor:
    if not any(ROW in modes for _, modes in parts):
        parts = [*parts, (rows, (ROW,))]
    return contract([t for t, _ in parts], [m for _, m in parts], (ROW, *output))


def _rescaled(message: Tensor) -> tuple[Tensor, Tensor]:
    """Divide each row by its largest absolute entry; also return that entry's log (0 for a row of zeros)."""
    scale = message.detach().abs().unsqueeze(1).flatten(1).amax(dim=1)  # a batch may have no rows
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return message / safe.reshape(-1, *[1] * (message.ndim - 1)), safe.log()


def _broadcast(table: Tensor, scope: Scope, target: Scope) -> Tensor:
    """View (batch, *scope) so that it multiplies a (batch, *target) table; both scopes are sorted alike."""
    shape = [table.shape[0]] + [table.shape[1 + scope.index(v)] if v in scope else 1 for v in target]
    return table.reshape(shape)
