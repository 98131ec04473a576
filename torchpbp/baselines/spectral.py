"""The spectral algorithm for latent junction trees [Parikh et al. 2012], the baseline nearest to predictive belief propagation."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchpbp.baselines.spectral_answers import SpectralAnswers
from torchpbp.baselines.spectral_operators import (
    Representation,
    lost_rank,
    observable_representation,
    outside_choices,
    required_tables,
    table_rank,
)
from torchpbp.contract.model_files import SaveOptions, checked_labels, require_finite
from torchpbp.errors import RankWarning, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.cost import BUDGET
from torchpbp.graph.domains import require_single_values
from torchpbp.graph.junction_tree import JunctionTree, build_junction_tree, checked_root
from torchpbp.graph.latent_graph import Continuous, LatentGraph, require_graph
from torchpbp.inference.schedule import build_schedule
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.lazy import pandas as pd
from torchpbp.learning.fitting import check_labels, clipping_floor
from torchpbp.models.two_stage_model import EXACT_FLOOR, PROBE_SEED
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.table_moments import TableMoments
from torchpbp.planning.plan import Group, Plan, PlanOptions
from torchpbp.planning.planner import plan_tree
from torchpbp.settings import Settings, flag, optional, positive, setting, whole
from torchpbp.settings import seed as seed_constraint


@dataclass(frozen=True, kw_only=True)
class SpectralSettings(Settings):
    """Settings of :class:`SpectralJunctionTree`, described there."""

    rank: int | None = setting(None, optional(whole(1)))
    pool: int = setting(6, whole(1))
    largest_group: int = setting(4096, whole(1))
    strict: bool = setting(False, flag())
    root: tuple[str, ...] | None = None
    seed: int = setting(0, seed_constraint())
    budget: float | None = setting(BUDGET, optional(positive()))


class SpectralJunctionTree(SpectralAnswers):
    """Joint probabilities of observables from tables of a few of them, by SVDs and linear systems [JT Algorithm 1].

    At each separator U consists of the leading left singular vectors of P(inside group, outside groups), and the transformed
    tensor of the clique below solves the linear equations of all outside groups at once, by least squares. Unlike predictive
    belief propagation, the algorithm uses no weights, no penalties and no separate constant.

    *Queries.* Algorithm 1 describes one upward pass, which gives P(x₁, …, x_O) for complete rows. It is linear in each leaf's
    vector of evidence, so an unobserved variable is summed out exactly by a vector of ones, and P(partial evidence) also takes
    one pass. A posterior takes one pass per joint state of the query: cheap for one variable of a few states, infeasible for
    many variables together; more than ``LARGEST_QUERY`` states raise an error. [PBP 2] states that the algorithm yields the
    joint of all observables only; this is true of Algorithm 1, without messages from the root to the leaves.

    *Signs.* Estimates are not probabilities: they may be negative and need not sum to 1. :meth:`estimates` returns them
    unchanged, :meth:`negatives` counts negative ones, :meth:`log_evidence` and posteriors clip them.

    *Ranks.* [JT 7] requires inside and outside tables of rank ∏ states of the separator. The rank of P(inside, outside) for
    almost all parameters is sufficient, and is used here.

    Args:
        graph: discrete graph, directed or undirected. Latents of unknown cardinality need ``rank``.
        rank: largest number of dimensions of a message; implied by the latents' numbers of states by default.
        pool: number of nearest outside observables from which outside groups are formed.
        largest_group: largest number of joint states of an outside group.
        strict: raise an error instead of a warning if no outside groups reach the rank.
        root: variables the root clique must contain; chosen by cost by default.
        seed: seed of the random parameters for ranks.
        budget: as for :class:`~torchpbp.PBP`, whose plan is used.

    Attributes:
        settings: the arguments as :class:`SpectralSettings`.
        plan: the junction tree with inside groups and ranks of its separators.
        choices: node -> outside groups of the separator above it.

    Example:
        >>> from torchpbp import templates
        >>> truth = DiscreteNetwork.random(templates.hmm(4, states=2), seed=1)
        >>> model = SpectralJunctionTree(truth.graph).fit(truth.sample(1_000, seed=0))
        >>> model.log_evidence({"x1": [0, 1], "x2": [2, -1]}).shape
        torch.Size([2])
    """

    def __init__(
        self,
        graph: LatentGraph,
        *,
        rank: int | None = None,
        pool: int = 6,
        largest_group: int = 4096,
        strict: bool = False,
        root: Sequence[str] | None = None,
        seed: int = 0,
        budget: float | None = BUDGET,
    ) -> None:
        settings = SpectralSettings(
            rank=rank,
            pool=pool,
            largest_group=largest_group,
            strict=strict,
            root=checked_root(root),
            seed=seed,
            budget=budget,
        )
        self._configure(graph, settings)
        plan = plan_tree(self._tree, self.options)
        self._adopt_plan(plan, outside_choices(plan, self.options))

    def _configure(self, graph: LatentGraph, settings: SpectralSettings) -> None:
        """Check the graph, store the settings, and build the tree."""
        require_graph(graph, "SpectralJunctionTree")
        require_single_values(graph.variables, "SpectralJunctionTree")
        continuous = [v for v in graph.names if isinstance(graph.variables[v], Continuous)]
        if continuous:
            raise StructureError(
                f"SpectralJunctionTree: expected discrete variables, got continuous {continuous}. Use PBP for those."
            )
        unknown = [v for v in graph.latent if graph.variables[v] is None]
        if unknown and settings.rank is None:
            raise StructureError(f"Latent variables {unknown} have no number of states. Pass rank=<int> to set it.")
        self.graph, self.settings = graph, settings
        self.options = PlanOptions(
            rank=settings.rank,
            singles=settings.pool,
            pool=settings.pool,
            largest_group=settings.largest_group,
            strict=settings.strict,
            seed=PROBE_SEED + settings.seed,
            budget=settings.budget,
        )
        self.states = {v: graph.num_states(v) for v in graph.observed}
        complete = graph.with_states({v: settings.rank for v in unknown if settings.rank is not None})
        self._tree = build_junction_tree(complete, settings.root)
        self.labels = {}
        self.missing = {}
        self.fitted = False
        self.rows = 0
        self.floor = EXACT_FLOOR
        self._representation: Representation | None = None
        self._device: torch.device | None = None

    def _adopt_plan(self, plan: Plan, choices: dict[int, tuple[Group, ...]]) -> None:
        self.plan, self.choices = plan, choices
        self._schedule = build_schedule(plan.tree, plan.operator_shapes(self.states))

    @property
    def tree(self) -> JunctionTree:
        """The junction tree."""
        return self.plan.tree

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(self, data: DataLike) -> SpectralJunctionTree:
        """Learn from complete rows of the observables, in one pass.

        Args:
            data: as for :meth:`torchpbp.PBP.fit`.

        Returns:
            The learner itself.
        """
        reader = ColumnReader(dict(self.states), self.graph.labels, device=None)
        tables = JointTables(required_tables(self.plan, self.choices), self.states)
        for codes in reader.batches(data):
            tables.add(codes)
        tables.sum_over_processes()
        check_labels(reader.labels)
        self._learn(tables if self._device is None else tables.to(self._device))
        self.labels = reader.labels
        self.rows, self.floor = int(tables.rows), clipping_floor(tables.rows)
        return self

    def fit_population(self, network: DiscreteNetwork) -> SpectralJunctionTree:
        """Learn from the exact tables of a network, the limit of infinitely many rows."""
        theirs = {v: network.states[v] for v in network.graph.observed}
        if theirs != self.states:
            raise StructureError(f"The network observes {theirs}, the model {self.states}. They must be the same.")
        tables = JointTables(required_tables(self.plan, self.choices), self.states, device=network.device)
        tables.fill(network.joint)
        self._learn(tables if self._device is None else tables.to(self._device))
        self.labels = {v: network.labels[v] for v in self.states if v in network.labels}
        self.rows, self.floor = 0, EXACT_FLOOR
        return self

    def _learn(self, tables: JointTables) -> None:
        representation = observable_representation(self.plan, self.choices, TableMoments(tables))
        lost = lost_rank(self.plan, representation)
        if lost and self.settings.strict:
            raise StructureError(lost)
        if lost:
            warnings.warn(lost, RankWarning, stacklevel=3)
        self._adopt(representation)

    def _adopt(self, representation: Representation) -> None:
        self._representation = representation
        self.fitted = True

    def to(self, device: torch.device | str) -> SpectralJunctionTree:
        """Move the learned tensors to a device and use it for learning and inference."""
        self._device = torch.device(device)
        if self._representation is not None:
            self._representation = self._representation.to(device)
        return self

    def diagnostics(self) -> pd.DataFrame:
        """One row per separator: its inside group and outside groups, its rank, the rank of the tables, and the ratio of
        their largest singular value to the smallest one used."""
        rows = []
        for separator in self.plan.separators:
            values = self.representation.singular_values[separator.node]
            rows.append(
                {
                    "separator": self.tree.separator_name(separator.node),
                    "inside": separator.core,
                    "outside": self.choices[separator.node],
                    "rank": separator.rank,
                    "rank of tables": table_rank(values),
                    "condition": float(values[0] / values[-1]),
                }
            )
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        return f"SpectralJunctionTree({self.graph!r}, {'fitted' if self.fitted else 'not fitted'})"

    # -- files ---------------------------------------------------------------------------------------------------

    def pack(self, name: object, options: SaveOptions) -> dict[str, Any]:
        """Graph, settings, plan and tensors."""
        operators, root, values = self.representation
        require_finite(self.representation.answering(self.floor), name, saving=True)
        return {
            "graph": self.graph.to_dict(),
            "settings": self.settings.to_dict(),
            "specification": self.plan.to_list(),
            "choices": self.choices,
            "operators": list(operators),
            "root": root,
            "singular_values": list(values),
            "labels": checked_labels(self.labels, self.graph.variables, name),
            "rows": self.rows,
            "floor": self.floor,
        }

    @classmethod
    def unpack(cls, content: Mapping[str, Any], name: object) -> SpectralJunctionTree:
        """The model with the saved plan, which is faster than planning again."""
        model = cls.__new__(cls)
        settings = {**content["settings"], "root": checked_root(content["settings"]["root"])}
        model._configure(LatentGraph.from_dict(content["graph"]), SpectralSettings.from_dict(settings))
        model._adopt_plan(Plan.from_list(model._tree, content["specification"]), content["choices"])
        representation = Representation(
            tuple(content["operators"]),
            content["root"],
            tuple(content["singular_values"]),
        )
        representation.check(model.plan.operator_shapes(model.states), model.plan.root_shape)
        require_finite(representation.answering(content["floor"]), name)
        model._adopt(representation)
        model.labels = checked_labels(content["labels"], model.graph.variables, name)
        model.rows, model.floor = content["rows"], content["floor"]
        return model
