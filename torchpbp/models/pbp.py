"""PBP: a latent-variable graphical model learned by two-stage regression, as an ``nn.Module``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from torchpbp.contract.abilities import Counting
from torchpbp.contract.intervals import Interval, Intervals, ask_interval
from torchpbp.contract.model_files import SaveOptions
from torchpbp.distributed import world_size
from torchpbp.errors import ArgumentError, DataError, NotFittedError, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.directed import directed_graph
from torchpbp.inputs.clusters import PartitionedTable, PartitionReader, partitioned
from torchpbp.inputs.columns import ROWS_PER_BATCH, ColumnReader
from torchpbp.inputs.evidence import Evidence, EvidenceLike
from torchpbp.inputs.missing_values import MissingValues
from torchpbp.inputs.sources import DataLike, no_names_needed, open_data, with_progress
from torchpbp.learning.fitting import FitResult, Fitter, check_labels
from torchpbp.learning.message_nets import MessageNets
from torchpbp.learning.population import learn_population
from torchpbp.learning.ridge import Ridge
from torchpbp.learning.stage1 import RowRegressor
from torchpbp.models.bootstrap import bootstrap_interval
from torchpbp.models.counts import Counts
from torchpbp.models.likelihood.learner import MaximumLikelihood
from torchpbp.models.net_model import NetModel
from torchpbp.models.two_stage_model import EXACT_FLOOR
from torchpbp.moments.covers import ROWS_AT_ONCE
from torchpbp.moments.partition_counts import count_partitions
from torchpbp.settings import seed as seed_setting
from torchpbp.settings import whole


class PBP(NetModel, Counting, Intervals):
    """Predictive Belief Propagation [PBP]: fit from data without EM, then ask P(X | any evidence).

    The graph becomes a junction tree whose leaves hold the observables. At each separator stage 1 predicts features of
    the inside from the outside (ridge), and stage 2 finds the linear operator between such predictions (least
    squares). Inference contracts the operators along the tree.

    Args:
        graph: the model's structure; discrete and continuous observables may mix.
        rank: largest number of dimensions of a message. ``None``: the rank implied by the latents' numbers of states. A
            number: an upper bound, and the number of states of latents of unknown cardinality. ``"auto"``: chosen on
            held-out rows while fitting.
        regressor: stage-1 method: :class:`~torchpbp.Ridge` (linear, closed form, the default),
            :class:`~torchpbp.KernelRidge`, :class:`~torchpbp.MLP`, or :class:`~torchpbp.Messages` (more precise on loops,
            a few times slower). Model files hold the nets of ``MLP``, as ``stage1``, but not the regressor.
        ridge: penalties (stage 1, stage 2), as a number of pseudo-rows: λ = ridge / rows. If all variables are
            discrete, their features are first scaled to unit variance; otherwise features are not scaled.
        features: kernel map for continuous variables, copied for each; :class:`~torchpbp.features.Nystroem` by default. Or an
            encoder: an ``nn.Module`` from (rows, *shape) values to (rows, d) features, shared by all leaves with a shape, such as
            :class:`~torchpbp.PointEncoder`; or a dict from leaves to such encoders, and to one kernel map for numbers. Leaves that
            are vectors or images need an encoder. :class:`~torchpbp.PBPModule` trains encoders; ``fit`` does not change them.
        context: the encoder is shared by all leaves and reads all observed leaves of a row:
            ``encoder({leaf: values}, {leaf: seen})`` returns leaf -> features, see :class:`~torchpbp.ContextEncoder`. Such a model
            answers queries of its training target only.
        whitening: regularisation of the whitening of kernel features before compression.
        singles: number of nearest outside leaves in a separator's instrument, each as a group of one.
        pool: number of nearest outside observables from which product groups are formed if the rank requires them.
        largest_group: most joint states (or features) of one product group.
        strict: raise an error, instead of a warning, if the structure's rank condition cannot be met.
        max_rank: largest candidate for ``rank="auto"``.
        root: variables the root clique must contain; chosen by cost by default.
        dtype: of the operators. Learning is always done in float64.
        seed: of the held-out split and of the random draws behind generic ranks.
        condition: a discrete observable with an operator tree for each of its states. The plan is made for the graph without it;
            its posterior follows from Bayes' rule with the shares of the classes as prior, and all other answers are mixtures
            over the classes. Operators then have a leading dimension of classes. Not with ``rank="auto"``.
        shrinkage: with ``condition``, the number of pseudo-rows from the distribution pooled over classes that are added to the
            moments of each class, so that classes with few rows are shrunk towards all rows. A class without rows has the
            pooled moments.
        budget: memory limit of planning and fitting in bytes, 4 GiB by default; None: no limit. It is compared with an estimate,
            ``model.plan.cost()``; a larger estimate raises a :class:`~torchpbp.errors.BudgetError`. Planning may take a minute,
            more with a larger budget.

    Attributes:
        counts: counts of the training rows, stored for :meth:`partial_fit`; ``None`` if learning needs more than counts, and
            after loading a file without them. Set it to ``None`` to free their memory.
        prior, class_rows: (classes,) shares and training rows of the classes, with ``condition``.

    Example:
        >>> from torchpbp import templates
        >>> truth = DiscreteNetwork.random(templates.diamond(), seed=1)
        >>> model = PBP(truth.graph).fit(truth.sample(10_000, seed=0))
        >>> model.posterior("d1", {"a1": [0, 5], "b1": [2, -1]}).shape
        torch.Size([2, 6])
    """

    counts: Counts | None = None

    def count(
        self,
        data: DataLike,
        batch_size: int = ROWS_AT_ONCE,
        columns: Sequence[str] | None = None,
        labels: Mapping[str, Sequence[Any]] | None = None,
    ) -> Counts:
        """Count rows without changing the model.

        Counts of parts of the data can be made on any machine, saved, merged in any order and passed to :meth:`fit_counts` of a
        model with the same graph and options. In a process group, ``data`` alone is counted, not the rows of other processes.

        Args:
            data: as in :meth:`fit`.
            batch_size: rows of a table handled at once.
            columns: names of the columns of arrays.
            labels: labels of the states of columns given by label, in the order of the states; by default the labels of the
                fitted model or, before fitting, those of the data. Counts can be merged only if their labels agree.

        Raises:
            StructureError: a model that cannot be learned from counts.
            DataError: as :meth:`fit`.
        """
        whole(1).check("batch_size", batch_size)
        state_labels = self.labels or self.graph.labels if labels is None else labels
        if (table := partitioned(data)) is not None:
            return self._count_partitions(table, batch_size, columns, state_labels)[0]
        fitter = self._counting_fitter()
        reader = ColumnReader(self.evidence_domains(), state_labels, missing=True, device=None)
        source = open_data(data, reader.states, columns)

        def tables() -> Iterator[dict[str, Tensor]]:
            return with_progress(reader.tables(source, batch_size, narrow=True), source.length)

        return Counts(fitter.count(tables, self._counted_groups(fitter)), reader.labels)

    def fit(self, data: DataLike, batch_size: int = ROWS_PER_BATCH, columns: Sequence[str] | None = None) -> Self:
        if (table := partitioned(data)) is None:
            return super().fit(data, batch_size, columns)
        whole(1).check("batch_size", batch_size)
        if self.settings.rank == "auto":
            raise StructureError(
                "rank='auto' is chosen on held-out rows, and a table on a cluster is only counted. Give a rank, such as "
                "the one that a fit on a sample of the rows has chosen."
            )
        counts, missing = self._count_partitions(table, batch_size, columns, self.graph.labels)
        missing.check()
        return self.fit_counts(counts)

    def _count_partitions(
        self,
        table: PartitionedTable,
        batch_size: int,
        columns: Sequence[str] | None,
        labels: Mapping[str, Sequence[Any]],
    ) -> tuple[Counts, MissingValues]:
        """Counts and missing values of a table on a cluster."""
        no_names_needed(columns, "A table on a cluster")
        fitter = self._counting_fitter()
        groups = self._counted_groups(fitter)
        reader = PartitionReader.of(table, self.evidence_domains(), labels, batch_size)
        counts, missing = count_partitions(table, reader, groups, fitter.states)
        return Counts(counts, reader.labels), missing

    def _counted_groups(self, fitter: Fitter) -> Sequence[tuple[str, ...]]:
        return fitter.required_tables([self.plan]) if self.counts is None else self.counts.tables.scopes

    def fit_counts(self, counts: Counts) -> Self:
        """Learn from counts: the same model as from their rows.

        Args:
            counts: from :meth:`count` of this model, or of a model with the same graph and options. They are copied.

        Raises:
            StructureError: counts of other variables or groups, or a model that cannot be learned from counts.
            DataError: no rows.
        """
        fitter = self._counting_fitter()
        if not isinstance(counts, Counts):
            raise DataError(
                f"fit_counts: expected Counts, got {type(counts).__name__}. Make them with model.count(rows)."
            )
        if counts.tables.states != fitter.states:
            raise StructureError(
                f"The counts are over variables with states {counts.tables.states}, the model observes {fitter.states}. Count "
                "with a model of the same graph."
            )
        absent = [group for group in fitter.required_tables([self.plan]) if not counts.tables.holds(group)]
        if absent:
            raise StructureError(
                f"The counts lack {len(absent)} groups of variables that this model learns from, such as {absent[0]}. Count with "
                "a model of the same graph and options (rank, singles, pool, largest_group, root, seed)."
            )
        if counts.rows == 0:
            raise DataError("The counts are empty: expected at least one row, got none.")
        counts = counts.copy()
        with torch.no_grad():
            result = fitter.fit_counts(self.plan, counts.tables)
        self.accept(result, counts.labels)
        return self

    def partial_fit(
        self, data: DataLike, batch_size: int = ROWS_PER_BATCH, columns: Sequence[str] | None = None
    ) -> Self:
        """Learn from further rows: the same model as :meth:`fit` on these and all earlier rows.

        The counts of the new rows are added to :attr:`counts`, and the regressions are solved again; other changes of the
        operators since the last fit, such as training as a layer, are lost. A rank chosen by ``rank="auto"`` does not change.
        In a process group each process passes its share of the rows.

        Args:
            data: as in :meth:`fit`. The first call fixes the labels, so its category columns must have all categories.
            batch_size: rows of a table handled at once.
            columns: names of the columns of arrays.

        Raises:
            StructureError: continuous variables, or a regressor that needs the rows themselves.
            NotFittedError: a fitted model without counts.
            DataError: as :meth:`fit`; the model is then unchanged.
        """
        self._counting_fitter()
        if world_size() > 1 and partitioned(data) is not None:
            raise DataError(
                "partial_fit: expected this process's share of the rows, got a table on a cluster, which is counted as a whole. "
                "Call it in a single process."
            )
        if self.counts is None and self.fitted:
            raise NotFittedError(
                "This model is fitted, but the counts behind it are gone, so rows cannot be added. Save with counts=True to keep "
                "them in the file, or fit again."
            )
        new = self.count(data, batch_size, columns)
        new.tables.sum_over_processes()
        check_labels(new.labels)
        return self.fit_counts(new if self.counts is None else self.counts.copy().merge(new))

    def interval(
        self,
        query: str | Sequence[str] | None,
        evidence: EvidenceLike = None,
        level: float = 0.95,
        *,
        data: DataLike | None = None,
        replicates: int = 1000,
        seed: int = 0,
    ) -> Any:
        """Confidence intervals of each entry of P(query | evidence), or of log P(evidence), by the bootstrap.

        The training rows are resampled with replacement, and both stages solved for each replicate; the ends of an interval are
        quantiles of the answers. Intervals reflect variance, not bias, and cover somewhat less than their level
        (docs/precision.md). Supported for discrete models with ridge regression, in one process.

        Args:
            query: a variable, or several for their joint distribution; None for the log-evidence.
            evidence: as for :meth:`posterior`.
            level: probability with which an interval covers the true value, over repeated samples of training rows.
            data: the training rows; the model's counts are not enough.
            replicates: bootstrap samples.
            seed: of their draws.

        Returns:
            :class:`~torchpbp.contract.intervals.Interval` (estimate, lower, upper) of (rows, states…) tensors, or (rows,) for the
            log-evidence. For a DataFrame of evidence a DataFrame with the same index.

        Raises:
            ArgumentError: no data.
            StructureError: continuous variables, a regressor that needs the rows themselves, or ``condition``.
        """
        whole(2).check("replicates", replicates)
        seed_setting().check("seed", seed)
        if data is None:
            raise ArgumentError(
                "interval: expected data=, the rows that the model was fitted to; a PBP model keeps counts of small groups only."
            )
        fitter = self._counting_fitter()

        def answer(names: tuple[str, ...], checked: Evidence) -> Interval:
            return bootstrap_interval(self, fitter, names, checked, data, level, replicates, seed)

        return ask_interval(self, query, evidence, level, answer)

    def refine(self, data: DataLike, **options: Any) -> Self:
        """Replace the operators by those of the graph's maximum-likelihood network, solved from its exact moments.

        Two-stage regression is consistent but uses low-order moments only; with many rows maximum likelihood is more precise.
        An undirected graph is learned as a directed graph that represents its distributions, and latents of unknown cardinality
        have as many states as the chosen rank. If few observables determine a latent, the two-stage fit may be better:
        compare ``score`` on held-out rows. Discrete variables only.

        Args:
            data: rows, as in :meth:`fit`; values may be missing at random.
            **options: of :class:`~torchpbp.MaximumLikelihood`.

        Raises:
            StructureError: continuous variables, encoders, or ``condition``.
        """
        if self.condition is not None or not self.fitter().discrete:
            raise StructureError(
                "refine: expected discrete variables and one operator tree, got "
                f"{'continuous variables' if self.condition is None else f'condition={self.condition!r}'}. Encoders and nets "
                "are trained by PBPModule."
            )
        learned = MaximumLikelihood(directed_graph(self.tree.graph), **options).fit(data)
        solution = learn_population(self.plan, learned.network, Ridge())
        self._adopt(solution, round(learned.rows), EXACT_FLOOR, self._observables)
        self._keep_nets(solution)
        self.labels, self.missing, self.counts = learned.labels, learned.missing, None
        return self

    def fit_population(self, network: DiscreteNetwork) -> Self:
        super().fit_population(network)
        self.counts = None
        return self

    def accept(self, result: FitResult, labels: Mapping[str, tuple[Any, ...]]) -> None:
        super().accept(result, labels)
        keep = result.tables is not None and not isinstance(self.regressor, RowRegressor)
        self.counts = Counts(result.tables, labels) if keep and result.tables is not None else None

    def _counting_fitter(self) -> Fitter:
        """The fitter of a model that can be learned from counts; a StructureError for other models."""
        if isinstance(self.stage1, MessageNets):
            raise StructureError(
                "Counting is not enough for nets of leaves, which need the rows themselves. Use fit()."
            )
        fitter = self.fitter()
        if not fitter.discrete:
            continuous = [v for v, o in self.observables.items() if o.continuous]
            raise StructureError(
                f"Counting needs discrete variables, and {continuous} are continuous: their features, and the compressed "
                "products of these that are averaged, are chosen from all rows at once. Use fit(), or make them discrete."
            )
        if isinstance(self.regressor, RowRegressor):
            raise StructureError(
                f"Counting works with regressor=Ridge() only: {self.regressor!r} needs the rows themselves. Use fit()."
            )
        return fitter

    # -- files ---------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], counts: bool = False) -> None:
        """Write graph, settings and operators to one file; an existing file is replaced only once the new one is complete.

        Args:
            path: of the file.
            counts: write the counts of the training rows as well, for :meth:`partial_fit` after loading. They take
                ``model.counts.nbytes`` bytes.

        Raises:
            CheckpointError: NaN or infinity in parameters, invalid labels, or a file that cannot be written.
        """
        self._write(path, SaveOptions(counts=counts))

    def pack(self, name: object, options: SaveOptions) -> dict[str, Any]:
        content = super().pack(name, options)
        if options.counts and self.counts is None:
            raise NotFittedError("This model keeps no counts that could be saved. Save it with counts=False.")
        return {**content, "counts": self.counts.to_dict() if options.counts and self.counts is not None else None}

    @classmethod
    def unpack(cls, content: Mapping[str, Any], name: object) -> Self:
        model = super().unpack(content, name)
        model.counts = None if content["counts"] is None else Counts.from_dict(content["counts"], name)
        return model
