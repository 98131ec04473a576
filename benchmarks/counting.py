"""Counting a partitioned Parquet table: one process compared with pyarrow's reading, and Dask with one and two workers."""

from __future__ import annotations

import math
import pickle
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.runner import Runner, agree
from benchmarks.work import Implementation, Work, measure, needs
from torchpbp import PBP, Counts, DiscreteNetwork, templates

READ, AHEAD, COUNT = "pyarrow: read", "pyarrow: read, one batch ahead", "PBP.count"
BATCH_ROWS = 131_072
"""Rows that are read at once, by ``PBP.count`` too."""
ROWS_PER_FILE = 5_000_000  # at most
DRAWN = 1_000_000
"""Distinct draws from the network; the rows of the files are drawn from these."""
FAN_IN = 8
"""Tables merged by one task."""
BANDWIDTH = 1.25e9
"""Bytes per second of a worker's network, 10 Gbit/s: assumed, not measured."""
MODEL_ROWS, MODEL_WORKERS = 10**12, 1_000


def run(runner: Runner) -> None:
    """Add rows per second by workers, bytes over the wire, and the cost model."""
    if not runner.installed("pyarrow", "dask", "distributed", "psutil"):
        return
    rows = runner.options.rows or runner.choose(100_000_000, 20_000)
    with tempfile.TemporaryDirectory() as folder:
        runner.say(f"writing {rows:,} rows")
        size = write_table(DiscreteNetwork.random(templates.diamond(), seed=1), folder, rows)
        files = len(list(Path(folder).iterdir()))
        runner.report.notes.append(
            f"counting: {rows:,} rows of 8 columns in {files} Parquet files, {size / 1e6:,.0f} MB"
        )
        title = f"{rows:,} rows of Parquet in one process, one Arrow thread"
        readers = {READ: None, AHEAD: 1, COUNT: None}
        implementations = [
            Implementation(label, parquet, {"folder": folder, "counting": label == COUNT, "ahead": ahead})
            for label, ahead in readers.items()
        ]
        comparison = runner.compare(title, implementations, agree(0.0))
        speeds = [ratio for ratio in (comparison.ratio(reader, COUNT) for reader in (READ, AHEAD)) if ratio is not None]
        runner.report.claim(
            "speed of counting over that of the faster reading", min(speeds, default=None), at_least=0.8
        )
        _workers(runner, folder, rows)


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


@needs("torchpbp", "pyarrow")
def parquet(folder: str, counting: bool, ahead: int | None) -> Work:
    """``PBP.count`` of a folder of Parquet files, or pyarrow's reading of the same columns, which are dropped.

    Args:
        folder: of the files.
        counting: count.
        ahead: batches and files read ahead, of which ``PBP.count`` reads one; pyarrow's default if None.
    """
    import pyarrow.dataset

    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    model = PBP(templates.diamond())
    options = {} if ahead is None else {"batch_readahead": ahead, "fragment_readahead": ahead}

    def read() -> int:
        dataset = pyarrow.dataset.dataset(folder, format="parquet")
        names = list(model.graph.observed)
        return sum(len(batch) for batch in dataset.to_batches(columns=names, batch_size=BATCH_ROWS, **options))

    return Work(lambda: model.count(folder).rows if counting else read(), lambda rows: {"rows": np.array([rows])})


def _workers(runner: Runner, folder: str, rows: int) -> None:
    """Dask with one and two workers, in interleaved rounds; the same counts as one process."""
    import dask.dataframe
    import psutil

    model, report = PBP(templates.diamond()), runner.report
    expected = model.count(folder).to_dict()["counts"]
    counted: list[Counts] = []
    seconds: dict[int, list[float]] = {1: [], 2: []}
    sent: list[int] = []

    def count() -> None:
        counted.append(model.count(dask.dataframe.read_parquet(folder)))

    with ExitStack() as stack:
        clients = {workers: stack.enter_context(cluster(workers)) for workers in seconds}
        for turn in range(-1, runner.rounds()):  # the first is not measured: libraries and files are loaded
            for workers in (1, 2) if turn % 2 else (2, 1):
                runner.say(f"Dask, {workers} worker(s), round {turn + 1}")
                before = psutil.net_io_counters().bytes_sent
                with clients[workers].as_current():
                    took = measure(count, 1)[0]
                if turn >= 0:
                    seconds[workers].append(took)
                    sent += [psutil.net_io_counters().bytes_sent - before] if workers == 2 else []
        differing = sum(int((counts.to_dict()["counts"] != expected).sum()) for counts in counted)
        partitions = runner.choose(1_000, 20)
        single = pd.DataFrame({"x": [0]})
        overheads = []
        for turn in range(3):  # different partitions each time, whose results the scheduler does not have yet
            numbers = range(turn * partitions, (turn + 1) * partitions)
            frame = dask.dataframe.from_map(lambda _: single, numbers, meta=single)
            sizes = frame.map_partitions(len).sum(split_every=FAN_IN)  # hardly any work: the time is the scheduler's
            with clients[2].as_current():
                overheads.append(measure(sizes.compute, 1)[0] / partitions)
        overhead = min(overheads)
    panel = report.panel("counting Parquet by Dask", "workers", "rows per second")
    for workers, values in seconds.items():
        rate = rows / min(values)
        panel.add("Dask", workers, rate)
        spread = {"rows per second": rate, "worst/best": max(values) / min(values)}
        report.add("counting by Dask", workers=workers, rows=rows, **spread, sent=min(sent) if workers == 2 else None)
    ratio = min(seconds[1]) / min(seconds[2])
    report.claim("Dask: speed of two workers over one", ratio, at_least=1.6)
    report.claim("Dask: cells in which counts differ from one process", float(differing), at_most=0)
    _cost_model(runner, rows / min(seconds[1]), overhead, counted[-1])


def _cost_model(runner: Runner, rate: float, overhead: float, counts: Counts) -> None:
    """Seconds for a larger table on more workers, by the size of a partition, from measured constants.

    Workers count for R / (W r) seconds. Meanwhile the scheduler handles P (1 + 1/7) tasks one after the other, P the number of
    partitions. At last come the levels of the tree, each with a merge and the transfer of eight tables.
    """
    size = len(pickle.dumps(counts))
    merge = (FAN_IN - 1) * measure(lambda: counts.copy().merge(counts), 20)[0]
    constants = {"rows per second": rate, "s per task": overhead, "s per merge": merge, "bytes per table": size}
    runner.report.add(f"cost model: constants, merges of {FAN_IN} tables", **constants)
    for in_partition in (5_000_000, 50_000_000):
        partitions = MODEL_ROWS // in_partition
        tasks = partitions * FAN_IN / (FAN_IN - 1)
        tree = math.ceil(math.log(partitions, FAN_IN)) * (merge + FAN_IN * size / BANDWIDTH)
        parts = {"counting, s": MODEL_ROWS / MODEL_WORKERS / rate, "scheduler, s": tasks * overhead, "tree, s": tree}
        total = max(parts["counting, s"], parts["scheduler, s"]) + tree
        title = f"cost model: {MODEL_ROWS:.0e} rows on {MODEL_WORKERS:,} workers"
        sizes = {"rows per partition": in_partition, "partitions": partitions}
        runner.report.add(title, **sizes, **parts, **{"total, s": total, "sent, GB, at most": tasks * size / 1e9})


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """A client of a local cluster of processes with one thread each, of Arrow too."""
    from distributed import Client, LocalCluster

    threads = {"OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}
    options = {"threads_per_worker": 1, "dashboard_address": None, "env": threads}
    with LocalCluster(n_workers=workers, **options) as local, Client(local, set_as_default=False) as client:
        yield client
