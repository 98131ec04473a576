"""The learned model."""

from torchpbp.models.counting import Counts
from torchpbp.models.pbp import PBP

__all__ = ["PBP", "Counts"]
