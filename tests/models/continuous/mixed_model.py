"""A mixed model with known answers: a latent with three states; x and y have emissions of no common family, c has states."""

import numpy as np
import torch
from scipy import stats

from torchpbp import Continuous, LatentGraph

NAN = float("nan")

PRIOR = np.array([0.5, 0.3, 0.2])
STATES = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.6, 0.2, 0.1], [0.05, 0.15, 0.2, 0.6]])
EMISSIONS = {
    "x": [stats.gamma(3, scale=0.5), stats.gamma(9, scale=0.5), stats.norm(8, 1)],
    "y": [stats.norm(0, 1), stats.uniform(1, 4), stats.norm(-3, 0.7)],
}
AXIS = np.linspace(-12, 20, 3201)


def mixed_graph(states=3, x=None, y=None):
    variables = {"h": states, "x": x or Continuous(), "y": y or Continuous(), "c": 4}
    return LatentGraph([("h", "x"), ("h", "y"), ("h", "c")], variables, ["h"])


def mixed(rows, seed):
    rng = np.random.default_rng(seed)
    h = rng.choice(3, p=PRIOR, size=rows)
    table = {v: np.choose(h, [d.rvs(rows, random_state=rng) for d in e]) for v, e in EMISSIONS.items()}
    table["c"] = (rng.random(rows)[:, None] > STATES[h].cumsum(axis=1)).sum(axis=1)
    return {v: torch.from_numpy(x) for v, x in table.items()}


def blurred(name, at, width):
    """(points, states) ∫ k(at, x) p(x | h) dx / ∫ k by quadrature: what an RBF kernel of this width sees."""
    kernel = stats.norm.pdf(np.asarray(at)[:, None], AXIS, width)
    return np.stack([np.trapezoid(kernel * d.pdf(AXIS), AXIS, axis=1) for d in EMISSIONS[name]], axis=1)


def random_patterns(rows, seed):
    """Evidence on random subsets, from nothing to everything, some of it where no data is."""
    rng = np.random.default_rng(seed)
    table = mixed(rows, seed)
    share = np.linspace(0, 1, rows)
    for v, column in table.items():
        hidden = torch.from_numpy(rng.random(rows) < share)
        if v != "c":
            column = torch.where(torch.from_numpy(rng.random(rows) < 0.05), column * 40 - 30, column)
        table[v] = torch.where(hidden, torch.tensor(-1) if v == "c" else NAN, column)
    return table


@torch.no_grad()
def errors_against_quadrature(model):
    """KL of P(c | x, y), mean error of log p(x, y), and mean L1 distance of p(y | x, c), from numerical integration.

    Evidence through an RBF kernel of width σ is evidence of x + N(0, σ²), and so is a density read off it.
    """
    width = {v: float(model.observables[v].map.width) for v in "xy"}
    x, y = (a.ravel() for a in np.meshgrid(np.linspace(0.5, 9, 15), np.linspace(-4, 4.5, 15)))
    likelihood = blurred("x", x, width["x"]) * blurred("y", y, width["y"])
    joint = (PRIOR * likelihood) @ STATES
    weight = joint.sum(axis=1) / joint.sum()
    exact = joint / joint.sum(axis=1, keepdims=True)
    found = model.posterior("c", {"x": x, "y": y}).numpy()
    kl = float((exact * np.log(exact / found)).sum(axis=1) @ weight)
    logs = float(np.abs(model.log_evidence({"x": x, "y": y}).numpy() - np.log(joint.sum(axis=1))) @ weight)
    low, high = model.observables["y"].bounds.tolist()
    at = np.linspace(low, high, 200)
    shapes, distances = blurred("y", at, width["y"]), []
    for c in range(4):
        for value, seen in zip((1.0, 4.0, 8.0), blurred("x", [1.0, 4.0, 8.0], width["x"]), strict=True):
            posterior = PRIOR * STATES[:, c] * seen
            truth = shapes @ (posterior / posterior.sum())
            density = model.posterior("y", {"x": [value], "c": [c]}, at=at)[0].numpy()
            distances.append(np.trapezoid(np.abs(density - truth), at))
    return np.array([kl, logs, np.mean(distances)])
