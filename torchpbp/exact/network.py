"""Discrete networks with known parameters: the exact answers that learned models are measured against."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.arguments import check_positive, check_seed, seed_or_drawn, whole_number
from torchpbp.contract.frames import Frames, state_labels
from torchpbp.errors import QueryError, ShapeError, StructureError
from torchpbp.exact.calibration import PotentialTree, Scope
from torchpbp.exact.elimination import plain_states
from torchpbp.exact.pgmpy_networks import make_network, read_network
from torchpbp.exact.prior import Prior
from torchpbp.exact.queries import Method, Queries
from torchpbp.exact.tables import check_tables, checked_table, refuse_unknown
from torchpbp.graph.bif import BIF, read_bif, write_bif
from torchpbp.graph.latent_graph import LatentGraph, require_graph
from torchpbp.inputs.evidence import EvidenceLike, left_to_ask, query_names, read_evidence


class DiscreteNetwork(Frames):
    """A Bayesian network with its conditional probability tables, or an undirected model with its factors.

    Args:
        graph: a directed graph whose variables are all discrete.
        cpts: name -> table of shape (states of each parent in ``graph.parents(name)`` order…, states of name); the last
            dimension sums to 1.

    Attributes:
        labels: name -> labels of its states, for networks read from a file.

    Example:
        >>> g = LatentGraph([("h", "x")], {"h": 2, "x": 2}, latent=["h"])
        >>> net = DiscreteNetwork(g, {"h": [0.5, 0.5], "x": [[0.9, 0.1], [0.2, 0.8]]})
        >>> net.posterior("h", {"x": [0]}).round(decimals=3)
        tensor([[0.8180, 0.1820]], dtype=torch.float64)
    """

    def __init__(self, graph: LatentGraph, cpts: Mapping[str, Any]) -> None:
        require_graph(graph, "DiscreteNetwork")
        if not graph.directed:
            raise StructureError("An undirected graph has no CPTs; use DiscreteNetwork.from_factors(graph, factors).")
        check_tables(cpts, "cpts: expected a mapping of names to tables")
        refuse_unknown("CPT for", cpts, graph.variables)
        factors = []
        for name in graph.names:
            if name not in cpts:
                raise StructureError(f"No CPT for variable '{name}'.")
            scope = (*graph.parents(name), name)
            table = checked_table(f"CPT of '{name}'", cpts[name], scope, graph)
            error = float((table.detach().sum(dim=-1) - 1).abs().max())
            if error > 1e-6:
                raise StructureError(f"CPT of '{name}': rows must sum to 1 over its states; off by {error:.3g}.")
            factors.append((scope, table / table.sum(dim=-1, keepdim=True)))
        self._setup(graph, factors)

    @classmethod
    def from_factors(cls, graph: LatentGraph, factors: Mapping[Sequence[str] | str, Any]) -> DiscreteNetwork:
        """An undirected model P(x) ∝ ∏ factors.

        Args:
            graph: undirected graph.
            factors: names (a tuple, or one name) -> non-negative table over their states. The variables of a factor
                must be joined by edges.
        """
        require_graph(graph, "from_factors")
        check_tables(factors, "factors: expected a mapping of tuples of names to tables")
        if graph.directed:
            raise StructureError("from_factors expects an undirected graph; pass directed=False, or use CPTs.")
        moral = graph.moral_graph()
        checked = []
        for names, table in factors.items():
            scope = (names,) if isinstance(names, str) else tuple(names)
            refuse_unknown("Factor over", scope, graph.variables)
            for i, a in enumerate(scope):
                for b in scope[i + 1 :]:
                    if not moral.has_edge(a, b):
                        raise StructureError(f"Factor over {scope}: '{a}' and '{b}' are not joined by an edge.")
            checked.append((scope, checked_table(f"Factor over {scope}", table, scope, graph)))
        for v in graph.names:  # a variable without a factor is uniform
            checked.append(((v,), torch.ones(graph.num_states(v), dtype=torch.float64)))
        network = cls.__new__(cls)
        network._setup(graph, checked)
        if not bool(torch.isfinite(network._queries.log_partition)):
            raise StructureError("The factors rule out every joint state: their product sums to 0.")
        return network

    @classmethod
    def random(cls, graph: LatentGraph, seed: int = 0, concentration: float = 1.0) -> DiscreteNetwork:
        """Random parameters.

        Args:
            graph: directed (Dirichlet CPTs) or undirected (a gamma-distributed table on each edge and variable).
            seed: same seed, same network.
            concentration: of the Dirichlet or gamma distribution; small values give near-deterministic tables.
        """
        require_graph(graph, "DiscreteNetwork.random")
        seed = check_seed(seed)
        check_positive(concentration=concentration)
        rng = np.random.default_rng(seed)

        def table(scope: Sequence[str]) -> Tensor:
            shape = [graph.num_states(v) for v in scope]
            return torch.from_numpy(np.maximum(rng.gamma(concentration, size=shape), 1e-300))

        if not graph.directed:
            scopes: list[Scope] = [(v,) for v in graph.names] + list(graph.edges)
            return cls.from_factors(graph, {s: table(s) for s in scopes})
        cpts = {}
        for v in graph.names:
            draw = table((*graph.parents(v), v))
            cpts[v] = draw / draw.sum(dim=-1, keepdim=True)
        return cls(graph, cpts)

    @classmethod
    def from_bif(cls, path: str | os.PathLike[str], latent: Iterable[str] = ()) -> DiscreteNetwork:
        """A network in the Bayesian Interchange Format; evidence may then name states by their labels.

        Args:
            path: of the file, plain or compressed by gzip.
            latent: names of variables to count as hidden.
        """
        bif = read_bif(path)
        network = cls(
            LatentGraph(bif.edges, {v: len(labels) for v, labels in bif.states.items()}, latent),
            {v: torch.from_numpy(table) for v, table in bif.tables.items()},
        )
        network.labels = dict(bif.states)
        return network

    @classmethod
    def from_pgmpy(cls, model: Any, latent: Iterable[str] | None = None) -> DiscreteNetwork:
        """A DiscreteBayesianNetwork or DiscreteMarkovNetwork of pgmpy; evidence may name states as there.

        Args:
            model: of pgmpy, with all its CPDs or factors.
            latent: names of variables to count as hidden; ``model.latents`` by default.
        """
        graph, tables, labels = read_network(model, latent)
        if graph.directed:
            network = cls(graph, {scope[-1]: table for scope, table in tables.items()})
        else:
            network = cls.from_factors(graph, dict(tables))
        network.labels = labels
        return network

    def to_pgmpy(self) -> Any:
        """The same network as a DiscreteBayesianNetwork or DiscreteMarkovNetwork of pgmpy, which must be installed."""
        return make_network(self.graph, {v: state_labels(self, v) for v in self.graph.names}, self.factors)

    def to_bif(self, path: str | os.PathLike[str], name: str = "torchpbp") -> None:
        """Write a directed network in the Bayesian Interchange Format, states without labels as s0, s1, …

        Args:
            path: of the file; compressed by gzip if it ends with .gz.
            name: of the network.
        """
        if not self.graph.directed:
            raise StructureError(
                "to_bif: the format holds conditional probability tables, and an undirected network has none. Use to_pgmpy()."
            )
        labels = {v: self.labels.get(v, [f"s{i}" for i in range(n)]) for v, n in self.states.items()}
        states = {v: tuple(map(str, x)) for v, x in labels.items()}  # the format knows words only
        parents = {v: self.graph.parents(v) for v in self.graph.names}
        tables = {v: table.detach().cpu().numpy() for v, table in self.cpts.items()}
        write_bif(path, BIF(states, parents, tables), name)

    def _setup(self, graph: LatentGraph, factors: list[tuple[Scope, Tensor]]) -> None:
        self.graph = graph
        self.labels: dict[str, tuple[Any, ...]] = {}
        self.factors = tuple(factors)
        self.states = {v: graph.num_states(v) for v in graph.names}

    @property
    def cpts(self) -> dict[str, Tensor]:
        """Conditional probability tables of a directed network."""
        if not self.graph.directed:
            raise StructureError("An undirected model has factors, not CPTs.")
        return {scope[-1]: table for scope, table in self.factors}

    @cached_property
    def _queries(self) -> Queries:
        return Queries(self.graph, self.states, self.factors)

    @property
    def potential_tree(self) -> PotentialTree:
        """The clique tree on which this network answers; the potentials of an undirected one up to a constant."""
        return self._queries.potential_tree

    # -- queries -------------------------------------------------------------------------------------------------

    def posterior(self, query: str | Sequence[str], evidence: EvidenceLike = None, method: Method = "hugin") -> Tensor:
        """P(query | evidence), exactly.

        Args:
            query: a variable, latent or not, or several for their joint distribution.
            evidence: see :data:`torchpbp.inputs.EvidenceLike`; latents may be observed here too.
            method: belief update ("hugin"), or sum-product messages ("shafer-shenoy"), which is slower.

        Returns:
            (batch, states) for one variable; (batch, states, states, …) for several.

        Raises:
            DataError: evidence of probability 0, naming the first such row.
        """
        names = query_names(query)
        refuse_unknown("Query of", names, self.states)
        if len(set(names)) != len(names) or not names:
            raise QueryError(f"Expected different query variables, got {names}.")
        quick = self._posterior_of_one(names, evidence, method)
        if quick is not None:
            return quick
        checked = read_evidence(evidence, self.states, labels=self.labels)
        for v in names:
            if checked.observed_everywhere(v):
                raise QueryError(f"Query of '{v}': it is also in the evidence.")
        quick = self._posterior_of_one(names, checked, method)
        return self._queries.posterior(names, checked, method) if quick is None else quick

    def posteriors(
        self, evidence: EvidenceLike = None, method: Method = "hugin", include_latent: bool = False
    ) -> dict[str, Tensor]:
        """Posteriors of all variables not observed in every row, from one upward and one downward pass.

        Returns:
            name -> (batch, states); a row that observes the variable holds a one-hot distribution.
        """
        checked = read_evidence(evidence, self.states, labels=self.labels)
        pool = self.graph.names if include_latent else self.graph.observed
        wanted = left_to_ask(pool, checked)
        return self._queries.posteriors(wanted, checked, method)

    def log_evidence(self, evidence: EvidenceLike = None, method: Method = "hugin") -> Tensor:
        """(batch,) log P(evidence); -inf where the evidence is impossible."""
        checked = read_evidence(evidence, self.states, labels=self.labels)
        return checked.scaled(self._queries.log_evidence(checked, method))

    def joint(self, variables: str | Iterable[str]) -> Tensor:
        """Marginal table P(variables), any subset in any order, or that of one variable.

        Only the part of the calibrated tree that spans the variables is contracted, as the clique at its top times
        the conditionals P(clique | separator) below it, so a local query on a long chain is cheap.
        """
        names = query_names(variables)
        refuse_unknown("Joint of", names, self.states)
        if len(set(names)) != len(names):
            raise QueryError(f"Expected different variables, got {names}.")
        return self._prior.joint(names)

    # -- sampling ------------------------------------------------------------------------------------------------

    def sample(self, n: int, seed: int | None = None, include_latent: bool = False) -> dict[str, Tensor]:
        """Draw ``n`` rows down the calibrated clique tree.

        Args:
            n: number of rows.
            seed: for repeatable draws; by default torch's global generator decides.
            include_latent: whether the latents' states are returned as well.

        Returns:
            name -> (n,) int64 states of the observed variables (and of the latents, if asked for).
        """
        if whole_number("n", n, ShapeError) < 0:
            raise ShapeError(f"n: expected a non-negative number of rows, got {n}.")
        generator = torch.Generator().manual_seed(seed_or_drawn(seed))
        values = self._prior.sample(n, generator)
        pool = self.graph.names if include_latent else self.graph.observed
        return {v: values[v] for v in pool}

    # -- inner workings ------------------------------------------------------------------------------------------

    @cached_property
    def _prior(self) -> Prior:
        return Prior(self.potential_tree, self.states)

    def _posterior_of_one(self, names: Scope, evidence: EvidenceLike, method: Method) -> Tensor | None:
        """(1, states) posterior of one variable in one row; ``None`` where the question is not that simple."""
        if len(names) > 1:
            return None
        return self._queries.posterior_of_one(names, plain_states(evidence, self.states, self.labels), method)

    def __repr__(self) -> str:
        return f"DiscreteNetwork({self.graph!r})"
