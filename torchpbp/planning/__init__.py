"""Planning: junction tree, core groups, instruments and message sizes of a model, before any data are seen."""

from torchpbp.planning.plan import Plan, PlanOptions, SeparatorPlan
from torchpbp.planning.planner import plan_graph, plan_tree

__all__ = ["Plan", "PlanOptions", "SeparatorPlan", "plan_graph", "plan_tree"]
