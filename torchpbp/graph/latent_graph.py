"""The structure of a model: variables with their numbers of states, latent variables, and edges."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import networkx as nx

from torchpbp.errors import StructureError
from torchpbp.graph.bif import read_bif
from torchpbp.graph.domains import (
    Continuous,
    Domain,
    checked_edges,
    checked_labels,
    checked_latent,
    checked_variables,
    read_domain,
    require_single_values,
    shape_of,
    written_domain,
)
from torchpbp.graph.frame_columns import read_frame
from torchpbp.graph.pgmpy_models import read_pgmpy
from torchpbp.lazy import pandas as pd
from torchpbp.settings import flag

__all__ = ["Continuous", "Domain", "LatentGraph", "require_graph"]


class LatentGraph:
    """A graphical model's structure, directed or undirected, with observed and latent variables.

    Args:
        edges: pairs of names; in a directed graph each is (parent, child).
        variables: name -> number of states, :class:`Continuous`, or None for a latent variable with an unknown number of
            states; or a sequence of pairs.
        latent: names of the latent variables.
        directed: whether the edges have a direction.
        labels: name -> labels of its states in data and evidence: strings, or numbers other than 0, 1, 2, … Models learn
            labels from category and string columns; :meth:`from_frame` also reads labels of whole numbers.

    Example:
        >>> g = LatentGraph([("h", "x"), ("h", "y")], {"h": 2, "x": 4, "y": 3}, latent=["h"])
        >>> g.observed
        ('x', 'y')
        >>> g.parents("x")
        ('h',)
    """

    def __init__(
        self,
        edges: Iterable[tuple[str, str]],
        variables: Mapping[str, Domain] | Iterable[tuple[str, Domain]],
        latent: Iterable[str] = (),
        directed: bool = True,
        labels: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        self.variables: dict[str, Domain] = checked_variables(variables)
        self.latent: tuple[str, ...] = checked_latent(latent, self.variables)
        self.directed: bool = flag().check("directed", directed)
        self.edges: tuple[tuple[str, str], ...] = checked_edges(edges, self.variables, self.directed)
        self.labels: dict[str, tuple[Any, ...]] = checked_labels(labels or {}, self.variables)
        self._latent_set = frozenset(self.latent)
        self.observed: tuple[str, ...] = tuple(v for v in self.variables if v not in self._latent_set)
        if not self.observed:
            raise StructureError(
                "The graph has no observable: every variable is listed as latent. Observe at least one."
            )
        self.observed_domains: dict[str, Domain] = {v: self.variables[v] for v in self.observed}
        for name, domain in self.observed_domains.items():
            if domain is None:
                raise StructureError(
                    f"Variable '{name}': an observed variable needs its number of states or Continuous(), got None."
                )
        for name in self.latent:
            if isinstance(self.variables[name], Continuous):
                raise StructureError(
                    f"Latent variable '{name}': expected a number of states or None, got Continuous(). Messages about a "
                    "latent live in finitely many dimensions; give the number you want, or None to have it chosen."
                )
        parents: dict[str, list[str]] = {v: [] for v in self.variables}
        children: dict[str, list[str]] = {v: [] for v in self.variables}
        for a, b in self.edges:
            parents[b].append(a)
            children[a].append(b)
        self._parents = {v: tuple(near) for v, near in parents.items()}
        self._children = {v: tuple(near) for v, near in children.items()}
        if self.directed:
            self._require_acyclic()

    # -- properties ----------------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """All variables, in the order of ``variables``."""
        return tuple(self.variables)

    def is_latent(self, name: str) -> bool:
        """Whether ``name`` is a latent variable."""
        return name in self._latent_set

    def parents(self, name: str) -> tuple[str, ...]:
        """Parents of ``name`` in the order of the edges; undirected graphs raise :class:`StructureError`."""
        self._require_known(name)
        if not self.directed:
            raise StructureError("An undirected graph has no parents; use neighbors().")
        return self._parents[name]

    def children(self, name: str) -> tuple[str, ...]:
        """Children of ``name`` in the order of the edges; undirected graphs raise :class:`StructureError`."""
        self._require_known(name)
        if not self.directed:
            raise StructureError("An undirected graph has no children; use neighbors().")
        return self._children[name]

    def neighbors(self, name: str) -> tuple[str, ...]:
        """Variables joined to ``name`` by an edge in either direction."""
        self._require_known(name)
        return self._parents[name] + self._children[name]

    def num_states(self, name: str) -> int:
        """Number of states of a discrete variable."""
        self._require_known(name)
        states = self.variables[name]
        if isinstance(states, int):
            return states
        kind = "continuous" if isinstance(states, Continuous) else "of unknown cardinality"
        raise StructureError(f"Variable '{name}' is {kind} and has no number of states.")

    def topological_order(self) -> tuple[str, ...]:
        """Variables with parents before children; ties in the order of ``variables``."""
        position = {v: i for i, v in enumerate(self.variables)}
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(self.variables)
        graph.add_edges_from(self.edges)
        return tuple(nx.lexicographical_topological_sort(graph, key=position.__getitem__))

    def moral_graph(self) -> nx.Graph[str]:
        """The undirected graph in which the parents of a common child are connected."""
        moral: nx.Graph[str] = nx.Graph()
        moral.add_nodes_from(self.variables)
        moral.add_edges_from(self.edges)
        if self.directed:
            for v in self.variables:
                parents = self._parents[v]
                moral.add_edges_from((a, b) for i, a in enumerate(parents) for b in parents[i + 1 :])
        return moral

    # -- conversion ----------------------------------------------------------------------------------------------

    def with_states(self, states: Mapping[str, Domain]) -> LatentGraph:
        """The same graph with other numbers of states for some variables."""
        for name in states:
            self._require_known(name)
        if not states:
            return self
        labels = {v: x for v, x in self.labels.items() if v not in states}
        return LatentGraph(self.edges, {**self.variables, **states}, self.latent, self.directed, labels)

    def conditional(self, name: str) -> LatentGraph:
        """The structure of P(all others | ``name``), for an observed variable.

        Conditioning removes a node from the moral graph. For a node without parents, the directed graph without it is equivalent;
        a node with parents makes them dependent, which only an undirected graph can express.
        """
        variables = {v: d for v, d in self.variables.items() if v != name}
        directed = self.directed and not self.parents(name)
        edges = self.edges if directed else tuple(self.moral_graph().edges())
        labels = {v: x for v, x in self.labels.items() if v != name}
        return LatentGraph([e for e in edges if name not in e], variables, self.latent, directed, labels)

    def require_condition(self, name: str) -> None:
        """Raise a StructureError unless a variable can be conditioned on: observed, discrete, and not the only observable."""
        discrete = [v for v in self.observed if not isinstance(self.variables[v], Continuous)]
        discrete_names = f"Discrete observables: {', '.join(discrete) or 'none'}."
        if name not in self.variables:
            raise StructureError(f"condition={name!r}: the graph has no such variable. {discrete_names}")
        if self.is_latent(name):
            raise StructureError(
                f"condition={name!r}: it is latent, and its classes cannot be told apart in the data. {discrete_names}"
            )
        if name not in discrete:
            raise StructureError(f"condition={name!r}: it is continuous and has no classes. {discrete_names}")
        if len(self.observed) == 1:
            raise StructureError(
                f"condition={name!r}: it is the only observable, so that nothing is left to learn about."
            )

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        edges: Iterable[tuple[str, str]] | None = None,
        latent: Mapping[str, int | None] | Iterable[str] = (),
        *,
        variables: Mapping[str, Domain] | None = None,
        directed: bool = True,
        max_states: int = 20,
    ) -> LatentGraph:
        """A graph over the columns of a table, with numbers of states and labels read from them.

        The states of category columns are their categories, those of strings and whole numbers the distinct values; booleans
        have two states. Floats are :class:`Continuous`, unless they are few whole numbers: pandas converts integers with missing
        values to floats. NaN and None are missing values, and so is -1 among states 0, 1, 2, …

        Args:
            frame: training data, possibly with missing values.
            edges: pairs of names of columns and latents; columns without an edge are excluded from the graph. None: a latent
                class model, in which every column is a child of the only latent.
            latent: name -> number of states, None if unknown; or names only.
            variables: declared numbers of states or ranges of columns, which replace inferred ones.
            directed: whether the edges have a direction.
            max_states: largest number of distinct strings or whole numbers that are read as states.

        Raises:
            DataError: a column without values, with a single value, with too many, or with values that are not states.
            StructureError: edges of unknown variables, latents that are columns, several latents without edges.

        Example:
            >>> import pandas
            >>> answers = pandas.DataFrame({"trust": ["no", "yes", None], "votes": [True, False, True], "age": [31.5, 40, 52]})
            >>> graph = LatentGraph.from_frame(answers, latent={"class": 3})
            >>> graph.variables["trust"], graph.labels, graph.parents("age")
            (2, {'trust': ('no', 'yes')}, ('class',))
        """
        pairs, domains, hidden, labels = read_frame(frame, edges, latent, variables, max_states)
        return cls(pairs, domains, hidden, directed, labels)

    @classmethod
    def from_networkx(
        cls,
        graph: nx.Graph[Any],
        variables: Mapping[str, Domain] | None = None,
        latent: Iterable[str] | None = None,
    ) -> LatentGraph:
        """From a networkx graph, directed or not.

        Args:
            graph: its nodes are the names of the variables.
            variables: name -> number of states, :class:`Continuous`, or None for a latent of unknown cardinality; the node
                attribute ``states`` by default.
            latent: latent variables; nodes whose attribute ``latent`` is true by default.

        Raises:
            StructureError: not a networkx graph, parallel edges, names that are not strings, nodes without a number of states.
        """
        if not isinstance(graph, nx.Graph):
            raise StructureError(f"Expected a networkx Graph or DiGraph, got {type(graph).__name__}.")
        nodes = dict(graph.nodes(data=True))
        if variables is None:
            missing = [v for v, attributes in nodes.items() if "states" not in attributes]
            if missing:
                raise StructureError(
                    f"Nodes {missing} carry no 'states' attribute; set it on each node or pass variables=."
                )
            variables = {v: attributes["states"] for v, attributes in nodes.items()}
        if latent is None:
            latent = [v for v, attributes in nodes.items() if attributes.get("latent", False)]
        unlisted = [v for v in nodes if v not in variables]
        if unlisted:
            raise StructureError(f"Nodes {unlisted} of the networkx graph are missing from variables=.")
        return cls(list(graph.edges()), variables, latent, directed=graph.is_directed())

    @classmethod
    def from_bif(cls, path: str | os.PathLike[str], latent: Iterable[str] = ()) -> LatentGraph:
        """Structure and numbers of states of a network in the Bayesian Interchange Format; its tables are ignored.

        Args:
            path: path of the file, plain or compressed by gzip.
            latent: names of the latent variables.
        """
        bif = read_bif(path)
        return cls(bif.edges, {v: len(labels) for v, labels in bif.states.items()}, latent)

    @classmethod
    def from_pgmpy(
        cls, model: Any, variables: Mapping[str, Domain] | None = None, latent: Iterable[str] | None = None
    ) -> LatentGraph:
        """Structure of a DiscreteBayesianNetwork or DiscreteMarkovNetwork of pgmpy; its tables are ignored.

        Args:
            model: pgmpy model. Numbers of states come from its CPDs or factors, if any.
            variables: numbers of states that complete or replace those of the tables. Latent variables without either have an
                unknown number.
            latent: latent variables; ``model.latents`` by default.
        """
        read = read_pgmpy(model)
        hidden = read.latent if latent is None else tuple(latent)
        domains: dict[str, Domain] = {**{v: len(labels) for v, labels in read.states.items()}, **(variables or {})}
        missing = [v for v in read.names if v not in domains and v not in hidden]
        if missing:
            raise StructureError(
                f"The numbers of states of {missing} are missing: the pgmpy model has no tables with them. Add CPDs or factors, or pass variables=."
            )
        unknown = [v for v in domains if v not in read.names]
        if unknown:
            raise StructureError(f"variables: {unknown} are not in the pgmpy model. It has: {', '.join(read.names)}.")
        return cls(read.edges, {v: domains.get(v) for v in read.names}, hidden, read.directed)

    def to_networkx(self) -> nx.DiGraph[str] | nx.Graph[str]:
        """Convert to a networkx graph whose nodes have attributes ``states`` and ``latent``."""
        graph: nx.Graph[str] = nx.DiGraph() if self.directed else nx.Graph()
        for v, states in self.variables.items():
            graph.add_node(v, states=states, latent=v in self._latent_set)
        graph.add_edges_from(self.edges)
        return graph

    def to_dict(self) -> dict[str, Any]:
        """The graph as plain lists, strings and numbers, for saving."""
        return {
            "edges": [list(e) for e in self.edges],
            "variables": [[v, written_domain(d)] for v, d in self.variables.items()],
            "latent": list(self.latent),
            "directed": self.directed,
            **({"labels": {v: list(x) for v, x in self.labels.items()}} if self.labels else {}),
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> LatentGraph:
        """Inverse of :meth:`to_dict`."""
        variables = [(v, read_domain(d)) for v, d in saved["variables"]]
        edges = [(a, b) for a, b in saved["edges"]]
        return cls(edges, variables, saved["latent"], saved["directed"], saved.get("labels"))

    def __repr__(self) -> str:
        kind = "directed" if self.directed else "undirected"
        shapes = Counter(shape for v in self.observed if (shape := shape_of(self.variables[v])))
        shaped = ", ".join(f"{n} of shape {shape}" for shape, n in shapes.items())
        observed = f"{len(self.observed)} observed" + (f" ({shaped})" if shaped else "")
        return f"LatentGraph({kind}, {observed}, {len(self.latent)} latent, {len(self.edges)} edges)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LatentGraph) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.names, self.edges, self.latent, self.directed))

    # -- checks --------------------------------------------------------------------------------------------------

    def _require_known(self, name: str) -> None:
        if name not in self.variables:
            raise StructureError(f"Unknown variable '{name}'. The graph has: {', '.join(map(str, self.variables))}.")

    def _require_acyclic(self) -> None:
        graph = self.to_networkx()
        if not nx.is_directed_acyclic_graph(graph):
            cycle = [a for a, _ in nx.find_cycle(graph)]
            raise StructureError(
                f"The directed graph has a cycle: {' -> '.join([*cycle, cycle[0]])}. Remove one of its edges, or pass "
                "directed=False for an undirected model."
            )


def require_graph(graph: object, who: str) -> None:
    """Raise unless the argument is a LatentGraph.

    Args:
        graph: the argument.
        who: beginning of the message.
    """
    if not isinstance(graph, LatentGraph):
        way = "LatentGraph.from_networkx(…)" if isinstance(graph, nx.Graph) else "LatentGraph(edges, states, latent)"
        raise StructureError(f"{who}: expected a LatentGraph, got {type(graph).__name__}. Make one: {way}.")


def require_states(graph: LatentGraph, who: str, remedy: str = "") -> None:
    """Raise unless each variable of the graph has a number of states.

    Args:
        graph: the argument.
        who: beginning of the message.
        remedy: end of the message.
    """
    require_single_values(graph.variables, who)
    continuous = [v for v in graph.names if isinstance(graph.variables[v], Continuous)]
    unknown = [v for v in graph.names if graph.variables[v] is None]
    if continuous or unknown:
        raise StructureError(
            f"{who}: expected a number of states for each variable, got continuous {continuous} and unknown {unknown}.{remedy}"
        )
