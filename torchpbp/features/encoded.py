"""Features of leaves computed by encoders: vectors and images, or numbers with a learned map.

The input of a point-wise encoder is one leaf. The input of a context encoder is all observed leaves of a row, and the features of a
leaf depend on the others. In both cases the features of a leaf are φ = (1, standardised output), and its evidence is
ζ = (C + λ)⁻¹ φ(x) with C = E[φφᵀ]: then ζ · E[φ | Ω] is the projection of the ratio p(x | Ω) / p(x) on the features.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchpbp.errors import ArgumentError, DataError, ShapeError
from torchpbp.features.maps import FeatureMap
from torchpbp.grouping import grouped

SMALLEST_SPREAD = 1e-6
"""Standard deviation below which an output counts as constant and is not scaled."""


class Encoded(NamedTuple):
    """Output of the encoders for one leaf.

    Args:
        features: (rows, d) before standardisation.
        residual: (rows, d + 1) term added to the evidence vector; None for no term.
    """

    features: Tensor
    residual: Tensor | None


class EncodedMap(FeatureMap):
    """Standardised features of one encoded leaf, and evidence vectors from these features.

    Args:
        name: name of the leaf.
        shape: shape of its values.
        size: d, number of outputs of the encoder.
        encoders: encoders of the model; not part of this module's state.

    Attributes:
        mean, spread: (d,) mean and standard deviation of the encoder's outputs in the training rows.
        gram: (d + 1, d + 1) C = E[φφᵀ].
        centre, scale: shape of the leaf; mean and standard deviation of its values, which standardise inputs of networks.
    """

    mean: Tensor
    spread: Tensor
    gram: Tensor
    centre: Tensor
    scale: Tensor
    encoders: Encoders

    def __init__(self, name: str, shape: Sequence[int], size: int, encoders: Encoders) -> None:
        super().__init__()
        self.name, self.shape, self.dim = name, tuple(shape), size + 1
        self.__dict__["encoders"] = encoders  # registered in the model only
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("spread", torch.ones(size, dtype=torch.float64))
        self.register_buffer("gram", torch.eye(size + 1, dtype=torch.float64))
        self.register_buffer("centre", torch.zeros(self.shape, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(self.shape, dtype=torch.float64))

    def __deepcopy__(self, memo: dict[int, Any]) -> EncodedMap:
        """A copy that refers to the copied encoders, or to the same ones if only the map is copied."""
        size = self.dim - 1
        result = EncodedMap(self.name, self.shape, size, memo.get(id(self.encoders), self.encoders))
        memo[id(self)] = result
        for name, buffer in self.named_buffers():
            setattr(result, name, copy.deepcopy(buffer, memo))
        return result

    def standardised(self, raw: Tensor) -> Tensor:
        """(rows, d) outputs of the encoder -> (rows, d + 1) features."""
        standard = (raw - self.mean.to(raw)) / self.spread.to(raw)
        return torch.cat([torch.ones_like(standard[:, :1]), standard], dim=1)

    def features(self, values: Tensor) -> Tensor:
        return self.standardised(self.encoders.alone(self.name, values).features).double()

    def evidence(self, values: Tensor) -> Tensor:
        return self.evidence_of(self.encoders.alone(self.name, values)).double()

    def evidence_of(self, encoded: Encoded) -> Tensor:
        """(rows, d + 1) evidence vectors."""
        return ratio_evidence(self.standardised(encoded.features), self.gram, self.encoders.log_ridge, encoded.residual)

    def missing(self) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor(0, device=self.mean.device), self.dim).to(self.mean.dtype)

    def standard_values(self, values: Tensor) -> Tensor:
        """(rows, entries) standardised values, inputs of networks."""
        standard = (values - self.centre.to(values)) / self.scale.to(values)
        return standard.reshape(values.shape[0], torch.Size(self.shape).numel())

    @torch.no_grad()
    def fit(self, values: Tensor) -> None:
        """Compute statistics of the features from training values, with a fixed encoder."""
        raw = torch.cat([self.encoders.alone(self.name, part).features for part in torch.split(values, 4096)]).double()
        require_finite(self.name, raw)
        self.mean.copy_(raw.mean(dim=0))
        self.spread.copy_(spread_of(raw.var(dim=0, unbiased=False)))
        features = self.standardised(raw)
        self.gram.copy_(features.T @ features / len(features))
        self.centre.copy_(values.double().mean(dim=0))
        self.set_scale(values.double().var(dim=0, unbiased=False))

    @torch.no_grad()
    def set_scale(self, variance: Tensor) -> None:
        """Set the scale of values from their variances; constant entries have scale 1."""
        self.scale.copy_(spread_of(variance))


def require_finite(name: str, output: Tensor) -> None:
    """Raise a DataError for NaN or infinity in the output of a leaf's encoder."""
    if output.device.type != "meta" and not bool(output.isfinite().all()):
        raise DataError(f"The encoder of '{name}' returned NaN or infinity. Check its inputs and its learning rate.")


def spread_of(variance: Tensor) -> Tensor:
    """Standard deviations for standardisation; 1 for constants."""
    spread = variance.clamp(min=SMALLEST_SPREAD**2).sqrt()
    return torch.where(variance > SMALLEST_SPREAD**2, spread, torch.ones_like(spread))


def ratio_evidence(features: Tensor, gram: Tensor, log_ridge: Tensor, residual: Tensor | None) -> Tensor:
    """ζ = (C + λ)⁻¹ φ + residual; the constant is not penalised, so ζ is (1, …) for uninformative features.

    Args:
        features: (rows, d + 1) φ, or (leaves, rows, d + 1).
        gram: (d + 1, d + 1) C, or (leaves, d + 1, d + 1).
        log_ridge: log λ.
        residual: tensor of the shape of ``features``, or None.
    """
    ridge = log_ridge.exp().to(gram) * torch.ones(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    ridge = torch.cat([torch.zeros_like(ridge[:1]), ridge[1:]])
    zeta: Tensor = torch.linalg.solve(gram + torch.diag(ridge), features.to(gram).mT).mT
    return zeta if residual is None else zeta + residual.to(zeta)


class Encoders(nn.Module):
    """The encoders of a model: one module for all leaves, or one per leaf.

    Args:
        modules: leaf -> module; several leaves may have the same module.
        shapes: leaf -> shape of its values.
        context: whether the module is called with all leaves of a row, as ``module(values, seen)`` with dicts by leaf.

    Attributes:
        log_ridge: parameter, log λ of the evidence.
        residual: whether evidence has a residual: the second output of a context encoder, or a small network of the features.

    Raises:
        ArgumentError: an encoder whose output is not (rows, d).
    """

    def __init__(self, modules: Mapping[str, nn.Module], shapes: Mapping[str, Sequence[int]], context: bool) -> None:
        super().__init__()
        self.shapes = {v: tuple(shape) for v, shape in shapes.items()}
        distinct = list(dict.fromkeys(modules.values()))
        self.modules_ = nn.ModuleList(distinct)
        self.module_of = {v: distinct.index(m) for v, m in modules.items()}
        self.context = context
        self.residual = False
        self.log_ridge = nn.Parameter(torch.tensor(-23.0, dtype=torch.float64))  # 1e-10
        self.residual_nets = nn.ModuleDict()
        self.sizes = self._measure()

    @property
    def names(self) -> list[str]:
        return list(self.module_of)

    def _measure(self) -> dict[str, int]:
        """Number of outputs of each leaf's encoder, measured on two rows of zeros."""
        modes = {m: m.training for m in self.modules()}
        self.eval()
        like = next(self.modules_.parameters(), torch.zeros(()))
        zeros = {v: torch.zeros(2, *self.shapes[v], dtype=like.dtype, device=like.device) for v in self.names}
        try:
            with torch.no_grad():
                encoded = self(zeros, {v: torch.ones(2, dtype=torch.bool, device=like.device) for v in zeros})
        except (ArgumentError, DataError, ShapeError):
            raise
        except Exception as error:
            raise ArgumentError(
                f"features: the encoder could not encode two rows of zeros of shape {dict(self.shapes)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        finally:
            for module, mode in modes.items():
                module.training = mode
        return {v: e.features.shape[1] for v, e in encoded.items()}

    def alone(self, name: str, values: Tensor) -> Encoded:
        """Output of a point-wise encoder for one leaf."""
        if self.context:
            raise ArgumentError(
                f"Features of '{name}': the encoder looks at all leaves of a row (context=True), so one leaf has none alone."
            )
        return self._with_residuals({name: self._checked(name, self._call(name, values), values.shape[0])})[name]

    def forward(self, values: Mapping[str, Tensor], seen: Mapping[str, Tensor]) -> dict[str, Encoded]:
        """Outputs for all leaves.

        Args:
            values: leaf -> (rows, *shape) without NaN.
            seen: leaf -> (rows,) mask of the leaves that a context encoder may use for others.
        """
        if self.context:
            module = self.modules_[0]
            like = next(module.parameters(), None)
            inputs = {v: x if like is None else x.to(like) for v, x in values.items()}
            out = module(inputs, dict(seen))
            if not isinstance(out, Mapping) or set(out) != set(self.names):
                raise ArgumentError(
                    f"features: a context encoder returns a dict with the features of {', '.join(self.names)}, got "
                    f"{sorted(out) if isinstance(out, Mapping) else type(out).__name__}."
                )
            return {v: self._context_output(v, out[v], inputs[v].shape[0]) for v in self.names}
        result: dict[str, Encoded] = {}
        batches = grouped(self.module_of, lambda v: (self.module_of[v], self.shapes[v]))
        for group in batches.values():  # leaves with one module and one shape are encoded in one call
            rows = values[group[0]].shape[0]  # len() would make the number of rows static in exported programs
            flat = torch.stack([values[v] for v in group]).flatten(0, 1)
            out = self._checked(group[0], self._call(group[0], flat), flat.shape[0])
            for v, part in zip(
                group, out.features.reshape(len(group), rows, out.features.shape[1]).unbind(), strict=True
            ):
                result[v] = Encoded(part, None)
        return self._with_residuals({v: result[v] for v in self.names if v in result})

    def _call(self, name: str, values: Tensor) -> Any:
        module = self.modules_[self.module_of[name]]
        like = next(module.parameters(), None)
        return module(values if like is None else values.to(like))

    def _checked(self, name: str, output: Any, rows: int) -> Encoded:
        if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[0] != rows or output.shape[1] == 0:
            got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ArgumentError(
                f"features: the encoder of '{name}' must return (rows, features), here ({rows}, d), got {got}."
            )
        size = getattr(self, "sizes", {}).get(name, output.shape[1])
        if output.shape[1] != size:
            raise ArgumentError(
                f"features: the encoder of '{name}' returned {output.shape[1]} features, but {size} when the model was made."
            )
        return Encoded(output, None)

    def _context_output(self, name: str, output: Any, rows: int) -> Encoded:
        features, residual = output if isinstance(output, tuple) else (output, None)
        features = self._checked(name, features, rows).features
        if residual is not None and residual.shape != (rows, features.shape[1] + 1):
            raise ArgumentError(
                f"features: the residual of '{name}' must have shape {(rows, features.shape[1] + 1)}, one more than its "
                f"features, got {tuple(residual.shape)}."
            )
        return Encoded(features, residual if self.residual else None)

    def _with_residuals(self, encoded: dict[str, Encoded]) -> dict[str, Encoded]:
        if not self.residual or not self.residual_nets:
            return encoded
        result: dict[str, Encoded] = {}
        for names in grouped(encoded, self.sizes.__getitem__).values():  # networks of equal shape are computed as one
            h = torch.stack([encoded[v].features for v in names])
            nets: list[Any] = [self.residual_nets[_key(v)] for v in names]
            for i in (0, 2):
                bias = torch.stack([net[i].bias for net in nets]).unsqueeze(1)
                h = torch.baddbmm(bias, nn.functional.gelu(h) if i else h, torch.stack([n[i].weight for n in nets]).mT)
            result |= {v: Encoded(encoded[v].features, r) for v, r in zip(names, h.unbind(), strict=True)}
        return {v: result[v] for v in encoded}

    def add_residuals(self, width: int = 32) -> None:
        """Add a learned residual to evidence, small at initialisation."""
        self.residual = True
        if self.context:
            return
        for v, size in self.sizes.items():
            if _key(v) not in self.residual_nets:
                last = nn.Linear(width, size + 1)
                with torch.no_grad():
                    last.weight.mul_(0.1)
                    last.bias.zero_()
                net = nn.Sequential(nn.Linear(size, width), nn.GELU(), last)
                self.residual_nets[_key(v)] = net.to(next(self.modules_.parameters(), self.log_ridge.float()))

    def extra_repr(self) -> str:
        return f"leaves={self.names}, context={self.context}, residual={self.residual}"


def _key(name: str) -> str:
    """A variable's name as the name of a submodule, which must not contain dots."""
    return name.replace(".", "·")
