"""What all experiments run in: run folders, results, sweeps, reports, and the program behind ``train.py``."""
