"""Start of a program: import time, and loading a model file, compared with torch's own.

``torchpbp.load`` checks the file and builds graph, junction tree, schedule and modules; ``torch.load`` reads the same tensors alone.
"""

from __future__ import annotations

import itertools

from benchmarks.networks import renamed
from benchmarks.public import fresh_interpreter, load, sample
from benchmarks.runner import Runner
from benchmarks.work import Implementation, Work
from torchpbp import PBP, templates

COMMANDS = {
    "import torch": ["-c", "import torch"],
    "import torchpbp": ["-c", "import torch, torchpbp"],  # torchpbp loads torch when a name is first asked for
    "from torchpbp import PBP": ["-c", "from torchpbp import PBP"],
    "python train.py --help": ["train.py", "--help"],
}


def run(runner: Runner) -> None:
    """Both comparisons."""
    if runner.wanted("imports"):
        title = "a fresh interpreter, warm disk"
        commands = [Implementation(k, fresh_interpreter, {"arguments": a}) for k, a in COMMANDS.items()]
        comparison = runner.compare(title, commands, rounds=runner.rounds(10))
        runner.report.panels.append(comparison.panel())
    if runner.wanted("loading"):
        sites = {"sites": runner.choose(2_000, 4)}
        title = f"a model of a chain of {sites['sites']:,} sites, fitted to 2,000 rows"
        implementations = [
            Implementation("torch.load of the state dict", load, sites | {"plain": True}),
            Implementation("torchpbp.load", load, sites),
            Implementation("construction and fit", construct_and_fit, sites),
        ]
        comparison = runner.compare(title, implementations, rounds=runner.rounds(5))
        runner.report.panels.append(comparison.panel())


def construct_and_fit(sites: int) -> Work:
    """Construction of a model of a chain, with a new plan each time, and fit."""
    graph, prefixes = templates.hmm(sites), itertools.count()
    data = sample(graph, 2_000)

    def run() -> PBP:
        prefix = f"{next(prefixes)}_"
        return PBP(renamed(graph, prefix)).fit({prefix + v: x for v, x in data.items()})

    return Work(run)
