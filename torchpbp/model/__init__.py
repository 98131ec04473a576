"""The learned model."""

from torchpbp.model.partial import Counts
from torchpbp.model.pbp import PBP

__all__ = ["PBP", "Counts"]
