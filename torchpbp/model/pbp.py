"""PBP: a latent-variable graphical model learned by two-stage regression, as an ``nn.Module``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, overload

import pandas as pd
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from torchpbp.errors import DataError, DataWarning, NotFittedError, QueryError, ShapeError, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.graph.junction_tree import JunctionTree, build_junction_tree
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inference.messages import upward_pass
from torchpbp.inference.queries import as_distribution, evidence_estimate, leaf_estimates, marginal
from torchpbp.inference.sampling import sample_leaves
from torchpbp.inference.schedule import Schedule, build_schedule
from torchpbp.inputs.columns import ROWS_PER_BATCH, ColumnReader, DataLike
from torchpbp.inputs.evidence import Evidence, EvidenceLike, read_evidence
from torchpbp.model.checkpoint import read_checkpoint, write_checkpoint
from torchpbp.model.diagnostics import diagnostics_table
from torchpbp.model.learning import Learned, learn, required_scopes
from torchpbp.model.operators import RootOperator, SeparatorOperator
from torchpbp.model.selection import CANDIDATE_RANKS, HoldOut, RankScore, choose_rank, leave_one_leaf_out
from torchpbp.specification.specification import Specification, SpecificationOptions, specify
from torchpbp.stage2.joint_tables import JointTables
from torchpbp.stage2.moments import TableMoments

EXACT_FLOOR = 1e-15
FLOOR_ROWS = 3.0
"""An estimate is clipped at this many rows' worth of probability: 3 / N."""


class PBP(nn.Module):
    """Predictive Belief Propagation [PBP]: fit from data without EM, then ask P(X | any evidence).

    The graph becomes a junction tree whose leaves hold the observables. At each separator stage 1 predicts features of
    the inside from the outside (ridge), and stage 2 finds the linear operator between such predictions (least
    squares). Inference contracts the operators along the tree.

    Args:
        graph: the model's structure. All observed variables must be discrete.
        rank: largest number of dimensions of a message. ``None``: what the latents' numbers of states imply. A number:
            no more than that; latents of unknown cardinality are taken to have so many states. ``"auto"``: chosen on
            held-out rows while fitting.
        ridge: penalties (stage 1, stage 2), as a number of pseudo-rows: λ = ridge / rows, on features scaled to unit
            variance.
        singles: number of nearest outside observables that enter a separator's instrument alone.
        pool: number of nearest outside observables from which product groups are formed, should rank demand them.
        largest_group: most joint states of one product group.
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

    floor: Tensor
    rows: Tensor

    def __init__(
        self,
        graph: LatentGraph,
        *,
        rank: int | Literal["auto"] | None = None,
        ridge: tuple[float, float] = (1.0, 10.0),
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
        self.max_rank = max_rank
        self.root_variables = None if root is None else tuple(root)
        self.dtype = dtype
        self.seed = seed
        self.options = SpecificationOptions(None, singles, pool, largest_group, strict, 20200207 + seed)
        self.states = {v: graph.num_states(v) for v in graph.observed}
        self.labels: dict[str, tuple[Any, ...]] = {}
        self.rank_scores: list[RankScore] = []
        self.fitted = False
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

    def _plan(self, rank: int | None) -> tuple[JunctionTree, Specification]:
        graph = self.graph
        if rank is not None:
            graph = graph.with_states({v: rank for v in graph.latent if graph.variables[v] is None})
        tree = build_junction_tree(graph, self.root_variables)
        options = SpecificationOptions(
            rank,
            self.options.singles,
            self.options.pool,
            self.options.largest_group,
            self.options.strict,
            self.options.seed,
        )
        return tree, specify(tree, options)

    def _build(self, tree: JunctionTree, specification: Specification) -> None:
        """Create the operators with their final shapes."""
        shapes = operator_shapes(tree, specification, self.states)
        self._tree, self._specification = tree, specification
        self._schedule: Schedule = build_schedule(tree, shapes)
        device = self.floor.device
        self.operators = nn.ModuleList(
            SeparatorOperator(shapes[n], tree.separator_name(n), self.dtype) for n in range(1, len(tree))
        ).to(device)
        self.root = RootOperator([specification.plan(c).rank for c in tree.children[0]], self.dtype).to(device)

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(self, data: DataLike, batch_size: int = ROWS_PER_BATCH) -> PBP:
        """Learn from data in one pass.

        Args:
            data: dict of columns (tensors, arrays, lists), a pandas DataFrame (integer, category or string columns), or
                an iterable of such tables as mini-batches. Mini-batches give the same result as one table.
            batch_size: rows of a table counted at once; bounds the memory used.

        Returns:
            The model itself.

        Raises:
            DataError: empty data, missing columns or values, states out of range, fractional states.
            ShapeError: columns of different lengths.
        """
        reader = ColumnReader(self.states)
        if self.rank == "auto":
            tree, specification, tables = self._select(reader, data, batch_size)
        else:
            tree, specification = self.tree, self.specification
            tables = JointTables(required_scopes(tree, specification), self.states)
            for codes in _progress(reader.batches(data, batch_size)):
                tables.add(codes)
        _warn_constant(tables)
        learned = self._learn(tree, specification, tables)
        self._accept(tree, specification, learned, int(tables.rows), _floor(tables.rows))
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
        learned = learn(self.tree, self.specification, TableMoments(tables), 0.0, 0.0)
        self._accept(self.tree, self.specification, learned, 0, EXACT_FLOOR)
        return self

    def _learn(self, tree: JunctionTree, specification: Specification, tables: JointTables) -> Learned:
        return learn(tree, specification, TableMoments(tables), self.ridge[0] / tables.rows, self.ridge[1] / tables.rows)

    def _select(
        self, reader: ColumnReader, data: DataLike, batch_size: int
    ) -> tuple[JunctionTree, Specification, JointTables]:
        """Count once for all candidate ranks, score each on held-out rows, and add those rows for the final fit."""
        plans: dict[int, tuple[JunctionTree, Specification]] = {}
        for rank in CANDIDATE_RANKS:
            if rank > self.max_rank:
                break
            plan = self._plan(rank)
            sizes = [p.rank for p in plan[1].plans]
            if plans and sizes == [p.rank for p in next(reversed(plans.values()))[1].plans]:
                break  # the structure cannot use more
            plans[rank] = plan
        scopes = [s for plan in plans.values() for s in required_scopes(*plan)]
        tables = JointTables(scopes, self.states)
        hold_out = HoldOut(self.seed)
        for codes in _progress(reader.batches(data, batch_size)):
            tables.add(hold_out.split(codes))
        if hold_out.count < 10 or tables.rows < 10:
            raise DataError(
                f"rank='auto' needs rows to hold out: got {int(tables.rows)} to learn from and {hold_out.count} to score on, "
                "at least 10 each are needed. Give a rank instead."
            )
        held = hold_out.rows
        evidence = Evidence(held.shape[1], dict(zip(self.states, held, strict=True)))

        def score(rank: int) -> Tensor:
            tree, specification = plans[rank]
            learned = self._learn(tree, specification, tables)
            schedule = build_schedule(tree, operator_shapes(tree, specification, self.states))
            return leave_one_leaf_out(
                learned.operators, learned.root, schedule, tree.parent, evidence, _floor(tables.rows)
            )

        chosen, self.rank_scores = choose_rank(list(plans), score)
        tables.add(held)
        return *plans[chosen], tables

    def _accept(
        self, tree: JunctionTree, specification: Specification, learned: Learned, rows: int, floor: float
    ) -> None:
        if tree is not self._tree:
            self._build(tree, specification)
        with torch.no_grad():
            for operator, weight, strengths in zip(
                self._separators, learned.operators[1:], learned.strengths[1:], strict=True
            ):
                operator.weight.copy_(weight)
                operator.strengths.copy_(strengths)
            self.root.weight.copy_(learned.root)
            self.floor.fill_(floor)
            self.rows.fill_(rows)
        self.fitted = True

    # -- queries -------------------------------------------------------------------------------------------------

    def posterior(self, query: str | Sequence[str], evidence: EvidenceLike = None, raw: bool = False) -> Tensor:
        """P(query | evidence).

        Args:
            query: an observable, or several for their joint distribution.
            evidence: name -> state, states per row (-1 or NaN: not observed), or (batch, states) soft evidence. Each
                row may observe different variables.
            raw: return the estimate as it is, summing to 1 but possibly with negative entries.

        Returns:
            (batch, states), or (batch, states, states, …) for several variables. A row that observes the query itself
            gets a one-hot distribution.
        """
        names = (query,) if isinstance(query, str) else tuple(query)
        checked = self._read(evidence)
        self._check_query(names, checked)
        if len(names) > 1:
            return self._joint_posterior(names, checked, raw)
        leaf = self.tree.leaf_of[names[0]]
        return self._marginals(checked, [names[0]], [leaf], raw)[names[0]]

    def posteriors(self, evidence: EvidenceLike = None, raw: bool = False) -> dict[str, Tensor]:
        """Posteriors of every observable that is not observed in all rows, from one pass up and one down.

        Returns:
            name -> (batch, states).
        """
        checked = self._read(evidence)
        wanted = [v for v in self.states if not checked.observed_everywhere(v)]
        return self._marginals(checked, wanted, None, raw)

    forward = posteriors

    @overload
    def log_evidence(self, evidence: EvidenceLike = None, raw: Literal[False] = False) -> Tensor: ...
    @overload
    def log_evidence(self, evidence: EvidenceLike, raw: Literal[True]) -> tuple[Tensor, Tensor]: ...
    def log_evidence(self, evidence: EvidenceLike = None, raw: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """(batch,) log P(evidence).

        An estimate that is not positive is replaced by ``floor`` times the sum of its absolute terms, so the result is
        finite; it is -inf only where every term is 0, as for a state never seen in training.

        Args:
            evidence: as in :meth:`posterior`.
            raw: return (sign, log of the absolute value) of the estimate as it is, like ``slogdet``.
        """
        checked = self._read(evidence)
        value, size, log_scale = self._evidence(checked)
        if raw:
            return value.sign(), value.abs().log() + log_scale
        floor = self.floor.to(value.dtype) * size
        positive = torch.where(size > 0, torch.maximum(value, floor), torch.ones_like(value))
        return torch.where(size > 0, positive.log() + log_scale, torch.full_like(value, -torch.inf))

    @torch.no_grad()
    def sample(self, n: int, evidence: EvidenceLike = None, seed: int | None = None) -> dict[str, Tensor]:
        """Draw all observables from the learned distribution, given evidence.

        Args:
            n: number of draws per row of evidence.
            evidence: as in :meth:`posterior`.
            seed: for repeatable draws; by default torch's global generator decides.

        Returns:
            name -> (n,) states without evidence, (n, batch) with.
        """
        if n < 0:
            raise ShapeError(f"n: expected a non-negative number of draws, got {n}.")
        checked = self._read(evidence)
        generator = torch.Generator(device=self.floor.device)
        generator.manual_seed(int(torch.randint(2**62, (1,))) if seed is None else seed)
        if n == 0 or checked.batch == 0:
            shape = (n,) if evidence is None else (n, checked.batch)
            return {v: torch.empty(shape, dtype=torch.int64, device=self.floor.device) for v in self.states}
        wide = checked.repeat_interleave(n)
        values = sample_leaves(
            self._weights(), self.root.weight, self._schedule, self.tree, wide, float(self.floor), generator
        )
        if evidence is None:
            return {v: values[v] for v in self.states}
        return {v: values[v].reshape(checked.batch, n).T for v in self.states}

    def diagnostics(self, evidence: EvidenceLike = None, rows: int = 500, seed: int = 0) -> pd.DataFrame:
        """How well each separator was learned, as a table.

        Columns: the separator, its core group and instrument, the message's rank, the rank the structure needs and the
        one the instrument reaches, the weakest canonical correlation, the condition number of stage 2, and at leaves
        the clipped mass: the share of negative probability in estimates for ``evidence`` (or for random evidence
        patterns over ``rows`` rows drawn from the model).
        """
        self._require_fitted()
        if evidence is None:
            drawn = self.sample(rows, seed=seed)
            generator = torch.Generator().manual_seed(seed)
            hidden = torch.rand(len(drawn), rows, generator=generator) < torch.rand(1, rows, generator=generator)
            evidence = {v: torch.where(h.to(x.device), -1, x) for (v, x), h in zip(drawn.items(), hidden, strict=True)}
        with torch.no_grad():
            checked = self._read(evidence)
            estimates = leaf_estimates(
                self._weights(), self.root.weight, self._schedule, checked, self.tree.parent, own_evidence=False
            )
        strengths = [op.strengths for op in self._separators]
        return diagnostics_table(self.tree, self.specification, strengths, estimates)

    # -- saving --------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write graph, settings and operators to one file; an existing file is replaced only once the new one is whole."""
        self._require_fitted()
        settings = {
            "rank": self.rank,
            "ridge": list(self.ridge),
            "singles": self.options.singles,
            "pool": self.options.pool,
            "largest_group": self.options.largest_group,
            "strict": self.options.strict,
            "max_rank": self.max_rank,
            "root": None if self.root_variables is None else list(self.root_variables),
            "seed": self.seed,
        }
        write_checkpoint(
            path,
            {
                "graph": self.graph.to_dict(),
                "resolved_graph": self.tree.graph.to_dict(),
                "settings": settings,
                "specification": self.specification.to_list(),
                "labels": {v: list(x) for v, x in self.labels.items()},
                "dtype": str(self.operators[0].weight.dtype).removeprefix("torch."),
                "state": self.state_dict(),
            },
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], map_location: torch.device | str = "cpu") -> PBP:
        """Read a model written by :meth:`save`. Only tensors and plain values are read; no code is executed."""
        saved = read_checkpoint(path, map_location)
        settings = dict(saved["settings"])
        rank = settings.pop("rank")
        model = cls.__new__(cls)
        settings["ridge"] = tuple(settings["ridge"])
        cls.__init__(
            model, LatentGraph.from_dict(saved["graph"]), rank="auto", dtype=getattr(torch, saved["dtype"]), **settings
        )
        model.rank = rank
        tree = build_junction_tree(LatentGraph.from_dict(saved["resolved_graph"]), model.root_variables)
        model._build(tree, Specification.from_list(saved["specification"]))
        model.load_state_dict(saved["state"])
        model.labels = {v: tuple(x) for v, x in saved["labels"].items()}
        model.fitted = True
        return model.to(map_location)

    # -- inner workings ------------------------------------------------------------------------------------------

    def _weights(self) -> list[Tensor]:
        """Operators by tree node; entry 0 is a placeholder for the root."""
        return [self.root.weight, *(op.weight for op in self._separators)]

    @property
    def _separators(self) -> list[SeparatorOperator]:
        return [op for op in self.operators if isinstance(op, SeparatorOperator)]

    def _require_fitted(self) -> None:
        if not self.fitted:
            raise NotFittedError(
                "This PBP model is not fitted yet. Call fit(data), fit_population(network) or PBP.load(path)."
            )

    def _read(self, evidence: EvidenceLike) -> Evidence:
        self._require_fitted()
        return read_evidence(
            evidence, self.states, latent=self.graph.latent, labels=self.labels, device=self.root.weight.device
        )

    def _check_query(self, names: Sequence[str], evidence: Evidence) -> None:
        if not names or len(set(names)) != len(names):
            raise QueryError(f"Expected one or more different variables to query, got {names}.")
        for name in names:
            if name in self.graph.latent:
                raise QueryError(
                    f"Query of '{name}': it is latent. PBP learns the distribution of observables only; query one of "
                    f"{', '.join(self.states)}."
                )
            if name not in self.states:
                raise QueryError(f"Query of unknown variable '{name}'. The model observes: {', '.join(self.states)}.")
            if evidence.observed_everywhere(name):
                raise QueryError(f"Query of '{name}': it is also in the evidence. Leave it out of one of the two.")

    def _marginals(
        self, evidence: Evidence, names: Sequence[str], leaves: Sequence[int] | None, raw: bool
    ) -> dict[str, Tensor]:
        tables = leaf_estimates(self._weights(), self.root.weight, self._schedule, evidence, self.tree.parent, leaves)
        result = {}
        for v in names:
            leaf = self.tree.leaf_of[v]
            estimate = marginal(tables[leaf], self.tree.leaf_observables[leaf].index(v))
            if raw:
                result[v] = estimate / estimate.sum(dim=-1, keepdim=True)
                continue
            distribution = as_distribution(estimate, float(self.floor))
            if v in evidence.hard:  # rows that observe the variable itself
                states = evidence.hard[v]
                known = torch.nn.functional.one_hot(states.clamp(min=0), self.states[v]).to(distribution.dtype)
                distribution = torch.where((states >= 0).unsqueeze(1), known, distribution)
            result[v] = distribution
        return result

    def _evidence(self, evidence: Evidence) -> tuple[Tensor, Tensor, Tensor]:
        upward = upward_pass(self._weights(), self._schedule, evidence)
        return evidence_estimate(self.root.weight, self._schedule, upward)

    def _joint_posterior(self, names: Sequence[str], evidence: Evidence, raw: bool) -> Tensor:
        """P(names, evidence) for each joint state, as one larger batch of evidence."""
        device = self.root.weight.device
        sizes = [self.states[v] for v in names]
        grid = torch.cartesian_prod(*[torch.arange(s, device=device) for s in sizes])  # (cells, variables)
        wide = evidence.repeat_interleave(len(grid))
        hard, soft = dict(wide.hard), dict(wide.soft)
        allowed = torch.ones(wide.batch, dtype=self.root.weight.dtype, device=device)
        for i, v in enumerate(names):
            states = grid[:, i].repeat(evidence.batch)
            if v in soft:
                allowed = allowed * soft.pop(v).gather(1, states.unsqueeze(1)).squeeze(1)
            if v in hard:
                allowed = allowed * ((hard[v] == states) | (hard[v] < 0))
            hard[v] = states
        value, _, log_scale = self._evidence(Evidence(wide.batch, hard, soft))
        shift = log_scale.reshape(evidence.batch, -1)
        scale = (shift - shift.amax(dim=1, keepdim=True)).exp()
        estimate = value.reshape(evidence.batch, -1) * scale * allowed.reshape(evidence.batch, -1)
        result = estimate / estimate.sum(dim=-1, keepdim=True) if raw else as_distribution(estimate, float(self.floor))
        return result.reshape(evidence.batch, *sizes)

    def __str__(self) -> str:
        state = (
            f"fitted on {int(self.rows)} rows"
            if self.fitted and int(self.rows)
            else "fitted"
            if self.fitted
            else "not fitted"
        )
        return f"PBP({self.graph!r}, {state})"


def operator_shapes(
    tree: JunctionTree, specification: Specification, states: Mapping[str, int]
) -> list[tuple[int, ...]]:
    """Shape of each node's operator; entry 0, the root's, is empty."""
    shapes: list[tuple[int, ...]] = [()]
    for plan in specification.plans:
        below = tree.children[plan.node]
        sizes = [specification.plan(c).rank for c in below] or [states[v] for v in tree.leaf_observables[plan.node]]
        shapes.append((plan.rank, *sizes))
    return shapes


def _floor(rows: float) -> float:
    return min(FLOOR_ROWS / rows, 0.01)


def _checked_ridge(ridge: Sequence[float]) -> tuple[float, float]:
    if len(ridge) != 2 or not all(r >= 0 for r in ridge):
        raise StructureError(f"ridge: expected two non-negative numbers (stage 1, stage 2), got {ridge!r}.")
    return float(ridge[0]), float(ridge[1])


def _progress(batches: Iterator[Tensor]) -> Iterator[Tensor]:
    """A progress bar that appears only when counting takes more than two seconds."""
    return iter(tqdm(batches, desc="counting", unit="batch", delay=2, leave=False))


def _warn_constant(tables: JointTables) -> None:
    constant = [v for v, s in tables.states.items() if s > 1 and float(tables.table([v]).max()) == 1.0]
    if constant:
        warnings.warn(
            f"Columns {constant} hold one state only: the model learns that they never vary.", DataWarning, stacklevel=3
        )
