"""Specification: which observables stand for each separator, and how large its message is."""

from torchpbp.planning.plan import SeparatorPlan, Specification, SpecificationOptions, specify

__all__ = ["SeparatorPlan", "Specification", "SpecificationOptions", "specify"]
