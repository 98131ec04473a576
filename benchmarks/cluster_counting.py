"""Counting a partitioned Parquet table: one process compared with pyarrow's reading, and Dask with one and two workers."""

from __future__ import annotations

import math
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

from benchmarks.report import Claim, Panel, Report
from benchmarks.side_by_side import RunOptions, agree, installed, missing, time_side_by_side
from benchmarks.this_library.counting import FromParquet, ReadParquet
from torchpbp import PBP, DiscreteNetwork, templates
from torchpbp.inputs.arrow import BATCHES_AHEAD
from torchpbp.inputs.missing_values import MissingValues
from torchpbp.inputs.partitioned import FAN_IN
from torchpbp.models.counts import Counts
from torchpbp.moments.partition_counts import merge_counted

ROWS_PER_FILE = 5_000_000  # at most
DRAWN = 1_000_000
"""Distinct draws from the network; the rows of the files are drawn from these."""
MODEL_ROWS, MODEL_WORKERS = 10**12, 1_000
BANDWIDTH = 1.25e9
"""Bytes per second of a worker's network, 10 Gbit/s: assumed, not measured."""
TRIVIAL = 1_000
"""Partitions without rows, of which the overhead of a task is measured."""


def run(settings: RunOptions, report: Report) -> None:
    """Add rows per second by workers, bytes over the wire, and the cost model."""
    rows = settings.rows or settings.choose(100_000_000, 4_000_000, 20_000)
    needed = [name for name in ("pyarrow", "dask", "distributed") if not installed(name)]
    if needed:
        report.left_out.update({f"counting {rows:,} rows: {name}": missing(name) for name in needed})
        return
    graph = templates.diamond()
    with tempfile.TemporaryDirectory() as folder:
        settings.note(f"writing {rows:,} rows")
        size = write_table(DiscreteNetwork.random(graph, seed=1), folder, rows)
        files = len(list(Path(folder).iterdir()))
        report.notes.append(
            f"counting: {rows:,} rows of 8 columns in {files} Parquet files of {size / 1e6:,.0f} MB together"
        )
        _one_process(settings, report, folder, rows)
        _workers(settings, report, folder, rows)


def write_table(truth: DiscreteNetwork, folder: str, rows: int) -> int:
    """Write Parquet files, one byte a state, and return their size in bytes."""
    import pyarrow
    import pyarrow.parquet

    drawn = {v: x.numpy().astype(np.uint8) for v, x in truth.sample(min(rows, DRAWN), seed=2).items()}
    generator = np.random.default_rng(3)
    in_file = min(ROWS_PER_FILE, max(1, rows // 8))
    for number, start in enumerate(range(0, rows, in_file)):
        chosen = generator.integers(min(rows, DRAWN), size=min(in_file, rows - start))
        table = pyarrow.table({v: x[chosen] for v, x in drawn.items()})
        pyarrow.parquet.write_table(table, Path(folder, f"{number:05}.parquet"))
    return sum(file.stat().st_size for file in Path(folder).iterdir())


def _one_process(settings: RunOptions, report: Report, folder: str, rows: int) -> None:
    """Counting compared with reading the columns, in one process with one Arrow thread."""
    read, count = ReadParquet("pyarrow: read", folder), FromParquet("PBP.count", folder)
    ahead = ReadParquet(
        "pyarrow: read, one batch ahead", folder, BATCHES_AHEAD
    )  # uses less memory, and often less time
    title = f"{rows:,} rows of Parquet in one process, one Arrow thread"
    outcome = time_side_by_side(settings, [read, ahead, count], title, agree(0.0))
    report.add(outcome, title)
    ratios = [outcome.times(reader.label, count.label) for reader in (read, ahead)]
    slowest = min((ratio for ratio in ratios if ratio is not None), default=None)
    report.claims.append(Claim("speed of counting over that of the faster reading", slowest, at_least=0.8))


def _workers(settings: RunOptions, report: Report, folder: str, rows: int) -> None:
    """Dask with one and two workers, in interleaved rounds; the same counts as one process."""
    import dask.dataframe

    from torchpbp.inputs.dask_frames import DaskTable

    model = PBP(templates.diamond())
    expected = model.count(folder)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    sent: list[int] = []
    differing = 0
    with ExitStack() as stack:
        clients = {n: stack.enter_context(cluster(n)) for n in seconds}
        for client in clients.values():  # libraries are loaded, and files are in the cache of the system
            _count(client, model, folder)
        for turn in range(settings.rounds):
            for workers, client in list(clients.items())[:: 1 if turn % 2 else -1]:
                settings.note(f"Dask, {workers} worker(s), round {turn + 1}")
                before = psutil.net_io_counters().bytes_sent
                start = time.perf_counter()
                counts = _count(client, model, folder)
                seconds[workers].append(time.perf_counter() - start)
                sent += [psutil.net_io_counters().bytes_sent - before] if workers == 2 else []
                differing += int((counts.tables.counts != expected.tables.counts).sum())
        partitions = settings.choose(TRIVIAL, TRIVIAL, 20)
        trivial = DaskTable(dask.dataframe.from_map(_no_rows, range(partitions), meta=_no_rows(0)))
        with clients[2].as_current():
            overhead = (
                min(_timed(lambda: trivial.map_reduce(len, sum, ["x"], "overhead")) for _ in range(3)) / partitions
            )
    best = {workers: min(values) for workers, values in seconds.items()}
    panel = Panel("counting Parquet by Dask", "workers", "rows per second")
    for workers, value in best.items():
        panel.add("Dask", workers, rows / value)
        spread = max(seconds[workers]) / value
        report.notes.append(f"Dask, {workers} worker(s): {rows / value:,.0f} rows per second, worst/best {spread:.2f}")
        report.records.append({"axis": "workers", "value": workers, "seconds": seconds[workers], "rows": rows})
    report.panels.append(panel)
    report.notes.append(f"bytes sent with two workers, tasks and heartbeats included: {min(sent):,} for {rows:,} rows")
    report.records.append({"axis": "bytes sent", "value": rows, "bytes": sent})
    report.claims += [
        Claim("Dask: speed of two workers over one", best[1] / best[2], at_least=1.6),
        Claim("Dask: cells in which counts differ from one process", differing, at_most=0),
    ]
    _cost_model(report, rows / best[1], overhead, expected)


def _cost_model(report: Report, rate: float, overhead: float, counts: Counts) -> None:
    """Seconds for a larger table on more workers, by the size of a partition, from measured constants.

    Workers count for R / (W r) seconds. Meanwhile the scheduler handles P (1 + 1/7) tasks one after the other, P the number of
    partitions. At last come the levels of the tree, each with a merge and the transfer of eight tables.
    """
    part = (counts.tables, MissingValues())
    merge = min(_timed(lambda: merge_counted([part] * FAN_IN)) for _ in range(5))
    size = len(pickle.dumps(part))
    constants = {"rows_per_second": rate, "seconds_per_task": overhead, "merge_seconds": merge, "table_bytes": size}
    report.records.append({"axis": "cost model", **constants})
    report.notes.append(
        f"cost model for {MODEL_ROWS:.0e} rows on {MODEL_WORKERS:,} workers: {rate:,.0f} rows per second and worker, "
        f"{overhead * 1e3:.2f} ms of the scheduler per task, {merge * 1e3:.2f} ms per merge of {FAN_IN} tables of {size:,} bytes"
    )
    for in_partition in (5_000_000, 50_000_000):
        partitions = MODEL_ROWS // in_partition
        work, scheduling = MODEL_ROWS / MODEL_WORKERS / rate, partitions * FAN_IN / (FAN_IN - 1) * overhead
        tree = math.ceil(math.log(partitions, FAN_IN)) * (merge + FAN_IN * size / BANDWIDTH)
        wire = partitions * FAN_IN / (FAN_IN - 1) * size
        report.records.append(
            {"axis": "cost model", "rows_in_partition": in_partition, "seconds": max(work, scheduling) + tree}
        )
        report.notes.append(
            f"  partitions of {in_partition:,} rows: {max(work, scheduling) + tree:,.0f} s (counting {work:,.0f} s, scheduler "
            f"{scheduling:,.0f} s, tree {tree:.2f} s); at most {wire / 1e9:,.1f} GB over the wire"
        )


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """A client of a local cluster of processes with one thread each, of Arrow too."""
    from distributed import Client, LocalCluster

    threads = {"OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None, env=threads) as local,
        Client(local, set_as_default=False) as client,
    ):
        yield client


def _count(client: Any, model: PBP, folder: str) -> Counts:
    import dask.dataframe

    with client.as_current():
        return model.count(dask.dataframe.read_parquet(folder))


def _no_rows(number: int) -> pd.DataFrame:
    return pd.DataFrame({"x": np.zeros(0, dtype=np.uint8)})


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
