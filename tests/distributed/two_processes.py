"""Fits models in one of several processes, each with its share of the rows; run by test_two_processes.py."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from torchpbp import (
    EM,
    MLP,
    PBP,
    Continuous,
    DiscreteNetwork,
    KernelRidge,
    LatentGraph,
    MaximumLikelihood,
    Messages,
    NormalGraphLearner,
    Nystroem,
    OnlineEM,
    SpectralJunctionTree,
    templates,
)
from torchpbp.distributed import own_share, process_rank, world_size
from torchpbp.errors import DataError, DataWarning, StructureError


def models(processes: int) -> dict[str, tuple[PBP, dict[str, torch.Tensor]]]:
    """Models to fit, with their data."""
    network = DiscreteNetwork.random(templates.hmm(4), seed=0)
    data = network.sample(701, seed=1)
    generator = torch.Generator().manual_seed(0)
    h = torch.randint(2, (301,), generator=generator)
    mixed = LatentGraph(
        [("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": Continuous(), "y": Continuous(), "z": 2}, ["h"]
    )
    values = {
        "x": 2.0 * h + torch.randn(301, generator=generator),
        "y": torch.randn(301, generator=generator) - h,
        "z": h,
    }
    trainer = {"accelerator": "cpu", "devices": processes, "enable_progress_bar": False}
    if processes > 1:
        trainer["strategy"] = "ddp"
    nets = {"hidden": [8], "folds": 2, "epochs": 5, "dtype": torch.float64, "trainer": trainer}
    unknown = network.graph.with_states(dict.fromkeys(network.graph.latent))
    return {
        "ridge": (PBP(network.graph), data),
        "features": (PBP(mixed, features=Nystroem(5)), values),
        "kernel_ridge": (PBP(network.graph, regressor=KernelRidge(landmarks=40)), data),
        "mlp": (PBP(network.graph, regressor=MLP(linear=False, **nets)), data),
        "messages": (PBP(network.graph, regressor=Messages(rounds=2)), data),
        "mlp and linear": (PBP(network.graph, regressor=MLP(**nets)), data),
        "mixed mlp": (PBP(mixed, features=Nystroem(5), regressor=MLP(**nets)), values),
        "rank": (PBP(unknown, rank=2, regressor=KernelRidge(landmarks=40)), data),
    }


def fit_all(processes: int) -> dict[str, list[torch.Tensor]]:
    """Operators of all models."""
    found = {}
    for name, (model, data) in models(processes).items():
        share = own_share(len(next(iter(data.values()))))
        model.fit({v: x[share] for v, x in data.items()})
        found[name] = [p.detach() for p in model.parameters()]
    found["spectral"] = fit_spectral()
    found["in parts"] = [p.detach() for p in fit_in_parts().parameters()]
    return found | fit_by_likelihood()


def fit_in_parts() -> PBP:
    """Rows that come in two parts, as arrays; each process has its share of both."""
    network = DiscreteNetwork.random(templates.hmm(4), seed=0)
    data = network.sample(701, seed=1)
    model = PBP(network.graph)
    for rows in (slice(0, 400), slice(400, 701)):
        part = torch.stack([data[v][rows] for v in network.graph.observed], dim=1).to(torch.uint8).numpy()
        model.partial_fit(part[own_share(len(part))])
    assert model.counts is not None
    assert model.counts.rows == 701  # of all processes
    own = model.count({v: x[own_share(701)] for v, x in data.items()})
    assert own.rows == len(range(*own_share(701).indices(701)))  # of this one
    return model


def fit_spectral() -> list[torch.Tensor]:
    """Estimates of the spectral algorithm, whose singular vectors have signs of their own."""
    network = DiscreteNetwork.random(templates.hmm(4), seed=0)
    data = network.sample(701, seed=1)
    model = SpectralJunctionTree(network.graph).fit({v: x[own_share(701)] for v, x in data.items()})
    assert model.rows == 701
    return [model.estimates({v: x[:50] for v, x in data.items()})]


def fit_by_likelihood() -> dict[str, list[torch.Tensor]]:
    """Tables and objectives of expectation maximisation, from incomplete rows."""
    network = DiscreteNetwork.random(templates.diamond(observed_states=3, leaves=1), seed=0)
    data = network.sample(301, seed=1)
    data["a1"][:150] = -1  # the first process never sees this variable
    data["b1"][::5] = -1
    share = {v: x[own_share(301)] for v, x in data.items()}
    learners = {
        "em": EM(network.graph, restarts=3, max_steps=15, progress=False),
        "em, one stops early": EM(network.graph, restarts=3, max_steps=60, relative_tolerance=1e-3, progress=False),
        # Mini-batches so small that some have no row of one of the processes.
        "online em": OnlineEM(network.graph, batch_size=3, max_steps=2, exponents=(0.6, 0.9), progress=False),
    }
    found = {}
    for name, learner in learners.items():
        learner.fit(share)
        objectives = [torch.tensor(run.objective, dtype=torch.float64) for run in learner.runs]
        found[name] = [*learner.network.cpts.values(), *objectives]
    likelihood = MaximumLikelihood(network.graph, progress=False).fit(share)
    found["maximum likelihood"] = [*likelihood.network.cpts.values()]
    if world_size() > 1:
        raises(lambda: NormalGraphLearner(templates.naive_bayes(3)).fit({f"x{i}": [0, 1] for i in (1, 2, 3)}))
        gone = {v: x if process_rank() else torch.full_like(x, -1) for v, x in share.items()}
        raises(lambda: EM(network.graph, progress=False).fit(gone))
        words = {v: [f"{process_rank()}{i}" for i in x.clamp(min=0).tolist()] for v, x in share.items()}
        raises(lambda: EM(network.graph, progress=False).fit(words))
    return found


def raises(call: Callable[[], object]) -> None:
    """Every process must raise: one that continued would wait for the others."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            call()
    except (DataError, StructureError):
        return
    raise AssertionError("no error was raised")


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    operators = fit_all(dist.get_world_size())
    torch.save(operators, Path(sys.argv[1]) / f"operators{process_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()
