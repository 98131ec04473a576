"""Queries of the observable representation of a junction tree: one upward pass per query, without downward messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor

from torchpbp.baselines.spectral_operators import Representation
from torchpbp.contract.abilities import JointQueries, Learner
from torchpbp.errors import QueryError
from torchpbp.inference.observable import as_distribution, joint_states
from torchpbp.inference.operator_tree import Mass, OperatorTree
from torchpbp.inference.schedule import Schedule
from torchpbp.inputs.evidence import Evidence, EvidenceLike
from torchpbp.planning.plan import Plan

LARGEST_QUERY = 4096
"""Largest number of joint states of a query, each of which takes one upward pass."""
ROWS_AT_ONCE = 1 << 16


class SpectralAnswers(Learner, JointQueries):
    """Queries of the spectral algorithm.

    Attributes:
        states: number of states of each observable.
        floor: smallest estimate, as a share of its mass; smaller ones are clipped.
    """

    states: Mapping[str, int]
    floor: float
    _representation: Representation | None
    _device: torch.device | None
    plan: Plan
    _schedule: Schedule

    @property
    def representation(self) -> Representation:
        """The transformed tensors."""
        self.require_fitted()
        assert self._representation is not None
        return self._representation

    @property
    def device(self) -> torch.device:
        """Device of the transformed tensors; before a fit the one set by ``to``, or the CPU."""
        if self._representation is None:
            return self._device or torch.device("cpu")
        return self._representation.root.device

    def estimates(self, evidence: EvidenceLike = None) -> Tensor:
        """(batch,) P̂(evidence) of Algorithm 1, possibly negative; unobserved variables are summed out."""
        sign, size = self.log_evidence(evidence, raw=True)
        return sign * size.exp()

    def negatives(self, evidence: EvidenceLike = None) -> int:
        """Number of rows whose estimate of P(evidence) is not positive."""
        return int((self.log_evidence(evidence, raw=True)[0] <= 0).sum())

    @overload
    def log_evidence(self, evidence: EvidenceLike = None, raw: Literal[False] = False) -> Tensor: ...
    @overload
    def log_evidence(self, evidence: EvidenceLike, raw: Literal[True]) -> tuple[Tensor, Tensor]: ...
    def log_evidence(self, evidence: EvidenceLike = None, raw: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """(batch,) log P(evidence) of complete or partial rows.

        An estimate below a small share of the sum of its absolute terms is replaced by this share, as in
        :class:`~torchpbp.PBP`: 3 / rows, or 1e-15 after a fit to a population. The result is -inf only if every term is 0,
        as for a state absent from the training rows.

        Args:
            evidence: name -> states (-1: not observed) or (batch, states) weights.
            raw: return (sign, log of the absolute value) of the unclipped estimate.
        """
        checked = self.read_evidence(evidence)
        mass = self._mass(checked)
        mass = mass._replace(log_scale=checked.scaled(mass.log_scale))
        return (mass.value.sign(), mass.value.abs().log() + mass.log_scale) if raw else mass.log(self.floor)

    def posterior(self, query: str | Sequence[str], evidence: EvidenceLike = None) -> Any:
        """P(query | evidence), (batch, states…), by one upward pass per joint state of the query.

        Negative estimates are clipped before normalising. A DataFrame for a DataFrame.
        """
        return self._ask(query, evidence, self._posterior)

    def posteriors(self, evidence: EvidenceLike = None) -> Any:
        """Separate posteriors of all observables that are missing in some row. A DataFrame for a DataFrame."""
        return self._ask_all(evidence, lambda names, read: {v: self._posterior((v,), read) for v in names})

    def _posterior(self, names: Sequence[str], evidence: Evidence) -> Tensor:
        sizes = [self.states[v] for v in names]
        cells = math.prod(sizes)
        if cells > LARGEST_QUERY:
            raise QueryError(
                f"Query of {names}: {cells:,} joint states, each of which takes the spectral algorithm an upward pass of its "
                f"own; at most {LARGEST_QUERY:,} are allowed. Query fewer variables, or use PBP, which also passes messages down."
            )
        wide, allowed = joint_states(evidence, dict(zip(names, sizes, strict=True)), self.device)
        value, _, log_scale = self._mass(wide)
        shift = log_scale.reshape(evidence.batch, cells)
        scale = (shift - shift.amax(dim=1, keepdim=True)).exp()
        possible = allowed.reshape(evidence.batch, cells)
        estimate = value.reshape(evidence.batch, cells) * scale * possible
        clipped = as_distribution(estimate, self.floor) * (possible > 0)  # the floor applies to possible states only
        return (clipped / clipped.sum(dim=1, keepdim=True)).reshape(evidence.batch, *sizes)

    def _mass(self, evidence: Evidence) -> Mass:
        """Estimates of P(evidence), in batches of bounded size."""
        operators, root, _ = self.representation
        tree = OperatorTree(self.plan, operators, root, self._schedule)
        starts = range(0, max(evidence.batch, 1), ROWS_AT_ONCE)
        parts = [tree.mass(evidence.rows(slice(start, start + ROWS_AT_ONCE))) for start in starts]
        return Mass(*(torch.cat(column) for column in zip(*parts, strict=True)))
