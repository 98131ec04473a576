"""Files, functions and calls between files of torchpbp in six common calls.

A call counts as one between files if its nearest caller within the package is in another file. Each is made twice before it is traced,
so that imports and caches are left out. With ``--other``, the figures of another checkout follow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

from benchmarks import public
from benchmarks.runner import Runner
from benchmarks.versions import HERE
from benchmarks.work import Implementation, Make, Work

ROWS = {"rows": 200}
GRAPH = {"graph": public.small_diamond}
CALLS: dict[str, tuple[Make, dict[str, Any]]] = {
    "PBP(graph)": (public.construction, GRAPH),
    "PBP(graph), planned anew": (public.construction, GRAPH | {"anew": True}),
    "fit(df)": (public.fit, GRAPH | ROWS | {"frame": True}),
    "fit with MLP": (public.fit_nets, ROWS),
    "posterior": (public.one_posterior, {}),
    "training step": (public.module_step, ROWS),
    "PBPLayer": (public.one_row, {}),
}
FILES, FUNCTIONS, BETWEEN = "files", "functions", "calls between files"


def run(runner: Runner) -> None:
    """All calls, each in a process of this checkout and of the other one."""
    folders = {"": HERE} | ({", other": runner.options.other} if runner.options.other else {})
    panel = runner.report.panel(BETWEEN, "number")
    for name, (make, arguments) in CALLS.items():
        if not runner.wanted(name):
            continue
        row: dict[str, int] = {}
        for suffix, folder in folders.items():
            work = Implementation(name, traced, {"make": make, "arguments": arguments}, checkout=folder)
            counts = runner.numbers(name, work) or {}
            row |= {column + suffix: int(count) for column, count in counts.items()}
        panel.add(name, 0.0, row.get(BETWEEN))
        runner.report.add("functions of torchpbp in a call", call=name, **row)


def traced(make: Make, arguments: dict[str, Any]) -> Work:
    """Some work with the counts of a third call as its answer."""
    import torchpbp

    work, package = make(**arguments), Path(torchpbp.__file__).parent

    def run() -> dict[str, int]:
        work.run()
        work.run()
        return count_calls(work.run, package)

    return Work(run, lambda counts: {name: np.array(count) for name, count in counts.items()})


def count_calls(call: Callable[[], object], package: Path) -> dict[str, int]:
    """Count files in which functions are called, distinct functions, and calls from one file into another.

    Args:
        call: traced in this thread.
        package: folder; only its files count.
    """
    prefix, files, functions, between = f"{package}/", set(), set(), 0

    def inside(code: CodeType) -> bool:
        return code.co_filename.startswith(prefix)

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal between
        if event != "call" or not inside(frame.f_code):
            return
        files.add(frame.f_code.co_filename)
        functions.add(frame.f_code)
        caller = frame.f_back
        while caller is not None and not inside(caller.f_code):
            caller = caller.f_back
        between += caller is not None and caller.f_code.co_filename != frame.f_code.co_filename

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return {FILES: len(files), FUNCTIONS: len(functions), BETWEEN: between}
