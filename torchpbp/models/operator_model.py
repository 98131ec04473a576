"""Models whose parameters are operators on a junction tree: posteriors, log-evidence and samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast, overload

import torch
from torch import Tensor, nn

from torchpbp.contract.abilities import JointQueries, Sampling
from torchpbp.errors import NotFittedError, QueryError, ShapeError
from torchpbp.features.encoded import EncodedMap, Encoders, require_finite
from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.graph.latent_graph import Continuous, Domain
from torchpbp.inference.class_trees import ClassTrees
from torchpbp.inference.density import Density, LeafPosterior, as_points
from torchpbp.inference.leaf_features import LeafReader, hidden_share
from torchpbp.inference.observable import Observable, as_distribution, distributions, joint_states, prepare
from torchpbp.inference.operator_tree import Mass, OperatorTree, observable_estimates
from torchpbp.inference.operators import RootOperator, SeparatorOperator
from torchpbp.inference.readout import Readout
from torchpbp.inference.schedule import Schedule, build_schedule
from torchpbp.inputs.evidence import Evidence, EvidenceLike
from torchpbp.planning.plan import Plan

Answer = Tensor | Density | LeafPosterior
"""A distribution over states, a density, or mean and variance of a leaf with an encoder."""


class OperatorModel(nn.Module, JointQueries, Sampling):
    """The query side of a model whose parameters are operators on a junction tree.

    Attributes:
        operators, root: the learned operators of the separators and of the root clique.
        encoders: of leaves that are vectors or images; None without such leaves.
        readout: link from estimates of a target to its probabilities; None if the model was not trained for a target.
        floor: estimates are clipped at this share of their mass.
        prior: (classes,) shares of classes, in models with an operator tree per class.
    """

    floor: Tensor
    prior: Tensor
    operators: nn.ModuleList
    root: RootOperator
    encoders: Encoders | None
    readout: Readout | None
    _observables: nn.ModuleList
    _plan: Plan | None
    _schedule: Schedule

    # -- structure -----------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The junction tree, with core group, instrument and message size of each separator."""
        if self._plan is None:
            raise NotFittedError("With rank='auto' the plan is made while fitting. Call fit() first.")
        return self._plan

    @property
    def tree(self) -> JunctionTree:
        """The latent junction tree."""
        return self.plan.tree

    @property
    def observables(self) -> dict[str, Observable]:
        """Observed variables with their feature maps, in the order of ``graph.observed``."""
        return {o.name: o for o in cast(Iterable[Observable], self._observables)}

    @property
    def states(self) -> dict[str, int]:
        """Number of states of each discrete observable."""
        return {v: o.map.dim for v, o in self.observables.items() if not o.continuous}

    @property
    def dims(self) -> dict[str, int]:
        """Feature dimensions of each observable."""
        return {v: o.map.dim for v, o in self.observables.items()}

    @property
    def separator_operators(self) -> list[SeparatorOperator]:
        """Operators of all separators, node 1 first."""
        return list(cast(Iterable[SeparatorOperator], self.operators))

    @property
    def condition(self) -> str | None:
        """The variable with an operator tree per class, or None."""
        return None

    @property
    def operator_tree(self) -> OperatorTree | ClassTrees:
        """The current operators as an operator tree; gradients flow to the model's parameters."""
        root = self.root.weight
        operators = [root, *(op.weight for op in cast(Iterable[SeparatorOperator], self.operators))]
        if self.condition is None:
            return OperatorTree(self.plan, operators, root, self._schedule)
        return ClassTrees(self.plan, operators, root, self.prior, self.condition, self._schedule)

    @property
    def device(self) -> torch.device:
        return self.floor.device

    def build(self, plan: Plan, dtype: torch.dtype) -> None:
        """Create operators of zeros with the shapes of a plan."""
        shapes = plan.operator_shapes(self.dims)
        self._plan, self._schedule = plan, build_schedule(plan.tree, shapes)
        nodes = range(1, len(plan.tree))
        classes = None if self.condition is None else self.states[self.condition]
        self.operators = nn.ModuleList(
            SeparatorOperator(shapes[n], plan.tree.separator_name(n), dtype, classes) for n in nodes
        )
        self.root = RootOperator(plan.root_shape, dtype, classes)
        if self.root.weight.device != self.device:  # moving thousands of modules is slow
            self.operators.to(self.device)
            self.root.to(self.device)

    @torch.no_grad()
    def set_operators(self, operators: Sequence[Tensor], root: Tensor) -> None:
        """Copy values into the operators.

        Args:
            operators: per node; entry 0 is not used.
            root: root tensor.
        """
        for operator, weight in zip(self.separator_operators, operators[1:], strict=True):
            operator.weight.copy_(weight)
        self.root.weight.copy_(root)

    @torch.no_grad()
    def set_marginals(self, known: dict[str, Tensor] | None = None) -> None:
        """Store each variable's marginal, towards which noisy answers are shrunk.

        Args:
            known: name -> (states,) marginals of the training rows; by default the model's estimates without evidence.
        """
        if known is None:
            known = {v: e[0] for v, e in self.estimates(Evidence(1), list(self.states)).items()}
        observables = self.observables
        by_size: dict[int, list[str]] = {}
        for v, estimate in known.items():
            by_size.setdefault(len(estimate), []).append(v)
        for names in by_size.values():
            marginals = as_distribution(torch.stack([known[v] for v in names]), self.floor)
            for v, marginal in zip(names, marginals, strict=True):
                observables[v].marginal.copy_(marginal)

    # -- posteriors ----------------------------------------------------------------------------------------------

    @property
    def target(self) -> str | None:
        """The variable predicted in training, or None."""
        return None if self.readout is None else self.readout.target

    def check_query(self, names: Sequence[str]) -> None:
        super().check_query(names)
        if self.encoders is not None and self.encoders.context and (len(names) > 1 or names[0] != self.target):
            raise QueryError(
                f"Query of {', '.join(names)}: the encoder looks at all leaves of a row (context=True), so only "
                f"'{self.target}' can be queried. Use a point-wise encoder for queries of leaves."
            )
        encoded = [v for v in names if isinstance(self.observables[v].map, EncodedMap)]
        if encoded and len(names) > 1:
            raise QueryError(f"Joint query of {tuple(names)}: '{encoded[0]}' has an encoder. Ask for it alone.")

    def require_densities(self, what: str) -> None:
        """Raise a QueryError for context encoders: features that depend on other leaves give no probability of the leaves."""
        if self.encoders is not None and self.encoders.context:
            raise QueryError(
                f"{what}: the encoder looks at all leaves of a row (context=True), so the leaves have no probability of their own. "
                f"Ask for the posterior of '{self.target}', or use a point-wise encoder."
            )

    def posterior(
        self, query: str | Sequence[str], evidence: EvidenceLike = None, *, at: Any = None, raw: bool = False
    ) -> Any:
        """P(query | evidence).

        Args:
            query: an observable, or several discrete ones for their joint distribution.
            evidence: name -> state or value, states or values per row (-1 or NaN: not observed), or (batch, states) soft
                evidence. Each row may observe different variables.
            at: (n,) points at which the density of a continuous variable is evaluated.
            raw: return the normalised estimate without clipping: it sums (or integrates) to 1 but may have negative entries.

        For evidence of estimated probability 0, such as a state never seen in training, the result is the marginal.

        Returns:
            (batch, states) for a discrete variable, (batch, states, states, …) for several; in a row that observes the queried
            variable, a one-hot distribution. For a continuous variable, whose own value in a row is ignored, the
            (batch, n) density at ``at``, or, without ``at``, a :class:`~torchpbp.inference.density.Density` with mean,
            variance, quantiles and samples. For a DataFrame of evidence, a DataFrame with the same index.
        """

        def answer(names: tuple[str, ...], checked: Evidence) -> Answer:
            if len(names) > 1:
                return self.joint_posterior(names, checked, raw)
            (name,) = names
            observable = self.observables[name]
            if at is not None and isinstance(observable.map, EncodedMap):
                raise QueryError(
                    f"Query of '{name}': at= needs a density, and a leaf with an encoder has mean and variance only."
                )
            if at is not None and not observable.continuous:
                raise QueryError(f"Query of '{name}': at= is for continuous variables, and this one has states.")
            estimate = self.estimates(checked, [name])[name]
            if at is not None:
                return self._density_at(observable, estimate, as_points(at), raw)
            return self._answer(observable, estimate, checked, raw)

        return self._ask(query, evidence, answer, at)

    def posteriors(self, evidence: EvidenceLike = None, raw: bool = False) -> Any:
        """Posteriors of every observable that is not observed in all rows, from one upward and one downward pass.

        ``model(evidence)`` calls this method. If every row observes everything, the result is empty, with a warning;
        :meth:`log_evidence` returns the probability of complete rows.

        Returns:
            name -> (batch, states), or a :class:`~torchpbp.inference.density.Density` for a continuous variable. For a
            DataFrame of evidence, a DataFrame with the same index.
        """

        def answer(wanted: list[str], checked: Evidence) -> dict[str, Any]:
            observables = self.observables
            if self.encoders is not None and self.encoders.context:
                wanted = [v for v in wanted if v == self.target]
            estimates = self.estimates(checked, wanted, every_leaf=True)
            discrete = {} if raw else {v: e for v, e in estimates.items() if not observables[v].continuous}
            answers = self.distributions(discrete, checked)
            return {
                v: answers[v] if v in answers else self._answer(observables[v], e, checked, raw)
                for v, e in estimates.items()
            }

        return self._ask_all(evidence, answer)

    def forward(self, evidence: EvidenceLike = None, raw: bool = False) -> Any:
        """:meth:`posteriors`."""
        return self.posteriors(evidence, raw)

    # -- probability of evidence ---------------------------------------------------------------------------------

    @overload
    def log_evidence(self, evidence: EvidenceLike = None, raw: Literal[False] = False) -> Tensor: ...
    @overload
    def log_evidence(self, evidence: EvidenceLike, raw: Literal[True]) -> tuple[Tensor, Tensor]: ...
    def log_evidence(self, evidence: EvidenceLike = None, raw: bool = False) -> Any:
        """(batch,) log P(evidence); with continuous evidence the log of a kernel-smoothed density.

        Leaves with encoders contribute the ratio of their density to their marginal density: the result is relative to the
        product of their marginals.

        An estimate that is not positive is replaced by ``floor`` times the sum of its absolute terms, so the result is
        finite; it is -inf only if every term is 0, as for a state never seen in training.

        Args:
            evidence: as in :meth:`posterior`.
            raw: return (sign, log of the absolute value) of the estimate without replacement, like ``slogdet``.
        """
        self.require_densities("log_evidence")
        checked = self.read_evidence(evidence)
        if not raw:
            return self.log_mass(checked)
        value, _, log_scale = self.mass(checked)
        return value.sign(), value.abs().log() + log_scale

    # -- samples -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(self, n: int, evidence: EvidenceLike = None, seed: int | None = None) -> dict[str, Tensor]:
        """Draw all observables from the learned distribution, given evidence.

        Args:
            n: number of draws per row of evidence.
            evidence: as in :meth:`posterior`.
            seed: of the draws; by default it is drawn from torch's global generator.

        Returns:
            name -> (n,) states or values without evidence, (n, batch) with.
        """

        def draw(checked: Evidence, generator: torch.Generator) -> dict[str, Tensor]:
            observables = self.observables
            if checked.batch == 0:
                kinds = {v: torch.float64 if o.continuous else torch.int64 for v, o in observables.items()}
                return {v: torch.empty(0, dtype=kind, device=self.device) for v, kind in kinds.items()}
            values = self.operator_tree.sample(checked, observables, self.floor, generator)
            return {v: values[v] for v in observables}

        self.require_densities("sample")
        return self._draw(n, evidence, seed, draw)

    # -- estimates, for layers and losses ------------------------------------------------------------------------

    def evidence_domains(self) -> dict[str, Domain]:
        return {v: o.domain for v, o in self.observables.items()}

    def read_evidence(self, evidence: EvidenceLike) -> Evidence:
        """Checked evidence whose encoder outputs are finite. Layers, which cannot raise errors, skip the latter check."""
        checked = super().read_evidence(evidence)
        if self.encoders is not None:
            with torch.no_grad():
                for name, vectors in self.leaf_reader().evidence_of(checked, self.root.weight).items():
                    require_finite(name, vectors)
        return checked

    def estimates(self, evidence: Evidence, names: Sequence[str], every_leaf: bool = False) -> dict[str, Tensor]:
        """Estimates without each variable's own evidence, up to a positive factor per row.

        Args:
            evidence: checked.
            names: of observables.
            every_leaf: let the downward pass reach all leaves, which is faster if most of them are in ``names``.

        Returns:
            name -> (batch, features).
        """
        tree, prepared = self.operator_tree, self.prepare(evidence)
        result: dict[str, Tensor] = {}
        if isinstance(tree, ClassTrees) and tree.name in names:
            result[tree.name] = tree.class_estimates(prepared)
        inside = [v for v in names if v in self.tree.leaf_of]
        if inside:
            result |= observable_estimates(tree, self.observables, prepared, inside, every_leaf)
        return {v: result[v] for v in names}

    def leaf_reader(self) -> LeafReader:
        """Reader of rows as features of the model's leaves."""
        leaves = {v: o for v, o in self.observables.items() if v in self.tree.leaf_of}
        return LeafReader(leaves, self.encoders)

    def leaf_shape(self, name: str) -> tuple[int, ...]:
        """Shape of an observable's values; () for numbers and states."""
        domain = self.observables[name].domain
        return tuple(domain.shape) if isinstance(domain, Continuous) else ()

    def prepare(self, evidence: Evidence) -> Evidence:
        """Checked evidence with feature vectors in place of the values of continuous variables."""
        observables, like = self.observables, self.root.weight
        if self.encoders is not None:
            vectors = self.leaf_reader().evidence_of(evidence, like)
            evidence = Evidence(evidence.batch, evidence.hard, {**evidence.soft, **vectors}, evidence.real)
        return prepare(observables, evidence, like)

    def mass(self, evidence: Evidence) -> Mass:
        """Estimates of P(evidence), possibly negative, for checked evidence."""
        return self._smoothed(self.operator_tree.mass(self.prepare(evidence)), evidence)

    def log_mass(self, evidence: Evidence) -> Tensor:
        """(batch,) log P(evidence) for checked evidence; floored where the estimate is not positive."""
        return self.mass(evidence).log(self.floor)

    def _smoothed(self, mass: Mass, evidence: Evidence) -> Mass:
        """The mass as a density: divided by the integrals of the kernels, multiplied by the scale of the evidence."""
        log_scale = mass.log_scale
        for observable in self.observables.values():
            log_scale = log_scale - observable.log_integral(evidence)
        return mass._replace(log_scale=evidence.scaled(log_scale))

    def _answer(self, observable: Observable, estimate: Tensor, evidence: Evidence, raw: bool) -> Answer:
        if isinstance(observable.map, EncodedMap):
            return observable.leaf_posterior(estimate, observable.map)
        if observable.continuous:
            return observable.density(estimate)
        if raw:
            weighted = estimate * observable.zeta(evidence, estimate)
            return weighted / weighted.sum(dim=-1, keepdim=True)
        return self.distribution(observable, estimate, evidence)

    def distribution(self, observable: Observable, estimate: Tensor, evidence: Evidence) -> Tensor:
        """(batch, states) distribution of a discrete variable from an estimate without its own evidence.

        Args:
            observable: the variable.
            estimate: (batch, states), up to a positive factor per row.
            evidence: checked.
        """
        readout = self.readout
        if readout is None or observable.name != readout.target:
            return observable.distribution(estimate, evidence, self.floor)
        weighted = estimate * observable.zeta(evidence, estimate) if observable.name in evidence.soft else estimate
        leaves = [v for v in self.tree.leaf_of if v != observable.name]
        probabilities = readout(weighted, hidden_share(evidence, leaves, estimate.device)).exp()
        return observable.with_known(probabilities, evidence)

    def distributions(self, estimates: Mapping[str, Tensor], evidence: Evidence) -> dict[str, Tensor]:
        """:meth:`distribution` of several variables: name -> (batch, states).

        Args:
            estimates: name -> (batch, states) estimate.
            evidence: checked.
        """
        observables, read_out = self.observables, None if self.readout is None else self.readout.target
        result = distributions(observables, {v: e for v, e in estimates.items() if v != read_out}, evidence, self.floor)
        return {
            v: result[v] if v in result else self.distribution(observables[v], e, evidence)
            for v, e in estimates.items()
        }

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

    def joint_posterior(
        self, names: Sequence[str], evidence: Evidence, raw: bool = False, tree: OperatorTree | ClassTrees | None = None
    ) -> Tensor:
        """P(names, evidence) for each joint state, as one larger batch of evidence.

        Args:
            names: discrete observables.
            evidence: checked.
            raw: as for :meth:`posterior`.
            tree: operators used in place of the model's; the result keeps their leading dimension.
        """
        for v in names:
            if self.observables[v].continuous:
                raise QueryError(f"Joint query of {tuple(names)}: '{v}' is continuous. Ask for it alone, or sample.")
        sizes = [self.observables[v].map.dim for v in names]
        wide, allowed = joint_states(evidence, dict(zip(names, sizes, strict=True)), self.device)
        value, _, log_scale = (self.operator_tree if tree is None else tree).mass(self.prepare(wide))
        leading, cells = value.shape[:-1], (evidence.batch, math.prod(sizes))
        if evidence.batch == 0:
            return value.reshape(*leading, 0, *sizes)
        shift = log_scale.reshape(*leading, *cells)
        scale = (shift - shift.amax(dim=-1, keepdim=True)).exp()
        estimate = value.reshape(*leading, *cells) * scale * allowed.to(value).reshape(cells)
        result = estimate / estimate.sum(dim=-1, keepdim=True) if raw else as_distribution(estimate, self.floor)
        return result.reshape(*leading, evidence.batch, *sizes)
