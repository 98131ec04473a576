"""Normal graphs: diverters, blocks and messages, and four learning rules of blocks [NG]."""

from torchpbp.baselines.normal_graph.block_learning import learn, learn_block
from torchpbp.baselines.normal_graph.conversion import convert, from_product, to_product
from torchpbp.baselines.normal_graph.learner import NormalGraphLearner, NormalGraphRun
from torchpbp.baselines.normal_graph.propagation import BranchMessages, propagate
from torchpbp.baselines.normal_graph.rules import RULES, Rule
from torchpbp.baselines.normal_graph.structure import Block, Diverter, NormalGraph

__all__ = [
    "RULES",
    "Block",
    "BranchMessages",
    "Diverter",
    "NormalGraph",
    "NormalGraphLearner",
    "NormalGraphRun",
    "Rule",
    "convert",
    "from_product",
    "learn",
    "learn_block",
    "propagate",
    "to_product",
]
