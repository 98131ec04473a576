"""Posteriors of all variables, each row with its own evidence: exact inference, and fitted PBP models.

torchpbp processes a batch of rows at once; the others process one row after the other, so their rate is independent of the batch.
"""

from __future__ import annotations

from benchmarks.networks import SHOWN, draw_evidence, example_network, loopy_eight, network_of, tables_of
from benchmarks.other_libraries.with_pgmpy import pgmpy_queries
from benchmarks.other_libraries.with_pyagrum import pyagrum_queries
from benchmarks.runner import Comparison, Runner, agree
from benchmarks.this_library import exact_queries, pbp_queries
from benchmarks.work import Array, Implementation, Tables
from torchpbp import DiscreteNetwork, templates

OURS, SHAFER, LAZY, PGMPY = "torchpbp", "pyAgrum Shafer-Shenoy", "pyAgrum lazy", "pgmpy VE"
REAL = ("child", "insurance", "alarm")
SINGLES = 20
TOLERANCE = 1e-9
Evidence = dict[str, Array]


def run(runner: Runner) -> None:
    """All networks, all batches."""
    networks = {"loop of 8": tables_of(DiscreteNetwork.random(loopy_eight(), seed=1))}
    if runner.installed("pgmpy"):
        networks |= {name: example_network(name) for name in runner.choose(REAL, ())}
    for name, network in networks.items():
        if runner.wanted(name):
            _all_posteriors(runner, name, network)
            _single(runner, name, network)
    if runner.wanted("diamond"):
        _fitted(runner)
    runner.report.notes.append(
        f"Rows are drawn from the network and observe each variable with probability {SHOWN}. Posteriors agree to {TOLERANCE:g}."
    )


def _all_posteriors(runner: Runner, name: str, network: Tables) -> None:
    """Rows per second by batch size; with other libraries, which process few rows, at one size."""
    batches, few = _batches(runner), runner.choose(1_000, 10)
    compared = batches[runner.choose(3, 1)]
    evidence = draw_evidence(network_of(network), max(batches))
    panel = runner.report.panel(f"{name}: posteriors of all variables", "rows in a batch", "rows per second")
    for batch in batches:
        rows = {OURS: batch}
        implementations = [Implementation(OURS, exact_queries, _query(network, evidence, batch))]
        if batch == compared:
            rows |= {SHAFER: min(few, batch), LAZY: min(few, batch), PGMPY: min(few // 10, batch)}
            lazy = _query(network, evidence, rows[LAZY]) | {"engine": "LazyPropagation"}
            implementations += [
                Implementation(SHAFER, pyagrum_queries, _query(network, evidence, rows[SHAFER])),
                Implementation(LAZY, pyagrum_queries, lazy),
                Implementation(PGMPY, pgmpy_queries, _query(network, evidence, rows[PGMPY])),
            ]
        title = f"{name}, all posteriors, batch {batch:,}"
        comparison = runner.compare(title, implementations, agree(TOLERANCE), show=False)
        rates = _add_rates(runner, comparison, name, batch, rows)
        panel.add(OURS, batch, rates.get(OURS))
        for label in (SHAFER, LAZY, PGMPY):
            for x in (batches[0], batches[-1]):
                panel.add(label, x, rates.get(label))
        if batch == compared and name == "alarm":
            ratio = rates[OURS] / rates[SHAFER] if {OURS, SHAFER} <= rates.keys() else None
            runner.report.claim(f"ALARM, batch {batch:,}: rows per second over those of {SHAFER}", ratio, at_least=150)
        if OURS in comparison.bounds:
            return  # larger batches take longer


def _single(runner: Runner, name: str, network: Tables) -> None:
    """One variable, row by row, with different evidence, since some engines cache results of equal queries."""
    arguments = _single_query(network_of(network)) | {"network": network}
    implementations = [
        Implementation(OURS, exact_queries, arguments),
        Implementation(PGMPY, pgmpy_queries, arguments),
        Implementation(SHAFER, pyagrum_queries, arguments),
        Implementation(LAZY, pyagrum_queries, arguments | {"engine": "LazyPropagation"}),
    ]
    title = f"{name}, one variable, {SINGLES} rows one by one"
    comparison = runner.compare(title, implementations, agree(TOLERANCE))
    runner.report.claim(f"{title}: time over pgmpy's", comparison.ratio(OURS, PGMPY), at_most=1.0)


def _fitted(runner: Runner) -> None:
    """A PBP model of the diamond: rows per second on one and on two threads, and the latency of one query."""
    truth = DiscreteNetwork.random(templates.diamond(), seed=1)
    network, batches = tables_of(truth), _batches(runner)
    fit = {"latent": tuple(truth.graph.latent), "rows": runner.choose(20_000, 500)}
    evidence = draw_evidence(truth, max(batches))
    panel = runner.report.panel("diamond: all posteriors of fitted PBP", "rows in a batch", "rows per second")
    one, two = "PBP", "PBP, 2 threads"
    for batch in batches:
        arguments = _query(network, evidence, batch) | fit
        implementations = [Implementation(one, pbp_queries, arguments)]
        if not runner.options.tiny:
            implementations.append(Implementation(two, pbp_queries, arguments, threads=2))
        title = f"diamond, fitted PBP, all posteriors, batch {batch:,}"
        comparison = runner.compare(title, implementations, agree(TOLERANCE), show=False)
        rates = _add_rates(runner, comparison, "diamond", batch, dict.fromkeys((one, two), batch))
        for label, rate in rates.items():
            panel.add(label, batch, rate)
        if batch == 10_000:
            fastest = max(rates.values(), default=None)
            runner.report.claim("diamond, PBP, batch 10,000: rows per second", fastest, at_least=200_000)
    title = f"diamond, fitted PBP, one variable, {SINGLES} rows one by one"
    arguments = _single_query(truth) | {"network": network} | fit
    seconds = runner.compare(title, [Implementation(one, pbp_queries, arguments)]).seconds(one)
    latency = None if seconds is None else 1e3 * seconds / SINGLES
    runner.report.claim("diamond, PBP, one query: milliseconds", latency, at_most=3.0)


def _batches(runner: Runner) -> list[int]:
    return runner.choose([1, 10, 100, 1_000, 10_000, 100_000], [1, 20])


def _query(network: Tables, evidence: Evidence, rows: int) -> dict[str, object]:
    return {"network": network, "evidence": {v: x[:rows] for v, x in evidence.items()}}


def _single_query(network: DiscreteNetwork) -> dict[str, object]:
    """The last observable, and rows that observe others."""
    evidence = draw_evidence(network, SINGLES)
    query = next(reversed(evidence))
    return {"query": query, "evidence": {v: x for v, x in evidence.items() if v != query}}


def _add_rates(runner: Runner, comparison: Comparison, name: str, batch: int, rows: dict[str, int]) -> dict[str, float]:
    """Rows per second, which are added to the table."""
    seconds = {label: comparison.seconds(label) for label in rows}
    rates = {label: rows[label] / time for label, time in seconds.items() if time}
    for label, rate in rates.items():
        row = {"network": name, "batch": batch, "library": label, "rows per second": rate}
        runner.report.add("posteriors of all variables", **row)
    return rates
