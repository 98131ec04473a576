"""torchpbp: latent-variable graphical models learned by regression, as PyTorch modules."""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchpbp import errors, plotting
    from torchpbp.baselines import EM, NormalGraphLearner, OnlineEM, SpectralJunctionTree
    from torchpbp.classifier import GenerativeClassifier
    from torchpbp.exact import DiscreteNetwork
    from torchpbp.features import RBF, Laplace, Matern, Nystroem, RandomFourier
    from torchpbp.graph import Continuous, JunctionTree, LatentGraph, build_junction_tree, templates
    from torchpbp.inputs import Evidence
    from torchpbp.io import load
    from torchpbp.learning import KernelRidge, LeastSquaresLayer, Messages, Ridge
    from torchpbp.models import PBP, Counts
    from torchpbp.models.kernel import KernelPBP
    from torchpbp.models.likelihood.learner import MaximumLikelihood
    from torchpbp.neural.averaging import WeightAverage
    from torchpbp.neural.batches import TableLoader
    from torchpbp.neural.encoders import ContextEncoder, PointEncoder
    from torchpbp.neural.layer import PBPDistribution, PBPLayer
    from torchpbp.neural.mlp import MLP
    from torchpbp.neural.module import PBPModule

__version__ = "0.1.0"

__all__ = [
    "EM",
    "MLP",
    "PBP",
    "RBF",
    "ContextEncoder",
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
    "MaximumLikelihood",
    "Messages",
    "NormalGraphLearner",
    "Nystroem",
    "OnlineEM",
    "PBPDistribution",
    "PBPLayer",
    "PBPModule",
    "PointEncoder",
    "RandomFourier",
    "Ridge",
    "SpectralJunctionTree",
    "TableLoader",
    "WeightAverage",
    "build_junction_tree",
    "errors",
    "load",
    "plotting",
    "templates",
]

DEFINITIONS = {
    "baselines": ("EM", "NormalGraphLearner", "OnlineEM", "SpectralJunctionTree"),
    "classifier": ("GenerativeClassifier",),
    "exact": ("DiscreteNetwork",),
    "features": ("RBF", "Laplace", "Matern", "Nystroem", "RandomFourier"),
    "models.kernel": ("KernelPBP",),
    "models.likelihood.learner": ("MaximumLikelihood",),
    "graph": ("Continuous", "JunctionTree", "LatentGraph", "build_junction_tree", "templates"),
    "inputs": ("Evidence",),
    "neural.layer": ("PBPDistribution", "PBPLayer"),
    "io": ("load",),
    "models": ("PBP", "Counts"),
    "learning": ("KernelRidge", "LeastSquaresLayer", "Messages", "Ridge"),
    "neural.averaging": ("WeightAverage",),
    "neural.batches": ("TableLoader",),
    "neural.encoders": ("ContextEncoder", "PointEncoder"),
    "neural.mlp": ("MLP",),
    "neural.module": ("PBPModule",),
}
"""Module -> public names that it defines. They are loaded when first asked for: some need packages that take seconds to import."""

MODULE_OF = {name: f"{__name__}.{module}" for module, names in DEFINITIONS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name, or a subpackage such as ``torchpbp.features``, when it is first asked for."""
    if name in MODULE_OF:
        value = getattr(importlib.import_module(MODULE_OF[name]), name)
    elif not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
