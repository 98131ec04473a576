"""Graphs learned by each rule from the same rows and starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchpbp.baselines.normal_graph import RULES, NormalGraphLearner, learn
from torchpbp.baselines.normal_graph.block_learning import BlockRows
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.grid import Run
from torchpbp.experiments.normal_graph.pictures import Floats
from torchpbp.graph.latent_graph import LatentGraph

MakeModel = Callable[..., NormalGraphLearner]
"""Makes a learner from a graph and options such as ``rule``."""
Line = dict[str, float | int | str]
"""Columns case, repeat, rule, and the measures."""


@dataclass(frozen=True)
class Case:
    """A graph to learn by several rules from several samples; each sample has one start, the same for all rules.

    Args:
        name: unique within the run.
        graph: to learn.
        samples: complete rows of each repeat, the same number in each.
        seeds: of the start of each repeat.
        truths: network of each sample, measured as well.
        mask: (rows,) 1 for training rows, 0 for test rows, the same for all samples; ``None``: all are training rows.
        rules: to learn by.
        history: whether to keep the matrices of each epoch.
        options: of the model, in place of its own.
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


class Learned(NamedTuple):
    """Results of one case.

    Args:
        lines: a line for each rule and repeat after the last epoch, and for each network that rows were drawn from.
        courses: rule, or "truth" -> (repeats, epochs) aggregated log-likelihood, of test rows if there are any.
        coefficients: rule -> matrix -> (epochs, entries) of the first repeat; empty without a history.
    """

    lines: list[Line]
    courses: dict[str, Floats]
    coefficients: dict[str, dict[str, Floats]]


def learn_cases(title: str, model: MakeModel, cases: Sequence[Case], run: Run) -> dict[str, Learned]:
    """Learn every case by each of its rules.

    Args:
        title: of the progress bar.
        model: makes a learner; its epochs, inner iterations, delta and kind of start are used.
        cases: to learn.
        run: the run.

    Returns:
        Name of the case -> its results.
    """
    by_name = {case.name: case for case in cases}
    results = {name: Learned([], {}, {}) for name in by_name}
    points = [(case.name, rule) for case in cases for rule in case.rules]
    for (name, rule), found in run.grid(title, points, lambda case, rule: learn_rule(model, by_name[case], rule)):
        results[name].lines.extend(
            {
                "case": name,
                "repeat": i,
                "rule": rule,
                **{measure: values[i] for measure, values in found["last"].items()},
            }
            for i in range(len(by_name[name].seeds))
        )
        results[name].courses[rule] = np.array(found["course"]).T
        if found["coefficients"]:
            results[name].coefficients[rule] = {m: np.array(x) for m, x in found["coefficients"].items()}
    for case in [case for case in cases if case.truths]:
        pairs = zip(case.truths, case.samples, strict=True)
        lines = [truth_line(case.name, i, truth, sample, case.mask) for i, (truth, sample) in enumerate(pairs)]
        shown = "aggregated" if case.mask is None else "test_aggregated"
        results[case.name].lines.extend(lines)
        results[case.name].courses["truth"] = np.array([[line[shown]] for line in lines], dtype=np.float64)
    return results


def learn_rule(model: MakeModel, case: Case, rule: str) -> dict[str, Any]:
    """Learn all repeats of a case at once by one rule.

    Returns:
        "last" (measure -> value of each repeat after the last epoch), "course" ((epochs, repeats) aggregated log-likelihood)
        and "coefficients" (matrix -> (epochs, entries) of the first repeat), as lists.
    """
    rows = len(next(iter(case.samples[0].values())))
    trained = torch.ones(rows, dtype=torch.float64) if case.mask is None else case.mask.double()
    own = torch.eye(len(case.samples), dtype=torch.float64)  # each start learns from its own sample only
    masks, held_out = (torch.kron(own, weights[None]) for weights in (trained, (trained == 0).double()))
    made = model(case.graph, rule=rule, **case.options)
    evidence = {
        made.converted.entry[v]: torch.eye(case.graph.num_states(v), dtype=torch.float64)[
            torch.cat([sample[v] for sample in case.samples])
        ]
        for v in case.graph.observed
    }
    together, settings = BlockRows(evidence, masks, held_out), made.settings
    trace = learn(made.converted.graph, together, made.rule, settings.epochs, case.seeds, settings.start, case.history)[
        1
    ]
    measures = {"aggregated": trace.aggregated, "log_evidence": trace.evidence}
    if case.mask is not None:
        measures |= {"test_aggregated": trace.held_out_aggregated, "test_log_evidence": trace.held_out_evidence}
    course = trace.aggregated if case.mask is None else trace.held_out_aggregated
    matrices = list(trace.thetas[0]) if trace.thetas else []
    return {
        "last": {measure: values[-1].tolist() for measure, values in measures.items()},
        "course": torch.stack(course).tolist(),
        "coefficients": {m: [thetas[m][0].flatten().tolist() for thetas in trace.thetas] for m in matrices},
    }


def truth_line(case: str, repeat: int, network: DiscreteNetwork, data: dict[str, Tensor], mask: Tensor | None) -> Line:
    """The same measures for the network that the rows were drawn from."""
    aggregated = torch.zeros(len(next(iter(data.values()))), dtype=torch.float64)
    for v, states in data.items():
        posterior = network.posterior(v, {u: x for u, x in data.items() if u != v})
        aggregated += posterior.gather(1, states[:, None])[:, 0].log()
    evidence = network.log_evidence(data)
    line: Line = {"case": case, "repeat": repeat, "rule": "truth"}
    parts = {"": torch.ones_like(evidence) > 0} if mask is None else {"": mask > 0, "test_": mask == 0}
    for prefix, chosen in parts.items():
        line[f"{prefix}aggregated"] = float(aggregated[chosen].sum())
        line[f"{prefix}log_evidence"] = float(evidence[chosen].sum())
    return line
