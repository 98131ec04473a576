"""Confidence intervals of a network's answers: the delta method on the information of its tables.

An answer q has the derivative g = d log q / dη = E[s | query, evidence] − E[s | evidence] with respect to the logits η of the
tables, where s is the score of a complete row: r(pa, v) − r(pa) θ(v | pa), from the posteriors r of families. Its variance is
gᵀ F⁻¹ g with the information F. Eigenvalues of F relative to the information of complete rows are between 0 and 1.
Directions of eigenvalue 0, such as a change of the basis of a latent with two views, are not identified and not inverted; an
answer that depends on them has no interval.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from torch import Tensor

from torchpbp.contract.intervals import Interval
from torchpbp.errors import IdentificationWarning, warn_caller
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.inference.observable import joint_states
from torchpbp.inputs.evidence import Evidence
from torchpbp.models.likelihood.layout import FamilyLayout

UNIDENTIFIED = 1e-7
"""Share of complete rows' information below which a direction counts as not identified."""
MOVING = 1e-3
"""Largest share of an answer's derivative, by length, in unidentified directions at which it has an interval."""
FEWEST = 1e-3
"""Lower bound of the expected rows of a distribution, for rare states of the parents."""
ENTRIES = 1 << 23
"""Largest number of entries of derivatives computed at once."""


class DeltaMethod:
    """Intervals of the answers of a fitted network.

    Args:
        network: the fitted tables.
        layout: of their entries.
        information: (free, free) of the rows, in the free logits.
        rows: their total weight.
        prior: pseudo-rows per entry.

    Attributes:
        whitener: (free, free) L⁻¹ with LLᵀ the information of complete rows.
        hidden: (free, n) orthonormal unidentified directions, whitened.
        factor: (free, m) K; KKᵀ is the covariance of the whitened logits in the identified directions.
    """

    def __init__(
        self, network: DiscreteNetwork, layout: FamilyLayout, information: Tensor, rows: float, prior: float
    ) -> None:
        self.network, self.layout, self.information = network, layout, information
        free, group = layout.free, layout.group[layout.free]
        theta = layout.vector(dict(network.factors))[free].clamp(min=1e-9)
        parents = [
            network.joint(s).sum(dim=-1, keepdim=True).expand(shape)
            for s, shape in zip(layout.scopes, layout.shapes, strict=True)
        ]
        weight = rows * torch.cat([p.reshape(-1) for p in parents])[free]  # of an entry's distribution
        weight = weight.clamp(min=FEWEST)
        same = group.unsqueeze(0) == group.unsqueeze(1)
        complete = (torch.diag((1 + 1e-9) * theta) - theta.unsqueeze(0) * theta.unsqueeze(1)) * same * weight
        lower = torch.linalg.cholesky(complete)
        self.whitener = torch.linalg.solve_triangular(
            lower, torch.eye(len(lower), dtype=lower.dtype, device=lower.device), upper=False
        )
        values, vectors = torch.linalg.eigh(self.whitener @ information @ self.whitener.T)
        seen = values > UNIDENTIFIED
        identified, self.hidden = vectors[:, seen], vectors[:, ~seen]
        pseudo = prior * layout.widths[group] / weight  # the prior's curvature in these coordinates
        precision = torch.diag(values[seen]) + identified.T @ (pseudo.unsqueeze(1) * identified)
        self.factor = torch.linalg.solve_triangular(torch.linalg.cholesky(precision), identified.T, upper=False).T

    @torch.no_grad()
    def interval(self, names: tuple[str, ...], evidence: Evidence, level: float) -> Interval:
        """Intervals of P(names | evidence), symmetric in logits, or of log P(evidence).

        Args:
            names: of the queried variables; empty for the log-evidence.
            evidence: checked.
            level: of the intervals.
        """
        width = NormalDist().inv_cdf((1 + level) / 2)
        network = self.network
        if not names:
            estimate = network.log_evidence(evidence)
            possible = estimate.isfinite()
            errors = torch.full_like(estimate, torch.nan)
            errors[possible] = self.errors(self.expected_scores(evidence.rows(possible.nonzero().flatten())))
            _warn_of_none(errors)
            return Interval(estimate, estimate - width * errors, estimate + width * errors)
        sizes = [network.states[v] for v in names]
        estimate, cells = network.posterior(names, evidence), math.prod(sizes)
        wide, allowed = joint_states(evidence, dict(zip(names, sizes, strict=True)), network.device)
        flat = estimate.reshape(-1)
        possible = allowed.reshape(evidence.batch, cells) > 0
        open_rows = possible.sum(dim=1, keepdim=True) > 1  # the others observe the queried variables
        asked = (possible & open_rows).reshape(-1)
        errors = torch.zeros_like(flat).masked_fill(asked, torch.nan)
        inside = (asked & (flat > 0) & (flat < 1)).nonzero().flatten()
        for part in inside.split(max(1, ENTRIES // self.layout.parameters)):
            rows, place = (part // cells).unique(return_inverse=True)
            derivatives = self.expected_scores(wide.rows(part)) - self.expected_scores(evidence.rows(rows))[place]
            errors[part] = self.errors(derivatives) / (1 - flat[part])  # of the logit
        _warn_of_none(errors)
        moves = (torch.sigmoid(torch.logit(flat) + sign * width * errors) for sign in (-1, 1))
        lower, upper = (torch.where(errors == 0, flat, end).reshape(estimate.shape) for end in moves)
        return Interval(estimate, lower, upper)

    def errors(self, derivatives: Tensor) -> Tensor:
        """(n,) standard errors of answers with (n, free) derivatives; NaN for answers that depend on unidentified directions."""
        whitened = derivatives.to(self.whitener) @ self.whitener.T
        size = whitened.norm(dim=1)
        moved = (whitened @ self.hidden).norm(dim=1) > MOVING * size.clamp(min=1e-12)
        return (whitened @ self.factor).norm(dim=1).masked_fill(moved, torch.nan).to(derivatives)

    def expected_scores(self, evidence: Evidence) -> Tensor:
        """(rows, free) E[d log P(all variables) / dη | evidence], the derivative of the log-evidence."""
        tables, columns = dict(self.network.factors), []
        for scope, posterior in self.network.clique_posteriors(self.layout.scopes, evidence).items():
            excess = posterior - posterior.sum(dim=-1, keepdim=True) * tables[scope]
            free = math.prod(excess.shape[1:-1]) * (excess.shape[-1] - 1)
            columns.append(excess[..., :-1].reshape(evidence.batch, free))
        return torch.cat(columns, dim=1)


def _warn_of_none(errors: Tensor) -> None:
    if bool(errors.isnan().any()):
        warn_caller(
            "Some intervals are NaN: these answers are not identified by the rows, such as those about the states of a latent with "
            "fewer than three views (diagnostics() names them), or are on the boundary, 0 or 1.",
            IdentificationWarning,
        )
