"""Training to equal error: PBP, EM run to convergence, and EM of pgmpy and pyAgrum.

The error is KL(exact ‖ learned) of P(one observable | three others), the unweighted mean over random queries and over
the values of their evidence. The other libraries' EM makes the same steps as torchpbp's, which is checked first; where it is
too slow to be run to convergence its time is that of one iteration times torchpbp's number of iterations.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.em import loopy_eight
from benchmarks.implementation import Answer, Array, Tables
from benchmarks.other_libraries.with_pgmpy import PgmpyEM
from benchmarks.other_libraries.with_pyagrum import PyagrumEM
from benchmarks.report import Claim, Panel, Report
from benchmarks.side_by_side import Outcome, RunOptions, agree, time_side_by_side
from benchmarks.this_library import CountingAlone, EMFit, PBPFit, tables_of
from torchpbp import DiscreteNetwork, templates
from torchpbp.errors import DataError
from torchpbp.experiments.synthetic.questions import Question, draw_questions, make_question

RESTARTS, TIGHT, LOOSE = 10, 1e-7, 1e-4
PBP_LABEL = "PBP"
TIGHT_LABEL, LOOSE_LABEL = f"EM, {TIGHT:g}", f"EM, {LOOSE:g}"
PGMPY, PYAGRUM = "pgmpy EM", "pyAgrum EM"
STEPS = 2
"""EM iterations from one start in the comparison of libraries."""
CLAIM_ROWS = 100_000


@dataclass(frozen=True)
class Case:
    """A network, its queries and their exact posteriors."""

    name: str
    network: DiscreteNetwork
    questions: tuple[Question, ...]
    exact: tuple[torch.Tensor, ...]

    @property
    def tables(self) -> Tables:
        return tables_of(self.network)

    @property
    def latent(self) -> tuple[str, ...]:
        return tuple(self.network.graph.latent)

    @property
    def asked(self) -> tuple[tuple[str, dict[str, Array]], ...]:
        return tuple((q.query, {v: x.numpy() for v, x in q.evidence.items()}) for q in self.questions)

    def kl(self, answer: Answer) -> float:
        """Mean KL of a learner's posteriors, in nats."""
        kls = []
        for i, exact in enumerate(self.exact):
            learned = torch.from_numpy(answer[f"question {i}"]).to(exact)
            kls.append(float((torch.xlogy(exact, exact) - torch.xlogy(exact, learned)).sum(dim=-1).mean()))
        return statistics.fmean(kls)


def make_case(name: str, network: DiscreteNetwork, questions: int = 12) -> Case:
    """Draw queries and compute their exact posteriors."""
    chosen = [
        make_question(network.graph, names, 216, i)
        for i, names in enumerate(draw_questions(network.graph, questions, 3, seed=0))
    ]
    return Case(name, network, tuple(chosen), tuple(network.posterior(q.query, q.evidence) for q in chosen))


def run(settings: RunOptions) -> Report:
    """Both networks at all sizes."""
    report = Report("training")
    cases = [
        make_case("loop of 8", DiscreteNetwork.random(loopy_eight(), seed=1)),
        make_case("diamond", DiscreteNetwork.random(templates.diamond(), seed=1)),
    ]
    slow: dict[str, float] = {}
    for case in cases:
        quick = [10_000] if case.name == "diamond" else [1_000]
        sizes = settings.choose([1_000, 10_000, 100_000, 1_000_000], quick, [300])
        slow = slow if settings.size == "quick" else {}  # with fewer rows of a smaller network already
        times = Panel(f"{case.name}: training", "rows", "seconds")
        errors = Panel(f"{case.name}: error", "rows", "KL, nats")
        bounded = Panel(f"{case.name}: error by time", "seconds", "KL, nats")
        report.panels += [times, errors, bounded]
        iterations = 0
        for rows in sizes:
            data = {v: x.numpy() for v, x in case.network.sample(rows, seed=2).items()}
            own = _learners(settings, report, case, data)
            errors_of = {label: case.kl(answer) for label, answer in own.answers.items()}
            for label, kl in errors_of.items():
                times.add(label, rows, own.seconds(label))
                errors.add(label, rows, kl)
                bounded.add(label, own.seconds(label) or 0.0, kl)
            if TIGHT_LABEL in own.answers:
                iterations = int(own.answers[TIGHT_LABEL]["iterations"].sum())
            others = _steps(settings, report, case, data, slow)
            slow = others.too_slow
            totals = _totals(others, iterations)
            for label, seconds in totals.items():
                times.add(label, rows, seconds)
                times.dashed.append(label)
            _record(report, case.name, rows, own, errors_of, iterations, totals, others)
            if case.name == "diamond" and rows == CLAIM_ROWS:
                _claims(report, own, errors_of, totals, others)
    if settings.size == "full":
        _counting(settings, report, cases[-1], sizes[-1])
    else:
        _counting(settings, report, cases[-1], settings.choose(0, 100_000, 300))
    report.notes.append(
        f"EM: {RESTARTS} starts in one batch, distinct rows only, until the objective changes by less than {TIGHT:g} (or "
        f"{LOOSE:g}) of itself. Times of {PGMPY} and {PYAGRUM} are {STEPS} iterations' time / {STEPS} x the iterations of "
        f"all starts of {TIGHT_LABEL}; where those {STEPS} took more than {settings.limit:g} s, at least that."
    )
    return report


def _learners(settings: RunOptions, report: Report, case: Case, data: dict[str, Array]) -> Outcome:
    """PBP and EM to convergence."""
    rows = len(next(iter(data.values())))
    title = f"{case.name}, {rows:,} rows: from data to model"
    common = {"restarts": RESTARTS, "iterations": settings.choose(5_000, 5_000, 20)}
    implementations = [
        PBPFit(PBP_LABEL, case.tables, case.latent, data, case.asked),
        EMFit(LOOSE_LABEL, case.tables, case.latent, data, {**common, "tolerance": LOOSE}, None, case.asked),
        EMFit(TIGHT_LABEL, case.tables, case.latent, data, {**common, "tolerance": TIGHT}, None, case.asked),
    ]
    if case.name == "diamond" and rows > CLAIM_ROWS:
        implementations.pop()
        report.left_out[f"{title}: {TIGHT_LABEL}"] = f"not run with more than {CLAIM_ROWS:,} rows"
    patient = replace(settings, limit=settings.limit * settings.choose(10, 3, 1))
    outcome = time_side_by_side(patient, implementations, title, proper)
    report.add(outcome, title)
    return outcome


def proper(answers: Mapping[str, Answer]) -> None:
    """Check that learners return distributions."""
    for label, answer in answers.items():
        for name, values in answer.items():
            if name.startswith("question"):
                total = values.sum(axis=-1)
                if not np.isfinite(values).all() or (values < 0).any() or np.abs(total - 1).max() > 1e-6:
                    raise DataError(f"{label}: expected distributions, got others in {name}. Nothing was timed.")


def _steps(
    settings: RunOptions, report: Report, case: Case, data: dict[str, Array], slow: Mapping[str, float]
) -> Outcome:
    """A few iterations of each library's EM from the same start.

    Args:
        settings: of the run.
        report: to add to.
        case: the network to learn.
        data: training rows.
        slow: implementations that took too long with fewer rows, and are not run again.
    """
    rows = len(next(iter(data.values())))
    title = f"{case.name}, {rows:,} rows: {STEPS} iterations of EM from one start"
    start = tables_of(DiscreteNetwork.random(case.network.graph, seed=3))
    steps = {"restarts": 1, "iterations": STEPS, "tolerance": 0.0, "prior": 0.0}
    implementations = [
        EMFit("EM", case.tables, case.latent, data, steps, start),
        PgmpyEM(PGMPY, start, case.latent, data, STEPS),
        PyagrumEM(PYAGRUM, start, case.latent, data, STEPS),
    ]
    outcome = time_side_by_side(settings, [c for c in implementations if c.label not in slow], title, agree(1e-6))
    outcome.left_out.update(dict.fromkeys(slow, "too slow with fewer rows"))
    outcome.too_slow.update(slow)
    report.add(outcome, title)
    return outcome


def _totals(others: Outcome, iterations: int) -> dict[str, float]:
    """Seconds to convergence, or a lower bound of them."""
    result = {}
    for label in (PGMPY, PYAGRUM):
        seconds = others.too_slow.get(label) or others.seconds(label)
        if seconds and iterations:
            result[label] = seconds / STEPS * iterations
    return result


def _record(
    report: Report,
    name: str,
    rows: int,
    own: Outcome,
    kls: dict[str, float],
    iterations: int,
    totals: dict[str, float],
    others: Outcome,
) -> None:
    for label, kl in kls.items():
        seconds = own.seconds(label)
        report.records.append({"network": name, "rows": rows, "who": label, "seconds": seconds, "kl": kl})
    for label, total in totals.items():
        kind = "bound" if label in others.too_slow else "extrapolated"
        report.records.append({"network": name, "rows": rows, "who": label, "seconds": total, "kind": kind})
    shown = [f"{label} {own.seconds(label):.3g} s, KL {kl:.3g}" for label, kl in kls.items()]
    shown += [f"{label} {'more than ' if label in others.too_slow else ''}{t:,.0f} s" for label, t in totals.items()]
    report.notes.append(f"{name}, {rows:,} rows: {'; '.join(shown)} ({iterations} iterations of {TIGHT_LABEL})")


def _claims(report: Report, own: Outcome, kls: dict[str, float], totals: dict[str, float], others: Outcome) -> None:
    where = f"diamond, {CLAIM_ROWS:,} rows"
    fit = own.seconds(PBP_LABEL)
    both = PBP_LABEL in kls and TIGHT_LABEL in kls
    report.claims += [
        Claim(f"{where}: KL of PBP over EM's", kls[PBP_LABEL] / kls[TIGHT_LABEL] if both else None, at_most=1.5),
        Claim(f"{where}: time of {TIGHT_LABEL} over PBP's", own.times(TIGHT_LABEL, PBP_LABEL), at_least=100),
        Claim(
            f"{where}: time of pgmpy's EM over PBP's",
            totals[PGMPY] / fit if fit and PGMPY in totals else None,
            at_least=1_000,
            note="a lower bound" if PGMPY in others.too_slow else "per iteration x iterations",
        ),
    ]


def _counting(settings: RunOptions, report: Report, case: Case, rows: int) -> None:
    """The whole fit compared with counting its tables, a lower bound."""
    data = {v: x.numpy() for v, x in case.network.sample(rows, seed=2).items()}
    title = f"{case.name}, {rows:,} rows: the fit against its counting alone"
    implementations = [
        CountingAlone("bincount per table", case.tables, case.latent, data),
        PBPFit(PBP_LABEL, case.tables, case.latent, data),
    ]
    outcome = time_side_by_side(settings, implementations, title)
    report.add(outcome, title)
    if rows >= 1_000_000:
        report.claims.append(Claim(title, outcome.times(PBP_LABEL, "bincount per table"), at_most=5))
