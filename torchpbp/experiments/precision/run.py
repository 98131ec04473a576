"""Learners on the same random networks: precision of their answers, of hidden states, and CPU seconds."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pandas as pd
import torch

from torchpbp.contract.latent_queries import LatentQueries
from torchpbp.errors import IdentificationWarning, TorchPBPWarning
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.learners.questions import Columns, each_given_part
from torchpbp.experiments.precision.plots import write_precision_plot
from torchpbp.experiments.running.experiment import MakeModel, check_graphs, named_learners, row_counts, seeds_of
from torchpbp.experiments.running.grid import grid_table, measure_grid
from torchpbp.experiments.running.results import Metrics, environment, metrics_of, publish
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.settings import Settings, between, positive, setting, whole

MAIN = "likelihood"
"""Name of the main learner in the results."""
MEASURES = ("kl", "held_out", "agreement", "cpu_seconds")


@dataclass(frozen=True)
class PrecisionSettings(Settings):
    """Settings of :func:`run_precision`.

    Args:
        sizes: numbers of training rows.
        repeats: networks drawn for each graph.
        test_rows: rows that are asked about.
        concentration: of the Dirichlet distribution of the networks' tables.
        missing: share of training values that are missing completely at random.
    """

    sizes: tuple[int, ...] = setting((1_000, 10_000, 100_000), row_counts())
    repeats: int = setting(10, whole(1))
    test_rows: int = setting(1_000, whole(1))
    concentration: float = setting(1.0, positive())
    missing: float = setting(0.0, between(0, 0.9))


def run_precision(
    learner: MakeModel,
    graphs: Mapping[str, LatentGraph],
    others: Mapping[str, MakeModel] | None = None,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Metrics:
    """Fit all learners to the same samples of random networks.

    Args:
        learner: makes a new model for a graph; goes by the name "likelihood".
        graphs: structures by name, discrete and directed, with known numbers of states.
        others: name -> likewise, to compare with.
        seed: of networks and rows.
        output_dir: folder for metrics.json, metrics.csv (a row per fit) and precision.png. ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).
        options: see :class:`PrecisionSettings`.

    Returns:
        For each graph, learner and size "kl/<graph>/<learner>/N" (of posteriors given half a row), "held_out/…" (mean
        log-likelihood of test rows), "agreement/…" (share of test rows whose most probable hidden state is the true one, over
        latents with three views; ``None`` where there are none, or the learner has no hidden states), "cpu_seconds/…" of a
        fit; for each other learner "kl_ratio/<graph>/<other>/N" (KL of the main learner over its own, of means) and
        "seconds_ratio/…" (its seconds over those of the main learner); and the facts of the run.
    """
    settings = PrecisionSettings.from_dict(options)
    check_graphs(graphs)
    learners = named_learners(MAIN, learner, others, "learner=maximum_likelihood")

    @lru_cache(maxsize=1)
    def drawn(graph: str, repeat: int) -> tuple[DiscreteNetwork, Columns]:
        seeds = seeds_of(seed, repeat, 3)
        truth = DiscreteNetwork.random(graphs[graph], seeds[0], settings.concentration)
        return truth, truth.sample(settings.test_rows, seed=seeds[2], include_latent=True)

    @lru_cache(maxsize=1)
    def rows(graph: str, repeat: int, size: int) -> Columns:
        truth, _ = drawn(graph, repeat)
        own = seeds_of(seed, repeat, 3)[1]
        return with_missing(truth.sample(size, seed=own), settings.missing, own)

    def one_fit(graph: str, name: str, size: int, repeat: int) -> dict[str, float]:
        return examine(learners[name], *drawn(graph, repeat), rows(graph, repeat, size))

    points = [
        (graph, name, size, repeat)
        for graph in graphs
        for repeat in range(settings.repeats)
        for size in settings.sizes
        for name in learners
    ]
    measured = measure_grid("precision", points, one_fit, output_dir, verbose)
    table = grid_table(("graph", "learner", "rows", "repeat"), measured)
    summary = table.groupby(["graph", "learner", "rows"], sort=False)[list(MEASURES)].mean().reset_index()
    metrics = metrics_of(summary, ("graph", "learner", "rows"))
    metrics |= _ratios(summary) | {"seed": seed, **settings.to_dict(), **environment()}
    folder = publish(output_dir, metrics, table, format_table(summary), verbose)
    if folder is not None:
        write_precision_plot(folder / "precision.png", summary)
    return metrics


def examine(make: MakeModel, truth: DiscreteNetwork, test: Columns, train: Columns) -> dict[str, float]:
    """What one learner makes of one sample."""
    observed = {v: test[v] for v in truth.graph.observed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchPBPWarning)
        start = time.process_time()
        model = make(truth.graph).fit(train)
        seconds = time.process_time() - start
    with torch.no_grad():
        return {
            "kl": each_given_part(model, truth, observed),
            "held_out": model.score(observed),
            "agreement": agreement(model, truth, test),
            "cpu_seconds": seconds,
        }


def agreement(model: Any, truth: DiscreteNetwork, test: Columns) -> float:
    """Share of rows whose most probable state of a three-view latent is the true one, after matching; NaN without any."""
    if not isinstance(model, LatentQueries):
        return math.nan
    latent = [h for h, views in model.latent_views.items() if len(views.groups) == 3]
    if not latent:
        return math.nan
    model.match_states(truth)
    rows = {v: test[v] for v in truth.graph.observed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdentificationWarning)
        found = [model.predict(rows, h) for h in latent]
    return float(torch.stack([(x.cpu() == test[h]).double().mean() for x, h in zip(found, latent, strict=True)]).mean())


def with_missing(data: Columns, share: float, seed: int) -> Columns:
    """The data with a share of its values missing completely at random."""
    if not share:
        return data
    generator = torch.Generator().manual_seed(seed)
    return {v: torch.where(torch.rand(len(x), generator=generator) < share, -1, x) for v, x in data.items()}


def _ratios(summary: pd.DataFrame) -> Metrics:
    """The main learner against each other one."""
    lines = {(line["graph"], line["learner"], line["rows"]): line for line in summary.to_dict(orient="records")}
    ratios: Metrics = {}
    for (graph, name, size), line in lines.items():
        if name != MAIN:
            main = lines[graph, MAIN, size]
            ratios[f"kl_ratio/{graph}/{name}/{size}"] = float(main["kl"] / line["kl"])
            ratios[f"seconds_ratio/{graph}/{name}/{size}"] = float(line["cpu_seconds"] / main["cpu_seconds"])
    return ratios


def format_table(summary: pd.DataFrame) -> str:
    """A line for each graph and size, for each measure a column per learner."""
    wide = summary.pivot_table(index=["graph", "rows"], columns="learner", values=list(MEASURES), sort=False)
    return wide.to_string(float_format=lambda v: f"{v:.4g}", na_rep="-")
