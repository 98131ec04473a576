"""Rows on a cluster of two worker processes, one of which is killed while it reads."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from torchpbp import PBP, DiscreteNetwork, templates
from torchpbp.errors import DataError

ROWS, PARTITIONS = 1_600, 16
DEADLY = PARTITIONS // 2
LABELS = {"a1": ("no", "perhaps", "yes"), "b1": ("low", "mid", "high")}


def rows() -> tuple[DiscreteNetwork, pd.DataFrame]:
    """Incomplete rows with numbers, strings and categories; each partition lacks some of the labels."""
    truth = DiscreteNetwork.random(templates.diamond(observed_states=3, leaves=1), seed=1)
    frame = truth.sample_frame(ROWS, seed=2).sort_values("a1", ignore_index=True)
    frame["a1"] = frame["a1"].map(lambda state: ["no", "perhaps", "yes"][state])
    frame["b1"] = pd.Categorical.from_codes(frame["b1"], ["low", "mid", "high"])
    frame.loc[::7, "c1"] = None
    frame["number"] = frame.index * PARTITIONS // ROWS
    return truth, frame


def die_once(partition: Any, flag: Path) -> Any:
    """The partition as it is; the first process that reads the deadly one is killed, as if by the system."""
    if DEADLY in set(partition["number"]) and not flag.exists():
        flag.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return partition


def check(truth: DiscreteNetwork, frame: pd.DataFrame, data: Any, flag: Path) -> None:
    """Counts of a table on a cluster are those of one process, although a worker was killed."""
    model = PBP(truth.graph)
    alone, counts = model.count(frame), model.count(data)
    assert int(flag.read_text()) != os.getpid()
    assert torch.equal(counts.tables.counts, alone.tables.counts)
    assert counts.rows == ROWS
    assert counts.labels == alone.labels == LABELS


@pytest.fixture
def dask_cluster() -> Iterator[None]:
    distributed = pytest.importorskip("distributed")
    local = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**local) as cluster, distributed.Client(cluster):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("dask_cluster")
def test_dask_with_a_killed_worker(tmp_path: Path) -> None:
    import dask.dataframe as dd

    truth, frame = rows()
    table = dd.from_pandas(frame, npartitions=PARTITIONS)
    flag = tmp_path / "killed"
    check(truth, frame, table.map_partitions(die_once, flag, meta=table._meta), flag)
    frame.loc[ROWS - 1, "d1"] = 9
    with pytest.raises(DataError, match=rf"partition {PARTITIONS - 1}, column 'd1', row \d+: state 9 is out of range"):
        PBP(truth.graph).count(dd.from_pandas(frame, npartitions=PARTITIONS), labels=LABELS)


@pytest.fixture
def ray_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_ray_with_a_killed_worker(tmp_path: Path) -> None:
    import ray

    truth, frame = rows()
    size = ROWS // PARTITIONS
    parts = [frame[i : i + size] for i in range(0, ROWS, size)]
    table = ray.data.from_pandas(parts)
    flag = tmp_path / "killed"
    check(truth, frame, table.map_batches(die_once, fn_args=[flag], batch_format="pandas", batch_size=None), flag)
    frame.loc[ROWS - 1, "d1"] = 9
    with pytest.raises(DataError, match=r"partition, column 'd1', row \d+: state 9 is out of range"):
        PBP(truth.graph).count(ray.data.from_pandas([frame[:size], frame[-size:]]), labels=LABELS)
