"""Other ways to learn the same models, behind the same interface."""

from torchpbp.baselines.em import EM
from torchpbp.baselines.normal_graph import NormalGraphLearner
from torchpbp.baselines.online_em import OnlineEM
from torchpbp.baselines.spectral import SpectralJunctionTree
from torchpbp.baselines.spectral_hmm import ObservableOperators, chain_operators, homogeneous_operators

__all__ = [
    "EM",
    "NormalGraphLearner",
    "ObservableOperators",
    "OnlineEM",
    "SpectralJunctionTree",
    "chain_operators",
    "homogeneous_operators",
]
