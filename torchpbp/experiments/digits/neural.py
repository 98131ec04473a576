"""Pen digits by a model whose encoders and nets are trained through both stages of PBP."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from torchpbp.datasets.digits import CLASSES, LARGEST, POINTS
from torchpbp.datasets.splits import hide_points
from torchpbp.experiments.digits.baselines import ImputedSVM
from torchpbp.experiments.digits.distortions import Distortions
from torchpbp.experiments.digits.neural_report import NEURAL, SVM, TWIN, Results, write_neural
from torchpbp.experiments.digits.stroke_batches import DIGIT, POINT_NAMES, StrokeBatches, point_columns
from torchpbp.experiments.running.answers import Masks, ask, judged_labels
from torchpbp.experiments.running.experiment import one_or_more
from torchpbp.experiments.running.lightning_runs import CPU, TrainingGroups, facts, train
from torchpbp.experiments.running.results import Metrics
from torchpbp.experiments.running.run_folder import Parts
from torchpbp.experiments.running.twins import LeafTwin, choose_fill
from torchpbp.graph.templates import pen_tree
from torchpbp.models.pbp import PBP
from torchpbp.neural.encoders import ContextEncoder, PointEncoder
from torchpbp.neural.module import PBPModule
from torchpbp.settings import (
    Settings,
    between,
    choice,
    flag,
    instance,
    non_negative,
    optional,
    positive,
    setting,
    several,
    text,
    whole,
)

if TYPE_CHECKING:
    from torchpbp.datasets.digits_module import DigitsDataModule

TWIN_PREFIX = "twin_"
CENTRE, SCALE = LARGEST / 2, LARGEST / 3
"""By which encoders bring coordinates to numbers of about unit size around 0."""


@dataclass(frozen=True)
class NeuralDigits(Settings):
    """How the encoders are made and trained.

    Args:
        encoder: "context" for features of a point from all seen points (:class:`~torchpbp.neural.encoders.ContextEncoder`), "points" from its own
            coordinates alone (:class:`~torchpbp.neural.encoders.PointEncoder`).
        features: of each point, besides the constant.
        states: dimensions of messages above single points.
        width: of the context encoder's trunk.
        head: hidden units of each point.
        nets: hidden layers of the nets of separators.
        instruments: dimensions of an instrument per dimension of its message.
        residual: evidence has a learned residual.
        link: the digit is read out by a learned link.
        gradient: "solve" through both stages, "stopped" at the operators.
        memory: rates of the running averages of moments at the beginning and at the end of training; 1 for none.
        steps: of training; rounded up to whole epochs.
        epoch: steps between two validations, after each of which the state of training is saved.
        support: rows of each digit on which a step solves the operators.
        query: rows of a step's loss.
        hide: share of the rows of which points are hidden; 0: the model learns from complete strokes only.
        most_hidden: points hidden in one row.
        learning_rate: the largest; it rises, then falls to nearly 0.
        weight_decay: of AdamW.
        warm_up: share of the steps in which the learning rate rises.
        gradient_clip: largest norm of a gradient.
        copies: distorted copies of each training row on which the operators are solved in the end, besides the row itself.
        distortions: of training strokes.
        hidden: numbers of points to hide in validation and test rows.
        draws: of the points to hide.
        twin: also train the same encoder with a perceptron behind it, in the same way.
        baselines: also measure a support vector machine.
        trainer: arguments of Lightning's Trainer.
        logger: makes a logger for a folder.
        callbacks: name -> callback.
        ckpt_path: state of training to go on from.
    """

    encoder: str = setting("context", choice("context", "points"))
    features: int = setting(7, whole(1))
    states: int = setting(10, whole(2))
    width: int = setting(192, whole(1))
    head: int = setting(64, whole(1))
    nets: tuple[int, ...] = setting((48, 48), one_or_more(several(whole(1))))
    instruments: float = setting(2.0, positive())
    residual: bool = setting(True, flag())
    link: bool = setting(True, flag())
    gradient: Literal["solve", "stopped"] = setting("solve", choice("solve", "stopped"))
    memory: tuple[float, float] = setting((1.0, 1.0), several(between(0, 1), 2, expected="two rates from 0 to 1"))
    steps: int = setting(4000, whole(1))
    epoch: int = setting(250, whole(1))
    support: int = setting(20, whole(2))
    query: int = setting(256, whole(1))
    hide: float = setting(0.92, between(0, 1))
    most_hidden: int = setting(6, whole(1, POINTS))
    learning_rate: float = setting(3e-3, positive())
    weight_decay: float = setting(0.01, non_negative())
    warm_up: float = setting(0.15, between(0, 1, ends=False))
    gradient_clip: float = setting(1.0, positive())
    copies: int = setting(4, whole(0))
    distortions: Distortions = setting(Distortions(), instance(Distortions))
    hidden: tuple[int, ...] = setting((0, 2, 4, 6), one_or_more(several(whole(0, POINTS))))
    draws: int = setting(3, whole(1))
    twin: bool = setting(False, flag())
    baselines: bool = setting(True, flag())
    trainer: Mapping[str, Any] = field(default_factory=lambda: dict(CPU))
    logger: Callable[..., Any] | None = None
    callbacks: Mapping[str, Any] | None = None
    ckpt_path: str | None = setting(None, optional(text()))

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 not in self.hidden:
            object.__setattr__(self, "hidden", (0, *self.hidden))

    @property
    def epochs(self) -> int:
        return -(-self.steps // self.epoch)

    @property
    def groups(self) -> TrainingGroups:
        return TrainingGroups(self.trainer, self.logger, self.callbacks or {}, self.ckpt_path)

    @property
    def masks(self) -> Masks:
        return Masks(tuple(sorted(set(self.hidden))), self.draws, hide_points)

    @property
    def context(self) -> bool:
        """Whether encoders see all points."""
        return self.encoder == "context"


def make_encoders(learner: NeuralDigits) -> dict[str, nn.Module]:
    """Point -> encoder: one for all that sees all points, or one for each that sees its own."""
    if learner.context:
        options: Any = {"centre": CENTRE, "scale": SCALE}
        encoder = ContextEncoder(POINT_NAMES, (2,), learner.features, learner.width, learner.head, **options)
        return dict.fromkeys(POINT_NAMES, encoder)
    return {name: PointEncoder((2,), learner.features, learner.head, CENTRE, SCALE) for name in POINT_NAMES}


def make_model(learner: NeuralDigits, seed: int) -> PBP:
    """The untrained model: a tree of hidden variables over the points, one set of operators per digit."""
    torch.manual_seed(seed)
    graph = pen_tree(leaf_states=learner.features + 1, states=learner.states)
    features = make_encoders(learner)
    return PBP(graph, features=features, context=learner.context, condition=DIGIT, seed=seed)


def make_module(learner: NeuralDigits, model: PBP, support: float, seed: int) -> PBPModule:
    """What Lightning trains."""
    return PBPModule(
        model,
        target=DIGIT,
        hide=learner.hide,
        most_hidden=learner.most_hidden / POINTS,
        support=support,
        hidden=learner.nets,
        instruments=learner.instruments,
        residual=learner.residual,
        link=learner.link,
        gradient=learner.gradient,
        memory=learner.memory,
        learning_rate=learner.learning_rate,
        weight_decay=learner.weight_decay,
        warmup=learner.warm_up,
        clip=learner.gradient_clip,
        seed=seed,
    )


def make_twin(learner: NeuralDigits, seed: int) -> LeafTwin:
    """The same encoder with a perceptron behind it."""
    torch.manual_seed(seed)
    return LeafTwin(
        make_encoders(learner),
        dict.fromkeys(POINT_NAMES, (2,)),
        DIGIT,
        CLASSES,
        learner.context,
        hide=learner.hide,
        most_hidden=learner.most_hidden / POINTS,
        learning_rate=learner.learning_rate,
        weight_decay=learner.weight_decay,
        warm_up=learner.warm_up,
        seed=seed,
    )


def run_neural(
    data: DigitsDataModule,
    learner: NeuralDigits,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    limit: int | None = None,
) -> Metrics:
    """Train the model, and its twin if asked for, and measure both on validation and test rows with hidden points.

    Test rows are asked only with the official split of the data: other splits are for choosing settings.

    Args:
        data: the pen digits, set up.
        learner: settings of model and training.
        seed: of initial weights and all draws.
        output_dir: folder for the results (see :func:`~torchpbp.experiments.digits.run.run_digits`). ``None``: no files.
        verbose: show progress bars (stderr) and results (stdout).
        limit: validation and test rows at most; all by default.
    """
    folder = None if output_dir is None else Path(output_dir)
    batches = StrokeBatches(
        data, learner.epoch, learner.support, learner.query, learner.copies, learner.distortions, limit, seed
    )
    rows = {"val": (data.val_x[:limit], data.val_y[:limit])}
    if data.split == "official":
        rows["test"] = (data.test_x[:limit], data.test_y[:limit])
    parts = Parts(output_dir)
    results = Results(
        {NEURAL: parts.get("neural", partial(_neural, learner, batches, rows, seed, folder, verbose))}, rows
    )
    if learner.twin:
        results.classifiers[TWIN] = parts.get("twin", partial(_twin, learner, batches, rows, seed, folder, verbose))
    if learner.baselines:
        results.tables[SVM] = parts.get("svm", partial(_svm, data, replace(learner.masks, draws=1), rows))
    return write_neural(results, learner, data, seed, folder, verbose)


def _neural(
    learner: NeuralDigits,
    batches: StrokeBatches,
    rows: Mapping[str, tuple[Tensor, Tensor]],
    seed: int,
    folder: Path | None,
    verbose: bool,
) -> dict[str, Any]:
    """Train the model, write its file, and return its answers."""
    start = time.perf_counter()
    model = make_model(learner, seed)
    module = make_module(learner, model, batches.support_share, seed)
    history = train(module, batches, learner.groups, learner.epochs, learner.gradient_clip, folder, verbose=verbose)
    seconds = time.perf_counter() - start
    model.cpu().eval()
    if folder is not None:
        model.save(folder / "model.pt")

    @torch.no_grad()
    def classify(x: Tensor) -> Tensor:
        return model.posterior(DIGIT, point_columns(x)).log()

    return _asked(classify, learner, rows) | facts(history, seconds, model)


def _twin(
    learner: NeuralDigits,
    batches: StrokeBatches,
    rows: Mapping[str, tuple[Tensor, Tensor]],
    seed: int,
    folder: Path | None,
    verbose: bool,
) -> dict[str, Any]:
    """Train the twin and return its answers, with the fill of hidden features that suits validation rows better."""
    start = time.perf_counter()
    twin = make_twin(learner, seed)
    groups = learner.groups
    history = train(twin, batches, groups, learner.epochs, learner.gradient_clip, folder, TWIN_PREFIX, verbose)
    seconds = time.perf_counter() - start
    twin.cpu().eval().measure_means(point_columns(batches.rows[0]))

    @torch.no_grad()
    def classify(x: Tensor) -> Tensor:
        return twin(point_columns(x))

    choose_fill(twin, classify, *rows["val"], learner.masks)
    return _asked(classify, learner, rows) | facts(history, seconds, twin) | {"fill": twin.fill}


def _asked(
    classify: Callable[[Tensor], Tensor], learner: NeuralDigits, rows: Mapping[str, tuple[Tensor, Tensor]]
) -> dict[str, Any]:
    asked = {name: ask(classify, x, learner.masks) for name, (x, _) in rows.items()}
    return {
        "answers": {name: found for name, (found, _) in asked.items()},
        "predict_seconds": next(reversed(asked.values()))[1],  # of the test rows, if they are asked
    }


def _svm(data: DigitsDataModule, masks: Masks, rows: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Accuracies of a support vector machine, with one draw of the hidden points: imputation takes long."""
    machine = ImputedSVM(data.train_x, data.train_y)
    return {name: judged_labels(machine, x, y, masks).to_dict("list") for name, (x, y) in rows.items()}
