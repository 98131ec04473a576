"""Learners whose model is a network with all its tables, which answers for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from torchpbp.contract.abilities import JointQueries, Learner, Sampling
from torchpbp.contract.latent_queries import LatentQueries
from torchpbp.contract.model_files import SaveOptions, checked_labels, require_finite
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.latent_graph import Domain, LatentGraph
from torchpbp.inputs.evidence import EvidenceLike


class NetworkLearner(Learner, JointQueries, Sampling, LatentQueries):
    """The query side of a learner of tables.

    The states of each latent are ordered by their probability, the largest first.

    Args:
        graph: directed and discrete.
    """

    def __init__(self, graph: LatentGraph) -> None:
        self.graph = graph
        self.labels = {}
        self.missing = {}
        self.fitted = False
        self._network: DiscreteNetwork | None = None
        self._device: torch.device | None = None  # as asked for; None: that of the rows

    @property
    def network(self) -> DiscreteNetwork:
        """The fitted network, whose hidden variables can be queried like others."""
        self.require_fitted()
        assert self._network is not None
        return self._network

    @property
    def device(self) -> torch.device:
        """Where the fitted network is, or will be unless rows decide."""
        return (self._device or torch.device("cpu")) if self._network is None else self._network.device

    def to(self, device: torch.device | str) -> Self:
        """Learn and answer on a device, whatever that of the rows; a fitted network moves there."""
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
        """Take over what was learned, or what a file holds: there the states of latents are in their order already."""
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
        """Number the states of latents anew, in place; see :class:`~torchpbp.contract.latent_queries.LatentQueries`."""
        self.network.reordered(orders)
        return self

    # -- answers -------------------------------------------------------------------------------------------------

    def query_domains(self) -> dict[str, Domain]:
        """All variables: latents may be asked about, though not observed."""
        return {v: self.graph.variables[v] for v in self.graph.names}

    def posterior(self, query: str | Sequence[str], evidence: EvidenceLike = None) -> Any:
        """P(query | evidence) of observables and latents, (batch, states…); a DataFrame for a DataFrame."""
        return self._ask(query, evidence, lambda names, checked: self.network.posterior(names, checked))

    def posteriors(self, evidence: EvidenceLike = None, *, include_latent: bool = False) -> Any:
        """Posteriors of all observables, and latents on request, that some row does not observe; a DataFrame for a DataFrame."""
        return self._ask_all(
            evidence,
            lambda names, checked: self.network.posteriors(checked, include_latent=include_latent) if names else {},
            self.graph.names if include_latent else None,
        )

    def log_evidence(self, evidence: EvidenceLike = None) -> Tensor:
        """(batch,) log P(evidence); -inf where it is impossible."""
        return self.network.log_evidence(self.read_evidence(evidence))

    def to_pbp(self, **options: Any) -> Any:
        """The :class:`~torchpbp.PBP` model that answers as this one does; see :meth:`torchpbp.DiscreteNetwork.to_pbp`."""
        return self.network.to_pbp(**options)

    def sample(
        self, n: int, evidence: EvidenceLike = None, seed: int | None = None, *, include_latent: bool = False
    ) -> dict[str, Tensor]:
        """name -> (n,) states without evidence, (n, batch) with; see :meth:`torchpbp.DiscreteNetwork.sample`."""
        given = None if evidence is None else self.read_evidence(evidence)
        return self.network.sample(n, given, seed, include_latent=include_latent)

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
        """Take over what :meth:`pack` has written."""
        labels = checked_labels(content["labels"], self.graph.variables, name)
        self._adopt(content["tables"], labels, content["missing"], ordered=True)
        return self


def by_size(network: DiscreteNetwork) -> dict[str, list[int]]:
    """latent -> its states, the most probable first."""
    graph, tables = network.graph, network.cpts
    known: dict[str, Tensor] = {}
    for v in graph.topological_order():
        parents = graph.parents(v)
        if graph.is_latent(v) or graph.children(v):
            if not parents:
                known[v] = tables[v]
            elif len(parents) == 1 and parents[0] in known:
                known[v] = known[parents[0]] @ tables[v]
            elif graph.is_latent(v):
                known[v] = network.joint(v)
    return {h: known[h].argsort(descending=True, stable=True).tolist() for h in graph.latent}
