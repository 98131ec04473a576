"""Graphs learned by each rule from the same rows and starts: what every rule reached, and how."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchpbp.baselines.normal_graph import RULES, NormalGraphLearner, learn
from torchpbp.baselines.normal_graph.block_learning import LearningTrace, WeightedRows
from torchpbp.errors import StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.normal_graph.plots import Floats
from torchpbp.experiments.running.grid import measure_grid
from torchpbp.graph.latent_graph import LatentGraph

MakeLearner = Callable[..., NormalGraphLearner]
"""Makes a learner from a graph and options such as ``rule``."""

Line = dict[str, float | int | str]
"""One line of metrics.csv."""


def check_learner(learner: Any) -> None:
    """Reject learners that have no learning rules."""
    made = getattr(learner, "func", learner)
    if not (isinstance(made, type) and issubclass(made, NormalGraphLearner)):
        raise StructureError(
            f"Normal graphs: expected a learner whose blocks learn by rules, got {made!r}. Choose learner=normal_graph."
        )


@dataclass(frozen=True)
class Case:
    """A graph to learn by several rules from several samples, each with a start of its own that all rules share.

    Args:
        name: unique within the run.
        graph: to learn.
        samples: complete rows of each repeat, equally many.
        seeds: of the start of each repeat.
        truths: network of each sample, to be measured too.
        mask: (rows,) 1 for rows to learn from, 0 for rows to test, the same for all samples; ``None``: learn from all.
        rules: which to learn by.
        history: keep the matrices of each epoch.
        options: of the learner, in place of its own.
    """

    name: str
    graph: LatentGraph
    samples: Sequence[dict[str, Tensor]]
    seeds: Sequence[int]
    truths: Sequence[DiscreteNetwork] = ()
    mask: Tensor | None = None
    rules: Sequence[str] = RULES
    history: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


class CaseResults(NamedTuple):
    """What came of one case.

    Args:
        lines: of metrics.csv, one for each rule and repeat; last those of the networks that the rows come from.
        courses: rule, or "truth" -> (repeats, epochs) aggregated log-likelihood, of rows held out where there are any.
        coefficients: rule -> matrix -> (epochs, entries) of the first repeat; empty without a history.
    """

    lines: list[Line]
    courses: dict[str, Floats]
    coefficients: dict[str, dict[str, Floats]]


def learn_cases(
    name: str, learner: MakeLearner, cases: Sequence[Case], output_dir: str | os.PathLike[str] | None, verbose: bool
) -> dict[str, CaseResults]:
    """Learn every case by each of its rules.

    Args:
        name: of the experiment.
        learner: makes a learner; its graph, rule, epochs and kind of start are used.
        cases: what to learn.
        output_dir: of the run.
        verbose: show a progress bar.

    Returns:
        Name of the case -> its results.
    """
    by_name = {case.name: case for case in cases}
    points = [(case.name, rule) for case in by_name.values() for rule in case.rules]

    def one_rule(case: str, rule: str) -> dict[str, Any]:
        return vars(learn_rule(learner, by_name[case], rule))

    traces: dict[str, dict[str, LearningTrace]] = {}
    for (case, rule), kept in measure_grid(name, points, one_rule, output_dir, verbose):
        traces.setdefault(case, {})[rule] = LearningTrace(**kept)
    return {case: _results(by_name[case], traces[case]) for case in by_name}


def learn_rule(learner: MakeLearner, case: Case, rule: str) -> LearningTrace:
    """The course of learning by one rule, all repeats at once."""
    rows = len(next(iter(case.samples[0].values())))
    learned = torch.ones(rows, dtype=torch.float64) if case.mask is None else case.mask.double()
    own = torch.eye(len(case.samples), dtype=torch.float64)  # each start sees its own sample only
    masks, held_out = (torch.kron(own, w[None]) for w in (learned, (learned == 0).double()))
    model = learner(case.graph, rule=rule, progress=False, **case.options)
    evidence = {
        model.converted.entry[v]: torch.eye(case.graph.num_states(v), dtype=torch.float64)[
            torch.cat([s[v] for s in case.samples])
        ]
        for v in case.graph.observed
    }
    together = WeightedRows(evidence, masks, held_out)
    normal = model.converted.graph
    return learn(normal, together, model.rule, model.settings.epochs, case.seeds, model.settings.start, case.history)[1]


def _results(case: Case, traces: dict[str, LearningTrace]) -> CaseResults:
    split = case.mask is not None
    pairs = zip(case.truths, case.samples, strict=False)
    true = [truth_line(case.name, i, truth, sample, case.mask) for i, (truth, sample) in enumerate(pairs)]
    courses = courses_of(traces, split)
    if true:
        known = [[line["test_aggregated" if split else "aggregated"]] for line in true]
        courses["truth"] = np.asarray(known, dtype=np.float64)
    lines = [*lines_of(case.name, traces, split), *true]
    return CaseResults(lines, courses, coefficients_of(traces) if case.history else {})


def lines_of(case: str, traces: dict[str, LearningTrace], held_out: bool) -> list[Line]:
    """A line for each rule and repeat: what it reached after its last epoch.

    With ``held_out`` the sums over rows held out are added.
    """
    lines: list[Line] = []
    for rule, trace in traces.items():
        reached = {"aggregated": trace.aggregated[-1], "log_evidence": trace.evidence[-1]}
        if held_out:
            reached |= {
                "test_aggregated": trace.held_out_aggregated[-1],
                "test_log_evidence": trace.held_out_evidence[-1],
            }
        for repeat in range(len(trace.evidence[-1])):
            values: Line = {name: float(tensor[repeat]) for name, tensor in reached.items()}
            lines.append({"case": case, "repeat": repeat, "rule": rule, **values})
    return lines


def courses_of(traces: dict[str, LearningTrace], held_out: bool = False) -> dict[str, Floats]:
    """Rule -> (repeats, epochs) aggregated log-likelihood."""
    chosen = {rule: t.held_out_aggregated if held_out else t.aggregated for rule, t in traces.items()}
    return {rule: torch.stack(values).T.numpy() for rule, values in chosen.items()}


def coefficients_of(traces: dict[str, LearningTrace]) -> dict[str, dict[str, Floats]]:
    """Rule -> matrix -> (epochs, entries) of the first repeat, where the history was kept."""
    return {
        rule: {
            name: torch.stack([thetas[name][0].flatten() for thetas in trace.thetas]).numpy()
            for name in trace.thetas[0]
        }
        for rule, trace in traces.items()
    }


def truth_line(case: str, repeat: int, network: DiscreteNetwork, data: dict[str, Tensor], mask: Tensor | None) -> Line:
    """The same figures for the network that the rows come from."""
    own = torch.zeros(len(next(iter(data.values()))), dtype=torch.float64)
    for v, states in data.items():
        posterior = network.posterior(v, {u: x for u, x in data.items() if u != v})
        own += posterior.gather(1, states[:, None])[:, 0].log()
    evidence = network.log_evidence(data)
    line: Line = {"case": case, "repeat": repeat, "rule": "truth"}
    if mask is None:
        return line | {"aggregated": float(own.sum()), "log_evidence": float(evidence.sum())}
    for prefix, chosen in (("", mask > 0), ("test_", mask == 0)):
        line |= {
            f"{prefix}aggregated": float(own[chosen].sum()),
            f"{prefix}log_evidence": float(evidence[chosen].sum()),
        }
    return line
