"""Specification: which observables stand for each separator, and how large its message is."""

from torchpbp.specification.specification import SeparatorPlan, Specification, SpecificationOptions, specify

__all__ = ["SeparatorPlan", "Specification", "SpecificationOptions", "specify"]
