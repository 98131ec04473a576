"""Encoders of leaves: what they look at, and what they do not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchpbp.errors import ArgumentError, DataError
from torchpbp.neural.encoders import ContextEncoder, PointEncoder

NAMES = tuple(f"p{t}" for t in range(1, 9))


def rows(seed: int, count: int = 20) -> dict[str, Tensor]:
    points = 100 * torch.rand(count, 8, 2, generator=torch.Generator().manual_seed(seed))
    return dict(zip(NAMES, points.unbind(1), strict=True))


def marks(count: int = 20, hidden: tuple[str, ...] = ()) -> dict[str, Tensor]:
    return {name: torch.full((count,), name not in hidden) for name in NAMES}


@pytest.fixture(params=[True, False], ids=["relative", "absolute"])
def encoder(request: pytest.FixtureRequest) -> ContextEncoder:
    torch.manual_seed(0)
    return ContextEncoder(NAMES, (2,), features=5, width=16, head=12, centre=50.0, scale=30.0, relative=request.param)


def test_each_point_has_features_and_a_residual_that_starts_small(encoder: ContextEncoder) -> None:
    found = encoder(rows(0), marks())
    assert list(found) == list(NAMES)
    for features, residual in found.values():
        assert features.shape == (20, 5)
        assert residual.shape == (20, 6)
    size = torch.stack([f.std() for f, _ in found.values()]).mean()
    assert torch.stack([r.std() for _, r in found.values()]).mean() < 0.3 * size


def test_hidden_points_have_no_influence_on_others_and_seen_ones_do(encoder: ContextEncoder) -> None:
    first, second = rows(0), rows(1)
    mixed = {name: (second if name in ("p3", "p6") else first)[name] for name in NAMES}
    for hidden in (("p3", "p6"), ()):
        before, after = (encoder(values, marks(hidden=hidden)) for values in (first, mixed))
        for name in NAMES:
            if name not in ("p3", "p6"):
                same = [torch.equal(a, b) for a, b in zip(before[name], after[name], strict=True)]
                assert same == [bool(hidden)] * 2, name


def test_a_point_that_others_may_not_see_still_has_features_of_its_own(encoder: ContextEncoder) -> None:
    first, second = rows(0), rows(1)
    moved = {**first, "p3": second["p3"]}
    hidden = marks(hidden=("p3",))
    assert not torch.allclose(encoder(first, hidden)["p3"][0], encoder(moved, hidden)["p3"][0])


def test_rows_do_not_influence_each_other(encoder: ContextEncoder) -> None:
    values = rows(0)
    alone = encoder({name: v[4:5] for name, v in values.items()}, marks(1))
    together = encoder(values, marks())
    for name in NAMES:
        assert torch.allclose(alone[name][0], together[name][0][4:5], atol=1e-5)


def test_gradients_reach_all_weights(encoder: ContextEncoder) -> None:
    sum(f.square().sum() + r.square().sum() for f, r in encoder(rows(0), marks()).values()).backward()
    for name, weight in encoder.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name


def test_a_point_encoder_looks_at_its_own_point() -> None:
    torch.manual_seed(0)
    found = PointEncoder((2,), features=5, width=8, centre=50.0, scale=30.0)(rows(0)["p2"])
    assert found.shape == (20, 5)
    assert found.std(dim=0).min() > 0


def test_bad_encoders_raise(encoder: ContextEncoder) -> None:
    with pytest.raises(DataError, match=r"missing: \['p8'\]"):
        encoder({k: v for k, v in rows(0).items() if k != "p8"}, marks())
    with pytest.raises(ArgumentError, match="features: expected a whole number of at least 1, got 0"):
        ContextEncoder(NAMES, (2,), features=0)
    with pytest.raises(ArgumentError, match="width: expected a whole number of at least 1, got 0"):
        PointEncoder((2,), width=0)


def test_settings_make_the_same_encoder_again(encoder: ContextEncoder) -> None:
    for made in (encoder, PointEncoder((2, 3), features=4, width=8, centre=1.0, scale=2.0)):
        again = type(made)(**made.settings)  # type: ignore[arg-type]
        assert again.settings == made.settings
        assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in made.state_dict().items()}
