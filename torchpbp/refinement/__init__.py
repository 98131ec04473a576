"""Refinement of a two-stage model by descent, guarded by held-out rows."""

from torchpbp.refinement.learner import RefinedPBP
from torchpbp.refinement.objectives import ClassLikelihood, ConditionalLikelihood, JointLikelihood, Objective
from torchpbp.refinement.refine import Refinement, refine
from torchpbp.refinement.settings import Settings

__all__ = [
    "ClassLikelihood",
    "ConditionalLikelihood",
    "JointLikelihood",
    "Objective",
    "RefinedPBP",
    "Refinement",
    "Settings",
    "refine",
]
