"""Features of leaves that encoders compute, and the evidence vectors made of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchpbp import PBP, ContextEncoder, Continuous, LatentGraph, PointEncoder
from torchpbp.errors import ArgumentError
from torchpbp.features.encoded import SMALLEST_SPREAD, EncodedMap, Encoders, ratio_evidence, spread_of


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(shared: bool = True, residual: bool = False) -> Encoders:
    """Encoders of two vectors and an image."""
    torch.manual_seed(0)
    first = PointEncoder((2,), 3, width=4)
    modules = {
        "a": first,
        "b": first if shared else PointEncoder((2,), 5, width=4),
        "picture": PointEncoder((1, 3, 3), 2),
    }
    encoders = Encoders(modules, {"a": (2,), "b": (2,), "picture": (1, 3, 3)}, context=False).double()
    if residual:
        encoders.add_residuals(width=4)
    return encoders


def values(rows: int = 6) -> dict[str, Tensor]:
    return {"a": draws(rows, 2), "b": draws(rows, 2, seed=1), "picture": draws(rows, 1, 3, 3, seed=2)}


def seen(rows: int = 6) -> dict[str, Tensor]:
    return dict.fromkeys(("a", "b", "picture"), torch.ones(rows, dtype=torch.bool))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_leaves_are_encoded_together_as_each_alone(shared: bool, residual: bool) -> None:
    encoders = make(shared, residual)
    assert encoders.sizes == {"a": 3, "b": 3 if shared else 5, "picture": 2}
    assert len(encoders.modules_) == (2 if shared else 3)
    together = encoders(values(), seen())
    for v, x in values().items():
        alone = encoders.alone(v, x)
        torch.testing.assert_close(together[v].features, alone.features)
        torch.testing.assert_close(alone.features, encoders.modules_[encoders.module_of[v]](x))
        assert (alone.residual is None) == (not residual)
        if alone.residual is not None:
            assert alone.residual.shape == (6, encoders.sizes[v] + 1)
            torch.testing.assert_close(together[v].residual, alone.residual)


def test_features_are_standardised_with_a_constant_in_front() -> None:
    encoders = make()
    map, x = EncodedMap("a", (2,), 3, encoders), draws(400, 2) * 3 + 1
    map.fit(x)
    features = map.features(x).detach()
    assert features.shape == (400, 4)
    assert bool((features[:, 0] == 1).all())
    torch.testing.assert_close(features[:, 1:].mean(dim=0), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(features[:, 1:].std(dim=0, unbiased=False), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(map.gram, features.T @ features / 400)
    standard = map.standard_values(x)
    torch.testing.assert_close(standard.mean(dim=0), torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(standard.std(dim=0, unbiased=False), torch.ones(2, dtype=torch.float64))


def test_evidence_is_the_solution_with_the_gram_and_averages_to_a_missing_value() -> None:
    encoders = make()
    map, x = EncodedMap("a", (2,), 3, encoders), draws(400, 2)
    map.fit(x)
    with torch.no_grad():
        encoders.log_ridge.fill_(-torch.inf)
        zeta, features = map.evidence(x), map.features(x)
    torch.testing.assert_close(zeta, torch.linalg.solve(map.gram, features.T).T)
    # E[ζ] = C⁻¹ E[φ] = (1, 0, …): the vector of a missing value
    torch.testing.assert_close(zeta.mean(dim=0), map.missing(), atol=1e-10, rtol=0)
    assert map.missing().tolist() == [1.0, 0.0, 0.0, 0.0]


def test_the_constant_is_not_penalised() -> None:
    gram = torch.eye(3, dtype=torch.float64)
    features = torch.tensor([[1.0, 2.0, -1.0]], dtype=torch.float64)
    found = ratio_evidence(features, gram, torch.tensor(1.0).log(), None)
    assert found.tolist() == [[1.0, 1.0, -0.5]]
    residual = torch.tensor([[0.5, 0.0, 1.0]])
    assert ratio_evidence(features, gram, torch.tensor(1.0).log(), residual).tolist() == [[1.5, 1.0, 0.5]]
    batched = ratio_evidence(features.expand(2, 1, 3), torch.stack([gram, 2 * gram]), torch.tensor(0.0), None)
    assert batched[1].flatten().tolist() == pytest.approx([0.5, 2 / 3, -1 / 3])


def test_outputs_that_do_not_vary_are_left_as_they_are() -> None:
    variance = torch.tensor([4.0, 0.0, (0.5 * SMALLEST_SPREAD) ** 2], dtype=torch.float64, requires_grad=True)
    spread = spread_of(variance)
    assert spread.tolist() == [2.0, 1.0, 1.0]
    spread.sum().backward()
    assert bool(variance.grad.isfinite().all())


def test_a_constant_encoder_carries_no_information() -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.full((len(x), 2), 7.0, dtype=x.dtype)

    encoders = Encoders({"a": Constant()}, {"a": (2,)}, False)
    map = EncodedMap("a", (2,), 2, encoders)
    map.fit(draws(50, 2))
    with torch.no_grad():
        encoders.log_ridge.fill_(-3.0)
        zeta = map.evidence(draws(4, 2))
    torch.testing.assert_close(zeta, map.missing().expand(4, 3), atol=1e-9, rtol=0)


# -- copies ------------------------------------------------------------------------------------------------------------


def test_a_copied_model_has_encoders_of_its_own() -> None:
    variables = {"h": 2, **{v: Continuous(shape=(2,)) for v in "abc"}}
    graph = LatentGraph([("h", v) for v in "abc"], variables, latent=["h"])
    model = PBP(graph, features=PointEncoder((2,), 3))
    twin = copy.deepcopy(model)
    assert twin.encoders is not model.encoders
    assert all(o.map.encoders is twin.encoders for o in twin.observables.values())
    with torch.no_grad():
        for p in twin.encoders.parameters():
            p.zero_()
    assert float(model.observables["a"].map.features(draws(2, 2))[:, 1:].abs().max()) > 0
    assert [name for name in model.state_dict() if name.endswith("modules_.0.layers.0.weight")] == [
        "operators.encoders.modules_.0.layers.0.weight"
    ]


def test_a_copied_map_alone_shares_its_encoders() -> None:
    encoders = make()
    map = EncodedMap("a", (2,), 3, encoders)
    map.fit(draws(20, 2))
    twin = copy.deepcopy(map)
    assert twin.encoders is encoders
    torch.testing.assert_close(twin.gram, map.gram)
    twin.gram.zero_()
    assert float(map.gram.abs().max()) > 0


def test_names_with_dots_can_have_residuals() -> None:
    encoders = Encoders({"a.b": PointEncoder((2,), 3)}, {"a.b": (2,)}, False)
    encoders.add_residuals()
    assert encoders.alone("a.b", draws(2, 2)).residual.shape == (2, 4)


# -- context encoders --------------------------------------------------------------------------------------------------


def context_encoders() -> Encoders:
    torch.manual_seed(0)
    return Encoders(
        dict.fromkeys("abc", ContextEncoder(["a", "b", "c"], (2,), 3, width=8, head=4)),
        dict.fromkeys("abc", (2,)),
        context=True,
    ).double()


def test_context_encoders_look_at_what_is_seen_only() -> None:
    encoders = context_encoders()
    x = {v: draws(5, 2, seed=i) for i, v in enumerate("abc")}
    flags = {
        "a": torch.tensor([1, 1, 0, 0, 1]).bool(),
        "b": torch.tensor([1, 0, 1, 0, 1]).bool(),
        "c": torch.ones(5).bool(),
    }
    encoders.add_residuals()
    before = encoders(x, flags)
    for moved in "abc":
        after = encoders({v: u + 5 * (v == moved) for v, u in x.items()}, flags)
        for v in "abc":
            equal = (after[v].features == before[v].features).all(dim=1)
            same = (after[v].residual == before[v].residual).all(dim=1)
            assert torch.equal(equal, same)
            # a leaf's own value is always used for its own features, that of others where it is seen
            assert torch.equal(equal, ~flags[moved] if v != moved else torch.zeros(5, dtype=torch.bool))


def test_residuals_of_context_encoders_are_used_if_wanted() -> None:
    encoders = context_encoders()
    x, flags = {v: draws(4, 2) for v in "abc"}, dict.fromkeys("abc", torch.ones(4, dtype=torch.bool))
    assert encoders(x, flags)["a"].residual is None
    encoders.add_residuals()
    assert encoders(x, flags)["a"].residual.shape == (4, 4)
    with pytest.raises(
        ArgumentError, match=r"Features of 'a': the encoder looks at all leaves of a row \(context=True\)"
    ):
        encoders.alone("a", x["a"])


# -- encoders that do not do what they should --------------------------------------------------------------------------


class Returns(nn.Module):
    """An encoder that returns what a function makes of its input."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: x.unsqueeze(1), r"encoder of 'a' must return \(rows, features\), here \(2, d\), got \(2, 1, 2\)"),
        (lambda x: x[0], r"got \(2,\)"),
        (lambda x: x[:1], r"got \(1, 2\)"),
        (lambda x: x[:, :0], r"got \(2, 0\)"),
        (lambda x: [x], "got list"),
        (lambda x: x @ torch.ones(3, 1), r"could not encode two rows of zeros of shape .*RuntimeError"),
    ],
)
def test_wrong_output_raises_when_the_model_is_made(function: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        Encoders({"a": Returns(function)}, {"a": (2,)}, False)


def test_an_encoder_whose_size_changes_raises() -> None:
    encoders = Encoders({"a": Returns(lambda x: x[:, : 1 + int(bool(x.any()))])}, {"a": (2,)}, False)
    with pytest.raises(ArgumentError, match="the encoder of 'a' returned 2 features, but 1 when the model was made"):
        encoders.alone("a", torch.ones(3, 2))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x, seen: x["a"], "a context encoder returns a dict with the features of a, b, got Tensor"),
        (lambda x, seen: {"a": x["a"]}, r"features of a, b, got \['a'\]"),
        (
            lambda x, seen: {v: (u, u) for v, u in x.items()},
            r"the residual of 'a' must have shape \(2, 3\).*got \(2, 2\)",
        ),
        (lambda x: x, "could not encode two rows of zeros"),
    ],
)
def test_wrong_output_of_context_encoders(function: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        Encoders(dict.fromkeys("ab", Returns(function)), dict.fromkeys("ab", (2,)), True)


def test_measuring_leaves_training_mode_and_buffers_alone() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    module[2].eval()
    Encoders({"a": module}, {"a": (2,)}, False)
    assert module.training
    assert not module[2].training
    assert int(module[1].num_batches_tracked) == 0
