"""The upward and the downward pass over a tree of hidden variables, with precomputed shapes and orders of products.

Arrays are (runs, states…, rows): operations are vectorised over rows. With few rows the time is proportional to the number of
operations, so passes contain no planning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchpbp.exact.contraction import rescaled
from torchpbp.graph.domains import Scope
from torchpbp.models.likelihood.hidden_tree import RESCALE_AFTER, HiddenTree
from torchpbp.models.likelihood.lookup import Lookup, Tally

TINY = 1e-300
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Family:
    """A table with the observed values of a group of rows.

    Args:
        order: the table's dimensions, hidden variables first.
        hidden: hidden variables, sorted.
        shape: states of the hidden, then of the observed variables; if ``incomplete``, with an extra last state for missing.
        codes: (rows,) joint state of the observed variables; None if all are hidden.
        incomplete: whether the variable, which has no children, is missing in some rows.
    """

    order: tuple[int, ...]
    hidden: Scope
    shape: tuple[int, ...]
    codes: Tensor | None
    incomplete: bool

    @property
    def cells(self) -> int:
        """Joint states of the hidden variables."""
        return math.prod(self.shape[: len(self.hidden)])

    @property
    def size(self) -> int:
        """Joint states of the observed variables."""
        return math.prod(self.shape[len(self.hidden) :])


@dataclass
class Levels:
    """The level of each node of the tree: all rows, or the distinct patterns of values below the node.

    Args:
        sizes: rows or patterns of each node.
        families: lookup of each family at its node; None if all its variables are hidden.
        children: lookup of each node in its parent's level; None if both levels are the same.
        evidence: variable of the tree observed in some rows -> (states, rows) indicators.
    """

    sizes: list[int]
    families: list[Lookup | None]
    children: list[Lookup | None]
    evidence: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class _Observed:
    """Tables with the same hidden variables, and with observed variables, at the same node.

    Args:
        shape: of their product, within the node's clique.
        tables: number and lookup of each.
    """

    shape: Shape
    tables: list[tuple[int, Lookup]] = field(default_factory=list)


@dataclass
class _Node:
    """The operations at a node.

    Args:
        shape: (-1, *clique, rows) of its product.
        constants: factors that do not depend on the tables.
        hidden: number and shape within the clique of each table without observed variables.
        observed: other tables.
        pairs: order of the products of all factors; a product replaces its first factor.
        expanded: whether the product has to be expanded to the clique's shape.
        summed: dimensions that are not in the separator.
        rescaled: whether the message is rescaled.
        lookup: of the node in its parent's level.
        message: shape of the message within the parent's clique, at the parent's level.
        separator: (-1, *separator, rows) at the node's level.
        ratio: the same, within the node's clique.
        above: index of the separator's marginal among those of the parent.
        marginals: (index of the source, summed dimensions) of each marginal of the belief; the belief has index 0.
    """

    shape: Shape
    constants: list[Tensor] = field(default_factory=list)
    hidden: list[tuple[int, Shape]] = field(default_factory=list)
    observed: list[_Observed] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    expanded: bool = False
    summed: tuple[int, ...] = ()
    rescaled: bool = False
    lookup: Lookup | None = None
    message: Shape = ()
    separator: Shape = ()
    ratio: Shape = ()
    above: int = 0
    marginals: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)


@dataclass(frozen=True)
class _Counted:
    """Tables with the same hidden variables at the same node: number of the node, index of the marginal, tally of the tables."""

    node: int
    place: int
    tally: Tally


class Passes:
    """Both passes for the rows of some levels.

    Args:
        tree: of the hidden variables.
        families: all tables, in the order of the graph's names.
        levels: of the rows.
        device: of the rows.

    Attributes:
        columns: number of columns of :meth:`counts`.
        places: number of a table -> (cells, size) its columns.
    """

    def __init__(self, tree: HiddenTree, families: Sequence[Family], levels: Levels, device: torch.device) -> None:
        self.parent, self.rows = tree.parent, levels.sizes[0]
        self.nodes = [_Node((-1, *tree.shape(node), size)) for node, size in enumerate(levels.sizes)]
        self._enter(tree, families, levels, device)
        self._connect(tree, levels)
        scopes = [self._marginals(tree, families, node) for node in range(len(tree))]
        self.counted: list[_Counted] = []
        self.places: dict[int, Tensor] = {}
        self.columns = 0
        alike: dict[tuple[int, Scope], list[int]] = {}
        for number, (family, node) in enumerate(zip(families, tree.home, strict=True)):
            alike.setdefault((node, family.hidden), []).append(number)
        for (node, hidden), numbers in alike.items():
            tally = Tally([levels.families[i] for i in numbers], levels.sizes[node])
            self.counted.append(_Counted(node, scopes[node].index(hidden), tally))
            cells = families[numbers[0]].cells
            block = torch.arange(cells * tally.columns, device=device).reshape(cells, -1) + self.columns
            self.places |= dict(zip(numbers, torch.split(block, tally.sizes, dim=1), strict=True))
            self.columns += block.numel()

    # -- passes --------------------------------------------------------------------------------------------------

    def upward(self, tables: Sequence[Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """One pass to the root.

        Args:
            tables: (runs, cells · size) of each family.

        Returns:
            (runs, rows) log-probability of each row, and for each node the product (runs, *clique, rows) of its factors and
            incoming messages, and the product's sum (runs, *separator, rows).
        """
        count = len(self.nodes)
        products, sums = list(tables[:1]) * count, list(tables[:1]) * count
        entering: list[list[Tensor]] = [[] for _ in range(count)]
        scales: list[Tensor | None] = [None] * count
        for number in range(count - 1, -1, -1):
            node = self.nodes[number]
            parts = [*node.constants]
            for i, shape in node.hidden:
                parts.append(tables[i].reshape(shape))
            for observed in node.observed:
                part, scales[number] = _gathered(tables, observed, scales[number])
                parts.append(part)
            parts += entering[number]
            for i, j in node.pairs:
                parts[i] = parts[i] * parts.pop(j)
            product = parts[0].expand(node.shape) if node.expanded else parts[0]
            total = product.sum(dim=node.summed) if node.summed else product
            products[number], sums[number] = product, total
            if number:
                scale, above = scales[number], self.parent[number]
                if node.rescaled:
                    total, scale = _rescaled(total, scale)
                if node.lookup is not None:
                    total = node.lookup.pick(total.reshape(-1, node.lookup.size))
                    scale = None if scale is None else node.lookup.pick(scale)
                entering[above].append(total.reshape(node.message))
                scales[above] = _sum(scales[above], scale)
        logs = sums[0].log()
        return logs if scales[0] is None else logs + scales[0], products, sums

    def downward(self, weights: Tensor, products: list[Tensor], sums: list[Tensor]) -> list[Tensor]:
        """One pass from the root.

        Args:
            weights: (rows,) of the root's rows.
            products, sums: of the upward pass.

        Returns:
            For each tally (runs · cells, rows or patterns of its node) the posterior of its hidden variables, weighted and
            summed over the rows of each pattern.
        """
        beliefs: list[list[Tensor]] = []
        for number, node in enumerate(self.nodes):
            if number:
                ratio = beliefs[self.parent[number]][node.above]
                if node.lookup is not None:
                    ratio = node.lookup.add(ratio.reshape(-1, node.lookup.rows)).reshape(node.separator)
                ratio = ratio / sums[number].clamp(min=TINY)
            else:
                ratio = weights / sums[0].clamp(min=TINY)
            marginals = [products[number] * ratio.reshape(node.ratio)]
            for source, dims in node.marginals:
                marginals.append(marginals[source].sum(dim=dims))
            beliefs.append(marginals)
        return [beliefs[c.node][c.place].reshape(-1, c.tally.rows) for c in self.counted]

    def counts(self, posteriors: Sequence[Tensor], runs: int) -> Tensor:
        """(runs, columns) sums of the posteriors by place."""
        parts = [c.tally.add(x).reshape(runs, -1) for c, x in zip(self.counted, posteriors, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def spread(self, posteriors: Sequence[Tensor]) -> Tensor:
        """(columns, rows) posteriors of one run by place, for levels without shared patterns."""
        result = posteriors[0].new_empty(self.columns, self.rows)
        start = 0
        for counted, posterior in zip(self.counted, posteriors, strict=True):
            size = posterior.shape[0] * counted.tally.columns
            counted.tally.spread(posterior, result[start : start + size])
            start += size
        return result

    # -- planning ------------------------------------------------------------------------------------------------

    def _enter(self, tree: HiddenTree, families: Sequence[Family], levels: Levels, device: torch.device) -> None:
        """Plan the tables and constants of each node."""
        for v, values in levels.evidence.items():
            home = tree.top[v]
            self.nodes[home].constants.append(values.reshape(_within(tree, home, (v,), levels.sizes[home])))
        together: dict[tuple[int, Scope], _Observed] = {}
        for i, (family, home, lookup) in enumerate(zip(families, tree.home, levels.families, strict=True)):
            if lookup is None:
                self.nodes[home].hidden.append((i, _within(tree, home, family.hidden, 1)))
                continue
            if (home, family.hidden) not in together:
                shape = _within(tree, home, family.hidden, levels.sizes[home])
                together[home, family.hidden] = _Observed(shape)
                self.nodes[home].observed.append(together[home, family.hidden])
            together[home, family.hidden].tables.append((i, lookup))
        for number, node in enumerate(self.nodes):
            if not (node.constants or node.hidden or node.observed or tree.children[number]):
                node.constants.append(torch.ones([1] * len(node.shape), dtype=torch.float64, device=device))

    def _connect(self, tree: HiddenTree, levels: Levels) -> None:
        """Plan the messages and the order of all products."""
        entering: list[list[Shape]] = [[] for _ in self.nodes]
        for number in range(len(tree) - 1, -1, -1):
            node, names = self.nodes[number], tree.separators[number]
            shapes = [tuple(x.shape) for x in node.constants]
            shapes += [shape for _, shape in node.hidden] + [x.shape for x in node.observed] + entering[number]
            node.pairs, product = _pairs([(1, *shape[1:]) for shape in shapes])
            node.expanded = product[1:] != node.shape[1:]
            node.summed = tuple(1 + i for i, v in enumerate(tree.cliques[number]) if v not in names)
            node.ratio = _within(tree, number, names, levels.sizes[number])
            node.separator = (-1, *[tree.states[v] for v in names], levels.sizes[number])
            if number:
                above = tree.parent[number]
                node.rescaled, node.lookup = tree.rescaled[number], levels.children[number]
                node.message = _within(tree, above, names, levels.sizes[above] if node.lookup else levels.sizes[number])
                entering[above].append(node.message)

    def _marginals(self, tree: HiddenTree, families: Sequence[Family], number: int) -> list[Scope]:
        """Plan a node's marginals, and return their scopes: separators with the children, largest first, then families."""
        scopes: list[Scope] = [tree.cliques[number]]
        children = sorted(tree.children[number], key=lambda child: -len(tree.separators[child]))
        wanted = [tree.separators[child] for child in children]
        wanted += [families[i].hidden for i in tree.families[number]]
        for scope in wanted:
            if scope not in scopes:
                source = min((s for s in scopes if set(s) >= set(scope)), key=len)
                dims = tuple(1 + i for i, v in enumerate(source) if v not in scope)
                self.nodes[number].marginals.append((scopes.index(source), dims))
                scopes.append(scope)
        for child in children:
            self.nodes[child].above = scopes.index(tree.separators[child])
        return scopes


def _within(tree: HiddenTree, node: int, scope: Scope, rows: int) -> Shape:
    """The shape of (runs, *scope, rows) with a dimension of size 1 for each other variable of a node's clique."""
    return (-1, *[tree.states[v] if v in scope else 1 for v in tree.cliques[node]], rows)


def _pairs(shapes: list[Shape]) -> tuple[list[tuple[int, int]], Shape]:
    """A greedy order of broadcast products, smallest results first, and the shape of the product; a product replaces its first
    factor, and the second is removed."""
    pool, pairs = list(shapes), []
    while len(pool) > 1:
        choices = [(i, j) for j in range(len(pool)) for i in range(j)]
        i, j = min(choices, key=lambda pair: math.prod(map(max, pool[pair[0]], pool[pair[1]])))
        pool[i] = tuple(map(max, pool[i], pool.pop(j)))
        pairs.append((i, j))
    return pairs, pool[0]


def _gathered(tables: Sequence[Tensor], observed: _Observed, scale: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The product of tables at the observed values of the rows, and the log of its extracted scale."""
    product: Tensor | None = None
    for count, (i, lookup) in enumerate(observed.tables, 1):
        values = lookup.pick(tables[i].reshape(-1, lookup.size))
        product = values if product is None else product * values
        if count % RESCALE_AFTER == 0:
            product, scale = _rescaled(product.reshape(observed.shape), scale)
            product = product.reshape(values.shape)
    assert product is not None  # at least one table
    return product.reshape(observed.shape), scale


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _rescaled(product: Tensor, logs: Tensor | None) -> tuple[Tensor, Tensor]:
    """(runs, …, rows) divided by the largest entries, and the (runs, rows) logs of all divisors."""
    product, size = rescaled(product, range(1, product.ndim - 1))
    size = size.reshape(-1, size.shape[-1]).log()
    return product, size if logs is None else logs + size
