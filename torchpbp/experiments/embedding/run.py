"""Pen digits read by a network with a graphical model inside, against the same network without."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import nn

from torchpbp.datasets.splits import hide_points
from torchpbp.errors import DataError
from torchpbp.experiments.digits.classification import check_data, check_learner
from torchpbp.experiments.embedding.lessons import Lessons, LessonSettings, prepare_lessons
from torchpbp.experiments.embedding.network import NetworkAverage
from torchpbp.experiments.embedding.opinions import Opinion, companion_opinion, fit_companion, network_opinion
from torchpbp.experiments.embedding.plots import write_hidden_plot, write_training_plot
from torchpbp.experiments.embedding.report import HALF, format_embedding, report
from torchpbp.experiments.embedding.start import build_network, count_parameters, perceptron_twin
from torchpbp.experiments.embedding.training import MOST_HIDDEN, StrokeTraining, TrainingSettings, train_network
from torchpbp.experiments.running.results import Metrics, environment, write_csv, write_results
from torchpbp.experiments.running.run_folder import Parts
from torchpbp.models.pbp import PBP
from torchpbp.settings import Settings, between, non_negative, optional, positive, setting, several, text, whole

if TYPE_CHECKING:
    from torchpbp.datasets.digits_module import DigitsDataModule

CPU: Mapping[str, Any] = {"accelerator": "cpu", "devices": 1, "strategy": "auto", "enable_progress_bar": True}
TWIN = "twin_"


@dataclass(frozen=True)
class EmbeddingSettings(Settings):
    """Settings of :func:`run_digits_embedding`, by which a configuration is checked before anything is made."""

    states: int = setting(24, whole(1))
    hidden_states: int = setting(32, whole(1))
    width: int = setting(64, whole(1))
    window: int = setting(1, whole(0))
    softness: float = setting(0.1, positive())
    two_stage: int = setting(1, whole(0))
    random: int = setting(1, whole(0))
    epochs: int = setting(120, whole(1))
    batch_size: int = setting(256, whole(1))
    learning_rate: float = setting(3e-3, positive())
    weight_decay: float = setting(0.01, non_negative())
    smoothing: float = setting(0.05, between(0, 1))
    averaging: float = setting(0.998, between(0, 1))
    hide: float = setting(0.7, between(0, 1))
    rotation: float = setting(8.0, non_negative())
    shear: float = setting(0.2, non_negative())
    warp: float = setting(0.1, non_negative())
    jitter: float = setting(2.0, non_negative())
    teacher: Any = None
    lessons: int = setting(3, whole(1))
    lesson_weight: float = setting(1.0, non_negative())
    lesson_power: float = setting(0.5, non_negative())
    lesson_rows: int = setting(128, whole(1))
    companion: Any = None
    companion_weight: float = setting(0.2, non_negative())
    companion_gain: float = setting(0.15, non_negative())
    copies: int = setting(2, whole(0))
    slant: float = setting(0.15, non_negative())
    hidden: tuple[int, ...] = setting((0, 2, 4, 6), several(whole(0)))
    limit: int | None = setting(None, optional(whole(1)))
    ckpt_path: str | None = setting(None, optional(text()))


def run_digits_embedding(
    data: DigitsDataModule,
    learner: Callable[..., PBP],
    trainer: Mapping[str, Any] = CPU,
    states: int = 24,
    hidden_states: int = 32,
    width: int = 64,
    window: int = 1,
    softness: float = 0.1,
    two_stage: int = 1,
    random: int = 1,
    epochs: int = 120,
    batch_size: int = 256,
    learning_rate: float = 3e-3,
    weight_decay: float = 0.01,
    smoothing: float = 0.05,
    averaging: float = 0.998,
    hide: float = 0.7,
    rotation: float = 8.0,
    shear: float = 0.2,
    warp: float = 0.1,
    jitter: float = 2.0,
    teacher: nn.Module | None = None,
    lessons: int = 3,
    lesson_weight: float = 1.0,
    lesson_power: float = 0.5,
    lesson_rows: int = 128,
    companion: nn.Module | None = None,
    companion_weight: float = 0.2,
    companion_gain: float = 0.15,
    copies: int = 2,
    slant: float = 0.15,
    hidden: Sequence[int] = (0, 2, 4, 6),
    limit: int | None = None,
    ckpt_path: str | None = None,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
) -> Metrics:
    """Train an encoder of pen strokes with a PBP layer behind it, and its twin with a perceptron of as many parameters.

    The encoder weighs ``states`` states of each point; the layer, a hidden chain with the digit on its middle, answers with
    the digit's posterior. Gradients pass through the layer. Both networks may learn from the answers of a generative
    teacher besides the labels, and a generative companion may have a say in both networks' answers. Validation rows set the confidence of each. Nothing is chosen on test rows.

    Args:
        data: the pen digits; its ``train_size`` sets the rows per class to learn from.
        learner: builds an unfitted PBP model over a graph and a root.
        trainer: arguments of Lightning's Trainer.
        states: of each point's observable.
        hidden_states: of each latent.
        width: of the encoder's hidden layer.
        window: neighbours on each side that the encoder sees of a point.
        softness: of the layer's scores (see :class:`~torchpbp.experiments.embedding.network.ChainHead`).
        two_stage: number of networks to average that start from a two-stage fit to quantised points.
        random: number of networks to average that start at random. The twin's encoders start as these do.
        epochs: see :class:`~torchpbp.experiments.embedding.training.TrainingSettings` for this and the next ten.
        batch_size: rows per step.
        learning_rate: largest one.
        weight_decay: of AdamW.
        smoothing: of labels.
        averaging: decay of the running average of the weights.
        hide: share of training strokes with hidden points.
        rotation: distortion of training strokes, in degrees.
        shear: the same, x per unit of y.
        warp: the same, bend of each axis.
        jitter: the same, of each coordinate.
        teacher: an unfitted model of the sixteen coordinates (such as learner=pen_density), copied for each digit. ``None``:
            the networks learn from labels only.
        lessons: copies of each training stroke about which it is asked (see
            :class:`~torchpbp.experiments.embedding.lessons.LessonSettings` for this and the next three).
        lesson_weight: of the loss on its answers.
        lesson_power: of its probabilities.
        lesson_rows: per step.
        companion: an unfitted model of the sixteen coordinates (such as learner=pen_average), copied for each digit; its
            probabilities multiply those of either network. ``None``: the networks stay alone.
        companion_weight: power to which its probabilities are raised before, for complete strokes.
        companion_gain: what each hidden point adds to that power.
        copies: slanted copies of each training stroke for teacher and companion to learn from as well.
        slant: how far they lean (see :func:`torchpbp.experiments.digits.distortions.slanted_copies`).
        hidden: numbers of points to hide in test rows.
        limit: validation and test rows at most; all by default.
        ckpt_path: ``last.ckpt`` of a run with the same settings, from which to go on; the twin goes on from
            ``twin_last.ckpt`` beside it, if there is one.
        seed: of all draws.
        output_dir: folder for metrics.json, metrics.csv (a row per number of hidden points), training.csv, hidden.png,
            training.png and checkpoints/. ``None``: no files.
        verbose: show progress bars and results.

    Returns:
        "test/accuracy", "test/log_loss" (nats), "test/calibration_error", the last two also as "…_before" (temperature 1),
        all three also as "…_half_hidden"; the same as "twin/…" and, if there is a companion, as "companion/…" (by itself),
        "test_with_companion/…" and "twin_with_companion/…". "hidden/<count>/<classifier>" (test accuracy),
        "val/accuracy/<classifier>" (rows complete and with half of their points hidden), "temperature/<classifier>",
        numbers of parameters, seconds, and the facts of the run.
    """
    optional(whole(1)).check("limit", limit)
    check_data(data)
    settings = TrainingSettings(
        epochs, batch_size, learning_rate, weight_decay, smoothing, averaging, hide, rotation, shear, warp, jitter, seed
    )
    if two_stage < 0 or random < 0 or two_stage + random < 1:
        raise DataError(f"Expected at least one network in two_stage + random, got {two_stage} + {random}.")
    if not hidden:
        raise DataError("hidden: expected one or more numbers of points to hide, got none.")
    for key, value in (("companion_weight", companion_weight), ("companion_gain", companion_gain)):
        if not 0 <= value < float("inf"):
            raise DataError(f"{key}: expected a number of at least 0, got {value}.")
    lesson_settings = LessonSettings(lessons, lesson_weight, lesson_power, lesson_rows)
    for model in (teacher, companion):
        if model is not None:
            check_learner(model)
    folder = None if output_dir is None else Path(output_dir)
    val_x, val_y = data.val_x[:limit], data.val_y[:limit]
    checks = {k: hide_points(val_x, k, seed) for k in (0, HALF)}
    val = torch.cat(list(checks.values())), val_y.repeat(len(checks))
    tests = {int(k): hide_points(data.test_x, int(k), seed)[:limit] for k in {*hidden, 0, HALF}}

    facts: Metrics = {}
    opinions: dict[str, Opinion] = {}
    histories = {}
    taught = None
    parts = Parts(output_dir)  # networks keep checkpoints of their own
    if teacher is not None:

        def prepared(model: nn.Module) -> dict[str, Any]:
            start = time.perf_counter()
            classifier = fit_companion(model, data.train_x, data.train_y, copies, slant, seed, verbose)
            distortions = (rotation, shear, warp, jitter)
            made = prepare_lessons(classifier, data.train_x, lesson_settings, distortions, MOST_HIDDEN, seed)
            return {"strokes": made.strokes, "answers": made.answers, "seconds": time.perf_counter() - start}

        kept = parts.get("lessons", partial(prepared, teacher))
        taught = Lessons(kept["strokes"], kept["answers"], lesson_weight, lesson_rows)
        facts["seconds/lessons"] = kept["seconds"]
    for name, prefix in (("pbp", ""), ("twin", TWIN)):
        start = time.perf_counter()
        members = []
        for k in range(two_stage + random):
            member = build_network(
                learner,
                data.train_x,
                data.train_y,
                states,
                hidden_states,
                width,
                window,
                softness,
                two_stage=k < two_stage,
                seed=seed + k,
            )
            members.append(perceptron_twin(member, seed + k) if name == "twin" else member)
        network = NetworkAverage(members)
        facts[f"parameters/{name}"] = count_parameters(network)
        facts[f"parameters/{name}_heads"] = sum(count_parameters(member.head) for member in members)
        training = StrokeTraining(network, settings, (data.train_x, data.train_y), val, taught)
        average = train_network(training, trainer, folder, prefix, _checkpoint_for(ckpt_path, prefix), verbose)
        histories[name] = pd.DataFrame(training.history)
        opinions[name] = network_opinion(average, checks, tests)
        facts[f"seconds/{name}"] = time.perf_counter() - start
        facts[f"restored/{name}"] = training.restored
    if companion is not None:

        def asked(model: nn.Module) -> dict[str, Any]:
            start = time.perf_counter()
            classifier = fit_companion(model, data.train_x, data.train_y, copies, slant, seed, verbose)
            return {**vars(companion_opinion(classifier, checks, tests)), "seconds": time.perf_counter() - start}

        kept = parts.get("companion", partial(asked, companion))
        facts["seconds/companion"] = kept.pop("seconds")
        told = opinions["companion"] = Opinion(**kept)
        for name in ("pbp", "twin"):
            opinions[f"{name}_companion"] = opinions[name].joined(told, companion_weight, companion_gain)

    metrics, table = report(opinions, val_y, data.test_y[:limit])
    metrics |= facts
    metrics |= {
        "rows/train": len(data.train_y),
        "rows/test": len(data.test_y[:limit]),
        "epochs": epochs,
        "seed": seed,
        **environment(),
    }
    if folder is not None:
        write_results(folder, metrics, table)
        together = [frame.assign(network=name) for name, frame in histories.items()]
        write_csv(folder / "training.csv", pd.concat(together))
        write_hidden_plot(folder / "hidden.png", table)
        write_training_plot(folder / "training.png", histories)
    if verbose:
        print(format_embedding(metrics, table), flush=True)
    return metrics


def _checkpoint_for(ckpt_path: str | None, prefix: str) -> Path | None:
    """The checkpoint a network goes on from; the twin's lies beside the first one's."""
    if ckpt_path is None:
        return None
    path = Path(ckpt_path)
    if not path.is_file():
        raise DataError(f"ckpt_path: expected a checkpoint written by such a run, got {ckpt_path!r}, which is no file.")
    beside = path.with_name(prefix + path.name)
    return beside if beside.is_file() else None
