"""How often confidence intervals of posteriors cover the truth, on random networks."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import pandas as pd
import torch

from torchpbp.contract.intervals import Intervals
from torchpbp.errors import StructureError, TorchPBPWarning
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.running.experiment import MakeModel, check_graphs, check_takes_graph, seeds_of
from torchpbp.experiments.running.grid import grid_table, measure_grid
from torchpbp.experiments.running.results import Metrics, environment, metrics_of, publish
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.models.pbp import PBP
from torchpbp.settings import Settings, between, positive, setting, whole


@dataclass(frozen=True)
class CoverageSettings(Settings):
    """Settings of :func:`run_coverage`.

    Args:
        rows: to learn from.
        networks: drawn in all, from each structure in turn.
        questions: asked of each: the probability of one state of one observable, given a random half of the others.
        level: of the intervals.
        concentration: of the Dirichlet distribution of the networks' tables.
    """

    rows: int = setting(10_000, whole(1))
    networks: int = setting(200, whole(1))
    questions: int = setting(20, whole(1))
    level: float = setting(0.95, between(0, 1, ends=False))
    concentration: float = setting(1.0, positive())


def run_coverage(
    learner: MakeModel,
    graphs: Mapping[str, LatentGraph],
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Metrics:
    """Fit a learner to samples of random networks and ask it for intervals.

    Args:
        learner: makes a new model with intervals for a graph.
        graphs: structures by name, discrete and directed, with known numbers of states.
        seed: of networks, rows and questions.
        output_dir: folder for metrics.json and metrics.csv (a row per network). ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).
        options: see :class:`CoverageSettings`.

    Returns:
        "coverage", the share of questions whose interval covers the true probability, "coverage/<graph>", "width/<graph>" (mean),
        "none/<graph>" (share of questions without an interval, which are left out), "seconds/<graph>" of CPU for the intervals of
        a network; and the facts of the run.
    """
    settings = CoverageSettings.from_dict(options)
    check_graphs(graphs)
    check_takes_graph("coverage", learner, "learner=maximum_likelihood")

    def one_network(graph: str, number: int) -> dict[str, float]:
        return examine(learner, graphs[graph], seeds_of(seed, number, 3), settings)

    points = zip(cycle(graphs), range(settings.networks), strict=False)
    table = grid_table(("graph", "network"), measure_grid("coverage", points, one_network, output_dir, verbose))
    sums = table.groupby("graph", sort=False)[["asked", "answered", "covered", "width", "seconds"]].sum()
    sums.loc["all"] = sums.sum()
    summary = pd.DataFrame(
        {
            "coverage": sums["covered"] / sums["answered"],
            "width": sums["width"] / sums["answered"],
            "none": 1 - sums["answered"] / sums["asked"],
            "seconds": sums["seconds"] / [*table.groupby("graph", sort=False).size(), len(table)],
        }
    )
    metrics: Metrics = {"coverage": float(summary["coverage"]["all"])}
    metrics |= metrics_of(summary.drop(index="all").reset_index(), ("graph",))
    metrics |= {"seed": seed, **settings.to_dict(), **environment()}
    publish(output_dir, metrics, table, summary.to_string(float_format="{:.4f}".format, na_rep="-"), verbose)
    return metrics


def examine(make: MakeModel, graph: LatentGraph, seeds: list[int], settings: CoverageSettings) -> dict[str, float]:
    """Intervals of one learner on one sample: how many were asked for, given, and cover; sum of widths, and CPU seconds."""
    truth = DiscreteNetwork.random(graph, seeds[0], settings.concentration)
    rows = truth.sample(settings.rows, seed=seeds[1])
    generator = torch.Generator().manual_seed(seeds[2])
    asked = truth.sample(settings.questions, seed=seeds[2])
    shown = {v: torch.where(torch.rand(settings.questions, generator=generator) < 0.5, x, -1) for v, x in asked.items()}
    target = torch.randint(len(graph.observed), (settings.questions,), generator=generator)
    result = {"asked": settings.questions, "answered": 0.0, "covered": 0.0, "width": 0.0, "seconds": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchPBPWarning)
        model = make(graph).fit(rows)
        if not isinstance(model, Intervals):
            raise StructureError(
                f"coverage: {type(model).__name__} has no intervals. Choose learner=maximum_likelihood or pbp."
            )
        options = {"data": rows} if isinstance(model, PBP) else {}
        for i, name in enumerate(graph.observed):
            own = (target == i).nonzero().flatten()
            if not len(own):
                continue
            evidence = {v: x[own] for v, x in shown.items() if v != name}
            start = time.process_time()
            _, lower, upper = model.interval(name, evidence, settings.level, **options)
            result["seconds"] += time.process_time() - start
            state = torch.randint(graph.num_states(name), (len(own), 1), generator=generator)
            exact, low, high = (x.gather(1, state) for x in (truth.posterior(name, evidence), lower, upper))
            given = ~low.isnan()
            result["answered"] += int(given.sum())
            result["covered"] += int(((low <= exact) & (exact <= high)).sum())
            result["width"] += float((high - low)[given].sum())
    return result
