"""KernelPBP learned from incomplete rows: how missing values are filled in, and that answers still converge."""

import math

import numpy as np
import pytest
import torch

from tests.closeness import assert_same_up_to_rounding
from tests.models.continuous.mixed_model import PRIOR, STATES, blurred, mixed, mixed_graph
from torchpbp import Continuous, KernelPBP, templates
from torchpbp.errors import ArgumentError, DataError, DataWarning, ShapeError
from torchpbp.features import completion
from torchpbp.features.completion import complete_rows

NAN = math.nan
DOMAINS = [Continuous(), Continuous(), 3]
WIDTHS = torch.tensor([0.3, 0.3, 0.0], dtype=torch.float64)


def clusters(n, seed):
    """Three clusters; in each x is near 4h, y near −2x and c is h."""
    generator = torch.Generator().manual_seed(seed)
    h = torch.randint(3, (n,), generator=generator).double()
    x = 4 * h + torch.randn(n, generator=generator, dtype=torch.float64)
    y = -2 * x + 0.2 * torch.randn(n, generator=generator, dtype=torch.float64)
    return torch.stack([x, y, h], dim=1)


def with_missing(rows, share, seed):
    missing = torch.rand(rows.shape, generator=torch.Generator().manual_seed(seed)) < share
    missing[missing.all(dim=1), 0] = False
    return rows.masked_fill(missing, NAN), missing


@pytest.mark.parametrize("draw", [True, False])
def test_missing_values_come_from_similar_rows(draw):
    truth = clusters(600, 0)
    rows, missing = with_missing(truth, 0.25, 1)
    filled = complete_rows(rows, DOMAINS, WIDTHS, draw=draw)
    assert torch.equal(filled[~missing], truth[~missing])
    assert not filled.isnan().any()
    assert (filled[:, 2] == truth[:, 2])[missing[:, 2]].double().mean() > 0.9
    apart = (filled - truth)[missing[:, 1] & ~missing[:, 0], 1].abs()
    assert apart.median() < 0.15 * truth[:, 1].std()


def test_draws_keep_the_spread_that_means_take_away():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1_500, generator=generator, dtype=torch.float64)
    truth = torch.stack([x, x + torch.randn(1_500, generator=generator, dtype=torch.float64)], dim=1)
    missing = torch.zeros(truth.shape, dtype=torch.bool)
    missing[::2, 1] = True
    spread = {}
    for draw in (True, False):
        filled = complete_rows(truth.masked_fill(missing, NAN), DOMAINS[:2], WIDTHS[:2], draw=draw)
        spread[draw] = float((filled - filled[:, :1])[missing[:, 1], 1].std())
    assert spread[True] == pytest.approx(1.0, abs=0.15)
    assert spread[False] < 0.6


def test_values_missing_at_random_leave_no_bias():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2_000, generator=generator, dtype=torch.float64)
    y = x + 0.5 * torch.randn(2_000, generator=generator, dtype=torch.float64)
    hidden = torch.rand(2_000, generator=generator) < torch.where(x > 0, 0.8, 0.1)
    seen = y.masked_fill(hidden, NAN)
    filled = complete_rows(torch.stack([x, seen], dim=1), DOMAINS[:2], WIDTHS[:2])
    assert abs(float(seen.nanmean() - y.mean())) > 0.3  # what dropping rows would do
    assert abs(float(filled[:, 1].mean() - y.mean())) < 0.08


def test_ranges_pieces_and_seeds(monkeypatch):
    rows, _ = with_missing(clusters(200, 4), 0.4, 5)
    whole = complete_rows(rows, DOMAINS, WIDTHS, draw=False)
    monkeypatch.setattr(completion, "ENTRIES", 1_000)
    assert torch.allclose(complete_rows(rows, DOMAINS, WIDTHS, draw=False), whole)
    monkeypatch.setattr(completion, "MOST_DONORS", 20)
    few = complete_rows(rows, DOMAINS, WIDTHS)
    assert not few.isnan().any()
    assert torch.equal(complete_rows(rows, DOMAINS, WIDTHS), few)
    assert not torch.equal(complete_rows(rows, DOMAINS, WIDTHS, seed=1), few)
    bounded = [Continuous(0, 5), Continuous(), 3]
    inside = rows.clone()
    inside[:, 0] = inside[:, 0].clamp(0, 5)
    assert float(complete_rows(inside, bounded, WIDTHS, draw=False)[:, 0].max()) <= 5
    complete = clusters(5, 0)
    assert complete_rows(complete, DOMAINS, WIDTHS) is complete


def test_tables_are_completed_and_empty_rows_left_out():
    table = {"a": torch.tensor([0, -1, 2, -1, 2]), "b": torch.tensor([0.0, 1.0, NAN, NAN, 9.0], dtype=torch.float64)}
    domains = {"a": 3, "b": Continuous()}
    filled = completion.complete_table(table, domains, seed=1)
    assert filled["a"].dtype == torch.int64
    assert filled["a"][[0, 2, 3]].tolist() == [0, 2, 2]
    assert filled["b"][[0, 1, 3]].tolist() == [0.0, 1.0, 9.0]
    assert set(filled["a"].tolist()) <= {0, 2}
    assert not filled["b"].isnan().any()
    assert float(filled["b"][2]) == 9.0  # the other row with state 2
    whole = {v: x[:1] for v, x in table.items()}
    assert completion.complete_table(whole, domains)["b"] is whole["b"]


def error(model):
    """KL of P(c | x, y) from numerical integration."""
    width = {v: float(model.evidence_widths[model.names.index(v)]) for v in "xy"}
    x, y = (a.ravel() for a in np.meshgrid(np.linspace(0.5, 9, 9), np.linspace(-4, 4.5, 9)))
    joint = (PRIOR * blurred("x", x, width["x"]) * blurred("y", y, width["y"])) @ STATES
    exact = joint / joint.sum(axis=1, keepdims=True)
    found = model.posterior("c", {"x": x, "y": y}).double().numpy().clip(1e-4)
    return float((exact * np.log(exact / found)).sum(axis=1) @ joint.sum(axis=1) / joint.sum())


def holed(rows, seed, how):
    """Gaps completely at random, or in x and y by the state of c."""
    table = mixed(rows, seed)
    generator = torch.Generator().manual_seed(seed + 100)
    for v in "xyc" if how == "anywhere" else "xy":
        share = torch.full((rows,), 0.3) if how == "anywhere" else torch.where(table["c"] >= 2, 0.5, 0.1)
        missing = torch.rand(rows, generator=generator) < share
        if v == "c":
            missing &= ~(table["x"].isnan() & table["y"].isnan())
        table[v] = table[v].masked_fill(missing, -1 if v == "c" else NAN)
    return {v: table[v] for v in "xyc"}


@pytest.mark.parametrize("how", ["anywhere", "where c is 2 or 3"])
def test_answers_converge_with_a_third_missing(how):
    errors = {}
    for rows in (300, 2_000):
        model = KernelPBP(mixed_graph(), bandwidth=0.6, positive=False, landmarks=100)
        errors[rows] = np.mean([error(model.fit(holed(rows, seed, how))) for seed in range(2)])
    assert errors[2_000] < 0.5 * errors[300]
    assert errors[2_000] < 0.08


def test_the_model_reports_how_much_was_missing():
    table = holed(300, 0, "anywhere")
    model = KernelPBP(mixed_graph(), bandwidth=0.6).fit(table)
    shares = {v: float((x.isnan() if v != "c" else x < 0).double().mean()) for v, x in table.items()}
    assert model.missing == pytest.approx(shares, rel=1e-12)
    assert "missing in training: 2" in str(model) or "missing in training: 3" in str(model)
    assert "missing" not in str(model.fit(mixed(50, 0)))
    empty = {v: torch.cat([x, x.new_full((12,), -1 if v == "c" else NAN)]) for v, x in table.items()}
    with pytest.warns(DataWarning, match="12 of 312 rows have no value at all"):
        again = KernelPBP(mixed_graph(), bandwidth=0.6).fit(empty)
    assert_same_up_to_rounding(again.examples, KernelPBP(mixed_graph(), bandwidth=0.6).fit(table).examples)
    with pytest.raises(ArgumentError, match="fill: expected one of 'draw', 'mean', got 'median'"):
        KernelPBP(mixed_graph(), fill="median")


def test_increments_learn_from_incomplete_rows():
    graph = templates.pen_strokes(4, low=-9.0, high=9.0)
    generator = torch.Generator().manual_seed(0)
    walk = (
        torch.randn(120, 8, generator=generator, dtype=torch.float64).reshape(120, 4, 2).cumsum(dim=1).reshape(120, 8)
    )
    table = dict(zip(graph.observed, walk.clamp(-9, 9).T, strict=True))
    missing = {v: x.masked_fill(torch.rand(120, generator=generator) < 0.2, NAN) for v, x in table.items()}
    lines = [[f"{a}{i}" for i in range(1, 5)] for a in "xy"]
    model = KernelPBP(graph, bandwidth="median", sequences=lines).fit(missing)
    assert torch.isfinite(model.log_evidence(missing)).all()
    assert 0.1 < model.missing["x1"] < 0.3


def test_tables_that_cannot_be_completed():
    domains = {"a": Continuous(), "b": 3}
    a, b = torch.tensor([0.5, NAN, 1.0]), torch.tensor([0, -1, 2])
    for table, error, text in [
        ({"a": a}, DataError, r"missing columns \['b'\]. The data has: a"),
        ({"a": a, "b": b[:2]}, ShapeError, r"different lengths: \{'a': 3, 'b': 2\}"),
        ({"a": a[:0], "b": b[:0]}, DataError, "empty"),
        ({"a": a, "b": torch.full((3,), -1)}, DataError, r"columns \['b'\] have no value"),
    ]:
        with pytest.raises(error, match=text):
            completion.complete_table(table, domains)
