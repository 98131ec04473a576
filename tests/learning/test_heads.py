"""Heads of nets in closed form, against regressions solved one by one."""

from __future__ import annotations

import torch
from torchpbp.learning.heads import PENALTIES, Correlations, FoldedRows, HeadPredictor, add, sums_of
from torchpbp.learning.nets import HiddenNets, Inputs

from torchpbp.features.maps import OneHot
from torchpbp.learning.regressions import Regression, targets_of
from torchpbp.moments.rows import TrainingRows

DIMS = {"a": 2, "b": 3, "c": 3}


def example(rows: int = 300, folds: int = 3) -> tuple[HiddenNets, FoldedRows, list[Regression]]:
    """c is predicted from a and b, of which it is a noisy function; a from c."""
    generator = torch.Generator().manual_seed(0)
    table = {v: torch.randint(n, (rows,), generator=generator) for v, n in DIMS.items()}
    copied = torch.rand(rows, generator=generator) < 0.7
    table["c"] = torch.where(copied, (table["a"] + table["b"]) % 3, table["c"])
    training = TrainingRows.of(table, {v: OneHot(n) for v, n in DIMS.items()})
    eye = torch.eye(3, dtype=torch.float64)
    regressions = [
        Regression("c", ("a", "b"), (("c",),), (eye,), torch.zeros(3, dtype=torch.float64)),
        Regression("a", ("c",), (("a",),), (eye[:2, :2],), torch.zeros(2, dtype=torch.float64)),
    ]
    nets = HiddenNets(Inputs([r.inputs for r in regressions], DIMS), folds, [7], torch.float64)
    nets.start(torch.Generator().manual_seed(1))
    return nets, FoldedRows(training, torch.arange(rows) % folds, folds), regressions


def solved_predictor(nets: HiddenNets, folded: FoldedRows, regressions: list[Regression]) -> HeadPredictor:
    """Heads in closed form in place of trained ones."""
    targets = targets_of(regressions, folded.rows)
    predictor = HeadPredictor(nets, folded, targets, [])
    weights = folded.weights(torch.arange(len(folded.rows)), own=False)
    sums = sums_of(predictor.eta(folded.rows), targets(folded.rows), weights)
    predictor.heads = Correlations.of(sums).heads(sums, predictor.penalties, nets.inputs.width - 1)
    return predictor


def solved(eta: torch.Tensor, y: torch.Tensor, penalty: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Ridge regression on standardised η with an intercept: weights and intercept."""
    spread = eta.std(dim=0, unbiased=False)
    scaled = torch.where(spread > 1e-9, (eta - eta.mean(dim=0)) / spread.clamp(min=1e-9), 0.0)
    gram = scaled.T @ scaled / len(eta) + penalty * torch.eye(eta.shape[1], dtype=torch.float64)
    weight = torch.linalg.solve(gram, scaled.T @ (y - y.mean(dim=0)) / len(eta)).T
    weight = torch.where(spread > 1e-9, weight / spread.clamp(min=1e-9), 0.0)
    return weight, y.mean(dim=0) - weight @ eta.mean(dim=0)


def test_heads_are_ridge_regressions_on_the_rows_a_net_was_trained_on():
    nets, folded, regressions = example()
    predictor = solved_predictor(nets, folded, regressions)
    eta, y = predictor.eta(folded.rows), targets_of(regressions, folded.rows)(folded.rows)
    found = predictor.predict(folded.rows, torch.arange(len(folded.rows)))
    for s in range(2):
        for k in range(3):
            own = folded.fold == k
            weight, intercept = solved(eta[s, k].T[~own], y[s][~own], float(predictor.penalties[s]))
            expected = eta[s, k].T[own] @ weight.T + intercept
            torch.testing.assert_close(found[s][own], expected, rtol=1e-7, atol=1e-9)


def test_the_penalty_is_the_one_that_predicts_held_out_rows_best():
    nets, folded, regressions = example()
    predictor = solved_predictor(nets, folded, regressions)
    eta, y = predictor.eta(folded.rows), targets_of(regressions, folded.rows)(folded.rows)
    for s in range(2):
        errors = []
        for penalty in PENALTIES:
            error = 0.0
            for k in range(3):
                own = folded.fold == k
                weight, intercept = solved(eta[s, k].T[~own], y[s][~own], penalty)
                error += float((y[s][own] - eta[s, k].T[own] @ weight.T - intercept).square().sum())
            errors.append(error)
        assert float(predictor.penalties[s]) == PENALTIES[errors.index(min(errors))]


def test_sums_over_parts_are_sums_over_all_rows():
    nets, folded, regressions = example(folds=2)
    predictor = solved_predictor(nets, folded, regressions)
    eta, y = predictor.eta(folded.rows), targets_of(regressions, folded.rows)(folded.rows)
    weights = folded.weights(torch.arange(300), own=False)
    parts = [sums_of(eta[..., i], [t[i] for t in y], weights[:, i]) for i in (slice(0, 90), slice(90, 300))]
    whole, together = sums_of(eta, y, weights), add(*parts)
    for name in ("rows", "eta", "gram"):
        torch.testing.assert_close(getattr(together, name), getattr(whole, name))
    for a, b in zip((*together.y, *together.cross), (*whole.y, *whole.cross), strict=True):
        torch.testing.assert_close(a, b)


def test_inputs_that_never_vary_and_those_that_repeat_do_no_harm():
    nets, folded, regressions = example(folds=1)
    predictor = solved_predictor(nets, folded, regressions)
    eta, y = predictor.eta(folded.rows), targets_of(regressions, folded.rows)(folded.rows)
    doubled = torch.cat([eta, eta[:, :, -3:], torch.full_like(eta[:, :, :1], 7.0)], dim=2)
    weights = folded.weights(torch.arange(300), own=False)
    sums = sums_of(doubled, y, weights)
    heads = Correlations.of(sums).heads(sums, predictor.penalties, nets.inputs.width - 1)
    for s in range(2):
        torch.testing.assert_close(heads[s][0] @ doubled[s, 0], predictor.heads[s][0] @ eta[s, 0], rtol=1e-6, atol=1e-8)
        assert float(heads[s][0][:, -1].abs().max()) == 0.0


def test_rows_are_predicted_by_the_last_layers_of_nets_that_have_not_seen_them():
    nets, folded, regressions = example()
    layers = [torch.ones(3, r.size, nets.size, dtype=torch.float64) * (1 + s) for s, r in enumerate(regressions)]
    predictor = HeadPredictor(nets, folded, targets_of(regressions, folded.rows), layers)
    found = predictor.predict(folded.rows, torch.arange(300))
    eta = predictor.eta(folded.rows)
    for s in range(2):
        own = eta[s].sum(dim=1).gather(0, folded.fold.unsqueeze(0)).squeeze(0)  # (rows,) by the net of each row
        torch.testing.assert_close(found[s], (1 + s) * own.unsqueeze(1).expand_as(found[s]))
