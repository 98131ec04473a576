"""torchpbp's ways to do the work that other libraries do too. Without matplotlib and Lightning, which are slow to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.networks import graph_of, network_of, posterior_arrays, tensors
from benchmarks.other_libraries.classifiers import classification
from benchmarks.work import Answer, Array, Tables, Work, evidence_rows, first_step
from torchpbp import EM, PBP, GenerativeClassifier, KernelPBP, Nystroem, templates

Questions = tuple[tuple[str, dict[str, Array]], ...]
"""Pairs of a variable and evidence about others."""


def answers_to(model: Any, questions: Questions) -> Answer:
    """Posteriors as "question i" -> (rows, states)."""
    with torch.no_grad():
        given = [model.posterior(query, tensors(evidence)).numpy() for query, evidence in questions]
    return {f"question {i}": posterior for i, posterior in enumerate(given)}


def pbp_fit(
    network: Tables,
    latent: tuple[str, ...],
    data: dict[str, Array],
    questions: Questions = (),
    held_out: Mapping[str, Array] | None = None,
) -> Work:
    """Construction and fit; the answer are posteriors, and the log-likelihood of held-out rows."""
    graph, columns = graph_of(network, latent), tensors(data)

    def answer(model: PBP) -> Answer:
        with torch.no_grad():
            scores = {"log_likelihood": model.log_evidence(tensors(held_out)).numpy()} if held_out else {}
        return answers_to(model, questions) | scores

    return Work(lambda: PBP(graph).fit(columns), answer)


def counting_alone(network: Tables, latent: tuple[str, ...], data: dict[str, Array]) -> Work:
    """The plain way to count: one mixed-radix code and one ``bincount`` for each table that PBP learns from."""
    graph, columns = graph_of(network, latent), tensors(data)
    scopes = PBP(graph).count({v: x[:1] for v, x in columns.items()}).to_dict()["scopes"]

    def run() -> list[torch.Tensor]:
        tables = []
        for first, *others in scopes:
            code, cells = columns[first], graph.num_states(first)
            for v in others:
                code = code * graph.num_states(v) + columns[v]
                cells *= graph.num_states(v)
            tables.append(torch.bincount(code, minlength=cells))
        return tables

    return Work(run, lambda tables: {"rows": np.array([int(table.sum()) for table in tables])})


def em_fit(
    network: Tables,
    latent: tuple[str, ...],
    data: dict[str, Array],
    start: Tables | None = None,
    questions: Questions = (),
    **settings: Any,
) -> Work:
    """EM from random starts or from given tables; the answer are its tables, those after one iteration, and posteriors.

    Args:
        network: whose graph is learned.
        latent: its hidden variables.
        data: training rows.
        start: tables of the first start.
        questions: to be answered.
        settings: of :class:`torchpbp.EM`.
    """
    graph, columns = graph_of(network, latent), tensors(data)
    first = None if start is None else network_of(start, latent)

    def run(**changed: Any) -> EM:
        return EM(graph, start=first, progress=False, **settings | changed).fit(columns)

    def answer(model: EM) -> Answer:
        tables = {v: t.numpy() for v, t in model.network.cpts.items()}
        steps = {"iterations": np.array([len(run.objective) for run in model.runs])}
        once = first_step(run(max_steps=1).match_states(first).network.cpts) if first is not None else {}
        return tables | once | steps | answers_to(model, questions)

    return Work(run, answer)


def exact_queries(network: Tables, evidence: dict[str, Array], query: str | None = None) -> Work:
    """Exact posteriors: of all variables that some row does not observe, for all rows at once; or of one, row by row."""
    return _queries(network_of(network), evidence, query)


def pbp_queries(
    network: Tables, latent: tuple[str, ...], evidence: dict[str, Array], query: str | None = None, rows: int = 20_000
) -> Work:
    """The same by a model fitted to rows drawn from the network."""
    truth = network_of(network, latent)
    return _queries(PBP(truth.graph).fit(truth.sample(rows, seed=1)), evidence, query)


def _queries(model: Any, evidence: dict[str, Array], query: str | None) -> Work:
    batch, rows = tensors(evidence), list(evidence_rows(evidence))

    @torch.no_grad()
    def run() -> dict[str, torch.Tensor]:
        if query is None:
            return model.posteriors(batch)
        return {query: torch.cat([model.posterior(query, row) for row in rows])}

    return Work(run, lambda result: posterior_arrays(result, evidence))


def kernel_chains(**rows: Any) -> Work:
    """Pen digits by a kernel model of a hidden chain for each class."""
    options: dict[str, Any] = {"core_leaves": 2, "instrument_leaves": 2, "ridge": (0.1, 0.1), "root": ["h1"]}
    chain = KernelPBP(templates.pen_strokes(), bandwidth=20.0, evidence_bandwidth=7.0, **options)
    return classification(lambda: GenerativeClassifier(learner=chain), **rows)


def ten_features(**rows: Any) -> Work:
    """Pen digits by a PBP model with ten kernel features per coordinate for each class."""
    features = Nystroem(size=10, bandwidth=14.0, landmarks="grid")
    options: dict[str, Any] = {"rank": 30, "ridge": (1.0, 1.0), "whitening": 0.01, "singles": 2, "root": ["h1"]}
    chain = PBP(templates.pen_strokes(), features=features, **options)
    return classification(lambda: GenerativeClassifier(learner=chain), **rows)
