"""Fits from arrays, memory maps, files and loaders: the same model as from a table."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.closeness import assert_same_up_to_rounding, weights
from torchpbp import (
    PBP,
    Continuous,
    DiscreteNetwork,
    LatentGraph,
    Nystroem,
    SpectralJunctionTree,
    templates,
)
from torchpbp.errors import DataError, ShapeError
from torchpbp.inputs import sources as sources_module
from torchpbp.moments import joint_tables

NETWORK = DiscreteNetwork.random(templates.diamond(observed_states=3), seed=1)
GRAPH = NETWORK.graph
DATA = NETWORK.sample(900, seed=2)
MATRIX = np.stack([DATA[v].numpy() for v in GRAPH.observed], axis=1).astype(np.uint8)
MIXED = LatentGraph([("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": Continuous(), "y": 3, "z": 3}, ["h"])


def sources(tmp_path):
    """The same rows in many forms."""
    array = MATRIX
    array.tofile(tmp_path / "rows.bin")
    table = pa.table({v: array[:, i] for i, v in enumerate(GRAPH.observed)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=100)
    tensor = torch.from_numpy(array)
    order = list(reversed(GRAPH.observed))
    return {
        "array": (array, None),
        "memory map": (np.memmap(tmp_path / "rows.bin", np.uint8, "r", shape=array.shape), None),
        "named columns": (array[:, ::-1], order),
        "tensor": (tensor.float(), None),
        "structured": (np.rec.fromarrays(array.T, names=list(GRAPH.observed)), None),
        "loader": (DataLoader(TensorDataset(tensor), batch_size=64), None),
        "loader of columns": (DataLoader(TensorDataset(*tensor.flip(1).T), batch_size=64), order),
        "shuffled loader": (DataLoader(TensorDataset(tensor), batch_size=64, shuffle=True), None),
        "parquet": (tmp_path / "rows.parquet", None),
        "arrow": (table, None),
    }


def test_all_sources_give_the_same_model(tmp_path):
    expected, twice = PBP(GRAPH).fit(DATA), PBP(GRAPH).fit([DATA, DATA])
    for name, (data, columns) in sources(tmp_path).items():
        found = PBP(GRAPH).fit(data, batch_size=128, columns=columns)
        assert_same_up_to_rounding(weights(found), weights(expected), name)
        counted = PBP(GRAPH).count(data, columns=columns)
        assert torch.equal(counted.tables.counts, expected.counts.tables.counts), name
        halves = PBP(GRAPH).partial_fit(data, columns=columns).partial_fit(data, columns=columns)
        assert_same_up_to_rounding(weights(halves), weights(twice), name)


def test_large_batches_are_counted_by_covers(monkeypatch):
    expected = PBP(GRAPH).fit(DATA)
    monkeypatch.setattr(joint_tables, "ENOUGH_ROWS", 1)
    found = PBP(GRAPH).fit(DATA)
    assert torch.equal(found.counts.tables.counts, expected.counts.tables.counts)
    assert_same_up_to_rounding(weights(found), weights(expected))


def test_continuous_variables_from_files_and_loaders(tmp_path):
    generator = torch.Generator().manual_seed(0)
    h = torch.randint(2, (300,), generator=generator)
    rows = torch.stack([2.0 * h + torch.randn(300, generator=generator), h.double(), 2.0 * h], dim=1).double()
    table = {"x": rows[:, 0], "y": rows[:, 1].long(), "z": rows[:, 2].long()}
    pd.DataFrame({v: x.numpy() for v, x in table.items()}).to_parquet(tmp_path / "rows.parquet", row_group_size=70)

    def fitted(data: object) -> torch.Tensor:
        """Answers, not operators: singular vectors may come with either sign."""
        return PBP(MIXED, features=Nystroem(4)).fit(data).log_evidence(table).detach()

    expected = fitted(table)
    loader = DataLoader(TensorDataset(rows), batch_size=70)
    for data in (rows, loader, tmp_path / "rows.parquet"):
        torch.testing.assert_close(fitted(data), expected, rtol=0, atol=1e-8)
    stored = pq.read_table(tmp_path)
    for one_way in (iter(loader), pa.RecordBatchReader.from_batches(stored.schema, stored.to_batches())):
        with pytest.raises(DataError, match=r"Continuous variables need several passes .* one-way iterator"):
            fitted(one_way)


@pytest.mark.parametrize("options", [{"rank": "auto", "max_rank": 2}, {"features": Nystroem(4, bandwidth="validate")}])
def test_held_out_rows_need_a_stable_order(options):
    generator = torch.Generator().manual_seed(0)
    h = torch.randint(2, (200,), generator=generator)
    rows = torch.stack([2.0 * h + torch.randn(200, generator=generator), h.float(), 2.0 * h], dim=1)
    options = {"features": Nystroem(4), **options}
    PBP(MIXED, **options).fit(DataLoader(TensorDataset(rows), batch_size=64))
    shuffled = DataLoader(TensorDataset(rows), batch_size=64, shuffle=True, generator=generator)
    with pytest.raises(DataError, match=r"The rows came in another order in the second pass.*Turn off shuffling"):
        PBP(MIXED, **options).fit(shuffled)
    PBP(MIXED, features=Nystroem(4)).fit(shuffled)  # sums do not mind


def test_other_learners_read_them_as_well():
    expected = SpectralJunctionTree(GRAPH).fit(DATA).posterior("d1", {"a1": [0, 1]})
    table = pa.table({v: MATRIX[:, i] for i, v in enumerate(GRAPH.observed)})
    for data in (MATRIX, table, [(torch.from_numpy(MATRIX),)]):
        found = SpectralJunctionTree(GRAPH).fit(data).posterior("d1", {"a1": [0, 1]})
        assert_same_up_to_rounding(found, expected)


def test_progress_is_shown_in_rows(monkeypatch, tmp_path):
    bars = []

    class Bar:
        def __init__(self, total: int | None, unit: str, initial: int, **_: object) -> None:
            self.total, self.unit, self.rows = total, unit, initial
            bars.append(self)

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None: ...

        def update(self, rows: int) -> None:
            self.rows += rows

    monkeypatch.setattr(sources_module, "tqdm", Bar)
    PBP(GRAPH).fit(DATA)
    assert not bars  # quick work needs none
    monkeypatch.setattr(sources_module, "PATIENCE", -1.0)
    for data, columns in sources(tmp_path).values():
        PBP(GRAPH).fit(data, batch_size=128, columns=columns)
    assert all((bar.rows, bar.unit) == (900, "row") for bar in bars)
    assert {bar.total for bar in bars} == {900, None}  # a loader's length is not known


def test_a_wrong_width_raises():
    with pytest.raises(ShapeError, match="expected 8 columns, the graph's observables in their order"):
        PBP(GRAPH).fit(MATRIX[:, :7])
