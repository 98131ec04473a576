"""The spectral algorithm for latent junction trees [JT], the baseline nearest to predictive belief propagation.

For a separator with inside group O_i and any outside group O_i₋ the tables satisfy the linear equation
P(O_i₁, O_i₂, O_i₋) = P̃(C_i) ×_{O_i} P(O_i, O_i₋) [JT eq. 21]. One group whose table has the separator's rank determines P̃(C_i);
the least-squares solution of the equations of all groups has less noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, overload

import torch
from torch import Tensor
from typing_extensions import Self

from torchpbp.contract.abilities import JointQueries, Learner
from torchpbp.contract.model_files import SaveOptions, checked_labels, require_finite, require_none
from torchpbp.errors import QueryError, RankWarning, StructureError, warn_caller
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.exact.prior import ROWS_PER_CHUNK
from torchpbp.graph.cost import BUDGET
from torchpbp.graph.domains import require_single_values
from torchpbp.graph.junction_tree import JunctionTree, build_junction_tree, checked_root
from torchpbp.graph.latent_graph import Continuous, LatentGraph, require_graph
from torchpbp.inference.operator_net import EXACT_FLOOR, OperatorNet
from torchpbp.inference.operator_tree import Mass, OperatorTree
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.inputs.evidence import Evidence, EvidenceLike
from torchpbp.lazy import pandas as pd
from torchpbp.learning.fitting import check_labels, clipping_floor
from torchpbp.learning.least_squares import least_squares
from torchpbp.learning.ridge import equal_shapes
from torchpbp.models.leaf_maps import make_observables
from torchpbp.models.pbp import PROBE_SEED
from torchpbp.models.saved_pbp import copy_state, numbers_in_answers
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.table_moments import TableMoments
from torchpbp.planning.plan import Group, Plan, PlanOptions, group_size
from torchpbp.planning.planner import plan_tree
from torchpbp.planning.ranks import StructureProbe, scaled_cross
from torchpbp.planning.spans import numerical_rank
from torchpbp.settings import Settings, flag, optional, positive, setting, whole
from torchpbp.settings import seed as seed_constraint

LARGEST_QUERY = 4096
"""Largest number of joint states of a query, each of which takes one upward pass."""
LARGEST_JOINT = 1 << 18
"""Largest number of cells of a table over all near observables, whose sums replace one inference per group."""
VANISHING = 1e-11
"""Singular values below this share of the largest count as zero."""


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


class SpectralJunctionTree(Learner, JointQueries):
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
        choices: node -> outside groups of the separator above it.
        operators: :class:`~torchpbp.inference.operator_net.OperatorNet` with the transformed tensors; ``strengths`` are
            singular values.

    Example:
        >>> from torchpbp import templates
        >>> truth = DiscreteNetwork.random(templates.hmm(4, states=2), seed=1)
        >>> model = SpectralJunctionTree(truth.graph).fit(truth.sample(1_000, seed=0))
        >>> model.log_evidence({"x1": [0, 1], "x2": [2, -1]}).shape
        torch.Size([2])
    """

    choices: dict[int, tuple[Group, ...]]

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
        self.operators.build(plan_tree(self._tree, self.options))
        self.choices = self.outside_choices()

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
        self.operators = OperatorNet(make_observables(graph, None, None))
        self.labels, self.missing = {}, {}
        self.fitted = False
        self.rows = 0
        self.choices = {}

    @property
    def plan(self) -> Plan:
        """The junction tree with inside groups and ranks of its separators."""
        return self.operators.plan

    @property
    def tree(self) -> JunctionTree:
        """The junction tree."""
        return self.plan.tree

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(self, data: DataLike) -> Self:
        """Learn from complete rows of the observables, in one pass.

        Args:
            data: as for :meth:`torchpbp.PBP.fit`.

        Returns:
            The learner itself.
        """
        reader = ColumnReader(dict(self.states), self.graph.labels, device=None)
        tables = JointTables(self.required_tables(), self.states)
        for codes in reader.batches(data):
            tables.add(codes)
        tables.sum_over_processes()
        check_labels(reader.labels)
        self._learn(tables, int(tables.rows), clipping_floor(tables.rows))
        self.labels = reader.labels
        return self

    def fit_population(self, network: DiscreteNetwork) -> Self:
        """Learn from the exact tables of a network, the limit of infinitely many rows."""
        theirs = {v: network.states[v] for v in network.graph.observed}
        if theirs != self.states:
            raise StructureError(f"The network observes {theirs}, the model {self.states}. They must be the same.")
        tables = JointTables(self.required_tables(), self.states, device=network.device)
        tables.fill(network.joint)
        self._learn(tables, 0, EXACT_FLOOR)
        self.labels = {v: network.labels[v] for v in self.states if v in network.labels}
        return self

    @torch.no_grad()
    def _learn(self, tables: JointTables, rows: int, floor: float) -> None:
        moments = TableMoments(tables.to(self.device))
        tree, singular_values = self.representation(moments)
        self._report_lost_rank(singular_values)
        self.operators.set_tree(tree)
        for operator, values in zip(self.operators.separator_operators, singular_values, strict=True):
            operator.strengths.copy_(values)
        self.operators.floor.fill_(floor)
        self.rows, self.fitted = rows, True

    def outside_choices(self) -> dict[int, tuple[Group, ...]]:
        """All valid choices of O_i₋ of the smallest size: single groups that determine a separator's message.

        They consist of the nearest outside observables. Larger groups are valid too, but their tables are noisier. If no single
        group is sufficient, the instrument of the plan, a union of groups, is used: equation 21 holds for each of them, and the
        stacked tables have the required rank.
        """
        network = StructureProbe(self.tree, self.options.seed).network
        choices: dict[int, tuple[Group, ...]] = {}
        for separator in self.plan.separators:
            node, core, states = separator.node, separator.core, network.states
            near = [v for _, v in self.tree.distances(node, self.options.pool)][: self.options.pool]
            joint = network.joint((*core, *near)) if group_size((*core, *near), states) <= LARGEST_JOINT else None
            choices[node] = separator.instrument
            for size in range(1, len(near) + 1):
                valid = []
                for group in combinations(near, size):
                    if group_size(group, states) > self.options.largest_group:
                        continue
                    rest = [len(core) + i for i, v in enumerate(near) if v not in group]
                    table = joint.sum(dim=rest) if joint is not None and rest else network.joint((*core, *group))
                    if numerical_rank(scaled_cross(table.reshape(group_size(core, states), -1))) >= separator.rank:
                        valid.append(group)
                if valid:
                    choices[node] = tuple(valid)
                    break
        return choices

    def required_tables(self) -> list[Group]:
        """Groups of variables whose joint tables the representation needs."""
        scopes: dict[Group, None] = {}
        for separator in self.plan.separators:
            below = [v for g in self.plan.targets[separator.node] for v in g]
            for group in self.choices[separator.node]:
                scopes[(*separator.core, *group)] = None
                scopes[(*below, *group)] = None
        scopes[tuple(v for g in self.plan.targets[0] for v in g)] = None
        return list(scopes)

    def representation(self, moments: TableMoments) -> tuple[OperatorTree, list[Tensor]]:
        """Step 1 of Algorithm 1 for all nodes, grouped by shape.

        Returns:
            The transformed tensors P̃(C), with the layout of the operators of predictive belief propagation, and for each separator,
            node 1 first, the leading singular values of P(O_i, O_i₋), one per dimension of the message.
        """
        plan, tree = self.plan, self.tree
        pairs = {
            s.node: torch.cat([moments.cross(s.core, g) for g in self.choices[s.node]], dim=1) for s in plan.separators
        }  # (inside states, all outside states)
        projections: dict[int, Tensor] = {}
        projected: dict[int, Tensor] = {}
        values: dict[int, Tensor] = {}
        for nodes in equal_shapes({s.node: (pairs[s.node].shape, s.rank) for s in plan.separators}):
            rank = plan[nodes[0]].rank
            u, s, vh = torch.linalg.svd(torch.stack([pairs[n] for n in nodes]), full_matrices=False)
            for i, n in enumerate(nodes):
                projections[n] = u[i, :, :rank]
                projected[n] = s[i, :rank, None] * vh[i, :rank]  # P(O_i, O_i₋) ×_{O_i} U_i
                values[n] = s[i, :rank]

        def triples(node: int, groups: Sequence[Group]) -> Tensor:
            """P(O_i₁, O_i₂, O_i₋) with the children's modes projected; the states of a leaf are not projected [JT eq. 24]."""
            features = None if tree.leaf_observables[node] else [projections[c] for c in tree.children[node]]
            return moments.third(plan.targets[node], features, groups)

        below = {n: triples(n, self.choices[n]) for n in pairs}
        operators: dict[int, Tensor] = {}
        for nodes in equal_shapes({n: (below[n].shape, plan[n].rank) for n in below}):
            right = torch.stack([below[n].flatten(0, -2) for n in nodes])
            weights = least_squares(right, torch.stack([projected[n] for n in nodes]), 0.0)
            for i, n in enumerate(nodes):
                operators[n] = weights[i].T.reshape(plan[n].rank, *below[n].shape[:-1])
        root = triples(0, [()]).squeeze(-1)
        order = range(1, len(tree))
        return OperatorTree(plan, (root, *(operators[n] for n in order)), root), [values[n] for n in order]

    def _report_lost_rank(self, singular_values: Sequence[Tensor]) -> None:
        """Warn of separators whose tables have a lower rank than implied by the structure; raise if ``strict``."""
        lost = []
        for separator, values in zip(self.plan.separators, singular_values, strict=True):
            rank = table_rank(values)
            if rank < separator.rank:
                lost.append(f"{self.tree.separator_name(separator.node)} (rank {rank}, implied {separator.rank})")
        if not lost:
            return
        shown = ", ".join(lost[:5]) + (", …" if len(lost) > 5 else "")
        message = (
            f"Tables P(inside, outside) of lower rank than the structure implies, at separators {shown}. Their inverses exist on "
            "that part only. Lower the latents' numbers of states, or pass rank=."
        )
        if self.settings.strict:
            raise StructureError(message)
        warn_caller(message, RankWarning)

    @property
    def device(self) -> torch.device:
        """Device of the operators, of learning and of inference."""
        return self.operators.device

    def to(self, device: torch.device | str) -> Self:
        """Move the operators to a device and use it for learning and inference."""
        self.operators.to(device)
        return self

    # -- answers -------------------------------------------------------------------------------------------------

    def estimates(self, evidence: EvidenceLike = None) -> Tensor:
        """(batch,) P̂(evidence) of Algorithm 1, possibly negative; unobserved variables are summed out."""
        sign, size = self.log_evidence(evidence, raw=True)
        return sign * size.exp()

    def negatives(self, evidence: EvidenceLike = None) -> int:
        """Number of rows whose estimate of P(evidence) is not positive."""
        return int((self.log_evidence(evidence, raw=True)[0] <= 0).sum())

    @overload
    def log_evidence(self, evidence: EvidenceLike = None, raw: Literal[False] = False) -> Tensor: ...
    @overload
    def log_evidence(self, evidence: EvidenceLike, raw: Literal[True]) -> tuple[Tensor, Tensor]: ...
    def log_evidence(self, evidence: EvidenceLike = None, raw: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """(batch,) log P(evidence) of complete or partial rows.

        An estimate below a small share of the sum of its absolute terms is replaced by this share, as in
        :class:`~torchpbp.PBP`: 3 / rows, or 1e-15 after a fit to a population. The result is -inf only if every term is 0,
        as for a state absent from the training rows.

        Args:
            evidence: name -> states (-1: not observed) or (batch, states) weights.
            raw: return (sign, log of the absolute value) of the unclipped estimate.
        """
        mass = self._mass(self.read_evidence(evidence))
        return (mass.value.sign(), mass.value.abs().log() + mass.log_scale) if raw else mass.log(self.operators.floor)

    def posterior(self, query: str | Sequence[str], evidence: EvidenceLike = None) -> Any:
        """P(query | evidence), (batch, states…), by one upward pass per joint state of the query.

        Negative estimates are clipped before normalising. A DataFrame for a DataFrame.
        """
        return self._ask(query, evidence, self._posterior)

    def posteriors(self, evidence: EvidenceLike = None) -> Any:
        """Separate posteriors of all observables that are missing in some row. A DataFrame for a DataFrame."""
        return self._ask_all(evidence, lambda names, read: {v: self._posterior((v,), read) for v in names})

    def _posterior(self, names: Sequence[str], evidence: Evidence) -> Tensor:
        cells = math.prod(self.states[v] for v in names)
        if cells > LARGEST_QUERY:
            raise QueryError(
                f"Query of {names}: {cells:,} joint states, each of which takes the spectral algorithm an upward pass of its "
                f"own; at most {LARGEST_QUERY:,} are allowed. Query fewer variables, or use PBP, which also passes messages down."
            )
        return self.operators.joint(names, evidence)

    @torch.no_grad()
    def _mass(self, evidence: Evidence) -> Mass:
        """Estimates of P(evidence), in batches of bounded size."""
        starts = range(0, max(evidence.batch, 1), ROWS_PER_CHUNK)
        parts = [self.operators.mass(evidence.rows(slice(start, start + ROWS_PER_CHUNK))) for start in starts]
        return Mass(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def diagnostics(self) -> pd.DataFrame:
        """One row per separator: its inside group and outside groups, its rank, the rank of the tables, and the ratio of
        their largest singular value to the smallest one used."""
        rows = []
        self.require_fitted()
        for separator, operator in zip(self.plan.separators, self.operators.separator_operators, strict=True):
            values = operator.strengths
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
        self.require_fitted()
        state = dict(self.operators.state_dict())
        require_finite(numbers_in_answers(state), name, saving=True)
        return {
            "graph": self.graph.to_dict(),
            "settings": self.settings.to_dict(),
            "specification": self.plan.to_list(),
            "choices": self.choices,
            "state": state,
            "labels": checked_labels(self.labels, self.graph.variables, name),
            "rows": self.rows,
        }

    @classmethod
    def unpack(cls, content: Mapping[str, Any], name: object) -> Self:
        """The model with the saved plan, which is faster than planning again."""
        model = cls.__new__(cls)
        settings = {**content["settings"], "root": checked_root(content["settings"]["root"])}
        model._configure(LatentGraph.from_dict(content["graph"]), SpectralSettings.from_dict(settings))
        model.operators.build(Plan.from_list(model._tree, content["specification"]))
        require_finite(numbers_in_answers(content["state"]), name)
        require_none(copy_state(model.operators, content["state"]), name)
        model.labels = checked_labels(content["labels"], model.graph.variables, name)
        model.choices, model.rows, model.fitted = content["choices"], content["rows"], True
        return model


def table_rank(singular_values: Tensor) -> int:
    """Number of singular values that are nonzero up to rounding."""
    return int((singular_values > VANISHING * singular_values[0]).sum())
