"""Planning: junction tree, core groups, instruments and message sizes of a model, from its structure alone."""

from torchpbp.planning.plan import Plan, PlanOptions, SeparatorPlan
from torchpbp.planning.planner import plan_graph, plan_tree

__all__ = ["Plan", "PlanOptions", "SeparatorPlan", "plan_graph", "plan_tree"]
