"""Stage 1: regressions of the inside of each separator on the outside."""

from torchpbp.stage1.kernel_ridge import KernelRidge
from torchpbp.stage1.messages import Messages
from torchpbp.stage1.regressor import Regressor, Ridge

__all__ = ["KernelRidge", "Messages", "Regressor", "Ridge"]
