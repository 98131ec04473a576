"""Learning: stage-1 regressors, compression, stage 2, and what leads through them."""

from torchpbp.learning.kernel_ridge import KernelRidge
from torchpbp.learning.least_squares_layer import LeastSquaresLayer
from torchpbp.learning.messages import Messages
from torchpbp.learning.regressor import Regressor, Ridge

__all__ = ["KernelRidge", "LeastSquaresLayer", "Messages", "Regressor", "Ridge"]
