"""Training to equal error: PBP, EM run to convergence, and EM of pgmpy and pyAgrum.

The error is KL(exact ‖ learned) of P(one observable | three others), the unweighted mean over random queries and over
the values of their evidence. The other libraries' EM makes the same steps as torchpbp's, which is checked first; where it is
too slow to be run to convergence, its time is that of one iteration times torchpbp's number of iterations.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.networks import arrays, loopy_eight, network_of, tables_of, tensors
from benchmarks.other_libraries.with_pgmpy import pgmpy_em
from benchmarks.other_libraries.with_pyagrum import pyagrum_em
from benchmarks.runner import Check, Comparison, Runner, WrongAnswer, agree
from benchmarks.this_library import Questions, counting_alone, em_fit, pbp_fit
from benchmarks.work import Answer, Array, Implementation, Tables, first_step
from torchpbp import DiscreteNetwork, templates

RESTARTS, TIGHT, LOOSE = 10, 1e-7, 1e-4
PBP, EM, EM_LOOSE = "PBP", f"EM, {TIGHT:g}", f"EM, {LOOSE:g}"
PGMPY, PYAGRUM, STEPPING = "pgmpy EM", "pyAgrum EM", "torchpbp EM"
STEPS = 2
"""EM iterations from one start in the comparison of libraries."""
MANY = 100_000
"""Rows of the targets; with more, EM is run with the loose tolerance only."""


@dataclass(frozen=True)
class Problem:
    """A network to be learned, and queries with their exact posteriors."""

    name: str
    network: DiscreteNetwork
    questions: Questions
    exact: tuple[torch.Tensor, ...]

    def arguments(self, rows: int) -> dict[str, object]:
        """Of a learner."""
        data = arrays(self.network.sample(rows, seed=2))
        return {"network": tables_of(self.network), "latent": tuple(self.network.graph.latent), "data": data}

    def kl(self, answer: Answer) -> float:
        """Mean KL of a learner's posteriors, in nats."""
        learned = [torch.from_numpy(answer[f"question {i}"]).to(exact) for i, exact in enumerate(self.exact)]
        pairs = zip(self.exact, learned, strict=True)
        return float(np.mean([float((torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1).mean()) for p, q in pairs]))


def problem(name: str, network: DiscreteNetwork, queries: int = 12) -> Problem:
    """Draw queries, each about one observable given all values of three others."""
    draw, questions = random.Random(0), []
    for _ in range(queries):
        query, *others = draw.sample(list(network.graph.observed), 4)
        values = np.array(list(itertools.product(*(range(network.states[v]) for v in others))))
        questions.append((query, dict(zip(others, values.T, strict=True))))
    exact = tuple(network.posterior(query, tensors(evidence)) for query, evidence in questions)
    return Problem(name, network, tuple(questions), exact)


def run(runner: Runner) -> None:
    """Both networks at all sizes."""
    for name, graph in {"loop of 8": loopy_eight(), "diamond": templates.diamond()}.items():
        if runner.wanted(name):
            _learn(runner, problem(name, DiscreteNetwork.random(graph, seed=1)))
    if runner.wanted("counting"):
        _counting(runner, problem("diamond", DiscreteNetwork.random(templates.diamond(), seed=1)))
    runner.report.notes.append(
        f"EM: {RESTARTS} starts in one batch, distinct rows only, until the objective changes by less than {TIGHT:g} (or {LOOSE:g}) "
        f"of itself. Times of {PGMPY} and {PYAGRUM}: those of {STEPS} iterations / {STEPS} x the iterations of all starts of {EM}; "
        f"where {STEPS} iterations exceeded the time limit, a lower bound."
    )


def _learn(runner: Runner, given: Problem) -> None:
    report = runner.report
    times = report.panel(f"{given.name}: training", "rows", "seconds")
    errors = report.panel(f"{given.name}: error", "rows", "KL, nats")
    both = report.panel(f"{given.name}: error by time", "seconds", "KL, nats")
    slow: dict[str, float] = {}
    iterations = 0
    for rows in runner.choose([1_000, 10_000, MANY, 1_000_000], [300]):
        learned = _to_convergence(runner, given, rows)
        if EM in learned.answers:
            iterations = int(learned.answers[EM]["iterations"].sum())
        stepped = _steps(runner, given, rows, slow)
        slow |= stepped.bounds
        totals = {}
        for label in (PGMPY, PYAGRUM):
            seconds = slow.get(label) or stepped.seconds(label)
            if seconds and iterations:
                totals[label] = seconds / STEPS * iterations
                times.add(label, rows, totals[label])
                times.dashed.add(label)
                kind = "at least" if label in slow else "extrapolated"
                report.add("learners", network=given.name, rows=rows, learner=label, seconds=totals[label], kind=kind)
        kls = {label: given.kl(answer) for label, answer in learned.answers.items()}
        for label, kl in kls.items():
            seconds = learned.seconds(label)
            report.add(
                "learners", network=given.name, rows=rows, learner=label, seconds=seconds, kind="measured", KL=kl
            )
            times.add(label, rows, seconds)
            errors.add(label, rows, kl)
            both.add(label, seconds or 0.0, kl)
        if given.name == "diamond" and rows == MANY:
            where, fit = f"diamond, {MANY:,} rows", learned.seconds(PBP)
            ratio = kls[PBP] / kls[EM] if PBP in kls and EM in kls else None
            report.claim(f"{where}: KL of PBP over EM's", ratio, at_most=1.5)
            report.claim(f"{where}: time of {EM} over PBP's", learned.ratio(EM, PBP), at_least=100)
            theirs = totals[PGMPY] / fit if fit and PGMPY in totals else None
            note = "a lower bound" if PGMPY in slow else "extrapolated"
            report.claim(f"{where}: time of pgmpy's EM over PBP's", theirs, at_least=1_000, note=note)


def _to_convergence(runner: Runner, given: Problem, rows: int) -> Comparison:
    common = given.arguments(rows) | {"questions": given.questions}
    settings = common | {"restarts": RESTARTS, "max_steps": runner.choose(5_000, 20)}
    learners = [
        Implementation(PBP, pbp_fit, common),
        Implementation(EM_LOOSE, em_fit, settings | {"relative_tolerance": LOOSE}),
        Implementation(EM, em_fit, settings | {"relative_tolerance": TIGHT}),
    ]
    limit = runner.options.limit * runner.choose(10, 1)
    title = f"{given.name}, {rows:,} rows: from data to model"
    return runner.compare(title, learners[: 3 if rows <= MANY else 2], proper, limit=limit)


def proper(answers: Mapping[str, Answer]) -> None:
    """Check that learners return distributions."""
    for label, answer in answers.items():
        for name, values in answer.items():
            if name.startswith("question") and not (values.min() >= 0 and np.abs(values.sum(-1) - 1).max() <= 1e-6):
                raise WrongAnswer(f"{label}: expected distributions, got others in {name}.")


def _steps(runner: Runner, given: Problem, rows: int, slow: Mapping[str, float]) -> Comparison:
    """A few iterations of each library's EM from the same start; those that were too slow with fewer rows are not run again."""
    title = f"{given.name}, {rows:,} rows: {STEPS} iterations of EM from one start"
    common = given.arguments(rows)
    start = tables_of(DiscreteNetwork.random(given.network.graph, seed=3))
    theirs = {"start": start, "latent": common["latent"], "data": common["data"], "iterations": STEPS}
    settings = {"restarts": 1, "max_steps": STEPS, "relative_tolerance": 0.0, "prior": 0.0}
    implementations = [
        Implementation(STEPPING, em_fit, common | settings | {"start": start}),
        Implementation(PGMPY, pgmpy_em, theirs),
        Implementation(PYAGRUM, pyagrum_em, theirs),
    ]
    for label, seconds in slow.items():
        runner.report.left_out[f"{title}: {label}"] = f"more than {seconds:g} s with fewer rows"
    check = same_tables(start, tuple(given.network.graph.latent))
    return runner.compare(title, [i for i in implementations if i.label not in slow], check)


def same_tables(start: Tables, latent: tuple[str, ...]) -> Check:
    """A check that EM implementations made the same steps, whatever their order of the hidden states."""

    def check(answers: Mapping[str, Answer]) -> None:
        for names in (start.states, first_step(start.states)):
            networks = {
                label: network_of(
                    Tables(start.states, start.parents, dict(zip(start.states, tables, strict=True))), latent
                )
                for label, tables in ((label, [answer.get(v) for v in names]) for label, answer in answers.items())
                if all(table is not None for table in tables)
            }
            matched = {k: arrays(n.match_states(next(iter(networks.values()))).cpts) for k, n in networks.items()}
            if matched:
                agree(1e-6)(matched)

    return check


def _counting(runner: Runner, given: Problem) -> None:
    """The whole fit compared with counting its tables."""
    rows = runner.choose(1_000_000, 300)
    title, plain = f"diamond, {rows:,} rows: the fit against its counting alone", "bincount per table"
    common: dict[str, Array | object] = given.arguments(rows)
    both = [Implementation(plain, counting_alone, common), Implementation(PBP, pbp_fit, common)]
    comparison = runner.compare(title, both)
    runner.report.claim(title, comparison.ratio(PBP, plain), at_most=1.0)
