"""torchpbp: latent-variable graphical models learned by regression, as PyTorch modules."""

import importlib
from typing import TYPE_CHECKING, Any

from torchpbp import errors
from torchpbp.baselines import EM, NormalGraphLearner, OnlineEM, SpectralJunctionTree
from torchpbp.classifier import GenerativeClassifier
from torchpbp.ensemble import ScoreAverage
from torchpbp.exact import DiscreteNetwork
from torchpbp.features import RBF, Laplace, Matern, Nystroem, RandomFourier
from torchpbp.gram import KernelPBP
from torchpbp.graph import Continuous, JunctionTree, LatentGraph, build_junction_tree, templates
from torchpbp.inputs import Evidence
from torchpbp.layer import PBPDistribution, PBPLayer
from torchpbp.loading import load
from torchpbp.model import PBP, Counts
from torchpbp.refinement import RefinedPBP, refine
from torchpbp.stage1 import KernelRidge, Messages, Ridge
from torchpbp.stage2 import LeastSquaresLayer

if TYPE_CHECKING:
    from torchpbp import plotting
    from torchpbp.tasks.mlp_regressor import MLP

__version__ = "0.1.0"

__all__ = [
    "EM",
    "MLP",
    "PBP",
    "RBF",
    "Continuous",
    "Counts",
    "DiscreteNetwork",
    "Evidence",
    "GenerativeClassifier",
    "JunctionTree",
    "KernelPBP",
    "KernelRidge",
    "Laplace",
    "LatentGraph",
    "LeastSquaresLayer",
    "Matern",
    "Messages",
    "NormalGraphLearner",
    "Nystroem",
    "OnlineEM",
    "PBPDistribution",
    "PBPLayer",
    "RandomFourier",
    "RefinedPBP",
    "Ridge",
    "ScoreAverage",
    "SpectralJunctionTree",
    "build_junction_tree",
    "errors",
    "load",
    "plotting",
    "refine",
    "templates",
]


def __getattr__(name: str) -> Any:
    """MLP needs Lightning, which takes seconds to import, and plotting loads data sets' code: only for those who ask."""
    if name == "MLP":
        from torchpbp.tasks.mlp_regressor import MLP

        return MLP
    if name == "plotting":
        return importlib.import_module("torchpbp.plotting")
    raise AttributeError(f"module 'torchpbp' has no attribute {name!r}")
