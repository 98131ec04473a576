"""Two checkouts of torchpbp side by side in interleaved pairs: ``--other`` names the folder of the older one.

Each checkout has its own process, and the ratio of times is taken within each pair, so that a change of the machine's load affects
both. Results are compared before timing. Only public names are used, for checkouts may differ in everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import public
from benchmarks.report import Panel
from benchmarks.runner import Runner, agree
from benchmarks.work import Implementation, Make
from torchpbp import templates

HERE = Path(__file__).resolve().parents[1]
LEAST_SECONDS = 0.2
"""Quick work is repeated until a measurement takes about this long."""
PAIRS, PAIRS_OF_NUMBERS = 15, 3


@dataclass(frozen=True)
class Case:
    """Work to be compared between checkouts.

    Args:
        make: a function of :mod:`benchmarks.public`.
        arguments: of ``make``.
        tiny: arguments that a run of size "tiny" replaces.
        tolerance: by how much answers may differ.
        measures_itself: the answers are single numbers, each from a fresh process, instead of results to be compared.
    """

    make: Make
    arguments: Mapping[str, Any] = field(default_factory=dict)
    tiny: Mapping[str, Any] = field(default_factory=lambda: {"rows": 100})
    tolerance: float = 1e-6
    measures_itself: bool = False


def _on(graph: Any, rows: int) -> dict[str, Any]:
    return {"graph": graph, "rows": rows}


CONSTRUCTION = {"graph": public.small_diamond}
COMPILED = {"rows": 32}, {"backend": "eager"}
CASES = {
    "PBP(graph), four latents": Case(public.construction, CONSTRUCTION, {}),
    "PBP(graph), four latents, planned anew": Case(public.construction, CONSTRUCTION | {"anew": True}, {}),
    "fit, diamond": Case(public.fit, _on(templates.diamond, 20_000)),
    "fit, diamond, DataFrame": Case(public.fit, _on(templates.diamond, 20_000) | {"frame": True}),
    "fit, hidden Markov model": Case(public.fit, _on(templates.hmm, 20_000)),
    "fit, loopy network": Case(public.fit, _on(templates.loopy_network, 20_000)),
    "fit, mixed chain": Case(public.fit_mixed, {"rows": 5_000}),
    "fit with MLP": Case(public.fit_nets, {"rows": 5_000}),
    "training step of PBPModule": Case(public.module_step, {"rows": 500}),
    "maximum likelihood, diamond": Case(public.likelihood, _on(templates.diamond, 10_000), tolerance=0.01),
    "posteriors, diamond": Case(public.posteriors, _on(templates.diamond, 10_000)),
    "posteriors, hidden Markov model": Case(public.posteriors, _on(templates.hmm, 10_000)),
    "posterior of one row": Case(public.one_posterior, tiny={}),
    "exact posteriors, ALARM": Case(public.exact, {"rows": 1_000}),
    "exact queries one by one, ALARM": Case(public.exact, {"rows": 20, "one_by_one": True}, {"rows": 2}),
    "PBPLayer, one row without gradients": Case(public.one_row, tiny={}),
    "PBPLayer, forward and backward": Case(public.layer_step, {"rows": 1_000}),
    "PBPLayer of ten classes, forward and backward": Case(public.class_step, {"rows": 256}),
    "load, chain of 2,000 sites": Case(public.load, {"sites": 2_000}, {"sites": 5}),
    "import": Case(public.fresh_interpreter, {"arguments": ["-c", "from torchpbp import PBP"]}, {}),
    "peak memory of a fit": Case(public.fit_memory, {"rows": 1_000_000}, measures_itself=True),
    "torch.compile of PBPLayer": Case(public.compilation, *COMPILED, measures_itself=True),
}


def run(runner: Runner) -> None:
    """All cases; ratios are those of this checkout over the other."""
    assert runner.options.other is not None
    folders = {"here": HERE, "other": runner.options.other}
    panel = runner.report.panel("this checkout over the other: median, and all pairs", "ratio")
    for name, case in CASES.items():
        if runner.wanted(name):
            arguments = {**case.arguments, **runner.choose({}, case.tiny)}
            both = [Implementation(k, case.make, arguments, checkout=folder) for k, folder in folders.items()]
            (_numbers if case.measures_itself else _times)(runner, panel, name, case, both)


def _times(runner: Runner, panel: Panel, name: str, case: Case, both: list[Implementation]) -> None:
    least, check, pairs = runner.choose(LEAST_SECONDS, 0.0), agree(case.tolerance), runner.rounds(PAIRS)
    times = runner.compare(name, both, check, rounds=pairs, least_seconds=least, show=False)
    if len(times.wall) == 2:
        wall, cpu = (list(clock.values()) for clock in (times.wall, times.cpu))
        _add(runner, panel, name, wall, cpu)


def _numbers(runner: Runner, panel: Panel, name: str, case: Case, both: list[Implementation]) -> None:
    """Cases that measure themselves, each time in a new process, the two checkouts in turn."""
    pairs = min(PAIRS_OF_NUMBERS, runner.rounds(PAIRS))
    measured = [[runner.numbers(f"{name}, {i.label}", i) for i in both] for _ in range(pairs)]
    complete = [(here, other) for here, other in measured if here is not None and other is not None]
    for number in complete[0][0] if complete else ():
        _add(runner, panel, f"{name}: {number}", [[pair[side][number] for pair in complete] for side in (0, 1)])


def _add(runner: Runner, panel: Panel, name: str, here_other: Any, processor: Any = ((), ())) -> None:
    """A row of the table, from measurements here and in the other checkout, and points of the figure."""
    ratios, cpu = (  # one checkout may have been measured once, since it was slow, the other one more often
        [1.0 if a == b else a / max(b, 1e-9) for a, b in zip(*x, strict=False)] for x in (here_other, processor)
    )
    low, median, high = map(float, np.percentile(ratios, [25, 50, 75]))
    row = {"case": name, "median": median, "quartiles": f"{low:.3f} to {high:.3f}"}
    row |= {"processor time": float(np.median(cpu)) if cpu else None, "here": float(np.median(here_other[0]))}
    runner.report.add("this checkout over the other", **row, other=float(np.median(here_other[1])))
    for value in (median, *ratios):
        panel.add(name, 0.0, value)
