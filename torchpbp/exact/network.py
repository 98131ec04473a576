"""Discrete networks with known parameters, for exact inference as a reference of learned models."""

from __future__ import annotations

import importlib
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.contract.abilities import JointQueries, Sampling
from torchpbp.contract.frames import state_labels
from torchpbp.contract.latent_queries import LatentQueries
from torchpbp.contract.model_files import SaveOptions, checked_labels
from torchpbp.errors import QueryError, RankWarning, ShapeError, StructureError, warn_caller
from torchpbp.exact.calibration import PotentialTree
from torchpbp.exact.elimination import plain_states
from torchpbp.exact.prior import Prior
from torchpbp.exact.queries import Queries
from torchpbp.graph.bif import BIF, read_bif, write_bif
from torchpbp.graph.clique_tree import factor_scopes
from torchpbp.graph.cost import BUDGET, table_cost
from torchpbp.graph.domains import Scope, require_single_values
from torchpbp.graph.latent_graph import Domain, LatentGraph, require_graph
from torchpbp.graph.pgmpy_models import make_pgmpy, read_pgmpy
from torchpbp.inputs.arrays import require_device
from torchpbp.inputs.evidence import Evidence, EvidenceLike, query_names
from torchpbp.lazy import pandas as pd
from torchpbp.settings import Constraint, positive

CHECKED_ROWS, EXACT = 100, 1e-6
"""Number of rows, and largest difference of log-probabilities, in the check of a model made from a network."""


class DiscreteNetwork(JointQueries, Sampling, LatentQueries):
    """A Bayesian network with its conditional probability tables, or an undirected model with its factors.

    Args:
        graph: a directed graph whose variables are all discrete.
        cpts: name -> table of shape (states of each parent in ``graph.parents(name)`` order…, states of name); the last
            dimension sums to 1. Tensors must be on one device, which becomes the network's.

    Attributes:
        labels: name -> labels of its states, for networks read from a file.
        budget: limit of the bytes of exact inference's tables, 4 GiB by default; None: no limit. Above it a
            :class:`~torchpbp.errors.BudgetError` is raised before allocation.

    Example:
        >>> g = LatentGraph([("h", "x")], {"h": 2, "x": 2}, latent=["h"])
        >>> net = DiscreteNetwork(g, {"h": [0.5, 0.5], "x": [[0.9, 0.1], [0.2, 0.8]]})
        >>> net.posterior("h", {"x": [0]}).round(decimals=3)
        tensor([[0.8180, 0.1820]], dtype=torch.float64)
    """

    budget: float | None = BUDGET

    def __init__(self, graph: LatentGraph, cpts: Mapping[str, Any]) -> None:
        require_graph(graph, "DiscreteNetwork")
        require_single_values(graph.variables, "DiscreteNetwork")
        if not graph.directed:
            raise StructureError("An undirected graph has no CPTs; use DiscreteNetwork.from_factors(graph, factors).")
        check_tables(cpts, "cpts: expected a mapping of names to tables")
        check_variables("CPT for", cpts, graph.variables)
        factors, device = [], device_of(cpts.values())
        for name in graph.names:
            if name not in cpts:
                raise StructureError(f"No CPT for variable '{name}'.")
            scope = (*graph.parents(name), name)
            table = checked_table(f"CPT of '{name}'", cpts[name], scope, graph, device)
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
        require_single_values(graph.variables, "from_factors")
        check_tables(factors, "factors: expected a mapping of tuples of names to tables")
        if graph.directed:
            raise StructureError("from_factors expects an undirected graph; pass directed=False, or use CPTs.")
        pairs = [((names,) if isinstance(names, str) else tuple(names), table) for names, table in factors.items()]
        device = device_of(factors.values())
        uniform = [((v,), torch.ones(graph.num_states(v), device=device)) for v in graph.names]  # without a factor
        return cls._from_pairs(graph, [*pairs, *uniform])

    @classmethod
    def _from_pairs(cls, graph: LatentGraph, pairs: Iterable[tuple[Scope, Any]]) -> DiscreteNetwork:
        """An undirected model of (scope, table) pairs."""
        moral, pairs = graph.moral_graph(), list(pairs)
        checked, device = [], device_of(table for _, table in pairs)
        for scope, table in pairs:
            check_variables("Factor over", scope, graph.variables)
            for a, b in combinations(scope, 2):
                if not moral.has_edge(a, b):
                    raise StructureError(f"Factor over {scope}: '{a}' and '{b}' are not joined by an edge.")
            checked.append((scope, checked_table(f"Factor over {scope}", table, scope, graph, device)))
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
            concentration: parameter of the Dirichlet or gamma distribution; small values give near-deterministic tables.
        """
        require_graph(graph, "DiscreteNetwork.random")
        require_single_values(graph.variables, "DiscreteNetwork.random")
        seed = Constraint("a whole number of at least 0", _any_seed).check("seed", seed)
        positive().check("concentration", concentration)
        table_cost(factor_scopes(graph), {v: graph.num_states(v) for v in graph.names}).require(
            cls.budget,
            "A network on this graph",
            f"Give variables fewer parents or fewer states, or set {cls.__name__}.budget = <bytes> (None: no limit).",
        )
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
        """A network in the Bayesian Interchange Format; evidence may name states by their labels.

        Args:
            path: path of the file, plain or compressed by gzip.
            latent: names of variables to treat as hidden.
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
        """A DiscreteBayesianNetwork or DiscreteMarkovNetwork of pgmpy; evidence may name states by their labels.

        Args:
            model: pgmpy model with all its CPDs or factors.
            latent: names of variables to treat as hidden; ``model.latents`` by default.
        """
        read = read_pgmpy(model)
        read.require_tables()
        graph = LatentGraph.from_pgmpy(model, latent=latent)
        tables: dict[Any, Tensor] = {scope: torch.from_numpy(table) for scope, table in read.tables.items()}
        if graph.directed:
            orders = {scope: (*graph.parents(scope[-1]), scope[-1]) for scope in tables}
            network = cls(graph, {s[-1]: t.permute([s.index(v) for v in orders[s]]) for s, t in tables.items()})
        else:
            network = cls.from_factors(graph, tables)
        network.labels = read.labels
        return network

    def to_pgmpy(self) -> Any:
        """The same network as a DiscreteBayesianNetwork or DiscreteMarkovNetwork of pgmpy, which must be installed."""
        tables = [(scope, table.detach().cpu().numpy()) for scope, table in self.factors]
        if not self.graph.directed:  # drop uniform tables of single variables of other tables
            joint = {v for scope, _ in tables if len(scope) > 1 for v in scope}
            tables = [(s, t) for s, t in tables if len(s) > 1 or s[0] not in joint or (t != 1).any()]
        states = {v: state_labels(self, v) for v in self.graph.names}
        return make_pgmpy(self.graph.edges, states, self.graph.latent, tables, self.graph.directed)

    def to_pbp(self, **options: Any) -> Any:
        """The :class:`~torchpbp.PBP` model of this network, learned from its exact moments, with equal posteriors.

        It supports features based on operators, such as :class:`~torchpbp.PBPLayer`. If the ranks of messages are too low, by the
        structure or by the options, a :class:`~torchpbp.errors.RankWarning` reports the error.

        Args:
            **options: options of the model.
        """
        model = importlib.import_module("torchpbp.models").PBP(self.graph, **options)  # models are made of networks
        model.fit_population(self)
        rows = Evidence(CHECKED_ROWS, self.sample(CHECKED_ROWS, seed=0))
        with torch.no_grad():
            error = float((self.log_evidence(rows) - model.log_evidence(rows)).abs().max())
        if not error < EXACT:
            warn_caller(
                f"to_pbp: log-probabilities of rows differ by up to {error:.2g} from the network's: the ranks of some messages "
                "are too low (diagnostics() of the model names the separators). Change rank=, pool= or largest_group=, or ask the "
                "network itself.",
                RankWarning,
            )
        return model

    def to_bif(self, path: str | os.PathLike[str], name: str = "torchpbp") -> None:
        """Write a directed network in the Bayesian Interchange Format, states without labels as s0, s1, …

        Args:
            path: path of the file; compressed by gzip if it ends with .gz.
            name: name of the network.
        """
        if not self.graph.directed:
            raise StructureError(
                "to_bif: the format holds conditional probability tables, and an undirected network has none. Use to_pgmpy()."
            )
        labels = {v: self.labels.get(v, [f"s{i}" for i in range(n)]) for v, n in self.states.items()}
        states = {v: tuple(map(str, x)) for v, x in labels.items()}  # the format supports words only
        parents = {v: self.graph.parents(v) for v in self.graph.names}
        tables = {v: table.detach().cpu().numpy() for v, table in self.cpts.items()}
        write_bif(path, BIF(states, parents, tables), name)

    def _setup(self, graph: LatentGraph, factors: list[tuple[Scope, Tensor]]) -> None:
        self.graph = graph
        self.labels = dict(graph.labels)
        self.missing = {}
        self.fitted = True
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
        return Queries(self.graph, self.states, self.factors, self.budget)

    @property
    def potential_tree(self) -> PotentialTree:
        """The clique tree of exact inference; the potentials of an undirected network up to a constant."""
        return self._queries.potential_tree

    @property
    def device(self) -> torch.device:
        """Device of the tables."""
        return self.factors[0][1].device

    def to(self, device: torch.device | str) -> DiscreteNetwork:
        """Move the tables to a device and return the network. They remain float64, which some devices do not support."""
        self.factors = tuple((scope, table.to(device)) for scope, table in self.factors)
        self._forget()
        return self

    @property
    def network(self) -> DiscreteNetwork:
        """The network itself."""
        return self

    def reordered(self, orders: Mapping[str, Sequence[int]]) -> DiscreteNetwork:
        """Renumber the states of variables in place.

        Args:
            orders: name -> current numbers of its states, in the new order.
        """
        factors = []
        for scope, table in self.factors:
            for i, v in enumerate(scope):
                if v in orders:
                    table = table.index_select(i, torch.tensor(orders[v], device=table.device))
            factors.append((scope, table))
        self.factors = tuple(factors)
        labels = {v: state_labels(self, v) for v in orders if v in self.labels}
        self.labels = self.labels | {v: tuple(x[i] for i in orders[v]) for v, x in labels.items()}
        self._forget()
        return self

    def _forget(self) -> None:
        """Clear cached results of earlier tables."""
        for name in ("_queries", "_prior"):
            self.__dict__.pop(name, None)

    def _warn_unidentified(self, names: Sequence[str]) -> None:
        """Do nothing: known tables are identified."""

    # -- queries -------------------------------------------------------------------------------------------------

    def evidence_domains(self) -> dict[str, Domain]:
        """Domains of all variables, since latents may be observed and queried too."""
        return dict(self.states)

    def posterior(self, query: str | Sequence[str], evidence: EvidenceLike = None) -> Any:
        """P(query | evidence), exactly.

        Args:
            query: a variable, latent or not, or several for their joint distribution.
            evidence: see :data:`torchpbp.inputs.EvidenceLike`; latents may be observed here too.

        Returns:
            (batch, states) for one variable; (batch, states, states, …) for several. A DataFrame for a DataFrame.

        Raises:
            DataError: evidence of probability 0, naming the first such row.
        """
        quick = self._posterior_of_one(self.query_names(query), evidence)
        if quick is not None:
            return quick

        def answer(names: Scope, checked: Evidence) -> Tensor:
            quick = self._posterior_of_one(names, checked)
            return self._queries.posterior(names, checked) if quick is None else quick

        return self._ask(query, evidence, answer)

    def posteriors(self, evidence: EvidenceLike = None, include_latent: bool = False) -> Any:
        """Posteriors of all variables not observed in every row, from one upward and one downward pass.

        Returns:
            name -> (batch, states); a row that observes the variable holds a one-hot distribution. A DataFrame for a DataFrame.
        """
        pool = self.graph.names if include_latent else self.graph.observed
        return self._ask_all(evidence, lambda names, checked: self._queries.posteriors(names, checked), pool)

    def clique_posteriors(self, scopes: Sequence[Scope], evidence: Evidence) -> dict[Scope, Tensor]:
        """scope -> (batch, states…) posterior of variables in a common clique, such as those of a table, given checked evidence."""
        return self._queries.clique_posteriors(scopes, evidence)

    def log_evidence(self, evidence: EvidenceLike = None) -> Tensor:
        """(batch,) log P(evidence); -inf for impossible evidence."""
        checked = self.read_evidence(evidence)
        return checked.scaled(self._queries.log_evidence(checked))

    def joint(self, variables: str | Iterable[str]) -> Tensor:
        """Marginal table P(variables) of a variable, or of any subset in any order.

        Only the subtree that spans the variables is contracted, as its top clique times the conditionals
        P(clique | separator) below, so a local query on a long chain is cheap.
        """
        names = query_names(variables)
        check_variables("Joint of", names, self.states)
        if len(set(names)) != len(names):
            raise QueryError(f"Expected different variables, got {names}.")
        return self._prior.joint(names)

    def diagnostics(self) -> pd.DataFrame:
        """One row per variable: whether it is latent, its states, its parents (neighbours in an undirected graph), the entropy
        of its distribution without evidence, in nats, and the probability of its rarest state."""
        rows = []
        for v in self.graph.names:
            marginal = self._prior.joint((v,)).detach()
            near = self.graph.parents(v) if self.graph.directed else tuple(self.graph.moral_graph().neighbors(v))
            rows.append(
                {
                    "variable": v,
                    "latent": v in self.graph.latent,
                    "states": self.states[v],
                    "parents" if self.graph.directed else "neighbours": near,
                    "entropy": float(torch.special.entr(marginal).sum()),
                    "rarest": float(marginal.min()),
                }
            )
        return pd.DataFrame(rows)

    # -- sampling ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(
        self, n: int, evidence: EvidenceLike = None, seed: int | None = None, *, include_latent: bool = False
    ) -> dict[str, Tensor]:
        """Draw rows: without evidence down the calibrated clique tree, otherwise variable by variable, from the exact
        posterior given the evidence and the variables drawn before.

        Args:
            n: number of rows, for each row of evidence.
            evidence: as for :meth:`posterior`.
            seed: seed for reproducible draws; torch's global generator by default.
            include_latent: whether to return the latents' states too.

        Returns:
            name -> (n,) int64 states of the observed variables (and, if requested, the latents); (n, batch) with evidence.

        Raises:
            DataError: evidence of probability 0.
        """
        pool = self.graph.names if include_latent else self.graph.observed

        def draw(rows: Evidence, generator: torch.Generator) -> dict[str, Tensor]:
            if not rows.hard and not rows.soft:
                values = self._prior.sample(rows.batch, generator)
                return {v: values[v] for v in pool}
            return self._queries.sample(pool, rows, generator)

        return self._draw(n, evidence, seed, draw)

    # -- files ---------------------------------------------------------------------------------------------------

    def pack(self, name: object, options: SaveOptions) -> dict[str, Any]:
        """Graph, tables and labels."""
        return {
            "graph": self.graph.to_dict(),
            "factors": self.factors,
            "labels": checked_labels(self.labels, self.graph.variables, name),
        }

    @classmethod
    def unpack(cls, content: Mapping[str, Any], name: object) -> DiscreteNetwork:
        """The network, with the same checks of tables as in the constructor."""
        graph = LatentGraph.from_dict(content["graph"])
        if graph.directed:
            network = cls(graph, {scope[-1]: table for scope, table in content["factors"]})
        else:
            network = cls._from_pairs(graph, content["factors"])
        network.labels = checked_labels(content["labels"], graph.variables, name)
        return network

    # -- inner workings ------------------------------------------------------------------------------------------

    @cached_property
    def _prior(self) -> Prior:
        return Prior(self.potential_tree, self.states)

    def _posterior_of_one(self, names: Scope, evidence: EvidenceLike) -> Tensor | None:
        """(1, states) posterior of one variable in one row; None for other queries."""
        if len(names) != 1 or names[0] not in self.states:
            return None
        return self._queries.posterior_of_one(names, plain_states(evidence, self.states, self.labels))

    def __repr__(self) -> str:
        return f"DiscreteNetwork({self.graph!r})"


def check_variables(what: str, names: Iterable[str], known: Mapping[str, Any]) -> None:
    """Raise a QueryError for unknown names; ``what`` begins the message."""
    for name in names:
        if name not in known:
            raise QueryError(f"{what} unknown variable '{name}'. The network has: {', '.join(known)}.")


def check_tables(tables: object, expected: str) -> None:
    """Raise a StructureError for tables that are not in a mapping."""
    if not isinstance(tables, Mapping):
        raise StructureError(f"{expected}, got {type(tables).__name__}.")


def device_of(tables: Iterable[Any]) -> torch.device:
    """Device of the first tensor among some tables; the CPU if there is none."""
    return next((t.device for t in tables if isinstance(t, Tensor)), torch.device("cpu"))


def checked_table(
    what: str, table: Any, scope: Sequence[str], graph: LatentGraph, device: torch.device | str = "cpu"
) -> Tensor:
    """A float64 copy of a table, with one dimension per variable of the scope; arrays and lists are moved to the device.

    Raises:
        DeviceError: a tensor on another device.
        ShapeError, StructureError: an invalid table of the variables.
    """
    if isinstance(table, Tensor):
        require_device(what, table, device, "the other tables")
    expected = tuple(graph.num_states(v) for v in scope)
    try:
        numbers = table if isinstance(table, Tensor) else torch.from_numpy(np.array(table, dtype=np.float64)).to(device)
        if numbers.is_complex():  # torch drops the imaginary part with only a warning
            raise TypeError("got complex numbers")
        tensor = numbers.to(dtype=torch.float64, copy=True)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{what}: expected numbers of shape {expected} for {tuple(scope)}; {error}.") from None
    if tuple(tensor.shape) != expected:
        raise ShapeError(f"{what}: expected shape {expected} for {tuple(scope)}, got {tuple(tensor.shape)}.")
    if not bool((tensor >= 0).all()) or not bool(torch.isfinite(tensor).all()):
        raise StructureError(f"{what}: expected finite non-negative entries.")
    return tensor


def _any_seed(value: Any) -> int:
    """A seed of any size: numpy's generators accept all, and the starts of EM use 64 bits."""
    if isinstance(value, bool) or operator.index(value) < 0:
        raise ValueError
    return operator.index(value)
