"""Models whose stage 1 consists of nets of leaves: attaching the nets, and solving operators for fixed nets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from torchpbp.contract.model_files import SaveOptions
from torchpbp.errors import DataError, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.features.encoded import EncodedMap
from torchpbp.features.maps import KernelMap
from torchpbp.inference.readout import Readout
from torchpbp.inputs.columns import ROWS_PER_BATCH, ColumnReader
from torchpbp.inputs.missing_values import observed
from torchpbp.inputs.sources import DataLike, open_data, with_progress
from torchpbp.learning.fitting import check_labels, clipping_floor
from torchpbp.learning.message_nets import Masking, MessageNets
from torchpbp.learning.net_fitting import Batches, Rows, fit_nets
from torchpbp.learning.population import population_rows
from torchpbp.models.conditioning import warn_of_classes
from torchpbp.models.saved_nets import attach_saved, pack_nets
from torchpbp.models.two_stage_model import EXACT_FLOOR, TwoStageModel
from torchpbp.moments.class_rows import ClassRows
from torchpbp.settings import whole


class NetModel(TwoStageModel):
    """A two-stage model whose stage 1 may consist of nets of leaves, trained by :class:`~torchpbp.PBPModule`."""

    @property
    def classes(self) -> int:
        """Number of states of the condition variable; 1 without a condition."""
        return 1 if self.condition is None else self.states[self.condition]

    @property
    def nets(self) -> MessageNets:
        """The nets of the model's separators.

        Raises:
            StructureError: a model without nets.
        """
        if not isinstance(self.stage1, MessageNets):
            raise StructureError("The model has no nets of leaves. PBPModule(model) attaches and trains them.")
        return self.stage1

    def attach_nets(
        self,
        hidden: Sequence[int] = (48, 48),
        instruments: float = 2.0,
        seed: int = 0,
        target: str | None = None,
        masking: Masking | None = None,
    ) -> MessageNets:
        """Attach nets of leaves with random weights as stage 1, unless the model has nets already.

        Args:
            hidden: widths of the hidden layers.
            instruments: dimensions of an instrument per dimension of its message.
            seed: of the initial weights.
            target: a variable whose probabilities are computed by a learned link; None: by clipping.
            masking: shares of hidden leaves in the solve of the operators.
        """
        if not isinstance(self.stage1, MessageNets):
            reader = self.leaf_reader()
            classes = None if self.condition is None else self.classes
            nets = MessageNets(self.plan, reader.dims(), reader.widths(), hidden, instruments, seed, classes)
            self.stage1 = nets.to(self.device)
        if masking is not None:
            self.stage1.masking = masking
        if target is not None and self.target != target:
            self.readout = Readout(target).to(self.device)
        # Training starts from a larger ridge than the initial one of encoders, log λ = −23.
        if self.encoders is not None and float(self.encoders.log_ridge.detach()) < -20:
            with torch.no_grad():
                self.encoders.log_ridge.fill_(-3.0)
        return self.stage1

    @torch.no_grad()
    def prepare_leaves(self, batches: Iterable[Mapping[str, Tensor]]) -> None:
        """Fit kernel maps, and estimate scales of values and marginals, before nets are trained.

        Args:
            batches: rows, observable -> states or values.
        """
        parts = list(batches)
        for v, observable in self.observables.items():
            values = torch.cat([part[v] for part in parts]).to(self.device)
            values = values[observed(values)]
            if len(values) == 0:
                raise DataError(f"'{v}' is missing in every row, so nothing can be learned about it. Drop it.")
            if isinstance(observable.map, EncodedMap):
                observable.map.centre.copy_(values.double().mean(dim=0))
                observable.map.set_scale(values.double().var(dim=0, unbiased=False))
            elif isinstance(observable.map, KernelMap):
                observable.fit(values.double())
            else:
                counts = torch.bincount(values, minlength=observable.map.dim).double()
                observable.marginal.copy_(counts / counts.sum())

    def fit(self, data: DataLike, batch_size: int = ROWS_PER_BATCH, columns: Sequence[str] | None = None) -> Self:
        if not isinstance(self.stage1, MessageNets):
            if self.encoders is not None and self.encoders.context:
                raise StructureError(
                    "fit: with context=True the features of a leaf depend on the others, so encoder and nets must be trained "
                    "together. Train them by PBPModule(model); fit() then solves the operators on other rows."
                )
            return super().fit(data, batch_size, columns)
        whole(1).check("batch_size", batch_size)
        labels = self.labels or self.graph.labels
        reader = ColumnReader(self.evidence_domains(), labels, missing=True, device=self.device)
        source = open_data(data, reader.states, columns)
        if not source.reopenable:
            raise DataError(
                "A model with nets needs several passes over the data, but it is a one-way iterator. Pass a table, a list of "
                "mini-batches, a file or a DataLoader."
            )

        def tables() -> Iterator[Rows]:
            yield from map(Rows, with_progress(reader.tables(source, min(batch_size, 4096)), source.length))

        self.fit_nets(tables)
        check_labels(reader.labels)
        self.labels = dict(reader.labels)
        self.missing = reader.missing_values.over_processes().shares
        return self

    def fit_population(self, network: DiscreteNetwork) -> Self:
        if not isinstance(self.stage1, MessageNets):
            return super().fit_population(network)
        self.check_population(network)
        states = {v: network.states[v] for v in network.graph.observed}
        joint = population_rows(network, states, "a model with nets")
        table = dict(zip(joint.names, joint.content.unbind(dim=1), strict=True))
        # Each joint state is a single row, so a random mask would depend on the state: nothing is hidden.
        self.fit_nets(lambda: iter([Rows(table, joint.weights)]), EXACT_FLOOR, Masking(0.0, 0.0), shrinkage=0.0)
        self.labels = {v: network.labels[v] for v in self.states if v in network.labels}
        self.missing = {}
        self.rows.fill_(0)
        return self

    def fit_nets(
        self,
        batches: Batches,
        floor: float | None = None,
        masking: Masking | None = None,
        shrinkage: float | None = None,
    ) -> None:
        """Solve the operators on rows, for fixed encoders and nets.

        Args:
            batches: returns a fresh iterator over batches; called several times.
            floor: smallest probability in answers; by default it depends on the number of rows.
            masking: shares of leaves hidden from the nets; those of training by default.
            shrinkage: pseudo-rows from all classes added to each class; by default that of the model's settings.

        Raises:
            DataError: no rows, leaves never observed, encoders that return NaN.
        """
        nets = self.stage1
        if not isinstance(nets, MessageNets):
            raise StructureError(
                "fit_nets: the model has no nets of leaves. PBPModule(model) attaches and trains them."
            )
        pseudo_rows = self.settings.shrinkage if shrinkage is None else shrinkage
        training = self.training
        self.eval()
        try:
            result = fit_nets(
                nets,
                self.leaf_reader(),
                batches,
                self.condition,
                self.classes,
                pseudo_rows,
                nets.seed,
                nets.masking if masking is None else masking,
            )
        finally:
            self.train(training)
        nets.set_heads(result.heads)
        self.labels = self.labels or dict(self.graph.labels)
        classes = None
        if self.condition is not None:
            classes = ClassRows(self.condition, result.class_rows, result.unlabelled, pseudo_rows)
            warn_of_classes(classes, self.labels.get(self.condition, ()))
        least = clipping_floor(result.rows) if floor is None else floor
        self._adopt(result.solution, int(result.rows), least, self._observables, classes=classes)

    # -- files ---------------------------------------------------------------------------------------------------

    def pack(self, name: object, options: SaveOptions) -> dict[str, Any]:
        return {**super().pack(name, options), **pack_nets(self)}

    def restore_parts(self, content: Mapping[str, Any]) -> None:
        attach_saved(self, content)
        self.eval()  # encoders may contain dropout and batch normalisation
