"""Features of single variables: one-hot for discrete variables, kernel approximations for continuous ones."""

from torchpbp.features.completion import complete_table
from torchpbp.features.kernels import RBF, Kernel, Laplace, Matern, median_bandwidth
from torchpbp.features.maps import FeatureMap, KernelMap, Nystroem, OneHot, RandomFourier

__all__ = [
    "RBF",
    "FeatureMap",
    "Kernel",
    "KernelMap",
    "Laplace",
    "Matern",
    "Nystroem",
    "OneHot",
    "RandomFourier",
    "complete_table",
    "median_bandwidth",
]
