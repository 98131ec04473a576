"""torchpbp: latent-variable graphical models learned by regression, as PyTorch modules."""

from torchpbp import errors
from torchpbp.classifier import GenerativeClassifier
from torchpbp.ensemble import ScoreAverage
from torchpbp.exact import DiscreteNetwork
from torchpbp.features import RBF, Laplace, Matern, Nystroem, RandomFourier
from torchpbp.gram import KernelPBP
from torchpbp.graph import Continuous, JunctionTree, LatentGraph, build_junction_tree, templates
from torchpbp.inputs import Evidence
from torchpbp.layer import PBPDistribution, PBPLayer
from torchpbp.model import PBP
from torchpbp.refinement import RefinedPBP, refine

__version__ = "0.1.0"

__all__ = [
    "PBP",
    "RBF",
    "Continuous",
    "DiscreteNetwork",
    "Evidence",
    "GenerativeClassifier",
    "JunctionTree",
    "KernelPBP",
    "Laplace",
    "LatentGraph",
    "Matern",
    "Nystroem",
    "PBPDistribution",
    "PBPLayer",
    "RandomFourier",
    "RefinedPBP",
    "ScoreAverage",
    "build_junction_tree",
    "errors",
    "refine",
    "templates",
]
