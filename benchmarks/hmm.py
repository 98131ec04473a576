"""Discrete hidden Markov models by hmmlearn, pomegranate, EM and PBP: held-out likelihood and training time.

hmmlearn and pomegranate share one step table and one emission table among all sites. torchpbp's models have separate
tables for each site, many more parameters to learn from the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.implementation import Answer, Array, Tables
from benchmarks.other_libraries.hidden_markov import Hmmlearn, Parameters, Pomegranate
from benchmarks.report import Panel, Report
from benchmarks.side_by_side import RunOptions, agree, time_side_by_side
from benchmarks.this_library import HmmEM, HmmPBP, network_of, tables_of, tensors
from torchpbp import DiscreteNetwork, templates
from torchpbp.errors import DataError

SITES, STATES, SYMBOLS = 8, 4, 6
ITERATIONS = 20
HMMLEARN, POMEGRANATE, EM_LABEL, PBP_LABEL = "hmmlearn", "pomegranate", "EM", "PBP"
SINGLE_PRECISION = 1e-4
"""pomegranate computes in float32."""


def run(settings: RunOptions) -> Report:
    """All four from the same rows; EM from the same start, the same number of iterations."""
    report = Report("hmm")
    rows = settings.choose(5_000, 5_000, 200)
    truth = homogeneous(draw_parameters(seed=1))
    names = truth.graph.observed
    train, held_out = ({v: x.numpy() for v, x in truth.sample(rows, seed=s).items()} for s in (2, 3))
    initial = draw_parameters(seed=4)
    sequences = np.stack([train[v] for v in names], axis=1)
    start, latent = tables_of(homogeneous(initial)), tuple(truth.graph.latent)
    iterations = settings.choose(ITERATIONS, ITERATIONS, 2)
    steps = {"restarts": 1, "iterations": iterations, "tolerance": 0.0, "prior": 0.0}
    title = f"discrete HMM, {rows:,} x {SITES}, {STATES} states, {SYMBOLS} symbols, {iterations} EM iterations"
    implementations = [
        HmmPBP(PBP_LABEL, tables_of(truth), latent, train, (), held_out),
        HmmEM(EM_LABEL, tables_of(truth), latent, train, steps, start),
        Pomegranate(POMEGRANATE, initial, sequences, iterations),
        Hmmlearn(HMMLEARN, initial, sequences, iterations),
    ]
    outcome = time_side_by_side(settings, implementations, title, same_first_step)
    report.add(outcome, title)
    panel = Panel("held-out log-likelihood short of the truth's", "seconds to train", "nats per sequence")
    report.panels.append(panel)
    best = float(truth.log_evidence(tensors(held_out)).mean())
    report.notes.append(f"Held-out log-likelihood per sequence: the truth {best:.4f}")
    for label, answer in outcome.answers.items():
        likelihood = mean_log_likelihood(answer, start, latent, held_out)
        seconds = outcome.seconds(label)
        panel.add(label, seconds or 0.0, best - likelihood)
        report.records.append({"who": label, "seconds": seconds, "log_likelihood": likelihood, "truth": best})
        report.notes.append(f"{label}: {likelihood:.4f}, {seconds:.3g} s")
    return report


def same_first_step(answers: Mapping[str, Answer]) -> None:
    """Check the first iteration of all EM implementations, and PBP's likelihood."""
    likelihood = answers.get(PBP_LABEL, {}).get("log_likelihood")
    if likelihood is not None and not (np.isfinite(likelihood).all() and (likelihood < 0).all()):
        raise DataError("PBP: expected finite log-likelihoods below 0, got others. Nothing was timed.")
    stepping = {label: answer for label, answer in answers.items() if label != PBP_LABEL}
    shared = {
        label: {name: values for name, values in answer.items() if name.endswith("after one iteration")}
        for label, answer in stepping.items()
    }
    if shared:
        agree(SINGLE_PRECISION)(shared)


def draw_parameters(seed: int) -> Parameters:
    """Random tables; states tend to stay, and each prefers some symbols."""
    rng = np.random.default_rng(seed)
    step = rng.dirichlet(np.ones(STATES), STATES) + 2 * np.eye(STATES)
    emission = rng.dirichlet(np.full(SYMBOLS, 0.5), STATES) + 0.02
    return Parameters(
        rng.dirichlet(np.full(STATES, 5.0)),
        step / step.sum(axis=1, keepdims=True),
        emission / emission.sum(axis=1, keepdims=True),
    )


def homogeneous(parameters: Parameters, sites: int = SITES) -> DiscreteNetwork:
    """A hidden Markov model with the same tables at each site."""
    graph = templates.hmm(sites, *parameters.emission.shape)
    cpts = {f"h{t}": parameters.step for t in range(2, sites + 1)} | {"h1": parameters.start}
    return DiscreteNetwork(graph, cpts | {f"x{t}": parameters.emission for t in range(1, sites + 1)})


def mean_log_likelihood(answer: Answer, start: Tables, latent: tuple[str, ...], rows: dict[str, Array]) -> float:
    """Nats per sequence, computed from an implementation's tables by the exact engine."""
    if "log_likelihood" in answer:
        return float(answer["log_likelihood"].mean())
    if "step" in answer:
        network = homogeneous(Parameters(answer["start"], answer["step"], answer["emission"]))
    else:
        network = network_of(Tables(start.states, start.parents, {v: answer[v] for v in start.states}), latent)
    return float(network.log_evidence(tensors(rows)).mean())
