"""ClassTrees: one tree of operators per class of an observed variable, all on the same plan.

P(evidence) = Σ_c P(c) w_c P(evidence on the others | c), with w the evidence on the class itself. Each class has
its log scales, which are brought to a common scale before classes are summed: no class is divided by its noisy mass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.inference.observable import Observable, prepare
from torchpbp.inference.operator_tree import Mass, OperatorTree
from torchpbp.inference.schedule import Schedule
from torchpbp.inputs.evidence import Evidence
from torchpbp.planning.plan import Plan


class ClassTrees:
    """A mixture of operator trees over the classes of an observed variable, with the interface of an :class:`OperatorTree`.

    Evidence is shared by all classes. Evidence on the class variable, by states or weights, weights the classes.

    Args:
        plan: tree and message sizes, without the class variable.
        operators: per node (index 0 unused) a tensor (classes, message, children's messages…) or, at a leaf, (classes, message,
            features of the leaf's observables…).
        root: tensor (classes, messages of the root's children…).
        prior: (classes,) probabilities of the classes.
        name: name of the class variable.
        schedule: order of message passing; computed from the operators' shapes by default.
    """

    def __init__(
        self,
        plan: Plan,
        operators: Sequence[Tensor],
        root: Tensor,
        prior: Tensor,
        name: str,
        schedule: Schedule | None = None,
    ) -> None:
        self.plan, self.operators, self.root, self.prior, self.name = plan, operators, root, prior, name
        self.stacked = OperatorTree(plan, operators, root, schedule)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.root.shape[0]

    @property
    def schedule(self) -> Schedule:
        """Order of message passing, the same for all classes."""
        return self.stacked.schedule

    def tree(self, label: int) -> OperatorTree:
        """The operators of one class."""
        operators = [w[label] if n else self.root[label] for n, w in enumerate(self.operators)]
        return OperatorTree(self.plan, operators, self.root[label], self.stacked.schedule)

    # -- probabilities of evidence -------------------------------------------------------------------------------

    def class_masses(self, evidence: Evidence) -> Mass:
        """Estimates of P(evidence on the others | class), (batch, classes), with one log scale per entry."""
        value, size, log_scale = self.stacked.mass(evidence)
        return Mass(value.mT, size.mT, log_scale.mT)

    def class_estimates(self, evidence: Evidence) -> Tensor:
        """(batch, classes) estimates of P(class, evidence on the others), up to a positive factor per row."""
        value, _, log_scale = self.class_masses(evidence)
        factors, _ = _common_scale(self.prior.to(value).expand_as(value), log_scale)
        return factors * value

    def mass(self, evidence: Evidence) -> Mass:
        """(batch,) estimates of P(evidence), with the factors divided out of them."""
        value, size, log_scale = self.class_masses(evidence)
        factors, shift = _common_scale(self.weights(evidence), log_scale)
        return Mass((factors * value).sum(dim=-1), (factors.detach().abs() * size).sum(dim=-1), shift)

    def log_mass(self, evidence: Evidence, floor: float | Tensor = 0.0) -> Tensor:
        """(batch,) log P(evidence), see :meth:`~torchpbp.inference.operator_tree.Mass.log`."""
        return self.mass(evidence).log(floor)

    def weights(self, evidence: Evidence) -> Tensor:
        """(batch, classes) P(class) · weight of the class in the evidence."""
        prior = self.prior.to(self.root).expand(evidence.batch, -1)
        class_weights = evidence.weights(self.name, self.classes, prior.dtype, prior.device)
        return prior if class_weights is None else prior * class_weights

    def _possible(self, evidence: Evidence) -> Tensor:
        """:meth:`weights`, without P(class) in rows whose evidence allows only classes of probability 0."""
        weights = self.weights(evidence)
        class_weights = evidence.weights(self.name, self.classes, weights.dtype, weights.device)
        if class_weights is None:
            return weights
        return torch.where((weights == 0).all(dim=-1, keepdim=True), class_weights, weights)

    # -- estimates of the other observables ----------------------------------------------------------------------

    def estimates(self, evidence: Evidence, leaves: Sequence[int] | None = None) -> dict[int, Tensor]:
        """Joint estimates at leaves, averaged over the classes, each up to a positive factor per row.

        Args:
            evidence: evidence of a batch of rows.
            leaves: leaves to estimate; all by default.

        Returns:
            leaf -> (batch, features of its observables…), excluding evidence on these observables.
        """
        weights, result = self._possible(evidence), {}
        for leaf, (table, log_scale) in self.stacked.scaled_estimates(evidence, leaves).items():
            factors, _ = _common_scale(weights, log_scale.mT)
            result[leaf] = torch.einsum("nc,cn...->n...", factors, table)
        return result

    def sample(
        self,
        evidence: Evidence,
        observables: Mapping[str, Observable],
        floor: float | Tensor,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """Draw the class and then all other observables, given the evidence; one draw per row of evidence.

        Args:
            evidence: unprepared states, weights and values.
            observables: observables with their feature maps, including the class variable.
            floor: least probability of a state, as a share of the mass.
            generator: random generator of the draws.

        Returns:
            name -> (batch,) states or values.
        """
        others = {v: o for v, o in observables.items() if v != self.name}
        estimate = self.class_estimates(prepare(others, evidence, self.root))
        labels = observables[self.name].draw(estimate, evidence, floor, generator)
        values: dict[str, Tensor] = {self.name: labels}
        for label in sorted(set(labels.tolist())):
            rows = (labels == label).nonzero().squeeze(1)
            for v, drawn in self.tree(label).sample(evidence.rows(rows), others, floor, generator).items():
                if v not in values:
                    values[v] = drawn.new_empty(len(labels))
                values[v][rows] = drawn
        return values


def _common_scale(weights: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of classes, multiplied so that their values share one scale per row.

    Args:
        weights: (batch, classes).
        log_scale: (batch, classes) log of the factor divided out of each class.

    Returns:
        (batch, classes) weights · exp(log_scale − shift), and (batch,) shift, the largest log scale among weighted classes.
    """
    shift = torch.where(weights == 0, -torch.inf, log_scale).amax(dim=-1)
    shift = torch.where(shift.isinf(), torch.zeros_like(shift), shift)
    return weights * (log_scale - shift.unsqueeze(-1)).clamp(max=0).exp(), shift
