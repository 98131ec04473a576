"""Predictive belief propagation on Gram matrices."""

from torchpbp.models.kernel.charts import Chart
from torchpbp.models.kernel.kernel_pbp import KernelPBP

__all__ = ["Chart", "KernelPBP"]
