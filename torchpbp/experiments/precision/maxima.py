"""Whether one run reaches the maximum that the best of many random EM starts finds, on small data sets."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchpbp.baselines.em import EM
from torchpbp.errors import ArgumentError, StructureError, TorchPBPWarning
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.learners.questions import Columns
from torchpbp.experiments.precision.real_sets import real_sets
from torchpbp.experiments.running.experiment import MakeModel, check_graphs, check_takes_graph, seeds_of
from torchpbp.experiments.running.grid import grid_table, measure_grid
from torchpbp.experiments.running.results import Metrics, environment, metrics_of, publish
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.models.network_learner import NetworkLearner
from torchpbp.settings import Settings, flag, positive, setting, whole

SHORT = 0.1
"""Nats below the best maximum that still count as reaching it."""


@dataclass(frozen=True)
class MaximaSettings(Settings):
    """Settings of :func:`run_maxima`.

    Args:
        rows: of each data set.
        repeats: data sets of each structure, each from its own random network.
        starts: of EM.
        tolerance: relative, at which a run of EM ends.
        max_steps: of a run of EM, at most.
        concentration: of the Dirichlet distribution of the networks' tables.
        real: whether the tables of :func:`~torchpbp.experiments.precision.real_sets.real_sets` are fitted as well.
    """

    rows: int = setting(500, whole(1))
    repeats: int = setting(5, whole(1))
    starts: int = setting(200, whole(1))
    tolerance: float = setting(1e-9, positive())
    max_steps: int = setting(5_000, whole(1))
    concentration: float = setting(0.5, positive())
    real: bool = setting(True, flag())


def run_maxima(
    learner: MakeModel,
    graphs: Mapping[str, LatentGraph],
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Metrics:
    """Fit a learner, and EM with many starts and the same prior, to samples of random networks and to real data.

    Args:
        learner: makes a new model for a graph.
        graphs: structures by name, discrete and directed, with known numbers of states.
        seed: of networks, rows and starts.
        output_dir: folder for metrics.json and metrics.csv (a row per data set). ``None``: no files.
        verbose: show a progress bar (stderr) and the table of results (stdout).
        options: see :class:`MaximaSettings`.

    Returns:
        For each graph, and for each table of real data by its name, "reached/<graph>", the share of data sets on which the
        learner comes within 0.1 nat of the best run of EM, "short/<graph>", the most nats that it lacks, "starts/<graph>", the share of EM's runs that come as near (mean),
        "seconds/<graph>" and "em_seconds/<graph>" of CPU; "reached" over all; and the facts of the run.
    """
    settings = MaximaSettings.from_dict(options)
    check_graphs(graphs)
    check_takes_graph("maxima", learner, "learner=maximum_likelihood")

    prior_of(learner(next(iter(graphs.values()))))
    tables = real_sets() if settings.real else {}
    both = sorted(set(tables) & set(graphs))
    if both:
        raise ArgumentError(
            f"model.graphs: {both} are names of real data. Give the graphs other names, or model.real=false."
        )

    def one_set(name: str, number: int) -> dict[str, float]:
        if name in tables:
            return examine(learner, *tables[name], seeds_of(seed, number, 3)[2], settings)
        seeds, graph = seeds_of(seed, number, 3), graphs[name]
        rows = DiscreteNetwork.random(graph, seeds[0], settings.concentration).sample(settings.rows, seed=seeds[1])
        return examine(learner, graph, rows, seeds[2], settings)

    points = [(graph, number) for graph in graphs for number in range(settings.repeats)] + [(t, 0) for t in tables]
    table = grid_table(("graph", "number"), measure_grid("maxima", points, one_set, output_dir, verbose))
    table["reached"] = table["short"] <= SHORT
    grouped = table.groupby("graph", sort=False)
    summary = grouped[["reached", "starts", "seconds", "em_seconds"]].mean().assign(short=grouped["short"].max())
    metrics: Metrics = {"reached": float(table["reached"].mean())}
    metrics |= metrics_of(summary.reset_index(), ("graph",))
    metrics |= {"seed": seed, **settings.to_dict(), **environment()}
    publish(output_dir, metrics, table, summary.to_string(float_format="{:.3f}".format), verbose)
    return metrics


def prior_of(model: Any) -> float:
    """The prior of a learner of tables, in pseudo-rows per entry.

    Raises:
        StructureError: a learner without tables or without a prior.
    """
    prior = getattr(getattr(model, "settings", None), "prior", None)
    if not isinstance(model, NetworkLearner) or prior is None:
        raise StructureError(
            f"maxima: {type(model).__name__} has no tables with a prior. Choose learner=maximum_likelihood, em or online_em."
        )
    return float(prior)


def examine(
    make: MakeModel, graph: LatentGraph, rows: Columns, seed: int, settings: MaximaSettings
) -> dict[str, float]:
    """Both learners on one data set: what the first lacks, in nats in total, and CPU seconds."""
    count = len(next(iter(rows.values())))
    model = make(graph)
    prior = prior_of(model)
    rival = EM(
        graph,
        restarts=settings.starts,
        prior=prior,
        relative_tolerance=settings.tolerance,
        max_steps=settings.max_steps,
        seed=seed,
        progress=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchPBPWarning)
        times = [time.process_time()]
        model.fit(rows)
        times.append(time.process_time())
        rival.fit(rows)
        times.append(time.process_time())
    log_likelihood, ends = model.score(rows) * count, [run.objective[-1] * count for run in rival.runs]
    reached = log_likelihood
    if prior:
        assert isinstance(model, NetworkLearner)  # it has a prior
        reached += prior * sum(float(table.log().sum()) for table in model.network.cpts.values())
    return {
        "log_likelihood": log_likelihood,
        "objective": reached,
        "best": max(ends),
        "short": max(ends) - reached,
        "starts": sum(end >= max(ends) - SHORT for end in ends) / len(ends),
        "seconds": times[1] - times[0],
        "em_seconds": times[2] - times[1],
    }
