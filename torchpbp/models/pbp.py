"""PBP: a latent-variable graphical model learned by two-stage regression, as an ``nn.Module``."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchpbp.arguments import check_counts, check_positive, check_seed, is_number, is_series
from torchpbp.errors import CheckpointError, DataError, DataWarning, NotFittedError, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.features.maps import KernelMap
from torchpbp.files.checkpoint import (
    checked_labels,
    read_checkpoint,
    require_finite,
    require_none,
    whole_model,
    write_checkpoint,
)
from torchpbp.files.tensors import copy_state, shape_fault
from torchpbp.graph.junction_tree import JunctionTree, build_junction_tree, checked_root
from torchpbp.graph.latent_graph import Continuous, LatentGraph, require_graph
from torchpbp.inference.density import warn_of_coarse_grids
from torchpbp.inference.operators import RootOperator, SeparatorOperator, operator_shapes
from torchpbp.inference.queries import as_distribution, leaf_estimates
from torchpbp.inference.schedule import build_schedule
from torchpbp.inference.variables import Observable, make_map, prepare
from torchpbp.inputs.columns import ROWS_PER_BATCH, ColumnReader
from torchpbp.inputs.evidence import Evidence, EvidenceLike
from torchpbp.inputs.gaps import MissingValues
from torchpbp.inputs.sources import DataLike, open_data, with_progress
from torchpbp.lazy import pandas as pd
from torchpbp.learning.fitting import Fitted, Fitter, check_labels
from torchpbp.learning.population import learn_population
from torchpbp.learning.rank_selection import RankScore
from torchpbp.learning.regressor import Regressor, Ridge
from torchpbp.learning.two_stage import Learned
from torchpbp.models.counting import CountedModel, Counts
from torchpbp.models.diagnostics import diagnostics_table, random_patterns
from torchpbp.models.saved_state import answering, graph_fault, observable_shapes, weight_shapes
from torchpbp.planning.plan import Specification, SpecificationOptions
from torchpbp.planning.planner import Plan, Planner

EXACT_FLOOR = 1e-15


class PBP(CountedModel):
    """Predictive Belief Propagation [PBP]: fit from data without EM, then ask P(X | any evidence).

    The graph becomes a junction tree whose leaves hold the observables. At each separator stage 1 predicts features of
    the inside from the outside (ridge), and stage 2 finds the linear operator between such predictions (least
    squares). Inference contracts the operators along the tree.

    Args:
        graph: the model's structure; discrete and continuous observables may mix.
        rank: largest number of dimensions of a message. ``None``: what the latents' numbers of states imply. A number:
            no more than that; latents of unknown cardinality are taken to have so many states. ``"auto"``: chosen on
            held-out rows while fitting.
        regressor: stage-1 method: :class:`~torchpbp.Ridge` (linear, closed form, the default),
            :class:`~torchpbp.KernelRidge`, :class:`~torchpbp.MLP`, or :class:`~torchpbp.Messages` (more precise on loops,
            a few times as long). It is not part of a model file.
        ridge: penalties (stage 1, stage 2), as a number of pseudo-rows: λ = ridge / rows. Where all variables are
            discrete, their features are scaled to unit variance first; in graphs with continuous ones they are not.
        features: map for continuous variables, copied for each; :class:`~torchpbp.features.Nystroem` by default.
        whitening: regularisation of the whitening of kernel features before compression.
        compressed: whether messages are compressed to their rank. If not, they are the core groups' features
            themselves, as printed in [PBP].
        singles: number of nearest outside leaves that enter a separator's instrument alone.
        pool: number of nearest outside observables from which product groups are formed, should rank demand them.
        largest_group: most joint states (or features) of one product group.
        strict: raise where the structure's rank condition cannot be met, instead of a warning.
        max_rank: largest candidate for ``rank="auto"``.
        root: variables the root clique must contain; chosen by cost by default.
        dtype: of the operators. Learning is always done in float64.
        seed: of the held-out split and of the random draws behind generic ranks.

    Example:
        >>> from torchpbp import templates
        >>> truth = DiscreteNetwork.random(templates.diamond(), seed=1)
        >>> model = PBP(truth.graph).fit(truth.sample(10_000, seed=0))
        >>> model.posterior("d1", {"a1": [0, 5], "b1": [2, -1]}).shape
        torch.Size([2, 6])
    """

    rows: Tensor

    def __init__(
        self,
        graph: LatentGraph,
        *,
        rank: int | Literal["auto"] | None = None,
        regressor: Regressor | None = None,
        ridge: tuple[float, float] = (1.0, 10.0),
        features: KernelMap | None = None,
        whitening: float = 1e-3,
        compressed: bool = True,
        singles: int = 8,
        pool: int = 6,
        largest_group: int = 4096,
        strict: bool = False,
        max_rank: int = 8,
        root: Sequence[str] | None = None,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
    ) -> None:
        super().__init__()
        require_graph(graph, "PBP")
        check_positive(whitening=whitening)
        check_counts(max_rank=max_rank)
        seed = check_seed(seed)
        if not isinstance(features, KernelMap | None):
            raise StructureError(f"features: expected Nystroem(…), RandomFourier(…) or None, got {features!r}.")
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise StructureError(f"dtype: expected torch.float64 or torch.float32, got {dtype!r}.")
        self.graph = graph
        self.rank = rank
        self.regressor = Ridge() if regressor is None else regressor
        if not isinstance(self.regressor, Regressor):
            raise StructureError(
                f"regressor: expected a torchpbp Ridge, KernelRidge, MLP or Messages, got {regressor!r}."
            )
        if self.regressor.needs_rows and not compressed:
            raise StructureError(f"compressed=False works with regressor=Ridge() only, got {self.regressor!r}.")
        continuous = [v for v in graph.observed if isinstance(graph.variables[v], Continuous)]
        if self.regressor.starts_linear and continuous:
            raise StructureError(
                f"{self.regressor!r} needs discrete variables; {continuous} are continuous. Use Ridge()."
            )
        self.ridge = _checked_ridge(ridge)
        self.whitening = whitening
        self.compressed = compressed
        self.max_rank = max_rank
        self.root_variables = checked_root(root)
        self.dtype = dtype
        self.seed = seed
        self.options = SpecificationOptions(None, singles, pool, largest_group, strict, 20200207 + seed)
        self.labels: dict[str, tuple[Any, ...]] = {}
        self.missing: dict[str, float] = {}
        self.counts: Counts | None = None
        self.rank_scores: list[RankScore] = []
        self.bandwidth_scores: dict[float, float] = {}
        self.fitted = False
        self.kernel_map = features
        self._observables = nn.ModuleList(
            Observable(v, graph.variables[v], make_map(graph.variables[v], features)) for v in graph.observed
        )
        self.register_buffer("floor", torch.tensor(EXACT_FLOOR, dtype=torch.float64))
        self.register_buffer("rows", torch.tensor(0, dtype=torch.int64))
        self._tree: JunctionTree | None = None
        self._specification: Specification | None = None
        self.register_load_state_dict_post_hook(_note_loaded)  # type: ignore[no-untyped-call]
        unknown = [v for v in graph.latent if graph.variables[v] is None]
        if rank is None and unknown:
            raise StructureError(
                f"Latent variables {unknown} have no number of states. Pass rank=<int> to set it, or rank='auto' to have "
                "it chosen on held-out rows."
            )
        if isinstance(rank, str) and rank != "auto":
            raise StructureError(f"rank: expected None, a number or 'auto', got {rank!r}.")
        if rank is not None and rank != "auto":
            check_counts(rank=rank)
        if rank != "auto":
            self._build(*self._planner.plan(rank))

    # -- structure -----------------------------------------------------------------------------------------------

    @property
    def tree(self) -> JunctionTree:
        """The latent junction tree."""
        if self._tree is None:
            raise NotFittedError("With rank='auto' the tree is fixed while fitting. Call fit() first.")
        return self._tree

    @property
    def specification(self) -> Specification:
        """Core groups, instruments and ranks of all separators."""
        if self._specification is None:
            raise NotFittedError("With rank='auto' the specification is fixed while fitting. Call fit() first.")
        return self._specification

    @property
    def core_groups(self) -> dict[int, tuple[str, ...]]:
        """Core group of each separator, by tree node; see :func:`torchpbp.plotting.plot_junction_tree`."""
        return {p.node: p.core for p in self.specification.plans}

    @property
    def states(self) -> dict[str, int]:
        """Number of states of each discrete observable."""
        return {v: o.map.dim for v, o in self.observables.items() if not o.continuous}

    @property
    def dims(self) -> dict[str, int]:
        """Feature dimensions of each observable."""
        return {v: o.map.dim for v, o in self.observables.items()}

    @property
    def _planner(self) -> Planner:
        return Planner(self.graph, self.dims, self.options, self.root_variables, self.compressed)

    def _build(self, tree: JunctionTree, specification: Specification) -> None:
        """Create the operators with their final shapes."""
        shapes = operator_shapes(tree, specification, self.dims)
        self._tree, self._specification = tree, specification
        self._schedule = build_schedule(tree, shapes)
        self.operators = nn.ModuleList(
            SeparatorOperator(shapes[n], tree.separator_name(n), self.dtype) for n in range(1, len(tree))
        )
        self.root = RootOperator([specification.plan(c).rank for c in tree.children[0]], self.dtype)
        if self.root.weight.device != self.floor.device:  # thousands of modules take their time
            self.operators.to(self.floor.device)
            self.root.to(self.floor.device)

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(self, data: DataLike, batch_size: int = ROWS_PER_BATCH, columns: Sequence[str] | None = None) -> PBP:
        """Learn from data: in one pass where all variables are discrete, in four otherwise.

        Args:
            data: dict of columns (tensors, arrays, lists) or pandas DataFrame (numbers, category or string columns); array,
                memory map or tensor of shape (rows, variables), or structured array; path of a Parquet file or folder,
                Arrow Dataset or Table (extra ``arrow``); or an iterable of such tables as mini-batches, such as a DataLoader,
                whose batches may also be tuples of tensors. However it is cut into batches, the result is the same.
                With continuous variables the data is read several times and must come in the same order each time.
                Values may be missing (NaN, None, pandas NA, masked entries, -1 for discrete variables): a moment is then taken
                over the rows in which its variables are known; in an instrument "missing" is one more state, or the mean
                features of a continuous variable. This is right where values are missing completely at random;
                where gaps depend on other values of their row, complete the table first
                (:func:`torchpbp.features.completion.complete_table`).
                Regressors other than ridge look at whole rows: gaps are filled from rows like theirs, which is an
                approximation (see :mod:`torchpbp.features.completion`). ``model.missing`` has their share in each column.
            batch_size: rows of a table handled at once; bounds the memory used.
            columns: names of the columns of arrays and tensors; ``graph.observed`` by default.

        Returns:
            The model itself.

        Raises:
            DataError: empty data, missing columns, states out of range, fractional states; missing values where they cannot be
                learned from: a column without any, variables never seen together; ``compressed=False`` with linear stage 1.
            ShapeError: columns of different lengths, arrays of the wrong width.
        """
        check_counts(batch_size=batch_size)
        fitter = self._fitter()
        reader = ColumnReader({v: o.domain for v, o in self.observables.items()}, missing=fitter.takes_gaps)
        source = open_data(data, reader.states, columns)
        if not fitter.discrete and not source.reopenable:
            raise DataError(
                "Continuous variables need several passes over the data, but it is a one-way iterator. Pass a table, a list "
                "of mini-batches, a file or a DataLoader."
            )
        narrow = fitter.discrete and not self.regressor.needs_rows

        gaps: MissingValues | None = None

        def tables() -> Iterator[dict[str, Tensor]]:
            nonlocal gaps
            yield from with_progress(reader.tables(source, batch_size, narrow), source.length)
            if gaps is None:
                gaps = reader.gaps.over_processes()
                gaps.check(stacklevel=2)

        with torch.no_grad():
            found = fitter.fit(tables, self._candidates())
        check_labels(reader.labels)
        self._adopt(found, reader.labels)
        if gaps is not None:
            self.missing = gaps.shares
        self.rank_scores, self.bandwidth_scores = found.rank_scores, found.bandwidth_scores
        return self

    def _fitter(self) -> Fitter:
        return Fitter(
            self.observables, self.kernel_map, self.regressor, self.ridge, self.whitening, self.compressed, self.seed
        )

    def _adopt(self, found: Fitted, labels: Mapping[str, tuple[Any, ...]]) -> None:
        if found.constant:
            text = f"Columns {found.constant} hold one state only: the model learns that they never vary."
            warnings.warn(text, DataWarning, stacklevel=3)
        named = [o for o in found.observables if isinstance(o, Observable) and o.continuous]
        spans = {o.name: (float(o.bounds.diff()), o.map.width) for o in named if isinstance(o.map, KernelMap)}
        warn_of_coarse_grids({v: (span, float(width)) for v, (span, width) in spans.items()})
        marginals = None if found.counts is None else found.counts.marginals()
        self._accept(found.plan, found.learned, int(found.rows), found.floor, found.observables, marginals)
        self.labels = dict(labels)
        self.missing = {} if found.counts is None else found.counts.missing_shares()
        self.counts = None if found.counts is None else Counts(found.counts, labels)

    def fit_population(self, network: DiscreteNetwork) -> PBP:
        """Learn from the exact moments of a known network, as if from infinitely many rows.

        With a regressor other than ridge, all joint states of the observables are enumerated and weighted.
        """
        if not isinstance(network, DiscreteNetwork):
            raise StructureError(f"fit_population: expected a DiscreteNetwork, got {type(network).__name__}.")
        theirs = {v: network.states[v] for v in network.graph.observed}
        if theirs != self.states:
            raise StructureError(f"The network observes {theirs}, the model {self.states}. They must be the same.")
        if self.rank == "auto":
            raise StructureError("rank='auto' is chosen on held-out rows; give a rank to fit a population.")
        plan = self.tree, self.specification
        learned = learn_population(*plan, network, self.regressor, self.compressed)
        self._accept(plan, learned, 0, EXACT_FLOOR, self._observables)
        self.labels = {v: network.labels[v] for v in self.states if v in network.labels}
        self.counts = None
        return self

    def _candidates(self) -> dict[int, Plan]:
        """Plans to choose from, by rank; a single one, under 0, where the rank is given."""
        if self.rank != "auto":
            return {0: (self.tree, self.specification)}
        return self._planner.candidates(self.max_rank)

    def _accept(
        self,
        plan: Plan,
        learned: Learned,
        rows: int,
        floor: float,
        observables: nn.ModuleList,
        marginals: Mapping[str, Tensor] | None = None,
    ) -> None:
        if plan[0] is not self._tree:
            self._build(*plan)
        with torch.no_grad():
            for operator, weight, strengths, significant in zip(
                self._separators, learned.operators[1:], learned.strengths[1:], learned.significant[1:], strict=True
            ):
                operator.weight.copy_(weight)
                operator.strengths.copy_(strengths)
                operator.significant.fill_(significant)
            self.root.weight.copy_(learned.root)
            self.floor.fill_(floor)
            self.rows.fill_(rows)
        self._observables = observables.to(self.floor.device)
        self.fitted = True
        self._note_marginals(marginals)

    @torch.no_grad()
    def _note_marginals(self, known: Mapping[str, Tensor] | None = None) -> None:
        """Distributions without evidence, which answers that are mostly noise retreat to.

        Args:
            known: from counts, which the model without evidence repeats; otherwise the model is asked.
        """
        if known is None:
            known = {v: e[0] for v, e in self._estimates(Evidence(1), list(self.states), None).items()}
        observables = self.observables
        by_size: dict[int, list[str]] = {}
        for v, estimate in known.items():
            by_size.setdefault(len(estimate), []).append(v)
        for names in by_size.values():
            found = as_distribution(torch.stack([known[v] for v in names]), self.floor)
            for v, marginal in zip(names, found, strict=True):
                observables[v].marginal.copy_(marginal)

    # -- looking at it -------------------------------------------------------------------------------------------

    def diagnostics(self, evidence: EvidenceLike = None, rows: int = 500, seed: int = 0) -> pd.DataFrame:
        """How well each separator was learned, as a table.

        Columns: the separator, its core group and instrument, the message's rank, the rank the structure needs and the
        one the instrument reaches for almost all parameters, the dimensions that these data bear out (where fewer than the
        rank, the data hold no more or the regressor cannot see it), the weakest canonical correlation, the condition number of stage 2, and at leaves of
        discrete variables the clipped mass: the share of negative probability in estimates for ``evidence`` (or for
        random evidence patterns over ``rows`` rows drawn from the model), and the remedy where the structure or the data
        fall short.
        """
        self._require_fitted()
        if evidence is None:
            evidence = random_patterns(self.sample(rows, seed=seed), seed)
        with torch.no_grad():
            prepared = prepare(self.observables, self._read(evidence), self.root.weight)
            estimates = leaf_estimates(self._weights(), self.root.weight, self._schedule, prepared, self.tree.parent)
        named = self.observables
        discrete = {
            n: e for n, e in estimates.items() if not any(named[v].continuous for v in self.tree.leaf_observables[n])
        }
        strengths = [op.strengths for op in self._separators]
        significant = [int(op.significant) for op in self._separators]
        return diagnostics_table(self.tree, self.specification, strengths, significant, discrete)

    def __str__(self) -> str:
        state = "not fitted"
        if self.fitted:
            state = f"fitted on {int(self.rows)} rows" if int(self.rows) else "fitted to a population"
            if any(self.missing.values()):
                state += f", {sum(self.missing.values()) / len(self.missing):.1%} of the values missing"
        return f"PBP({self.graph!r}, {state})"

    # -- saving --------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], counts: bool = False) -> None:
        """Write graph, settings and operators to one file; an existing file is replaced only once the new one is whole.

        Args:
            path: of the file.
            counts: write the counts behind the fit as well, so that the model can go on with :meth:`partial_fit` after
                loading. They take ``model.counts.nbytes`` bytes.

        Raises:
            CheckpointError: NaN or infinity in what answers are made of, labels that are no labels, or a file that cannot be
                written.
        """
        self._require_fitted()
        if counts and self.counts is None:
            raise NotFittedError("This model keeps no counts that could be saved. Save it with counts=False.")
        state = dict(self.state_dict())
        require_finite(answering(state), path, saving=True)
        settings = {
            "rank": self.rank,
            "ridge": list(self.ridge),
            "whitening": self.whitening,
            "compressed": self.compressed,
            "singles": self.options.singles,
            "pool": self.options.pool,
            "largest_group": self.options.largest_group,
            "strict": self.options.strict,
            "max_rank": self.max_rank,
            "root": None if self.root_variables is None else list(self.root_variables),
            "seed": self.seed,
        }
        graph, resolved = self.graph.to_dict(), self.tree.graph.to_dict()
        content = {
            "graph": graph,
            "resolved_graph": graph if resolved == graph else resolved,  # one object is written once
            "settings": settings,
            "features": None if self.kernel_map is None else self.kernel_map.to_dict(),
            "specification": self.specification.to_list(),
            "labels": {v: list(x) for v, x in checked_labels(self.labels, self.graph.variables, path).items()},
            "missing": self.missing,
            "dtype": str(self._separators[0].weight.dtype).removeprefix("torch."),
            "state": state,
            "counts": self.counts.to_dict() if counts and self.counts is not None else None,
        }
        write_checkpoint(path, content)

    @classmethod
    @whole_model
    def load(cls, path: str | os.PathLike[str], map_location: torch.device | str = "cpu") -> PBP:
        """Read a model written by :meth:`save`. Only tensors and plain values are read; no code is executed."""
        saved = read_checkpoint(path, map_location)
        if "learner" in saved:
            raise CheckpointError(
                f"'{path}' holds no model learned by PBP but one by {saved['learner']}. Use torchpbp.load()."
            )
        settings, state = dict(saved["settings"]), dict(saved["state"])
        rank = settings.pop("rank")
        settings["ridge"] = tuple(settings["ridge"])
        graph = LatentGraph.from_dict(saved["graph"])
        require_none(shape_fault(observable_shapes(graph, saved["features"]), state), path)
        require_finite(answering(state), path)
        model = cls(
            graph,
            rank="auto",  # operators are made from the saved specification instead of a new one
            dtype=getattr(torch, saved["dtype"]),
            features=None if saved["features"] is None else KernelMap.from_dict(saved["features"]),
            **settings,
        )
        model.rank = rank
        same = saved["resolved_graph"] == saved["graph"]
        resolved = graph if same else LatentGraph.from_dict(saved["resolved_graph"])
        require_none(graph_fault(graph, resolved), path)
        tree = build_junction_tree(resolved, model.root_variables)
        specification = Specification.from_list(saved["specification"])
        require_none(shape_fault(weight_shapes(tree, specification, model.dims), state), path)
        model._build(tree, specification)
        require_none(copy_state(model, state), path)
        model.labels = checked_labels(saved["labels"], graph.variables, path)
        model.missing = dict(saved.get("missing", {}))
        model.counts = None if saved.get("counts") is None else Counts.from_dict(saved["counts"], path)
        model.fitted = True
        return model if model.floor.device == torch.device(map_location) else model.to(map_location)


def _note_loaded(model: nn.Module, _: Any) -> None:
    """Operators that come with a state dict, that of a network around the model, say, make it a fitted one."""
    if isinstance(model, PBP) and model._tree is not None and not model.root.weight.is_meta:
        model.fitted = model.fitted or bool(model.root.weight.any())


def _checked_ridge(ridge: Sequence[float]) -> tuple[float, float]:
    pair = tuple(ridge) if is_series(ridge) else ()
    if len(pair) != 2 or not all(is_number(r) and 0 <= r < math.inf for r in pair):
        raise StructureError(f"ridge: expected two non-negative numbers (stage 1, stage 2), got {ridge!r}.")
    return float(pair[0]), float(pair[1])
