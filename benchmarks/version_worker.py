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
from typing import Any

import torch
from torch import Tensor

import torchpbp
from torchpbp import PBP, Continuous, DiscreteNetwork, LatentGraph, PBPLayer, templates

Work = Callable[[], Any]
Answer = Callable[[Any], Tensor]


def fit_discrete(graph: LatentGraph, rows: int) -> tuple[Work, Answer]:
    """Fit to rows of a random network; the answer is the likelihood of the first rows."""
    data = DiscreteNetwork.random(graph, seed=1).sample(rows, seed=2)
    first = {v: x[:100] for v, x in data.items()}
    return lambda: PBP(graph).fit(data), lambda model: model.log_evidence(first)


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
    generator = torch.Generator().manual_seed(4)
    evidence = {
        v: torch.where(torch.rand(rows, generator=generator) < 0.3, x, -1)
        for v, x in truth.sample(rows, seed=5).items()
    }

    def work() -> dict[str, Tensor]:
        with torch.no_grad():
            answers: dict[str, Tensor] = model.posteriors(evidence)
            return answers

    return work, lambda answers: torch.cat([p[:20].flatten() for p in answers.values()])


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
    if name == "PBPLayer, forward and backward":
        return layer_step(rows // 20)
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
