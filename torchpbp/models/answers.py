"""Asking a fitted tree of operators: posteriors, probability of evidence, samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from torchpbp.arguments import seed_or_drawn, whole_number
from torchpbp.contract.frames import Frames
from torchpbp.errors import NotFittedError, QueryError, ShapeError
from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inference.density import Density, as_points
from torchpbp.inference.messages import upward_pass
from torchpbp.inference.operators import RootOperator, SeparatorOperator
from torchpbp.inference.queries import as_distribution, evidence_estimate, joint_states, leaf_estimates, own_estimate
from torchpbp.inference.sampling import sample_leaves
from torchpbp.inference.schedule import Schedule
from torchpbp.inference.variables import Observable, prepare
from torchpbp.inputs.evidence import Evidence, EvidenceLike, left_to_ask, query_names, read_evidence


class Answers(Frames, nn.Module):
    """The query side of a model whose parameters are operators on a junction tree.

    Attributes:
        graph: the structure.
        observables: observed variables with their feature maps, in the order of ``graph.observed``.
        labels: labels of the states of variables that were given by label.
        operators, root: the learned parts.
        floor: estimates are clipped at this share of their mass.
        fitted: whether the operators hold a fitted model.
    """

    floor: Tensor
    graph: LatentGraph
    labels: dict[str, tuple[Any, ...]]
    operators: nn.ModuleList
    root: RootOperator
    fitted: bool
    _observables: nn.ModuleList
    _schedule: Schedule

    @property
    def tree(self) -> JunctionTree:
        raise NotImplementedError

    @property
    def observables(self) -> dict[str, Observable]:
        """Observed variables with their feature maps, in the order of ``graph.observed``."""
        return {o.name: o for o in self._observables if isinstance(o, Observable)}

    # -- posteriors ----------------------------------------------------------------------------------------------

    @overload
    def posterior(
        self, query: str | Sequence[str], evidence: EvidenceLike = None, *, at: Any, raw: bool = False
    ) -> Tensor: ...
    @overload
    def posterior(self, query: str | Sequence[str], evidence: EvidenceLike = None, *, raw: bool = False) -> Any: ...
    def posterior(
        self, query: str | Sequence[str], evidence: EvidenceLike = None, *, at: Any = None, raw: bool = False
    ) -> Tensor | Density:
        """P(query | evidence).

        Args:
            query: an observable, or several discrete ones for their joint distribution.
            evidence: name -> state or value, states or values per row (-1 or NaN: not observed), or (batch, states) soft
                evidence. Each row may observe different variables.
            at: (n,) points at which the density of a continuous variable is wanted.
            raw: return the estimate as it is, summing (or integrating) to 1 but possibly with negative entries.

        Evidence that the model holds impossible, such as a state never seen in training, gives the marginal.

        Returns:
            (batch, states) for a discrete variable, (batch, states, states, …) for several; a row that observes the query
            itself gets a one-hot distribution. For a continuous variable, whose own value in a row is left out, the (batch, n) density at ``at``, or, without
            ``at``, a :class:`~torchpbp.inference.density.Density` with mean, variance, quantiles and samples.
        """
        names = query_names(query)
        checked = self._read(evidence)
        self._check_query(names, checked)
        if len(names) > 1:
            return self._joint_posterior(names, checked, raw)
        observable = self.observables[names[0]]
        if at is not None and not observable.continuous:
            raise QueryError(f"Query of '{names[0]}': at= is for continuous variables, and this one has states.")
        estimate = self._estimates(checked, names, [self.tree.leaf_of[names[0]]])[names[0]]
        if at is not None:
            return self._density_at(observable, estimate, as_points(at), raw)
        return self._answer(observable, estimate, checked, raw)

    def posteriors(self, evidence: EvidenceLike = None, raw: bool = False) -> dict[str, Any]:
        """Posteriors of every observable that is not observed in all rows, from one pass up and one down.

        A call of the model, ``model(evidence)``, is a call of this method. Complete rows leave nothing to ask: a warning says
        so, and :meth:`log_evidence` has their probability.

        Returns:
            name -> (batch, states), or a :class:`~torchpbp.inference.density.Density` for a continuous variable.
        """
        checked = self._read(evidence)
        observables = self.observables  # once: it is made anew each time
        wanted = left_to_ask(observables, checked)
        estimates = self._estimates(checked, wanted, None)
        return {v: self._answer(observables[v], e, checked, raw) for v, e in estimates.items()}

    forward = posteriors

    # -- probability of evidence ---------------------------------------------------------------------------------

    @overload
    def log_evidence(self, evidence: EvidenceLike = None, raw: Literal[False] = False) -> Tensor: ...
    @overload
    def log_evidence(self, evidence: EvidenceLike, raw: Literal[True]) -> tuple[Tensor, Tensor]: ...
    def log_evidence(self, evidence: EvidenceLike = None, raw: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """(batch,) log P(evidence); with continuous evidence the log of a kernel-smoothed density.

        An estimate that is not positive is replaced by ``floor`` times the sum of its absolute terms, so the result is
        finite; it is -inf only where every term is 0, as for a state never seen in training.

        Args:
            evidence: as in :meth:`posterior`.
            raw: return (sign, log of the absolute value) of the estimate as it is, like ``slogdet``.
        """
        return self._log_evidence(self._read(evidence), raw)

    @overload
    def _log_evidence(self, checked: Evidence, raw: Literal[False] = False) -> Tensor: ...
    @overload
    def _log_evidence(self, checked: Evidence, raw: bool) -> Tensor | tuple[Tensor, Tensor]: ...
    def _log_evidence(self, checked: Evidence, raw: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        value, size, log_scale = self._evidence(checked)
        for observable in self.observables.values():
            log_scale = log_scale - observable.log_integral(checked)
        log_scale = checked.scaled(log_scale)
        if raw:
            return value.sign(), value.abs().log() + log_scale
        floor = self.floor.to(value.dtype) * size
        positive = torch.where(size > 0, torch.maximum(value, floor), torch.ones_like(value))
        return torch.where(size > 0, positive.log() + log_scale, torch.full_like(value, -torch.inf))

    # -- samples -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(self, n: int, evidence: EvidenceLike = None, seed: int | None = None) -> dict[str, Tensor]:
        """Draw all observables from the learned distribution, given evidence.

        Args:
            n: number of draws per row of evidence.
            evidence: as in :meth:`posterior`.
            seed: for repeatable draws; by default torch's global generator decides.

        Returns:
            name -> (n,) states or values without evidence, (n, batch) with.
        """
        if whole_number("n", n, ShapeError) < 0:
            raise ShapeError(f"n: expected a non-negative number of draws, got {n}.")
        checked = self._read(evidence)
        generator = torch.Generator(device=self.floor.device)
        generator.manual_seed(seed_or_drawn(seed, QueryError))
        if n == 0 or checked.batch == 0:
            shape = (n,) if evidence is None else (n, checked.batch)
            kinds = {v: torch.float64 if o.continuous else torch.int64 for v, o in self.observables.items()}
            return {v: torch.empty(shape, dtype=kind, device=self.floor.device) for v, kind in kinds.items()}
        values = sample_leaves(
            self._weights(),
            self.root.weight,
            self._schedule,
            self.tree,
            self.observables,
            checked.repeat_interleave(n),
            self.floor,
            generator,
        )
        if evidence is None:
            return {v: values[v] for v in self.observables}
        return {v: values[v].reshape(checked.batch, n).T for v in self.observables}

    # -- inner workings ------------------------------------------------------------------------------------------

    def _weights(self) -> list[Tensor]:
        """Operators by tree node; entry 0 is a placeholder for the root."""
        return [self.root.weight, *(op.weight for op in self._separators)]

    @property
    def _separators(self) -> list[SeparatorOperator]:
        return [op for op in self.operators if isinstance(op, SeparatorOperator)]

    def _require_fitted(self) -> None:
        if not self.fitted:
            raise NotFittedError(
                f"This {type(self).__name__} model is not fitted yet. Call fit(data), fit_population(network) or load(path)."
            )

    def _read(self, evidence: EvidenceLike) -> Evidence:
        self._require_fitted()
        domains = {v: o.domain for v, o in self.observables.items()}
        return read_evidence(
            evidence, domains, latent=self.graph.latent, labels=self.labels, device=self.root.weight.device
        )

    def _check_query(self, names: Sequence[str], evidence: Evidence) -> None:
        check_query(self.graph, names, evidence)

    def _estimates(self, evidence: Evidence, names: Sequence[str], leaves: Sequence[int] | None) -> dict[str, Tensor]:
        """name -> (batch, features) estimate that leaves the variable's own evidence out."""
        weight, observables = self.root.weight, self.observables
        tables = leaf_estimates(
            self._weights(),
            weight,
            self._schedule,
            prepare(observables, evidence, weight),
            self.tree.parent,
            leaves,
        )
        result = {}
        for v in names:
            leaf = self.tree.leaf_of[v]
            group = self.tree.leaf_observables[leaf]
            others = {u: observables[u].zeta(evidence, weight) for u in group if u != v}
            result[v] = own_estimate(tables[leaf], group.index(v), [others.get(u, weight) for u in group])
        return result

    def _answer(self, observable: Observable, estimate: Tensor, evidence: Evidence, raw: bool) -> Tensor | Density:
        if observable.continuous:
            return observable.density(estimate)
        if raw:
            weighted = estimate * observable.zeta(evidence, estimate)
            return weighted / weighted.sum(dim=-1, keepdim=True)
        return observable.distribution(estimate, evidence, self.floor)

    def _density_at(self, observable: Observable, estimate: Tensor, at: Tensor, raw: bool) -> Tensor:
        if at.ndim != 1:
            raise ShapeError(f"at: expected (n,) points, got shape {tuple(at.shape)}.")
        if not bool(at.isfinite().all()):
            raise QueryError("at: expected finite points, got NaN or infinity.")
        density = observable.density(estimate)
        if not raw:
            return density.prob(at)
        mass = torch.trapezoid(observable.values_at(estimate, density.points), density.points, dim=1)
        return observable.values_at(estimate, at) / mass.to(estimate).unsqueeze(1)

    def _evidence(self, evidence: Evidence) -> tuple[Tensor, Tensor, Tensor]:
        prepared = prepare(self.observables, evidence, self.root.weight)
        return evidence_estimate(
            self.root.weight, self._schedule, upward_pass(self._weights(), self._schedule, prepared)
        )

    def _joint_posterior(self, names: Sequence[str], evidence: Evidence, raw: bool) -> Tensor:
        """P(names, evidence) for each joint state, as one larger batch of evidence."""
        for v in names:
            if self.observables[v].continuous:
                raise QueryError(f"Joint query of {tuple(names)}: '{v}' is continuous. Ask for it alone, or sample.")
        sizes = [self.observables[v].map.dim for v in names]
        wide, allowed = joint_states(evidence, dict(zip(names, sizes, strict=True)), self.root.weight.device)
        value, _, log_scale = self._evidence(wide)
        if evidence.batch == 0:
            return value.reshape(0, *sizes)
        shift = log_scale.reshape(evidence.batch, -1)
        scale = (shift - shift.amax(dim=1, keepdim=True)).exp()
        estimate = value.reshape(evidence.batch, -1) * scale * allowed.to(value).reshape(evidence.batch, -1)
        result = estimate / estimate.sum(dim=-1, keepdim=True) if raw else as_distribution(estimate, self.floor)
        return result.reshape(evidence.batch, *sizes)


def check_query(graph: LatentGraph, names: Sequence[str], evidence: Evidence) -> None:
    """Refuse a query that a model of observables cannot answer, with the reason."""
    if not names or len(set(names)) != len(names):
        raise QueryError(f"Expected one or more different variables to query, got {names}.")
    for name in names:
        if name in graph.latent:
            raise QueryError(
                f"Query of '{name}': it is latent. The model is of the observables' distribution only; query one of "
                f"{', '.join(graph.observed)}."
            )
        if name not in graph.variables:
            raise QueryError(f"Query of unknown variable '{name}'. The model observes: {', '.join(graph.observed)}.")
        if evidence.observed_everywhere(name):
            raise QueryError(f"Query of '{name}': it is also in the evidence. Leave it out of one of the two.")
