"""Import time of the library, and time of ``train.py --help``, compared with ``import torch`` in fresh interpreters."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.timing import Comparison, compare, write_comparisons

ROOT = Path(__file__).parents[1]
COMMANDS = {
    "import torch": ["-c", "import torch"],
    "import torchpbp": [
        "-c",
        "import torch, torchpbp",
    ],  # torchpbp by itself loads torch when a name is first asked for
    "from torchpbp import PBP": ["-c", "from torchpbp import PBP"],
    "python train.py --help": ["train.py", "--help"],
}


def run(rounds: int = 10) -> list[Comparison]:
    """Time each command in a fresh interpreter.

    Args:
        rounds: measurements of each.
    """

    def started(arguments: list[str]) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)

    implementations = {name: (lambda given=arguments: started(given)) for name, arguments in COMMANDS.items()}
    return [compare(implementations, "a fresh interpreter, warm disk", rounds)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", default="benchmarks/results", help="folder for the results")
    arguments = parser.parse_args()
    results = run(arguments.rounds)
    print(*results, sep="\n\n")
    write_comparisons(arguments.output, "imports", results)
