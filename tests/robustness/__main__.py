"""The long runs: ``python -m tests.robustness --cases 10000 --seed 0`` sends random networks through the whole pipeline,
``python -m tests.robustness --kills 20`` kills a training run at random moments and resumes it.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st
from tqdm.auto import tqdm

from tests.robustness.networks import KINDS, graphs
from tests.robustness.pipeline import run_case
from torchpbp import LatentGraph


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="number of networks")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same networks")
    parser.add_argument("--kills", type=int, default=0, help="kill a run so many times instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the counts so far are printed
    if options.kills:
        kill_runs(options.kills, options.seed)
    else:
        run_cases(options)


def kill_runs(kills: int, seed: int) -> None:
    """Kill synthetic runs, with ridge regressions and with nets."""
    from tests.robustness.runs import NETS, SYNTHETIC, kill_and_resume  # needs Hydra and Lightning

    for name, overrides in {"ridge": SYNTHETIC, "nets": NETS}.items():
        with tempfile.TemporaryDirectory() as folder:
            kill_and_resume(Path(folder), overrides, kills, seed)
        print(f"{name}: killed {kills} times, seed {seed}: every file whole, results the same", flush=True)


def run_cases(options: argparse.Namespace) -> None:
    """Run the cases, print what was seen, the count and the seed; exit with 1 at the first case that fails."""
    seen: Counter[str] = Counter()
    slowest: tuple[float, str] = (0.0, "")
    bar = tqdm(total=options.cases, unit="network", mininterval=10)

    @seed(options.seed)
    @settings(
        max_examples=options.cases,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(graphs(), st.sampled_from(KINDS), st.integers(0, 2**32 - 1), st.sampled_from([0, 0, 1, 50, 500]))
    def every_case(graph: LatentGraph, kind: str, number: int, samples: int) -> None:
        nonlocal slowest
        note(f"{graph.to_dict()}")
        start = time.perf_counter()
        seen.update(run_case(graph, kind, number, samples))
        seen["cases"] += 1
        took = time.perf_counter() - start
        if took > slowest[0]:
            slowest = (took, f"{graph.to_dict()}, {kind}, {number}, {samples}")
        bar.update()

    failed: BaseException | None = None
    try:
        every_case()
    except BaseException as error:
        failed = error
        raise
    finally:
        bar.close()
        for what, count in sorted(seen.items()):
            print(f"{what}: {count}")
        print(f"slowest: {slowest[0]:.1f} s, {slowest[1]}")
        stopped = isinstance(failed, KeyboardInterrupt | SystemExit)
        verdict = "passed" if failed is None else "none failed, stopped early" if stopped else f"FAILED ({failed!r})"
        print(f"{seen['cases']} cases, seed {options.seed}: {verdict}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
