"""Learning from data: consistency, streaming, input kinds, ranks chosen on held-out rows."""

import pandas as pd
import pytest
import torch

from tests.closeness import assert_same_up_to_rounding, weights
from torchpbp import PBP, DiscreteNetwork, LatentGraph, templates
from torchpbp.errors import ArgumentError, DataError, DataWarning, NotFittedError, ShapeError, StructureError


def kl(exact, learned):
    return float((exact * (exact / learned).log()).sum(dim=1).mean())


@pytest.mark.parametrize(
    "graph", [templates.diamond(), templates.hmm(5), templates.loopy_network(), templates.grid(2, 2)], ids=str
)
def test_error_falls_like_one_over_n(graph):
    errors = []
    for rows in (2_000, 50_000):
        total = 0.0
        for seed in range(4):
            network = DiscreteNetwork.random(graph, seed=seed)
            model = PBP(graph).fit(network.sample(rows, seed=seed))
            evidence = network.sample(300, seed=77)
            query = graph.observed[0]
            del evidence[query]
            total += kl(network.posterior(query, evidence), model.posterior(query, evidence).detach())
        errors.append(total)
    assert errors[1] < errors[0] / 5  # 25 times the rows


def test_mini_batches_give_the_same_model_as_one_table():
    network = DiscreteNetwork.random(templates.diamond(), seed=0)
    data = network.sample(5_000, seed=1)
    whole = PBP(network.graph).fit(data)
    chunks = [{v: x[i : i + 700] for v, x in data.items()} for i in range(0, 5_000, 700)]
    streamed = PBP(network.graph).fit(iter(chunks))
    small = PBP(network.graph).fit(data, batch_size=999)
    for other in (streamed, small):
        assert_same_up_to_rounding(weights(other), weights(whole))
    assert int(streamed.rows) == 5_000


def test_tables_of_all_kinds_give_the_same_model():
    network = DiscreteNetwork.random(templates.naive_bayes(4), seed=0)
    data = network.sample(500, seed=1)
    reference = weights(PBP(network.graph).fit(data))
    labels = list("wxyz")
    frame = pd.DataFrame({v: x.numpy() for v, x in data.items()})
    category = frame.apply(lambda c: pd.Series(pd.Categorical.from_codes(c, categories=labels), name=c.name))
    strings = category.astype(str)
    loader = torch.utils.data.DataLoader([{v: x[i] for v, x in data.items()} for i in range(500)], batch_size=64)
    for table in (
        {v: x.numpy() for v, x in data.items()},
        {v: x.tolist() for v, x in data.items()},
        frame,
        category,
        strings,
        loader,
    ):
        assert_same_up_to_rounding(weights(PBP(network.graph).fit(table)), reference, type(table).__name__)
    model = PBP(network.graph).fit(category)
    assert model.labels["x1"] == ("w", "x", "y", "z")
    by_label = model.posterior("x2", {"x1": ["z", None]})
    by_state = model.posterior("x2", {"x1": torch.tensor([3, -1])})
    assert_same_up_to_rounding(by_label, by_state)
    with pytest.raises(DataError, match="unseen category 'q'"):
        model.posterior("x2", {"x1": ["q"]})


def test_columns_that_the_graph_does_not_know_are_ignored_and_order_does_not_matter():
    network = DiscreteNetwork.random(templates.naive_bayes(3), seed=0)
    data = network.sample(300, seed=0)
    extra = {"unrelated": torch.zeros(300), **{v: data[v] for v in reversed(list(data))}}
    assert_same_up_to_rounding(weights(PBP(network.graph).fit(extra)), weights(PBP(network.graph).fit(data)))


def test_rank_auto_comes_close_to_the_best_fixed_rank():
    """It does not recover the number of latent states (3): it takes whatever predicts held-out rows best."""
    truth = templates.naive_bayes(6, states=3, observed_states=5)
    unknown = truth.with_states({"h": None})
    with pytest.raises(NotFittedError, match="rank='auto'"):
        _ = PBP(unknown, rank="auto").tree
    for seed in range(6):
        network = DiscreteNetwork.random(truth, seed=seed, concentration=0.5)
        data = network.sample(20_000, seed=0)
        evidence = network.sample(500, seed=9)
        del evidence["x1"]
        exact = network.posterior("x1", evidence)
        error = {}
        for rank in ("auto", 1, 2, 3, 4):
            model = PBP(unknown, rank=rank).fit(data)
            error[rank] = kl(exact, model.posterior("x1", evidence).detach())
            if rank == "auto":
                assert [s.rank for s in model.rank_scores][:3] == [1, 2, 3]
        best = min(error[rank] for rank in (1, 2, 3, 4))
        assert error["auto"] < 1.5 * best
        assert error["auto"] < 0.25 * error[1]


def test_rank_auto_prefers_independence_when_there_is_nothing_to_learn():
    network = DiscreteNetwork.random(templates.naive_bayes(4, states=1), seed=0)
    model = PBP(templates.naive_bayes(4, states=None), rank="auto").fit(network.sample(3_000, seed=0))
    assert max(p.rank for p in model.plan.separators) == 1


def test_rank_as_a_number_caps_messages_and_sets_unknown_latents():
    model = PBP(templates.hmm(4, states=None), rank=2)
    assert {p.rank for p in model.plan.separators} == {2}
    assert PBP(templates.hmm(4, states=3), rank=1).plan[1].rank == 1


def test_bad_ranks_and_ridges():
    with pytest.raises(StructureError, match="no number of states"):
        PBP(templates.hmm(3, states=None))
    with pytest.raises(ArgumentError, match="'auto'"):
        PBP(templates.hmm(3), rank="automatic")
    with pytest.raises(ArgumentError, match=r"rank: expected .*at least 1"):
        PBP(templates.hmm(3), rank=0)
    with pytest.raises(ArgumentError, match="ridge: expected two non-negative numbers"):
        PBP(templates.hmm(3), ridge=(-1.0, 0.0))
    with pytest.raises(DataError, match="needs rows to hold out"):
        PBP(templates.hmm(3), rank="auto").fit({f"x{i}": [0, 1, 2] for i in (1, 2, 3)})


def test_bad_training_data():
    graph = templates.naive_bayes(3)
    good = {f"x{i}": torch.tensor([0, 1, 2, 3]) for i in (1, 2, 3)}
    for bad, error, text in [
        ({}, DataError, "missing columns"),
        ({**good, "x2": torch.tensor([0, 1])}, ShapeError, "different lengths"),
        ({**good, "x2": torch.tensor([0, 1, 2, 4])}, DataError, r"column 'x2', row 3: state 4 is out of range"),
        ({**good, "x2": torch.tensor([0.0, 1.0, 2.5, 3.0])}, DataError, "2.5"),
        ({**good, "x2": torch.tensor([-1, -1, -1, -1])}, DataError, "all 4 values are missing"),
        ({v: x[:0] for v, x in good.items()}, DataError, "empty"),
        ([], DataError, "empty"),
        (3, DataError, "Expected a dict"),
        (torch.zeros(3, 4), ShapeError, "expected 3 columns"),
        ([torch.zeros(3)], ShapeError, "mini-batch 0, expected an array"),
        (["x1"], DataError, "Mini-batch 0"),
    ]:
        model = PBP(graph).fit(good) if bad is not good else None
        before = [p.clone() for p in model.parameters()]
        with pytest.raises(error, match=text):
            model.fit(bad)
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))  # nothing overwritten


def test_a_constant_column_is_mentioned_and_learned():
    network = DiscreteNetwork.random(templates.naive_bayes(3), seed=0)
    data = network.sample(1_000, seed=0)
    data["x2"] = torch.full((1_000,), 2)
    with pytest.warns(DataWarning, match=r"\['x2'\] hold one state only"):
        model = PBP(network.graph).fit(data)
    assert model.posterior("x2", {"x1": [0]})[0, 2].item() > 0.98
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.filterwarnings("ignore::torchpbp.errors.DataWarning")
def test_tiny_data_gives_valid_answers():
    graph = templates.diamond()
    network = DiscreteNetwork.random(graph, seed=0)
    for rows in (2, 5, 20):
        model = PBP(graph).fit(network.sample(rows, seed=1))
        for p in model.posteriors({"a1": torch.arange(6)}).values():
            assert torch.isfinite(p).all()
            assert (p >= 0).all()
            assert torch.allclose(p.sum(dim=1), torch.ones(6, dtype=torch.float64))


def test_a_wide_clique_stays_small():
    graph = LatentGraph([("h", f"x{i}") for i in range(8)], {"h": 10, **{f"x{i}": 10 for i in range(8)}}, ["h"])
    model = PBP(graph)
    assert max(p.numel() for p in model.parameters()) <= 1_000
    network = DiscreteNetwork.random(graph, seed=0)
    model.fit(network.sample(20_000, seed=0))
    assert torch.isfinite(model.log_evidence({"x0": torch.arange(10)})).all()


def test_population_needs_the_same_observables():
    network = DiscreteNetwork.random(templates.naive_bayes(3), seed=0)
    with pytest.raises(StructureError, match="They must be the same"):
        PBP(templates.naive_bayes(4)).fit_population(network)
