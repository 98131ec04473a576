"""Two-stage regression on one-hot features, written out: what the Gram form must equal where kernels are delta kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from torchpbp import KernelPBP


class PrimalModel:
    """Messages as weights on the joint states of core groups, by two ridge regressions per separator.

    Args:
        model: whose tree, plan and penalties are used.
        data: (rows,) states of each observable.
    """

    def __init__(self, model: KernelPBP, data: dict[str, Tensor]) -> None:
        self.tree, self.states, self.data = model.tree, {v: model.graph.num_states(v) for v in data}, data
        stage1, stage2 = model.settings.ridge
        self.regressions: dict[int, tuple[Tensor, Tensor]] = {}
        for separator in model.plan.separators:
            core = self.one_hot(separator.core)
            instrument = torch.cat([self.one_hot(g) for g in separator.instrument], dim=1)
            predict = instrument @ solve(instrument, stage1)  # (rows, rows): stage 1 of anything
            self.regressions[separator.node] = core, solve(predict @ core, stage2) @ predict

    def one_hot(self, group: tuple[str, ...]) -> Tensor:
        """(rows, joint states) features of a group."""
        code, size = torch.zeros_like(next(iter(self.data.values()))), 1
        for v in group:
            code, size = code * self.states[v] + self.data[v], size * self.states[v]
        return torch.nn.functional.one_hot(code, size).double()

    def mass(self, evidence: dict[str, Tensor]) -> Tensor:
        """(batch,) estimates of P(evidence), from (batch, states) weights."""
        batch = next((len(w) for w in evidence.values()), 1)
        values: dict[int, Tensor] = {}
        for node in reversed(range(len(self.tree))):
            below = torch.ones(batch, len(next(iter(self.data.values()))), dtype=torch.float64)
            for v in self.tree.leaf_observables[node]:
                below = below * (evidence[v][:, self.data[v]] if v in evidence else 1)
            for child in self.tree.children[node]:
                below = below * values[child]
            if node and not self.tree.leaf_observables[node]:
                core, regression = self.regressions[node]
                below = below @ regression.T @ core.T
            values[node] = below
        return values[0].mean(dim=1)

    def posterior(self, name: str, evidence: dict[str, Tensor]) -> Tensor:
        """(batch, states) estimates that sum to 1, possibly with negative entries; no evidence on the query itself."""
        batch = next((len(w) for w in evidence.values()), 1)
        each = torch.eye(self.states[name], dtype=torch.float64)
        table = torch.stack([self.mass({**evidence, name: state.expand(batch, -1)}) for state in each], dim=1)
        return table / table.sum(dim=1, keepdim=True)


def solve(features: Tensor, penalty: float) -> Tensor:
    """(features, rows): ridge regression on (rows, features)."""
    eye = torch.eye(features.shape[1], dtype=torch.float64)
    return torch.linalg.solve(features.T @ features + penalty * eye, features.T)


def weights(evidence: dict[str, Tensor], states: dict[str, int]) -> dict[str, Tensor]:
    """(batch, states) weights of (batch,) states, ones where one is -1."""
    result = {}
    for v, x in evidence.items():
        table = torch.cat([torch.eye(states[v]), torch.ones(1, states[v])]).double()
        result[v] = table[x] if x.ndim == 1 else x.double()
    return result
