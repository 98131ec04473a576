"""Refinement of a two-stage model by descent, guarded by held-out rows."""

from torchpbp.models.refinement.learner import RefinedPBP
from torchpbp.models.refinement.objectives import ClassLikelihood, ConditionalLikelihood, JointLikelihood, Objective
from torchpbp.models.refinement.refine import Refinement, refine
from torchpbp.models.refinement.settings import RefinementSettings

__all__ = [
    "ClassLikelihood",
    "ConditionalLikelihood",
    "JointLikelihood",
    "Objective",
    "RefinedPBP",
    "Refinement",
    "RefinementSettings",
    "refine",
]
