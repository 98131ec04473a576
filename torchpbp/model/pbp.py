"""PBP: a latent-variable graphical model learned by two-stage regression, as an ``nn.Module``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from torchpbp.errors import DataError, DataWarning, NotFittedError, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.features.maps import KernelMap
from torchpbp.graph.junction_tree import JunctionTree, build_junction_tree
from torchpbp.graph.latent_graph import Continuous, LatentGraph
from torchpbp.inference.queries import as_distribution, leaf_estimates
from torchpbp.inference.schedule import build_schedule
from torchpbp.inference.variables import Observable, make_map, prepare
from torchpbp.inputs.columns import ROWS_PER_BATCH, ColumnReader, DataLike
from torchpbp.inputs.evidence import Evidence, EvidenceLike
from torchpbp.model.answers import Answers
from torchpbp.model.checkpoint import read_checkpoint, write_checkpoint
from torchpbp.model.diagnostics import diagnostics_table, random_patterns
from torchpbp.model.learning import Learned, learn, required_pairs, required_scopes
from torchpbp.model.operators import RootOperator, SeparatorOperator, operator_shapes
from torchpbp.model.selection import CANDIDATE_RANKS, HoldOut, RankScore, choose_rank, leave_one_out
from torchpbp.model.thinning import ThinnedRows
from torchpbp.specification.core_groups import group_size
from torchpbp.specification.specification import Specification, SpecificationOptions, specify
from torchpbp.stage2.joint_tables import JointTables
from torchpbp.stage2.moments import FeatureMoments, Moments, TableMoments

EXACT_FLOOR = 1e-15
FLOOR_ROWS = 3.0
"""An estimate is clipped at this many rows' worth of probability: 3 / N."""
MAP_ROWS = 20_000
"""Most rows from which feature maps of continuous variables are fitted; they are spread evenly over the data."""
BANDWIDTH_SCALES = (0.1, 0.2, 0.35, 0.6, 1.0)
"""Candidates for ``bandwidth="validate"``, as multiples of the median distance between training values."""

Tables = Callable[[], Iterator[dict[str, Tensor]]]
Plan = tuple[JunctionTree, Specification]


class PBP(Answers):
    """Predictive Belief Propagation [PBP]: fit from data without EM, then ask P(X | any evidence).

    The graph becomes a junction tree whose leaves hold the observables. At each separator stage 1 predicts features of
    the inside from the outside (ridge), and stage 2 finds the linear operator between such predictions (least
    squares). Inference contracts the operators along the tree.

    Args:
        graph: the model's structure; discrete and continuous observables may mix.
        rank: largest number of dimensions of a message. ``None``: what the latents' numbers of states imply. A number:
            no more than that; latents of unknown cardinality are taken to have so many states. ``"auto"``: chosen on
            held-out rows while fitting.
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
        >>> model = PBP(truth.graph).fit(truth.sample(10_000))
        >>> model.posterior("d1", {"a1": [0, 5], "b1": [2, -1]}).shape
        torch.Size([2, 6])
    """

    rows: Tensor

    def __init__(
        self,
        graph: LatentGraph,
        *,
        rank: int | Literal["auto"] | None = None,
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
        self.graph = graph
        self.rank = rank
        self.ridge = _checked_ridge(ridge)
        if not whitening > 0:
            raise StructureError(f"whitening: expected a positive number, got {whitening}.")
        self.whitening = whitening
        self.compressed = compressed
        self.max_rank = max_rank
        self.root_variables = None if root is None else tuple(root)
        self.dtype = dtype
        self.seed = seed
        self.options = SpecificationOptions(None, singles, pool, largest_group, strict, 20200207 + seed)
        self.labels: dict[str, tuple[Any, ...]] = {}
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
        unknown = [v for v in graph.latent if graph.variables[v] is None]
        if rank is None and unknown:
            raise StructureError(
                f"Latent variables {unknown} have no number of states. Pass rank=<int> to set it, or rank='auto' to have "
                "it chosen on held-out rows."
            )
        if isinstance(rank, str) and rank != "auto":
            raise StructureError(f"rank: expected None, a number or 'auto', got {rank!r}.")
        if rank != "auto":
            self._build(*self._plan(rank))

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
        """Core group of each separator, by tree node; pass it to ``model.tree.draw(...)``."""
        return {p.node: p.core for p in self.specification.plans}

    @property
    def states(self) -> dict[str, int]:
        """Number of states of each discrete observable."""
        return {v: o.map.dim for v, o in self.observables.items() if not o.continuous}

    @property
    def dims(self) -> dict[str, int]:
        """Feature dimensions of each observable."""
        return {v: o.map.dim for v, o in self.observables.items()}

    def _plan(self, rank: int | None) -> Plan:
        """Tree and specification, with states set for latents of unknown cardinality.

        Generic ranks are found on a discrete stand-in: a continuous variable gets enough states to tell those of any
        latent apart.
        """
        graph = self.graph
        if rank is not None:
            graph = graph.with_states(dict.fromkeys([v for v in graph.latent if graph.variables[v] is None], rank))
        most = max([graph.num_states(v) for v in graph.latent], default=2)
        stand_ins = {
            v: max(2, min(most, d)) for v, d in self.dims.items() if isinstance(graph.variables[v], Continuous)
        }
        tree = build_junction_tree(graph.with_states(stand_ins), self.root_variables)
        specification = specify(tree, replace(self.options, rank=rank), self.dims)
        if not self.compressed:
            plans = tuple(replace(p, rank=group_size(p.core, self.dims)) for p in specification.plans)
            specification = Specification(plans)
        return tree, specification

    def _build(self, tree: JunctionTree, specification: Specification) -> None:
        """Create the operators with their final shapes."""
        shapes = operator_shapes(tree, specification, self.dims)
        self._tree, self._specification = tree, specification
        self._schedule = build_schedule(tree, shapes)
        device = self.floor.device
        self.operators = nn.ModuleList(
            SeparatorOperator(shapes[n], tree.separator_name(n), self.dtype) for n in range(1, len(tree))
        ).to(device)
        self.root = RootOperator([specification.plan(c).rank for c in tree.children[0]], self.dtype).to(device)

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(self, data: DataLike, batch_size: int = ROWS_PER_BATCH) -> PBP:
        """Learn from data: in one pass where all variables are discrete, in four otherwise.

        Args:
            data: dict of columns (tensors, arrays, lists), a pandas DataFrame (numbers, category or string columns), or
                an iterable of such tables as mini-batches. Mini-batches give the same result as one table. With
                continuous variables the iterable must be one that can be walked several times, such as a list or a
                DataLoader.
            batch_size: rows of a table handled at once; bounds the memory used.

        Returns:
            The model itself.

        Raises:
            DataError: empty data, missing columns or values, states out of range, fractional states.
            ShapeError: columns of different lengths.
        """
        discrete = len(self.states) == len(self.observables)
        if not discrete and isinstance(data, Iterator):
            raise DataError(
                "Continuous variables need several passes over the data, but it is a one-way iterator. Pass a table, a list "
                "of mini-batches or a DataLoader."
            )
        reader = ColumnReader({v: o.domain for v, o in self.observables.items()})

        def tables() -> Iterator[dict[str, Tensor]]:
            return iter(tqdm(reader.tables(data, batch_size), desc="reading", unit="batch", delay=2, leave=False))

        with torch.no_grad():
            plans = self._candidates()
            observables = self._observables if discrete else self._fitted_observables(tables, plans)
            if len(plans) > 1:
                plan, moments = self._select(tables, observables, plans)
            else:
                (plan,) = plans.values()
                moments = self._moments([plan], tables, observables)
            constant = moments.tables.constant_variables() if isinstance(moments, TableMoments) else []
            if constant:
                text = f"Columns {constant} hold one state only: the model learns that they never vary."
                warnings.warn(text, DataWarning, stacklevel=2)
            learned = self._learn(plan, moments)
            self._accept(plan, learned, int(moments.rows), _floor(moments.rows), observables)
        self.labels = reader.labels
        return self

    def fit_population(self, network: DiscreteNetwork) -> PBP:
        """Learn from the exact moments of a known network, as if from infinitely many rows."""
        theirs = {v: network.states[v] for v in network.graph.observed}
        if theirs != self.states:
            raise StructureError(f"The network observes {theirs}, the model {self.states}. They must be the same.")
        if self.rank == "auto":
            raise StructureError("rank='auto' is chosen on held-out rows; give a rank to fit a population.")
        tables = JointTables(required_scopes(self.tree, self.specification), self.states)
        tables.fill(network.joint)
        plan = self.tree, self.specification
        learned = learn(*plan, TableMoments(tables), 0.0, 0.0, self.compressed)
        self._accept(plan, learned, 0, EXACT_FLOOR, self._observables)
        return self

    def _learn(self, plan: Plan, moments: Moments) -> Learned:
        return learn(*plan, moments, self.ridge[0] / moments.rows, self.ridge[1] / moments.rows, self.compressed)

    def _moments(self, plans: Sequence[Plan], tables: Tables, observables: nn.ModuleList) -> Moments:
        """Moments for one or more plans, from one pass over the data (plus one per plan for kernel features)."""
        if len(self.states) == len(observables):
            counts = JointTables([s for plan in plans for s in required_scopes(*plan)], self.states)
            for table in tables():
                counts.add(torch.stack([table[v] for v in self.states]))
            return TableMoments(counts)
        maps = {o.name: o.map for o in observables if isinstance(o, Observable)}
        pairs = [pair for _, specification in plans for pair in required_pairs(specification)]
        return FeatureMoments(maps, tables, pairs, self.whitening)

    def _fitted_observables(self, tables: Tables, plans: Mapping[int, Plan]) -> nn.ModuleList:
        """New observables with fitted feature maps; the old ones stay until all has gone well."""
        rows = ThinnedRows([v for v, o in self.observables.items() if o.continuous], MAP_ROWS)
        for table in tables():
            rows.add(table)
        if self.kernel_map is None or self.kernel_map.bandwidth != "validate":
            return self._observables_from(rows, None)
        self.bandwidth_scores = {}
        candidates = {scale: self._observables_from(rows, scale) for scale in BANDWIDTH_SCALES}
        for scale, observables in candidates.items():
            scores, _, _ = self._held_out_scores(tables, observables, plans)
            self.bandwidth_scores[scale] = max(float(s.mean()) for s in scores.values())
        return candidates[max(self.bandwidth_scores, key=self.bandwidth_scores.__getitem__)]

    def _observables_from(self, rows: ThinnedRows, scale: float | None) -> nn.ModuleList:
        result = nn.ModuleList()
        for v, old in self.observables.items():
            observable = Observable(v, old.domain, make_map(old.domain, self.kernel_map))
            if isinstance(observable.map, KernelMap):
                low, high = rows.extent(v)
                if low == high and isinstance(observable.map.bandwidth, str):
                    raise DataError(
                        f"Column '{v}' is constant ({low}): the median rule for its bandwidth needs different "
                        "values. Drop it, declare it discrete, or give a bandwidth as a number."
                    )
                if scale is not None:
                    observable.map.bandwidth_scale = scale
                observable.fit(rows.values(v), (low, high))
            result.append(observable)
        return result

    def _candidates(self) -> dict[int, Plan]:
        """Plans to choose from, by rank; a single one, under 0, where the rank is given."""
        if self.rank != "auto":
            return {0: (self.tree, self.specification)}
        plans: dict[int, Plan] = {}
        for rank in CANDIDATE_RANKS:
            if rank > self.max_rank:
                break
            plan = self._plan(rank)
            sizes = [p.rank for p in plan[1].plans]
            if plans and sizes == [p.rank for p in next(reversed(plans.values()))[1].plans]:
                break  # the structure cannot use more
            plans[rank] = plan
        return plans

    def _select(self, tables: Tables, observables: nn.ModuleList, plans: Mapping[int, Plan]) -> tuple[Plan, Moments]:
        """Score candidate ranks on held-out rows; then take all rows for the final fit."""
        scores, moments, held = self._held_out_scores(tables, observables, plans)
        chosen, self.rank_scores = choose_rank(scores)
        if isinstance(moments, TableMoments):
            counts = moments.tables
            counts.add(torch.stack([held[v] for v in self.states]))
            return plans[chosen], TableMoments(counts)
        return plans[chosen], self._moments([plans[chosen]], tables, observables)

    def _held_out_scores(
        self, tables: Tables, observables: nn.ModuleList, plans: Mapping[int, Plan]
    ) -> tuple[dict[int, Tensor], Moments, dict[str, Tensor]]:
        """Scores of held-out rows under each plan, the moments of the others, and the held-out rows."""
        hold_out = HoldOut(self.seed)

        def learning_rows() -> Iterator[dict[str, Tensor]]:
            nonlocal hold_out
            hold_out = HoldOut(self.seed)  # the same split in every pass
            return (hold_out.split(table) for table in tables())

        moments = self._moments(list(plans.values()), learning_rows, observables)
        if hold_out.count < 10 or moments.rows < 10:
            raise DataError(
                "A rank or bandwidth chosen on data needs rows to hold out: got "
                f"{int(moments.rows)} to learn from and {hold_out.count} to score on, at least 10 each are needed. Give it "
                "as a number instead."
            )
        held = hold_out.rows
        named = {o.name: o for o in observables if isinstance(o, Observable)}
        evidence = Evidence(
            hold_out.count,
            {v: x for v, x in held.items() if not named[v].continuous},
            real={v: x for v, x in held.items() if named[v].continuous},
        )
        floor = _floor(moments.rows)
        scores = {}
        for rank, (tree, specification) in plans.items():
            learned = self._learn((tree, specification), moments)
            schedule = build_schedule(tree, operator_shapes(tree, specification, self.dims))
            scores[rank] = leave_one_out(learned.operators, learned.root, schedule, tree.parent, named, evidence, floor)
        return scores, moments, held

    def _accept(self, plan: Plan, learned: Learned, rows: int, floor: float, observables: nn.ModuleList) -> None:
        if plan[0] is not self._tree:
            self._build(*plan)
        with torch.no_grad():
            for operator, weight, strengths in zip(
                self._separators, learned.operators[1:], learned.strengths[1:], strict=True
            ):
                operator.weight.copy_(weight)
                operator.strengths.copy_(strengths)
            self.root.weight.copy_(learned.root)
            self.floor.fill_(floor)
            self.rows.fill_(rows)
        self._observables = observables.to(self.floor.device)
        self.fitted = True
        self._note_marginals()

    @torch.no_grad()
    def _note_marginals(self) -> None:
        """Distributions without evidence, which answers that are mostly noise retreat to."""
        nothing = Evidence(1)
        for v, estimate in self._estimates(nothing, list(self.states), None).items():
            self.observables[v].marginal.copy_(as_distribution(estimate, self.floor)[0])

    # -- looking at it -------------------------------------------------------------------------------------------

    def diagnostics(self, evidence: EvidenceLike = None, rows: int = 500, seed: int = 0) -> pd.DataFrame:
        """How well each separator was learned, as a table.

        Columns: the separator, its core group and instrument, the message's rank, the rank the structure needs and the
        one the instrument reaches, the weakest canonical correlation, the condition number of stage 2, and at leaves of
        discrete variables the clipped mass: the share of negative probability in estimates for ``evidence`` (or for
        random evidence patterns over ``rows`` rows drawn from the model).
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
        return diagnostics_table(self.tree, self.specification, strengths, discrete)

    def __str__(self) -> str:
        state = "not fitted"
        if self.fitted:
            state = f"fitted on {int(self.rows)} rows" if int(self.rows) else "fitted to a population"
        return f"PBP({self.graph!r}, {state})"

    # -- saving --------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write graph, settings and operators to one file; an existing file is replaced only once the new one is whole."""
        self._require_fitted()
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
        content = {
            "graph": self.graph.to_dict(),
            "resolved_graph": self.tree.graph.to_dict(),
            "settings": settings,
            "features": None if self.kernel_map is None else self.kernel_map.to_dict(),
            "specification": self.specification.to_list(),
            "labels": {v: list(x) for v, x in self.labels.items()},
            "dtype": str(self._separators[0].weight.dtype).removeprefix("torch."),
            "state": self.state_dict(),
        }
        write_checkpoint(path, content)

    @classmethod
    def load(cls, path: str | os.PathLike[str], map_location: torch.device | str = "cpu") -> PBP:
        """Read a model written by :meth:`save`. Only tensors and plain values are read; no code is executed."""
        saved = read_checkpoint(path, map_location)
        settings = dict(saved["settings"])
        rank = settings.pop("rank")
        settings["ridge"] = tuple(settings["ridge"])
        model = cls(
            LatentGraph.from_dict(saved["graph"]),
            rank="auto",  # operators are made from the saved specification instead of a new one
            dtype=getattr(torch, saved["dtype"]),
            features=None if saved["features"] is None else KernelMap.from_dict(saved["features"]),
            **settings,
        )
        model.rank = rank
        tree = build_junction_tree(LatentGraph.from_dict(saved["resolved_graph"]), model.root_variables)
        model._build(tree, Specification.from_list(saved["specification"]))
        model.load_state_dict(saved["state"])
        model.labels = {v: tuple(x) for v, x in saved["labels"].items()}
        model.fitted = True
        return model.to(map_location)


def _floor(rows: float) -> float:
    return min(FLOOR_ROWS / rows, 0.01)


def _checked_ridge(ridge: Sequence[float]) -> tuple[float, float]:
    if len(ridge) != 2 or not all(r >= 0 for r in ridge):
        raise StructureError(f"ridge: expected two non-negative numbers (stage 1, stage 2), got {ridge!r}.")
    return float(ridge[0]), float(ridge[1])
