"""Discrete hidden Markov models by hmmlearn, pomegranate, EM and PBP: held-out likelihood and training time.

hmmlearn and pomegranate share one step table and one emission table among all sites. torchpbp's models have separate
tables for each site, many more parameters to learn from the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.networks import arrays, network_of, tables_of, tensors
from benchmarks.other_libraries.hidden_markov import Parameters, hmmlearn_em, pomegranate_em
from benchmarks.runner import Runner, agree
from benchmarks.this_library import em_fit, pbp_fit
from benchmarks.work import Answer, Array, Implementation, Tables, first_step
from torchpbp import DiscreteNetwork, templates

SITES, STATES, SYMBOLS = 8, 4, 6
SINGLE_PRECISION = 1e-4
"""pomegranate computes in float32."""


def run(runner: Runner) -> None:
    """All four from the same rows; all EM implementations from the same start, with the same number of iterations."""
    rows, iterations = runner.choose(5_000, 200), runner.choose(20, 2)
    truth, initial = homogeneous(draw_parameters(seed=1)), draw_parameters(seed=4)
    train, held_out = (arrays(truth.sample(rows, seed=seed)) for seed in (2, 3))
    start, latent = tables_of(homogeneous(initial)), tuple(truth.graph.latent)
    learned = {"network": tables_of(truth), "latent": latent, "data": train}
    settings = {"restarts": 1, "max_steps": iterations, "relative_tolerance": 0.0, "prior": 0.0, "start": start}
    sequences = np.stack([train[v] for v in truth.graph.observed], axis=1)
    theirs = {"initial": initial, "sequences": sequences, "iterations": iterations}
    implementations = [
        Implementation("PBP", pbp_fit, learned | {"held_out": held_out}),
        Implementation("EM", em_fit, learned | settings),
        Implementation("pomegranate", pomegranate_em, theirs),
        Implementation("hmmlearn", hmmlearn_em, theirs),
    ]
    title = f"discrete HMM, {rows:,} x {SITES}, {STATES} states, {SYMBOLS} symbols, {iterations} EM iterations"
    comparison = runner.compare(title, implementations, same_first_step)
    panel = runner.report.panel("held-out log-likelihood below the truth's", "seconds to train", "nats per sequence")
    best = float(truth.log_evidence(tensors(held_out)).mean())
    learners = f"held-out log-likelihood per sequence (truth: {best:.4f})"
    for label, answer in comparison.answers.items():
        likelihood = mean_log_likelihood(answer, start, latent, held_out)
        seconds = comparison.seconds(label)
        panel.add(label, seconds or 0.0, best - likelihood)
        runner.report.add(learners, learner=label, seconds=seconds, likelihood=round(likelihood, 4))


def same_first_step(answers: Mapping[str, Answer]) -> None:
    """Check the first iteration of all EM implementations. Of torchpbp's tables, that of the first state is comparable."""
    (first,) = first_step({"h1": 0})
    shared = dict(zip(first_step({"start": 0, "step": 0, "emission": 0}), (first, None, None), strict=True))
    once = {
        label: {
            name: answer.get(name, answer.get(other)) for name, other in shared.items() if {name, other} & {*answer}
        }
        for label, answer in reversed(answers.items())
        if label != "PBP"
    }
    if once:
        agree(SINGLE_PRECISION)(once)


def draw_parameters(seed: int) -> Parameters:
    """Random tables; states tend to stay, and each prefers some symbols."""
    rng = np.random.default_rng(seed)
    step = rng.dirichlet(np.ones(STATES), STATES) + 2 * np.eye(STATES)
    emission = rng.dirichlet(np.full(SYMBOLS, 0.5), STATES) + 0.02
    start = rng.dirichlet(np.full(STATES, 5.0))
    return Parameters(start, step / step.sum(axis=1, keepdims=True), emission / emission.sum(axis=1, keepdims=True))


def homogeneous(parameters: Parameters) -> DiscreteNetwork:
    """A hidden Markov model with the same tables at each site."""
    cpts = {"h1": parameters.start} | {f"h{t}": parameters.step for t in range(2, SITES + 1)}
    emissions = {f"x{t}": parameters.emission for t in range(1, SITES + 1)}
    return DiscreteNetwork(templates.hmm(SITES, STATES, SYMBOLS), cpts | emissions)


def mean_log_likelihood(answer: Answer, start: Tables, latent: tuple[str, ...], rows: dict[str, Array]) -> float:
    """Nats per sequence, computed from an implementation's tables by exact inference."""
    if "log_likelihood" in answer:
        return float(answer["log_likelihood"].mean())
    if "step" in answer:
        network = homogeneous(Parameters(answer["start"], answer["step"], answer["emission"]))
    else:
        network = network_of(Tables(start.states, start.parents, {v: answer[v] for v in start.states}), latent)
    return float(network.log_evidence(tensors(rows)).mean())
