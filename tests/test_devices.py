"""Everything runs on the device of the data or of the model.

Where there is no GPU, four things stand in. The meta device: its tensors have shapes but no values, and do not mix with others. Fake
CUDA tensors, forward only. :class:`tests.device_watch.DeviceWatch`, which notices tensors that would be made on the default
device, or moved to the CPU, in a run on the CPU. And an emulated device with values, in emulated_device_checks.py.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.composed import composed
from tests.device_watch import DeviceWatch
from tests.neural import small
from tests.neural.small import class_table, context_model, loop_table, mixed_table, point_model
from torchpbp import (
    EM,
    MLP,
    PBP,
    Continuous,
    DiscreteNetwork,
    Evidence,
    KernelPBP,
    KernelRidge,
    LatentGraph,
    LeastSquaresLayer,
    MaximumLikelihood,
    Messages,
    Nystroem,
    OnlineEM,
    PBPLayer,
    PBPModule,
    templates,
)
from torchpbp.errors import ArgumentError, DeviceError
from torchpbp.experiments.run import train
from torchpbp.features.maps import OneHot
from torchpbp.inputs.arrays import require_device
from torchpbp.learning.message_nets import InstrumentNets
from torchpbp.learning.net_moments import regression_error
from torchpbp.models.likelihood import expectation, polish
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.rows import TrainingRows
from torchpbp.moments.table_reading import Reading
from torchpbp.neural.support import Solved, solve_support

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def discrete() -> PBP:
    network = DiscreteNetwork.random(templates.diamond(), seed=0)
    return PBP(network.graph, dtype=torch.float32).fit(network.sample(2_000, seed=1))


@pytest.fixture(scope="module")
def mixed() -> PBP:
    graph = LatentGraph([("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": Continuous(), "y": 3, "z": 3}, ["h"])
    generator = torch.Generator().manual_seed(0)
    h = torch.randint(2, (500,), generator=generator)
    noise = torch.randn(500, generator=generator)
    return PBP(graph, features=Nystroem(5)).fit({"x": 2.0 * h + noise, "y": 2 * h, "z": h})


@pytest.mark.parametrize("device", DEVICES)
def test_answers_are_the_same_on_every_device(discrete, device):
    layer = PBPLayer(discrete)
    evidence = {"a1": torch.tensor([0, 2, -1]), "b1": torch.rand(3, 6, generator=torch.Generator().manual_seed(0))}
    expected = layer(evidence)
    moved = PBPLayer(copy.deepcopy(discrete)).to(device)
    found = moved({v: x.to(device) for v, x in evidence.items()})
    for v, p in expected.items():
        assert found[v].device.type == device
        torch.testing.assert_close(found[v].cpu(), p, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_fit_leaves_the_model_on_its_device(device):
    network = DiscreteNetwork.random(templates.hmm(4), seed=0)
    model = PBP(network.graph).to(device).fit({v: x.to(device) for v, x in network.sample(500, seed=1).items()})
    assert {p.device.type for p in model.parameters()} == {device}
    assert model.posterior("x1", {"x2": torch.tensor([0], device=device)}).device.type == device


def test_the_layer_stays_on_a_device_without_values(discrete, mixed):
    for model, given in ((discrete, {"a1": (5,), "b1": (5, 6)}), (mixed, {"x": (5,), "y": (5, 3)})):
        layer = PBPLayer(copy.deepcopy(model)).to("meta")
        evidence = {
            v: torch.empty(s, device="meta")
            if len(s) == 2 or v == "x"
            else torch.empty(s, dtype=torch.int64, device="meta")
            for v, s in given.items()
        }
        answers = layer(evidence)
        logs = layer.log_evidence(evidence)
        assert logs.is_meta
        assert logs.shape == (5,)
        assert all(p.is_meta for p in answers.values())
        sum(p.sum() for p in answers.values()).backward()
        assert all(p.grad is None or p.grad.is_meta for p in layer.parameters())


def test_stage_one_nets_and_least_squares_stay_on_a_device_without_values(discrete):
    dims = {v: o.map.dim for v, o in discrete.observables.items()}
    nets = InstrumentNets(discrete.plan, dims, dims, [4]).to("meta")
    states = torch.stack([torch.tensor([0, 1, 1])] * len(dims), dim=1)
    rows = TrainingRows(list(dims), {v: OneHot(d) for v, d in dims.items()}, states).to("meta")
    leaves = rows.leaves(torch.float32)
    eta = nets.instrument_features(leaves, leaves.seen)
    target = torch.empty(1, 1, 3, 3, device="meta")
    losses = [regression_error([(x[None, None], target, torch.ones(1, 1, 3, device="meta"))]) for x in eta.values()]
    weight = LeastSquaresLayer(intercept=True)(torch.empty(9, 2, device="meta"), torch.empty(9, 3, device="meta"))
    torch.stack(losses).sum().backward()
    assert all(loss.is_meta for loss in losses)
    assert all(p.grad is not None and p.grad.is_meta for p in nets.parameters())
    assert weight.is_meta
    assert weight.shape == (2, 4)


def test_a_tensor_left_behind_would_be_noticed(discrete):
    layer = PBPLayer(copy.deepcopy(discrete)).to("meta")
    with pytest.raises(RuntimeError, match="device"):
        layer({"a1": torch.ones(5, 6)})


# -- nothing leaves the device of the data -----------------------------------------------------------------------------

FINAL = {
    "learning/compression.py:_array",  # a few figures of each separator, for diagnostics
    "moments/table_reading.py:_cells",  # the way of counts that are on the CPU
    "exact/elimination.py:<listcomp>",  # the way of single rows of a network on the CPU
    "exact/queries.py:posterior_of_one",
    "models/likelihood/choice.py:_split",  # weights of the distinct rows, for draws by seed
    "models/bootstrap.py:trees",  # counts of the distinct rows, for draws by seed
    "neural/mlp.py:__init__",  # Lightning moves the module
    "neural/mlp.py:run",  # Lightning's trainer
    "neural/mlp.py:configure_optimizers",  # before the optimiser has parameters
}
"""What may be on the CPU."""


def watched(action: Callable[[], Any]) -> list[str]:
    with DeviceWatch(FINAL) as watch:
        action()
    return list(watch.seen)


def mixed_rows(rows: int = 300) -> tuple[LatentGraph, dict[str, Tensor]]:
    graph = LatentGraph([("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": Continuous(), "y": 3, "z": 3}, ["h"])
    generator = torch.Generator().manual_seed(0)
    h = torch.randint(2, (rows,), generator=generator)
    return graph, {"x": 2.0 * h + torch.randn(rows, generator=generator), "y": 2 * h, "z": h}


def test_the_watch_notices_what_leaves_a_device():
    network = DiscreteNetwork.random(templates.hmm(3), seed=0)
    with DeviceWatch() as watch:
        network.posterior("x1", {"x2": torch.tensor([0])})
    assert any(".cpu()" in call for call in watch.seen)  # one row of a network on the CPU goes by way of numpy
    with DeviceWatch() as watch:
        PBP(network.graph)
    assert any("without device" in call for call in watch.seen)


@pytest.mark.parametrize("rows", [500, 20_000])  # counted by index arithmetic, and by covers
def test_a_discrete_fit_stays_on_the_device_of_its_rows(rows):
    network = DiscreteNetwork.random(templates.hmm(3, 2, 3), seed=0)
    model, table = PBP(network.graph), network.sample(rows, seed=1)
    gaps = {v: x.where(torch.arange(rows) % 7 > 0, -1) for v, x in table.items()}
    assert watched(lambda: model.fit(table)) == []
    assert watched(lambda: model.partial_fit(gaps)) == []


def test_other_fits_stay_on_their_device():
    graph, table = mixed_rows()
    model, kernel = PBP(graph, features=Nystroem(5)), KernelPBP(graph)
    assert watched(lambda: model.fit(table)) == []
    assert watched(lambda: kernel.fit(table)) == []
    classes = LatentGraph([("c", "h"), *graph.edges], {"c": 2, "h": 2, "x": 3, "y": 3, "z": 3}, ["h"])
    conditional = PBP(classes, condition="c")
    states = {"c": table["z"], "x": table["y"], "y": table["y"], "z": table["z"]}
    assert watched(lambda: conditional.fit(states)) == []


def gappy_rows(rows: int = 300) -> tuple[LatentGraph, dict[str, Tensor]]:
    """Rows of which some miss a variable that has children, and others one that has none."""
    edges = [("h", "x"), ("x", "y"), ("h", "y"), ("y", "z"), ("h", "w")]
    graph = LatentGraph(edges, {"h": 2, "x": 3, "y": 3, "z": 2, "w": 3}, ["h"])
    table = DiscreteNetwork.random(graph, seed=1).sample(rows, seed=1)
    return graph, {v: x.where(torch.arange(rows) % 5 != i, -1) for i, (v, x) in enumerate(table.items())}


@pytest.mark.filterwarnings("ignore")  # few steps; latents that are not identified
@pytest.mark.parametrize("kind", ["complete", "gaps"])
def test_likelihoods_are_climbed_on_the_device_of_the_rows(kind):
    network = DiscreteNetwork.random(templates.hmm(3, 2, 3), seed=0)
    graph, table = (network.graph, network.sample(300, seed=1)) if kind == "complete" else gappy_rows()
    model, (first, second, *_) = MaximumLikelihood(graph, progress=False), graph.observed
    chosen = MaximumLikelihood(graph, states="held_out", most_states=2, progress=False)
    given = {second: torch.tensor([0, 1])}
    actions: dict[str, Callable[[], Any]] = {
        "fit": lambda: model.fit(table, weights=torch.ones(300)),
        "choice of states": lambda: chosen.fit(table),
        "intervals": lambda: (model.interval(first, given), model.interval(None, given)),
        "memberships": lambda: (model.predict(table), model.predict_proba(table), model.score(table)),
        "EM": lambda: EM(graph, restarts=2, max_steps=4, progress=False).fit(table),
        "OnlineEM": lambda: OnlineEM(graph, max_steps=1, progress=False).fit(table),
    }
    assert {name: watched(action) for name, action in actions.items()} == {name: [] for name in actions}


@pytest.mark.filterwarnings("ignore")
def test_what_an_expectation_step_would_leave_behind_is_noticed(monkeypatch):
    def spaced(weights: Tensor, count: int) -> tuple[Tensor, Tensor]:
        chosen = torch.linspace(0, len(weights) - 1, count).long()
        return chosen, weights[chosen]

    spaced.__code__ = spaced.__code__.replace(co_filename=expectation.__file__)  # as if it stood there
    monkeypatch.setattr(expectation, "systematic_sample", spaced)
    monkeypatch.setattr(polish, "INFORMATION_ROWS", 5)
    monkeypatch.setattr(polish, "ROWS_PER_PARAMETER", 0)
    network = DiscreteNetwork.random(templates.hmm(3, 2, 3), seed=0)
    seen = watched(lambda: MaximumLikelihood(network.graph, progress=False).fit(network.sample(300, seed=1)))
    assert any("spaced: torch.linspace() without device" in call for call in seen)


def regressors() -> list[Any]:
    return [KernelRidge(20), Messages(), MLP(hidden=[4], epochs=1, trainer={"enable_progress_bar": False})]


@pytest.mark.filterwarnings("ignore")
def test_regressors_and_the_bootstrap_look_at_rows_on_their_device():
    network = DiscreteNetwork.random(templates.hmm(3, 2, 3), seed=0)
    table = network.sample(200, seed=1)
    gaps = {v: x.where(torch.arange(200) % 7 != i, -1) for i, (v, x) in enumerate(table.items())}
    graph, reals = mixed_rows()
    plain = PBP(network.graph).fit(table)
    actions: dict[str, Callable[[], Any]] = {
        "bootstrap": lambda: plain.interval("x1", {"x2": torch.tensor([0, 1])}, data=table, replicates=5)
    }
    for regressor in regressors():
        model = PBP(network.graph, regressor=regressor)
        actions[f"{regressor!r}, missing values"] = lambda model=model: model.fit(gaps)
        if not isinstance(regressor, Messages):
            mixed_model = PBP(graph, features=Nystroem(5), regressor=regressor)
            actions[f"{regressor!r}, continuous"] = lambda model=mixed_model: model.fit(reals)
    assert {name: watched(action) for name, action in actions.items()} == {name: [] for name in actions}


def test_answers_stay_on_the_device_of_the_model(discrete, mixed):
    evidence = {"a1": torch.tensor([0, 2, -1]), "b1": torch.rand(3, 6)}
    value, state = {"x": torch.tensor([0.0, 1.0])}, {"z": torch.tensor([0, 1])}
    network = DiscreteNetwork.random(templates.hmm(3), seed=0)
    kernel = KernelPBP(mixed_rows()[0]).fit(mixed_rows()[1])
    actions: dict[str, Callable[[], Any]] = {
        "posterior": lambda: discrete.posterior("d1", evidence),
        "joint": lambda: discrete.posterior(["d1", "d2"], evidence),
        "posteriors": lambda: discrete.posteriors(evidence),
        "log_evidence": lambda: discrete.log_evidence(evidence),
        "sample": lambda: discrete.sample(2, evidence, seed=0),
        "density": lambda: mixed.posterior("x", state).mean,
        "mixed": lambda: (mixed.posterior("z", value), mixed.log_evidence(value), mixed.sample(3, seed=0)),
        "layer": lambda: PBPLayer(discrete)(evidence),
        "exact": lambda: (network.posteriors({"x1": torch.tensor([0, 1])}), network.sample(4, seed=0)),
        "exact joint": lambda: network.posterior(["x1", "x2"], {"x3": torch.tensor([0, 1])}),
        "kernel": lambda: (kernel.posterior("z", value), kernel.log_evidence(value), kernel.posterior("x", state).mean),
    }
    assert {name: watched(action) for name, action in actions.items()} == {name: [] for name in actions}


def step_of(module: PBPModule, table: dict[str, Tensor]) -> Tensor:
    """What a training step does with its rows, without the draws of what is hidden."""
    seen = module.reader.seen(table)
    solved = solve_support(module.model, table, seen, seen, seen)
    loss = module.answers.loss(solved, table, seen)
    loss = loss + solved.error.to(loss)
    loss.backward()
    return loss


def test_a_module_step_stays_on_its_device():
    graph, table = class_table(60, 0)
    for make in (point_model, context_model):
        module = PBPModule(make(graph, condition="y"))
        module.model.prepare_leaves([table])
        assert watched(lambda module=module: step_of(module, table)) == []
        assert watched(lambda module=module: module.solve([table])) == []


@pytest.mark.parametrize(("make", "table", "target"), [(PBP, loop_table, "d1"), (point_model, mixed_table, None)])
def test_a_module_step_runs_on_a_device_without_values(make, table, target):
    graph, rows = table(60, 0)
    module = PBPModule(make(graph), target=target)
    module.model.prepare_leaves([rows])
    module.to("meta")
    loss = step_of(module, {v: x.to("meta") for v, x in rows.items()})
    assert loss.is_meta
    grads = [p.grad for p in module.model.nets.parameters()]
    assert any(g is not None for g in grads)
    assert all(g is None or g.is_meta for g in grads)


def test_an_operator_tree_stays_on_a_device_without_values(discrete):
    tree = copy.deepcopy(discrete).to("meta").operators.tree
    logs = tree.log_mass(Evidence(4, {"a1": torch.empty(4, dtype=torch.int64, device="meta")}))
    assert logs.is_meta
    logs.sum().backward()


def test_stage_2_stays_on_a_fake_gpu():
    """What runs on the meta device may have a special case for it. A CPU build cannot index fake CUDA tensors, which leaves stage 2."""
    with FakeTensorMode(), torch.no_grad():
        h, g = torch.ones(9, 2, device="cuda"), torch.ones(9, 3, device="cuda")
        weight = LeastSquaresLayer(intercept=True)(h, g)
        assert weight.device.type == "cuda"
        assert weight.shape == (2, 4)


def test_counts_are_read_alike_on_all_devices():
    tables = JointTables([("a", "b"), ("b", "c")], {"a": 2, "b": 3, "c": 2})
    tables.add(torch.randint(2, (3, 50), generator=torch.Generator().manual_seed(0)))
    scopes = {("a", "b"): [2, 3], ("b",): [3], ("c", "b"): [2, 3]}
    read = Reading(tables.layout, lambda number: [number([scope], sizes) for scope, sizes in scopes.items()])
    torch.testing.assert_close(read._gathered(tables.counts), read._cells(tables.counts))


# -- mixed devices and precisions --------------------------------------------------------------------------------------


def test_mixed_devices_raise(discrete):
    where = torch.zeros(2, dtype=torch.int64, device="meta")
    with pytest.raises(
        DeviceError, match=r"'a1': expected a tensor on the device 'cpu' of the model, got one on 'meta'"
    ):
        discrete.posterior("d1", {"a1": where})
    with pytest.raises(DeviceError, match=r"expected a tensor on the device 'meta' of the model, got one on 'cpu'"):
        PBPLayer(copy.deepcopy(discrete).to("meta"))({"a1": torch.zeros(2, dtype=torch.int64)})
    tables = JointTables([("a",)], {"a": 2})
    tables.add([torch.tensor([0, 1])])
    with pytest.raises(DeviceError, match="Rows to be counted: expected a tensor on the device 'cpu'"):
        tables.add([where])
    require_device("x", torch.zeros(1), "cpu", "the model")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_solves_stay_in_double_precision(dtype):
    g, w = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([[1.0, -2.0, 0.5]])
    layer = LeastSquaresLayer(penalty=1e-8)
    h, expected = g @ w.T, layer(g @ w.T, g)
    with torch.autocast("cpu", dtype=dtype):
        torch.testing.assert_close(layer(h, g), expected, rtol=1e-6, atol=1e-6)


def test_mixed_precision_is_that_of_encoders_only(monkeypatch):
    graph, table = class_table(200, 0)
    kinds: dict[str, set[torch.dtype]] = {"solve": set(), "encoder": set()}
    module = PBPModule(point_model(graph, condition="y"))
    module.model.encoders.register_forward_hook(
        lambda m, i, out: kinds["encoder"].update(e.features.dtype for e in out.values())
    )

    def noted(*arguments: Any) -> Solved:
        solved = solve_support(*arguments)
        kinds["solve"].update(w.dtype for w in solved.tree.operators[1:])
        return solved

    monkeypatch.setattr("torchpbp.neural.module.solve_support", noted)
    small.train(module, table, precision="bf16-mixed")
    assert kinds == {"solve": {torch.float64}, "encoder": {torch.bfloat16, torch.float32}}
    assert int(module.skipped) == 0
    with pytest.raises(ArgumentError, match=r"precision=bf16-mixed: .* no encoders"):
        small.train(PBPModule(PBP(loop_table(60, 0)[0]), "d1"), loop_table(60, 0)[1], precision="bf16-mixed")


# -- on a GPU; none of these has been run so far (docs/devices.md) -----------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["discrete", "mixed", "kernel", "missing"])
def test_a_fit_on_a_gpu_is_that_on_the_cpu(kind):
    graph, table = mixed_rows() if kind in ("mixed", "kernel") else loop_table(20_000, 0)
    if kind == "missing":
        table = {v: x.where((torch.arange(len(x)) + i) % 7 > 0, -1) for i, (v, x) in enumerate(table.items())}
    there = {v: x.to("cuda") for v, x in table.items()}

    def make() -> Any:
        return KernelPBP(graph) if kind == "kernel" else PBP(graph, features=Nystroem(5) if kind == "mixed" else None)

    target = "z" if kind in ("mixed", "kernel") else "d1"
    given = "x" if target == "z" else "a1"
    here, moved = make().fit(table), make().to("cuda").fit(there)
    found = moved.posterior(target, {given: there[given][:20]})
    assert found.device.type == "cuda"
    torch.testing.assert_close(found.cpu(), here.posterior(target, {given: table[given][:20]}), rtol=1e-6, atol=1e-8)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [MaximumLikelihood, EM, OnlineEM])
@pytest.mark.parametrize("kind", ["complete", "gaps"])
def test_a_likelihood_is_climbed_on_a_gpu_as_on_the_cpu(make, kind):
    network = DiscreteNetwork.random(templates.hmm(3, 2, 3), seed=0)
    graph, table = (network.graph, network.sample(300, seed=1)) if kind == "complete" else gappy_rows()
    there = {v: x.to("cuda") for v, x in table.items()}
    options = {} if make is MaximumLikelihood else {"max_steps": 3}
    here, moved = (make(graph, progress=False, **options).fit(t) for t in (table, there))
    assert moved.device.type == "cuda"
    torch.testing.assert_close(moved.log_evidence(there).cpu(), here.log_evidence(table), rtol=0, atol=1e-3)
    given = {graph.observed[1]: [0, 1]}
    for model in (here, moved) if make is MaximumLikelihood else ():
        assert {x.device.type for x in model.interval(graph.observed[0], given)} == {model.device.type}
    assert moved.predict_proba(there, graph.latent[0]).device.type == "cuda"


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("regressor", regressors(), ids=lambda r: type(r).__name__)
def test_a_regressor_looks_at_rows_on_a_gpu(regressor):
    network = DiscreteNetwork.random(templates.hmm(3, 2, 3), seed=0)
    table = network.sample(2_000, seed=1)
    there = {v: x.to("cuda") for v, x in table.items()}
    here, moved = PBP(network.graph, regressor=regressor).fit(table), PBP(network.graph, regressor=regressor).to("cuda")
    found = moved.fit(there).posterior("x1", {"x2": there["x2"][:20]})
    assert found.device.type == "cuda"
    # Nets are trained in float32, whose sums are in another order there.
    near = 0.02 if isinstance(regressor, MLP) else 1e-6
    torch.testing.assert_close(found.cpu(), here.posterior("x1", {"x2": table["x2"][:20]}), rtol=0, atol=near)


@pytest.mark.gpu
def test_intervals_on_a_gpu_are_those_on_the_cpu():
    network = DiscreteNetwork.random(templates.hmm(3, 2, 3), seed=0)
    table = network.sample(500, seed=1)
    there = {v: x.to("cuda") for v, x in table.items()}
    here, moved = PBP(network.graph).fit(table), PBP(network.graph).to("cuda").fit(there)
    expected = here.interval("x1", {"x2": [0, 1]}, data=table, replicates=20)
    found = moved.interval("x1", {"x2": [0, 1]}, data=there, replicates=20)
    for a, b in zip(found, expected, strict=True):
        assert a.device.type == "cuda"
        torch.testing.assert_close(a.cpu(), b, rtol=1e-6, atol=1e-8)


@pytest.mark.gpu
def test_mixed_devices_raise_on_a_gpu():
    graph, table = loop_table(100, 0)
    with pytest.raises(DeviceError, match="column"):
        PBP(graph).fit({v: x.to("cuda") if v == "a1" else x for v, x in table.items()})


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed"])
def test_a_module_trains_on_a_gpu(precision):
    graph, table = class_table(400, 0)
    module = PBPModule(point_model(graph, condition="y"))
    small.train(module, table, 2, accelerator="gpu", precision=precision)
    answer = module.model.posterior("y", {v: table[v][:5].to(module.model.device) for v in ("a", "b")})
    torch.testing.assert_close(answer.sum(dim=1).cpu(), torch.ones(5, dtype=answer.dtype))


@pytest.mark.gpu
@pytest.mark.slow
def test_digits_train_on_a_gpu(tmp_path):
    metrics = train(composed("debug=default", "trainer=gpu", output_dir=tmp_path)).metrics
    assert metrics["test/accuracy"] > 0.3


@pytest.mark.gpu
@pytest.mark.slow
def test_two_gpus_train_as_one(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    found = {}
    for name, choice in {"gpu": ["trainer=gpu"], "ddp": ["trainer=ddp", "trainer.accelerator=gpu"]}.items():
        command = [
            sys.executable,
            "train.py",
            "model=digits",
            "debug=default",
            *choice,
            f"hydra.run.dir={tmp_path / name}",
        ]
        subprocess.run(command, cwd=Path(__file__).parents[1], check=True, timeout=600)
        found[name] = json.loads((tmp_path / name / "metrics.json").read_text())
    assert found["ddp"]["test/log_loss"] == pytest.approx(found["gpu"]["test/log_loss"], rel=0.05)
