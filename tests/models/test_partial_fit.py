"""Counts that are kept, merged and saved: the same model as from all rows at once."""

from __future__ import annotations

import copy
from functools import reduce
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch

import torchpbp
from tests.closeness import assert_same_up_to_rounding
from torchpbp import PBP, Continuous, Counts, DiscreteNetwork, KernelRidge, LatentGraph, Nystroem, templates
from torchpbp.errors import CheckpointError, DataError, DataWarning, NotFittedError, StructureError
from torchpbp.moments import joint_tables

NETWORK = DiscreteNetwork.random(templates.diamond(observed_states=3), seed=1)
GRAPH = NETWORK.graph
DATA = NETWORK.sample(900, seed=2)
EVIDENCE = {"a1": torch.tensor([0, 2, -1]), "b2": torch.tensor([1, -1, 0])}


def part(start: int, stop: int | None = None) -> dict[str, torch.Tensor]:
    return {v: x[start:stop] for v, x in DATA.items()}


def same(model: PBP, other: PBP) -> None:
    """Operators, floor, answers and row counts agree."""
    assert_same_up_to_rounding(dict(model.state_dict()), dict(other.state_dict()))
    assert_same_up_to_rounding(model.posterior("d1", EVIDENCE), other.posterior("d1", EVIDENCE))
    assert int(model.rows) == int(other.rows)


# -- partial_fit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [[1], [450], [300, 300, 899]])
@pytest.mark.filterwarnings("ignore::torchpbp.errors.DataWarning")
def test_rows_in_parts_are_rows_at_once(cuts):
    model = PBP(GRAPH)
    for start, stop in pairwise([0, *cuts, 900]):
        if start < stop:
            assert model.partial_fit(part(start, stop)) is model
    same(model, PBP(GRAPH).fit(DATA))


def test_fit_then_partial_fit_and_fit_again():
    model = PBP(GRAPH).fit(part(0, 500)).partial_fit(part(500))
    same(model, PBP(GRAPH).fit(DATA))
    same(model.fit(part(0, 400)), PBP(GRAPH).fit(part(0, 400)))  # fit starts anew


def test_further_rows_change_the_model():
    model = PBP(GRAPH).fit(part(0, 500))
    before = model.posterior("d1", EVIDENCE)
    assert (model.partial_fit(part(500)).posterior("d1", EVIDENCE) - before).abs().max() > 1e-3


def test_a_chosen_rank_stays():
    graph = GRAPH.with_states(dict.fromkeys(GRAPH.latent))
    model = PBP(graph, rank="auto", max_rank=3).fit(part(0, 600))
    ranks = [p.rank for p in model.plan.separators]
    model.partial_fit(part(600))
    assert [p.rank for p in model.plan.separators] == ranks
    fresh = copy.deepcopy(model)
    fresh.counts = None
    same(model, fresh.fit_counts(fresh.count(DATA)))
    with pytest.raises(NotFittedError, match=r"With rank='auto' the plan is made while fitting. Call fit\(\) first"):
        PBP(graph, rank="auto").partial_fit(DATA)


def test_bad_rows_leave_the_model_as_it_was():
    model = PBP(GRAPH).fit(part(0, 500))
    before = copy.deepcopy(model)
    with pytest.raises(DataError, match="column 'a1', row 3: state 9 is out of range"):
        model.partial_fit(part(500) | {"a1": torch.tensor([0, 0, 0, 9] + [0] * 396)})
    same(model, before)
    same(model.partial_fit(part(500)), PBP(GRAPH).fit(DATA))


def test_a_column_that_never_varies_is_reported():
    constant = {**DATA, "a1": torch.zeros(900, dtype=torch.int64)}
    with pytest.warns(DataWarning, match=r"Columns \['a1'\] hold one state only"):
        model = PBP(GRAPH).partial_fit(constant)
    model.partial_fit(DATA)  # no more


def test_labels_carry_over():
    names = np.array(["x", "y", "z"], dtype=object)
    kind = pd.CategoricalDtype(["z", "y", "x"])
    frame = pd.DataFrame({v: x.numpy() for v, x in DATA.items()})
    frame["a1"] = pd.Series(names[DATA["a1"].numpy()]).astype(kind)
    model = PBP(GRAPH).partial_fit(frame[:500])
    later = frame[500:].assign(a1=frame["a1"][500:].astype(str))  # as strings: sorted, were they not known
    same(model.partial_fit(later), expected := PBP(GRAPH).fit(frame))
    assert model.labels == expected.labels == {"a1": ("z", "y", "x")}
    with pytest.raises(DataError, match="unseen category 'w'"):
        model.partial_fit(frame[:1].assign(a1=["w"]))
    plain = PBP(GRAPH).fit(DATA)
    with pytest.raises(DataError, match=r"Column 'a1' has labels none in one of the counts and \['z', 'y', 'x'\] in"):
        plain.partial_fit(frame)


MIXED = LatentGraph([("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": Continuous(), "y": 3, "z": 3}, ["h"])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (PBP(MIXED, features=Nystroem(4)), r"Counting needs discrete variables, and \['x'\] are continuous"),
        (PBP(GRAPH, regressor=KernelRidge(landmarks=10)), r"Counting works with regressor=Ridge\(\) only: KernelRidge"),
    ],
    ids=["continuous", "kernel ridge"],
)
def test_models_that_counts_are_not_enough_for(model, message):
    for call in (model.partial_fit, model.count):
        with pytest.raises(StructureError, match=message):
            call(DATA)
    with pytest.raises(StructureError, match=message):
        model.fit_counts(PBP(GRAPH).count(DATA))


def test_models_whose_counts_are_gone():
    model = PBP(GRAPH).fit_population(NETWORK)
    assert model.counts is None
    with pytest.raises(NotFittedError, match="the counts behind it are gone, so rows cannot be added"):
        model.partial_fit(DATA)
    assert PBP(GRAPH, regressor=KernelRidge(landmarks=10)).fit(DATA).counts is None


# -- counts ----------------------------------------------------------------------------------------------------------


def test_parts_counted_apart_and_merged():
    expected = PBP(GRAPH).fit(DATA)
    edges = [0, 100, 101, 650, 900]
    parts = [PBP(GRAPH).count(part(a, b)) for a, b in pairwise(edges)]
    assert [c.rows for c in parts] == [100, 1, 549, 250]
    merged = reduce(Counts.merge, reversed(parts[1:]), parts[0])
    assert merged is parts[0]
    assert merged.rows == 900
    model = PBP(GRAPH)
    assert model.fit_counts(merged) is model
    same(model, expected)
    assert torch.equal(merged.tables.counts, expected.counts.tables.counts)


def test_counting_and_fitting_leave_what_they_were_given():
    model = PBP(GRAPH)
    counts = model.count(part(0, 500))
    assert not model.fitted
    assert model.counts is None
    model.fit_counts(counts)
    kept = model.counts
    model.partial_fit(part(500))
    assert kept.rows == counts.rows == 500
    counts.merge(counts.copy())
    assert (kept.rows, model.counts.rows) == (500, 900)


def test_counts_of_a_larger_plan_will_do():
    """What matters is that the groups a model needs are there."""
    large = PBP(GRAPH, singles=8).count(DATA)
    small = PBP(GRAPH, singles=2)
    same(small.fit_counts(large), PBP(GRAPH, singles=2).fit(DATA))
    same(small.partial_fit(DATA), PBP(GRAPH, singles=2).fit([DATA, DATA]))
    with pytest.raises(
        StructureError, match=r"The counts lack \d+ groups of variables .* such as \('.*same graph and opt"
    ):
        PBP(GRAPH, singles=8).fit_counts(PBP(GRAPH, singles=2).count(DATA))


def test_counts_in_files(tmp_path):
    frame = pd.DataFrame({v: x.numpy() for v, x in DATA.items()})
    frame["a1"] = frame["a1"].map({0: "n", 1: "m", 2: "k"}).astype(pd.CategoricalDtype(["n", "m", "k"]))
    counts = PBP(GRAPH).count(frame)
    counts.save(tmp_path / "counts.pt")
    loaded = Counts.load(tmp_path / "counts.pt")
    assert loaded.labels == {"a1": ("n", "m", "k")}
    assert loaded.rows == 900
    assert loaded.tables.scopes == counts.tables.scopes
    assert torch.equal(loaded.tables.counts, counts.tables.counts)
    same(PBP(GRAPH).fit_counts(loaded), PBP(GRAPH).fit(frame))
    assert [f.name for f in tmp_path.iterdir()] == ["counts.pt"]
    with pytest.raises(CheckpointError, match=r"'.*counts.pt' holds Counts, none of the models .* Use Counts.load\(\)"):
        PBP.load(tmp_path / "counts.pt")
    PBP(GRAPH).fit(DATA).save(tmp_path / "model.pt")
    with pytest.raises(
        CheckpointError, match=r"'.*model.pt' holds no Counts but a model of PBP. Use torchpbp.load\(\)"
    ):
        Counts.load(tmp_path / "model.pt")


def test_model_files_with_and_without_counts(tmp_path):
    model = PBP(GRAPH).fit(part(0, 500))
    model.save(tmp_path / "plain.pt")
    model.save(tmp_path / "whole.pt", counts=True)
    sizes = [(tmp_path / f"{name}.pt").stat().st_size for name in ("plain", "whole")]
    assert sizes[1] - sizes[0] >= model.counts.nbytes
    plain, whole = PBP.load(tmp_path / "plain.pt"), PBP.load(tmp_path / "whole.pt")
    assert plain.counts is None
    same(plain, whole)
    same(whole.partial_fit(part(500)), PBP(GRAPH).fit(DATA))
    with pytest.raises(NotFittedError, match="counts behind it are gone"):
        plain.partial_fit(part(500))
    with pytest.raises(NotFittedError, match="keeps no counts that could be saved"):
        plain.save(tmp_path / "x.pt", counts=True)


def other_states() -> Counts:
    return PBP(templates.diamond(observed_states=4)).count(DATA)


def labelled(labels: list[str]) -> Counts:
    column = np.array(labels, dtype=object)[DATA["a1"].numpy()]
    return PBP(GRAPH).count({**DATA, "a1": column}, labels={"a1": labels})


@pytest.mark.parametrize(
    ("one", "other", "error", "message"),
    [
        (lambda: PBP(GRAPH).count(DATA), other_states, StructureError, r"states here and there: {'a1': \(3, 4\)"),
        (
            lambda: PBP(GRAPH).count(DATA),
            lambda: PBP(GRAPH, singles=2).count(DATA),
            StructureError,
            "only if they are over the same scopes and states; only here: .*same graph and options",
        ),
        (
            lambda: labelled(["k", "l", "m"]),
            lambda: labelled(["m", "l", "k"]),
            DataError,
            r"Column 'a1' has labels \['k', 'l', 'm'\] in one of the counts and \['m', 'l', 'k'\] in the other.*labels=",
        ),
        (
            lambda: PBP(GRAPH).count(DATA),
            lambda: labelled(["k", "l", "m"]),
            DataError,
            "Column 'a1' has labels none in one of the counts",
        ),
        (lambda: PBP(GRAPH).count(DATA), lambda: DATA, DataError, "merge: expected Counts, got dict"),
    ],
    ids=["states", "scopes", "labels", "no labels", "no counts"],
)
def test_counts_that_do_not_match_are_not_merged(one, other, error, message):
    counts = one()
    before = counts.tables.counts.clone()
    with pytest.raises(error, match=message):
        counts.merge(other())
    assert torch.equal(counts.tables.counts, before)
    assert counts.rows == 900


def test_counts_that_do_not_fit_the_model():
    with pytest.raises(StructureError, match=r"The counts are over variables with states .* the model observes"):
        PBP(GRAPH).fit_counts(other_states())
    with pytest.raises(DataError, match="fit_counts: expected Counts, got dict"):
        PBP(GRAPH).fit_counts(DATA)
    empty = Counts(joint_tables.JointTables(PBP(GRAPH).count(DATA).tables.scopes, PBP(GRAPH).states))
    with pytest.raises(DataError, match="The counts are empty"):
        PBP(GRAPH).fit_counts(empty)


def test_counts_say_what_they_are():
    counts = PBP(GRAPH).count(DATA)
    assert repr(counts) == f"Counts(900 rows, 8 variables, {len(counts.tables.scopes)} tables, {counts.nbytes:,} bytes)"
    assert torchpbp.Counts is Counts
