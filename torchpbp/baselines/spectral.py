"""The spectral algorithm for latent junction trees [Parikh et al. 2012], the rival nearest to predictive belief propagation."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

from torchpbp.arguments import check_counts, check_seed
from torchpbp.baselines.spectral_answers import SpectralAnswers
from torchpbp.baselines.spectral_operators import (
    Representation,
    lost_rank,
    observable_representation,
    outside_choices,
    required_scopes,
)
from torchpbp.errors import CheckpointError, RankWarning, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.files.checkpoint import checked_labels, read_checkpoint, require_finite, whole_model, write_checkpoint
from torchpbp.files.tensors import with_own_storage
from torchpbp.graph.junction_tree import build_junction_tree, checked_root
from torchpbp.graph.latent_graph import Continuous, LatentGraph, require_graph
from torchpbp.inference.operators import operator_shapes
from torchpbp.inference.schedule import build_schedule
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.learning.fitting import check_labels, clipping_floor
from torchpbp.models.pbp import EXACT_FLOOR
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.moments import Group
from torchpbp.moments.table_moments import TableMoments
from torchpbp.planning.plan import Specification, SpecificationOptions, specify


class SpectralJunctionTree(SpectralAnswers):
    """Joint probabilities of observables from tables of a few of them, by SVDs and linear systems [JT Algorithm 1].

    At each separator U holds the leading left singular vectors of P(inside group, outside groups), and the transformed
    tensor of the clique below solves the linear equations of all outside groups at once, by least squares. Nothing is
    weighted and nothing is penalised: that, and the constant that predictive belief propagation keeps apart, is where the two
    learners differ.

    *What it can answer.* Algorithm 1 prints one upward pass, which gives P(x₁, …, x_O) for complete rows. It is linear in
    each leaf's vector of evidence, so an unobserved variable is summed out exactly by a vector of ones, and P(partial
    evidence) costs the same one pass. A posterior takes one pass per joint state of the query: cheap for one variable of
    a few states, out of the question for many variables together, and refused above ``LARGEST_QUERY`` states. [PBP 2]
    says that the algorithm yields the joint of all observables only; that holds of it as printed, without a message from the root
    to the leaves.

    *Signs.* Estimates are not probabilities: they may be negative and need not sum to 1. :meth:`estimates` returns them as
    they are, :meth:`negatives` counts them, :meth:`log_evidence` and posteriors clip them.

    Ranks: [JT 7] asks for inside and outside tables of rank ∏ states of the separator. What the algorithm needs is less,
    the rank of P(inside, outside) for almost all parameters, and that is what is used.

    Args:
        graph: discrete; directed or undirected. Latents of unknown cardinality need ``rank``.
        rank: largest number of dimensions of a message; what the latents' numbers of states imply by default.
        pool: number of nearest outside observables from which outside groups are formed.
        largest_group: most joint states of one outside group.
        strict: raise where no outside groups reach the rank, instead of a warning.
        root: variables the root clique must contain; chosen by cost by default.
        seed: of the random parameters by which ranks are found.

    Attributes:
        tree: the junction tree.
        specification: inside groups and ranks of its separators.
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
    ) -> None:
        self._configure(graph, rank, pool, largest_group, strict, root, seed)
        specification = specify(self.tree, self.options)
        self._plan(specification, outside_choices(self.tree, specification, self.options))

    def _configure(
        self,
        graph: LatentGraph,
        rank: int | None,
        pool: int,
        largest_group: int,
        strict: bool,
        root: Sequence[str] | None,
        seed: int,
    ) -> None:
        """Check and keep the settings, and build the tree."""
        require_graph(graph, "SpectralJunctionTree")
        seed = check_seed(seed)
        if rank is not None:
            check_counts(rank=rank)
        check_counts(pool=pool)
        continuous = [v for v in graph.names if isinstance(graph.variables[v], Continuous)]
        if continuous:
            raise StructureError(
                f"SpectralJunctionTree: expected discrete variables, got continuous {continuous}. Use PBP for those."
            )
        unknown = [v for v in graph.latent if graph.variables[v] is None]
        if unknown and rank is None:
            raise StructureError(f"Latent variables {unknown} have no number of states. Pass rank=<int> to set it.")
        self.graph = graph
        self.rank, self.root_variables = rank, checked_root(root)
        self.options = SpecificationOptions(rank, pool, pool, largest_group, strict, 20200207 + seed)
        self.seed = seed
        self.states = {v: graph.num_states(v) for v in graph.observed}
        known = graph.with_states({v: rank for v in unknown if rank is not None})
        self.tree = build_junction_tree(known, self.root_variables)
        self.labels: dict[str, tuple[Any, ...]] = {}
        self.rows = 0
        self.floor = EXACT_FLOOR
        self._representation: Representation | None = None

    def _plan(self, specification: Specification, choices: dict[int, tuple[Group, ...]]) -> None:
        self.specification, self.choices = specification, choices
        self._schedule = build_schedule(self.tree, operator_shapes(self.tree, specification, self.states))

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(self, data: DataLike) -> SpectralJunctionTree:
        """Learn from complete rows of the observables, in one pass.

        Args:
            data: as for :meth:`torchpbp.PBP.fit`.

        Returns:
            The learner itself.
        """
        reader = ColumnReader(dict(self.states))
        tables = JointTables(required_scopes(self.tree, self.specification, self.choices), self.states)
        for codes in reader.batches(data):
            tables.add(codes)
        tables.sum_over_processes()
        check_labels(reader.labels)
        self._learn(tables)
        self.labels = reader.labels
        self.rows, self.floor = int(tables.rows), clipping_floor(tables.rows)
        return self

    def fit_population(self, network: DiscreteNetwork) -> SpectralJunctionTree:
        """Learn from the exact tables of a known network, as if from infinitely many rows."""
        theirs = {v: network.states[v] for v in network.graph.observed}
        if theirs != self.states:
            raise StructureError(f"The network observes {theirs}, the model {self.states}. They must be the same.")
        tables = JointTables(required_scopes(self.tree, self.specification, self.choices), self.states)
        tables.fill(network.joint)
        self._learn(tables)
        self.labels = {v: network.labels[v] for v in self.states if v in network.labels}
        self.rows, self.floor = 0, EXACT_FLOOR
        return self

    def _learn(self, tables: JointTables) -> None:
        found = observable_representation(self.tree, self.specification, self.choices, TableMoments(tables))
        lost = lost_rank(self.tree, self.specification, found)
        if lost and self.options.strict:
            raise StructureError(lost)
        if lost:
            warnings.warn(lost, RankWarning, stacklevel=3)
        self._representation = found

    def __repr__(self) -> str:
        return f"SpectralJunctionTree({self.graph!r}, {'not fitted' if self._representation is None else 'fitted'})"

    # -- saving --------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write graph, settings and tensors to one file.

        Raises:
            CheckpointError: operators with NaN or infinity, or a file that cannot be written.
        """
        operators, root, values = self.representation
        require_finite(self.representation.answering(self.floor), path, saving=True)
        content = {
            "learner": "SpectralJunctionTree",
            "graph": self.graph.to_dict(),
            "settings": {
                "rank": self.rank,
                "pool": self.options.pool,
                "largest_group": self.options.largest_group,
                "strict": self.options.strict,
                "root": None if self.root_variables is None else list(self.root_variables),
                "seed": self.seed,
            },
            "specification": self.specification.to_list(),
            "choices": {n: [list(g) for g in groups] for n, groups in self.choices.items()},
            "operators": list(operators),
            "root": root,
            "singular_values": list(values),
            "labels": {v: list(x) for v, x in checked_labels(self.labels, self.graph.variables, path).items()},
            "rows": self.rows,
            "floor": self.floor,
        }
        write_checkpoint(path, content)

    @classmethod
    @whole_model
    def load(cls, path: str | os.PathLike[str]) -> SpectralJunctionTree:
        """Read a model written by :meth:`save`."""
        saved = read_checkpoint(path, "cpu")
        if saved.get("learner") != "SpectralJunctionTree":
            raise CheckpointError(f"'{path}' holds no model learned by SpectralJunctionTree.")
        model = cls.__new__(cls)  # the plan is in the file: no need to find it again
        model._configure(LatentGraph.from_dict(saved["graph"]), **saved["settings"])
        choices = {n: tuple(tuple(g) for g in groups) for n, groups in saved["choices"].items()}
        model._plan(Specification.from_list(saved["specification"]), choices)
        found = Representation(
            tuple(map(with_own_storage, saved["operators"])),
            with_own_storage(saved["root"]),
            tuple(map(with_own_storage, saved["singular_values"])),
        )
        root = tuple(model.specification.plan(c).rank for c in model.tree.children[0])
        found.check(operator_shapes(model.tree, model.specification, model.states), root)
        require_finite(found.answering(saved["floor"]), path)
        model._representation = found
        model.labels = checked_labels(saved["labels"], model.graph.variables, path)
        model.rows, model.floor = saved["rows"], saved["floor"]
        return model
