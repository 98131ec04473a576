"""PBPLayer: a model as a layer inside larger networks.

The layer takes tensors and returns tensors, with no checks that depend on their values, so that it can be compiled,
exported and vectorised. The model's own methods check their evidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from torchpbp.errors import ArgumentError, NotFittedError, QueryError, ShapeError
from torchpbp.inputs.evidence import Evidence, one_hot_where_observed, query_names, read_layer_evidence
from torchpbp.models.pbp import PBP
from torchpbp.precision import full_precision
from torchpbp.settings import positive, whole


class PBPLayer(nn.Module):
    """Posteriors of the unobserved variables of a :class:`~torchpbp.PBP` model, differentiable in model and evidence.

    Evidence is a dict of tensors: (batch,) states of any integer dtype with -1 where not observed, or booleans for the
    states 0 and 1; (batch, states) non-negative weights computed by an upstream network; or (batch,) values of a continuous
    variable with NaN where not observed. The names and forms of the evidence are fixed at compilation; only values vary.
    Compiled code cannot raise errors, so the answers are NaN in invalid rows: rows with a state out of range, a
    weight that is negative, infinite or NaN, weights that are all 0, or a value that is infinite or outside the range
    declared by the graph. Gradients of the other rows are unaffected.

    Args:
        model: a fitted PBP model. Operators trained from random ones by the loss of a layer learn next to nothing, so a model that
            is not fitted raises an error.

    Raises:
        NotFittedError: a model that is not fitted.

    Example:
        >>> from torchpbp import PBP, DiscreteNetwork, templates
        >>> truth = DiscreteNetwork.random(templates.naive_bayes(3), seed=1)
        >>> layer = PBPLayer(PBP(truth.graph).fit(truth.sample(500, seed=0)))
        >>> encoder = nn.Linear(10, 4).double()  # any network that weighs the four states of x1
        >>> weights = torch.softmax(encoder(torch.randn(32, 10).double()), dim=1)
        >>> layer({"x1": weights})["x2"].shape
        torch.Size([32, 4])
    """

    def __init__(self, model: PBP) -> None:
        super().__init__()
        if not isinstance(model, PBP):
            raise ArgumentError(f"PBPLayer: expected a PBP model, got {type(model).__name__}.")
        if not model.fitted:
            raise NotFittedError(
                "PBPLayer: the model is not fitted, and gradients alone do not find good operators. Train the model and its encoders "
                "by PBPModule(model).fit(table), or fit it, model.fit(table), and train it further as a layer. A network in a file "
                "is made with the fitted model, torchpbp.load(path)."
            )
        self.model = model

    def forward(self, evidence: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Posteriors of all discrete variables except those observed as states.

        Returns:
            name -> (batch, states). A variable with weights is included: its posterior combines the weights with the
            evidence of all other variables.
        """
        net = self.model.operators
        with full_precision(net.device):
            checked, invalid = self.read_evidence(evidence)
            return _nan_where(invalid, net(net.prepare(checked)))

    def estimates(self, evidence: Mapping[str, Tensor], variables: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Estimates before :meth:`forward` clips them: possibly negative, up to a positive factor per row.

        A variable's own weights are not part of its estimate: :meth:`forward` multiplies by them. Estimates are linear in
        weights, which may be negative here.

        A loss of estimates has a gradient where clipped probabilities have none. The factor is a constant to autograd, so the
        loss should not depend on it: divide by a norm first.

        Args:
            evidence: as in :meth:`forward`.
            variables: names; by default all discrete variables except those observed as states. Fewer take less time.

        Returns:
            name -> (batch, states), NaN in invalid rows.
        """
        net = self.model.operators
        with full_precision(net.device):
            prepared, invalid = self._prepared(evidence, signed=True)
            if variables is None:
                return _nan_where(invalid, net.estimates(prepared, net.open_variables(prepared), every_leaf=True))
            names = query_names(variables)
            self.model.check_query(names)
            return _nan_where(invalid, net.estimates(prepared, names))

    def _prepared(self, evidence: Mapping[str, Tensor], signed: bool = False) -> tuple[Evidence, Tensor]:
        """Prepared evidence, and flags of the invalid rows."""
        checked, invalid = self.read_evidence(evidence, signed)
        return self.model.operators.prepare(checked), invalid

    def log_evidence(self, evidence: Mapping[str, Tensor]) -> Tensor:
        """(batch,) log P(evidence), floored where the estimate is not positive."""
        self.model.require_densities("log_evidence")
        with full_precision(self.model.device):
            prepared, invalid = self._prepared(evidence)
            return self.model.operators.log_mass(prepared).masked_fill(invalid, torch.nan)

    def most_probable(self, evidence: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """name -> (batch,) states that maximise the posterior of each unobserved variable; -1 in rows with NaN answers."""
        return {v: p.argmax(dim=-1).masked_fill(p.isnan().any(dim=-1), -1) for v, p in self.forward(evidence).items()}

    def relaxed_sample(
        self, evidence: Mapping[str, Tensor], temperature: float = 1.0, hard: bool = False
    ) -> dict[str, Tensor]:
        """name -> (batch, states) Gumbel-softmax samples from the posterior of each unobserved variable, independently.

        Args:
            evidence: as in :meth:`forward`.
            temperature: samples become one-hot as it approaches 0.
            hard: one-hot in the forward pass, relaxed in the backward pass (straight-through).
        """
        temperature = positive().check("temperature", temperature)
        posteriors = self.forward(evidence)
        return {
            v: nn.functional.gumbel_softmax(p.clamp(min=1e-30).log(), tau=temperature, hard=hard)
            for v, p in posteriors.items()
        }

    def given(self, evidence: Mapping[str, Tensor]) -> PBPDistribution:
        """The distribution of all observables given the evidence."""
        return PBPDistribution(self, evidence)

    def read_evidence(self, evidence: Mapping[str, Tensor], signed: bool = False) -> tuple[Evidence, Tensor]:
        """Evidence without invalid entries, and (batch,) flags of the invalid rows; (1,) flags without evidence."""
        net = self.model.operators
        return read_layer_evidence(evidence, net.domains, net.root.weight.dtype, net.device, signed)


def _nan_where(invalid: Tensor, answers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Answers with NaN in invalid rows."""
    rows = invalid.unsqueeze(1)
    return {v: p.masked_fill(rows, torch.nan) for v, p in answers.items()}


class PBPDistribution:
    """The distribution of all observables given evidence, in the style of ``torch.distributions``; see :meth:`PBPLayer.given`.

    Args:
        layer: the layer.
        evidence: as in :meth:`PBPLayer.forward`.

    Example:
        >>> from torchpbp import PBP, DiscreteNetwork, templates
        >>> truth = DiscreteNetwork.random(templates.naive_bayes(3), seed=1)
        >>> layer = PBPLayer(PBP(truth.graph).fit(truth.sample(500, seed=0)))
        >>> distribution = layer.given({"x1": torch.tensor([0, 3])})
        >>> distribution.log_prob({"x2": torch.tensor([1, 1])}).shape
        torch.Size([2])
        >>> distribution.sample((5,))["x3"].shape
        torch.Size([5, 2])
    """

    def __init__(self, layer: PBPLayer, evidence: Mapping[str, Tensor]) -> None:
        self.layer = layer
        self.evidence = dict(evidence)
        self._checked, self._invalid = layer.read_evidence(evidence)

    @property
    def batch_shape(self) -> torch.Size:
        """(rows of evidence,)"""
        return torch.Size([self._checked.batch])

    @property
    def event_shape(self) -> torch.Size:
        """One entry per observable, in the order of ``names``."""
        return torch.Size([len(self.names)])

    @property
    def names(self) -> tuple[str, ...]:
        """The observables, in the order of the graph."""
        return tuple(self.layer.model.observables)

    @property
    def marginals(self) -> dict[str, Tensor]:
        """Posteriors of the unobserved variables."""
        return self.layer(self.evidence)

    def log_prob(self, values: Mapping[str, Tensor]) -> Tensor:
        """(batch,) log P(values | evidence) for values of any unobserved variables."""
        clash = [v for v in values if v in self._checked.hard or v in self._checked.real]
        if clash:
            raise QueryError(f"log_prob of {clash}: already in the evidence.")
        checked, invalid = self.layer.read_evidence(values)
        if values and self.evidence and checked.batch != self._checked.batch:
            raise ShapeError(f"log_prob: the values have {checked.batch} rows, the evidence has {self._checked.batch}.")
        condition = {**self._checked.hard, **self._checked.soft, **self._checked.real}
        joint: dict[str, Tensor] = {**condition, **values}
        extra = torch.zeros(1, dtype=self.layer.model.operators.root.weight.dtype, device=self.layer.model.device)
        for v in self._checked.soft.keys() & values.keys():
            weights = self._checked.soft[v]
            if v in checked.soft:
                joint[v] = weights * values[v]
                continue
            seen, states = checked.hard[v] >= 0, checked.hard[v].clamp(min=0)
            weight = weights.gather(1, states.unsqueeze(1)).squeeze(1)
            extra = extra + torch.where(seen, weight, 1.0).log()
            joint[v] = one_hot_where_observed(checked.hard[v], weights)
        answer = self.layer.log_evidence(joint) + extra - self.layer.log_evidence(condition)
        return torch.where(invalid | self._invalid, torch.nan, answer)

    def sample(self, sample_shape: int | Sequence[int] = (), seed: int | None = None) -> dict[str, Tensor]:
        """name -> (*sample_shape, batch) joint draws of all observables; an integer is a shape of one dimension.

        Invalid rows of evidence have states of -1 and values of NaN.
        """
        sample_shape = (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)
        for i, size in enumerate(sample_shape):
            whole(0).check(f"sample_shape[{i}]", size)
        count = math.prod(sample_shape)
        drawn = self.layer.model.sample(count, self._checked, seed=seed)
        marked = {v: x.masked_fill(self._invalid, torch.nan if x.is_floating_point() else -1) for v, x in drawn.items()}
        return {v: x.reshape(*sample_shape, self._checked.batch) for v, x in marked.items()}
