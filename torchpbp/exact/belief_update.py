"""Belief update on a clique tree [MP 8-12], laid out for speed: all rows of a batch lie side by side in the last dimension.

Each clique's table has its separator's variables first, in the order in which its parent has them. A message is then a
sum over trailing dimensions, and enters the parent's table by broadcasting: no index is looked up, nothing is transposed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchpbp.exact.calibration import PotentialTree, Scope

TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Beliefs:
    """Calibrated cliques.

    Args:
        log_evidence: (batch,) log of the evidence's probability (for undirected models: times the partition function).
        scopes: variables of each clique, in the order of its table's dimensions.
        tables: P(clique | evidence), (*states, batch) each, or (*states, 1) where all rows have the same; meaningless in
            rows whose evidence is impossible.
    """

    log_evidence: Tensor
    scopes: tuple[Scope, ...]
    tables: tuple[Tensor, ...]

    def marginal(self, node: int, variables: Sequence[str]) -> Tensor:
        """(batch, *variables) marginal of variables of one clique."""
        scope = self.scopes[node]
        left = [v for v in scope if v in variables]
        small = _sum_over(self.tables[node], _runs(scope, variables))
        rows = small.permute(len(left), *(left.index(v) for v in variables))
        return rows.expand(len(self.log_evidence), *rows.shape[1:])


class _Plain(NamedTuple):
    """What every node holds and sends without evidence.

    Args:
        tables: potential times the messages from below.
        sent: message to the parent.
        messages: the same, scaled to a largest entry of 1.
        logs: log of all that was divided out in the subtree.
    """

    tables: list[Tensor]
    sent: list[Tensor]
    messages: list[Tensor]
    logs: list[Tensor]


class BeliefUpdate:
    """Message passing prepared for one tree.

    Args:
        model: tree and potentials.
    """

    def __init__(self, model: PotentialTree) -> None:
        self.model = model
        tree = model.tree
        scopes: list[Scope] = []
        for node, names in enumerate(model.scopes):
            above = scopes[tree.parent[node]] if node else ()
            shared = [v for v in above if v in tree.separators[node]]
            scopes.append((*shared, *(v for v in names if v not in shared)))
        self.scopes = tuple(scopes)
        self.potentials = tuple(
            table.permute([old.index(v) for v in new]).unsqueeze(-1)
            for table, old, new in zip(model.potentials, model.scopes, scopes, strict=True)
        )
        sizes = [dict(zip(s, p.shape, strict=False)) for s, p in zip(scopes, self.potentials, strict=True)]
        self._kept = [len(tree.separators[n]) for n in range(len(tree))]
        # Shapes in which a message or a variable's weights broadcast over a clique's table; the batch comes last.
        self._entry = [
            [sizes[tree.parent[n]][v] if v in tree.separators[n] else 1 for v in scopes[tree.parent[n]]] if n else []
            for n in range(len(tree))
        ]
        self._own = [
            [*(sizes[n][v] for v in scopes[n][: self._kept[n]]), *[1] * (len(scopes[n]) - self._kept[n])]
            for n in range(len(tree))
        ]
        self._outside = [_runs(scopes[tree.parent[n]], tree.separators[n]) if n else [] for n in range(len(tree))]
        self._weight = {v: [sizes[n][u] if u == v else 1 for u in scopes[n]] for v, n in model.top.items()}

    def _message(self, table: Tensor, node: int) -> Tensor:
        """(*separator, batch) sum over what the node does not share with its parent."""
        kept = self._kept[node]
        return table.flatten(kept, -2).sum(dim=kept) if table.ndim > kept + 1 else table

    def _with_evidence(self, weights: Mapping[str, Tensor]) -> set[int]:
        """Nodes that hold evidence in their subtrees; the root always, if there is any."""
        nodes: set[int] = set()
        for v in weights:
            node = self.model.top[v]
            while node >= 0 and node not in nodes:
                nodes.add(node)
                node = self.model.tree.parent[node]
        return nodes

    @cached_property
    def _plain(self) -> _Plain:
        """The upward pass without evidence."""
        tree = self.model.tree
        tables = list(self.potentials)
        sent, messages, logs = list(tables), list(tables), [tables[0].new_zeros(())] * len(tree)
        for node in range(len(tree) - 1, 0, -1):
            sent[node] = self._message(tables[node], node)
            messages[node], scale = _rescaled(sent[node])
            below = [logs[c] for c in tree.children[node]]
            logs[node] = torch.stack([scale.log().squeeze(-1), *below]).sum()
            parent = tree.parent[node]
            tables[parent] = tables[parent] * messages[node].reshape(*self._entry[node], 1)
        return _Plain(tables, sent, messages, logs)

    def _path(self, node: int) -> list[int]:
        """Nodes from below the root down to one of them."""
        path: list[int] = []
        while node > 0:
            path.append(node)
            node = self.model.tree.parent[node]
        return path[::-1]

    @cached_property
    def rows_at_once(self) -> int:
        """Rows for which the largest table stays in the processor's cache."""
        largest = max(p.numel() for p in self.potentials)
        return max(64, min(1 << 14, (1 << 17) // largest))

    def __call__(self, weights: Mapping[str, Tensor], batch: int, wanted: int | None = None) -> Beliefs:
        """Absorb evidence, and pass messages up and down.

        Args:
            weights: name -> (batch, states) evidence weights.
            batch: number of rows.
            wanted: a clique whose table is wanted; with 0, the root, nothing is passed down. By default all of them are.
                Other tables are then not calibrated.
        """
        tree = self.model.tree
        observed_nodes = self._with_evidence(weights)
        known = self._plain if observed_nodes else None  # subtrees without evidence send what they always send
        tables = [p if known is None or n in observed_nodes else known.tables[n] for n, p in enumerate(self.potentials)]
        for v, weight in weights.items():
            node = self.model.top[v]
            tables[node] = tables[node] * weight.mT.reshape(*self._weight[v], batch)
        if not weights:
            tables[0] = tables[0].expand(*tables[0].shape[:-1], batch)
        sent: list[Tensor] = [tables[0]] * len(tree)
        scales: list[Tensor] = []
        log_total = self.potentials[0].new_zeros(())
        for node in range(len(tree) - 1, 0, -1):
            parent = tree.parent[node]
            if known is not None and node not in observed_nodes:
                sent[node] = known.sent[node]
                if parent not in observed_nodes:
                    continue  # in the parent's own message
                message, log_scale = known.messages[node], known.logs[node]
                log_total = log_total + log_scale
            else:
                sent[node] = self._message(tables[node], node)
                message, scale = _rescaled(sent[node])
                scales.append(scale)
            tables[parent] = tables[parent] * message.reshape(*self._entry[node], message.shape[-1])
        root = tables[0].flatten(0, -2).sum(dim=0) if tables[0].ndim > 1 else tables[0]
        log_total = log_total + root.log()
        if scales:
            log_total = log_total + torch.stack([s.expand(batch) for s in scales]).log().sum(dim=0)
        log_total = log_total.expand(batch)
        tables[0] = tables[0] / root
        for node in range(1, len(tree)) if wanted is None else self._path(wanted):
            above = _sum_over(tables[tree.parent[node]], self._outside[node])
            ratio = torch.where(sent[node] != 0, above / sent[node], 0.0)  # 0 / 0: ruled out either way
            tables[node] = tables[node] * ratio.reshape(*self._own[node], ratio.shape[-1])
        return Beliefs(log_total, self.scopes, tuple(tables))


def _rescaled(message: Tensor) -> tuple[Tensor, Tensor]:
    """Each row divided by its largest entry, and (batch,) those entries, above 0 also for a row of zeros."""
    scale = message.detach().flatten(0, -2).amax(dim=0) if message.ndim > 1 else message.detach()
    scale = scale.clamp(min=TINY)
    return message / scale, scale


def _runs(scope: Sequence[str], kept: Collection[str]) -> list[tuple[int, int]]:
    """First and last dimension of each run of neighbours that are not kept, the last run first."""
    runs: list[tuple[int, int]] = []
    for i, v in enumerate(scope):
        if v in kept:
            continue
        if runs and runs[-1][1] == i - 1:
            runs[-1] = (runs[-1][0], i)
        else:
            runs.append((i, i))
    return runs[::-1]


def _sum_over(table: Tensor, runs: Sequence[tuple[int, int]]) -> Tensor:
    """Sums run by run: sums over dimensions that are not neighbours are many times slower in one go."""
    for first, last in runs:
        table = table.flatten(first, last).sum(dim=first)
    return table
