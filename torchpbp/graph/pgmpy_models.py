"""Conversion from and to models of pgmpy, which is imported only to create its models."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

from torchpbp.errors import StructureError
from torchpbp.graph.domains import Scope

Table = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PgmpyModel:
    """The contents of a pgmpy model.

    Args:
        edges: pairs of names.
        states: name -> labels of its states, for the variables of some table.
        latent: latent variables, in the order of the model's nodes.
        directed: whether it is a Bayesian network; a Markov network otherwise.
        names: all variables, in the order of the model's nodes.
        tables: scope -> table. For a Bayesian network (parents…, variable) -> conditional probabilities, for a Markov network
            the factors; factors with equal scopes are multiplied.
    """

    edges: list[tuple[str, str]]
    states: dict[str, tuple[Hashable, ...]]
    latent: tuple[str, ...]
    directed: bool
    names: tuple[str, ...]
    tables: dict[Scope, Table]

    @property
    def labels(self) -> dict[str, tuple[Hashable, ...]]:
        """Labels of states other than 0, 1, 2, …"""
        return {v: x for v, x in self.states.items() if list(x) != list(range(len(x)))}

    def require_tables(self) -> None:
        """Raise unless a Bayesian network has all of its tables."""
        missing = [v for v in self.names if v not in {scope[-1] for scope in self.tables}] if self.directed else []
        if missing:
            raise StructureError(
                f"The pgmpy model has no CPDs of {missing}. Add them with model.add_cpds(...), or fit the model first."
            )


def read_pgmpy(model: Any) -> PgmpyModel:
    """Read a DiscreteBayesianNetwork or DiscreteMarkovNetwork.

    Tables may list the states of a variable in different orders; they are permuted to the order of the variable's CPD, or of the
    first table that contains the variable.

    Raises:
        StructureError: another kind of model, continuous variables, names that are not strings, contradictory
            tables.
    """
    if not isinstance(model, nx.Graph) or not (hasattr(model, "cpds") or hasattr(model, "factors")):
        raise StructureError(
            f"Expected a DiscreteBayesianNetwork or DiscreteMarkovNetwork of pgmpy, got {type(model).__name__}. For a plain "
            "networkx graph use LatentGraph.from_networkx."
        )
    odd = [v for v in model.nodes if not isinstance(v, str)]
    if odd:
        raise StructureError(f"The pgmpy model has variables {odd[:5]} whose names are not strings. Rename its nodes.")
    directed = model.is_directed()
    parts: list[Any] = list(getattr(model, "cpds" if directed else "factors"))
    for part in parts:
        if not hasattr(part, "state_names") or not hasattr(part, "values"):
            raise StructureError(
                f"The pgmpy model holds a {type(part).__name__}: expected tables over discrete states (TabularCPD, DiscreteFactor)."
            )
    states: dict[str, tuple[Hashable, ...]] = {}
    for part in parts:
        owned = part.variables[:1] if directed else part.variables
        for v in owned:
            states.setdefault(v, tuple(part.state_names[v]))
    for part in parts:  # a parent may have no table of its own
        for v in part.variables:
            states.setdefault(v, tuple(part.state_names[v]))
    tables: dict[Scope, Table] = {}
    for part in parts:
        scope, table = _ordered(part, states, directed)
        tables[scope] = tables[scope] * table if scope in tables else table
    hidden = set(getattr(model, "latents", None) or ())
    latent = tuple(v for v in model.nodes if v in hidden)
    return PgmpyModel(list(model.edges()), states, latent, directed, tuple(model.nodes), tables)


def _ordered(part: Any, states: Mapping[str, tuple[Hashable, ...]], directed: bool) -> tuple[Scope, Table]:
    """A table with its states in the common order; in conditional tables the variable comes last."""
    table = np.asarray(part.values, dtype=np.float64)
    for axis, v in enumerate(part.variables):
        labels = list(part.state_names[v])
        if sorted(map(repr, labels)) != sorted(map(repr, states[v])):
            raise StructureError(
                f"The tables of the pgmpy model give '{v}' the states {labels} and {list(states[v])}. Give it the same in all tables."
            )
        table = table.take([labels.index(label) for label in states[v]], axis=axis)
    scope = tuple(part.variables)
    return ((*scope[1:], scope[0]), np.moveaxis(table, 0, -1)) if directed else (scope, table)


def make_pgmpy(
    edges: Iterable[tuple[str, str]],
    states: Mapping[str, Sequence[Hashable]],
    latent: Iterable[str],
    tables: Iterable[tuple[Scope, Table]],
    directed: bool,
) -> Any:
    """A DiscreteBayesianNetwork or DiscreteMarkovNetwork of pgmpy.

    Args:
        edges: pairs of names; (parent, child) if directed.
        states: name -> labels of its states.
        latent: latent variables.
        tables: ((parents…, variable), conditional probabilities) of each variable if directed; (scope, factor) otherwise.
        directed: whether to make a Bayesian network.
    """
    models, factors = _pgmpy("models"), _pgmpy("factors.discrete")
    make = models.DiscreteBayesianNetwork if directed else models.DiscreteMarkovNetwork
    model = make(list(edges), latents=set(latent) if directed else list(latent))
    model.add_nodes_from(v for v in states if v not in model)
    for scope, table in tables:
        names = {v: list(states[v]) for v in scope}
        if not directed:
            model.add_factors(factors.DiscreteFactor(list(scope), table.shape, table, state_names=names))
            continue
        *parents, v = scope
        values = table.reshape(-1, table.shape[-1]).T
        sizes = [len(states[p]) for p in parents]
        model.add_cpds(factors.TabularCPD(v, len(states[v]), values, parents or None, sizes or None, state_names=names))
    model.check_model()
    return model


def _pgmpy(part: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"pgmpy.{part}")
    except ImportError:
        raise StructureError(
            "Conversion to a pgmpy model needs pgmpy, which is not installed. Run: pip install pgmpy."
        ) from None
