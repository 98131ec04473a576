"""Learner of latent trees as normal graphs, with the interface of the other learners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.baselines.normal_graph.block_learning import STARTS, BlockRows, LearningTrace, Start, learn
from torchpbp.baselines.normal_graph.conversion import convert, tables_from_thetas, thetas_from_tables
from torchpbp.baselines.normal_graph.rules import RULES, Rule
from torchpbp.contract.model_files import SaveOptions
from torchpbp.distributed import world_size
from torchpbp.errors import DataError, ShapeError, StructureError
from torchpbp.exact.network import DiscreteNetwork, device_of
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.inputs.evidence import Evidence, EvidenceLike, read_evidence
from torchpbp.inputs.missing_values import informative
from torchpbp.lazy import pandas as pd
from torchpbp.models.network_learner import NetworkLearner
from torchpbp.settings import Settings, choice, flag, non_negative, setting, whole
from torchpbp.settings import seed as seed_constraint


@dataclass(frozen=True, kw_only=True)
class NormalGraphSettings(Settings):
    """Settings of :class:`NormalGraphLearner`, described there."""

    rule: str = setting("ml", choice(*RULES))
    epochs: int = setting(60, whole(1))
    inner_iterations: int = setting(3, whole(1))
    restarts: int = setting(1, whole(1))
    start: str = setting("messages", choice(*STARTS))
    delta: float = setting(1e-6, non_negative())
    history: bool = setting(False, flag())
    seed: int = setting(0, seed_constraint())
    progress: bool = setting(True, flag())


@dataclass(frozen=True)
class NormalGraphRun:
    """One run from one start; each tuple holds one value per epoch, a sum over rows.

    Args:
        seed: seed of the start.
        aggregated: Σ log P(x_i | all other observables) over observables and training rows [NG eq. 28].
        log_evidence: Σ log P(row) over training rows.
        held_out_aggregated, held_out_log_evidence: the same over rows with a mask of 0.
    """

    seed: int
    aggregated: tuple[float, ...]
    log_evidence: tuple[float, ...]
    held_out_aggregated: tuple[float, ...]
    held_out_log_evidence: tuple[float, ...]


class NormalGraphLearner(NetworkLearner):
    """A network without loops, learned block by block from messages [NG].

    With ``rule="ml"`` and ``inner_iterations=1`` this is expectation maximisation. All starts run as one batch; the one
    with the highest log-likelihood of the training rows is selected.

    Args:
        graph: directed, discrete graph without undirected loops, with a number of states for each latent.
        rule: "ml", "kl", "vit" or "var"; see :class:`torchpbp.baselines.normal_graph.rules.Rule`.
        epochs: number of epochs, each of one update of messages and of all blocks.
        inner_iterations: number of steps of "ml" and "kl" in each epoch.
        restarts: number of random starts.
        start: "messages" (random messages in the first epoch, as in the paper), "parameters" (random matrices), or
            "uniform", from which hidden variables learn nothing.
        delta: smallest entry of a matrix ("ml", "kl"), or addend of messages ("vit") and counts ("var").
        history: store the matrices of each epoch in ``trace``.
        seed: seed of the starts.
        progress: show a progress bar.

    Attributes:
        settings: the arguments as :class:`NormalGraphSettings`.
        rule: learning rule of the blocks.
        runs: course of each start; not part of a model file.
        trace: the same as tensors, with the matrices if ``history``.
        best: index of the selected run.

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
        super().__init__(graph)
        self.settings = NormalGraphSettings(
            rule=rule,
            epochs=epochs,
            inner_iterations=inner_iterations,
            restarts=restarts,
            start=start,
            delta=delta,
            history=history,
            seed=seed,
            progress=progress,
        )
        self.rule = Rule(name=rule, iterations=inner_iterations, delta=delta)
        self.converted = convert(graph)
        self.runs: list[NormalGraphRun] = []
        self.trace = LearningTrace()
        self.best = 0

    @property
    def thetas(self) -> dict[str, Tensor]:
        """Variable -> (joint states of its parents, states) learned matrix; a prior has one row."""
        return thetas_from_tables(self.graph, self.network.cpts)

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(self, data: DataLike, mask: Any = None) -> NormalGraphLearner:
        """Learn from rows of the observables, in which values may be missing at random.

        Args:
            data: as for :meth:`torchpbp.EM.fit`.
            mask: (rows,) learning mask L[n]: 1 for training rows, 0 for held-out rows; 1 by default.

        Returns:
            The learner itself.
        """
        reader = ColumnReader(self._states(), self.graph.labels, missing=True, device=self._device)
        codes = torch.cat(list(reader.batches(data)), dim=1)
        non_empty = informative(self._states(), codes)
        codes = non_empty if mask is None else codes  # rows must match the entries of a mask
        self.fit_evidence(Evidence(codes.shape[1], dict(zip(self._states(), codes, strict=True))), mask)
        self.labels, self.missing = reader.labels, reader.missing_values.shares
        self.network.labels = reader.labels
        return self

    def fit_evidence(self, evidence: EvidenceLike, mask: Any = None) -> NormalGraphLearner:
        """Learn from rows with partial observations, or with weights over states.

        Args:
            evidence: see :data:`torchpbp.inputs.EvidenceLike`.
            mask: as for :meth:`fit`.
        """
        if world_size() > 1:
            raise StructureError(
                "NormalGraphLearner works in a single process; torchpbp.EM and torchpbp.PBP share rows among several."
            )
        evidence_device = _device_of(evidence)
        states, latent = self._states(), self.graph.latent
        checked = read_evidence(evidence, states, latent=latent, labels=self.labels, device=evidence_device)
        device = self._device or evidence_device
        weights = self._weights(checked, device)
        if not weights:
            raise DataError("fit_evidence: expected evidence on at least one observable, got none.")
        learning_mask = _checked_mask(mask, checked.batch).to(device)
        entry = self.converted.entry
        rows = BlockRows({entry[v]: w for v, w in weights.items()}, learning_mask, (learning_mask == 0).double())
        seeds = [self.settings.seed * 1_000_003 + restart for restart in range(self.settings.restarts)]
        settings = self.settings
        name = f"normal graph, {settings.rule}"
        with tqdm(
            total=settings.epochs, desc=name, unit="epoch", delay=2, leave=False, disable=not settings.progress
        ) as bar:
            thetas, trace = learn(
                self.converted.graph,
                rows,
                self.rule,
                settings.epochs,
                seeds,
                settings.start,
                settings.history,
                bar.update,
            )
        courses = (trace.aggregated, trace.evidence, trace.held_out_aggregated, trace.held_out_evidence)
        columns = [torch.stack(values).T.tolist() for values in courses]  # each (starts, epochs)
        self.runs = [NormalGraphRun(seed, *(tuple(c[i]) for c in columns)) for i, seed in enumerate(seeds)]
        self.trace = trace
        self.best = max(range(len(seeds)), key=lambda i: self.runs[i].log_evidence[-1])
        self._adopt(
            tables_from_thetas(self.graph, {name: theta[self.best] for name, theta in thetas.items()}), self.labels
        )
        return self

    def diagnostics(self) -> pd.DataFrame:
        """One row per start: seed, epochs, final measures, and whether it was selected (``kept``)."""
        self.require_fitted()
        rows = [
            (r.seed, len(r.aggregated), r.aggregated[-1], r.log_evidence[-1], i == self.best)
            for i, r in enumerate(self.runs)
        ]
        return pd.DataFrame(rows, columns=["seed", "epochs", "aggregated", "log_evidence", "kept"])

    def _states(self) -> dict[str, int]:
        return {v: self.graph.num_states(v) for v in self.graph.observed}

    def _weights(self, evidence: Evidence, device: torch.device) -> dict[str, Tensor]:
        weights = {v: evidence.weights(v, k, torch.float64, device) for v, k in self._states().items()}
        return {v: w for v, w in weights.items() if w is not None}

    # -- files ---------------------------------------------------------------------------------------------------

    def pack(self, name: object, options: SaveOptions) -> dict[str, Any]:
        """Graph, rule, tables, labels and shares of missing values."""
        return {**super().pack(name, options), "rule": self.rule.name}

    @classmethod
    def unpack(cls, content: Mapping[str, Any], name: object) -> NormalGraphLearner:
        """The model with the saved rule and default values of the other settings, which are not saved."""
        graph = LatentGraph.from_dict(content["graph"])
        DiscreteNetwork(graph, content["tables"])  # raises before product spaces of the declared sizes are allocated
        return cls(graph, rule=content["rule"])._restore(content, name)


def _device_of(evidence: EvidenceLike) -> torch.device:
    """Device of the first tensor of some evidence; the CPU if there is none."""
    if isinstance(evidence, Evidence):
        return device_of((*evidence.hard.values(), *evidence.soft.values()))
    return device_of(evidence.values() if isinstance(evidence, Mapping) else ())


def _checked_mask(mask: Any, rows: int) -> Tensor:
    if mask is None:
        return torch.ones(rows, dtype=torch.float64, device="cpu")
    try:
        values = torch.as_tensor(mask).to(torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"mask: expected one number for each of the {rows} rows, got {mask!r}.") from None
    if values.shape != (rows,):
        raise ShapeError(f"mask: expected one number for each of the {rows} rows, got shape {tuple(values.shape)}.")
    if not bool((values >= 0).all()) or bool(values.isinf().any()) or not bool((values > 0).any()):
        raise DataError("mask: expected 1 for rows to learn from and 0 for others, at least one of them above 0.")
    return values
