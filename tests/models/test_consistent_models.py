"""Answers and further fits of models whose operators, files or evidence are unusual."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import torchpbp
from torchpbp import MLP, PBP, DiscreteNetwork, Evidence, KernelRidge, LatentGraph, PBPModule, templates
from torchpbp.errors import ArgumentError, DataError, DataWarning, StructureError

TRUTH = DiscreteNetwork.random(templates.diamond(), seed=1)
ROWS = TRUTH.sample(1_000, seed=0)


@pytest.mark.filterwarnings("ignore::torchpbp.errors.TorchPBPWarning")
def test_the_floor_leaves_answers_of_many_states_their_mass() -> None:
    graph = LatentGraph([("h", v) for v in "xyz"], {"h": 2, "x": 100, "y": 3, "z": 3}, ["h"])
    h = torch.arange(300) % 2
    rows = {"x": 10 * h, "y": h, "z": 2 * h}
    model = PBP(graph)
    model.fit(rows)
    assert float(model.posterior("x", {"y": 1, "z": 2})[0, 10]) > 0.8  # the floor takes a tenth at most
    assert float(model.posterior(("x", "y"), {"z": 2})[0, 10, 1]) > 0.8
    assert float(model.posterior("x", {"y": 1, "z": 2}).min()) > 0


def test_a_loaded_model_is_not_learned_with_another_regressor(tmp_path: Path) -> None:
    model = PBP(TRUTH.graph, regressor=KernelRidge(20)).fit(ROWS)
    model.save(tmp_path / "model.pt")
    loaded = torchpbp.load(tmp_path / "model.pt")
    assert repr(loaded.regressor) == repr(model.regressor)
    with pytest.raises(StructureError, match=r"learned with KernelRidge.* Set model.regressor = KernelRidge\(…\)"):
        loaded.fit(ROWS)
    with pytest.raises(StructureError, match="learned with KernelRidge"):
        loaded.interval("d1", data=ROWS)
    loaded.regressor = KernelRidge(20)
    torch.testing.assert_close(loaded.fit(ROWS).posterior("d1", {"a1": 0}), model.posterior("d1", {"a1": 0}))


def test_intervals_of_refined_operators_are_said_to_be_those_of_a_fit() -> None:
    model = PBP(TRUTH.graph).fit(ROWS)
    model.interval("d1", {"a1": 0}, data=ROWS, replicates=5)
    model.refine(ROWS)
    with pytest.warns(DataWarning, match="differ from those of a fit to these rows"):
        model.interval("d1", {"a1": 0}, data=ROWS, replicates=5)


def test_nets_are_not_refined_and_not_replaced_in_silence() -> None:
    model = PBP(TRUTH.graph)
    PBPModule(model, "d1", hidden=[4])
    with pytest.raises(StructureError, match=r"refine: .* got nets of leaves"):
        model.refine(ROWS)
    assert PBPModule(model, "d1").model.nets.hidden == (4,)
    with pytest.raises(ArgumentError, match=r"hidden=\(8,\).* the model has nets with hidden=\[4\]"):
        PBPModule(model, "d1", hidden=[8])


def test_messages_are_functions_of_the_nearest_leaves_inside() -> None:
    module = PBPModule(PBP(templates.hmm(24, states=2)), "x1", hidden=[2])
    nets, tree = module.model.nets, module.model.tree
    for node, names in nets.inside.items():
        extra = [v for v in names if v not in module.model.plan[node].core]
        left = [v for v in tree.inside[node] if v not in names]
        depth = {v: tree.depth[tree.leaf_of[v]] for v in (*extra, *left)}
        assert not left or not extra or max(depth[v] for v in extra) <= min(depth[v] for v in left)


def test_states_and_weights_of_one_variable_raise() -> None:
    model = PBP(TRUTH.graph).fit(ROWS)
    both = Evidence(1, {"a1": torch.tensor([0])}, {"a1": torch.tensor([[0.0, 0, 0, 0, 0, 1]])})
    with pytest.raises(DataError, match=r"'a1': expected states \(hard\) or weights \(soft\), got both"):
        model.posterior("d1", both)


def test_a_state_dict_drops_the_counts_of_an_earlier_fit() -> None:
    first, second = PBP(TRUTH.graph).fit(ROWS), PBP(TRUTH.graph).fit(TRUTH.sample(500, seed=3))
    second.load_state_dict(first.state_dict())
    assert second.counts is None


def test_the_nets_of_a_loaded_model_answer(tmp_path: Path) -> None:
    model = PBP(TRUTH.graph, regressor=MLP(hidden=[4], epochs=1)).fit(ROWS)
    model.save(tmp_path / "model.pt")
    loaded = torchpbp.load(tmp_path / "model.pt")
    for name, message in model.predicted_messages({"a1": [0, 1]}).items():
        torch.testing.assert_close(loaded.predicted_messages({"a1": [0, 1]})[name].message, message.message)


def test_intervals_of_rows_of_probability_zero_are_those_of_the_model() -> None:
    graph = LatentGraph([("h", v) for v in "xyz"], {"h": 2, "x": 3, "y": 2, "z": 2}, ["h"])
    rows = {v: torch.arange(200) // k % 2 for k, v in enumerate("xyz", 1)}  # x = 2 never occurs
    model = PBP(graph).fit(rows)
    interval = model.interval(None, {"x": 2}, data=rows, replicates=5)  # without a warning
    assert float(interval.estimate[0]) == -torch.inf


def test_a_population_lacks_no_variable_of_the_model() -> None:
    wider = LatentGraph([("h", v) for v in "xyc"], {"h": 2, "x": 3, "y": 3, "c": torchpbp.Continuous()}, ["h"])
    network = DiscreteNetwork.random(LatentGraph([("h", v) for v in "xy"], {"h": 2, "x": 3, "y": 3}, ["h"]), seed=0)
    with pytest.raises(StructureError, match="They must be the same"):
        PBP(wider).fit_population(network)
