"""Fits on a second device, emulated on any machine, against the same fits on the CPU.

Whatever a learner left on the CPU, or read there with numpy, raises an error; see :mod:`tests.emulated_device`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.test_devices import gappy_rows, mixed_rows, regressors
from torchpbp import (
    EM,
    PBP,
    DiscreteNetwork,
    KernelPBP,
    LatentGraph,
    MaximumLikelihood,
    Messages,
    NormalGraphLearner,
    Nystroem,
    OnlineEM,
    SpectralJunctionTree,
    templates,
)
from torchpbp.errors import DeviceError
from torchpbp.models.likelihood import expectation
from torchpbp.models.likelihood.layout import FamilyLayout

emulated = pytest.importorskip(
    "tests.emulated_device", exc_type=ImportError
)  # newer versions of torch have what it needs
pytestmark = pytest.mark.filterwarnings("ignore")  # few rows and steps; latents that are not identified

Table = dict[str, Tensor]


@pytest.fixture
def device() -> Iterator[str]:
    with emulated.emulated_device() as name:
        yield name


def moved(table: Table, device: str) -> Table:
    return {v: x.to(device) for v, x in table.items()}


def chain() -> tuple[LatentGraph, Table]:
    network = DiscreteNetwork.random(templates.hmm(3, 2, 3), seed=0)
    return network.graph, network.sample(200, seed=1)


def with_gaps(table: Table) -> Table:
    numbers = torch.arange(len(next(iter(table.values()))))
    return {
        v: x.where(numbers % 7 != i, torch.nan if x.is_floating_point() else -1)
        for i, (v, x) in enumerate(table.items())
    }


def close(found: Tensor, expected: Tensor, device: str) -> None:
    """A tensor on the device with the values of one on the CPU."""
    assert found.device.type == device
    assert expected.device.type == "cpu"
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-8, atol=1e-10)


def test_the_device_does_not_mix_with_the_cpu(device):
    x = torch.arange(6.0).reshape(2, 3).to(device)
    assert x.device.type == device
    for mixing in (lambda: x + torch.ones(3), lambda: x[torch.tensor([0])], lambda: torch.cat([x, torch.ones(1, 3)])):
        with pytest.raises(RuntimeError, match="one device"):
            mixing()
    with pytest.raises(RuntimeError, match="numpy"):
        x.numpy()
    close((x * 2 + torch.tensor(1.0))[[1], 1:].sum(dim=0), torch.tensor([9.0, 11.0]), device)
    assert not torch.accelerator.is_available() or torch.cuda.is_available()  # other tests do not see it


def test_a_learner_that_leaves_a_tensor_behind_fails(device, monkeypatch):
    graph, table = chain()
    monkeypatch.setattr(expectation, "FamilyLayout", lambda graph, device: FamilyLayout(graph))
    with pytest.raises(RuntimeError, match="one device"):
        EM(graph, max_steps=2, progress=False).fit(moved(table, device))


LEARNERS: dict[str, Callable[[LatentGraph], Any]] = {
    "MaximumLikelihood": lambda graph: MaximumLikelihood(graph, max_steps=6, progress=False),
    "EM": lambda graph: EM(graph, restarts=2, max_steps=3, progress=False),
    "OnlineEM": lambda graph: OnlineEM(graph, exponents=[0.7, 0.9], max_steps=1, progress=False),
    "NormalGraphLearner": lambda graph: NormalGraphLearner(graph, epochs=2, progress=False),
}


@pytest.mark.parametrize("kind", ["complete", "gaps"])
@pytest.mark.parametrize("learner", LEARNERS)
def test_tables_are_learned_on_the_device_of_the_rows(learner, kind, device):
    graph, table = chain() if kind == "complete" else gappy_rows(200)
    if learner == "NormalGraphLearner" and kind == "gaps":  # which learns trees
        graph, table = chain()[0], with_gaps(chain()[1])
    make, there = LEARNERS[learner], moved(table, device)
    here, model = make(graph).fit(table), make(graph).fit(there)
    for v, cpt in here.network.cpts.items():
        close(model.network.cpts[v], cpt, device)
    latent, asked = graph.latent[0], graph.observed[0]
    close(model.predict_proba(there, latent), here.predict_proba(table, latent), device)
    given = {graph.observed[1]: [0, 1]}  # which has no device, and goes to that of the model
    close(model.posterior(asked, given), here.posterior(asked, given), device)
    assert model.score(there) == pytest.approx(here.score(table))
    assert model.profiles(latent).to_numpy() == pytest.approx(here.profiles(latent).to_numpy())
    assert model.match_states(here).to("cpu").device.type == "cpu"


def test_intervals_follow_the_information_to_the_device(device):
    graph, table = chain()
    weights = torch.arange(200) % 3 + 1.0
    here = MaximumLikelihood(graph, progress=False).fit(table, weights=weights)
    there = MaximumLikelihood(graph, progress=False).fit(moved(table, device), weights=weights.to(device))
    back = MaximumLikelihood(graph, progress=False).fit(table, weights=weights).to(device)
    order = {h: [1, 0] for h in graph.latent}
    for model in (here, there, back):
        model.reordered(order)
    for query in ("x1", ["x1", "x3"], None):
        expected = here.interval(query, {"x2": [0, 1]})
        for model in (there, back):
            for a, b in zip(model.interval(query, {"x2": [0, 1]}), expected, strict=True):
                close(a, b, device)


def test_numbers_of_states_are_chosen_on_the_device(device):
    graph, table = gappy_rows(200)
    here, there = (
        MaximumLikelihood(graph, states="held_out", most_states=2, max_steps=2, progress=False).fit(t)
        for t in (table, moved(table, device))
    )
    assert here.graph.variables == there.graph.variables
    assert there.device.type == device
    assert there.state_scores["held_out"].tolist() == pytest.approx(here.state_scores["held_out"].tolist())


@pytest.mark.parametrize("make", [LEARNERS["EM"], LEARNERS["NormalGraphLearner"], SpectralJunctionTree])
def test_a_learner_that_was_moved_first_learns_there(make, device):
    graph, table = chain()
    model = make(graph).to(device)
    assert model.device.type == device
    model.fit({v: x.tolist() for v, x in table.items()})
    close(model.posterior("x1", {"x2": [0, 1]}), make(graph).fit(table).posterior("x1", {"x2": [0, 1]}), device)


def two_stage_models() -> dict[str, tuple[Callable[[], Any], Table]]:
    (graph, table), (mixed, reals) = chain(), mixed_rows(200)
    classes = LatentGraph([("c", "h"), *mixed.edges], {"c": 2, "h": 2, "x": 3, "y": 3, "z": 3}, ["h"])
    states = {"c": reals["z"], "x": reals["y"], "y": reals["y"], "z": reals["z"]}
    result: dict[str, tuple[Callable[[], Any], Table]] = {
        "rank chosen": (lambda: PBP(graph, rank="auto"), table),
        "continuous": (lambda: PBP(mixed, features=Nystroem(5)), reals),
        "kernel": (lambda: KernelPBP(mixed), with_gaps(reals)),
        "spectral": (lambda: SpectralJunctionTree(graph), table),
    }
    for r in regressors():
        result[f"{type(r).__name__}, gaps"] = lambda r=r: PBP(graph, regressor=r), with_gaps(table)
        result[f"{type(r).__name__}, classes"] = lambda r=r: PBP(classes, regressor=r, condition="c"), states
        if not isinstance(r, Messages):
            result[f"{type(r).__name__}, continuous"] = lambda r=r: PBP(mixed, features=Nystroem(5), regressor=r), reals
    return result


@pytest.mark.parametrize("kind", two_stage_models())
def test_two_stage_models_are_fitted_on_the_device(kind, device):
    make, table = two_stage_models()[kind]
    here, there = make().fit(table), make().to(device).fit(moved(table, device))
    asked = "z" if "z" in table else "x3"
    given = next(v for v in table if v not in (asked, "x"))
    close(there.posterior(asked, {given: [0, 1]}).detach(), here.posterior(asked, {given: [0, 1]}).detach(), device)


@pytest.mark.parametrize("query", ["x1", ["x1", "x3"], None])
def test_bootstrap_intervals_are_those_of_the_cpu(query, device):
    graph, table = chain()
    table = with_gaps(table)
    here, there = PBP(graph).fit(table), PBP(graph).to(device).fit(moved(table, device))
    expected = here.interval(query, {"x2": [0, 1]}, data=table, replicates=10)
    found = there.interval(query, {"x2": [0, 1]}, data=moved(table, device), replicates=10)
    for a, b in zip(found, expected, strict=True):
        close(a, b, device)


def test_a_network_on_the_device_is_fitted_to_and_started_from(device):
    graph, table = chain()
    network = DiscreteNetwork.random(graph, seed=3)
    tables = moved(network.cpts, device)
    there = DiscreteNetwork(graph, {**tables, "x1": network.cpts["x1"].tolist()})
    assert there.device.type == device
    for regressor in (None, regressors()[0]):
        here, model = (PBP(graph, regressor=regressor).fit_population(n) for n in (network, there))
        torch.testing.assert_close(model.posterior("x1", {"x2": [0]}), here.posterior("x1", {"x2": [0]}))
    here, model = (
        EM(graph, start=n, restarts=1, max_steps=2, progress=False).fit(table) for n in (network, there)
    )  # the rows decide where
    torch.testing.assert_close(model.network.cpts["x1"], here.network.cpts["x1"])


def test_mixed_devices_raise(device):
    graph, table = chain()
    there, em = moved(table, device), EM(graph, max_steps=2, progress=False)
    with pytest.raises(DeviceError, match=f"weights: expected a tensor on the device '{device}:0' of the rows"):
        em.fit(there, weights=torch.ones(200))
    with pytest.raises(DeviceError, match="a mini-batch: expected a tensor on the device 'cpu'"):
        em.fit([table, there])
    with pytest.raises(DeviceError, match="column"):
        em.fit({**table, "x1": there["x1"]})
    network = DiscreteNetwork.random(graph, seed=3)
    with pytest.raises(DeviceError, match="CPT of 'x1': expected a tensor on the device 'cpu' of the other tables"):
        DiscreteNetwork(graph, {**network.cpts, "x1": network.cpts["x1"].to(device)})
