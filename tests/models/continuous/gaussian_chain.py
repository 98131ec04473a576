"""A hidden linear-Gaussian chain: h_t = a h_{t-1} + noise, stationary with unit variance, x_t = h_t + N(0, r)."""

import math

import numpy as np
import torch

from torchpbp import PBP, Continuous, LatentGraph, Nystroem, templates

LENGTH, DECAY, NOISE = 5, 0.8, 0.5
COVARIANCE = DECAY ** np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))) + NOISE * np.eye(LENGTH)


def gaussian_chain(rows, seed):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=rows)
    table = {}
    for t in range(1, LENGTH + 1):
        if t > 1:
            hidden = DECAY * hidden + math.sqrt(1 - DECAY**2) * rng.normal(size=rows)
        table[f"x{t}"] = torch.from_numpy(hidden + math.sqrt(NOISE) * rng.normal(size=rows))
    return table


def kalman_means(query, seen, table, blur):
    """E[x_query | seen], from the covariance that the Kalman smoother's recursion amounts to, evidence blurred."""
    chosen = [t - 1 for t in seen]
    values = np.stack([table[f"x{t}"].numpy() for t in seen], axis=1)
    gram = COVARIANCE[np.ix_(chosen, chosen)] + blur**2 * np.eye(len(chosen))
    return values @ np.linalg.solve(gram, COVARIANCE[chosen, query - 1])


def chain_model(width, rows, seed):
    graph = templates.hmm(LENGTH, states=8, observed_states=8)
    graph = LatentGraph(graph.edges, {**graph.variables, **{f"x{t}": Continuous() for t in range(1, 6)}}, graph.latent)
    return PBP(graph, features=Nystroem(24, bandwidth=width)).fit(gaussian_chain(rows, seed))


@torch.no_grad()
def kalman_error(model, query, seen, blur, limit=np.inf):
    """Root mean square distance from the smoother's means over rows whose evidence lies within a limit."""
    new = gaussian_chain(600, 99)
    evidence = {f"x{t}": new[f"x{t}"] for t in seen}
    error = model.posterior(f"x{query}", evidence).mean.numpy() - kalman_means(query, seen, new, blur)
    usual = np.max([x.abs().numpy() for x in evidence.values()], axis=0) < limit
    return float(np.sqrt(np.mean(error[usual] ** 2)))


QUERIES = [(3, (1, 2, 4, 5)), (3, (1, 5)), (5, (1, 2, 3)), (1, (2,))]
