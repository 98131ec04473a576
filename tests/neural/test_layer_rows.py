"""Which rows a layer answers: states of every dtype, NaN for rows that are invalid, and gradients that do not feel them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from torchpbp import PBP, Continuous, DiscreteNetwork, LatentGraph, Nystroem, PBPLayer, templates
from torchpbp.errors import DataError, QueryWarning, ShapeError

NAN = float("nan")
DTYPES = [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.fixture(autouse=True)
def _forget_compiled_code() -> Iterator[None]:
    """Each test compiles the same code for other dtypes, and torch allows only so many versions of it."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture(params=["as it is", pytest.param("compiled", marks=pytest.mark.slow)])
def prepared(request: pytest.FixtureRequest) -> Callable[[PBPLayer], Callable[..., dict[str, torch.Tensor]]]:
    """What becomes of a layer before it is called."""
    if request.param == "as it is":
        return lambda layer: layer
    return lambda layer: torch.compile(layer, fullgraph=True, backend="aot_eager")


@pytest.fixture(scope="module")
def network() -> DiscreteNetwork:
    return DiscreteNetwork.random(templates.diamond(observed_states=4), seed=1)


@pytest.fixture(scope="module")
def layer(network: DiscreteNetwork) -> PBPLayer:
    return PBPLayer(PBP(network.graph).fit_population(network))


@pytest.fixture(scope="module")
def mixed() -> PBPLayer:
    """Over a continuous variable with a declared range and two discrete ones."""
    domains = {"h": 2, "x": Continuous(-4.0, 8.0), "y": 3, "z": 3}
    graph = LatentGraph([("h", "x"), ("h", "y"), ("h", "z")], domains, ["h"])
    generator = torch.Generator().manual_seed(0)
    h = torch.randint(2, (500,), generator=generator)
    x = (2.0 * h + torch.randn(500, generator=generator)).clamp(-4, 8)
    return PBPLayer(PBP(graph, features=Nystroem(5)).fit({"x": x, "y": 2 * h, "z": h}))


# -- states ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_states_of_every_dtype(layer: PBPLayer, network: DiscreteNetwork, dtype: torch.dtype) -> None:
    states = torch.tensor([0, 3, 1])
    given = {"a1": states.to(dtype)}
    expected = layer({"a1": states})["d1"]
    assert torch.allclose(expected, network.posterior("d1", {"a1": states}), atol=1e-9)
    torch.testing.assert_close(layer(given)["d1"], expected)
    single = torch.func.vmap(lambda s: layer({"a1": s.unsqueeze(0)})["d1"].squeeze(0))(states.to(dtype))
    torch.testing.assert_close(single, expected)
    torch.testing.assert_close(layer.log_evidence(given), layer.log_evidence({"a1": states}))
    torch.testing.assert_close(layer.given({}).log_prob(given), network.log_evidence({"a1": states}))


def out_of_range(dtype: torch.dtype) -> torch.Tensor:
    """A state and two numbers beyond."""
    return torch.from_numpy(np.array([2, 4, torch.iinfo(dtype).max], dtype=str(dtype).removeprefix("torch.")))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint64, torch.int16])
def test_compiled_and_exported_layers_read_states_alike(layer: PBPLayer, dtype: torch.dtype) -> None:
    given = {"a1": out_of_range(dtype)}
    for same in (
        torch.compile(layer, fullgraph=True, backend="aot_eager"),
        torch.export.export(layer, (given,)).module(),
    ):
        torch.testing.assert_close(same(given)["d1"], layer(given)["d1"], equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_states_out_of_range_in_every_dtype(layer: PBPLayer, dtype: torch.dtype) -> None:
    states = out_of_range(dtype)
    assert layer({"a1": states})["d1"].isnan().all(dim=1).tolist() == [False, True, True]
    assert layer.log_evidence({"a1": states}).isnan().tolist() == [False, True, True]


def test_an_unsigned_number_is_never_missing(layer: PBPLayer) -> None:
    """The largest one of 64 bits is -1 as a signed number."""
    states = torch.from_numpy(np.array([0, 2**64 - 1], dtype=np.uint64))
    assert layer({"a1": states})["d1"].isnan().all(dim=1).tolist() == [False, True]


def test_booleans_are_the_states_0_and_1(layer: PBPLayer, network: DiscreteNetwork) -> None:
    given = torch.tensor([True, False])
    expected = network.posterior("d1", {"a1": torch.tensor([1, 0])})
    assert torch.allclose(layer({"a1": given})["d1"], expected, atol=1e-9)
    assert torch.allclose(layer.model.posterior("d1", {"a1": given}), expected, atol=1e-9)


def test_invalid_evidence_still_raises(layer: PBPLayer, mixed: PBPLayer) -> None:
    with pytest.raises(DataError, match="expected a tensor of real numbers, got complex"):
        layer({"a1": torch.tensor([1j])})
    with pytest.raises(ShapeError, match=r"expected shape \(batch, 4\), got \(3,\)"):
        layer({"a1": torch.zeros(3, dtype=torch.float16)})
    with pytest.raises(ShapeError, match=r"expected one real value per row .*; got float32 of shape \(3, 1\)"):
        mixed({"x": torch.zeros(3, 1)})
    with pytest.raises(ShapeError, match=r"got int64 of shape \(\)"):
        layer({"a1": torch.tensor(1)})


# -- weights -----------------------------------------------------------------------------------------------------


def bad_weights() -> torch.Tensor:
    """Rows 1 to 4 are invalid: zeros, a negative weight, NaN, infinity."""
    weights = torch.rand(6, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    weights[1] = 0.0
    weights[2, 0], weights[3, 1], weights[4, 2] = -0.5, NAN, float("inf")
    return weights


INVALID = [False, True, True, True, True, False]


def test_weights_of_zeros_are_answered_with_nan(layer: PBPLayer, prepared: Any) -> None:
    weights = bad_weights()
    valid = [0, 5]
    good = layer({"b1": weights[valid]})
    for v, p in prepared(layer)({"b1": weights}).items():
        assert p.isnan().all(dim=1).tolist() == INVALID
        torch.testing.assert_close(p[valid], good[v])
    exported = torch.export.export(layer, ({"b1": torch.rand(6, 4, dtype=torch.float64)},)).module()
    assert exported({"b1": weights})["d1"].isnan().all(dim=1).tolist() == INVALID
    assert layer.log_evidence({"b1": weights}).isnan().tolist() == INVALID
    without = [False, True, False, True, True, False]  # estimates are linear in weights: one may be negative
    assert layer.estimates({"b1": weights})["d1"].isnan().all(dim=1).tolist() == without
    assert (layer.most_probable({"b1": weights})["d1"] == -1).tolist() == INVALID
    assert layer.relaxed_sample({"b1": weights}, hard=True)["d1"].isnan().all(dim=1).tolist() == INVALID


def test_the_distribution_of_invalid_rows(layer: PBPLayer, mixed: PBPLayer) -> None:
    given = layer.given({"b1": bad_weights()})
    assert given.marginals["d1"].isnan().all(dim=1).tolist() == INVALID
    assert given.log_prob({"d1": torch.zeros(6, dtype=torch.uint8)}).isnan().tolist() == INVALID
    draws = given.sample((20,), seed=0)
    for v in ("b1", "d1"):
        assert (draws[v] == -1).all(dim=0).tolist() == INVALID
        assert (draws[v][:, [0, 5]] >= 0).all()
    drawn = mixed.given({"x": torch.tensor([0.0, 99.0])}).sample((3,), seed=0)
    assert drawn["x"].isnan().all(dim=0).tolist() == [False, True]
    assert (drawn["y"] < 0).all(dim=0).tolist() == [False, True]


def test_log_prob_of_values_beside_weights(layer: PBPLayer, network: DiscreteNetwork) -> None:
    weights = torch.rand(3, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    given = layer.given({"b1": weights})
    states = torch.tensor([2, -1, 3])
    found = given.log_prob({"b1": states, "d1": torch.tensor([0, 1, 2])})
    joint = network.posterior(("b1", "d1"), {"b1": weights})
    expected = torch.stack([joint[0, 2, 0], joint[1, :, 1].sum(), joint[2, 3, 2]]).log()
    assert torch.allclose(found, expected, atol=1e-8)  # a value that is missing leaves the weights as they are
    more = torch.rand(3, 4, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    both = network.log_evidence({"b1": weights * more}) - network.log_evidence({"b1": weights})
    assert torch.allclose(given.log_prob({"b1": more}), both, atol=1e-8)
    assert given.log_prob({"b1": torch.tensor([0, 4, 1])}).isnan().tolist() == [False, True, False]
    with pytest.raises(ShapeError, match="the values have 2 rows, the evidence has 3"):
        given.log_prob({"b1": torch.tensor([0, 1])})


@pytest.mark.parametrize("size", [1e300, 1e-300, 5e-324])
def test_weights_of_any_size(layer: PBPLayer, network: DiscreteNetwork, size: float) -> None:
    states = torch.tensor([2, 0])
    weights = size * torch.nn.functional.one_hot(states, 4).double()
    given = {"b1": weights, "b2": weights}
    expected = network.posterior("d1", {"b1": states, "b2": states})
    assert torch.allclose(layer(given)["d1"], expected, atol=1e-8)
    known = network.log_evidence({"b1": states, "b2": states}) + 2 * np.log(size)
    assert torch.allclose(layer.log_evidence(given), known, rtol=1e-9)
    single = copy.deepcopy(layer).float()  # in which these are 0 or infinite
    assert single(given)["d1"].isnan().all()
    assert not single({"b1": 1e-30 * torch.ones(1, 4, dtype=torch.float64)})["d1"].isnan().any()


# -- gradients ---------------------------------------------------------------------------------------------------


def gradients(layer: PBPLayer, evidence: dict[str, torch.Tensor], answers: list[int], name: str) -> list[torch.Tensor]:
    """Of the valid answers, by the evidence and by all operators."""
    asked = evidence[name].clone().requires_grad_()
    out = layer({**evidence, name: asked})
    loss = sum(p[answers].clamp(min=1e-6).log().sum() for p in out.values())
    loss = loss + layer.log_evidence({**evidence, name: asked})[answers].sum()
    return list(torch.autograd.grad(loss, [asked, *layer.parameters()]))


def test_an_invalid_row_leaves_the_gradients_of_the_others_alone(layer: PBPLayer) -> None:
    weights, states = bad_weights(), torch.tensor([0, 1, 2, 3, 0, 1])
    of_all, *operators = gradients(layer, {"b1": weights, "a1": states}, [0, 5], "b1")
    of_valid, *expected = gradients(layer, {"b1": weights[[0, 5]], "a1": states[[0, 5]]}, [0, 1], "b1")
    assert (of_all[1:5] == 0).all()
    torch.testing.assert_close(of_all[[0, 5]], of_valid)
    assert len(operators) > 1
    for found, wanted in zip(operators, expected, strict=True):
        assert torch.isfinite(found).all()
        torch.testing.assert_close(found, wanted)


def test_a_loss_over_all_rows_has_clean_gradients(layer: PBPLayer) -> None:
    """Also where the loss itself looks at the NaN answers and puts something else in their place."""
    weights = bad_weights().requires_grad_()
    answer = layer({"b1": weights})["d1"][:, 0]
    torch.where(answer.isnan(), 0.0, answer).sum().backward()
    assert torch.isfinite(weights.grad).all()
    assert (weights.grad[[0, 5]] != 0).any()


def test_gradients_through_values(mixed: PBPLayer) -> None:
    values = torch.tensor([0.5, 99.0, float("inf"), NAN, 2.0], dtype=torch.float64)
    of_all, *operators = gradients(mixed, {"x": values}, [0, 4], "x")
    of_valid, *expected = gradients(mixed, {"x": values[[0, 4]]}, [0, 1], "x")
    assert (of_all[1:4] == 0).all()
    torch.testing.assert_close(of_all[[0, 4]], of_valid)
    for found, wanted in zip(operators, expected, strict=True):
        torch.testing.assert_close(found, wanted)


# -- values ------------------------------------------------------------------------------------------------------


def test_values_outside_the_declared_range_are_answered_with_nan(mixed: PBPLayer, prepared: Any) -> None:
    values = torch.tensor([0.5, -4.1, 8.1, NAN, float("inf"), 8.000001], dtype=torch.float64)
    invalid = [False, True, True, False, True, False]  # the last one is outside by rounding only
    for v, p in prepared(mixed)({"x": values}).items():
        assert p.isnan().all(dim=1).tolist() == invalid, v
    assert mixed.log_evidence({"x": values}).isnan().tolist() == invalid
    torch.testing.assert_close(mixed({"x": values})["z"][:1], mixed.model.posterior("z", {"x": values[:1]}))


def test_whole_numbers_are_values_too(mixed: PBPLayer) -> None:
    expected = mixed({"x": torch.tensor([1.0, 2.0], dtype=torch.float64)})["z"]
    for dtype in (torch.uint8, torch.uint16, torch.uint64, torch.int64):
        torch.testing.assert_close(mixed({"x": torch.tensor([1, 2]).to(dtype)})["z"], expected)


# -- nothing to ask ----------------------------------------------------------------------------------------------


def test_complete_rows_leave_nothing_to_ask(layer: PBPLayer, network: DiscreteNetwork, mixed: PBPLayer) -> None:
    rows = network.sample(3, seed=0)
    with pytest.warns(QueryWarning, match="nothing is left to ask"):
        assert layer(rows) == {}
    with pytest.warns(QueryWarning, match="nothing is left to ask"):
        assert mixed({"y": torch.tensor([0]), "z": torch.tensor([1])}) == {}
    assert set(layer({v: x for v, x in rows.items() if v != "d2"})) == {"d2"}
    assert layer.log_evidence(rows).shape == (3,)
