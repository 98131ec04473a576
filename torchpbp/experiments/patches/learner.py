"""The networks of the experiment with patches: a PBP model and its perceptron twin, with the same encoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchpbp.experiments.patches.data import CLASSES, DIGIT, NAMES, SHAPE, patch_graph
from torchpbp.experiments.running.experiment import one_or_more
from torchpbp.experiments.running.lightning_runs import CPU, TrainingGroups
from torchpbp.experiments.running.twins import LeafTwin
from torchpbp.models.pbp import PBP
from torchpbp.neural.encoders import ContextEncoder, PointEncoder
from torchpbp.neural.module import PBPModule
from torchpbp.settings import Settings, between, non_negative, optional, positive, setting, several, text, whole

CENTRE, SCALE = 0.5, 0.4
"""By which encoders bring brightnesses to numbers of about unit size around 0."""


@dataclass(frozen=True)
class PatchNets(Settings):
    """How models and twins are made and trained.

    Args:
        features: of each patch, besides the constant.
        states: dimensions of messages above single patches.
        width: of the context encoder's trunk.
        head: hidden units of each patch.
        nets: hidden layers of the nets of separators.
        instruments: dimensions of an instrument per dimension of its message.
        perceptron: width of the twin's two hidden layers.
        steps: of training; rounded up to whole epochs.
        epoch: steps between two validations.
        support: rows of each digit on which a step solves the operators.
        query: rows of a step's loss; the twin learns from support rows as well.
        hide: share of the training rows of which patches are hidden, where hiding is practised.
        most_hidden: share of the patches hidden in one row.
        learning_rate: the largest; it rises, then falls to nearly 0.
        weight_decay: of AdamW.
        warm_up: share of the steps in which the learning rate rises.
        gradient_clip: largest norm of a gradient.
        trainer: arguments of Lightning's Trainer.
        logger: makes a logger for a folder.
        callbacks: name -> callback.
        ckpt_path: state of training of the first network to go on from; those of the others lie beside it.
    """

    features: int = setting(7, whole(1))
    states: int = setting(8, whole(2))
    width: int = setting(128, whole(1))
    head: int = setting(32, whole(1))
    nets: tuple[int, ...] = setting((48, 48), one_or_more(several(whole(1))))
    instruments: float = setting(2.0, positive())
    perceptron: int = setting(192, whole(1))
    steps: int = setting(600, whole(1))
    epoch: int = setting(100, whole(1))
    support: int = setting(30, whole(2))
    query: int = setting(200, whole(1))
    hide: float = setting(0.8, between(0, 1))
    most_hidden: float = setting(0.75, between(0, 1))
    learning_rate: float = setting(3e-3, positive())
    weight_decay: float = setting(0.01, non_negative())
    warm_up: float = setting(0.15, between(0, 1, ends=False))
    gradient_clip: float = setting(1.0, positive())
    trainer: Mapping[str, Any] = field(default_factory=lambda: dict(CPU))
    logger: Callable[..., Any] | None = None
    callbacks: Mapping[str, Any] | None = None
    ckpt_path: str | None = setting(None, optional(text()))

    @property
    def epochs(self) -> int:
        return -(-self.steps // self.epoch)

    @property
    def groups(self) -> TrainingGroups:
        return TrainingGroups(self.trainer, self.logger, self.callbacks or {}, self.ckpt_path)

    def encoder(self, context: bool) -> PointEncoder | ContextEncoder:
        """Features of a patch from its own pixels, or from all patches seen."""
        if not context:
            return PointEncoder(SHAPE, self.features, self.head, CENTRE, SCALE)
        options: Any = {"centre": CENTRE, "scale": SCALE, "relative": False}
        return ContextEncoder(NAMES, SHAPE, self.features, self.width, self.head, **options)

    def model(self, context: bool, seed: int) -> PBP:
        """The untrained model: a tree of hidden variables over the patches, one set of operators per digit."""
        torch.manual_seed(seed)
        graph = patch_graph(self.features + 1, self.states)
        return PBP(graph, features=self.encoder(context), context=context, condition=DIGIT, seed=seed)

    def module(self, model: PBP, hide: float, support: float, seed: int) -> PBPModule:
        """What Lightning trains, with a share of a batch's rows as support."""
        return PBPModule(
            model,
            hide=hide,
            most_hidden=self.most_hidden,
            support=support,
            hidden=self.nets,
            instruments=self.instruments,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            warmup=self.warm_up,
            clip=self.gradient_clip,
            seed=seed,
        )

    def twin(self, context: bool, hide: float, seed: int) -> LeafTwin:
        """The same encoder with a perceptron behind it."""
        torch.manual_seed(seed)
        return LeafTwin(
            dict.fromkeys(NAMES, self.encoder(context)),
            dict.fromkeys(NAMES, SHAPE),
            DIGIT,
            CLASSES,
            context,
            self.perceptron,
            hide,
            self.most_hidden,
            self.learning_rate,
            self.weight_decay,
            self.warm_up,
            seed,
        )
