"""The latent junction tree of predictive belief propagation: every observable belongs to one leaf, every node is small.

The clique tree of a graph is transformed in five steps. (1) Observables that lie in a single clique are removed, and the
remaining cliques are spanned by a tree: the skeleton. (2) Each removed group becomes a leaf, whose separator is the rest of its
clique; an observable in the skeleton (for instance, one with children) has a separate leaf. (3) Ends of the skeleton without
observables are pruned: summed out, they are a function of their separator. (4) Nodes with more than three neighbours are split, and
nodes that only forward a message are merged with a neighbour, since each separator needs an estimate. (5) The root is chosen by cost.

The steps are methods of :class:`~torchpbp.graph.tree_draft.Draft`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from torchpbp.errors import StructureError
from torchpbp.graph.clique_tree import CliqueTree, braces, rooted
from torchpbp.graph.latent_graph import LatentGraph, require_graph
from torchpbp.graph.tree_draft import MAX_NEIGHBOURS, Draft

SHOWN = 4
"""Number of observables listed in the name of a separator."""


@dataclass(frozen=True)
class JunctionTree(CliqueTree):
    """A rooted junction tree whose leaves hold the observables.

    Args:
        cliques: variables of each node; node 0 is the root, parents come before children.
        parent: each node's parent, -1 for the root.
        graph: graph of the tree.
        leaf_observables: observables of each node; empty for inner nodes.
        pruned: removed cliques, without observables below them, as (clique, its parent); the parent is a node, or
            ``len(cliques)`` plus the position of a pruned clique.
    """

    graph: LatentGraph
    leaf_observables: tuple[tuple[str, ...], ...]
    pruned: tuple[tuple[frozenset[str], int], ...] = ()

    @cached_property
    def leaf_of(self) -> dict[str, int]:
        """The leaf of each observable."""
        return {v: node for node, group in enumerate(self.leaf_observables) for v in group}

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        return tuple(node for node, group in enumerate(self.leaf_observables) if group)

    @cached_property
    def inner(self) -> tuple[int, ...]:
        """Nodes that are neither the root nor a leaf."""
        return tuple(n for n in range(1, len(self.cliques)) if not self.leaf_observables[n])

    @cached_property
    def inside(self) -> tuple[frozenset[str], ...]:
        """Observables below each separator, OV[In(S)]."""
        result = [set(group) for group in self.leaf_observables]
        for node in range(len(self.cliques) - 1, 0, -1):
            result[self.parent[node]] |= result[node]
        return tuple(frozenset(r) for r in result)

    @cached_property
    def _separator_names(self) -> tuple[str, ...]:
        """Name of each separator, see :meth:`separator_name`; models of one tree have equal module names."""
        names = []
        for separator, below in zip(self.separators, self._first_inside, strict=True):
            shown = ", ".join(below[:SHOWN]) + (", …" if len(below) > SHOWN else "")
            names.append(f"{braces(separator)} above {{{shown}}}")
        return tuple(names)

    @cached_property
    def _first_inside(self) -> tuple[list[str], ...]:
        """The first observables below each separator, by name, one more than are shown; all would take O(n²)."""
        result = [sorted(group)[: SHOWN + 1] for group in self.leaf_observables]
        for node in range(len(self.cliques) - 1, 0, -1):
            above = self.parent[node]
            result[above] = sorted(result[above] + result[node])[: SHOWN + 1]
        return tuple(result)

    def outside(self, node: int) -> frozenset[str]:
        """Observables not below separator ``node``, OV[Out(S)]."""
        return self.inside[0] - self.inside[node]

    def distances(self, node: int, limit: int) -> list[tuple[int, str]]:
        """(distance, observable) pairs of at least ``limit`` observables outside separator ``node``, nearest first.

        The distance counts tree edges from the node above the separator to the observable's leaf. The traversal
        stops at the distance that reaches the limit, so long chains cost no more than short ones.
        """
        ring, seen, nearest, steps = [self.parent[node]], {node, self.parent[node]}, list[tuple[int, str]](), 0
        while ring:
            nearest += [(steps, v) for n in ring for v in self.leaf_observables[n]]
            if len(nearest) >= limit:
                break
            nearby = [m for n in ring for m in (*self.children[n], self.parent[n]) if m >= 0]
            ring = [m for m in dict.fromkeys(nearby) if m not in seen]
            seen.update(ring)
            steps += 1
        return nearest

    def full_tree(self) -> CliqueTree:
        """The tree with its pruned cliques appended: a clique tree of the complete graph."""
        return CliqueTree(
            self.cliques + tuple(c for c, _ in self.pruned), self.parent + tuple(p for _, p in self.pruned)
        )

    def separator_name(self, node: int) -> str:
        """The separator's variables and the observables below it, for messages."""
        return self._separator_names[node]

    def validate(self) -> None:
        """Raise a :class:`StructureError` unless the tree has all properties needed for learning."""
        if len(self.cliques) != len(self.parent) or len(self.cliques) != len(self.leaf_observables):
            raise StructureError("cliques, parent and leaf_observables must have one entry per node.")
        if self.parent[0] != -1 or any(not 0 <= p < i for i, p in enumerate(self.parent) if i > 0):
            raise StructureError("The tree is not connected, or not numbered with parents before children.")
        if any(not 0 <= p < len(self.cliques) + i for i, (_, p) in enumerate(self.pruned)):
            raise StructureError("The parent of each pruned clique must be a node or an earlier pruned clique.")
        full = self.full_tree()
        full.check_running_intersection()
        full.check_families(self.graph)
        placed = [v for group in self.leaf_observables for v in group]
        if sorted(placed) != sorted(self.graph.observed):
            raise StructureError(
                f"Each observable must belong to exactly one leaf; expected {sorted(self.graph.observed)}, "
                f"got {sorted(placed)}."
            )
        for node, group in enumerate(self.leaf_observables):
            if group and (self.children[node] or node == 0):
                raise StructureError(f"Node {node} {braces(self.cliques[node])} holds observables but is not a leaf.")
            if not group and not self.children[node]:
                raise StructureError(f"Leaf {node} {braces(self.cliques[node])} holds no observable.")
            if not set(group) <= self.cliques[node]:
                raise StructureError(
                    f"Leaf {node} {braces(self.cliques[node])} does not contain its observables {group}."
                )
            neighbours = len(self.children[node]) + (node > 0)
            if neighbours > MAX_NEIGHBOURS:
                raise StructureError(
                    f"Node {node} {braces(self.cliques[node])} has {neighbours} neighbours, at most {MAX_NEIGHBOURS} allowed."
                )

    def __str__(self) -> str:
        lines = [f"JunctionTree: {len(self.cliques)} cliques, {len(self.leaves)} leaves, depth {max(self.depth)}"]
        stack = [(0, "", "")]
        while stack:
            node, head, indent = stack.pop()
            held = f"  <- {', '.join(self.leaf_observables[node])}" if self.leaf_observables[node] else ""
            over = "root " if node == 0 else f"[{', '.join(sorted(self.separators[node]))}] "
            lines.append(f"{head}{over}{braces(self.cliques[node])}{held}")
            below = self.children[node]
            for i, child in reversed(list(enumerate(below))):
                last = i == len(below) - 1
                stack.append((child, indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  ")))
        if self.pruned:
            lines.append("pruned: " + ", ".join(braces(c) for c, _ in self.pruned))
        return "\n".join(lines)


def checked_root(root: Iterable[str] | None) -> tuple[str, ...] | None:
    """Checked names of the variables that a root clique must contain."""
    if isinstance(root, str):
        raise StructureError(f"root: expected a list of names, got the string '{root}'. Write ['{root}'].")
    if not isinstance(root, Iterable | None):
        raise StructureError(f"root: expected a list of names or None, got {root!r}.")
    return None if root is None else tuple(root)


def build_junction_tree(graph: LatentGraph, root: Iterable[str] | None = None) -> JunctionTree:
    """Convert a latent graph to a latent junction tree in five steps, see the module's docstring.

    Args:
        graph: the model's structure.
        root: variables that the root clique must contain; by default the root is chosen by cost.

    Example:
        >>> from torchpbp import templates
        >>> print(build_junction_tree(templates.naive_bayes(3)))
        JunctionTree: 4 cliques, 3 leaves, depth 1
        root {h}
        ├─ [h] {h, x1}  <- x1
        ├─ [h] {h, x2}  <- x2
        └─ [h] {h, x3}  <- x3
    """
    require_graph(graph, "build_junction_tree")
    wanted = checked_root(root)
    draft = Draft.of(graph)
    draft.prune()
    draft.bound_degree()
    draft.contract()
    start = draft.choose_root(wanted)
    back = sorted(draft.alive)
    numbering = {old: new for new, old in enumerate(back)}
    tree, order = rooted(
        [draft.cliques[i] for i in back],
        [(numbering[a], numbering[b]) for a, b in draft.edges()],
        numbering[start],
    )
    final = {back[old]: new for new, old in enumerate(order)}
    cut: list[tuple[frozenset[str], int]] = []
    for clique, attached_to in reversed(draft.pruned):  # the last one pruned is attached to a remaining node
        final[clique] = len(tree.cliques) + len(cut)
        cut.append((draft.cliques[clique], final[attached_to]))
    result = JunctionTree(
        cliques=tree.cliques,
        parent=tree.parent,
        graph=graph,
        leaf_observables=tuple(draft.groups[back[old]] for old in order),
        pruned=tuple(cut),
    )
    result.validate()
    return result
