"""Observables of a model: they map values to evidence vectors and estimates to distributions."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from torchpbp.errors import QueryError
from torchpbp.features.encoded import EncodedMap
from torchpbp.features.maps import FeatureMap, KernelMap, Nystroem, one_hot
from torchpbp.graph.latent_graph import Continuous, Domain
from torchpbp.grouping import grouped
from torchpbp.inference.density import GRID, Density, LeafPosterior, grid_density
from torchpbp.inputs.evidence import Evidence, one_hot_where_observed
from torchpbp.inputs.missing_values import observed

SMALL_BATCH = 1024
"""Largest batch in which variables are computed together; beyond it, tensors of single variables make better use of the cache."""

LARGEST_SHARE = 0.1
"""Largest share of the mass of an estimate that its floor may take over all states together."""
NOISE = 0.05
"""Probability of the evidence, as a share of an estimate's norm, below which means of encoded leaves treat it as noise."""


class Observable(nn.Module):
    """One observed variable with its feature map.

    Args:
        name: the variable.
        domain: number of states, or a continuous range.
        map: feature map of the variable.

    Attributes:
        continuous: whether the variable has a range in place of states.
        bounds: (2,) range over which densities are normalised; of continuous variables only.
        functionals: (dim, 2) weights with which features predict u and u², where u is the standardised value: for data
            far from 0, x² would dominate the variance. For a leaf with an encoder (dim, 2 · entries), the weights of u
            first; of continuous variables only.
        marginal: (dim,) prior distribution, towards which noisy estimates are shrunk; of discrete variables only.
    """

    bounds: Tensor
    functionals: Tensor
    marginal: Tensor

    def __init__(self, name: str, domain: Domain, map: FeatureMap) -> None:
        super().__init__()
        self.name, self.domain, self.map = name, domain, map
        self.continuous = isinstance(domain, Continuous)
        if self.continuous:
            entries = torch.Size(map.shape).numel() if isinstance(map, EncodedMap) else 1
            self.register_buffer("bounds", torch.zeros(2, dtype=torch.float64, device="cpu"))
            functionals = torch.zeros(map.dim, 2 * entries, dtype=torch.float64, device="cpu")
            self.register_buffer("functionals", functionals)
        else:
            marginal = torch.full((map.dim,), 1 / map.dim, dtype=torch.float64, device="cpu")
            self.register_buffer("marginal", marginal)

    def fit(self, values: Tensor, extent: tuple[float, float] | None = None) -> None:
        """Fit the map, the range and the moment functionals of a continuous variable.

        Args:
            values: (n,) training values.
            extent: smallest and largest training value, if ``values`` are only a sample of them.
        """
        if not isinstance(self.domain, Continuous):
            return
        self.map.fit(values)
        if isinstance(self.map, EncodedMap):
            features, standard = self.map.features(values), self.map.standard_values(values).double()
            moments = features.T @ torch.cat([standard, standard.square()], dim=1)
            self.set_functionals(self.map.gram, moments / len(values))
            return
        low, high = extent or (float(values.min()), float(values.max()))
        margin = 3 * float(self.map.width) if isinstance(self.map, KernelMap) else 0.1 * (high - low)
        self.bounds[0] = low - margin if self.domain.low is None else self.domain.low
        self.bounds[1] = high + margin if self.domain.high is None else self.domain.high
        features = self.map.features(values)
        gram = features.T @ features
        ridge = 1e-6 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        centre, scale = self._units()
        standard = (values - centre) / scale
        targets = torch.stack([standard, standard**2], dim=1)
        self.functionals.copy_(torch.linalg.solve(gram + ridge, features.T @ targets))

    @torch.no_grad()
    def set_functionals(self, gram: Tensor, moments: Tensor) -> None:
        """Set the weights with which features predict values and their squares.

        Args:
            gram: (dim, dim) E[φφᵀ].
            moments: (dim, 2 · entries) E[φ (u, u²)ᵀ].
        """
        ridge = 1e-6 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        self.functionals.copy_(torch.linalg.solve(gram + ridge, moments))

    def zeta(self, evidence: Evidence, like: Tensor) -> Tensor:
        """Evidence vector: (batch, dim), or (dim,) where no row mentions the variable."""
        if self.name in evidence.real and self.name not in evidence.soft:
            missing = self.map.missing().to(like)
            values = evidence.real[self.name]
            if isinstance(self.map, EncodedMap):
                mask = observed(values)
                cells = mask.reshape(-1, *[1] * (values.ndim - 1))
                encoded = self.map.evidence(torch.where(cells, values, torch.zeros_like(values)))
                return torch.where(mask.unsqueeze(1), encoded.to(like), missing)
            seen = ~values.isnan()
            filled = torch.where(seen, values, self.bounds.mean())
            return torch.where(seen.unsqueeze(1), self.map.evidence(filled).to(like), missing)
        weights = evidence.weights(self.name, self.map.dim, like.dtype, like.device)
        return self.map.missing().to(like) if weights is None else weights

    def log_integral(self, evidence: Evidence) -> Tensor | float:
        """Log of the kernel's integral in rows that observe a continuous variable; it turns masses into densities."""
        if self.name not in evidence.real or not isinstance(self.map, KernelMap):
            return 0.0
        seen = ~evidence.real[self.name].isnan()
        return seen * (self.map.width * self.map.kernel.integral).log()

    def distribution(self, estimate: Tensor, evidence: Evidence, floor: float | Tensor) -> Tensor:
        """(batch, states) distribution of a discrete variable, from an estimate that excludes evidence on the variable."""
        return self.with_observed(self._distribution(estimate, evidence, floor), evidence)

    def with_observed(self, probabilities: Tensor, evidence: Evidence) -> Tensor:
        """(batch, states) distributions, one-hot in rows that observe the variable."""
        if self.name not in evidence.hard:
            return probabilities
        return one_hot_where_observed(evidence.hard[self.name], probabilities)

    def log_score(self, estimate: Tensor, evidence: Evidence, floor: float | Tensor) -> Tensor:
        """(batch,) log-probability (or log-density) of each row's observed value, from an estimate that excludes it.

        0 where a row does not observe the variable.
        """
        if not self.continuous:
            states = evidence.hard[self.name]
            chosen = as_distribution(estimate, floor, self.marginal.to(estimate)).gather(
                1, states.clamp(min=0).unsqueeze(1)
            )
            return chosen.squeeze(1).log().masked_fill(states < 0, 0.0)
        missing = evidence.real[self.name].isnan()
        values = evidence.real[self.name].masked_fill(missing, float(self.bounds[0]))
        density = self.density(estimate)
        step = float(density.points[1] - density.points[0])
        position = ((values - density.points[0]) / step).round().long().clamp(0, len(density.points) - 1)
        heights = density.values.gather(1, position.unsqueeze(1)).squeeze(1)
        span = float(self.bounds[1] - self.bounds[0])
        return heights.clamp(min=float(floor) / span).log().masked_fill(missing, 0.0)

    def draw(self, estimate: Tensor, evidence: Evidence, floor: float | Tensor, generator: torch.Generator) -> Tensor:
        """(batch,) one value per row: the observed value, or a draw where it is missing."""
        if isinstance(self.map, EncodedMap):
            raise QueryError(
                f"Sampling: '{self.name}' has an encoder, whose features give ratios of densities but no density to draw from."
            )
        if self.continuous:
            drawn = self.density(estimate).sample(1, generator)[0].to(torch.float64)
            values = evidence.real.get(self.name)
            return drawn if values is None else torch.where(values.isnan(), drawn, values)
        probabilities = self._distribution(estimate, evidence, floor)
        if self.name in evidence.soft:  # the floor applies only to states that the evidence allows
            probabilities = probabilities * (evidence.soft[self.name] > 0)
        drawn = torch.multinomial(probabilities, 1, generator=generator)
        states = evidence.hard.get(self.name)
        return drawn.squeeze(1) if states is None else torch.where(states < 0, drawn.squeeze(1), states)

    def drawn_zeta(self, values: Tensor, like: Tensor) -> Tensor:
        """(batch, dim) evidence vector of drawn values."""
        return self.map.evidence(values).to(like)

    def _distribution(self, estimate: Tensor, evidence: Evidence, floor: float | Tensor) -> Tensor:
        fallback = self.marginal.to(estimate)
        if self.name in evidence.soft:
            weights = evidence.soft[self.name].to(estimate)
            estimate, fallback = estimate * weights, as_distribution(fallback * weights, 0.0)
        return as_distribution(estimate, floor, fallback)

    def values_at(self, estimate: Tensor, at: Tensor) -> Tensor:
        """(batch, n) unnormalised density of a continuous variable at (n,) points."""
        return estimate @ self.map.evidence(at.to(self.bounds)).to(estimate).T

    def density_at(self, estimate: Tensor, at: Tensor, raw: bool) -> Tensor:
        """(batch, n) density of a continuous variable at (n,) points, from a (batch, dim) estimate.

        Args:
            estimate: up to a positive factor per row.
            at: finite points, read by :func:`~torchpbp.inference.density.read_points`.
            raw: leave negative values as they are.
        """
        density = self.density(estimate)
        if not raw:
            return density.prob(at)
        mass = torch.trapezoid(self.values_at(estimate, density.points), density.points, dim=1)
        return self.values_at(estimate, at) / mass.to(estimate).unsqueeze(1)

    def density(self, estimate: Tensor) -> Density:
        """Density of a continuous variable from a (batch, dim) estimate.

        Mean and variance are linear functionals of the estimate, unaffected by the kernel's smoothing.
        """
        low, high = self.bounds.tolist()
        points = torch.linspace(low, high, GRID, dtype=torch.float64, device=estimate.device)
        total = estimate @ self.map.missing().to(estimate)
        safe = torch.where(total > 0, total, torch.ones_like(total))
        moments = (estimate @ self.functionals.to(estimate)) / safe.unsqueeze(1)
        first, second = moments.to(points).unbind(dim=1)
        plain = grid_density(points, self.values_at(estimate, points))
        centre, scale = self._units()
        shifted = centre + scale * first
        usable = (total > 0) & (shifted >= low) & (shifted <= high)
        mean = torch.where(usable, shifted, plain.mean)
        spread = second - first.square()
        variance = torch.where(usable & (spread > 0), scale.square() * spread, plain.variance)
        return Density(plain.points, plain.values, mean, variance)

    def leaf_posterior(self, estimate: Tensor, map: EncodedMap) -> LeafPosterior:
        """Mean and variance of a leaf with an encoder, from a (batch, dim) estimate.

        Args:
            estimate: up to a positive factor per row.
            map: feature map of this leaf.
        """
        # E[φ | Ω] is the estimate divided by its first entry, P(Ω). For noisy P(Ω) the quotient is shrunk towards the mean of the
        # training rows; without a positive P(Ω) the result is this mean.
        total, norm = estimate[:, :1].clamp(min=0), estimate.norm(dim=1, keepdim=True)
        size = total.square() + (NOISE * norm).square()
        expected = estimate * total / torch.where(size > 0, size, torch.ones_like(size))
        expected = torch.cat([torch.ones_like(total), expected[:, 1:]], dim=1)
        first, second = (expected @ self.functionals.to(expected)).chunk(2, dim=1)
        spread = (second - first.square()).clamp(min=0)
        scale = map.scale.to(expected)
        shape = (len(estimate), *map.shape)
        mean = map.centre.to(expected) + scale * first.reshape(shape)
        return LeafPosterior(mean, scale.square() * spread.reshape(shape))

    def _units(self) -> tuple[Tensor, Tensor]:
        """Centre and scale by which values are standardised."""
        if isinstance(self.map, KernelMap):
            return self.map.mean.double(), self.map.scale.double()
        return self.bounds.mean().double(), (self.bounds[1] - self.bounds[0]).double()


def as_distribution(estimate: Tensor, floor: float | Tensor, fallback: Tensor | None = None) -> Tensor:
    """Clip a (batch, states) estimate at ``floor`` times its mass and normalise.

    The mass is the sum of absolute values, so the floor is independent of the scale. Negative entries are sampling noise;
    if their share of the mass is s, the positive entries contain about as much noise again, so the result is shrunk
    towards ``fallback`` by the share 2s. A row without information (all zeros, or half of its mass negative) becomes the
    fallback.

    Args:
        estimate: (batch, states), any scale.
        floor: least probability, as a share of the mass: a number, or a positive tensor of shape (). It is reduced for estimates
            of so many states that together they would take more than :data:`LARGEST_SHARE`.
        fallback: (states,) or (batch, states) distribution to shrink towards; None: no shrinkage, and rows of zeros become
            uniform.
    """
    absolute, tiny = estimate.abs().sum(dim=-1, keepdim=True), torch.finfo(estimate.dtype).tiny
    mass = absolute.clamp(min=tiny)  # smaller ones have no reciprocal
    most = LARGEST_SHARE / estimate.shape[-1]
    if isinstance(floor, Tensor):
        least = floor.to(estimate.dtype).clamp(max=most)
    else:
        least = (absolute < tiny).to(estimate.dtype) + min(floor, most)
    clipped = torch.maximum(estimate * mass.detach().reciprocal(), least)
    clipped = clipped / clipped.sum(dim=-1, keepdim=True)
    if fallback is None:
        return clipped
    # 1 − 2s: |e| − e is 0 for positive e and 2|e| for negative e.
    signal = (estimate.sum(dim=-1, keepdim=True) / mass).clamp(min=0)
    return torch.lerp(fallback, clipped, signal)


def distributions(
    observables: Mapping[str, Observable], estimates: Mapping[str, Tensor], evidence: Evidence, floor: float | Tensor
) -> dict[str, Tensor]:
    """:meth:`Observable.distribution` of several discrete variables.

    In small batches, dominated by the overhead of torch calls, variables with equal numbers of states are computed together.

    Args:
        observables: observables by name.
        estimates: name -> (batch, states) estimate that excludes evidence on the variable.
        evidence: evidence of the batch.
        floor: see :func:`as_distribution`.
    """
    result: dict[str, Tensor] = {}
    # Compilers fuse these operations, and compiled programs take batches of any size.
    if not torch.compiler.is_compiling() and evidence.batch <= SMALL_BATCH:
        together = [v for v in estimates if v not in evidence.soft]
        for names in grouped(together, lambda v: estimates[v].shape[-1]).values():
            # rows remain last in memory, which is several times faster
            stacked = torch.stack([estimates[v].mT for v in names]).mT
            marginals = torch.stack([observables[v].marginal for v in names]).to(stacked).unsqueeze(1)
            for v, p in zip(names, as_distribution(stacked, floor, marginals).unbind(), strict=True):
                result[v] = observables[v].with_observed(p, evidence)
    return {
        v: result[v] if v in result else observables[v].distribution(e, evidence, floor) for v, e in estimates.items()
    }


def negative_mass(estimate: Tensor) -> Tensor:
    """(batch,) share of the absolute mass of a (batch, states) estimate that is negative."""
    mass = estimate.abs().sum(dim=-1)
    negative = estimate.clamp(max=0).abs().sum(dim=-1)
    return torch.where(mass > 0, negative / mass.clamp(min=1e-300), torch.zeros_like(mass))


def joint_states(
    evidence: Evidence, states: Mapping[str, int], device: torch.device | str = "cpu"
) -> tuple[Evidence, Tensor]:
    """Evidence extended by each joint state of some variables, as one larger batch.

    Args:
        evidence: evidence of a batch of rows.
        states: variables to enumerate, with their numbers of states.
        device: device of the evidence.

    Returns:
        Evidence with batch · cells rows, row by row in the order of the cells, and the (batch · cells,) weights of the cells
        in ``evidence``: 0 for cells that contradict it.
    """
    grid = torch.cartesian_prod(*[torch.arange(s, device=device) for s in states.values()]).reshape(-1, len(states))
    wide = evidence.repeat_interleave(len(grid))
    hard, soft = dict(wide.hard), dict(wide.soft)
    allowed = torch.ones(wide.batch, dtype=torch.float64, device=device)
    for i, v in enumerate(states):
        cells = grid[:, i].repeat(evidence.batch)
        if v in soft:
            allowed = allowed * soft.pop(v).gather(1, cells.unsqueeze(1)).squeeze(1)
        if v in hard:
            allowed = allowed * ((hard[v] == cells) | (hard[v] < 0))
        hard[v] = cells
    return Evidence(wide.batch, hard, soft, wide.real), allowed


def prepare(observables: Mapping[str, Observable], evidence: Evidence, like: Tensor) -> Evidence:
    """Evidence with an evidence vector in ``soft`` for each continuous variable: message passing takes states and weights only.

    Unobserved continuous variables also get a vector, since their missing value is not a sum over features.
    """
    vectors = {
        name: observable.zeta(evidence, like).expand(evidence.batch, -1)
        for name, observable in observables.items()
        if observable.continuous and name not in evidence.soft
    }
    return replace(evidence, soft={**evidence.soft, **vectors}) if vectors else evidence


def make_map(domain: Domain, kernel_map: KernelMap | None) -> FeatureMap:
    """One-hot features for a discrete variable, a copy of ``kernel_map`` for a continuous one."""
    if isinstance(domain, int):
        return one_hot(domain)
    return copy.deepcopy(kernel_map) if kernel_map is not None else Nystroem()
