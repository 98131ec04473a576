"""Baseline learners of the same models, with the same interface."""

from torchpbp.baselines.em import EM
from torchpbp.baselines.normal_graph import NormalGraphLearner
from torchpbp.baselines.online_em import OnlineEM
from torchpbp.baselines.spectral import SpectralJunctionTree

__all__ = [
    "EM",
    "NormalGraphLearner",
    "OnlineEM",
    "SpectralJunctionTree",
]
