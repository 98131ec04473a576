"""Predictions beside linear features: what stays of them."""

from __future__ import annotations

import pytest
import torch

from torchpbp import MLP, PBP, DiscreteNetwork, templates
from torchpbp.exact import noisy_parity
from torchpbp.learning.stacked_instruments import significant_directions

ROWS = 2_000


def moments(y: torch.Tensor, instrument: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y, instrument = y - y.mean(dim=0), instrument - instrument.mean(dim=0)
    return y.T @ instrument / len(y), instrument.T @ instrument / len(y)


def sample(seed: int, strength: float, noise: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    """Three unit-variance responses, predictions of them and four features, all linear but for a product in y_0.

    The predictions know the linear part and, in the first dimension, the product; the rest of them is noise.
    """
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(ROWS, 4, generator=generator, dtype=torch.float64)
    product = features[:, :1] * features[:, 1:2]
    nonlinear = torch.cat([strength * product, torch.zeros(ROWS, 2)], dim=1)
    linear = 0.3 * features[:, :3]
    spread = (1 - 0.09 - torch.tensor([strength, 0.0, 0.0]) ** 2).sqrt()
    y = linear + nonlinear + spread * torch.randn(ROWS, 3, generator=generator, dtype=torch.float64)
    wrong = noise * torch.randn(ROWS, 3, generator=generator, dtype=torch.float64)
    return y, torch.cat([linear + nonlinear + wrong, features], dim=1)


def test_predictions_that_know_nothing_new_are_left_out():
    kept = [significant_directions(*moments(*sample(seed, strength=0.0)), 2, ROWS).shape[1] - 4 for seed in range(200)]
    assert sum(kept) <= 5  # of 600 dimensions; 0.6 expected at this level, 600 without a test
    loose = [significant_directions(*moments(*sample(s, 0.0)), 2, ROWS, level=0.5).shape[1] - 4 for s in range(50)]
    assert 50 < sum(loose) < 100  # one in two of 150


def test_what_is_kept_is_the_product_that_features_miss():
    for seed in range(10):
        y, instrument = sample(seed, strength=0.4)
        kept = significant_directions(*moments(y, instrument), 2, ROWS)
        assert kept.shape == (7, 5)
        assert torch.equal(kept[:, 1:], torch.eye(7, dtype=torch.float64)[:, 3:])  # all features stay as they are
        found = (instrument @ kept)[:, 0]
        product = instrument[:, 3] * instrument[:, 4]
        together = torch.corrcoef(torch.stack([found, product, *instrument.T[3:]]))
        assert float(together[0, 1].abs()) > 0.6
        assert float(together[0, 2:].abs().max()) < 1e-6  # nothing of the features is said twice


def test_a_prediction_against_its_target_is_no_merit():
    y, instrument = sample(0, strength=0.4)
    instrument = torch.cat([-instrument[:, :3], instrument[:, 3:]], dim=1)
    assert significant_directions(*moments(y, instrument), 2, ROWS).shape == (7, 4)


def test_predictions_within_the_features_are_left_out_whatever_their_rounding():
    y, instrument = sample(0, strength=0.0, noise=1e-7)
    cross, gram = moments(y, instrument)
    assert significant_directions(cross, gram, 2, ROWS, level=1 - 1e-12).shape == (7, 4)


def test_all_stay_in_the_population_and_where_the_message_needs_them():
    cross, gram = moments(*sample(0, strength=0.0))
    everything = torch.eye(7, dtype=torch.float64)
    assert torch.equal(significant_directions(cross, gram, 2, rows=1.0), everything)
    assert torch.equal(significant_directions(cross, gram, 5, ROWS), everything)
    assert significant_directions(cross, gram, 4, ROWS).shape == (7, 4)


def operators(regressor: MLP | None, graph, data) -> list[torch.Tensor]:
    model = PBP(graph, regressor=regressor).fit(data)
    assert (model.stage1 is None) == (regressor is None)
    return [model.operators.root.weight.detach(), *(op.weight.detach() for op in model.operators.separator_operators)]


@pytest.mark.parametrize("name", ["tree", "parity"])
def test_nets_change_what_linear_regression_misses_and_nothing_else(name):
    """A latent tree's messages are all but linear in one another; of parity, linear regression sees nothing."""
    quick = MLP(hidden=[16], folds=2, epochs=15, trainer={"enable_progress_bar": False})
    if name == "tree":
        network = DiscreteNetwork.random(templates.latent_tree(2, states=2, observed_states=2), seed=5)
    else:
        network = noisy_parity(templates.parity(), 1, concentration=0.5)
    data = network.sample(5_000, seed=1)
    pairs = list(zip(operators(quick, network.graph, data), operators(None, network.graph, data), strict=True))
    if name == "tree":
        for learned, linear in pairs:
            torch.testing.assert_close(learned, linear, atol=1e-8, rtol=1e-6)
    else:
        assert max(float((a - b).abs().max()) for a, b in pairs) > 0.1
