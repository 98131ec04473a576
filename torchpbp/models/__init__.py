"""Models with a fit and queries."""

from torchpbp.models.counts import Counts
from torchpbp.models.pbp import PBP

__all__ = ["PBP", "Counts"]
