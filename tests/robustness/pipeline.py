"""From a graph to answers and back from a file: what must hold for every network, and what for the well-behaved ones."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.oracle import Oracle, one_hot
from tests.robustness.networks import make_network
from torchpbp import PBP, DiscreteNetwork, LatentGraph
from torchpbp.errors import TorchPBPError, TorchPBPWarning

TOLERANCE = 1e-6
LARGEST_CONDITION = 1e3
"""Stage 2 amplifies rounding by its square along a path, so that answers stay exact to the tolerance below this."""
ROWS = 12
LARGEST_ORACLE = 20_000

Evidence = dict[str, Tensor]


def run_case(graph: LatentGraph, kind: str, seed: int, samples: int) -> Counter[str]:
    """Fit, ask, draw, save and load; raises AssertionError where an answer is invalid, wrong or lost.

    Args:
        graph: any.
        kind: of the network's tables.
        seed: of tables, evidence and draws.
        samples: rows to fit to; 0 for the population.

    Returns:
        What was seen: "rejected" (by an error of the library), "held to exactness", ….
    """
    seen: Counter[str] = Counter()
    try:
        network = make_network(graph, kind, seed)
    except TorchPBPError:
        return Counter(["impossible network"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no warning of torch or numpy either
        warnings.simplefilter("ignore", TorchPBPWarning)
        try:
            model = PBP(graph)
            model = model.fit(network.sample(samples, seed=seed)) if samples else model.fit_population(network)
        except TorchPBPError as error:
            return Counter([f"rejected: {type(error).__name__}"])
        with torch.no_grad():
            evidence = random_evidence(graph, seed)
            check_answers(model, evidence)
            check_draws(model, network, seed)
            check_file(model, evidence)
            seen["fitted to rows" if samples else "fitted to a population"] += 1
            if not samples and well_conditioned(model):
                check_exactness(model, network, evidence)
                seen["held to exactness"] += 1
    return seen


def check_learner(make: Callable[[LatentGraph], Any], network: DiscreteNetwork, rows: int, seed: int) -> bool:
    """Fit any learner to a sample and ask it; whether it took the network, rather than reject it with a reason."""
    evidence = random_evidence(network.graph, seed)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", TorchPBPWarning)
        try:
            with torch.enable_grad():
                model = make(network.graph).fit(network.sample(rows, seed=seed))
            answers, log_evidence = model.posteriors(evidence), model.log_evidence(evidence)
        except TorchPBPError:
            return False
    for v, table in answers.items():
        check_distribution(table, (ROWS, network.graph.num_states(v)), f"{type(model).__name__}: {v}")
    assert not log_evidence.isnan().any()
    return True


def random_evidence(graph: LatentGraph, seed: int) -> Evidence:
    """Rows that observe from nothing to everything, one variable in eight by weights."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.linspace(0, 1, ROWS)
    evidence: Evidence = {}
    for v in graph.observed:
        states = torch.randint(graph.num_states(v), (ROWS,), generator=generator)
        if float(torch.rand(1, generator=generator)) < 1 / 8:
            evidence[v] = torch.rand(ROWS, graph.num_states(v), generator=generator, dtype=torch.float64)
        else:
            evidence[v] = torch.where(torch.rand(ROWS, generator=generator) < share, states, -1)
    return evidence


def check_answers(model: PBP, evidence: Evidence) -> None:
    """Distributions are distributions of the right shape, and all ways of asking agree."""
    graph = model.graph
    together = model.posteriors(evidence)
    for v in graph.observed:
        states = graph.num_states(v)
        rest = {u: e for u, e in evidence.items() if u != v}
        check_distribution(model.posterior(v, rest), (ROWS if rest else 1, states), f"posterior of {v}")
        check_distribution(model.posterior(v), (1, states), f"marginal of {v}")
        if v in together:
            check_distribution(together[v], (ROWS, states), f"{v} among all posteriors")
            single = model.posterior(v, evidence)
            assert torch.allclose(single, together[v], atol=1e-9), f"{v}: posterior() and posteriors() differ"
    log_evidence = model.log_evidence(evidence)
    assert log_evidence.shape == (ROWS,)
    assert not log_evidence.isnan().any()
    assert not (log_evidence == math.inf).any()
    assert abs(float(model.log_evidence())) < 1e-6, "P(nothing) is not 1"
    pair = graph.observed[:2]
    if len(pair) == 2:
        shape = (1, *(graph.num_states(v) for v in pair))
        joint = model.posterior(pair)
        assert joint.shape == shape
        check_distribution(joint.flatten(1), (1, math.prod(shape)), f"joint of {pair}")


def check_distribution(table: Tensor, shape: tuple[int, ...], what: str) -> None:
    """Finite, not negative, and rows that sum to 1."""
    assert table.shape == shape, f"{what}: {tuple(table.shape)} instead of {shape}"
    assert table.isfinite().all(), f"{what}: not finite"
    assert (table >= 0).all(), f"{what}: negative"
    assert ((table.sum(dim=-1) - 1).abs() < 1e-6).all(), f"{what}: does not sum to 1"


def check_draws(model: PBP, network: DiscreteNetwork, seed: int) -> None:
    """Samples have the right shapes and states, keep the evidence, and repeat under a seed."""
    first = model.graph.observed[0]
    state = int(network.sample(1, seed=seed)[first][0])
    drawn, again = (model.sample(5, {first: [state, -1]}, seed=seed) for _ in range(2))
    assert list(drawn) == list(model.graph.observed)
    for v, values in drawn.items():
        assert values.shape == (5, 2), v
        assert ((values >= 0) & (values < model.graph.num_states(v))).all(), v
        assert torch.equal(values, again[v]), v
    assert (drawn[first][:, 0] == state).all()


def check_file(model: PBP, evidence: Evidence) -> None:
    """A model read from its file gives the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pt")
        model.save(path)
        loaded = PBP.load(path)
        assert [p.name for p in Path(folder).iterdir()] == ["model.pt"]
    assert torch.equal(loaded.log_evidence(evidence), model.log_evidence(evidence))
    again = loaded.posteriors(evidence)
    for v, table in model.posteriors(evidence).items():
        assert torch.equal(again[v], table), v


def well_conditioned(model: PBP) -> bool:
    """Whether every separator reaches the rank it needs, with room to spare."""
    table = model.diagnostics(rows=2)
    reached = (table["reached"] >= table["needed"]) & (table["rank"] >= table["needed"])
    return bool(reached.all() and (table["condition"] < LARGEST_CONDITION).all())


def check_exactness(model: PBP, network: DiscreteNetwork, evidence: Evidence) -> None:
    """Answers of a population fit are those of the network, wherever its evidence is possible."""
    exact = network.log_evidence(evidence)
    graph = network.graph
    if math.prod(graph.num_states(v) for v in graph.names) <= LARGEST_ORACLE:  # the reference itself, by enumeration
        weights = {
            v: e.numpy() if e.ndim == 2 else one_hot(e.numpy(), graph.num_states(v)) for v, e in evidence.items()
        }
        enumerated = torch.from_numpy(Oracle.of(network).log_evidence(weights, ROWS))
        assert torch.allclose(exact, enumerated, atol=1e-9), "the exact engine is wrong"
    likely = exact > math.log(1e-6)  # rarer evidence is beyond what rounding leaves
    error = (model.log_evidence(evidence) - exact)[likely].abs()
    assert (error < TOLERANCE).all(), f"log evidence is off by {float(error.max()):.3g}"
    kept = {v: e[likely] for v, e in evidence.items()}
    if not bool(likely.any()):
        return
    answers, truth = model.posteriors(kept), network.posteriors(kept)
    assert answers.keys() == truth.keys()
    for v, table in truth.items():
        off = float((answers[v] - table).abs().max())
        assert off < TOLERANCE, f"posterior of {v} is off by {off:.3g}"
