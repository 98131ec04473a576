"""One graph learned by each rule from the same rows and starts: what every rule reached, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.baselines.normal_graph import RULES, NormalGraphLearner, learn
from torchpbp.baselines.normal_graph.block_learning import LearningTrace, WeightedRows
from torchpbp.errors import StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.normal_graph.plots import Floats
from torchpbp.experiments.running.run_folder import Parts
from torchpbp.graph.latent_graph import LatentGraph

MakeLearner = Callable[..., NormalGraphLearner]
"""Makes a learner from a graph and options such as ``rule``."""

Line = dict[str, float | int | str]
"""One line of metrics.csv."""

Keep = Callable[[str, Callable[[], dict[str, Any]]], dict[str, Any]]


def check_learner(learner: Any) -> None:
    """Refuse learners that have no learning rules."""
    made = getattr(learner, "func", learner)
    if not (isinstance(made, type) and issubclass(made, NormalGraphLearner)):
        raise StructureError(
            f"Normal graphs: expected a learner whose blocks learn by rules, got {made!r}. Choose learner=normal_graph."
        )


class Learned(NamedTuple):
    """What came of one case.

    Args:
        lines: of metrics.csv, one for each rule and repeat; last those of the networks that the rows come from.
        courses: rule, or "truth" -> (repeats, epochs) aggregated log-likelihood, of rows held out where there are any.
        coefficients: rule -> matrix -> (epochs, entries) of the first repeat; empty without a history.
    """

    lines: list[Line]
    courses: dict[str, Floats]
    coefficients: dict[str, dict[str, Floats]]


class RuleExperiment:
    """Learns case after case by each rule; what is done is kept, so that an interrupted run goes on with the next rule.

    Args:
        learner: makes a learner of normal graphs.
        parts: where what is done is kept.
        bar: moved on by each rule.
        options: of the learner, in place of its own.
    """

    def __init__(self, learner: MakeLearner, parts: Parts, bar: tqdm[Any], **options: Any) -> None:
        self.learner, self.parts, self.bar, self.options = learner, parts, bar, options

    def run(
        self,
        case: str,
        graph: LatentGraph,
        samples: Sequence[dict[str, Tensor]],
        seeds: Sequence[int],
        truths: Sequence[DiscreteNetwork] = (),
        mask: Tensor | None = None,
        rules: Sequence[str] = RULES,
        history: bool = False,
        **options: Any,
    ) -> Learned:
        """Learn from several samples by each rule.

        Args:
            case: a name, unique within the run.
            graph, samples, seeds, rules, mask, history: see :func:`learn_by_rules`.
            truths: network of each sample, to be measured too.
            options: of the learner in this case.
        """

        def keep(rule: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
            found = self.parts.get(f"{case},{rule}", compute)
            self.bar.update()
            return found

        chosen = {**self.options, **options}
        traces = learn_by_rules(self.learner, graph, samples, seeds, rules, mask, history, keep, **chosen)
        split = mask is not None
        true = [truth_line(case, i, t, s, mask) for i, (t, s) in enumerate(zip(truths, samples, strict=False))]
        courses = courses_of(traces, split)
        if true:
            known = [[line["test_aggregated" if split else "aggregated"]] for line in true]
            courses["truth"] = np.asarray(known, dtype=np.float64)
        return Learned([*lines_of(case, traces, split), *true], courses, coefficients_of(traces) if history else {})


def learn_by_rules(
    learner: MakeLearner,
    graph: LatentGraph,
    samples: Sequence[dict[str, Tensor]],
    seeds: Sequence[int],
    rules: Sequence[str] = RULES,
    mask: Tensor | None = None,
    history: bool = False,
    keep: Keep = lambda rule, compute: compute(),
    **options: Any,
) -> dict[str, LearningTrace]:
    """Learn from several samples at once, each with a start of its own that all rules share.

    Args:
        learner: makes a learner; its graph, rule, epochs and kind of start are used.
        graph: to learn.
        samples: complete rows of each repeat, equally many.
        seeds: of the start of each repeat.
        rules: which to learn by.
        mask: (rows,) 1 for rows to learn from, 0 for rows to test, the same for all samples; all by default.
        history: keep the matrices of each epoch.
        keep: called with each rule and what learns by it; returns what that returns, or what was kept of it.
        options: of the learner, in place of its own.

    Returns:
        Rule -> course of learning, one entry per repeat.
    """
    rows = len(next(iter(samples[0].values())))
    learned = torch.ones(rows, dtype=torch.float64) if mask is None else mask.double()
    own = torch.eye(len(samples), dtype=torch.float64)  # each start sees its own sample only
    masks, held_out = (torch.kron(own, w[None]) for w in (learned, (learned == 0).double()))

    def course(rule: str) -> dict[str, Any]:
        model = learner(graph, rule=rule, progress=False, **options)
        evidence = {
            model.converted.entry[v]: torch.eye(graph.num_states(v), dtype=torch.float64)[
                torch.cat([s[v] for s in samples])
            ]
            for v in graph.observed
        }
        together = WeightedRows(evidence, masks, held_out)
        normal = model.converted.graph
        return vars(learn(normal, together, model.rule, model.settings.epochs, seeds, model.settings.start, history)[1])

    return {rule: LearningTrace(**keep(rule, partial(course, rule))) for rule in rules}


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
