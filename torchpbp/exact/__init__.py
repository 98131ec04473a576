"""Exact inference in networks with known parameters."""

from torchpbp.exact.network import DiscreteNetwork

__all__ = ["DiscreteNetwork"]
