"""Exact message passing on a clique tree with known potentials: sum-product [MP 3-5].

Evidence is a batch of rows. Messages are divided by their largest entry per row, and the logarithms are summed, so that long
trees neither underflow nor overflow.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchpbp.errors import StructureError
from torchpbp.exact.contraction import contract, rescaled
from torchpbp.graph.clique_tree import CliqueTree
from torchpbp.graph.cost import table_cost
from torchpbp.graph.domains import Scope
from torchpbp.grouping import holders

ROW = object()
"""Mode label of the batch dimension."""

Part = tuple[Tensor, tuple[Hashable, ...]]
"""A tensor with its modes."""


@dataclass(frozen=True)
class PotentialTree:
    """A clique tree with a table on each clique.

    Args:
        tree: the clique tree.
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
        """The clique nearest to the root for each variable, where evidence on the variable enters by default."""
        result: dict[str, int] = {}
        for node, scope in enumerate(self.scopes):
            for v in scope:
                result.setdefault(v, node)
        return result


def potential_tree(
    tree: CliqueTree,
    states: Mapping[str, int],
    factors: Sequence[tuple[Scope, Tensor]],
    budget: float | None = None,
) -> PotentialTree:
    """Multiply each factor into the smallest clique that contains its scope.

    Args:
        tree: the cliques.
        states: number of states of each variable.
        factors: (scope, table) pairs.
        budget: limit of the tables' bytes; None: no limit.

    Raises:
        BudgetError: cliques with too many joint states for tables.
    """
    scopes = tuple(tuple(sorted(c)) for c in tree.cliques)
    table_cost(scopes, states).require(
        budget,
        "Exact inference on this graph",
        "Remove edges, give these variables fewer states, or set network.budget = <bytes> (None: no limit).",
    )
    like = factors[0][1]
    nodes = holders(scopes)
    assigned: list[list[tuple[Scope, Tensor]]] = [[] for _ in scopes]
    for scope, table in factors:
        fitting = [n for n in (nodes.get(scope[0], []) if scope else [0]) if set(scope) <= tree.cliques[n]]
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
        parts: tensors of each clique, with their modes, whose product is its belief.
        upward: (batch, *separator) message from each node to its parent; empty if the scheme does not store messages.
        downward: (batch, *separator) message from each node's parent; empty if the scheme does not store messages.
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
        hosts: clique at which each variable's evidence enters; the one nearest to the root by default.
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
        message = _product(local[parent] + siblings + above, model.separators[node], rows)
        message, _ = rescaled(message, range(1, message.ndim))
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


def _upward(
    model: PotentialTree, weights: Mapping[str, Tensor], batch: int, hosts: Mapping[str, int] | None
) -> tuple[list[list[Part]], list[Part], Tensor]:
    """Potential and evidence of each clique, the message from each node to its parent, and the sum of log scales."""
    local: list[list[Part]] = [[(p, s)] for p, s in zip(model.potentials, model.scopes, strict=True)]
    for name, w in weights.items():
        local[(hosts or model.top)[name]].append((w, (ROW, name)))
    rows = model.potentials[0].detach().new_ones(batch)
    local[0].append((rows, (ROW,)))
    up: list[Part] = [(rows, (ROW,))] * len(model.tree)
    log_total = torch.zeros_like(rows)
    for node in range(len(model.tree) - 1, 0, -1):
        parts = local[node] + [up[child] for child in model.tree.children[node]]
        message = _product(parts, model.separators[node], rows)
        message, scale = rescaled(message, range(1, message.ndim))
        up[node] = (message, (ROW, *model.separators[node]))
        log_total = log_total + scale.flatten().log()
    return local, up, log_total


def _product(parts: Sequence[tuple[Tensor, tuple[Hashable, ...]]], output: Scope, rows: Tensor) -> Tensor:
    if not any(ROW in modes for _, modes in parts):
        parts = [*parts, (rows, (ROW,))]
    return contract([t for t, _ in parts], [m for _, m in parts], (ROW, *output))
