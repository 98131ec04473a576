"""Experiments: plain functions that fit learners, measure them, and write their results into a folder."""

from torchpbp.tasks.synthetic import run_synthetic

__all__ = ["run_synthetic"]
