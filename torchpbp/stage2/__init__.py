"""Stage 2: moments, compression, and the linear operators between predictions."""

from torchpbp.stage2.least_squares_layer import LeastSquaresLayer

__all__ = ["LeastSquaresLayer"]
