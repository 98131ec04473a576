"""Tables on a cluster, here without one: partitions are read one after the other, with what one process makes of all rows."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import torch

from torchpbp import EM, PBP, Continuous, DiscreteNetwork, KernelPBP, LatentGraph, OnlineEM, templates
from torchpbp.errors import DataError, DataWarning, LabelWarning, StructureError
from torchpbp.inputs import ColumnReader
from torchpbp.inputs.clusters import FAN_IN, PartitionedTable, partitioned
from torchpbp.moments.distinct_rows import distinct_cluster_rows


class Parts(PartitionedTable):
    """Partitions in memory. Every task is run twice and gets its input pickled, as after the loss of a worker."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts
        self.columns = tuple(parts[0].columns if isinstance(parts[0], pd.DataFrame) else parts[0].column_names)
        self.passes: list[list[str]] = []

    def declared_labels(self, names: Sequence[str]) -> dict[str, Any]:
        return dict.fromkeys(v for v in names if v in ("a1", "b1"))

    def mapped(self, function: Callable[[Any], Any], columns: Sequence[str]) -> list[Any]:
        self.passes.append(list(columns))
        selected = [p[list(columns)] if isinstance(p, pd.DataFrame) else p.select(columns) for p in self.parts]
        return [self._task(function, p) for p in selected]

    def merged(self, merge: Callable[[Sequence[Any]], Any], parts: Sequence[Any]) -> Any:
        return self._task(merge, parts)

    def value(self, root: Any, leaves: Sequence[Any], description: str) -> Any:
        return root

    def _task(self, call: Callable[[Any], Any], given: Any) -> Any:
        call(given)
        return pickle.loads(pickle.dumps(call(given)))


@pytest.fixture(scope="module")
def truth() -> DiscreteNetwork:
    return DiscreteNetwork.random(templates.diamond(observed_states=3, leaves=1), seed=1)


@pytest.fixture(scope="module")
def frame(truth: DiscreteNetwork) -> pd.DataFrame:
    """Sorted, so that no partition has all labels; with missing values in one column, and in one partition more."""
    rows = truth.sample_frame(2_000, seed=2).sort_values("a1", ignore_index=True)
    rows["a1"] = rows["a1"].map(lambda state: ["no", "perhaps", "yes"][state])
    rows["b1"] = pd.Categorical.from_codes(rows["b1"], ["low", "mid", "high"])
    rows["c1"] = rows["c1"].astype("Int64")
    rows.loc[::7, "c1"] = None
    rows.loc[:3, ["a1", "b1", "c1"]] = None
    return rows


def cut(frame: pd.DataFrame, parts: int) -> list[pd.DataFrame]:
    size = -(-len(frame) // parts)
    return [frame[i : i + size] for i in range(0, len(frame), size)]


def partitions(frame: pd.DataFrame) -> Iterator[PartitionedTable]:
    """The same rows on several engines, with an empty partition among them."""
    dd = pytest.importorskip("dask.dataframe")
    pieces = [*cut(frame, 10), frame[:0]]
    yield Parts(pieces)
    yield Parts([pa.Table.from_pandas(piece) for piece in pieces])
    for unknown in (False, True):
        table = dd.from_pandas(frame, npartitions=10)
        yield table.assign(b1=table["b1"].cat.as_unknown()) if unknown else table


@pytest.fixture(autouse=True)
def _no_processes() -> Iterator[None]:
    dask = pytest.importorskip("dask")
    with dask.config.set(scheduler="synchronous"):
        yield


def test_counts_models_and_distinct_rows_are_those_of_one_process(truth: DiscreteNetwork, frame: pd.DataFrame) -> None:
    model = PBP(truth.graph)
    alone, reference = model.count(frame), PBP(truth.graph).fit(frame)
    em = EM(truth.graph, restarts=1, relative_tolerance=0.01, progress=False).fit(frame)
    for table in partitions(frame):
        counts = model.count(table)
        assert torch.equal(counts.tables.counts, alone.tables.counts)
        assert (counts.rows, counts.labels) == (2_000, alone.labels)
        assert counts.labels == {"a1": ("no", "perhaps", "yes"), "b1": ("low", "mid", "high")}
        fitted = PBP(truth.graph).fit(table)
        torch.testing.assert_close(list(fitted.parameters()), list(reference.parameters()))
        assert fitted.missing == reference.missing
        other = EM(truth.graph, restarts=1, relative_tolerance=0.01, progress=False).fit(table)
        torch.testing.assert_close(dict(other.network.cpts), dict(em.network.cpts))
        assert (other.missing, other.labels) == (em.missing, em.labels)


def test_distinct_rows(truth: DiscreteNetwork, frame: pd.DataFrame) -> None:
    states = dict.fromkeys(truth.graph.observed, 3)
    reader = ColumnReader(states, missing=True)
    codes = torch.cat(list(reader.batches(frame)), dim=1)
    expected, counts = torch.unique(codes, dim=1, return_counts=True)
    other = ColumnReader(states, missing=True)
    found = distinct_cluster_rows(Parts(cut(frame, 30)), other)
    assert torch.equal(found[0], expected)
    assert torch.equal(found[1], counts.double())
    assert (other.labels, other.missing_values) == (reader.labels, reader.missing_values)


def test_further_rows_and_known_labels(truth: DiscreteNetwork, frame: pd.DataFrame) -> None:
    table = Parts(cut(frame[1_000:], 3))
    model = PBP(truth.graph).partial_fit(
        frame[:1_000].assign(a1=pd.Categorical(frame["a1"][:1_000], ["no", "perhaps", "yes"]))
    )
    model.partial_fit(table)
    assert table.passes == [["a1", "b1", "c1", "d1"]]  # labels are known
    assert model.counts is not None
    assert torch.equal(model.counts.tables.counts, PBP(truth.graph).count(frame).tables.counts)


def joined(parts: Sequence[str]) -> str:
    assert len(parts) <= FAN_IN
    return "".join(parts)


@pytest.mark.parametrize("count", [1, 8, 9, 65])
def test_trees_keep_the_order(count: int) -> None:
    letters = [chr(ord("a") + i) for i in range(count)]
    table = Parts([pa.table({"x": [letter]}) for letter in letters])
    assert table.map_reduce(lambda part: part["x"][0].as_py(), joined, ["x"], "") == "".join(letters)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="d1"), r"missing columns \['d1'\]"),
        (
            lambda f: f.assign(d1=f["d1"].where(f.index != 1_950, 7)),
            r"partition 19, column 'd1', row 50: state 7 is out of",
        ),
        (
            lambda f: f.assign(a1=f["a1"].where(f.index > 5, "never")),
            "column 'a1' has 4 categories, but the graph gives it 3",
        ),
        (lambda f: f.assign(c1=-1), "Column 'c1': all 2000 values are missing"),
        (lambda f: f[:0], "training data is empty"),
    ],
)
def test_mistakes_raise(
    truth: DiscreteNetwork, frame: pd.DataFrame, change: Callable[[pd.DataFrame], pd.DataFrame], message: str
) -> None:
    dd = pytest.importorskip("dask.dataframe")
    changed = change(frame)
    with pytest.raises(DataError, match=message):
        PBP(truth.graph).fit(dd.from_pandas(changed, npartitions=20))


def test_warnings(truth: DiscreteNetwork, frame: pd.DataFrame) -> None:
    few = frame.assign(a1=frame["a1"].where(frame["a1"] != "yes", "no"))
    with pytest.warns(LabelWarning, match=r"'a1' \(2 of 3\)"):
        PBP(truth.graph).count(Parts(cut(few, 4)))
    empty = frame.astype({"d1": "Int64"})
    empty.loc[:100, :] = None
    with pytest.warns(DataWarning, match="101 of 2000 rows have no value at all"):
        PBP(truth.graph).fit(Parts(cut(empty, 4)))


def test_learners_that_need_the_rows_say_so(truth: DiscreteNetwork, frame: pd.DataFrame) -> None:
    dd = pytest.importorskip("dask.dataframe")
    table = dd.from_pandas(frame, npartitions=2)
    assert partitioned(frame) is None
    mixed = LatentGraph([("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": 2, "y": 2, "z": Continuous()}, latent=["h"])
    for learner, kind, message in (
        (PBP(mixed), StructureError, r"Counting needs discrete variables, and \['z'\] are continuous"),
        (PBP(truth.graph, rank="auto"), StructureError, "rank='auto' is chosen on held-out rows"),
        (
            KernelPBP(truth.graph),
            DataError,
            r"are on a cluster, and this learner needs them in one process. Pass data.compute\(\)",
        ),
        (OnlineEM(truth.graph), DataError, "OnlineEM: a table on a cluster is reduced to its distinct rows"),
    ):
        with pytest.raises(kind, match=message):
            learner.fit(table)
    with pytest.raises(DataError, match="names its own columns"):
        PBP(truth.graph).count(table, columns=["a1", "b1", "c1", "d1"])


@pytest.mark.slow
def test_engines_are_imported_only_for_their_tables() -> None:
    code = """
import sys
from torchpbp import EM, PBP, DiscreteNetwork, templates
truth = DiscreteNetwork.random(templates.naive_bayes(3), seed=1)
frame = truth.sample_frame(100, seed=0)
PBP(truth.graph).fit(frame)
EM(truth.graph, restarts=1, progress=False).fit(frame)
print([m for m in ("dask", "distributed", "ray") if m in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
