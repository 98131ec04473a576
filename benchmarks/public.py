"""Work on public names of torchpbp only, which other checkouts have too: for ``versions``, ``trace`` and ``startup``."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import torchpbp
from benchmarks.networks import arrays, draw_evidence, example_network, network_of, renamed, tables_of
from benchmarks.this_library import exact_queries, pbp_queries
from benchmarks.work import Answer, Work, memory_of, needs
from torchpbp import PBP, Continuous, DiscreteNetwork, LatentGraph, PBPLayer, templates

Graph = Callable[[], LatentGraph]


def numbers(tensor: Tensor) -> Answer:
    """The first rows of a tensor."""
    return {"numbers": tensor.detach()[:50].numpy()}


def small_diamond() -> LatentGraph:
    """The graph of the README: four latents of two states in a loop, each with two observables of four states."""
    return templates.diamond(states=2, observed_states=4, leaves=2)


def sample(graph: LatentGraph, rows: int) -> dict[str, Tensor]:
    """Rows of a random network."""
    return DiscreteNetwork.random(graph, seed=1).sample(rows, seed=2)


def fitted(graph: LatentGraph) -> PBP:
    """A model fitted to such rows."""
    return PBP(graph).fit(sample(graph, 2_000))


# -- construction and learning -----------------------------------------------------------------------------------------


def construction(graph: Graph, anew: bool = False) -> Work:
    """``PBP(graph)`` of one graph, whose plan is cached; or of the same graph under ever new names, planned anew."""
    structure, prefixes = graph(), itertools.count()
    return Work(lambda: PBP(renamed(structure, f"{next(prefixes)}_") if anew else structure))


def fit(graph: Graph, rows: int, frame: bool = False) -> Work:
    """Fit to rows of a random network, as tensors or as a DataFrame; the answer is the likelihood of the first rows."""
    import pandas as pd

    structure = graph()
    data, model = sample(structure, rows), PBP(structure)
    first = {v: x[:50] for v, x in data.items()}
    table = pd.DataFrame(arrays(data)) if frame else data
    return Work(lambda: model.fit(table), lambda model: numbers(model.log_evidence(first)))


def fit_mixed(rows: int) -> Work:
    """Fit to normal and discrete columns around a hidden chain; the answer are posteriors."""
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
    evidence = {v: x[:50] for v, x in data.items() if v != "c0"}
    return Work(lambda: PBP(graph).fit(data), lambda model: numbers(model.posterior("c0", evidence)))


def fit_nets(rows: int) -> Work:
    """Fit with small networks in stage 1, one epoch."""
    nets = torchpbp.MLP(hidden=[16], epochs=1, trainer={"enable_progress_bar": False})
    data, model = sample(small_diamond(), rows), PBP(small_diamond(), regressor=nets)
    return Work(lambda: model.fit(data))


def module_step(rows: int) -> Work:
    """Forward, backward and optimiser step of a :class:`torchpbp.PBPModule`; the answer is whether the loss is finite."""
    import lightning

    data, module = sample(small_diamond(), rows), torchpbp.PBPModule(PBP(small_diamond()), target="d1")
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(module, torchpbp.TableLoader(data, rows))
    module.train()
    module.setup("fit")
    module.log = lambda *arguments, **options: None  # outside of a training there is nothing to log to
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], 1e-3)

    def run() -> Tensor:
        optimizer.zero_grad()
        loss = module.training_step(data, 0)
        loss.backward()
        optimizer.step()
        return loss

    return Work(run, lambda loss: numbers(torch.where(loss.isfinite(), 1.0, torch.nan)[None]))


def likelihood(graph: Graph, rows: int) -> Work:
    """Maximum likelihood; the answer is the mean log-likelihood of the rows."""
    structure = graph()
    data, learner = sample(structure, rows), torchpbp.MaximumLikelihood(structure, progress=False)
    return Work(lambda: learner.fit(data), lambda model: numbers(model.log_evidence(data).mean()[None]))


def fit_memory(rows: int) -> Work:
    """Megabytes by which a fit raises the peak of memory, beyond its rows; measures itself."""
    data, model = sample(templates.diamond(), rows), PBP(templates.diamond())
    fitted(small_diamond())  # lazy imports
    return Work(lambda: memory_of(lambda: model.fit(data))[1], lambda megabytes: {"MB": np.array(megabytes)})


# -- queries -----------------------------------------------------------------------------------------------------------


def posteriors(graph: Graph, rows: int) -> Work:
    """All posteriors of many rows by a fitted model, each with its own 30 % of the variables observed."""
    truth = DiscreteNetwork.random(graph(), seed=1)
    return pbp_queries(tables_of(truth), tuple(truth.graph.latent), draw_evidence(truth, rows), rows=2_000)


@needs("torchpbp", "pgmpy")
def exact(rows: int, one_by_one: bool = False) -> Work:
    """Exact inference in ALARM: all posteriors of a batch, or one variable row by row."""
    network = example_network("alarm")
    evidence = draw_evidence(network_of(network), rows)
    if not one_by_one:
        return exact_queries(network, evidence)
    query = next(reversed(evidence))
    return exact_queries(network, {v: x for v, x in evidence.items() if v != query}, query)


def one_posterior() -> Work:
    """The posterior of one variable in one row."""
    model = fitted(small_diamond())
    return Work(lambda: model.posterior("d1", {"a1": 0, "b2": 1}), lambda answer: numbers(answer.reshape(1, -1)))


# -- the layer ---------------------------------------------------------------------------------------------------------


def one_row() -> Work:
    """One row through a :class:`torchpbp.PBPLayer`, without gradients."""
    layer, evidence = PBPLayer(fitted(small_diamond())), {"a1": torch.tensor([0]), "b2": torch.tensor([1])}

    @torch.no_grad()
    def run() -> Mapping[str, Tensor]:
        return layer(evidence)

    return Work(run, lambda out: numbers(out["d1"]))


def layer_step(rows: int) -> Work:
    """Forward and backward through a :class:`torchpbp.PBPLayer` with soft evidence; the answer is its gradient."""
    generator = torch.Generator().manual_seed(6)
    scores = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
    observed = torch.randint(6, (rows,), generator=generator)
    return _step(PBPLayer(fitted(templates.diamond())), {"a1": scores.softmax(dim=1)}, {"b2": observed}, "d1")


def class_step(rows: int) -> Work:
    """Forward and backward through the operators of ten classes, with weights of eight leaves in float32."""
    nodes = ["h", *(f"h{i}" for i in range(2, 8)), *(f"x{i}" for i in range(8))]  # a binary tree
    hidden, leaves = nodes[:7], nodes[7:]
    edges = [*((nodes[(i - 1) // 2], v) for i, v in enumerate(nodes) if i), *(("y", v) for v in nodes)]
    graph = LatentGraph(edges, {"y": 10, **dict.fromkeys(hidden, 10), **dict.fromkeys(leaves, 8)}, hidden)
    generator = torch.Generator().manual_seed(7)
    data = {v: torch.randint(graph.num_states(v), (4_000,), generator=generator) for v in graph.observed}
    layer = PBPLayer(PBP(graph, condition="y", dtype=torch.float32).fit(data))
    return _step(layer, {v: torch.rand(rows, 8, generator=generator) for v in leaves}, {}, "y")


def _step(layer: PBPLayer, soft: Mapping[str, Tensor], states: Mapping[str, Tensor], target: str) -> Work:
    """Gradients of −log P(target = 0 | evidence) by weights and by the operators."""
    weights = {v: weight.requires_grad_() for v, weight in soft.items()}

    def run() -> list[Tensor]:
        loss = -layer({**weights, **states})[target][:, 0].log().sum()
        return list(torch.autograd.grad(loss, [*weights.values(), *layer.parameters()], allow_unused=True))

    return Work(run, lambda gradients: numbers(torch.cat(gradients[: len(weights)], dim=1)))


def compilation(rows: int, backend: str = "inductor") -> Work:
    """Seconds and graph breaks of compiling a layer; measures itself."""
    import torch._dynamo
    import torch._inductor.config

    layer = PBPLayer(fitted(small_diamond()))
    evidence = {v: torch.arange(rows) % 4 for v in ("a1", "b2")}
    torch._inductor.config.force_disable_caches = True

    @torch.no_grad()
    def run() -> Answer:
        start = time.perf_counter()
        torch.compile(layer, backend=backend)(evidence)
        seconds = time.perf_counter() - start
        torch._dynamo.reset()
        breaks = torch._dynamo.explain(layer)(evidence).graph_break_count
        return {"seconds": np.array(seconds), "graph breaks": np.array(breaks)}

    return Work(run, lambda result: result)


# -- files and imports -------------------------------------------------------------------------------------------------


def fresh_interpreter(arguments: Sequence[str]) -> Work:
    """A Python process with some arguments in the folder of the checkout, from start to end."""
    command, folder = [sys.executable, *arguments], Path(torchpbp.__file__).parents[1]
    quiet = subprocess.DEVNULL
    return Work(lambda: subprocess.run(command, cwd=folder, env=dict(os.environ), check=True, stdout=quiet))


def load(sites: int, plain: bool = False) -> Work:
    """Load a model of a chain from a file that the same checkout has written; or its tensors alone, by ``torch.load``."""
    model, folder = fitted(templates.hmm(sites)), tempfile.TemporaryDirectory()
    path = Path(folder.name, "model.pt")
    if plain:
        torch.save(model.state_dict(), path)
        return Work(lambda keep=folder: torch.load(path, weights_only=True))
    model.save(path)
    evidence = sample(model.graph, 3)
    return Work(lambda keep=folder: torchpbp.load(path), lambda model: numbers(model.log_evidence(evidence)))
