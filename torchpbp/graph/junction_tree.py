"""The latent junction tree of predictive belief propagation: every observable sits in one leaf, every node is small.

The plain clique tree of a graph is reshaped in five steps. (1) Observables that lie in a single clique are taken out,
and the rest is triangulated and spanned: the skeleton. (2) Each group taken out becomes a leaf again, its separator
holding the rest of its clique; an observable that stays in the skeleton (it has children, say) gets a leaf of its own.
(3) Skeleton ends without observables are pruned; they sum to a function of their separator and carry no evidence.
(4) Nodes with more than three neighbours are split, and nodes that only pass a message on are merged with a neighbour,
for each separator costs an estimate. (5) The root is chosen by cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

from torchpbp.errors import StructureError
from torchpbp.graph.clique_tree import CliqueTree, log_states, rooted, spanning_edges
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.graph.triangulation import maximal_cliques

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGEST_MERGED = 4096
"""Joint states up to which nodes that only pass messages on are merged into a neighbour."""
MAX_NEIGHBOURS = 3
"""Two children and a parent; three children at the root. An operator is a tensor with one mode per neighbour."""


@dataclass(frozen=True)
class JunctionTree(CliqueTree):
    """A rooted junction tree whose leaves hold the observables.

    Args:
        cliques: variables of each node; node 0 is the root, parents come before children.
        parent: each node's parent, -1 for the root.
        graph: the graph the tree was made from.
        leaf_observables: for each node the observables it is associated with; empty for inner nodes.
        pruned: cliques cut off because no observable hangs below them, as (clique, node or pruned clique it hung on);
            the second number counts on from ``len(cliques)`` for pruned cliques.
    """

    graph: LatentGraph
    leaf_observables: tuple[tuple[str, ...], ...]
    pruned: tuple[tuple[frozenset[str], int], ...] = ()

    @cached_property
    def leaf_of(self) -> dict[str, int]:
        """The leaf each observable belongs to."""
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

    def outside(self, node: int) -> frozenset[str]:
        """Observables not below separator ``node``, OV[Out(S)]."""
        return self.inside[0] - self.inside[node]

    def distances(self, node: int, limit: int) -> list[tuple[int, str]]:
        """(distance, observable) for the observables outside separator ``node``, nearest first, at least ``limit``.

        The distance counts tree edges from the node above the separator to the observable's leaf. The walk stops at
        the end of the ring in which the limit is reached, so that long chains cost no more than short ones.
        """
        ring, seen, found, steps = [self.parent[node]], {node, self.parent[node]}, list[tuple[int, str]](), 0
        while ring and len(found) < limit:
            for n in ring:
                found.extend((steps, v) for v in self.leaf_observables[n])
            nearby = [m for n in ring for m in (*self.children[n], self.parent[n]) if m >= 0]
            ring = [m for m in dict.fromkeys(nearby) if m not in seen]
            seen.update(ring)
            steps += 1
        return found

    def full_tree(self) -> CliqueTree:
        """The tree with its pruned cliques put back after the others: a clique tree of the whole graph."""
        return CliqueTree(
            self.cliques + tuple(c for c, _ in self.pruned), self.parent + tuple(p for _, p in self.pruned)
        )

    def separator_name(self, node: int) -> str:
        """A name for messages: the separator's variables and what lies below it."""
        below = sorted(self.inside[node])
        shown = ", ".join(below[:4]) + (", …" if len(below) > 4 else "")
        return f"{braces(self.separators[node])} above {{{shown}}}"

    def validate(self) -> None:
        """Raise :class:`StructureError` unless every property that learning relies on holds."""
        if len(self.cliques) != len(self.parent) or len(self.cliques) != len(self.leaf_observables):
            raise StructureError("cliques, parent and leaf_observables must have one entry per node.")
        if self.parent[0] != -1 or any(not 0 <= p < i for i, p in enumerate(self.parent) if i > 0):
            raise StructureError("The tree is not connected, or not numbered with parents before children.")
        if any(not 0 <= p < len(self.cliques) + i for i, (_, p) in enumerate(self.pruned)):
            raise StructureError("Each pruned clique must hang on a node or on a pruned clique before it.")
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

    def draw(self, core_groups: Mapping[int, Sequence[str]] | None = None, ax: Axes | None = None) -> Axes:
        """Draw cliques, separators and root with matplotlib; core groups too where given (``model.core_groups``)."""
        from torchpbp.graph.drawing import draw_tree

        return draw_tree(self, core_groups or {}, ax)

    def __str__(self) -> str:
        lines = [f"JunctionTree: {len(self.cliques)} cliques, {len(self.leaves)} leaves, depth {max(self.depth)}"]

        def walk(start: int) -> None:
            stack = [(start, "", "")]
            while stack:
                node, head, indent = stack.pop()
                held = f"  <- {', '.join(self.leaf_observables[node])}" if self.leaf_observables[node] else ""
                over = "root " if node == 0 else f"[{', '.join(sorted(self.separators[node]))}] "
                lines.append(f"{head}{over}{braces(self.cliques[node])}{held}")
                below = self.children[node]
                for i, child in reversed(list(enumerate(below))):
                    last = i == len(below) - 1
                    stack.append((child, indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  ")))

        walk(0)
        if self.pruned:
            lines.append("pruned: " + ", ".join(braces(c) for c, _ in self.pruned))
        return "\n".join(lines)


def braces(names: Iterable[str]) -> str:
    return "{" + ", ".join(sorted(names)) + "}"


@dataclass
class _Draft:
    """A tree under construction: cliques, the leaf group of each, neighbours, and how often a node was made by a split."""

    cliques: list[frozenset[str]]
    groups: list[tuple[str, ...]]
    near: list[set[int]]
    splits: list[int]

    def add(self, clique: frozenset[str], group: tuple[str, ...] = (), splits: int = 0) -> int:
        self.cliques.append(clique)
        self.groups.append(group)
        self.near.append(set())
        self.splits.append(splits)
        return len(self.cliques) - 1

    def join(self, a: int, b: int) -> None:
        self.near[a].add(b)
        self.near[b].add(a)

    def part(self, a: int, b: int) -> None:
        self.near[a].discard(b)
        self.near[b].discard(a)

    def edges(self, alive: set[int]) -> list[tuple[int, int]]:
        return [(a, b) for a in sorted(alive) for b in self.near[a] if a < b and b in alive]


def build_junction_tree(graph: LatentGraph, root: Iterable[str] | None = None) -> JunctionTree:
    """Turn a latent graph into a latent junction tree (see the module's text for the five steps).

    Args:
        graph: the model's structure.
        root: variables that the root clique must contain; by default the root is chosen by cost.
    """
    if isinstance(root, str):
        raise StructureError(f"root: expected a list of names, got the string '{root}'. Write ['{root}'].")
    weights = log_states(graph)
    draft = _skeleton_with_leaves(graph, weights)
    alive, pruned = _prune(draft)
    alive |= _bound_degree(draft, alive, weights)
    pruned = _contract(draft, alive, pruned, weights)
    start = _choose_root(draft, alive, weights, None if root is None else frozenset(root))
    numbering = {old: new for new, old in enumerate(sorted(alive))}
    back = sorted(alive)
    tree, order = rooted(
        [draft.cliques[i] for i in back],
        [(numbering[a], numbering[b]) for a, b in draft.edges(alive)],
        numbering[start],
    )
    final = {back[old]: new for new, old in enumerate(order)}
    cut: list[tuple[frozenset[str], int]] = []
    for clique, hung_on in reversed(pruned):  # the last one pruned hangs on a node that stayed
        final[clique] = len(tree.cliques) + len(cut)
        cut.append((draft.cliques[clique], final[hung_on]))
    result = JunctionTree(
        cliques=tree.cliques,
        parent=tree.parent,
        graph=graph,
        leaf_observables=tuple(draft.groups[back[old]] for old in order),
        pruned=tuple(cut),
    )
    result.validate()
    return result


def _skeleton_with_leaves(graph: LatentGraph, weights: Mapping[str, float]) -> _Draft:
    """Steps 1 and 2: a skeleton over the variables that join cliques, and leaves that hold the observables."""
    cliques = maximal_cliques(graph.moral_graph(), weights)
    membership: dict[str, int] = {}
    for clique in cliques:
        for v in clique:
            membership[v] = membership.get(v, 0) + 1
    place = {v: i for i, v in enumerate(graph.observed) if membership[v] == 1}
    exclusive = [tuple(sorted((v for v in c if v in place), key=place.__getitem__)) for c in cliques]
    stumps = dict.fromkeys(c - set(e) for c, e in zip(cliques, exclusive, strict=True))
    # A stump is kept if no other clique of the skeleton contains it; only cliques that share a variable can.
    holders: dict[str, list[frozenset[str]]] = {}
    for s in stumps:
        for v in s:
            holders.setdefault(v, []).append(s)
    skeleton = [s for s in stumps if s and not any(s < t for t in holders[min(s)])] or [frozenset[str]()]

    draft = _Draft([], [], [], [])
    for clique in skeleton:
        draft.add(clique)
    for a, b in spanning_edges(skeleton, weights):
        draft.join(a, b)
    hosts: dict[str, list[int]] = {}
    for i, clique in enumerate(skeleton):
        for v in clique:
            hosts.setdefault(v, []).append(i)

    chosen: dict[frozenset[str], int] = {}  # leaves with equal separators hang together: a split can then join them

    def host(separator: frozenset[str]) -> int:
        if separator not in chosen:
            near = hosts[min(separator)] if separator else range(len(skeleton))
            fitting = [i for i in near if separator <= skeleton[i]]
            chosen[separator] = min(
                fitting, key=lambda i: (len(draft.near[i]), sum(weights[v] for v in skeleton[i]), i)
            )
        return chosen[separator]

    for clique, group in zip(cliques, exclusive, strict=True):
        if group:
            above = host(clique - set(group))
            draft.join(draft.add(clique, group), above)
    for v in graph.observed:
        if membership[v] > 1:
            above = host(frozenset((v,)))
            draft.join(draft.add(frozenset((v,)), (v,)), above)
    return draft


def _prune(draft: _Draft) -> tuple[set[int], list[tuple[int, int]]]:
    """Step 3: drop ends of the skeleton that hold no observable. Returns survivors and (dropped, neighbour) pairs."""
    alive = set(range(len(draft.cliques)))
    pruned = []
    ends = [i for i in alive if not draft.groups[i] and len(draft.near[i]) <= 1]
    while ends:
        i = ends.pop()
        if i not in alive or not draft.near[i]:
            continue
        (neighbour,) = draft.near[i]
        if draft.groups[neighbour]:
            continue  # the last inner node: a leaf needs something to hang on
        draft.part(i, neighbour)
        alive.discard(i)
        pruned.append((i, neighbour))
        if not draft.groups[neighbour] and len(draft.near[neighbour]) <= 1:
            ends.append(neighbour)
    return alive, pruned


def _bound_degree(draft: _Draft, alive: set[int], weights: Mapping[str, float]) -> set[int]:
    """Step 4: while a node has too many neighbours, move two of them under a copy of what they need of it.

    The copy is the union of the two separators and so is its own separator: dropping a variable "nobody else needs"
    would be wrong, because the node's own factor still ties it to the rest.
    """
    added: set[int] = set()
    for node in sorted(alive):
        clique = draft.cliques[node]
        while len(draft.near[node]) > MAX_NEIGHBOURS:
            shared = {n: clique & draft.cliques[n] for n in draft.near[node]}
            # Of neighbours with equal separators two stand for all: a star with 1,000 leaves needs no 10^6 pairs.
            # Those with fewest splits go first, so that a star becomes a balanced tree.
            alike: dict[frozenset[str], list[int]] = {}
            for n in sorted(shared, key=lambda n: (draft.splits[n], n)):
                alike.setdefault(shared[n], []).append(n)
            candidates = [n for group in alike.values() for n in group[:2]]
            i, j = min(
                combinations(candidates, 2),
                key=lambda p: (
                    round(sum(weights[v] for v in shared[p[0]] | shared[p[1]]), 9),
                    draft.splits[p[0]] + draft.splits[p[1]],
                    p,
                ),
            )
            copy = draft.add(shared[i] | shared[j], splits=1 + max(draft.splits[i], draft.splits[j]))
            added.add(copy)
            for n in (i, j):
                draft.part(n, node)
                draft.join(n, copy)
            draft.join(copy, node)
    return added


def _contract(
    draft: _Draft, alive: set[int], pruned: list[tuple[int, int]], weights: Mapping[str, float]
) -> list[tuple[int, int]]:
    """Step 4, second half: merge inner nodes with two neighbours into an inner neighbour, while cliques stay small.

    An operator's size is set by its separators, not by its clique, so a merger only saves an operator. The clique's
    states matter to exact inference on this tree, which finds generic ranks, hence the limit.

    Returns:
        The pruned cliques, those that hung on a merged node moved to where it went.
    """
    limit = max([math.log(LARGEST_MERGED), *(sum(weights[v] for v in draft.cliques[n]) for n in alive)])
    moved: dict[int, int] = {}
    queue = [n for n in sorted(alive) if not draft.groups[n]]
    while queue:
        node = queue.pop()
        if node not in alive or len(draft.near[node]) != 2:
            continue
        options = [n for n in sorted(draft.near[node]) if not draft.groups[n]]
        sizes = {n: sum(weights[v] for v in draft.cliques[node] | draft.cliques[n]) for n in options}
        fitting = [n for n in options if sizes[n] <= limit]
        if not fitting:
            continue
        target = min(fitting, key=lambda n: (round(sizes[n], 9), n))
        (other,) = draft.near[node] - {target}
        draft.part(node, target)
        draft.part(node, other)
        draft.join(other, target)
        draft.cliques[target] = draft.cliques[target] | draft.cliques[node]
        alive.discard(node)
        moved[node] = target

    def final(node: int) -> int:
        while node in moved:
            node = moved[node]
        return node

    return [(clique, final(hung_on)) for clique, hung_on in pruned]


def _choose_root(draft: _Draft, alive: set[int], weights: Mapping[str, float], wanted: frozenset[str] | None) -> int:
    """Step 5: the inner node for which learning touches the fewest numbers; among equals the most central one.

    A node costs (product of its children's core sizes) x (size of the instrument of the separator above it). A core is
    no larger than the separator's states or the states of all observables below; an instrument likewise with those
    outside. Moving the root across one edge changes the cost of that edge's two ends only, so all totals take one walk.
    """
    inner = [n for n in sorted(alive) if not draft.groups[n]]
    order, above = [inner[0]], {inner[0]: -1}
    for n in order:
        for m in sorted(draft.near[n]):
            if m != above[n]:
                above[m] = n
                order.append(m)
    below = {n: sum(weights[v] for v in draft.groups[n]) for n in order}
    for n in reversed(order[1:]):
        below[above[n]] += below[n]
    everything = below[order[0]]

    def core(n: int, towards: int) -> float:
        """Log size of a core group for what lies on n's side of the edge from n to ``towards``."""
        mine = below[n] if above[n] == towards else everything - below[towards]
        return min(sum(weights[v] for v in draft.cliques[n] & draft.cliques[towards]), mine)

    def cost(n: int, parent: int) -> float:
        total = sum(core(m, n) for m in draft.near[n] if m != parent) + (core(parent, n) if parent >= 0 else 0.0)
        return math.exp(min(total, 500.0))

    totals = {order[0]: sum(cost(n, above[n]) for n in order)}
    for n in order[1:]:
        p = above[n]
        totals[n] = totals[p] - cost(p, -1) - cost(n, p) + cost(p, n) + cost(n, -1)
    centrality = _eccentricities(draft, order)
    choices = [n for n in inner if wanted is None or wanted <= draft.cliques[n]]
    if not choices:
        raise StructureError(
            f"No inner clique contains the wanted root {braces(wanted or ())}; inner cliques are: "
            + ", ".join(braces(draft.cliques[n]) for n in inner[:20])
        )
    return min(choices, key=lambda n: (round(math.log(max(totals[n], 1.0)), 2), centrality[n], n))


def _eccentricities(draft: _Draft, order: Sequence[int]) -> dict[int, int]:
    """Greatest distance of each node to any other, from the two ends of a longest path."""

    def walk(start: int) -> dict[int, int]:
        steps = {start: 0}
        queue = [start]
        for n in queue:
            for m in draft.near[n]:
                if m not in steps:
                    steps[m] = steps[n] + 1
                    queue.append(m)
        return steps

    first = walk(order[0])
    one = walk(max(first, key=lambda n: (first[n], -n)))
    other = walk(max(one, key=lambda n: (one[n], -n)))
    return {n: max(one[n], other[n]) for n in order}
