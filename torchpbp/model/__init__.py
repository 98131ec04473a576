"""The learned model."""

from torchpbp.model.pbp import PBP

__all__ = ["PBP"]
