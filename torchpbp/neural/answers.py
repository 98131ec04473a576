"""The query half of a training step: posteriors of the query rows by the operators of the step, and their loss."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes, world_size
from torchpbp.features.encoded import EncodedMap
from torchpbp.features.maps import OneHot
from torchpbp.inference.leaf_features import LeafReader
from torchpbp.inference.observable import as_distribution, prepare
from torchpbp.inference.operator_tree import OperatorTree
from torchpbp.inference.readout import normalised, soft_positive
from torchpbp.inputs.evidence import Evidence
from torchpbp.models.pbp import PBP
from torchpbp.neural.support import Solved
from torchpbp.precision import full_precision

SOFTNESS = 0.05
"""ε of the link from estimates to probabilities of leaves, without a target."""
LEAST_TOTAL = 0.01
"""Smallest divisor of an encoded leaf's estimate, as a share of its norm; the divisor is its first entry, P(evidence)."""


class Answers:
    """Losses and scores of a model's answers.

    Args:
        model: the model, with its readout and kernel maps.
        target: the variable to predict; None: each leaf from the others.
    """

    def __init__(self, model: PBP, target: str | None) -> None:
        self.model, self.target = model, target

    @property
    def reader(self) -> LeafReader:
        """Reader of the model's leaves."""
        return self.model.operators.reader

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the nets."""
        return self.model.nets.dtype

    def loss(self, solved: Solved, table: Mapping[str, Tensor], shown: Tensor, shared: bool = False) -> Tensor:
        """Mean negative log-probability.

        Args:
            solved: operators and statistics.
            table: the query rows.
            shown: (rows, leaves) mask of the leaves used as evidence.
            shared: the rows are this process's share; the average of the losses over processes is the mean over all rows.
        """
        if self.target is not None and self.target in self.reader.names:
            shown = shown.clone()
            shown[:, self.reader.names.index(self.target)] = False
        evidence = self._evidence(solved, table, shown)
        with full_precision(shown.device):
            return self._loss(solved, table, shown, evidence, shared)

    def _loss(
        self, solved: Solved, table: Mapping[str, Tensor], shown: Tensor, evidence: Evidence, shared: bool
    ) -> Tensor:
        tree = self._tree(solved)
        if self.target is None:
            return self._leaf_losses(tree, table, shown, evidence, shared)
        labelled = table[self.target] >= 0
        log_probabilities = self._target_log_probabilities(tree, evidence, shown)
        chosen = log_probabilities.gather(1, table[self.target].clamp(min=0).unsqueeze(1)).squeeze(1)
        return _mean(-(chosen * labelled).sum(), labelled.sum(), shared)

    @torch.no_grad()
    def scores(self, table: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, int]]:
        """Loss of the model's answers without hidden leaves, and accuracy for a target: name -> (value, rows).

        Empty if no row has a target.
        """
        net, reader = self.model.operators, self.reader
        shown = reader.seen(table)
        grams = {v: m.gram for v, m in reader.encoded.items()}
        statistics = {v: (m.mean, m.spread) for v, m in reader.encoded.items()}
        prior = net.prior if net.condition is not None else shown.new_ones(1, dtype=torch.float64)
        solved = Solved(net.tree, statistics, grams, prior, prior.new_zeros(()))
        rows = len(shown)
        result = {"loss": (self.loss(solved, table, shown), rows)}
        if self.target is not None:
            if self.target in reader.names:
                shown[:, reader.names.index(self.target)] = False
            labelled = table[self.target] >= 0
            evidence = self._evidence(solved, table, shown)
            with full_precision(shown.device):
                guess = self._target_log_probabilities(self._tree(solved), evidence, shown).argmax(dim=1)
            count = int(labelled.sum())
            if count == 0:
                return {}
            result["accuracy"] = ((guess == table[self.target])[labelled].double().mean(), count)
            result["loss"] = (result["loss"][0], count)
        return result

    # -- parts ---------------------------------------------------------------------------------------------------

    def _evidence(self, solved: Solved, table: Mapping[str, Tensor], shown: Tensor) -> Evidence:
        """Evidence of the leaves in ``shown``; hidden leaves have the vector of a missing value."""
        reader = self.reader
        hard: dict[str, Tensor] = {}
        soft: dict[str, Tensor] = {}
        real: dict[str, Tensor] = {}
        if reader.encoded:
            encoded = reader.encode(table, shown, shown)
            with full_precision(shown.device):
                encoder_evidence = reader.evidence(encoded, shown, solved.statistics, solved.grams)
            soft |= {v: zeta.to(self.dtype) for v, zeta in encoder_evidence.items()}
        for i, (v, observable) in enumerate(reader.observables.items()):
            if isinstance(observable.map, OneHot):
                hard[v] = torch.where(shown[:, i], table[v], -1)
            elif v not in soft:
                real[v] = torch.where(shown[:, i], table[v], torch.nan)
        condition = self.model.condition
        if condition is not None and condition != self.target:
            hard[condition] = table[condition]
        like = torch.empty(0, dtype=self.dtype, device=shown.device)
        return prepare(reader.observables, Evidence(len(shown), hard, soft, real), like)

    def _tree(self, solved: Solved) -> OperatorTree:
        """The operators in the dtype of the nets: only solves need float64."""
        condition, tree = self.model.condition, solved.tree
        operators, root = [w.to(self.dtype) for w in tree.operators], tree.root.to(self.dtype)
        return OperatorTree(tree.plan, operators, root, condition, None if condition is None else solved.prior)

    def _target_log_probabilities(self, tree: OperatorTree, evidence: Evidence, shown: Tensor) -> Tensor:
        assert self.target is not None
        net = self.model.operators
        estimate = net.estimates(evidence, [self.target], tree=tree)[self.target]
        if net.readout is None:
            return as_distribution(estimate, net.floor.clamp(min=1e-6)).log()
        leaves = [i for i, v in enumerate(self.reader.names) if v != self.target]
        hidden = 1 - shown[:, leaves].double().mean(dim=1)
        log_probabilities: Tensor = net.readout(estimate, hidden)
        return log_probabilities

    def _leaf_losses(
        self,
        tree: OperatorTree,
        table: Mapping[str, Tensor],
        shown: Tensor,
        evidence: Evidence,
        shared: bool,
    ) -> Tensor:
        """Mean over leaves of the loss of predicting each from the others."""
        reader = self.reader
        estimates = self.model.operators.estimates(evidence, reader.names, tree=tree)
        losses = []
        for i, (v, observable) in enumerate(reader.observables.items()):
            flags = shown[:, i].double()
            if isinstance(observable.map, OneHot):
                q = soft_positive(normalised(estimates[v]), SOFTNESS)
                probability = q.gather(1, table[v].clamp(min=0).unsqueeze(1)).squeeze(1) / q.sum(dim=1)
            else:
                probability = self._contrasted(
                    estimates[v], evidence.soft[v], flags, isinstance(observable.map, EncodedMap)
                )
            losses.append(_mean(-(probability.log() * flags).sum(), flags.sum(), shared))
        return torch.stack(losses).mean()

    def _contrasted(self, estimate: Tensor, vectors: Tensor, flags: Tensor, ratios: bool) -> Tensor:
        """(rows,) contrastive probability of each row's value among the values of the batch.

        Args:
            estimate: (rows, dim) of the leaf without its own evidence.
            vectors: (rows, dim) evidence vectors of the values.
            flags: (rows,) 1 where a row has a value, else 0.
            ratios: scores are ratios to the marginal density; otherwise densities, which are divided by their mean over the batch.
        """
        total = torch.maximum(estimate[:, :1].abs(), LEAST_TOTAL * estimate.norm(dim=1, keepdim=True)).clamp(min=1e-30)
        scores = (estimate / total) @ vectors.mT
        if not ratios:
            scores = scores / scores.abs().mean(dim=0, keepdim=True).clamp(min=1e-30)
        q = soft_positive(scores, SOFTNESS) * flags
        return (q.diagonal() + 1e-12) / (q.sum(dim=1) + 1e-12)


def _mean(total: Tensor, rows: Tensor, shared: bool) -> Tensor:
    """A sum over rows divided by their number; with ``shared``, its average over processes is the mean over all rows."""
    if shared:
        total, rows = total * world_size(), sum_over_processes(rows.clone())
    return total / rows.clamp(min=1)
