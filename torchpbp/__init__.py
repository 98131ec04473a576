"""torchpbp: latent-variable graphical models learned by regression, as PyTorch modules."""

from torchpbp import errors
from torchpbp.exact import DiscreteNetwork
from torchpbp.graph import Continuous, JunctionTree, LatentGraph, build_junction_tree, templates
from torchpbp.inputs import Evidence
from torchpbp.model import PBP

__version__ = "0.1.0"

__all__ = [
    "PBP",
    "Continuous",
    "DiscreteNetwork",
    "Evidence",
    "JunctionTree",
    "LatentGraph",
    "build_junction_tree",
    "errors",
    "templates",
]
