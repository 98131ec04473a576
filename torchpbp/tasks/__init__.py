"""Experiments: plain functions that fit learners, measure them, and write their results into a folder."""

from torchpbp.tasks.digits import run_digits
from torchpbp.tasks.digits_curve import run_digits_curve
from torchpbp.tasks.digits_embedding import run_digits_embedding
from torchpbp.tasks.digits_missing import run_digits_missing
from torchpbp.tasks.sequence_labelling import run_sequence_labelling
from torchpbp.tasks.splice import run_splice
from torchpbp.tasks.synthetic import run_synthetic

__all__ = [
    "run_digits",
    "run_digits_curve",
    "run_digits_embedding",
    "run_digits_missing",
    "run_sequence_labelling",
    "run_splice",
    "run_synthetic",
]
