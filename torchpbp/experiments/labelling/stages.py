"""The stages in which encoders and heads of label sequences are trained.

The encoder is trained with the softmax head first. The structured heads start from there: their own part is fitted to label
sequences alone, by counting pairs (CRF) or by two-stage regression (PBP), and takes the encoder's scores as evidence. That
is the stage "fitted". The stage "refined" trains encoder and head together from there, as far as validation rows agree. The
stage "through" trains a fresh encoder through the fitted head, which stays as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchpbp.datasets.label_sequences import CHANNELS, LabelledSignals, LabelSequences
from torchpbp.distributed import own_share
from torchpbp.experiments.labelling.heads import CRFHead, LabelHead, PBPHead, SignalEncoder, SoftmaxHead
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.models.pbp import PBP

if TYPE_CHECKING:
    from torchpbp.experiments.labelling.training import LabelModule

LEARNING_RATE = 1e-2
REFINING_RATE = 1e-3
HEAD_RATES = {"crf": 1e-2, "pbp": 3e-4}
"""Steps of this size are right for a CRF's scores; on PBP's operators, ten times smaller ones already spoil a good fit."""
CPU: Mapping[str, Any] = {"accelerator": "cpu", "devices": 1}


class Trained(NamedTuple):
    """One encoder and head after training.

    Args:
        head: "softmax", "crf" or "pbp".
        stage: "trained" (softmax), "fitted", "refined", "through", or "from noise".
        module: signals -> log-posteriors.
        facts: of the training, by name.
    """

    head: str
    stage: str
    module: LabelModule
    facts: dict[str, float | int]


def train_heads(
    data: LabelSequences,
    learner: Callable[[LatentGraph], PBP],
    train: LabelledSignals,
    validation: LabelledSignals,
    label_only: Mapping[int, Tensor],
    trainer: Mapping[str, Any] = CPU,
    seed: int = 0,
    window: int = 1,
    width: int = 32,
    steps: int = 600,
    refining_steps: int = 80,
    through_steps: int = 0,
    from_noise: bool = False,
) -> Iterator[tuple[int, Trained]]:
    """Train all heads on the same rows; yields them one by one, with the number of label-only sequences used.

    Args:
        data: gives the graph and names of the labels; no row is drawn from it.
        learner: makes a PBP model from a graph.
        train: rows to learn from.
        validation: rows that say when to stop.
        label_only: number -> (number, length) label sequences without signals.
        trainer, seed, window, width, steps, refining_steps, through_steps, from_noise: see :func:`torchpbp.experiments.run_sequence_labelling`.
    """
    from torchpbp.experiments.labelling.training import LabelModule, train_labels  # Lightning takes seconds to import

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = SignalEncoder(CHANNELS, data.labels, window, width)
    encoder = deepcopy(fresh)
    plain = LabelModule(encoder, SoftmaxHead(), LEARNING_RATE, LEARNING_RATE)
    facts = train_labels(plain, train, validation, trainer, steps, seed)
    yield 0, Trained("softmax", "trained", plain, {"fit_seconds": 0.0, **facts})

    def pbp_head(labels: Tensor) -> PBPHead:
        share = labels[own_share(len(labels))]  # the fit adds up what the processes count
        return PBPHead(learner(data.network.graph).fit(_columns(data, share)), data.names)

    def crf_head(labels: Tensor) -> CRFHead:
        return CRFHead(labels, data.labels)

    makers: dict[str, Callable[[Tensor], LabelHead]] = {"crf": crf_head, "pbp": pbp_head}
    for count, more in label_only.items():
        labels = torch.cat([train.labels, more])
        for name, make in makers.items():
            start = time.perf_counter()
            head = make(labels)
            fit_seconds = time.perf_counter() - start
            for stage, most in (("fitted", 0), ("refined", refining_steps)):
                module = LabelModule(deepcopy(encoder), deepcopy(head), REFINING_RATE, HEAD_RATES[name])
                facts = train_labels(module, train, validation, trainer, most, seed, 10, 4, start_counts=True)
                yield count, Trained(name, stage, module, {"fit_seconds": fit_seconds, **facts})
            if through_steps:
                module = LabelModule(deepcopy(fresh), deepcopy(head).requires_grad_(False), LEARNING_RATE, 0.0)
                facts = train_labels(module, train, validation, trainer, through_steps, seed)
                yield count, Trained(name, "through", module, {"fit_seconds": fit_seconds, **facts})
        if from_noise:
            noise = pbp_head(labels)
            noise.layer.initialise(seed=seed)
            module = LabelModule(deepcopy(fresh), noise, LEARNING_RATE, LEARNING_RATE)
            facts = train_labels(module, train, validation, trainer, steps, seed)
            yield count, Trained("pbp", "from noise", module, {"fit_seconds": 0.0, **facts})


@torch.no_grad()
def log_posteriors(module: LabelModule, signals: Tensor) -> Tensor:
    """(rows, length, labels) log-posteriors, without gradients."""
    return module(signals)


def _columns(data: LabelSequences, labels: Tensor) -> dict[str, Tensor]:
    return {v: labels[:, t] for t, v in enumerate(data.names)}
