"""Joint tables: counts by index arithmetic against counting row by row."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.graph.strategies import SMALL
from tests.oracle import Oracle
from torchpbp import DiscreteNetwork
from torchpbp.errors import NotFittedError, StructureError
from torchpbp.stage2 import joint_tables
from torchpbp.stage2.joint_tables import JointTables

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


def test_only_maximal_scopes_are_stored():
    tables = JointTables([("b", "a"), ("a",), (), ("a", "b", "c"), ("c", "a", "b"), ("e", "b"), ("b", "e")], STATES)
    assert tables.scopes == (("a", "b", "c"), ("b", "e"))
    assert len(tables.counts) == 2 * 3 * 4 + 3 * 3


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


def test_a_table_too_large_is_refused_before_memory_is_taken():
    states = {f"x{i}": 100 for i in range(5)}
    with pytest.raises(StructureError, match=r"a table with 10,000,000,000 cells over \('x0', .*'x4'\), at most"):
        JointTables([tuple(states)], states)
