"""Structure: latent graphs, triangulation, clique trees and the junction trees of predictive belief propagation."""

from torchpbp.graph import templates
from torchpbp.graph.clique_tree import CliqueTree, build_clique_tree
from torchpbp.graph.junction_tree import JunctionTree, build_junction_tree
from torchpbp.graph.latent_graph import Continuous, LatentGraph

__all__ = [
    "CliqueTree",
    "Continuous",
    "JunctionTree",
    "LatentGraph",
    "build_clique_tree",
    "build_junction_tree",
    "templates",
]
