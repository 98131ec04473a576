"""Predictive belief propagation on Gram matrices."""

from torchpbp.gram.charts import Chart
from torchpbp.gram.kernel_pbp import KernelPBP

__all__ = ["Chart", "KernelPBP"]
