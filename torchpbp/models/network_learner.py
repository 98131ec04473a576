"""Learners of a directed network with tables of all variables, latents included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from torchpbp.contract.abilities import JointQueries, Learner, Sampling
from torchpbp.contract.latent_queries import LatentQueries
from torchpbp.contract.model_files import SaveOptions, checked_labels, require_finite
from torchpbp.errors import StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.latent_graph import Domain, LatentGraph, require_graph, require_states
from torchpbp.inputs.evidence import EvidenceLike


class NetworkLearner(Learner, JointQueries, Sampling, LatentQueries):
    """The query side of learners whose fitted model is a :class:`~torchpbp.DiscreteNetwork`.

    The states of each latent are ordered by their probability, the largest first.

    Args:
        graph: directed and discrete.
        open_states: whether latents may have no number of states yet.
        remedy: end of the error about variables without a number of states.
    """

    def __init__(
        self, graph: LatentGraph, open_states: bool = False, remedy: str = " torchpbp.PBP takes such graphs."
    ) -> None:
        who = type(self).__name__
        require_graph(graph, who)
        if not graph.directed:
            raise StructureError(
                f"{who}: expected a directed graph, whose tables are conditional probabilities. torchpbp.PBP learns undirected "
                "graphs."
            )
        unknown = [h for h in graph.latent if graph.variables[h] is None]
        require_states(graph.with_states(dict.fromkeys(unknown, 1)) if open_states else graph, who, remedy)
        self.graph = graph
        self.labels = {}
        self.missing = {}
        self.fitted = False
        self._network: DiscreteNetwork | None = None
        self._device: torch.device | None = None  # None: the device of the rows

    @property
    def network(self) -> DiscreteNetwork:
        """The fitted network, whose latents can be queried like observables."""
        self.require_fitted()
        assert self._network is not None
        return self._network

    @property
    def device(self) -> torch.device:
        """Device of the fitted network; before fitting, the device set by :meth:`to`, by default the CPU."""
        return (self._device or torch.device("cpu")) if self._network is None else self._network.device

    def to(self, device: torch.device | str) -> Self:
        """Set the device of learning and answers, in place of that of the rows, and move a fitted network to it."""
        self._device = torch.device(device)
        if self._network is not None:
            self._network.to(device)
        return self

    def _adopt(
        self,
        tables: Mapping[str, Any],
        labels: Mapping[str, tuple[Any, ...]] | None = None,
        missing: Mapping[str, float] | None = None,
        *,
        ordered: bool = False,
    ) -> None:
        """Set the network, from learned tables or, with ``ordered`` states of the latents, from those of a file."""
        network = DiscreteNetwork(self.graph, tables)
        if self._device is not None:
            network.to(self._device)
        if not ordered:
            network.reordered(by_size(network))
        self.labels, self.missing = dict(labels or {}), dict(missing or {})
        network.labels = self.labels
        self._network = network
        self.fitted = True

    def reordered(self, orders: Mapping[str, Sequence[int]]) -> Self:
        """Renumber the states of latents, in place; see :class:`~torchpbp.contract.latent_queries.LatentQueries`."""
        self.network.reordered(orders)
        return self

    # -- answers -------------------------------------------------------------------------------------------------

    def query_domains(self) -> dict[str, Domain]:
        """All variables: latents can be queried, though not observed."""
        return {v: self.graph.variables[v] for v in self.graph.names}

    def posterior(self, query: str | Sequence[str], evidence: EvidenceLike = None) -> Any:
        """P(query | evidence) of observables and latents, (batch, states…); a DataFrame for a DataFrame."""
        return self._ask(query, evidence, lambda names, checked: self.network.posterior(names, checked))

    def posteriors(self, evidence: EvidenceLike = None, *, include_latent: bool = False) -> Any:
        """Posteriors of all observables, and of latents on request, not observed in every row; a DataFrame for a DataFrame."""
        return self._ask_all(
            evidence,
            lambda names, checked: self.network.posteriors(checked, include_latent=include_latent) if names else {},
            self.graph.names if include_latent else None,
        )

    def log_evidence(self, evidence: EvidenceLike = None) -> Tensor:
        """(batch,) log P(evidence); -inf for impossible evidence."""
        return self.network.log_evidence(self.read_evidence(evidence))

    def to_pbp(self, **options: Any) -> Any:
        """The :class:`~torchpbp.PBP` model with the same distribution; see :meth:`torchpbp.DiscreteNetwork.to_pbp`."""
        return self.network.to_pbp(**options)

    def sample(
        self, n: int, evidence: EvidenceLike = None, seed: int | None = None, *, include_latent: bool = False
    ) -> dict[str, Tensor]:
        """name -> (n,) states without evidence, (n, batch) with; see :meth:`torchpbp.DiscreteNetwork.sample`."""
        checked = None if evidence is None else self.read_evidence(evidence)
        return self.network.sample(n, checked, seed, include_latent=include_latent)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.graph!r}, {'fitted' if self.fitted else 'not fitted'})"

    # -- files ---------------------------------------------------------------------------------------------------

    def pack(self, name: object, options: SaveOptions) -> dict[str, Any]:
        """Graph, tables, labels and shares of missing values."""
        tables = {v: table.detach() for v, table in self.network.cpts.items()}
        require_finite({f"tables.{v}": table for v, table in tables.items()}, name, saving=True)
        return {
            "graph": self.graph.to_dict(),
            "tables": tables,
            "labels": checked_labels(self.labels, self.graph.variables, name),
            "missing": self.missing,
        }

    def _restore(self, content: Mapping[str, Any], name: object) -> Self:
        """Set the network to the content of a file, as returned by :meth:`pack`."""
        labels = checked_labels(content["labels"], self.graph.variables, name)
        self._adopt(content["tables"], labels, content["missing"], ordered=True)
        return self


def by_size(network: DiscreteNetwork) -> dict[str, list[int]]:
    """latent -> its states, the most probable first."""
    graph, tables = network.graph, network.cpts
    marginals: dict[str, Tensor] = {}
    for v in graph.topological_order():
        parents = graph.parents(v)
        if graph.is_latent(v) or graph.children(v):
            if not parents:
                marginals[v] = tables[v]
            elif len(parents) == 1 and parents[0] in marginals:
                marginals[v] = marginals[parents[0]] @ tables[v]
            elif graph.is_latent(v):
                marginals[v] = network.joint(v)
    return {h: marginals[h].argsort(descending=True, stable=True).tolist() for h in graph.latent}
