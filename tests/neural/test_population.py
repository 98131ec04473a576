"""Nets with random weights on exact moments of known networks: answers are exact, whatever the nets compute.

Ridges are 0, no leaf is hidden while moments are taken, evidence has no residual and the target no link.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from torchpbp import PBP, Continuous, DiscreteNetwork, LatentGraph, PBPModule, templates
from torchpbp.learning.message_nets import Masking
from torchpbp.learning.net_fitting import NetFitter, Rows
from torchpbp.learning.population import population_rows
from torchpbp.models.pbp import evaluation_mode

EXACT = 1e-8
GRAPHS = {
    "naive Bayes": templates.naive_bayes(4, states=2, observed_states=3),
    "chain": templates.hmm(5, states=2, observed_states=3),
    "tree": templates.latent_tree(depth=1, branching=3, leaves=2, states=2, observed_states=3),
    "loop": templates.diamond(observed_states=2),
    "nested loops": templates.nested_loops(observed_states=2),
    "loopy network": templates.loopy_network(observed_states=3),
}


def exact_module(model: PBP, target: str | None = None) -> PBPModule:
    """A module whose nets are random and whose ridges are 0."""
    module = PBPModule(model, target, hidden=[6], residual=False, link=False)
    model.nets.double()
    with torch.no_grad():
        model.nets.log_ridge.fill_(-torch.inf)
        if model.encoders is not None:
            model.encoders.log_ridge.fill_(-torch.inf)
    return module


def half_hidden(rows: Mapping[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {v: torch.where(torch.rand(len(x), generator=generator) < 0.5, x, -1) for v, x in rows.items()}


def with_class(graph: LatentGraph, kind: str) -> LatentGraph:
    """The graph with a class that all latents, or half of the observables, depend on."""
    children = graph.latent if kind == "latents" else graph.observed[::2]
    variables = {**{v: graph.variables[v] for v in graph.names}, "class": 3}
    return LatentGraph([*graph.edges, *(("class", v) for v in children)], variables, latent=list(graph.latent))


def check_answers(model: PBP, truth: DiscreteNetwork) -> None:
    """Posteriors and probabilities of half-hidden rows are those of the network."""
    evidence = half_hidden(truth.sample(100, seed=1))
    with torch.no_grad():
        found, expected = model.posteriors(evidence), truth.posteriors(evidence)
        assert max(float((found[v] - expected[v]).abs().max()) for v in truth.graph.observed) < EXACT
        assert float((model.log_evidence(evidence) - truth.log_evidence(evidence)).abs().max()) < EXACT


@pytest.mark.parametrize("name", GRAPHS)
def test_discrete_leaves(name: str) -> None:
    truth = DiscreteNetwork.random(GRAPHS[name], seed=3)
    module = exact_module(PBP(truth.graph))
    check_answers(module.model.fit_population(truth), truth)


OWN = {  # leaves that are their own messages, the same for all classes
    "naive Bayes of full rank": templates.naive_bayes(3, states=2, observed_states=2),
    "chain of full rank": templates.hmm(4, states=2, observed_states=2),
}


@pytest.mark.parametrize("kind", ["latents", "observables"])
@pytest.mark.parametrize("name", ["naive Bayes", "chain", "loop", *OWN])
def test_classes(name: str, kind: str) -> None:
    truth = DiscreteNetwork.random(with_class({**GRAPHS, **OWN}[name], kind), seed=3)
    model = exact_module(PBP(truth.graph, condition="class")).model.fit_population(truth)
    assert model.operators.root.weight.shape[0] == 3
    check_answers(model, truth)


def test_the_modules_own_scores_are_those_of_the_network() -> None:
    truth = DiscreteNetwork.random(with_class(GRAPHS["loop"], "latents"), seed=3)
    module = exact_module(PBP(truth.graph, condition="class"))
    module.model.fit_population(truth)
    rows = truth.sample(200, seed=1)
    rows = {**half_hidden(rows), "class": rows["class"]}
    posterior = truth.posterior("class", {v: x for v, x in rows.items() if v != "class"})
    loss = -posterior.gather(1, rows["class"].unsqueeze(1)).log().mean()
    scores = module.answers.scores(rows)
    assert abs(float(scores["loss"][0]) - float(loss)) < EXACT
    assert float(scores["accuracy"][0]) == float((posterior.argmax(dim=1) == rows["class"]).double().mean())


# -- encoders that keep a one-hot vector as it is ----------------------------------------------------------------------


class Entries(nn.Module):
    """The first entries of a vector; all of them depend on the constant that the model adds, all but one do not."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, values: Tensor) -> Tensor:
        return values[:, : self.count]


def one_hot(rows: Mapping[str, Tensor], states: Mapping[str, int], keep: tuple[str, ...]) -> dict[str, Tensor]:
    """States as one-hot vectors, NaN where missing; some variables stay as they are."""
    result = {}
    for v, x in rows.items():
        vectors = torch.eye(states[v], dtype=torch.float64)[x.clamp(min=0)]
        result[v] = x if v in keep else torch.where((x >= 0).unsqueeze(1), vectors, torch.nan)
    return result


@pytest.mark.parametrize("left_out", [0, 1])
@pytest.mark.parametrize(("name", "condition"), [*((name, False) for name in GRAPHS), ("loop", True), ("chain", True)])
def test_one_hot_encoders(name: str, condition: bool, left_out: int) -> None:
    graph = with_class(GRAPHS[name], "latents") if condition else GRAPHS[name]
    truth = DiscreteNetwork.random(graph, seed=3)
    target = "class" if condition else graph.observed[0]
    states = {v: truth.states[v] for v in graph.observed}
    shaped = {v: Continuous(shape=(k,)) for v, k in states.items() if v != target}
    variables = {v: shaped.get(v, graph.variables[v]) for v in graph.names}
    encoders = {v: Entries(states[v] - left_out) for v in shaped}
    model = PBP(
        LatentGraph(list(graph.edges), variables, latent=list(graph.latent)),
        features=encoders,
        condition=target if condition else None,
    )
    module = exact_module(model, target)
    joint = population_rows(truth, states, "the test")
    table = one_hot(dict(zip(joint.names, joint.content.unbind(1), strict=True)), states, (target,))
    fitter = model.fitter()
    assert isinstance(fitter, NetFitter)
    with evaluation_mode(model.encoders, model.stage1):
        result = fitter.solve(lambda: iter([Rows(table, joint.weights)]), Masking(0.0, 0.0), shrinkage=0.0)
    model._adopt(result, {}, {})

    rows = truth.sample(100, seed=1)
    evidence = {v: x for v, x in half_hidden(rows).items() if v != target}
    with torch.no_grad():
        found = model.posterior(target, one_hot(evidence, states, ()))
    expected = truth.posterior(target, evidence)
    assert float((found - expected).abs().max()) < EXACT
    loss = -expected.gather(1, rows[target].unsqueeze(1)).log().mean()
    scores = module.answers.scores(one_hot({**evidence, target: rows[target]}, states, (target,)))
    assert abs(float(scores["loss"][0]) - float(loss)) < EXACT
