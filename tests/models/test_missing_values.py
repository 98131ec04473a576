"""PBP learned from rows with missing values: exact on exact moments, right in the limit, the same however it is counted."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
import pytest
import torch

from tests.closeness import assert_same_up_to_rounding, weights
from tests.models.structures import STRUCTURES
from torchpbp import PBP, Counts, DiscreteNetwork, LatentGraph, Ridge, templates
from torchpbp.errors import DataError, DataWarning
from torchpbp.learning.stage1 import Penalties
from torchpbp.learning.two_stage import learn
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.table_moments import TableMoments

GRAPH = templates.diamond()
NETWORK = DiscreteNetwork.random(GRAPH, seed=3)
ROWS = NETWORK.sample(3_000, seed=4)


def with_gaps(rows: dict[str, torch.Tensor], share: float, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {v: x.where(torch.rand(len(x), generator=generator) >= share, -1) for v, x in rows.items()}


def exact_tables(model: PBP, network: DiscreteNetwork, shares: dict[str, float]) -> JointTables:
    """Joint probabilities of states and gaps where values are missing at random with these shares."""
    tables = JointTables(Ridge().required_tables(model.plan), model.states, shares)

    def joint(scope: tuple[str, ...]) -> torch.Tensor:
        table = network.joint(scope)
        for axis, v in enumerate(scope):
            if v in shares:
                known = table * (1 - shares[v])
                lost = table.sum(dim=axis, keepdim=True) * shares[v]
                table = torch.cat([known, lost], dim=axis)
        return table

    tables.fill(joint)
    return tables


@pytest.mark.parametrize("name", STRUCTURES)
def test_exact_moments_with_gaps_give_exact_answers(name):
    graph = STRUCTURES[name]
    network = DiscreteNetwork.random(graph, seed=1)
    model = PBP(graph, strict=True)
    shares = {v: 0.1 + 0.6 * i / len(graph.observed) for i, v in enumerate(graph.observed) if i != 1}
    moments = TableMoments(exact_tables(model, network, shares))
    tree = learn(model.plan, moments, Ridge(), Penalties(0.0, 0.0)).tree
    model.operators.set_tree(tree)
    model.operators.floor.fill_(1e-300)
    model.fitted = True
    model.operators.set_marginals()
    evidence = with_gaps(network.sample(40, seed=2), 0.4, seed=3)
    with torch.no_grad():
        assert torch.allclose(model.log_evidence(evidence), network.log_evidence(evidence), atol=1e-8, rtol=0)
        exact = network.posteriors(evidence)
        for v, p in model.posteriors(evidence).items():
            assert torch.allclose(p, exact[v], atol=1e-8, rtol=0), v


def mean_kl(model: PBP, network: DiscreteNetwork) -> float:
    evidence = with_gaps(network.sample(300, seed=9), 0.5, seed=10)
    total = []
    with torch.no_grad():
        answers = model.posteriors(evidence)
    for v, exact in network.posteriors(evidence).items():
        asked = evidence[v] < 0
        total.append((exact * (exact.log() - answers[v].log())).sum(dim=1)[asked])
    return float(torch.cat(total).mean())


@pytest.mark.filterwarnings("ignore:.*rows have no value at all")
def test_answers_tend_to_the_truth_as_rows_with_gaps_grow():
    errors = []
    for count in (1_000, 100_000):
        rows = with_gaps(NETWORK.sample(count, seed=5), 0.3, seed=6)
        assert not (torch.stack(list(rows.values())) >= 0).all(dim=0).sum() > 0.1 * count  # hardly a row is complete
        model = PBP(GRAPH).fit(rows)
        errors.append(mean_kl(model, NETWORK))
    assert errors[1] < 0.15 * errors[0]
    assert re.search(r"(29\.9|30\.0|30\.1)% of the values missing", str(model))


def test_values_missing_by_what_they_are_do_no_harm_outside():
    """A gap that tells of the value is an instrument like any other: it must not bias what is learned inside."""
    graph = LatentGraph([("h", x) for x in "abcd"], {"h": 2, **dict.fromkeys("abcd", 3)}, ["h"])
    network = DiscreteNetwork.random(graph, seed=2)
    model = PBP(graph)
    lost = torch.tensor([0.1, 0.5, 0.8], dtype=torch.float64)  # of "d", by its state
    tables = JointTables(Ridge().required_tables(model.plan), model.states, ["d"])

    def joint(scope: tuple[str, ...]) -> torch.Tensor:
        table = network.joint(scope)
        if "d" not in scope:
            return table
        axis = scope.index("d")
        share = lost.reshape([-1 if i == axis else 1 for i in range(len(scope))])
        return torch.cat([table * (1 - share), (table * share).sum(dim=axis, keepdim=True)], dim=axis)

    tables.fill(joint)
    found = TableMoments(tables)
    inside = [p for p in model.plan.separators if "d" not in p.core]
    assert inside
    for p in inside:
        assert any("d" in g for g in p.instrument)
        gaps, full = found.separators([p]), TableMoments(exact_tables(model, network, {})).separators([p])
        assert torch.allclose(gaps.core_mean, full.core_mean)
        # the predictions of the core group span the same directions as with complete rows
        u, s, _ = torch.linalg.svd(full.cross[0])
        rank = int((s > 1e-9).sum())
        assert torch.allclose(
            u[:, rank:].T @ gaps.cross[0], torch.zeros(len(u) - rank, gaps.cross.shape[2]).double(), atol=1e-12
        )


def test_no_gaps_no_difference():
    complete = PBP(GRAPH).fit(ROWS)
    tables = complete.counts.tables.widened(GRAPH.observed)
    again = PBP(GRAPH).fit_counts(Counts(tables))
    evidence = with_gaps(NETWORK.sample(50, seed=7), 0.5, seed=8)
    with torch.no_grad():
        for v, p in again.posteriors(evidence).items():
            assert torch.allclose(p, complete.posteriors(evidence)[v], atol=1e-9), v
    assert set(complete.missing.values()) == {0.0}


def test_all_ways_to_say_missing_are_the_same():
    gaps = with_gaps(ROWS, 0.3, seed=1)
    expected = weights(PBP(GRAPH).fit(gaps))
    numbers = {v: x.numpy() for v, x in gaps.items()}
    table = pd.DataFrame({v: pd.array(np.where(x < 0, 0, x), dtype="Int64") for v, x in numbers.items()})
    for v, x in numbers.items():
        table.loc[x < 0, v] = pd.NA
    ways = {
        "NaN": {v: np.where(x < 0, math.nan, x) for v, x in numbers.items()},
        "None": {v: [None if s < 0 else int(s) for s in x] for v, x in numbers.items()},
        "pandas NA": table,
        "batches": [{v: x[i : i + 700] for v, x in gaps.items()} for i in range(0, 3_000, 700)],
        "array": np.stack([np.where(numbers[v] < 0, math.nan, numbers[v]) for v in GRAPH.observed], axis=1),
    }
    for name, data in ways.items():
        model = PBP(GRAPH).fit(data)
        assert_same_up_to_rounding(weights(model), expected, name)
        assert model.missing == {v: pytest.approx(float((x < 0).mean())) for v, x in numbers.items()}, name


def test_gaps_that_turn_up_late_make_room():
    late = {v: x.clone() for v, x in ROWS.items()}
    late["a1"][2_900:] = -1
    parts = [{v: x[i : i + 500] for v, x in late.items()} for i in range(0, 3_000, 500)]
    assert_same_up_to_rounding(weights(PBP(GRAPH).fit(parts)), weights(PBP(GRAPH).fit(late)))


def test_counts_with_and_without_gaps_are_merged_saved_and_added_to(tmp_path):
    gaps = with_gaps(ROWS, 0.2, seed=2)
    first, second = ({v: x[:1_000] for v, x in ROWS.items()}, {v: x[1_000:] for v, x in gaps.items()})
    whole = {v: torch.cat([first[v], second[v]]) for v in ROWS}
    expected = weights(PBP(GRAPH).fit(whole))
    model = PBP(GRAPH).fit(first).partial_fit(second)
    assert_same_up_to_rounding(weights(model), expected)
    assert_same_up_to_rounding(weights(PBP(GRAPH).fit(second).partial_fit(first)), expected)
    model.save(tmp_path / "model.pt", counts=True)
    loaded = PBP.load(tmp_path / "model.pt")
    assert loaded.missing == model.missing
    assert loaded.missing["a1"] == pytest.approx(float((whole["a1"] < 0).double().mean()))
    assert_same_up_to_rounding(weights(loaded.partial_fit(first)), weights(model.partial_fit(first)))


def test_rank_is_chosen_on_rows_with_gaps():
    graph = LatentGraph([("h", x) for x in "abcde"], {"h": None, **dict.fromkeys("abcde", 4)}, ["h"])
    truth = DiscreteNetwork.random(graph.with_states({"h": 2}), seed=2, concentration=0.5)
    rows = truth.sample(20_000, seed=3)
    model = PBP(graph, rank="auto").fit({**with_gaps(rows, 0.3, seed=4), "a": rows["a"]})
    assert max(p.rank for p in model.plan.separators) == 2
    assert int(model.rows) == 20_000


def test_what_cannot_be_learned_from_is_said():
    empty = {**ROWS, "a1": torch.full((3_000,), -1)}
    with pytest.raises(DataError, match="Column 'a1': all 3000 values are missing"):
        PBP(GRAPH).fit(empty)
    never = {v: x.clone() for v, x in ROWS.items()}
    first, second = next(p.core for p in PBP(GRAPH).plan.separators if len(p.core) == 2)
    never[first][::2], never[second][1::2] = -1, -1
    with pytest.raises(DataError, match=r"rows in which .* are all known, and there are none"):
        PBP(GRAPH).fit(never)
    with pytest.warns(DataWarning, match="50 of 3000 rows have no value at all"):
        PBP(GRAPH).fit({v: x.index_fill(0, torch.arange(50), -1) for v, x in ROWS.items()})
