"""OperatorNet: a junction tree as modules, with one learned operator per separator."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from torchpbp.errors import NotFittedError, QueryError
from torchpbp.features.encoded import EncodedMap, Encoders
from torchpbp.graph.domains import Domain
from torchpbp.grouping import grouped
from torchpbp.inference.density import Density, LeafPosterior
from torchpbp.inference.leaf_features import LeafReader, hidden_share
from torchpbp.inference.observable import Observable, as_distribution, distributions, joint_states, prepare
from torchpbp.inference.operator_tree import Mass, OperatorTree
from torchpbp.inference.readout import Readout
from torchpbp.inference.schedule import Schedule, build_schedule
from torchpbp.inputs.evidence import Evidence, warn_of_no_question
from torchpbp.planning.plan import Plan

Answer = Tensor | Density | LeafPosterior
"""A distribution over states, a density, or mean and variance of a leaf with an encoder."""
EXACT_FLOOR = 1e-15
"""Clipping floor of operators without sampling noise."""
JOINT_ROWS = 1 << 16
"""Rows of evidence and joint states of a query that are handled at once."""
SHOWN_SEPARATORS = 20
"""Largest number of separators in the printed tree."""


class SeparatorOperator(nn.Module):
    """The operator of a separator: predicts the children's messages or the leaf's features from the message.

    Args:
        shape: (rank, children's ranks…) or, at a leaf, (rank, states of its observables…).
        name: of the separator.
        dtype: of the weight.
        classes: number of classes, with one operator each; None for a single operator.

    Attributes:
        weight: the operator; like ``strengths`` and ``significant`` it has a leading dimension if there are classes.
        strengths: (rank,) canonical correlations between core group and instrument along the message's dimensions.
        significant: number of statistically significant dimensions in the training data.
    """

    strengths: Tensor
    significant: Tensor

    def __init__(self, shape: Sequence[int], name: str, dtype: torch.dtype, classes: int | None = None) -> None:
        super().__init__()
        self.name = name
        leading = () if classes is None else (classes,)
        self.weight = nn.Parameter(torch.zeros(*leading, *shape, dtype=dtype))
        self.register_buffer("strengths", torch.zeros(*leading, shape[0], dtype=dtype))
        self.register_buffer("significant", torch.zeros(leading, dtype=torch.int64))

    def extra_repr(self) -> str:
        return f"{self.name}, shape={tuple(self.weight.shape)}"


class RootOperator(nn.Module):
    """T = E[⊗ θ] over the root's children.

    Args:
        shape: children's ranks.
        dtype: of the weight.
        classes: number of classes, the size of a leading dimension; None for a single root.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, classes: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(*(() if classes is None else (classes,)), *shape, dtype=dtype))

    def extra_repr(self) -> str:
        return f"shape={tuple(self.weight.shape)}"


class OperatorNet(nn.Module):
    """The numerical core of a model: operators on a junction tree, observables with their feature maps, encoders and readout.

    Inputs and outputs are tensors: evidence is checked and prepared (:meth:`prepare`), answers are estimates, distributions,
    log-masses and samples, all differentiable in operators, encoders and evidence. Labels, tables and files belong to the
    model.

    Args:
        observables: observed variables with their feature maps, in the order of the graph.
        encoders: of leaves that are vectors or images; None without such leaves.
        condition: the class variable, with an operator tree per class; None for a single tree.
        dtype: of the operators.

    Attributes:
        separators: operators of the separators in the order of the tree, node 1 first.
        root: operator of the root clique; like the separators absent before :meth:`build`.
        readout: link from estimates of a target to its probabilities; None without a target.
        context: whether the encoder reads all leaves of a row, so that only the target can be queried.
        floor: estimates are clipped at this share of their mass.
        prior: (classes,) shares of the classes, with ``condition``.

    Example:
        >>> from torchpbp import PBP, DiscreteNetwork, templates
        >>> truth = DiscreteNetwork.random(templates.hmm(3, states=2), seed=1)
        >>> print(PBP(truth.graph).fit(truth.sample(500, seed=0)).operators)
        OperatorNet(3 separators
          root: (2, 2, 2)
            {h1} → x1: (2, 4)
            {h2} → x2: (2, 4)
            {h3} → x3: (2, 4)
        )
    """

    floor: Tensor
    prior: Tensor
    separators: nn.ModuleList
    root: RootOperator
    encoders: Encoders | None
    readout: Readout | None

    def __init__(
        self,
        observables: Iterable[Observable],
        encoders: Encoders | None = None,
        condition: str | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.condition, self.dtype = condition, dtype
        self._plan: Plan | None = None
        self._schedule: Schedule | None = None
        self.encoders, self.readout = encoders, None
        self.context = encoders is not None and encoders.context
        self.register_buffer("floor", torch.tensor(EXACT_FLOOR, dtype=torch.float64))
        self.set_observables(observables)
        if condition is not None:
            classes = self.observables[condition].map.dim
            self.register_buffer("prior", torch.full((classes,), 1 / classes, dtype=torch.float64))
        self.separators = nn.ModuleList()
        self.register_module("root", None)

    # -- structure -----------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The junction tree, with core group, instrument and message size of each separator."""
        if self._plan is None:
            raise NotFittedError("With rank='auto' the plan is made while fitting. Call fit() first.")
        return self._plan

    @property
    def planned(self) -> bool:
        """Whether there are operators."""
        return self._plan is not None

    @property
    def classes(self) -> int | None:
        """Number of classes; None without a class variable."""
        return None if self.condition is None else len(self.prior)

    @property
    def device(self) -> torch.device:
        return self.floor.device

    @property
    def target(self) -> str | None:
        """The variable that the readout predicts, or None."""
        return None if self.readout is None else self.readout.target

    def set_target(self, name: str) -> None:
        """Give a discrete variable a learned link from estimates to probabilities, unless it has one."""
        if self.target != name:
            self.readout = Readout(name).to(self.device)

    def set_observables(self, observables: Iterable[Observable]) -> None:
        """Replace the observables."""
        self.variables = nn.ModuleList(observables)
        if self.device.type != "cpu" or self.planned:  # walking over thousands of new modules is slow
            self.variables.to(self.device)
        self.observables = {o.name: o for o in cast(Iterable[Observable], self.variables)}
        self.domains: dict[str, Domain] = {v: o.domain for v, o in self.observables.items()}
        self._continuous = {v: o for v, o in self.observables.items() if o.continuous}
        leaves = {v: o for v, o in self.observables.items() if v != self.condition}
        self.reader = LeafReader(leaves, self.encoders)

    def build(self, plan: Plan) -> None:
        """Create operators of zeros with the shapes of a plan."""
        shapes = plan.operator_shapes({v: o.map.dim for v, o in self.observables.items()})
        self._plan, self._schedule = plan, build_schedule(plan.tree, shapes)
        nodes = range(1, len(plan.tree))
        self.separators = nn.ModuleList(
            SeparatorOperator(shapes[n], plan.tree.separator_name(n), self.dtype, self.classes) for n in nodes
        )
        self.root = RootOperator(plan.root_shape, self.dtype, self.classes)
        if self.root.weight.device != self.device:  # moving thousands of modules is slow
            self.separators.to(self.device)
            self.root.to(self.device)

    @property
    def separator_operators(self) -> list[SeparatorOperator]:
        """Operators of all separators, node 1 first."""
        return list(cast(Iterable[SeparatorOperator], self.separators))

    @property
    def tree(self) -> OperatorTree:
        """The current operators as an operator tree; gradients flow to the parameters."""
        root = self.root.weight
        operators = [root, *(op.weight for op in cast(Iterable[SeparatorOperator], self.separators))]
        prior = None if self.condition is None else self.prior
        return OperatorTree(self.plan, operators, root, self.condition, prior, self._schedule)

    @torch.no_grad()
    def set_tree(self, tree: OperatorTree) -> None:
        """Copy the operators of a tree; new operators are created for another plan."""
        if tree.plan is not self._plan:
            self.build(tree.plan)
        for operator, weight in zip(self.separator_operators, tree.operators[1:], strict=True):
            operator.weight.copy_(weight)
        self.root.weight.copy_(tree.root)

    @torch.no_grad()
    def set_marginals(self, marginals: Mapping[str, Tensor] | None = None) -> None:
        """Store each discrete variable's marginal, towards which noisy answers are shrunk.

        Args:
            marginals: name -> (states,) marginals of the training rows; by default the estimates without evidence.
        """
        if marginals is None:
            discrete = [v for v, o in self.observables.items() if not o.continuous]
            marginals = {v: e[0] for v, e in self.estimates(self.prepare(Evidence(1)), discrete).items()}
        sizes = {v: len(estimate) for v, estimate in marginals.items()}
        for names in grouped(sizes, sizes.__getitem__).values():
            clipped = as_distribution(torch.stack([marginals[v] for v in names]), self.floor)
            for v, marginal in zip(names, clipped, strict=True):
                self.observables[v].marginal.copy_(marginal)

    # -- evidence ------------------------------------------------------------------------------------------------

    def prepare(self, evidence: Evidence) -> Evidence:
        """Checked evidence with an evidence vector for each continuous variable."""
        if not self._continuous:
            return evidence
        like = self.root.weight
        if self.encoders is not None:
            vectors = self.reader.evidence_of(evidence, like)
            evidence = replace(evidence, soft={**evidence.soft, **vectors})
        return prepare(self._continuous, evidence, like)

    # -- answers about prepared evidence -------------------------------------------------------------------------

    def forward(self, evidence: Evidence) -> dict[str, Tensor]:
        """Distributions of all discrete variables that the evidence does not name by states: name -> (batch, states)."""
        return self.distributions(self.estimates(evidence, self.open_variables(evidence), every_leaf=True), evidence)

    def open_variables(self, evidence: Evidence) -> list[str]:
        """Discrete variables that the evidence does not name by states, not even in some rows; with a context encoder only the target. Warns if there are none."""
        names = [v for v in self.observables if v not in self._continuous and v not in evidence.hard]
        if self.context:
            names = [v for v in names if v == self.target]
        if not names and not torch.compiler.is_compiling():
            warn_of_no_question("every discrete variable is given by its states")
        return names

    def estimates(
        self, evidence: Evidence, names: Sequence[str], every_leaf: bool = False, tree: OperatorTree | None = None
    ) -> dict[str, Tensor]:
        """Estimates without each variable's own evidence, up to a positive factor per row.

        Args:
            evidence: prepared.
            names: of observables.
            every_leaf: let the downward pass reach all leaves, which is faster if most of them are in ``names``.
            tree: operators in place of the current ones.

        Returns:
            name -> (batch, features).
        """
        tree = self.tree if tree is None else tree
        return tree.observable_estimates(self.observables, evidence, names, every_leaf)

    def distribution(self, name: str, estimate: Tensor, evidence: Evidence) -> Tensor:
        """(batch, states) distribution of a discrete variable.

        Args:
            name: of the variable.
            estimate: (batch, states) estimate without the variable's own evidence, up to a positive factor per row.
            evidence: prepared.
        """
        observable = self.observables[name]
        if self.readout is None or name != self.readout.target:
            return observable.distribution(estimate, evidence, self.floor)
        weighted = estimate * observable.zeta(evidence, estimate) if name in evidence.soft else estimate
        leaves = [v for v in self.reader.names if v != name]
        probabilities = self.readout(weighted, hidden_share(evidence, leaves, estimate.device)).exp()
        return observable.with_observed(probabilities, evidence)

    def answer(self, name: str, estimate: Tensor, evidence: Evidence, raw: bool = False) -> Answer:
        """Posterior of a variable; ``raw``: of a discrete one without clipping. Arguments as for :meth:`distribution`."""
        observable = self.observables[name]
        if isinstance(observable.map, EncodedMap):
            return observable.leaf_posterior(estimate, observable.map)
        if observable.continuous:
            return observable.density(estimate)
        if raw:
            weighted = estimate * observable.zeta(evidence, estimate)
            return weighted / weighted.sum(dim=-1, keepdim=True)
        return self.distribution(name, estimate, evidence)

    def distributions(self, estimates: Mapping[str, Tensor], evidence: Evidence) -> dict[str, Tensor]:
        """:meth:`distribution` of several variables: name -> (batch, states)."""
        clipped = {v: e for v, e in estimates.items() if v != self.target}
        result = distributions(self.observables, clipped, evidence, self.floor)
        return {v: result[v] if v in result else self.distribution(v, e, evidence) for v, e in estimates.items()}

    def mass(self, evidence: Evidence, tree: OperatorTree | None = None) -> Mass:
        """Estimates of P(evidence), possibly negative.

        A density for continuous evidence: the mass is divided by the integrals of the kernels, and multiplied by the scale
        of the evidence.
        """
        mass = (self.tree if tree is None else tree).mass(evidence)
        log_scale = mass.log_scale
        for observable in self.observables.values():
            log_scale = log_scale - observable.log_integral(evidence)
        return mass._replace(log_scale=evidence.scaled(log_scale))

    def log_mass(self, evidence: Evidence) -> Tensor:
        """(batch,) log P(evidence); floored where the estimate is not positive."""
        return self.mass(evidence).log(self.floor)

    def joint(
        self, names: Sequence[str], evidence: Evidence, raw: bool = False, tree: OperatorTree | None = None
    ) -> Tensor:
        """P(names | evidence) of discrete variables, by one mass per joint state.

        Args:
            names: discrete observables.
            evidence: prepared.
            raw: leave negative estimates as they are.
            tree: operators in place of the current ones; the result keeps their leading dimension.

        Returns:
            (batch, states, states, …).
        """
        for v in names:
            if self.observables[v].continuous:
                raise QueryError(f"Joint query of {tuple(names)}: '{v}' is continuous. Ask for it alone, or sample.")
        tree = self.tree if tree is None else tree
        sizes = [self.observables[v].map.dim for v in names]
        rows = max(1, JOINT_ROWS // math.prod(sizes))
        parts = [
            self._joint(dict(zip(names, sizes, strict=True)), evidence.rows(slice(start, start + rows)), raw, tree)
            for start in range(0, max(evidence.batch, 1), rows)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1 - len(sizes))

    def _joint(self, states: Mapping[str, int], evidence: Evidence, raw: bool, tree: OperatorTree) -> Tensor:
        wide, allowed = joint_states(evidence, states, self.device)
        value, _, log_scale = tree.mass(wide)
        leading, cells = value.shape[:-1], math.prod(states.values())
        shape = (*leading, evidence.batch, *states.values())
        if evidence.batch == 0:
            return value.reshape(shape)
        allowed = allowed.to(value).reshape(-1, cells)
        shift = log_scale.reshape(*leading, -1, cells)
        scale = (shift - shift.amax(dim=-1, keepdim=True)).exp()
        estimate = value.reshape(*leading, -1, cells) * scale * allowed
        if not raw:  # the floor applies to states that the evidence allows
            estimate = as_distribution(estimate, self.floor) * (allowed > 0)
        return (estimate / estimate.sum(dim=-1, keepdim=True)).reshape(shape)

    def sample(self, evidence: Evidence, generator: torch.Generator) -> dict[str, Tensor]:
        """Draws of all observables, one per row of prepared evidence: name -> (batch,)."""
        if evidence.batch == 0:
            kinds = {v: torch.float64 if o.continuous else torch.int64 for v, o in self.observables.items()}
            return {v: torch.empty(0, dtype=kind, device=self.device) for v, kind in kinds.items()}
        values = self.tree.sample(evidence, self.observables, self.floor, generator)
        return {v: values[v] for v in self.observables}

    # -- printing ------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """The junction tree: separators indented by depth, leaves with their observables, and the shapes of the operators."""
        if self._plan is None:
            return f"{type(self).__name__}({len(self.observables)} observables, not planned yet)"
        tree, operators = self._plan.tree, self.separator_operators
        lines = [f"root: {tuple(self.root.weight.shape)}"]
        stack = list(reversed(tree.children[0]))
        while stack and len(lines) <= SHOWN_SEPARATORS:
            node = stack.pop()
            stack += reversed(tree.children[node])
            name = "{" + ", ".join(sorted(tree.separators[node])) + "}"
            leaf = "".join(f" → {v}" for v in tree.leaf_observables[node])
            lines.append("  " * tree.depth[node] + f"{name}{leaf}: {tuple(operators[node - 1].weight.shape)}")
        if stack:
            lines.append(f"… {len(operators) - SHOWN_SEPARATORS} more separators")
        for name, module in (("encoders", self.encoders), ("readout", self.readout)):
            if module is not None:
                lines += f"({name}): {module!r}".split("\n")
        condition = (
            "" if self.condition is None else f", condition={self.condition!r} with {self.classes} classes first"
        )
        body = "\n".join(f"  {line}" for line in lines)
        return f"{type(self).__name__}({len(operators)} separators{condition}\n{body}\n)"
