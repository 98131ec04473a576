"""Measures of a fitted model: how far its answers are from those of the network that the training rows were sampled from."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchpbp.baselines.em import EM
from torchpbp.baselines.spectral import SpectralJunctionTree
from torchpbp.contract.intervals import Intervals
from torchpbp.contract.latent_queries import LatentQueries
from torchpbp.errors import IdentificationWarning, StructureError, TorchPBPError, TorchPBPWarning
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.compare.questions import Question, chosen_questions, mean_kl
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.models.network_learner import NetworkLearner
from torchpbp.models.pbp import PBP
from torchpbp.settings import between, whole

Columns = dict[str, Tensor]
Numbers = dict[str, float]


@dataclass(frozen=True)
class Source:
    """Where training rows come from.

    Args:
        graph: structure that the models know.
        network: that the rows are sampled from; ``None`` for real rows.
        test: (rows,) states of all variables, latents included, sampled from the network; empty for real rows.
        seed: of the run.
        start_seed: of random starts and of random questions about this network.
    """

    graph: LatentGraph
    network: DiscreteNetwork | None
    test: Columns
    seed: int
    start_seed: int

    @property
    def truth(self) -> DiscreteNetwork:
        """The network.

        Raises:
            StructureError: real rows.
        """
        if self.network is None:
            raise StructureError(
                "This measure compares with a known network, and real tables have none. Leave out task.tables."
            )
        return self.network

    @property
    def observed(self) -> Columns:
        """Observables of the test rows."""
        return {v: self.test[v] for v in self.graph.observed}


@dataclass(frozen=True)
class Fit:
    """A fitted model.

    Args:
        model: fitted.
        make: makes an unfitted one for a graph.
        rows: that it was fitted to.
    """

    model: Any
    make: Callable[[LatentGraph], Any]
    rows: Columns


class Measure:
    """A measure: numbers in named columns for each fit.

    Attributes:
        main: the column that pictures and ratios show; smaller is better where ``ratio`` is set.
        ratio: whether the first model is compared with each other model by the ratio of main columns.
        baseline: column of a figure that needs no model, drawn as a dotted line.
        largest: columns of which the largest value of all repeats is reported, and not the mean.
    """

    main: str
    ratio = False
    baseline: str | None = None
    largest: tuple[str, ...] = ()

    def exact(self, source: Source) -> Any:
        """Answers of the network, computed once for all fits."""
        return None

    def __call__(self, fit: Fit, source: Source, exact: Any) -> Numbers:
        raise NotImplementedError


class Questions(Measure):
    """KL(exact ‖ learned) of posteriors P(query | evidence), the mean over questions and over joint values of the evidence.

    Rare evidence counts as much as common evidence. All networks of a graph are asked the same questions.

    Args:
        questions: number of random questions, or questions, each a query followed by its evidence variables.
        evidence_variables: of a random question, or fewer where the graph has fewer observables.
        most_values: joint values of the evidence; where there are more, random ones among them.
    """

    main, ratio, baseline = "kl", True, "kl_ignoring_evidence"

    def __init__(
        self, questions: int | Sequence[Sequence[str]] = 3, evidence_variables: int = 3, most_values: int = 4096
    ) -> None:
        self.questions = questions
        self.evidence_variables: int = whole(1).check("evidence_variables", evidence_variables)
        self.most_values: int = whole(1).check("most_values", most_values)

    def exact(self, source: Source) -> list[tuple[Question, Tensor, Tensor]]:
        """Each question with its exact answer and the exact marginal, both (values, states)."""
        asked = chosen_questions(source.graph, self.questions, self.evidence_variables, self.most_values, source.seed)
        possible = [question.possible(source.truth) for question in asked]
        answers = [source.truth.posterior(q.query, q.evidence) for q in possible]
        marginals = [source.truth.posterior(q.query, {}) for q in possible]
        return [(q, p, m.expand_as(p)) for q, p, m in zip(possible, answers, marginals, strict=True)]

    def __call__(self, fit: Fit, source: Source, exact: list[tuple[Question, Tensor, Tensor]]) -> Numbers:
        kls = {f"kl {q}": mean_kl(p, fit.model.posterior(q.query, q.evidence)) for q, p, _ in exact}
        ignoring = sum(mean_kl(p, marginal) for _, p, marginal in exact) / len(exact)
        return {"kl": sum(kls.values()) / len(kls), "kl_ignoring_evidence": ignoring, **(kls if len(kls) > 1 else {})}


class HalfRows(Measure):
    """KL(exact ‖ learned) of the posterior of each observable that a test row hides, given the others; half of them are hidden."""

    main, ratio = "kl_half_rows", True

    def __call__(self, fit: Fit, source: Source, exact: None) -> Numbers:
        return {self.main: kl_given_half(fit.model, source.truth, source.observed)}


class HeldOut(Measure):
    """Mean log-likelihood of test rows, in nats."""

    main = "held_out"

    def __call__(self, fit: Fit, source: Source, exact: None) -> Numbers:
        return {self.main: fit.model.score(source.observed)}


class HiddenStates(Measure):
    """Share of test rows whose most probable state of a latent is the true one, after matching; over latents with three views.

    NaN for models without hidden states and for graphs without such latents.
    """

    main = "hidden_states"

    def __call__(self, fit: Fit, source: Source, exact: None) -> Numbers:
        model = fit.model
        views = model.latent_views if isinstance(model, LatentQueries) else {}
        latent = [h for h, of_latent in views.items() if len(of_latent.groups) == 3]
        if not latent:
            return {self.main: math.nan}
        model.match_states(source.truth)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IdentificationWarning)
            right = [(model.predict(source.observed, h).cpu() == source.test[h]).double().mean() for h in latent]
        return {self.main: float(torch.stack(right).mean())}


class JointProbability(Measure):
    """Relative error |P̂(x) − P(x)| / P(x) of the probability of test rows x [JT 9.1].

    Columns: "error", the mean; "median_error"; "signed_error" of estimates before clipping, and "negative_share" of them, for models
    that have them; "error_of_independence" of the product of exact marginals.
    """

    main, ratio, baseline = "error", True, "error_of_independence"

    def exact(self, source: Source) -> tuple[Tensor, Tensor]:
        """(rows,) log-probabilities of the test rows, and those of the product of marginals."""
        marginals = source.truth.posteriors()
        logs = torch.stack([marginals[v][0][x].log() for v, x in source.observed.items()])
        return source.truth.log_evidence(source.observed), logs.sum(dim=0)

    def __call__(self, fit: Fit, source: Source, exact: tuple[Tensor, Tensor]) -> Numbers:
        truth, independent = exact
        ratio = (fit.model.log_evidence(source.observed) - truth).exp()
        error = (ratio - 1).abs()
        found = {"error": float(error.mean()), "median_error": float(error.median())}
        if isinstance(fit.model, PBP | SpectralJunctionTree):  # their estimates may be negative
            sign, size = fit.model.log_evidence(source.observed, raw=True)
            signed = sign * (size - truth).exp()
            found |= {
                "signed_error": float((signed - 1).abs().mean()),
                "negative_share": float((signed <= 0).double().mean()),
            }
        return {**found, "error_of_independence": float(((independent - truth).exp() - 1).abs().mean())}


class QuestionKinds(Measure):
    """Errors by kind of question, NaN where a model cannot answer.

    Relative error of "P(row)" and "P(half row)"; KL of "P(one | others)", "P(each | half row)", "P(two | others)", "P(one | soft)" with soft
    evidence, "P(latent | row)" up to the order of its states, and "learned from gaps": P(each | half row) of a model that was fitted
    to the rows with a fifth of the values missing. "answers_per_second" counts rows of P(each | half row).
    """

    main = "P(each | half row)"

    def __call__(self, fit: Fit, source: Source, exact: None) -> Numbers:
        model, truth, rows = fit.model, source.truth, source.observed
        query, *others = rows
        first, last, inner = {query: rows[query]}, others[-1], others[:-1]

        def of(names: Sequence[str]) -> Columns:
            return {v: rows[v] for v in names}

        def kl_of(asked: str | tuple[str, ...], evidence: Columns) -> float:
            return float(kl(truth.posterior(asked, evidence), model.posterior(asked, evidence)).mean())

        def seconds() -> float:
            start, half = time.perf_counter(), thinned(rows)
            model.posteriors(half)
            return len(first[query]) / (time.perf_counter() - start)

        def from_gaps() -> float:
            refitted = fit.make(source.graph).fit(thinned(fit.rows, share=0.2))
            return kl_given_half(refitted, truth, rows)

        kinds: dict[str, Callable[[], float]] = {
            "P(row)": lambda: relative_error(model, truth, rows),
            "P(half row)": lambda: relative_error(model, truth, thinned(rows)),
            "P(one | others)": lambda: kl_of(query, of(others)),
            "P(each | half row)": lambda: kl_given_half(model, truth, rows),
            "P(two | others)": lambda: kl_of((query, last), of(inner)),
            "P(one | soft)": lambda: kl_of(query, {others[0]: noisy(truth, others[0], rows), **of(others[1:2])}),
            "P(latent | row)": lambda: kl_of_latent(model, truth, rows),
            "answers_per_second": seconds,
            "learned from gaps": from_gaps,
        }
        return {kind: or_nan(ask) for kind, ask in kinds.items()}


class Coverage(Measure):
    """Share of confidence intervals that cover the true probability, of random states given a random half of the other observables.

    Args:
        questions: asked of each network.
        level: of the intervals.
    """

    main = "coverage"

    def __init__(self, questions: int = 20, level: float = 0.95) -> None:
        self.questions: int = whole(1).check("questions", questions)
        self.level: float = between(0, 1, ends=False).check("level", level)

    def __call__(self, fit: Fit, source: Source, exact: None) -> Numbers:
        if not isinstance(fit.model, Intervals):
            raise StructureError(f"{type(fit.model).__name__} has no intervals. MaximumLikelihood and PBP have.")
        truth, graph, seed = source.truth, source.graph, source.start_seed
        generator = torch.Generator().manual_seed(seed)
        asked = truth.sample(self.questions, seed=seed)
        shown = {v: torch.where(torch.rand(self.questions, generator=generator) < 0.5, x, -1) for v, x in asked.items()}
        target = torch.randint(len(graph.observed), (self.questions,), generator=generator)
        options = {"data": fit.rows} if isinstance(fit.model, PBP) else {}
        seconds, covered, widths = 0.0, [], []
        for i, name in enumerate(graph.observed):
            lines = (target == i).nonzero().flatten()
            if not len(lines):
                continue
            evidence = {v: x[lines] for v, x in shown.items() if v != name}
            start = time.process_time()
            _, lower, upper = fit.model.interval(name, evidence, self.level, **options)
            seconds += time.process_time() - start
            state = torch.randint(graph.num_states(name), (len(lines), 1), generator=generator)
            exact_probability, low, high = (x.gather(1, state) for x in (truth.posterior(name, evidence), lower, upper))
            answered = ~low.isnan()
            covered.append(((low <= exact_probability) & (exact_probability <= high))[answered])
            widths.append((high - low)[answered])
        answers = torch.cat(covered)
        return {
            "coverage": float(answers.double().mean()),
            "width": float(torch.cat(widths).mean()),
            "without_interval": 1 - len(answers) / self.questions,
            "interval_seconds": seconds,
        }


class Maximum(Measure):
    """Nats that a model lacks to the best of many runs of EM from random starts, with the same prior on the same rows.

    Columns: "short", of the largest value; "reached", whether that is less than 0.1; "starts", the share of EM's runs that come as near;
    "em_seconds" of CPU.

    Args:
        starts: of EM.
        relative_tolerance: at which a run of EM ends.
        max_steps: of a run of EM, at most.
    """

    main, largest = "reached", ("short",)
    NEAR = 0.1

    def __init__(self, starts: int = 200, relative_tolerance: float = 1e-9, max_steps: int = 5_000) -> None:
        self.settings: dict[str, Any] = {
            "restarts": starts,
            "relative_tolerance": relative_tolerance,
            "max_steps": max_steps,
        }

    def __call__(self, fit: Fit, source: Source, exact: None) -> Numbers:
        model, rows, count = fit.model, fit.rows, len(next(iter(fit.rows.values())))
        prior = getattr(getattr(model, "settings", None), "prior", None)
        if not isinstance(model, NetworkLearner) or prior is None:
            raise StructureError(
                f"{type(model).__name__} has no tables with a prior. MaximumLikelihood, EM and OnlineEM have."
            )
        start = time.process_time()
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore", TorchPBPWarning)
            rival = EM(source.graph, prior=prior, seed=source.start_seed, progress=False, **self.settings).fit(rows)
        seconds = time.process_time() - start
        reached = model.score(rows) * count
        if prior:
            reached += prior * sum(float(table.log().sum()) for table in model.network.cpts.values())
        ends = [run.objective[-1] * count for run in rival.runs]
        best = max(ends)
        return {
            "short": best - reached,
            "reached": float(best - reached <= self.NEAR),
            "starts": sum(end >= best - self.NEAR for end in ends) / len(ends),
            "em_seconds": seconds,
        }


# -- answers -----------------------------------------------------------------------------------------------------------


def or_nan(ask: Callable[[], float]) -> float:
    """The answer, or NaN where the library has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchPBPWarning)
        try:
            return ask()
        except TorchPBPError:
            return math.nan


def thinned(rows: Mapping[str, Tensor], share: float = 0.5, seed: int = 0) -> Columns:
    """Rows of which each value is hidden (-1) by chance, the same for all models; each row keeps one value at least."""
    generator = torch.Generator().manual_seed(seed)
    chance = torch.rand(len(rows), len(next(iter(rows.values()))), generator=generator)
    hidden = chance < share
    hidden.scatter_(0, chance.argmax(dim=0, keepdim=True), False)
    return {v: x.masked_fill(hidden[i], -1) for i, (v, x) in enumerate(rows.items())}


def kl(exact: Tensor, learned: Tensor) -> Tensor:
    """(batch,) KL(exact ‖ learned) over all dimensions but the first."""
    p, q = exact.flatten(1), learned.to(exact.dtype).flatten(1)
    return (torch.xlogy(p, p) - torch.xlogy(p, q.clamp(min=1e-300))).sum(dim=1)


def kl_given_half(model: Any, truth: DiscreteNetwork, rows: Columns) -> float:
    """Mean KL of the posteriors of all values that a row hides."""
    evidence = thinned(rows)
    exact, learned = truth.posteriors(evidence), model.posteriors(evidence)
    unseen = {v: evidence[v] < 0 for v in rows}
    total = sum(float(kl(exact[v][hidden], learned[v][hidden]).sum()) for v, hidden in unseen.items())
    return total / sum(int(hidden.sum()) for hidden in unseen.values())


def relative_error(model: Any, truth: DiscreteNetwork, rows: Columns) -> float:
    """Mean |P̂ − P| / P."""
    ratio = (model.log_evidence(rows).double() - truth.log_evidence(rows)).exp()
    return float((ratio - 1).abs().mean())


def noisy(truth: DiscreteNetwork, name: str, rows: Columns) -> Tensor:
    """(rows, states) soft evidence: half of the weight on the state of a row, the other states share the rest."""
    states = truth.graph.num_states(name)
    weights = torch.full((len(rows[name]), states), 0.5 / max(1, states - 1), dtype=torch.float64)
    return weights.scatter_(1, rows[name].unsqueeze(1), 0.5)


def kl_of_latent(model: Any, truth: DiscreteNetwork, rows: Columns) -> float:
    """KL of the posterior of the first latent, for the best order of its learned states."""
    latent = truth.graph.latent[0]
    exact, learned = truth.posterior(latent, rows), model.posterior(latent, rows)
    orders = torch.cartesian_prod(*[torch.arange(exact.shape[1])] * exact.shape[1])
    permutations = [order for order in orders if len(set(order.tolist())) == exact.shape[1]]
    return min(float(kl(exact, learned[:, order]).mean()) for order in permutations)


def with_missing(rows: Columns, share: float, seed: int) -> Columns:
    """Rows with a share of their values missing (-1) completely at random."""
    if not share:
        return rows
    generator = torch.Generator().manual_seed(seed)
    return {v: torch.where(torch.rand(len(x), generator=generator) < share, -1, x) for v, x in rows.items()}
