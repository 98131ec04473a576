"""Work timed by ``benchmarks.versions``, in a process that imports torchpbp from one checkout.

Runs as a script. Only public names of torchpbp are used, for checkouts may differ in everything else. A command is a line of JSON on
the standard input, its reply a line of JSON on the standard output.
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torchpbp
from torchpbp import PBP, Continuous, DiscreteNetwork, Evidence, LatentGraph, PBPLayer, templates

STRUCTURES: dict[str, Callable[[], LatentGraph]] = {  # of experiment=precision
    "diamond": lambda: templates.diamond(states=2, observed_states=6, leaves=2),
    "hmm": lambda: templates.hmm(6, states=3, observed_states=4),
    "latent_tree": lambda: templates.latent_tree(2, 2, states=2, observed_states=4, leaves=2),
    "loopy_network": lambda: templates.loopy_network(states=2, observed_states=6),
    "naive_bayes": lambda: templates.naive_bayes(5, states=3, observed_states=4),
    "nested_loops": lambda: templates.nested_loops(states=2, observed_states=5),
    "factorial_hmm": lambda: templates.factorial_hmm(4, 2, states=2, observed_states=6),
}

Work = Callable[[], Any]
Answer = Callable[[Any], Tensor]


def fit_discrete(graph: LatentGraph, rows: int) -> tuple[Work, Answer]:
    """Fit to rows of a random network; the answer is the likelihood of the first rows."""
    data = DiscreteNetwork.random(graph, seed=1).sample(rows, seed=2)
    first = {v: x[:100] for v, x in data.items()}
    return lambda: PBP(graph).fit(data), lambda model: model.log_evidence(first)


def likelihood(graph: LatentGraph, rows: int, networks: int) -> tuple[Work, Answer]:
    """Tables of hidden variables from samples of several networks, by the quickest way that a checkout has: MaximumLikelihood, or
    ten starts of EM; the answer is the mean log-likelihood of rows that were not seen."""
    truths = [DiscreteNetwork.random(graph, seed) for seed in range(networks)]
    samples = [truth.sample(rows, seed=100 + i) for i, truth in enumerate(truths)]
    unseen = [truth.sample(1_000, seed=200 + i) for i, truth in enumerate(truths)]
    if hasattr(torchpbp, "MaximumLikelihood"):
        make = partial(torchpbp.MaximumLikelihood, graph, tolerance=1.0, progress=False)
    else:
        make = partial(torchpbp.EM, graph, restarts=10, tolerance=1e-6, prior=1.0, progress=False)

    def answer(models: list[Any]) -> Tensor:
        return torch.stack([m.log_evidence(x).mean() for m, x in zip(models, unseen, strict=True)])

    return lambda: [make().fit(sample) for sample in samples], answer


def fit_mixed(rows: int) -> tuple[Work, Answer]:
    """Fit to normal and discrete columns around a hidden chain."""
    hidden = [f"h{t}" for t in range(4)]
    edges = [*itertools.pairwise(hidden), *((h, "xyc"[i] + h[1]) for h in hidden for i in range(3))]
    domains = {"h": 2, "x": Continuous(), "y": Continuous(), "c": 3}
    graph = LatentGraph(edges, {v: domains[v[0]] for edge in edges for v in edge}, hidden)
    generator = torch.Generator().manual_seed(3)
    state = torch.randint(2, (rows,), generator=generator)
    data: dict[str, Tensor] = {}
    for t in range(len(hidden)):
        state = torch.where(torch.rand(rows, generator=generator) < 0.8, state, 1 - state)
        for axis in "xy":
            data[f"{axis}{t}"] = 2.0 * state + torch.randn(rows, generator=generator, dtype=torch.float64)
        data[f"c{t}"] = (state + torch.randint(2, (rows,), generator=generator)).clamp(max=2)
    evidence = {v: x[:100] for v, x in data.items() if v != "c0"}
    return lambda: PBP(graph).fit(data), lambda model: model.posterior("c0", evidence)


def posteriors(graph: LatentGraph, rows: int) -> tuple[Work, Answer]:
    """All posteriors of many rows, each with its own 30 % of the variables observed."""
    truth = DiscreteNetwork.random(graph, seed=1)
    model = PBP(graph).fit(truth.sample(2_000, seed=2))
    evidence = shown_rows(truth, rows)

    def work() -> dict[str, Tensor]:
        with torch.no_grad():
            answers: dict[str, Tensor] = model.posteriors(evidence)
            return answers

    return work, lambda answers: torch.cat([p[:20].flatten() for p in answers.values()])


def alarm() -> DiscreteNetwork:
    """ALARM, whose file comes with pgmpy."""
    spec = find_spec("pgmpy")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("ALARM comes with pgmpy: pip install pgmpy")
    network = DiscreteNetwork.from_bif(Path(spec.origin).parent / "utils" / "example_models" / "alarm.bif.gz")
    return DiscreteNetwork(network.graph, network.cpts)  # states by number


def shown_rows(network: DiscreteNetwork, rows: int) -> dict[str, Tensor]:
    """name -> (rows,) states, each variable observed in 30 % of the rows, -1 in the others."""
    generator = torch.Generator().manual_seed(4)
    drawn = network.sample(rows, seed=5).items()
    return {v: torch.where(torch.rand(rows, generator=generator) < 0.3, x, -1) for v, x in drawn}


def exact_posteriors(rows: int) -> tuple[Work, Answer]:
    """All posteriors of many rows by exact inference."""
    network = alarm()
    evidence = shown_rows(network, rows)
    return lambda: network.posteriors(evidence), lambda answers: torch.cat([p[:20].flatten() for p in answers.values()])


def exact_queries(rows: int) -> tuple[Work, Answer]:
    """One variable, row by row, by exact inference."""
    network = alarm()
    evidence = shown_rows(network, rows)
    query = list(evidence)[-1]
    cells = {v: x.tolist() for v, x in evidence.items() if v != query}
    given = [{v: x[i] for v, x in cells.items() if x[i] >= 0} for i in range(rows)]
    return lambda: [network.posterior(query, row) for row in given], lambda answers: torch.cat(answers)


def class_step(rows: int) -> tuple[Work, Answer]:
    """Forward and backward through the operator trees of ten classes, with weights of eight leaves in float32."""
    nodes = ["h", *(f"h{i}" for i in range(2, 8)), *(f"x{i}" for i in range(8))]  # a binary tree
    hidden, leaves = nodes[:7], nodes[7:]
    edges = [*((nodes[(i - 1) // 2], v) for i, v in enumerate(nodes) if i), *(("y", v) for v in nodes)]
    graph = LatentGraph(edges, {"y": 10, **dict.fromkeys(hidden, 10), **dict.fromkeys(leaves, 8)}, hidden)
    model = PBP(graph, condition="y", dtype=torch.float32)
    generator = torch.Generator().manual_seed(7)
    model.fit({v: torch.randint(graph.num_states(v), (4_000,), generator=generator) for v in graph.observed})
    weights = {v: torch.rand(rows, 8, generator=generator).requires_grad_() for v in leaves}

    def work() -> Tensor:
        model.zero_grad()
        for w in weights.values():
            w.grad = None
        estimate = model.operator_tree.class_estimates(Evidence(rows, {}, weights))
        (estimate / estimate.detach().norm(dim=1, keepdim=True)).square().sum(dim=1)[:].mean().backward()
        gradients = [w.grad for w in weights.values() if w.grad is not None]
        return torch.stack(gradients)

    return work, lambda gradients: gradients[:, :20] * rows


def layer_step(rows: int) -> tuple[Work, Answer]:
    """Forward and backward through a :class:`torchpbp.PBPLayer` with soft evidence; the answer is the gradient of the evidence."""
    graph = templates.diamond()
    data = DiscreteNetwork.random(graph, seed=1).sample(2_000, seed=2)
    layer = PBPLayer(PBP(graph).fit(data))
    generator = torch.Generator().manual_seed(6)
    scores = torch.randn(rows, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    observed = torch.randint(6, (rows,), generator=generator)

    def work() -> Tensor:
        scores.grad = None
        layer.zero_grad()
        out = layer({"a1": torch.softmax(scores, dim=1), "b2": observed})
        (-out["d1"][:, 0].log().mean()).backward()
        assert scores.grad is not None
        return scores.grad

    return work, lambda gradient: gradient[:100] * rows


def case(name: str, tiny: bool) -> tuple[Work, Answer]:
    """The work of one case, and how to turn its result into numbers.

    Args:
        name: one of :data:`benchmarks.versions.CASES`.
        tiny: whether few rows will do, as in tests.
    """
    rows = 200 if tiny else 20_000
    if name == "fit, diamond":
        return fit_discrete(templates.diamond(), rows)
    if name == "fit, hidden Markov model":
        return fit_discrete(templates.hmm(10), rows)
    if name == "fit, loopy network":
        return fit_discrete(templates.loopy_network(), rows)
    if name == "fit, mixed chain":
        return fit_mixed(rows // 4)
    if name == "posteriors, diamond":
        return posteriors(templates.diamond(), rows // 2)
    if name == "posteriors, chain of 60":
        return posteriors(templates.hmm(60), rows // 20)
    if name == "exact posteriors, ALARM":
        return exact_posteriors(rows // 20)
    if name == "exact queries one by one, ALARM":
        return exact_queries(rows // 1000 or 2)
    if name == "classes, forward and backward":
        return class_step(32 if tiny else 256)
    if name == "PBPLayer, forward and backward":
        return layer_step(rows // 20)
    if name.startswith("likelihood, "):
        _, structure, size = name.split(", ")
        count = int(size.removesuffix(" rows").replace(",", ""))
        return likelihood(STRUCTURES[structure](), rows if tiny else count, 2 if tiny else 10 if count <= 10_000 else 3)
    raise KeyError(name)


def serve() -> None:
    """Answer commands until the input ends: [case, tiny] prepares, a number measures so many calls in a row."""
    work: Work | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if isinstance(command, list):
                work, answer = case(*command)
                numbers = answer(work()).detach().flatten().tolist()
                reply: dict[str, Any] = {"answer": numbers, "seconds": measure(work, 1)[0]}
            else:
                assert work is not None
                gc.collect()
                reply = dict(zip(("wall", "cpu"), measure(work, command), strict=True))
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


def measure(work: Work, calls: int) -> tuple[float, float]:
    """Seconds per call, by the wall clock and of the processor."""
    gc.disable()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        work()
    seconds = (time.perf_counter() - wall) / calls, (time.process_time() - cpu) / calls
    gc.enable()
    return seconds


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps({"package": torchpbp.__file__, "threads": torch.get_num_threads()}), flush=True)
    serve()
