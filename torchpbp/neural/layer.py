"""PBPLayer: a model as a layer inside larger networks.

The layer takes tensors and returns tensors, with no checks that depend on their values, so that it can be compiled,
exported and vectorised. Whoever builds the evidence by hand gets the checks from the model itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from torchpbp.errors import ArgumentError, QueryError, ShapeError
from torchpbp.inputs.evidence import Evidence, query_names, warn_of_no_question
from torchpbp.inputs.layer_evidence import read_layer_evidence
from torchpbp.models.two_stage_model import TwoStageModel
from torchpbp.precision import full_precision
from torchpbp.settings import non_negative, positive, whole
from torchpbp.settings import seed as checked_seed


class PBPLayer(nn.Module):
    """Posteriors of the unobserved variables of a :class:`~torchpbp.PBP` model, differentiable in model and evidence.

    Evidence is a dict of tensors: (batch,) states of any integer dtype with -1 where not observed, or booleans for the
    states 0 and 1; (batch, states) non-negative weights computed by an upstream network; or (batch,) values of a continuous
    variable with NaN where not observed. Which variables are given, and in which form, is part of the program; only their
    values vary. A check that raised could not be compiled, so an invalid row gets NaN answers: a state out of range, a
    weight that is negative, infinite or NaN, weights that are all 0, a value that is infinite or outside the range that the
    graph declares. The gradients of the other rows do not feel it.

    Args:
        model: a PBP model with operators (fitted, loaded, or freshly initialised by :meth:`initialise`).

    Example:
        >>> from torchpbp import PBP, DiscreteNetwork, templates
        >>> truth = DiscreteNetwork.random(templates.naive_bayes(3), seed=1)
        >>> layer = PBPLayer(PBP(truth.graph).fit(truth.sample(500, seed=0)))
        >>> encoder = nn.Linear(10, 4).double()  # any network that weighs the four states of x1
        >>> weights = torch.softmax(encoder(torch.randn(32, 10).double()), dim=1)
        >>> layer({"x1": weights})["x2"].shape
        torch.Size([32, 4])
    """

    def __init__(self, model: TwoStageModel) -> None:
        super().__init__()
        if not isinstance(model, TwoStageModel):
            raise ArgumentError(f"PBPLayer: expected a PBP model, got {type(model).__name__}.")
        model.plan  # noqa: B018  raises NotFittedError if the structure is not fixed yet
        self.model = model

    def initialise(self, scale: float = 0.1, seed: int = 0) -> PBPLayer:
        """Start from independence plus noise instead of a fit: each message predicts its leaf uniformly at first.

        Args:
            scale: size of the noise.
            seed: of the noise.
        """
        scale = non_negative().check("scale", scale)
        generator = torch.Generator().manual_seed(checked_seed().check("seed", seed))
        tree = self.model.tree
        with torch.no_grad():
            for node, operator in zip(range(1, len(tree)), self.model.separator_operators, strict=True):
                weight = operator.weight
                noise = scale * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
                weight.copy_(noise)
                for own in self._of_classes(weight):
                    if tree.leaf_observables[node]:
                        own[0] = 1.0 / own[0].numel()
                    else:
                        own[0].zero_()
                        own[(0,) * own.ndim] = 1.0
            root = self.model.root.weight
            root.copy_(scale * torch.randn(root.shape, generator=generator, dtype=torch.float64))
            for own in self._of_classes(root):
                own[(0,) * own.ndim] = 1.0
        self.model.fitted = True
        return self

    def _of_classes(self, weight: Tensor) -> list[Tensor]:
        """Views of the operators of each class; a model without classes has one."""
        return [weight] if self.model.condition is None else list(weight)

    def forward(self, evidence: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Posteriors of all discrete variables that ``evidence`` does not give as states or values.

        Returns:
            name -> (batch, states). A variable given as weights is included: its posterior combines the weights with
            what all others say.
        """
        with full_precision(self.model.device):
            read, valid = self.read_evidence(evidence)
            return _where_valid(valid, self.model.distributions(self._open(read), read))

    def estimates(self, evidence: Mapping[str, Tensor], variables: Sequence[str] | None = None) -> dict[str, Tensor]:
        """What :meth:`forward` makes distributions of: estimates that may be negative, up to a positive factor per row.

        A variable's own weights are left out of its estimate: :meth:`forward` multiplies by them. Estimates are linear in
        weights, so that negative ones are no mistake here.

        A loss on them has a gradient where clipped probabilities have none. The factor is a constant to autograd, so what
        is trained on should not depend on it: divide by a norm first.

        Args:
            evidence: as in :meth:`forward`.
            variables: those wanted; fewer take less time.

        Returns:
            name -> (batch, states), NaN in invalid rows.
        """
        with full_precision(self.model.device):
            read, valid = self.read_evidence(evidence, signed=True)
            return _where_valid(valid, self._open(read, variables))

    def _open(self, read: Evidence, variables: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Estimates of the variables asked for, or of all that are not given as states."""
        if variables is not None:
            wanted = list(query_names(variables))
            self.model.check_query(wanted)
            return self.model.estimates(read, wanted)
        wanted = [v for v, o in self.model.observables.items() if not o.continuous and v not in read.hard]
        if self.model.encoders is not None and self.model.encoders.context:
            wanted = [v for v in wanted if v == self.model.target]
        if not wanted and not torch.compiler.is_compiling():
            warn_of_no_question("every discrete variable is given by its states")
        return self.model.estimates(read, wanted, every_leaf=True)

    def log_evidence(self, evidence: Mapping[str, Tensor]) -> Tensor:
        """(batch,) log P(evidence), floored where the estimate is not positive."""
        self.model.require_densities("log_evidence")
        with full_precision(self.model.device):
            read, valid = self.read_evidence(evidence)
            return torch.where(valid, self.model.log_mass(read), torch.nan)

    def most_probable(self, evidence: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """name -> (batch,) the most probable state of each unobserved variable by itself; -1 in rows with NaN answers."""
        return {v: p.argmax(dim=-1).masked_fill(p.isnan().any(dim=-1), -1) for v, p in self.forward(evidence).items()}

    def relaxed_sample(
        self, evidence: Mapping[str, Tensor], temperature: float = 1.0, hard: bool = False
    ) -> dict[str, Tensor]:
        """name -> (batch, states) Gumbel-softmax samples of each unobserved variable by itself.

        Args:
            evidence: as in :meth:`forward`.
            temperature: low values come close to one-hot samples.
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
        """Evidence without what is invalid, and (batch,) which rows are valid; (1,) where there is no evidence."""
        self.model.require_fitted()
        return read_layer_evidence(
            evidence, self.model.evidence_domains(), self.model.root.weight.dtype, self.model.floor.device, signed
        )


def _where_valid(valid: Tensor, answers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Answers with NaN in invalid rows."""
    invalid = ~valid.unsqueeze(1)
    return {v: p.masked_fill(invalid, torch.nan) for v, p in answers.items()}


class PBPDistribution:
    """All observables given evidence, in the manner of ``torch.distributions``. Made by :meth:`PBPLayer.given`.

    Args:
        layer: the layer.
        evidence: as in :meth:`PBPLayer.forward`.

    Example:
        >>> from torchpbp import PBP, DiscreteNetwork, templates
        >>> truth = DiscreteNetwork.random(templates.naive_bayes(3), seed=1)
        >>> given = PBPLayer(PBP(truth.graph).fit(truth.sample(500, seed=0))).given({"x1": torch.tensor([0, 3])})
        >>> given.log_prob({"x2": torch.tensor([1, 1])}).shape
        torch.Size([2])
        >>> given.sample((5,))["x3"].shape
        torch.Size([5, 2])
    """

    def __init__(self, layer: PBPLayer, evidence: Mapping[str, Tensor]) -> None:
        self.layer = layer
        self.evidence = dict(evidence)
        self._read, self._valid = layer.read_evidence(evidence)

    @property
    def batch_shape(self) -> torch.Size:
        """(rows of evidence,)"""
        return torch.Size([self._read.batch])

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
        """(batch,) log P(values | evidence) for some or all of the variables that are not observed yet."""
        clash = [v for v in values if v in self._read.hard or v in self._read.real]
        if clash:
            raise QueryError(f"log_prob of {clash}: already in the evidence.")
        read, valid = self.layer.read_evidence(values)
        if values and self.evidence and read.batch != self._read.batch:
            raise ShapeError(f"log_prob: the values have {read.batch} rows, the evidence has {self._read.batch}.")
        known = {**self._read.hard, **self._read.soft, **self._read.real}
        joint: dict[str, Tensor] = {**known, **values}
        extra = torch.zeros(1, dtype=self.layer.model.root.weight.dtype, device=self.layer.model.floor.device)
        for v in self._read.soft.keys() & values.keys():
            weights = self._read.soft[v]
            if v in read.soft:
                joint[v] = weights * values[v]
                continue
            seen, states = read.hard[v] >= 0, read.hard[v].clamp(min=0)
            own = weights.gather(1, states.unsqueeze(1)).squeeze(1)
            extra = extra + torch.where(seen, own, 1.0).log()
            joint[v] = torch.where(seen.unsqueeze(1), nn.functional.one_hot(states, weights.shape[1]), weights)
        answer = self.layer.log_evidence(joint) + extra - self.layer.log_evidence(known)
        return torch.where(valid & self._valid, answer, torch.nan)

    def sample(self, sample_shape: int | Sequence[int] = (), seed: int | None = None) -> dict[str, Tensor]:
        """name -> (*sample_shape, batch) joint draws of all observables; a number is taken for a shape of one dimension.

        Invalid rows of evidence have states of -1 and values of NaN.
        """
        sample_shape = (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)
        for i, size in enumerate(sample_shape):
            whole(0).check(f"sample_shape[{i}]", size)
        count = math.prod(sample_shape)
        drawn = self.layer.model.sample(count, self._read, seed=seed)
        kept = {v: torch.where(self._valid, x, torch.nan if x.is_floating_point() else -1) for v, x in drawn.items()}
        return {v: x.reshape(*sample_shape, self._read.batch) for v, x in kept.items()}
