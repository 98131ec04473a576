"""Latent trees learned as normal graphs, behind the interface of the other learners."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.arguments import check_counts, check_seed
from torchpbp.baselines.normal_graph.conversion import convert, tables_from_thetas, thetas_from_tables
from torchpbp.baselines.normal_graph.learning import STARTS, Rows, Start, Trace, learn
from torchpbp.baselines.normal_graph.messages import Messages, propagate
from torchpbp.baselines.normal_graph.rules import Rule
from torchpbp.contract.frames import Frames
from torchpbp.distributed import world_size
from torchpbp.errors import CheckpointError, DataError, NotFittedError, ShapeError, StructureError
from torchpbp.exact.network import DiscreteNetwork
from torchpbp.files.checkpoint import checked_labels, read_checkpoint, require_finite, whole_model, write_checkpoint
from torchpbp.files.tensors import with_own_storage
from torchpbp.graph.latent_graph import LatentGraph, require_graph
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.inputs.evidence import Evidence, EvidenceLike, left_to_ask, query_names, read_evidence
from torchpbp.inputs.gaps import informative
from torchpbp.models.answers import check_query

ROWS_AT_ONCE = 1 << 15


@dataclass(frozen=True)
class NormalGraphRun:
    """One run from one start; each tuple holds one value per epoch, a sum over rows.

    Args:
        seed: of the start.
        aggregated: Σ log P(x_i | all other observables) over observables and rows learned from [NG eq. 28].
        log_evidence: Σ log P(row) over rows learned from.
        held_out_aggregated, held_out_log_evidence: the same over rows with a mask of 0.
    """

    seed: int
    aggregated: tuple[float, ...]
    log_evidence: tuple[float, ...]
    held_out_aggregated: tuple[float, ...]
    held_out_log_evidence: tuple[float, ...]


class NormalGraphLearner(Frames):
    """A network without loops, learned block by block from messages [NG].

    With ``rule="ml"`` and ``inner_iterations=1`` this is expectation maximisation. All starts run as one batch; the one
    with the highest log-likelihood of the rows learned from is kept.

    Args:
        graph: directed, discrete, without loops (arrows ignored), with a number of states for each latent.
        rule: "ml", "kl", "vit" or "var"; see :class:`torchpbp.baselines.normal_graph.rules.Rule`.
        epochs: how often messages are renewed and all blocks learn.
        inner_iterations: steps of "ml" and "kl" in each epoch.
        restarts: random starts.
        start: "messages" (random messages in the first epoch, as in the paper), "parameters" (random matrices), or
            "uniform", from which hidden variables learn nothing.
        delta: smallest entry of a matrix ("ml", "kl"), or what is added to messages ("vit") and counts ("var").
        history: keep the matrices of each epoch in ``trace``.
        seed: of the starts.
        progress: show a progress bar.

    Attributes:
        runs: how each start went.
        trace: the same as tensors, with the matrices if ``history``.
        best: number of the run that was kept.

    Example:
        >>> from torchpbp import templates
        >>> truth = DiscreteNetwork.random(templates.naive_bayes(4), seed=1)
        >>> model = NormalGraphLearner(truth.graph, progress=False).fit(truth.sample(500, seed=0))
        >>> model.posterior("x1", {"x2": [0, -1]}).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        graph: LatentGraph,
        *,
        rule: str = "ml",
        epochs: int = 60,
        inner_iterations: int = 3,
        restarts: int = 1,
        start: Start = "messages",
        delta: float = 1e-6,
        history: bool = False,
        seed: int = 0,
        progress: bool = True,
    ) -> None:
        self.rule = Rule(rule, inner_iterations, delta)
        require_graph(graph, "NormalGraphLearner")
        check_counts(epochs=epochs, restarts=restarts)
        seed = check_seed(seed)
        if start not in STARTS:
            raise StructureError(f"start: expected one of {', '.join(STARTS)}, got {start!r}.")
        self.graph = graph
        self.converted = convert(graph)
        self.epochs, self.restarts, self.start = epochs, restarts, start
        self.history, self.seed, self.progress = history, seed, progress
        self.labels: dict[str, tuple[Any, ...]] = {}
        self.runs: list[NormalGraphRun] = []
        self.trace = Trace()
        self.best = 0
        self._thetas: dict[str, Tensor] | None = None

    @property
    def thetas(self) -> dict[str, Tensor]:
        """Variable -> (joint states of its parents, states) learned matrix; a prior has one row."""
        if self._thetas is None:
            raise NotFittedError("NormalGraphLearner: the model has no parameters yet. Call fit() first.")
        return self._thetas

    @property
    def network(self) -> DiscreteNetwork:
        """The fitted network with its tables."""
        network = DiscreteNetwork(self.graph, tables_from_thetas(self.graph, self.thetas))
        network.labels = dict(self.labels)
        return network

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(self, data: DataLike, mask: Any = None) -> NormalGraphLearner:
        """Learn from rows of the observables, in which values may be missing at random.

        Args:
            data: as for :meth:`torchpbp.EM.fit`.
            mask: (rows,) learning mask L[n]: 1 for rows to learn from, 0 for rows that are only measured. All by default.

        Returns:
            The learner itself.
        """
        reader = ColumnReader(self._states(), missing=True)
        codes = torch.cat(list(reader.batches(data)), dim=1)
        telling = informative(self._states(), codes)
        codes = telling if mask is None else codes  # the entries of a mask keep their rows
        self.fit_evidence(Evidence(codes.shape[1], dict(zip(self._states(), codes, strict=True))), mask)
        self.labels = reader.labels
        return self

    def fit_evidence(self, evidence: EvidenceLike, mask: Any = None) -> NormalGraphLearner:
        """Learn from rows that may observe some variables only, or observe them through weights over their states.

        Args:
            evidence: see :data:`torchpbp.inputs.EvidenceLike`.
            mask: as for :meth:`fit`.
        """
        if world_size() > 1:
            raise StructureError(
                "NormalGraphLearner works in a single process; torchpbp.EM and torchpbp.PBP share rows among several."
            )
        read = self._read(evidence)
        weights = self._weights(read)
        if not weights:
            raise DataError("fit_evidence: expected evidence on at least one observable, got none.")
        learned_from = _checked_mask(mask, read.batch)
        entry = self.converted.entry
        rows = Rows({entry[v]: w for v, w in weights.items()}, learned_from, (learned_from == 0).double())
        seeds = [self.seed * 1_000_003 + restart for restart in range(self.restarts)]
        name = f"normal graph, {self.rule.name}"
        with tqdm(total=self.epochs, desc=name, unit="epoch", delay=2, leave=False, disable=not self.progress) as bar:
            thetas, trace = learn(
                self.converted.graph, rows, self.rule, self.epochs, seeds, self.start, self.history, bar.update
            )
        courses = (trace.aggregated, trace.evidence, trace.held_out_aggregated, trace.held_out_evidence)
        columns = [torch.stack(values).T.tolist() for values in courses]  # each (starts, epochs)
        self.runs = [NormalGraphRun(seed, *(tuple(c[i]) for c in columns)) for i, seed in enumerate(seeds)]
        self.trace = trace
        self.best = max(range(len(seeds)), key=lambda i: self.runs[i].log_evidence[-1])
        self._thetas = {name: theta[self.best].clone() for name, theta in thetas.items()}
        return self

    # -- answers -------------------------------------------------------------------------------------------------

    def posterior(self, query: str | Sequence[str], evidence: EvidenceLike = None) -> Tensor:
        """P(query | evidence), (batch, states…)."""
        read = self._read(evidence)
        names = query_names(query)
        check_query(self.graph, names, read)
        if len(names) > 1:
            return self._joint_posterior(names, read)
        branch = self.converted.branch[names[0]]
        return torch.cat([m.posterior(branch) for m in self._possible(read)])

    def posteriors(self, evidence: EvidenceLike = None) -> dict[str, Tensor]:
        """Posteriors of all observables that some row does not observe."""
        read = self._read(evidence)
        wanted = left_to_ask(self.graph.observed, read)
        chunks = [[m.posterior(self.converted.branch[v]) for v in wanted] for m in self._possible(read)]
        return {v: torch.cat([chunk[i] for chunk in chunks]) for i, v in enumerate(wanted)}

    def log_evidence(self, evidence: EvidenceLike = None) -> Tensor:
        """(batch,) log P(evidence), from the constants taken out of the messages; -inf where it is impossible."""
        read = self._read(evidence)
        return read.scaled(torch.cat([messages.log_evidence() for messages in self._messages(read)]))

    def sample(self, n: int, seed: int | None = None) -> dict[str, Tensor]:
        """name -> (n,) states of the observables."""
        return self.network.sample(n, seed=seed)

    def __repr__(self) -> str:
        return f"NormalGraphLearner({self.graph!r}, {'not fitted' if self._thetas is None else 'fitted'})"

    def _messages(self, evidence: Evidence) -> list[Messages]:
        result = []
        for first in range(0, max(evidence.batch, 1), ROWS_AT_ONCE):  # no rows make one empty part
            part = evidence.rows(slice(first, first + ROWS_AT_ONCE))
            weights = {self.converted.entry[v]: w for v, w in self._weights(part).items()}
            result.append(propagate(self.converted.graph, self.thetas, weights, part.batch))
        return result

    def _possible(self, evidence: Evidence) -> list[Messages]:
        messages = self._messages(evidence)
        bad = torch.cat([m.log_evidence() for m in messages]).isinf().nonzero().flatten().tolist()
        if bad:
            raise DataError(
                f"The evidence in {len(bad)} row(s) has probability 0, first in row {bad[0]}; no posterior exists there. "
                "log_evidence() returns -inf for such rows."
            )
        return messages

    def _joint_posterior(self, names: tuple[str, ...], evidence: Evidence) -> Tensor:
        """Each joint state of the query as further evidence, in one larger batch."""
        shape = [self.graph.num_states(v) for v in names]
        grid = torch.cartesian_prod(*[torch.arange(s) for s in shape])  # (cells, variables)
        wide = evidence.repeat_interleave(len(grid))
        weights = self._weights(wide)
        for i, v in enumerate(names):
            pick = torch.eye(shape[i], dtype=torch.float64)[grid[:, i]].repeat(evidence.batch, 1)
            weights[v] = weights[v] * pick if v in weights else pick
        self._possible(evidence)
        logs = torch.cat([m.log_evidence() for m in self._messages(Evidence(wide.batch, {}, weights))])
        return torch.softmax(logs.reshape(evidence.batch, len(grid)), dim=1).reshape(evidence.batch, *shape)

    def _states(self) -> dict[str, int]:
        return {v: self.graph.num_states(v) for v in self.graph.observed}

    def _read(self, evidence: EvidenceLike) -> Evidence:
        return read_evidence(evidence, self._states(), latent=self.graph.latent, labels=self.labels)

    def _weights(self, evidence: Evidence) -> dict[str, Tensor]:
        found = {v: evidence.weights(v, k, torch.float64, "cpu") for v, k in self._states().items()}
        return {v: w for v, w in found.items() if w is not None}

    # -- saving --------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write graph, rule and matrices to one file.

        Raises:
            CheckpointError: matrices with NaN or infinity, or a file that cannot be written.
        """
        tables = tables_from_thetas(self.graph, self.thetas)
        require_finite({f"tables.{v}": table for v, table in tables.items()}, path, saving=True)
        content = {
            "learner": "NormalGraphLearner",
            "graph": self.graph.to_dict(),
            "rule": self.rule.name,
            "tables": tables,
            "labels": {v: list(x) for v, x in checked_labels(self.labels, self.graph.variables, path).items()},
        }
        write_checkpoint(path, content)

    @classmethod
    @whole_model
    def load(cls, path: str | os.PathLike[str]) -> NormalGraphLearner:
        """Read a model written by :meth:`save`."""
        saved = read_checkpoint(path, "cpu")
        if saved.get("learner") != "NormalGraphLearner":
            raise CheckpointError(f"'{path}' holds no model learned as a normal graph.")
        graph = LatentGraph.from_dict(saved["graph"])
        # Refuses what are no conditional probabilities, before product spaces of the declared sizes are allocated.
        DiscreteNetwork(graph, saved["tables"])
        model = cls(graph, rule=saved["rule"])
        tables = {v: with_own_storage(table) for v, table in saved["tables"].items()}
        model._thetas = thetas_from_tables(graph, tables)
        model.labels = checked_labels(saved["labels"], graph.variables, path)
        return model


def _checked_mask(mask: Any, rows: int) -> Tensor:
    if mask is None:
        return torch.ones(rows, dtype=torch.float64)
    try:
        values = torch.as_tensor(mask).to(torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"mask: expected one number for each of the {rows} rows, got {mask!r}.") from None
    if values.shape != (rows,):
        raise ShapeError(f"mask: expected one number for each of the {rows} rows, got shape {tuple(values.shape)}.")
    if not bool((values >= 0).all()) or bool(values.isinf().any()) or not bool((values > 0).any()):
        raise DataError("mask: expected 1 for rows to learn from and 0 for others, at least one of them above 0.")
    return values
