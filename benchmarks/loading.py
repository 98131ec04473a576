"""Loading a long chain from its file, compared with a plain ``torch.load`` of the same tensors and with fitting it.

``torchpbp.load`` also checks the file and builds graph, junction tree, schedule and modules. The plain file is that of
``torch.save(model.state_dict(), …)``. Fitting, with the construction of the model, is measured once.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

import torchpbp
from benchmarks.clock import measure
from benchmarks.timing import Comparison, compare, write_comparisons
from torchpbp import PBP, DiscreteNetwork, templates

PLAIN, WHOLE, FIT = "torch.load of the state dict", "torchpbp.load", "construction and fit"


def run(sites: int = 2_000, rows: int = 2_000, rounds: int = 5) -> Comparison:
    """Time all three.

    Args:
        sites: of the chain, a hidden Markov model.
        rows: to fit it to.
        rounds: measurements of loading.
    """
    truth = DiscreteNetwork.random(templates.hmm(sites), seed=0)
    data = truth.sample(rows, seed=1)
    models: list[PBP] = []
    fit = measure(lambda: models.append(PBP(truth.graph).fit(data)), 1)
    state = models[0].state_dict()
    with tempfile.TemporaryDirectory() as folder:
        plain, whole = Path(folder, "state.pt"), Path(folder, "model.pt")
        torch.save(state, plain)
        models[0].save(whole)
        title = f"a chain of {sites:,} sites, {len(state):,} tensors, {torch.get_num_threads()} thread(s)"
        loading = compare(
            {
                PLAIN: lambda: torch.load(plain, weights_only=True),
                WHOLE: lambda: torchpbp.load(whole),
            },
            title=title,
            rounds=rounds,
        )
    return replace(loading, seconds={**loading.seconds, FIT: [fit]}, calls={**loading.calls, FIT: 1})


def main(arguments: list[str] | None = None) -> None:
    """Run, print and write.

    Args:
        arguments: of the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loading", description=__doc__)
    for name, value in {"sites": 2_000, "rows": 2_000, "rounds": 5, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--output", default="benchmarks/results", help="folder for the results")
    given = vars(parser.parse_args(arguments))
    folder = given.pop("output")
    torch.set_num_threads(given.pop("threads"))
    result = run(**given)
    print(result)
    write_comparisons(folder, "loading", [result])


if __name__ == "__main__":
    main()
