"""A PBP layer inside a network that reads pen strokes: its parts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.experiments.digits_embedding.small_networks import network
from torchpbp import PBP
from torchpbp.datasets import hide_points, load_digits
from torchpbp.errors import StructureError
from torchpbp.experiments.embedding import start as embedding_start
from torchpbp.experiments.embedding.network import (
    MIDDLE,
    ChainHead,
    NetworkAverage,
    PerceptronHead,
    StrokeEncoder,
    stroke_graph,
)
from torchpbp.experiments.embedding.start import count_parameters, start_remembering, start_two_stage


def test_a_hidden_point_weighs_all_states_alike_and_touches_only_its_neighbours(rows: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    encoder = StrokeEncoder(5, 16, window=1)
    strokes = rows[0][:20]
    gap = strokes.clone()
    gap[:, 6:8] = torch.nan  # the fourth point
    whole, with_gap = encoder(strokes), encoder(gap)
    assert torch.allclose(whole.sum(dim=-1), torch.ones(20, 8))
    assert torch.equal(with_gap[:, 3], torch.ones(20, 5))
    far = [0, 1, 5, 6, 7]
    torch.testing.assert_close(whole[:, far], with_gap[:, far], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(whole[:, [2, 4]], with_gap[:, [2, 4]], atol=1e-3)


@pytest.mark.parametrize("two_stage", [True, False])
def test_gradients_of_the_chain_head_are_exact_where_estimates_are_negative(
    two_stage: bool, rows: tuple[Tensor, Tensor]
) -> None:
    net = network(rows, two_stage).double()
    assert isinstance(net.head, ChainHead)
    with torch.no_grad():
        weights = net.encoder(rows[0].double())
        signed = (net.head.estimates(weights) < 0).any(dim=1)
    assert bool(signed.any())
    weights = weights[signed][:4].requires_grad_(True)
    assert torch.autograd.gradcheck(net.head, (weights,))


def test_the_digit_with_the_largest_estimate_has_the_largest_logit(rows: tuple[Tensor, Tensor]) -> None:
    net = network(rows, two_stage=True)
    weights = net.encoder(hide_points(rows[0], 3, 0))
    estimates, logits = net.head.estimates(weights), net.head(weights)
    of_largest = logits.gather(1, estimates.argmax(dim=1, keepdim=True)).squeeze(1)
    torch.testing.assert_close(of_largest, logits.amax(dim=1), rtol=1e-5, atol=1e-5)
    assert torch.equal(estimates > 0, logits > 0)


def test_estimates_do_not_depend_on_the_scale_of_weights(rows: tuple[Tensor, Tensor]) -> None:
    net = network(rows, two_stage=True).double()
    weights = net.encoder(rows[0][:30].double())
    assert torch.allclose(net.head(weights), net.head(1e-4 * weights), atol=1e-8)


def test_without_any_point_the_two_stage_start_answers_with_the_digits_frequencies(rows: tuple[Tensor, Tensor]) -> None:
    net = network(rows, two_stage=True).double()
    estimate = net.head.estimates(torch.ones(1, 8, 6, dtype=torch.float64))[0]
    frequencies = torch.bincount(rows[1], minlength=10) / len(rows[1])
    assert torch.allclose(estimate / estimate.sum(), frequencies.double(), atol=0.02)


def test_the_two_stage_start_reproduces_its_quantiser(
    rows: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_start, "REST", 0.0)
    seen: dict[str, Tensor] = {}
    model, encoder = PBP(stroke_graph(6, 6), root=[MIDDLE]), StrokeEncoder(6, 8, window=1)
    fit = model.fit
    monkeypatch.setattr(model, "fit", lambda columns: (seen.update(columns), fit(columns)))
    start_two_stage(model, encoder, *rows, seed=0)
    weights = encoder(rows[0])
    for t in range(8):
        # A point as near to one centre as to another may go either way.
        assert (weights[:, t].argmax(dim=1) == seen[f"x{t + 1}"]).double().mean() > 0.99
    assert torch.equal(seen["digit"], rows[1])
    assert 0.3 < float(weights.max(dim=-1).values.mean()) < 0.99  # soft, but not vague


def test_the_two_stage_start_knows_digits_before_any_descent(rows: tuple[Tensor, Tensor]) -> None:
    fresh = load_digits().train_x[1000:1400], load_digits().train_y[1000:1400]
    right = {}
    for two_stage in (True, False):
        predicted = network(rows, two_stage)(fresh[0]).argmax(dim=1)
        right[two_stage] = float((predicted == fresh[1]).float().mean())
    assert right[True] > 0.4 > right[False]


def test_a_remembering_start_hands_messages_past_hidden_points() -> None:
    model = PBP(stroke_graph(6, 12), root=[MIDDLE])
    start_remembering(model, seed=0)
    for t in range(1, 9):
        leaf = model.operator_tree.operators[model.tree.leaf_of[f"x{t}"]]  # not observed: (1, 0, …, 0)
        assert torch.allclose(leaf.sum(dim=1), torch.eye(6, dtype=torch.float64)[0])
    weights = torch.ones(3, 8, 6, dtype=torch.float64)
    weights[1, 7] = torch.eye(6, dtype=torch.float64)[2]  # the last point alone is seen, four steps from the digit
    weights[2, 7] = torch.eye(6, dtype=torch.float64)[3]
    answers = ChainHead(model, 0.1)(weights)
    assert not torch.allclose(answers[1], answers[0], atol=0.1)
    assert not torch.allclose(answers[1], answers[2], atol=0.1)


@pytest.mark.parametrize("parameters", [500, 5_000, 60_000])
def test_the_twin_has_as_many_parameters_as_it_may(parameters: int) -> None:
    head = PerceptronHead(6, parameters)
    width = head.layers[0].out_features
    wider = (48 + 1) * (width + 1) + (width + 2) * (width + 1) + (width + 2) * 10
    assert count_parameters(head) <= parameters < wider


def test_the_twin_sees_hidden_and_undecided_points_alike() -> None:
    head = PerceptronHead(6, 5_000)
    assert torch.allclose(head(torch.ones(1, 8, 6)), head(torch.full((1, 8, 6), 1 / 6)), atol=1e-6)


def test_the_average_is_one_of_probabilities(rows: tuple[Tensor, Tensor]) -> None:
    members = [network(rows, two_stage=True), network(rows, seed=1)]
    logs = NetworkAverage(members)(rows[0][:9])
    expected = sum(torch.softmax(m(rows[0][:9]), dim=1) for m in members) / 2
    assert torch.allclose(logs.exp(), expected, atol=1e-6)
    with pytest.raises(StructureError, match="one or more members"):
        NetworkAverage([])
