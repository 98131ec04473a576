"""Features of all leaves for a batch of rows, as inputs of networks and moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchpbp.distributed import shared_sums, world_size
from torchpbp.errors import DataError
from torchpbp.features.encoded import Encoded, EncodedMap, Encoders, ratio_evidence, spread_of
from torchpbp.features.maps import OneHot
from torchpbp.graph.domains import Continuous
from torchpbp.grouping import grouped
from torchpbp.inference.observable import Observable
from torchpbp.inputs.evidence import Evidence
from torchpbp.inputs.missing_values import observed

Statistics = dict[str, tuple[Tensor, Tensor]]
"""Encoded leaf -> mean and standard deviation of its encoder's outputs, (d,) each."""


class LeafFeatures(NamedTuple):
    """Features of all observables in a batch of rows.

    Args:
        features: observable -> (rows, dim) φ; arbitrary finite numbers where not observed.
        inputs: observable -> (rows, width) inputs of networks; arbitrary finite numbers where not observed.
        seen: (rows, observables) booleans, true where observed, in the order of ``features``.
    """

    features: Mapping[str, Tensor]
    inputs: Mapping[str, Tensor]
    seen: Tensor

    @property
    def rows(self) -> int:
        return len(self.seen)


def weighted_statistics(values: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and variance over the rows of all processes, (…, 1, outputs) each.

    Args:
        values: (…, rows, outputs).
        weights: (…, rows) weights of the rows; equal by default.
    """
    if weights is None:
        if world_size() == 1:
            variance, mean = torch.var_mean(values, dim=-2, keepdim=True, unbiased=False)
            return mean, variance
        weights = values.new_ones(values.shape[:-1])
    (total,) = shared_sums([weights.sum(dim=-1, keepdim=True)])
    share = (weights / total.clamp(min=1e-12)).unsqueeze(-1).to(values)
    (mean,) = shared_sums([(share * values).sum(dim=-2, keepdim=True)])
    (variance,) = shared_sums([(share * (values - mean).square()).sum(dim=-2, keepdim=True)])
    return mean, variance


class LeafReader:
    """Converts rows of a table to features of leaves.

    Args:
        observables: observables of the model, without its condition variable, in order.
        encoders: encoders of the model, if any.
    """

    def __init__(self, observables: Mapping[str, Observable], encoders: Encoders | None) -> None:
        self.observables, self.encoders = dict(observables), encoders
        self.names = list(self.observables)
        maps = {v: o.map for v, o in self.observables.items()}
        self.encoded: dict[str, EncodedMap] = {v: m for v, m in maps.items() if isinstance(m, EncodedMap)}
        self.context = encoders is not None and encoders.context

    def widths(self) -> dict[str, int]:
        """Width of each leaf's network input: its features, or its standardised values with a context encoder."""
        result = {v: o.map.dim for v, o in self.observables.items()}
        for v, m in self.encoded.items():
            result[v] = max(1, torch.Size(m.shape).numel()) if self.context else m.dim - 1
        return result

    def dims(self) -> dict[str, int]:
        return {v: o.map.dim for v, o in self.observables.items()}

    def seen(self, table: Mapping[str, Tensor]) -> Tensor:
        """(rows, leaves) booleans, true where a row observes a leaf."""
        columns = {v: observed(table[v]) for v in self.names if v not in self.encoded}
        for names in self._equal_shapes():
            missing = torch.stack([table[v] for v in names]).isnan().unsqueeze(-1).flatten(2)
            present = ~missing.all(dim=2)
            columns |= zip(names, present.unbind(), strict=True)
            if missing.device.type == "meta":
                continue
            partly = present & missing.any(dim=2)
            if bool(partly.any()):
                leaf, row = partly.nonzero()[0].tolist()
                raise DataError(
                    f"Leaf '{names[leaf]}', row {row}: some entries are NaN and others are not. A leaf is missing as a whole (all "
                    "entries NaN) or not at all: fill single entries in, or make them leaves of their own."
                )
        return torch.stack([columns[v] for v in self.names], dim=1)

    def values(self, table: Mapping[str, Tensor], shown: Tensor) -> dict[str, Tensor]:
        """Values of encoded leaves, 0 where not shown."""
        result: dict[str, Tensor] = {}
        for names in self._equal_shapes():
            stacked = torch.stack([table[v] for v in names])
            mask = self._columns(shown, names).reshape(*stacked.shape[:2], *[1] * (stacked.ndim - 2))
            result |= zip(names, torch.where(mask, stacked, torch.zeros_like(stacked)).unbind(), strict=True)
        return {v: result[v] for v in self.encoded}

    def encode(self, table: Mapping[str, Tensor], seen: Tensor, shown: Tensor) -> dict[str, Encoded]:
        """Outputs of the encoders, in float32 or float64 even if the encoders run in mixed precision.

        Args:
            table: leaf -> values.
            seen: (rows, leaves) leaves whose values enter their own features.
            shown: (rows, leaves) leaves whose values a context encoder may use for the other leaves.
        """
        if self.encoders is None:
            return {}
        flags = dict(zip(self.encoded, self._columns(shown, list(self.encoded)).unbind(), strict=True))
        encoded = self.encoders(self.values(table, seen), flags)
        if next(iter(encoded.values())).features.dtype not in (torch.float16, torch.bfloat16):
            return encoded
        return {
            v: Encoded(e.features.float(), None if e.residual is None else e.residual.float())
            for v, e in encoded.items()
        }

    def batch_statistics(self, encoded: Mapping[str, Encoded], seen: Tensor) -> Statistics:
        """Mean and standard deviation over the rows that observe each leaf, with gradient."""
        result: Statistics = {}
        for names in self.equal_sizes():
            stacked = torch.stack([encoded[v].features for v in names])
            mean, variance = weighted_statistics(stacked, self._columns(seen, names).to(stacked))
            pairs = zip(mean.squeeze(1).unbind(), spread_of(variance).squeeze(1).unbind(), strict=True)
            result |= zip(names, pairs, strict=True)
        return result

    def features(
        self,
        table: Mapping[str, Tensor],
        encoded: Mapping[str, Encoded],
        seen: Tensor,
        statistics: Statistics | None = None,
    ) -> LeafFeatures:
        """Features and inputs of all leaves.

        Args:
            table: leaf -> states or values.
            encoded: outputs of the encoders.
            seen: (rows, leaves).
            statistics: statistics that standardise the outputs; the model's buffers by default.
        """
        standard = self.standardised(encoded, statistics)
        values = self.values(table, seen) if self.context else {}
        features: dict[str, Tensor] = {}
        inputs: dict[str, Tensor] = {}
        for v, observable in self.observables.items():
            if v in standard:
                features[v] = standard[v]
                inputs[v] = self.encoded[v].standard_values(values[v]) if self.context else standard[v][:, 1:]
                continue
            column = table[v]
            if isinstance(observable.map, OneHot):
                features[v] = observable.map.features(column.long().clamp(min=0))
            else:
                mask = seen[:, self.names.index(v)]
                features[v] = observable.map.features(torch.where(mask, column, observable.bounds.mean().to(column)))
            inputs[v] = features[v]
        return LeafFeatures(features, inputs, seen)

    def standardised(self, encoded: Mapping[str, Encoded], statistics: Statistics | None) -> dict[str, Tensor]:
        """Encoded leaf -> (rows, d + 1) features."""
        buffers = {v: (m.mean, m.spread) for v, m in self.encoded.items()}
        chosen = buffers if statistics is None else statistics
        result: dict[str, Tensor] = {}
        for names in self.equal_sizes():
            raw = torch.stack([encoded[v].features for v in names])
            raw = raw.double() if statistics is None else raw
            mean = torch.stack([chosen[v][0] for v in names]).unsqueeze(1).to(raw)
            spread = torch.stack([chosen[v][1] for v in names]).unsqueeze(1).to(raw)
            standard = (raw - mean) / spread
            full = torch.cat([standard.new_ones(*standard.shape[:-1], 1), standard], dim=-1)
            result |= zip(names, full.unbind(), strict=True)
        return result

    def evidence(
        self,
        encoded: Mapping[str, Encoded],
        shown: Tensor,
        statistics: Statistics | None = None,
        grams: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Encoded leaf -> (rows, d + 1) evidence vectors ζ; (1, 0, …) where not shown.

        Args:
            encoded: outputs of the encoders.
            shown: (rows, leaves).
            statistics: as in :meth:`features`.
            grams: C of each leaf; the model's buffers by default.
        """
        assert self.encoders is not None
        standard = self.standardised(encoded, statistics)
        result: dict[str, Tensor] = {}
        for names in self.equal_sizes():
            features = torch.stack([standard[v] for v in names])
            gram = torch.stack([self.encoded[v].gram if grams is None else grams[v] for v in names])
            residuals = [encoded[v].residual for v in names]
            residual = torch.stack([r for r in residuals if r is not None]) if None not in residuals else None
            zeta = ratio_evidence(features, gram, self.encoders.log_ridge, residual)
            flags = self._columns(shown, names).unsqueeze(-1)
            missing = zeta.new_zeros(zeta.shape[-1])
            missing[0] = 1.0
            result |= zip(names, torch.where(flags, zeta, missing).unbind(), strict=True)
        return result

    def evidence_of(self, evidence: Evidence, like: Tensor) -> dict[str, Tensor]:
        """Encoded leaf -> (batch, d + 1) evidence vectors of a batch of evidence, with the model's statistics and Gram matrices."""
        shown = torch.zeros(evidence.batch, len(self.names), dtype=torch.bool, device=like.device)
        table = {}
        for v, m in self.encoded.items():
            if v in evidence.real:
                table[v] = evidence.real[v]
                shown[:, self.names.index(v)] = observed(table[v])
            else:
                table[v] = torch.zeros(evidence.batch, *m.shape, dtype=like.dtype, device=like.device)
        vectors = self.evidence(self.encode(table, shown, shown), shown)
        return {v: zeta.to(like) for v, zeta in vectors.items()}

    def features_of(self, evidence: Evidence, device: torch.device) -> LeafFeatures:
        """Features of the leaves in a batch of checked evidence without weights of states."""
        table = {}
        for v, observable in self.observables.items():
            if isinstance(observable.domain, Continuous):
                empty = torch.full(
                    (evidence.batch, *observable.domain.shape), torch.nan, dtype=torch.float64, device=device
                )
                table[v] = evidence.real.get(v, empty)
            else:
                table[v] = evidence.hard.get(v, torch.full((evidence.batch,), -1, dtype=torch.int64, device=device))
        seen = self.seen(table)
        return self.features(table, self.encode(table, seen, seen), seen)

    def gram_sums(self, leaves: LeafFeatures) -> list[tuple[Tensor, Tensor]]:
        """Per group of :meth:`equal_sizes` Σ φφᵀ over the rows that observe a leaf, (leaves, d, d), and their counts, (leaves,)."""
        result = []
        for names in self.equal_sizes():
            phi = torch.stack([leaves.features[v] for v in names])
            weights = self._columns(leaves.seen, names).to(phi)
            result.append(((phi.mT @ (phi * weights.unsqueeze(-1))).double(), weights.sum(dim=1).double()))
        return result

    def _columns(self, flags: Tensor, names: Sequence[str]) -> Tensor:
        """(leaves, rows) of (rows, all leaves)."""
        return flags.mT[[self.names.index(v) for v in names]]

    # Leaves of equal size are computed together: training steps consist of many small operations, dominated by call overhead.

    def equal_sizes(self) -> list[list[str]]:
        """Encoded leaves by the number of their features."""
        return list(grouped(self.encoded, lambda v: self.encoded[v].dim).values())

    def _equal_shapes(self) -> list[list[str]]:
        """Encoded leaves by the shape of their values."""
        return list(grouped(self.encoded, lambda v: tuple(self.encoded[v].shape)).values())


def hidden_share(evidence: Evidence, leaves: Sequence[str], device: torch.device | str) -> Tensor:
    """(batch,) share of leaves missing in each row."""
    hidden = torch.zeros(evidence.batch, dtype=torch.float64, device=device)
    for v in leaves:
        if v in evidence.real:
            hidden = hidden + ~observed(evidence.real[v])
        elif v in evidence.hard:
            hidden = hidden + (evidence.hard[v] < 0)
        elif v not in evidence.soft:
            hidden = hidden + 1
    return hidden / max(1, len(leaves))
