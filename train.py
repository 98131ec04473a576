"""Run an experiment described by the files in conf/: ``python train.py model=digits``; ``--help`` lists choices.

The same as the command ``torchpbp-train``, which an installed package has.
"""

from torchpbp.experiments.running.program import main, train

__all__ = ["main", "train"]

if __name__ == "__main__":
    main()
