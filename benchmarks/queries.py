"""Posteriors of all variables, each row with its own evidence: exact inference, and fitted PBP models.

torchpbp processes a batch of rows at once; the others process one row after the other, so their rate is independent of the batch.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.em import loopy_eight
from benchmarks.implementation import Array, Tables
from benchmarks.other_libraries.with_pgmpy import PgmpyQueries
from benchmarks.other_libraries.with_pyagrum import PyagrumQueries
from benchmarks.report import Claim, Panel, Report
from benchmarks.side_by_side import Outcome, RunOptions, agree, installed, missing, time_side_by_side
from benchmarks.this_library import ExactQueries, PBPQueries, network_of, tables_of
from torchpbp import DiscreteNetwork, templates

ExactInference = ExactQueries | PyagrumQueries | PgmpyQueries
SHOWN = 0.3
"""Share of variables that a row observes."""
OURS, SHAFER, LAZY, PGMPY = "torchpbp", "pyAgrum Shafer-Shenoy", "pyAgrum lazy", "pgmpy VE"
LOOP, REAL = "loop of 8", ("child", "insurance", "alarm")
DIAMOND_BATCH, SINGLES = 10_000, 20
TOLERANCE = 1e-9


def run(settings: RunOptions) -> Report:
    """All networks, all batches."""
    report = Report("queries")
    networks = {LOOP: tables_of(DiscreteNetwork.random(loopy_eight(), seed=1))}
    if settings.size != "tiny":
        networks |= example_networks(report, ("alarm",) if settings.size == "quick" else REAL)
    for name, network in networks.items():
        _all_posteriors(settings, report, name, network)
        _single(settings, report, name, network)
    _fitted(settings, report)
    report.notes.append(
        f"Rows are sampled from the network and observe each variable with probability {SHOWN}. Posteriors agree to {TOLERANCE:g}."
    )
    return report


def example_networks(report: Report, names: tuple[str, ...]) -> dict[str, Tables]:
    """Networks of the bnlearn repository, included in pgmpy."""
    spec = find_spec("pgmpy") if installed("pgmpy") else None
    if spec is None or not spec.submodule_search_locations:
        report.left_out.update({f"{name} (its file comes with pgmpy)": missing("pgmpy") for name in names})
        return {}
    folder = Path(spec.submodule_search_locations[0]) / "utils" / "example_models"
    return {name: tables_of(DiscreteNetwork.from_bif(folder / f"{name}.bif.gz")) for name in names}


def draw_evidence(network: DiscreteNetwork, rows: int, seed: int = 0) -> dict[str, Array]:
    """name -> (rows,) states of observables, -1 where a row does not observe them; at least one is unobserved."""
    rng = np.random.default_rng(seed)
    drawn = draw_forward(tables_of(network), rows, rng)
    shown = rng.random((len(network.graph.observed), rows)) < SHOWN
    shown[0] &= ~shown.all(axis=0)
    return {v: np.where(s, drawn[v], -1) for v, s in zip(network.graph.observed, shown, strict=True)}


def draw_forward(network: Tables, rows: int, rng: np.random.Generator) -> dict[str, Array]:
    """name -> (rows,) states, each variable sampled given its parents: memory is independent of the clique sizes."""
    drawn: dict[str, Array] = {}
    while len(drawn) < len(network.states):
        for v, parents in network.parents.items():
            if v not in drawn and all(p in drawn for p in parents):
                cumulative = network.cpts[v].cumsum(axis=-1)[tuple(drawn[p] for p in parents)]
                uniform = rng.random((rows, 1))
                drawn[v] = (uniform * cumulative[..., -1:] >= cumulative).sum(axis=-1)
    return drawn


def _all_posteriors(settings: RunOptions, report: Report, name: str, network: Tables) -> None:
    batches = settings.choose([1, 10, 100, 1_000, 10_000, 100_000], [1, 1_000, 10_000], [1, 20])
    few = settings.choose(1_000, 100, 10)  # rows for the others, which process them one by one
    evidence = draw_evidence(network_of(network), max(batches))
    panel = Panel(f"{name}: posteriors of all variables", "rows in a batch", "rows per second")
    report.panels.append(panel)
    for place, batch in enumerate(batches):
        title = f"{name}, all posteriors, batch {batch:,}"
        implementations: list[ExactInference] = [ExactQueries(OURS, network, _first(evidence, batch))]
        main = batch == batches[1 if settings.size != "full" else 3]
        if main:
            theirs = _first(evidence, min(few, batch))
            implementations += [
                PyagrumQueries(SHAFER, network, theirs),
                PyagrumQueries(LAZY, network, theirs, "LazyPropagation"),
                PgmpyQueries(PGMPY, network, _first(evidence, min(few // 10, batch))),
            ]
        outcome = time_side_by_side(settings, implementations, title, agree(TOLERANCE))
        report.left_out.update({f"{title}: {label}": why for label, why in outcome.left_out.items()})
        rates = _rates(outcome, {c.label: len(next(iter(c.evidence.values()))) for c in implementations})
        panel.add(OURS, batch, rates.get(OURS))
        report.records += [{"network": name, "batch": batch, "who": k, "rows_per_second": r} for k, r in rates.items()]
        for label in (SHAFER, LAZY, PGMPY):
            for x in (batches[0], batches[-1]):
                panel.add(label, x, rates.get(label))
        if OURS in outcome.too_slow:
            report.left_out.update(
                {f"{name}, batch {b:,}: {OURS}": "too slow with smaller batches" for b in batches[place + 1 :]}
            )
            break
        if main and name == "alarm":
            other = rates.get(SHAFER)
            report.claims.append(
                Claim(
                    f"ALARM, batch {batch:,}: rows per second over those of {SHAFER}",
                    rates[OURS] / other if other else None,
                    at_least=150,
                )
            )
        if main:
            shown = ", ".join(f"{label} {rate:,.0f}" for label, rate in rates.items())
            report.notes.append(f"{title}, rows per second: {shown}")


def _single(settings: RunOptions, report: Report, name: str, network: Tables) -> None:
    """One variable, row by row, with different evidence, since some engines cache results of equal queries."""
    query, evidence = single_evidence(network_of(network))
    title = f"{name}, one variable, {SINGLES} rows one by one"
    implementations = [
        ExactQueries(OURS, network, evidence, query),
        PgmpyQueries(PGMPY, network, evidence, query),
        PyagrumQueries(SHAFER, network, evidence, query=query),
        PyagrumQueries(LAZY, network, evidence, "LazyPropagation", query),
    ]
    outcome = time_side_by_side(settings, implementations, title, agree(TOLERANCE))
    report.add(outcome, title)
    report.claims.append(Claim(f"{title}: time over pgmpy's", outcome.times(OURS, PGMPY), at_most=1.0))


def single_evidence(network: DiscreteNetwork) -> tuple[str, dict[str, Array]]:
    """A query variable, and rows that observe others."""
    evidence = draw_evidence(network, SINGLES)
    return next(reversed(evidence)), dict(list(evidence.items())[:-1])


def _fitted(settings: RunOptions, report: Report) -> None:
    """A PBP model of the diamond: rows per second on one and on two threads, and the latency of one query."""
    truth = DiscreteNetwork.random(templates.diamond(), seed=1)
    latent = tuple(truth.graph.latent)
    tables = tables_of(truth)
    batches = settings.choose([1, 10, 100, 1_000, 10_000, 100_000], [1, 1_000, 10_000], [1, 20])
    evidence = draw_evidence(truth, max(batches))
    panel = Panel("diamond: all posteriors of fitted PBP", "rows in a batch", "rows per second")
    report.panels.append(panel)
    rows = settings.choose(20_000, 20_000, 500)
    one, two = "PBP", "PBP, 2 threads"
    for batch in batches:
        title = f"diamond, fitted PBP, all posteriors, batch {batch:,}"
        part = _first(evidence, batch)
        implementations = [PBPQueries(one, tables, latent, part, rows=rows)]
        if settings.size == "full":
            implementations.append(PBPQueries(two, tables, latent, part, rows=rows, threads=2))
        outcome = time_side_by_side(settings, implementations, title, agree(TOLERANCE))
        rates = _rates(outcome, dict.fromkeys([one, two], batch))
        for label, rate in rates.items():
            panel.add(label, batch, rate)
            report.records.append({"network": "diamond", "batch": batch, "who": label, "rows_per_second": rate})
        if batch == DIAMOND_BATCH:
            fastest = max(rates.values(), default=None)
            note = ", ".join(f"{label} {rate:,.0f}" for label, rate in rates.items())
            report.claims.append(Claim("diamond, PBP, batch 10,000: rows per second", fastest, 200_000, note=note))
    query, part = single_evidence(truth)
    title = f"diamond, fitted PBP, one variable, {SINGLES} rows one by one"
    outcome = time_side_by_side(settings, [PBPQueries("PBP", tables, latent, part, query, rows)], title)
    report.add(outcome, title)
    seconds = outcome.seconds("PBP")
    latency = None if seconds is None else 1e3 * seconds / SINGLES
    report.claims.append(Claim("diamond, PBP, one query: milliseconds", latency, at_most=3.0))


def _rates(outcome: Outcome, rows: dict[str, int]) -> dict[str, float]:
    """Rows per second."""
    seconds = {label: outcome.seconds(label) for label in rows}
    return {label: rows[label] / time for label, time in seconds.items() if time}


def _first(evidence: dict[str, Array], rows: int) -> dict[str, Array]:
    return {v: x[:rows] for v, x in evidence.items()}
