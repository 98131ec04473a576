"""Exact inference in a network: single rows by elimination, batches by belief update in chunks of rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from torchpbp.errors import DataError
from torchpbp.exact.belief_update import Beliefs, BeliefUpdate
from torchpbp.exact.calibration import PotentialTree, potential_tree, shafer_shenoy
from torchpbp.exact.elimination import Elimination
from torchpbp.exact.prior import ROWS_PER_CHUNK, draw_states, random_chances
from torchpbp.graph.clique_tree import CliqueTree, build_clique_tree
from torchpbp.graph.domains import Scope
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.grouping import grouped
from torchpbp.inputs.evidence import Evidence


class Queries:
    """Exact posteriors of a network, given checked evidence.

    Args:
        graph: discrete graph.
        states: number of states of each variable.
        factors: (scope, table) pairs whose product is proportional to the joint distribution.
        budget: limit of the bytes of the clique tree's tables; None: no limit.
    """

    def __init__(
        self,
        graph: LatentGraph,
        states: Mapping[str, int],
        factors: Sequence[tuple[Scope, Tensor]],
        budget: float | None = None,
    ) -> None:
        self.budget = budget
        self.graph, self.states, self.factors = graph, states, factors
        self.device = factors[0][1].device

    @cached_property
    def tree(self) -> CliqueTree:
        return build_clique_tree(self.graph)

    @cached_property
    def potential_tree(self) -> PotentialTree:
        """The clique tree with the product of all factors, up to a constant for undirected graphs."""
        factors = self.factors
        if not self.graph.directed:  # factors of any scale, whose products may over- or underflow
            factors = [(scope, _moderate(table)) for scope, table in factors]
        return potential_tree(self.tree, self.states, factors, self.budget)

    @cached_property
    def elimination(self) -> Elimination | None:
        """Inference for single rows on the CPU; None on other devices and for tables with gradients."""
        if self.device.type != "cpu" or any(table.requires_grad for _, table in self.factors):
            return None
        return Elimination(self.graph, self.tree, self.factors)

    @cached_property
    def log_partition(self) -> Tensor:
        """Logarithm of the sum of the tree's potentials; 0 for conditional probability tables."""
        return self._belief_update({}, 1, wanted=0).log_evidence[0]

    def posterior_of_one(self, names: Scope, observed: Mapping[str, int] | None) -> Tensor | None:
        """(1, states) posterior of one variable in one row by elimination; None if elimination does not apply.

        Args:
            names: names of the query.
            observed: name -> state; None for evidence of another form.
        """
        if observed is None or len(names) > 1 or self.elimination is None or names[0] in observed:
            return None
        marginal = self.elimination.posterior(names[0], observed)
        return None if marginal is None else torch.from_numpy(marginal).unsqueeze(0).to(self.device)

    def posterior(self, names: Scope, evidence: Evidence) -> Tensor:
        """(batch, states…) P(names | evidence)."""
        if len(names) > 1:
            return self._joint_posterior(names, evidence)
        return self._marginals(names, evidence, self.potential_tree.top[names[0]])[names[0]]

    def posteriors(self, wanted: Sequence[str], evidence: Evidence) -> dict[str, Tensor]:
        """name -> (batch, states), from one upward and one downward pass."""
        return self._marginals(wanted, evidence)

    def clique_posteriors(self, scopes: Sequence[Scope], evidence: Evidence) -> dict[Scope, Tensor]:
        """scope -> (batch, states…) posterior of variables in a common clique, from one upward and one downward pass."""
        cliques = [set(s) for s in self.potential_tree.scopes]
        nodes = {s: next(n for n, clique in enumerate(cliques) if clique.issuperset(s)) for s in scopes}
        chunks = []
        for start, rows in _chunks(evidence, ROWS_PER_CHUNK):
            weights = {v: w.mT for v, w in self._weights(rows).items()}
            calibrated = shafer_shenoy(self.potential_tree, weights, rows.batch)
            _check_possible(torch.isinf(calibrated.log_evidence), start)
            chunks.append([calibrated.marginal(n, s) for s, n in nodes.items()])
        return {s: torch.cat([chunk[i] for chunk in chunks]) for i, s in enumerate(nodes)}

    def log_evidence(self, evidence: Evidence) -> Tensor:
        """(batch,) log P(evidence); -inf for impossible evidence."""
        return self._log_sums(evidence) - self.log_partition

    def sample(self, names: Sequence[str], evidence: Evidence, generator: torch.Generator) -> dict[str, Tensor]:
        """name -> (batch,) int64 states, one draw per row, variable by variable given the previous ones."""
        hard, soft = dict(evidence.hard), dict(evidence.soft)
        for v in names:
            if v in hard and bool((hard[v] >= 0).all()):
                continue
            posterior = self.posterior((v,), Evidence(evidence.batch, hard, soft))  # one-hot where observed
            chances = random_chances(evidence.batch, generator, posterior.device)
            hard[v] = draw_states(posterior.cumsum(dim=1), chances)
            soft.pop(v, None)
        return {v: hard[v] for v in names}

    # -- inner workings ------------------------------------------------------------------------------------------

    def _marginals(self, names: Sequence[str], evidence: Evidence, wanted: int | None = None) -> dict[str, Tensor]:
        """name -> (batch, states); downward messages go only to the clique ``wanted``, which must contain all names."""
        chunks = []
        for start, rows in _chunks(evidence, self._belief_update.rows_at_once):
            beliefs = self._beliefs(rows, wanted)
            _check_possible(torch.isinf(beliefs.log_evidence), start)
            chunks.append([beliefs.marginal(v) for v in names])
        if len(chunks) == 1:
            return {v: p.mT for v, p in zip(names, chunks[0], strict=True)}
        return {v: torch.cat(parts, dim=1).mT for v, parts in zip(names, zip(*chunks, strict=True), strict=True)}

    @cached_property
    def _belief_update(self) -> BeliefUpdate:
        return BeliefUpdate(self.potential_tree)

    def _eye(self, size: int) -> Tensor:
        return torch.eye(size, dtype=torch.float64, device=self.device)

    def _weights(self, evidence: Evidence) -> dict[str, Tensor]:
        """name -> (states, batch) weights of each state; ones in rows that do not observe the variable."""
        weights = {v: w.to(torch.float64).mT for v, w in evidence.soft.items()}
        for size, names in grouped(evidence.hard, self.states.__getitem__).items():  # few operations for many variables
            observed = torch.stack([evidence.hard[v] for v in names]).unsqueeze(1)
            allowed = (observed == torch.arange(size, device=self.device).unsqueeze(1)) | (observed < 0)
            weights.update(zip(names, allowed.to(torch.float64).unbind(), strict=True))
        return weights

    def _beliefs(self, rows: Evidence, wanted: int | None) -> Beliefs:
        return self._belief_update(self._weights(rows), rows.batch, wanted)

    def _log_sums(self, evidence: Evidence) -> Tensor:
        """(batch,) log P(evidence) plus the log partition function."""
        chunks = _chunks(evidence, self._belief_update.rows_at_once)
        return torch.cat([self._beliefs(rows, 0).log_evidence for _, rows in chunks])

    def _joint_posterior(self, names: Scope, evidence: Evidence) -> Tensor:
        """(batch, states…) posterior, with each joint state of the query as evidence in one larger batch."""
        shape = [self.states[v] for v in names]
        cells = math.prod(shape)
        grid = torch.cartesian_prod(*[torch.arange(s, device=self.device) for s in shape])  # (cells, variables)
        wide = evidence.repeat_interleave(cells)
        weights = {v: w.mT for v, w in self._weights(wide).items()}
        for i, v in enumerate(names):
            pick = self._eye(self.states[v])[grid[:, i]].repeat(evidence.batch, 1)
            weights[v] = weights[v] * pick if v in weights else pick
        logs = self._log_sums(Evidence(wide.batch, {}, weights)).reshape(evidence.batch, cells)
        _check_possible(torch.isinf(logs).all(dim=1), 0)
        return torch.softmax(logs, dim=1).reshape(evidence.batch, *shape)


def _chunks(evidence: Evidence, most: int) -> Iterable[tuple[int, Evidence]]:
    """Chunks of equal size, of at most ``most`` rows, each with the number of its first row."""
    parts = max(1, math.ceil(evidence.batch / most))
    step = max(1, math.ceil(evidence.batch / parts))
    for start in range(0, max(1, evidence.batch), step):
        yield start, evidence.rows(slice(start, start + step))


def _moderate(table: Tensor) -> Tensor:
    """The table divided by a power of two, exactly, such that its largest entry is between 1/2 and 1."""
    _, exponent = math.frexp(float(table.detach().max()))
    half = exponent // 2  # in two steps, since the power itself may overflow
    return table * 2.0**-half * 2.0 ** (half - exponent)


def _check_possible(impossible: Tensor, start: int) -> None:
    rows = impossible.nonzero().flatten().tolist()
    if rows:
        raise DataError(
            f"The evidence in {len(rows)} row(s) has probability 0, first in row {start + rows[0]}; no posterior exists "
            "there. log_evidence() returns -inf for such rows."
        )
