"""Clique trees of hidden variables, for rows that observe the same inner variables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection

from torchpbp.graph.clique_tree import CliqueTree, build_clique_tree
from torchpbp.graph.domains import Scope
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.grouping import holders

RESCALE_AFTER = 16
"""Number of tables in a product after which it is rescaled."""


class HiddenTree:
    """A clique tree of the hidden variables, extended by a node for each set of observed variables with the same hidden parents.

    Such a node has one pattern per joint value in the rows. A single observed variable, or the only set of a leaf clique with
    the same hidden variables, enters at the clique itself. Each family's hidden variables are in one clique. Nodes are numbered from the
    root, 0, downward.

    Args:
        graph: directed and discrete.
        joined: inner observables that are treated as hidden, because some rows miss them.

    Attributes:
        hidden: hidden variables of each family, sorted, in the order of the graph's names.
        cliques, separators: of each node, sorted; the separator is the one with its parent.
        parent, children: of each node.
        home: node of each family's table.
        families: numbers of the families of each node.
        top: hidden variable -> node nearest the root with it.
        cells: joint states of the largest clique.
        entries: joint states of all cliques.
        rescaled: whether the message of a node to its parent is rescaled, against underflow of products of many
            probabilities.
    """

    def __init__(self, graph: LatentGraph, joined: Collection[str] = ()) -> None:
        self.joined = tuple(joined)
        self.states = {v: graph.num_states(v) for v in graph.names}
        inside = {v for v in graph.names if v in joined or graph.is_latent(v)}
        families = [(*graph.parents(v), v) for v in graph.names]
        self.hidden: list[Scope] = [tuple(sorted(v for v in scope if v in inside)) for scope in families]
        tree = CliqueTree((frozenset(),), (-1,))
        if inside:
            pairs = {(a, b) for scope in self.hidden for i, a in enumerate(scope) for b in scope[i + 1 :]}
            sizes = {v: self.states[v] for v in sorted(inside)}
            tree = build_clique_tree(LatentGraph(sorted(pairs), sizes, directed=False))
        self.cliques: list[Scope] = [tuple(sorted(c)) for c in tree.cliques]
        self.separators: list[Scope] = [tuple(sorted(s)) for s in tree.separators]
        self.parent = list(tree.parent)
        places = holders(tree.cliques)
        self.home: list[int] = []
        together: dict[Scope, list[int]] = {}  # families with observed variables, by their hidden ones
        for number, (scope, names) in enumerate(zip(families, self.hidden, strict=True)):
            candidates = min((places[v] for v in names), key=len) if names else [0]
            fitting = [n for n in candidates if tree.cliques[n].issuperset(names)]
            self.home.append(min(fitting, key=lambda n: (len(tree.cliques[n]), tree.depth[n])))
            if len(names) < len(scope):
                together.setdefault(names, []).append(number)
        inner = set(tree.parent)
        sets = Counter(self.home[numbers[0]] for numbers in together.values())  # of hidden variables, at each clique
        for names, numbers in together.items():
            home = self.home[numbers[0]]
            alone = names == self.cliques[home] and home not in inner and sets[home] == 1
            if len(numbers) > 1 and not alone:
                for number in numbers:
                    self.home[number] = len(self.cliques)
                self.cliques.append(names)
                self.separators.append(names)
                self.parent.append(home)
        self.families: list[list[int]] = [[] for _ in self.cliques]
        for number, home in enumerate(self.home):
            self.families[home].append(number)
        self.children: list[list[int]] = [[] for _ in self.cliques]
        for node, above in enumerate(self.parent):
            if above >= 0:
                self.children[above].append(node)
        self.top = {v: nodes[0] for v, nodes in places.items()}
        sizes_of = [math.prod(self.shape(node)) for node in range(len(self))]
        self.cells, self.entries = max(sizes_of), sum(sizes_of)
        factors = [len(numbers) for numbers in self.families]  # tables multiplied since the last rescaling
        self.rescaled = [False] * len(self)
        for node in range(len(self) - 1, 0, -1):
            above = self.parent[node]
            self.rescaled[node] = factors[node] + factors[above] > RESCALE_AFTER
            factors[above] += 1 if self.rescaled[node] else factors[node]

    def __len__(self) -> int:
        return len(self.cliques)

    def shape(self, node: int) -> list[int]:
        """States of the variables of a clique."""
        return [self.states[v] for v in self.cliques[node]]
