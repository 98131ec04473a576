"""Learning: stage-1 regressors, compression, stage 2, and the fit that combines them."""

from torchpbp.learning.kernel_ridge import KernelRidge
from torchpbp.learning.least_squares import LeastSquaresLayer
from torchpbp.learning.messages import Messages
from torchpbp.learning.ridge import Ridge
from torchpbp.learning.stage1 import Regressor

__all__ = ["KernelRidge", "LeastSquaresLayer", "Messages", "Regressor", "Ridge"]
