"""Questions of every kind, asked of a learned model and of the network it was learned from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchpbp.exact.network import DiscreteNetwork

Columns = dict[str, Tensor]
Ask = Callable[[Any, DiscreteNetwork, Columns], float]


class Kind(NamedTuple):
    """A kind of question.

    Args:
        name: what is asked.
        ask: the mean error of a model's answers, given the true network and test rows.
        unit: what the error is.
    """

    name: str
    ask: Ask
    unit: str


def kinds() -> tuple[Kind, ...]:
    """All kinds of questions, easy ones first."""
    relative, nats = "relative error", "KL, nats"
    return (
        Kind("P(complete row)", lambda m, t, r: relative_error(m, t, r), relative),
        Kind("P(part of a row)", lambda m, t, r: relative_error(m, t, thinned(r)), relative),
        Kind("P(one | all others)", _one_given_others, nats),
        Kind("P(each | part of a row)", each_given_part, nats),
        Kind("P(two | others)", _two_given_others, nats),
        Kind("soft evidence", _soft, nats),
        Kind("P(latent | row)", _latent, nats),
    )


def thinned(rows: Mapping[str, Tensor], share: float = 0.5, seed: int = 0) -> Columns:
    """Rows of which each value is hidden (-1) by chance, the same for all models; each row keeps one value at least."""
    generator = torch.Generator().manual_seed(seed)
    names = list(rows)
    chance = torch.rand(len(names), len(rows[names[0]]), generator=generator)
    hidden = chance < share
    hidden.scatter_(0, chance.argmax(dim=0, keepdim=True), False)
    return {v: rows[v].masked_fill(hidden[i], -1) for i, v in enumerate(names)}


def kl(exact: Tensor, learned: Tensor) -> Tensor:
    """(batch,) KL(exact ‖ learned) over all dimensions but the first."""
    p, q = exact.detach().flatten(1), learned.detach().to(exact.dtype).flatten(1)
    return (torch.xlogy(p, p) - torch.xlogy(p, q.clamp(min=1e-300))).sum(dim=1)


def relative_error(model: Any, truth: DiscreteNetwork, rows: Columns) -> float:
    """Mean |P̂ − P| / P."""
    ratio = (model.log_evidence(rows).detach().double() - truth.log_evidence(rows)).exp()
    return float((ratio - 1).abs().mean())


def _one_given_others(model: Any, truth: DiscreteNetwork, rows: Columns) -> float:
    query, *others = rows
    evidence = {v: rows[v] for v in others}
    return float(kl(truth.posterior(query, evidence), model.posterior(query, evidence)).mean())


def each_given_part(model: Any, truth: DiscreteNetwork, rows: Columns) -> float:
    """Mean KL of the posteriors of all variables that half a row does not observe."""
    evidence = thinned(rows)
    exact, learned = truth.posteriors(evidence), model.posteriors(evidence)
    total, count = 0.0, 0
    for v in rows:
        unseen = evidence[v] < 0
        total += float(kl(exact[v][unseen], learned[v][unseen]).sum())
        count += int(unseen.sum())
    return total / count


def _two_given_others(model: Any, truth: DiscreteNetwork, rows: Columns) -> float:
    names = list(rows)
    query, evidence = (names[0], names[-1]), {v: rows[v] for v in names[1:-1]}
    return float(kl(truth.posterior(query, evidence), model.posterior(query, evidence)).mean())


def _soft(model: Any, truth: DiscreteNetwork, rows: Columns) -> float:
    """One variable seen through a noisy channel: its own state weighs half, the others share the rest."""
    query, noisy, *others = rows
    states = truth.graph.num_states(noisy)
    weights = torch.full((len(rows[noisy]), states), 0.5 / max(1, states - 1), dtype=torch.float64)
    weights.scatter_(1, rows[noisy].unsqueeze(1), 0.5)
    evidence: dict[str, Tensor] = {noisy: weights, **{v: rows[v] for v in others[:1]}}
    return float(kl(truth.posterior(query, evidence), model.posterior(query, evidence)).mean())


def _latent(model: Any, truth: DiscreteNetwork, rows: Columns) -> float:
    """Up to the latent's states being numbered in another order."""
    latent = truth.graph.latent[0]
    exact = truth.posterior(latent, rows)
    learned = (model.network if hasattr(model, "network") else model).posterior(latent, rows)
    orders = torch.cartesian_prod(*[torch.arange(exact.shape[1])] * exact.shape[1])
    permutations = [o for o in orders if len(set(o.tolist())) == exact.shape[1]]
    return min(float(kl(exact, learned[:, o]).mean()) for o in permutations)
