"""Run an experiment described by the files in conf/: ``python train.py model=digits``; ``--help`` lists choices.

The same as the command ``torchpbp-train``, which an installed package has.
"""

from torchpbp.experiments.run import main

if __name__ == "__main__":
    main()
