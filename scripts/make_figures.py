"""Draw the figure of the README: ``python scripts/make_figures.py`` writes docs/figures/messages.png."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure
from tqdm import tqdm

import torchpbp
from torchpbp.io import replacing
from torchpbp.plotting import plot_learning_curves, plot_messages, plot_posteriors

FOLDER = Path(__file__).parents[1] / "docs" / "figures"
HIDDEN = ("A", "B", "C", "D")
SIZES = (1_000, 10_000, 100_000)
EVIDENCE = {"a1": [0], "b2": [1]}


def diamond() -> torchpbp.LatentGraph:
    """The graph of the README's first example: a hidden loop, two observables below each of its variables."""
    edges = [("A", "B"), ("A", "C"), ("B", "D"), ("C", "D")]
    edges += [(h, h.lower() + i) for h in HIDDEN for i in "12"]
    states = {v: 2 if v in HIDDEN else 4 for edge in edges for v in edge}
    return torchpbp.LatentGraph(edges, states, latent=HIDDEN)


def divergences(networks: int) -> pd.DataFrame:
    """KL(exact ‖ learned) of P(d1 | a1, b1, c1), averaged over all values of the evidence, per size and network.

    Args:
        networks: how many random networks.
    """
    values = torch.tensor(list(itertools.product(range(4), repeat=3)))  # (64, 3)
    evidence = dict(zip(("a1", "b1", "c1"), values.T, strict=True))
    rows = []
    for seed, size in tqdm(list(itertools.product(range(networks), SIZES)), desc="networks"):
        truth = torchpbp.DiscreteNetwork.random(diamond(), seed=seed)
        model = torchpbp.PBP(truth.graph).fit(truth.sample(size, seed=1_000 + seed))
        exact = truth.posterior("d1", evidence)
        with torch.no_grad():
            learned = model.posterior("d1", evidence)
        kl = (exact * (exact.log() - learned.log())).sum(dim=1).mean()
        rows.append({"training rows": size, "KL(exact ‖ learned), nats": float(kl)})
    return pd.DataFrame(rows)


def draw(networks: int) -> Figure:
    """Messages on the tree; beside them what comes of them, and how it improves with data."""
    truth = torchpbp.DiscreteNetwork.random(diamond(), seed=1)
    model = torchpbp.PBP(truth.graph).fit(truth.sample(20_000, seed=2))
    figure = Figure(figsize=(15.0, 6.2), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1.55, 1.0))
    plot_messages(model, EVIDENCE, ax=figure.add_subplot(grid[:, 0]))
    plot_posteriors(model, EVIDENCE, truth=truth, ax=figure.add_subplot(grid[0, 1]))
    curve = figure.add_subplot(grid[1, 1])
    plot_learning_curves(divergences(networks), "KL(exact ‖ learned), nats", "training rows", ax=curve)
    curve.set_title(f"Mean and standard error of {networks} random networks", fontsize=10)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=10, help="random networks behind the curve")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the figure")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with replacing(given.output / "messages.png") as temporary:
        draw(given.networks).savefig(temporary, format="png", dpi=100)
    print(given.output / "messages.png")


if __name__ == "__main__":
    main()
