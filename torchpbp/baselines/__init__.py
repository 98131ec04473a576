"""Other ways to learn the same models, behind the same interface."""

from torchpbp.baselines.em import EM

__all__ = ["EM"]
