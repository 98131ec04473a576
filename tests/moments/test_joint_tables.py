"""Joint tables: counts by index arithmetic against counting row by row."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.graph.strategies import SMALL
from tests.oracle import Oracle
from torchpbp import DiscreteNetwork
from torchpbp.errors import NotFittedError, StructureError
from torchpbp.moments import covers, joint_tables
from torchpbp.moments.joint_tables import JointTables

STATES = {"a": 2, "b": 3, "c": 4, "d": 1, "e": 3}


def codes(rows: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([rng.integers(0, s, rows) for s in STATES.values()]))


def counted(data: torch.Tensor, names: tuple[str, ...]) -> np.ndarray:
    """Relative frequencies, one row at a time."""
    positions = [list(STATES).index(v) for v in names]
    table = np.zeros([STATES[v] for v in names])
    for cell, count in Counter(tuple(int(data[p, r]) for p in positions) for r in range(data.shape[1])).items():
        table[cell] = count
    return table / data.shape[1]


def filled(scopes, *parts: torch.Tensor) -> JointTables:
    tables = JointTables(scopes, STATES)
    for part in parts:
        tables.add(part)
    return tables


scopes_of_names = st.lists(
    st.lists(st.sampled_from(list(STATES)), unique=True, min_size=1, max_size=4).map(tuple), min_size=1, max_size=6
)


@given(scopes=scopes_of_names, rows=st.integers(1, 60), seed=st.integers(0, 100))
def test_tables_are_frequencies(scopes, rows, seed):
    data = codes(rows, seed)
    tables = filled(scopes, data)
    assert tables.rows == rows
    for scope in scopes:
        np.testing.assert_allclose(tables.table(scope), counted(data, scope), atol=1e-15)
        backwards = scope[::-1]
        np.testing.assert_allclose(tables.table(backwards), counted(data, backwards), atol=1e-15)
        np.testing.assert_allclose(tables.table(scope[:1]), counted(data, scope[:1]), atol=1e-15)


@given(scopes=scopes_of_names, cuts=st.lists(st.integers(0, 50), max_size=4))
def test_batches_and_merging_change_nothing(scopes, cuts):
    data = codes(50)
    whole = filled(scopes, data)
    edges = [0, *sorted(cuts), 50]
    parts = [data[:, a:b] for a, b in pairwise(edges)]
    streamed = filled(scopes, *parts)
    merged = JointTables(scopes, STATES)
    for part in parts:
        merged.merge(filled(scopes, part))
    for other in (streamed, merged):
        assert torch.equal(other.counts, whole.counts)
        assert other.rows == whole.rows


def test_counting_in_small_steps_changes_nothing(monkeypatch):
    scopes = [("a", "b"), ("b", "c", "e"), ("d",)]
    data = codes(101)
    whole = filled(scopes, data)
    monkeypatch.setattr(joint_tables, "INDEX_BUDGET", 21)
    assert torch.equal(filled(scopes, data).counts, whole.counts)


@given(
    scopes=scopes_of_names,
    cuts=st.lists(st.integers(0, 90), max_size=5),
    largest=st.sampled_from([1, 6, 30, 1000]),
    enough=st.integers(1, 50),
    at_once=st.integers(1, 100),
)
def test_counting_by_covers_changes_nothing(scopes, cuts, largest, enough, at_once):
    """However large covers are, and however rows are cut into batches, some of which wait."""
    data = codes(90, seed=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(covers, "LARGEST_COVER", largest)
        patch.setattr(covers, "ROWS_AT_ONCE", at_once)
        patch.setattr(joint_tables, "ENOUGH_ROWS", enough)
        tables = filled(scopes, *[data[:, a:b] for a, b in pairwise([0, *sorted(cuts), 90])])
        for scope in tables.scopes:
            np.testing.assert_allclose(tables.table(scope), counted(data, scope), atol=1e-15)
        tables.add(data)  # goes on after it was read
    assert tables.rows == 180
    for scope in scopes:
        np.testing.assert_allclose(tables.table(scope), counted(data, scope), atol=1e-15)


@given(scopes=scopes_of_names, largest=st.sampled_from([1, 6, 30, 1000]))
def test_covers_hold_every_scope_once_and_stay_small(scopes, largest):
    kept = JointTables(scopes, STATES).scopes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(covers, "LARGEST_COVER", largest)
        found = covers.find_covers(kept, STATES)
    assert sorted(i for _, held in found for i in held) == list(range(len(kept)))
    for group, held in found:
        assert set(group) == {v for i in held for v in kept[i]}
        assert list(group) == sorted(group, key=list(STATES).index)
        assert len(held) == 1 or np.prod([STATES[v] for v in group]) <= largest


def test_overlapping_tables_share_a_cover():
    triples = list(combinations("abcde", 3))
    assert covers.find_covers(triples, dict.fromkeys("abcde", 4)) == [(tuple("abcde"), list(range(10)))]


def test_memory_for_codes_is_used_again(monkeypatch):
    """A long chain has many covers; a part that no later cover needs leaves its memory to the next one."""
    monkeypatch.setattr(covers, "LARGEST_COVER", 3**4)
    monkeypatch.setattr(joint_tables, "ENOUGH_ROWS", 1)
    states = {f"x{i}": 3 for i in range(40)}
    names = list(states)
    scopes = [tuple(names[i : i + 3]) for i in range(38)]
    rows = torch.randint(3, (40, 50), generator=torch.Generator().manual_seed(0))
    tables = JointTables(scopes, states)
    tables.add(rows[:, :30])
    tables.add(rows[:, 30:])
    assert tables._counter is not None
    assert len(tables._covers) > 10
    assert tables._counter._slots <= 2
    for i, scope in enumerate(scopes):
        flat = rows[i] * 9 + rows[i + 1] * 3 + rows[i + 2]
        assert torch.equal(tables.sums(scope).reshape(-1), torch.bincount(flat, minlength=27).double())


@pytest.mark.parametrize("budget", [1024, 200, 64, 0])
def test_covers_together_keep_to_their_budget(monkeypatch, budget):
    """At the worst each table is counted by itself, in place."""
    monkeypatch.setattr(covers, "COVER_BUDGET", budget)
    triples = list(combinations("abcde", 3))
    found = covers.find_covers(triples, dict.fromkeys("abcde", 4))
    assert sorted(i for _, held in found for i in held) == list(range(10))
    assert sum(4 ** len(group) for group, held in found if len(held) > 1) <= budget
    assert (len(found) == 10) == (budget < 256)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool])
@pytest.mark.parametrize("enough", [1, 1000])
def test_columns_of_any_dtype(monkeypatch, dtype, enough):
    monkeypatch.setattr(joint_tables, "ENOUGH_ROWS", enough)
    states = dict.fromkeys("abcdefghij", 2)  # more joint states than a byte holds
    data = torch.randint(2, (10, 70), generator=torch.Generator().manual_seed(0))
    wide, narrow = JointTables([states], states), JointTables([states], states)
    wide.add(data)
    narrow.add([column.to(dtype) for column in data])
    assert torch.equal(wide.counts, narrow.counts)


@pytest.mark.parametrize("sizes", [(256, 2), (1, 256), (255, 1), (300, 3), (16, 16, 2)])
def test_states_at_the_edge_of_a_byte(monkeypatch, sizes):
    monkeypatch.setattr(joint_tables, "ENOUGH_ROWS", 1)
    states = {f"v{i}": s for i, s in enumerate(sizes)}
    data = torch.tensor([[s - 1, 0, s // 2, s - 1] for s in sizes])
    tables = JointTables([states], states)
    tables.add(data)
    expected = torch.zeros(sizes, dtype=torch.float64)
    expected.index_put_(tuple(data), torch.ones(4, dtype=torch.float64), accumulate=True)
    assert torch.equal(tables.counts.reshape(sizes), expected)


def test_memory_given_may_be_reused_while_rows_wait():
    data = codes(20)
    batch = data.to(torch.uint8)
    tables = JointTables([("a", "b")], STATES)
    tables.add(batch)
    batch.zero_()
    np.testing.assert_allclose(tables.table(("a", "b")), counted(data, ("a", "b")), atol=1e-15)


def test_a_large_table_and_few_rows(monkeypatch):
    """Far more cells than rows are counted one by one, in both ways."""
    states = {"a": 1000, "b": 1000}
    data = torch.tensor([[5, 999, 5], [7, 0, 7]])
    for enough in (1, 1000):
        monkeypatch.setattr(joint_tables, "ENOUGH_ROWS", enough)
        tables = JointTables([("a", "b")], states)
        tables.add(data)
        assert tables.counts.nonzero().flatten().tolist() == [5007, 999000]
        assert tables.counts[5007] == 2


@given(scopes=scopes_of_names, rows=st.integers(0, 30))
def test_restricted_tables_are_counts_of_their_own(scopes, rows):
    whole = filled([tuple(STATES)], codes(rows))
    part = whole.restricted(scopes)
    assert part.scopes == JointTables(scopes, STATES).scopes
    assert part.rows == rows
    assert torch.equal(part.counts, filled(scopes, codes(rows)).counts)
    part.counts += 1
    assert torch.equal(whole.counts, filled([tuple(STATES)], codes(rows)).counts)


def test_which_groups_are_held():
    tables = JointTables([("a", "b", "c"), ("c", "e")], STATES)
    assert all(tables.holds(group) for group in [(), ("b",), ("c", "a"), ("e", "c")])
    assert not any(tables.holds(group) for group in [("a", "e"), ("d",), ("zz",), ("a", "b", "c", "e")])


@given(scopes=scopes_of_names)
def test_stored_scopes_are_incomparable_and_cover_all(scopes):
    kept = [set(s) for s in JointTables(scopes, STATES).scopes]
    assert all(any(set(s) <= k for k in kept) for s in scopes)
    assert not any(a <= b for i, a in enumerate(kept) for j, b in enumerate(kept) if i != j)
    assert all(k in [set(s) for s in scopes] for k in kept)


def test_counts_are_exact_beyond_single_precision():
    tables = JointTables([("a",)], {"a": 2})
    tables.add(torch.zeros(1, 1, dtype=torch.int64))
    tables.counts *= 2.0**24
    tables.add(torch.zeros(1, 1, dtype=torch.int64))
    assert float(tables.counts[0]) == 2.0**24 + 1


def test_the_empty_group_has_probability_one():
    assert float(filled([("a",)], codes(3)).table(())) == 1.0


def test_the_smallest_table_that_fits_is_summed(monkeypatch):
    """Asking for one variable of two tables reads the smaller one."""
    tables = filled([("a", "b", "c"), ("b", "e")], codes(20))
    start = tables.offsets[tables.scopes.index(("a", "b", "c"))]
    tables.counts[start : start + 24] = float("nan")
    assert torch.isfinite(tables.table(("b",))).all()


def test_exact_probabilities_in_place_of_counts():
    network = DiscreteNetwork.random(SMALL["diamond"](), seed=2)
    states = {v: network.states[v] for v in network.graph.observed}
    tables = JointTables([("a1", "b1", "d1"), ("c1", "d1")], states)
    tables.fill(network.joint)
    oracle = Oracle.of(network)
    assert tables.rows == 1.0
    for names in (("d1", "a1", "b1"), ("b1",), ("d1", "c1"), ("c1",)):
        np.testing.assert_allclose(tables.table(names), oracle.joint(names), atol=1e-14)


def test_no_table_before_the_first_row():
    tables = JointTables([("a", "b")], STATES)
    with pytest.raises(NotFittedError, match="No rows have been counted yet"):
        tables.table(("a",))
    tables.add(codes(0))
    with pytest.raises(NotFittedError, match="No rows have been counted yet"):
        tables.table(("a",))


@pytest.mark.parametrize("names", [("a", "c"), ("e",), ("zz",)])
def test_variables_that_were_not_counted_together(names):
    with pytest.raises(StructureError, match="No table holds the variables"):
        filled([("a", "b"), ("b", "c")], codes(5)).table(names)


def test_tables_that_do_not_match_are_not_merged():
    tables = JointTables([("a", "b")], STATES)
    for other in (JointTables([("a", "c")], STATES), JointTables([("a", "b")], {**STATES, "a": 5})):
        with pytest.raises(StructureError, match="only if they are over the same scopes and states"):
            tables.merge(other)
    with pytest.raises(StructureError, match=r"numbers of states here and there: {'a': \(2, 5\)}"):
        tables.merge(JointTables([("a", "b")], {**STATES, "a": 5}))
    with pytest.raises(StructureError, match=r"only here: \[\('a', 'b'\)\], only there: \[\('a', 'c'\)\]"):
        tables.merge(JointTables([("a", "c")], STATES))


def test_a_table_too_large_raises_before_memory_is_taken():
    states = {f"x{i}": 100 for i in range(5)}
    with pytest.raises(StructureError, match=r"a table with 10,000,000,000 cells over \('x0', .*'x4'\), at most"):
        JointTables([tuple(states)], states)


def test_a_gap_in_one_table_is_a_state_in_another():
    """Both have the same layout, which is shared; what is read from it must not be."""
    columns = [torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 0, 1])]
    gap, state = (
        JointTables([("x", "y")], {"x": 3, "y": 2}, incomplete=["x"]),
        JointTables([("x", "y")], {"x": 4, "y": 2}),
    )
    for tables in (gap, state):
        tables.add(columns)
    assert gap.layout is state.layout
    assert gap.marginals()["x"].tolist() == pytest.approx([1 / 3] * 3)
    assert state.marginals()["x"].tolist() == pytest.approx([0.25] * 4)
    assert gap.missing_shares() == pytest.approx({"x": 0.25, "y": 0.0})
