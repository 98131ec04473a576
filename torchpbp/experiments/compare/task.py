"""Graphs × models × numbers of rows × repeats, with a list of measures: the frame of most experiments on known networks."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from torchpbp.errors import ArgumentError, TorchPBPError, TorchPBPWarning
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.compare.measures import Columns, Fit, HalfRows, Measure, Source, with_missing
from torchpbp.experiments.compare.pictures import curves, dots
from torchpbp.experiments.grid import Point, Run
from torchpbp.experiments.results import Metrics, Result, metrics_of
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.settings import between, positive, several, whole

BY = ["graph", "model", "rows"]
SECONDS = ("fit_seconds", "cpu_seconds")
"""Columns of every fit: wall time and CPU time, to make the model and to fit it. Medians are reported, which a slow first fit leaves alone."""
ALL = "all"
"""Name of the mean over graphs."""
MOST_MAIN = 4
"""Metrics at the top of the report."""


def compare(
    models: Mapping[str, Callable[[LatentGraph], Any]],
    run: Run,
    graphs: Mapping[str, LatentGraph] | None = None,
    tables: Mapping[str, tuple[LatentGraph, Columns]] | None = None,
    measures: Mapping[str, Measure] | None = None,
    sizes: Sequence[int] = (1_000, 10_000),
    repeats: int = 3,
    test_rows: int = 1_000,
    concentration: float = 1.0,
    missing: float = 0.0,
    network: Callable[[LatentGraph, int, float], DiscreteNetwork] = DiscreteNetwork.random,
) -> Result:
    """Fit models to the same rows, and measure each.

    A repeat's network, rows and test rows depend on the run's seed and the number of the repeat only. Models take turns on each set of rows, so
    that a slow spell of the machine affects all of them.

    Args:
        models: name -> makes an unfitted model for a graph; ratios compare the first one with the others.
        run: seed, folder and finished parts.
        graphs: name -> structure of random networks.
        tables: name -> structure and real rows, for measures that need no network.
        measures: name -> measure.
        sizes: numbers of training rows of the networks.
        repeats: networks drawn for each graph.
        test_rows: sampled from each network.
        concentration: of the Dirichlet distribution of the networks' tables.
        missing: share of training values that are missing completely at random.
        network: draws a network, given graph, seed and concentration.

    Returns:
        "<column>/<graph>/<model>/<rows>" for each column of the measures, means over repeats; a single graph or model is left out of the names.
        Beside them standard errors "<column>_standard_error/…", medians "fit_seconds/…" and "cpu_seconds/…", and, against each other model,
        "<column>_ratio/…", the first model's main column over the other's, and "speed_ratio/…", the other's CPU seconds over the first model's.
        "<column>/all/<model>" is the mean over several graphs of a main column that is a share.
    """
    measures = {"kl": HalfRows()} if measures is None else measures
    lengths: tuple[int, ...] = several(whole(1)).check("sizes", sizes)
    for name, value, constraint in (
        ("repeats", repeats, whole(1)),
        ("test_rows", test_rows, whole(1)),
        ("concentration", concentration, positive()),
        ("missing", missing, between(0, 0.9)),
    ):
        constraint.check(name, value)
    structures, real = graphs or {}, tables or {}
    if not models or not structures.keys() | real.keys() or structures.keys() & real.keys():
        raise ArgumentError(
            f"Expected models, and graphs and tables of different names; got models {list(models)}, graphs {list(structures)}, "
            f"tables {list(real)}."
        )

    @lru_cache(maxsize=1)
    def source(name: str, repeat: int) -> tuple[Source, dict[str, Any]]:
        """Where rows come from, and exact answers of its network by measure."""
        seeds = run.seeds(repeat, 3)
        if name in real:
            found = Source(real[name][0], None, {}, run.seed, seeds[2])
        else:
            truth = network(structures[name], seeds[0], concentration)
            test = truth.sample(test_rows, seed=seeds[2], include_latent=True)
            found = Source(truth.graph, truth, test, run.seed, seeds[2])
        return found, {key: measure.exact(found) for key, measure in measures.items()}

    @lru_cache(maxsize=1)
    def rows(name: str, repeat: int, size: int) -> Columns:
        if name in real:
            return real[name][1]
        seed = run.seeds(repeat, 3)[1]
        return with_missing(source(name, repeat)[0].truth.sample(size, seed=seed), missing, seed)

    def measured(name: str, repeat: int, size: int, model: str) -> dict[str, Any]:
        found, exact = source(name, repeat)
        return fitted_and_measured(models[model], found, rows(name, repeat, size), measures, exact)

    points: list[Point] = [(g, r, n, m) for g in structures for r in range(repeats) for n in lengths for m in models]
    points += [(t, 0, len(next(iter(columns.values()))), m) for t, (_, columns) in real.items() for m in models]
    table = run.table("compare", ("graph", "repeat", "rows", "model"), points, measured)
    refusals = table[table["refusal"] != ""]
    if len(refusals[refusals["model"] == next(iter(models))]) == len(points) / len(models):
        raise TorchPBPError(refusals["refusal"].iloc[0])
    summary = summarised(table, measures)
    by = [name for name in BY if name == "rows" or summary[name].nunique() > 1]
    metrics = metrics_of(summary.drop(columns=[name for name in BY if name not in by]), by)
    metrics |= over_graphs(table, measures) | ratios(summary, measures, by)
    first = summary[summary["model"] == next(iter(models))]
    column = next(iter(measures.values())).main
    main = [key for key in metrics if key.startswith(f"{column}/{ALL}/")]
    main = main or ["/".join([column, *(str(line[name]) for name in by)]) for line in first.to_dict("records")]
    return Result(
        metrics,
        table,
        described(summary, table, measures),
        main[-MOST_MAIN:],
        {"curves": curves(summary, measures)} if len(lengths) > 1 else {"measures": dots(summary, measures)},
        {"summary": summary},
    )


def fitted_and_measured(
    make: Callable[[LatentGraph], Any],
    source: Source,
    rows: Columns,
    measures: Mapping[str, Measure],
    exact: Mapping[str, Any],
) -> dict[str, Any]:
    """Columns of one fit: seconds, those of the measures, names of warnings, and the message of an error raised instead of an answer."""
    line: dict[str, Any] = {}
    refusal = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TorchPBPWarning)
        start, cpu = time.perf_counter(), time.process_time()
        try:
            model = make(source.graph).fit(rows)
            line |= {"fit_seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
            for name, measure in measures.items():
                with torch.no_grad():
                    line |= measure(Fit(model, make, rows), source, exact[name])
        except TorchPBPError as error:
            refusal = f"{type(error).__name__}: {error}"
    named = sorted({w.category.__name__ for w in caught if issubclass(w.category, TorchPBPWarning)})
    return {**line, "warnings": ", ".join(named), "refusal": refusal}


def summarised(table: pd.DataFrame, measures: Mapping[str, Measure]) -> pd.DataFrame:
    """A row per graph, model and number of rows.

    Args:
        table: a row per fit.
        measures: whose columns are averaged.

    Returns:
        Columns graph, model, rows; means of the measures with "<column>_standard_error" (NaN for a single repeat); medians of seconds.
    """
    groups = table.groupby(BY, sort=False)
    columns = [str(c) for c in table.select_dtypes("number") if c not in ("repeat", "rows")]
    largest = {c for measure in measures.values() for c in measure.largest}
    found: dict[str, Tensor | pd.Series] = {}
    for column in columns:
        if column in SECONDS or column in largest:
            found[column] = groups[column].median() if column in SECONDS else groups[column].max()
        else:
            found |= {column: groups[column].mean(), f"{column}_standard_error": groups[column].sem()}
    return pd.DataFrame(found).reset_index()


def over_graphs(table: pd.DataFrame, measures: Mapping[str, Measure]) -> Metrics:
    """Means of main columns without ratios over all graphs and repeats, where there are several graphs."""
    mains = [m.main for m in measures.values() if m.main in table and not m.ratio]
    if table["graph"].nunique() == 1 or not mains:
        return {}
    means = table.groupby("model", sort=False)[mains].mean()
    return {f"{column}/{ALL}/{model}": float(value) for column in mains for model, value in means[column].items()}


def ratios(summary: pd.DataFrame, measures: Mapping[str, Measure], by: Sequence[str]) -> Metrics:
    """Main columns of the first model over those of each other model, and CPU seconds of the other over those of the first."""
    lines = {(line["graph"], line["model"], line["rows"]): line for line in summary.to_dict("records")}
    first = summary["model"].iloc[0]
    columns = [m.main for m in measures.values() if m.ratio and m.main in summary]
    found: Metrics = {}
    for (graph, model, rows), line in lines.items():
        if model != first:
            main, key = lines[graph, first, rows], "/".join(str(line[name]) for name in by)
            found |= {f"{column}_ratio/{key}": float(main[column] / line[column]) for column in columns}
            found[f"speed_ratio/{key}"] = float(line["cpu_seconds"] / main["cpu_seconds"])
    return found


def described(summary: pd.DataFrame, table: pd.DataFrame, measures: Mapping[str, Measure]) -> str:
    """A line for each measure, graph and number of rows, a column for each model; then warnings and refusals."""
    errors = [c for c in map(str, summary) if c.endswith("_standard_error")]
    mains = {m.main for m in measures.values()}
    lines = []
    for (graph, rows), part in summary.groupby(["graph", "rows"], sort=False):
        for column in [c for c in summary if c not in (*BY, *errors, "fit_seconds")]:
            cells = {}
            for line in part.to_dict("records"):
                error = line.get(f"{column}_standard_error", float("nan"))
                spread = f" ± {error:.1g}" if column in mains and error == error else ""
                cells[line["model"]] = f"{line[column]:.4g}{spread}" if line[column] == line[column] else "–"
            lines.append({"graph": graph, "rows": rows, "measure": column, **cells})
    text = [pd.DataFrame(lines).fillna("–").to_string(index=False)]
    for column in ("warnings", "refusal"):
        noted = table[table[column] != ""]
        for (model, note), part in noted.groupby(["model", column], sort=False):
            text.append(f"{model}, {len(part)} of {int((table['model'] == model).sum())} fits: {note}")
    return "\n".join(text)
