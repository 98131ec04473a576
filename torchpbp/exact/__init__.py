"""Exact inference in networks with known parameters."""

from torchpbp.exact.network import DiscreteNetwork
from torchpbp.exact.parity import noisy_parity

__all__ = ["DiscreteNetwork", "noisy_parity"]
