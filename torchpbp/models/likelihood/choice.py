"""Selection of the latents' numbers of states by BIC, or by the likelihood of held-out rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.distributed import sum_over_processes
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inputs.evidence import Evidence
from torchpbp.lazy import pandas as pd
from torchpbp.models.likelihood.climb import climb
from torchpbp.models.likelihood.expectation import ExpectationStep
from torchpbp.models.likelihood.rows import WeightedRows

if TYPE_CHECKING:
    from torchpbp.models.likelihood.learner import MaximumLikelihoodSettings

CHOICES = ("auto", "bic", "held_out")
HELD_OUT = 0.1
"""Share of held-out rows."""
PATIENCE = 2
"""Number of consecutive failures of larger common numbers of states after which latents are varied one at a time."""


def choose_states(
    graph: LatentGraph, rows: WeightedRows, settings: MaximumLikelihoodSettings
) -> tuple[LatentGraph, pd.DataFrame]:
    """Select the numbers of states of latents of unknown cardinality; of all latents if all are known.

    The search starts from the best common number of all open latents; then single latents get one state more or fewer
    as long as the score improves.

    Args:
        graph: directed and discrete.
        rows: training rows.
        settings: of the learner; ``states`` is the criterion.

    Returns:
        The graph with the selected numbers, and a table with a row per attempt: states of each open latent, parameters,
        log-likelihood, AIC, BIC, relative entropy of the memberships (1: certain in every row, 0: uniform), the mean
        log-likelihood of held-out rows if that is the criterion, and whether the attempt was selected.
    """
    open_latents = [h for h in graph.latent if graph.variables[h] is None] or list(graph.latent)
    held_out = settings.states == "held_out"
    learned, tested = _split(rows, settings.seed) if held_out else (rows.weights, None)
    tried: dict[tuple[int, ...], dict[str, Any]] = {}

    def score(numbers: tuple[int, ...]) -> float:
        if numbers not in tried:
            sized = graph.with_states(dict(zip(open_latents, numbers, strict=True)))
            tried[numbers] = _scores(sized, rows.table, learned, tested, settings)
        line = tried[numbers]
        return float(line["held_out"]) if held_out else -float(line["BIC"])

    best, waited = (1,) * len(open_latents), 0
    for number in range(1, settings.most_states + 1):
        same = (number,) * len(open_latents)
        if score(same) > score(best):
            best, waited = same, 0
        elif number > 1:
            waited += 1
        if waited >= PATIENCE:
            break
    improved = len(open_latents) > 1
    while improved:
        improved = False
        for i in range(len(open_latents)):
            for number in (best[i] + 1, best[i] - 1):
                changed = (*best[:i], number, *best[i + 1 :])
                if 1 <= number <= settings.most_states and score(changed) > score(best):
                    best, improved = changed, True
                    break
    frame = pd.DataFrame(
        {**dict(zip(open_latents, numbers, strict=True)), **line, "chosen": numbers == best}
        for numbers, line in tried.items()
    )
    return graph.with_states(dict(zip(open_latents, best, strict=True))), frame


def _scores(
    graph: LatentGraph,
    table: dict[str, Tensor],
    weights: Tensor,
    tested: Tensor | None,
    settings: MaximumLikelihoodSettings,
) -> dict[str, Any]:
    """Scores of a graph, a row of the table."""
    used = weights > 0
    step = ExpectationStep(graph, {v: x[used] for v, x in table.items()}, weights[used])
    end = climb(step, settings).end
    log_likelihood, parameters = float(step.log_likelihood(end.vector[None])), step.layout.parameters
    network = DiscreteNetwork(graph, step.layout.named(end.vector))
    line: dict[str, Any] = {
        "parameters": parameters,
        "log_likelihood": log_likelihood,
        "AIC": 2 * parameters - 2 * log_likelihood,
        "BIC": parameters * math.log(step.rows) - 2 * log_likelihood,
        "entropy": _relative_entropy(network, step),
    }
    if tested is not None:
        test = ExpectationStep(graph, table, tested)
        line["held_out"] = float(test.log_likelihood(end.vector[None])) / test.rows
    return line


def _relative_entropy(network: DiscreteNetwork, step: ExpectationStep) -> float:
    """1 minus the mean entropy of the latents' posteriors, relative to uniform ones."""
    latent = [h for h in network.graph.latent if network.states[h] > 1]
    if not latent:
        return 1.0
    posteriors = network.posteriors(Evidence(len(step.weights), dict(step.table)), include_latent=True)
    entropy = sum(torch.special.entr(posteriors[h]).sum(dim=1) for h in latent)
    total = float(sum_over_processes((torch.as_tensor(entropy) @ step.weights).clone()))
    return 1 - total / (step.rows * sum(math.log(network.states[h]) for h in latent))


def _split(rows: WeightedRows, seed: int) -> tuple[Tensor, Tensor]:
    """Weights of training and of held-out rows; a random tenth of the copies of each distinct row is held out."""
    generator = np.random.default_rng([seed, 2])
    weights = rows.weights.cpu().numpy()
    copies = np.floor(weights)
    part = generator.binomial(np.maximum(copies, 1).astype(np.int64), HELD_OUT) / np.maximum(copies, 1)
    tested = torch.from_numpy(weights * part).to(rows.weights.device)
    return rows.weights - tested, tested
