"""Pen digits read by a network with a graphical model inside, against the same network without."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from torchpbp.data.digits import CLASSES, POINTS
from torchpbp.data.splits import hide_points
from torchpbp.errors import DataError, StructureError
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.model.pbp import PBP
from torchpbp.tasks.classification import accuracy, calibration_error, check_data, log_loss
from torchpbp.tasks.embedding_network import (
    MIDDLE,
    ChainHead,
    NetworkAverage,
    PerceptronHead,
    StrokeEncoder,
    StrokeNetwork,
    stroke_graph,
)
from torchpbp.tasks.embedding_plots import write_hidden_plot, write_training_plot
from torchpbp.tasks.embedding_start import start_remembering, start_two_stage
from torchpbp.tasks.embedding_training import StrokeTraining, TrainingSettings, train_network
from torchpbp.tasks.results import Metrics, write_csv, write_json

if TYPE_CHECKING:
    from torchpbp.data.digits_module import DigitsDataModule

CPU: Mapping[str, Any] = {"accelerator": "cpu", "devices": 1, "strategy": "auto", "enable_progress_bar": True}
HALF = POINTS // 2
TWIN = "twin_"


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
    hidden: Sequence[int] = (0, 1, 2, 3, 4, 5, 6),
    limit: int | None = None,
    ckpt_path: str | None = None,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
) -> Metrics:
    """Train an encoder of pen strokes with a PBP layer behind it, and its twin with a perceptron of as many parameters.

    The encoder weighs ``states`` states of each point; the layer, a hidden chain with the digit on its middle, answers with
    the digit's posterior. Gradients pass through the layer. Nothing is chosen on test rows.

    Args:
        data: the pen digits; its ``train_size`` sets the rows per class to learn from.
        learner: builds an unfitted PBP model over a graph and a root.
        trainer: arguments of Lightning's Trainer.
        states: of each point's observable.
        hidden_states: of each latent.
        width: of the encoder's hidden layer.
        window: neighbours on each side that the encoder sees of a point.
        softness: of the layer's scores (see :class:`~torchpbp.tasks.embedding_network.ChainHead`).
        two_stage: number of networks to average that start from a two-stage fit to quantised points.
        random: number of networks to average that start at random. The twin's encoders start as these do.
        epochs: see :class:`~torchpbp.tasks.embedding_training.TrainingSettings` for this and the next ten.
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
        hidden: numbers of points to hide in test rows.
        limit: validation and test rows at most; all by default.
        ckpt_path: ``last.ckpt`` of a run with the same settings, from which to go on; the twin goes on from
            ``twin_last.ckpt`` beside it, if there is one.
        seed: of all draws.
        output_dir: folder for metrics.json, metrics.csv (a row per number of hidden points), training.csv, hidden.png,
            training.png and checkpoints/. ``None``: no files.
        verbose: show progress bars and results.

    Returns:
        "test/accuracy", "test/accuracy_half_hidden", "test/log_loss" (nats), "test/calibration_error", the same as
        "twin/…", "hidden/<count>/pbp" and "…/twin" (test accuracy), "val/accuracy/pbp" and "…/twin" (rows complete and
        with half of their points hidden), numbers of parameters, seconds, and the facts of the run.
    """
    check_data(data, limit)
    settings = TrainingSettings(
        epochs, batch_size, learning_rate, weight_decay, smoothing, averaging, hide, rotation, shear, warp, jitter, seed
    )
    if two_stage < 0 or random < 0 or two_stage + random < 1:
        raise DataError(f"Expected at least one network in two_stage + random, got {two_stage} + {random}.")
    if not hidden:
        raise DataError("hidden: expected one or more numbers of points to hide, got none.")
    folder = None if output_dir is None else Path(output_dir)
    val = _validation_rows(data.val_x[:limit], data.val_y[:limit], seed)
    tests = {int(k): hide_points(data.test_x, int(k), seed)[:limit] for k in {*hidden, 0, HALF}}
    test_y = data.test_y[:limit].numpy()

    metrics: Metrics = {}
    lines: dict[int, dict[str, float]] = {int(k): {"hidden": int(k)} for k in sorted(tests)}
    histories = {}
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
        heads = sum(count_parameters(member.head) for member in members)
        training = StrokeTraining(network, settings, (data.train_x, data.train_y), val)
        resume = _checkpoint_for(ckpt_path, prefix)
        average = train_network(training, trainer, folder, prefix, resume, verbose)
        histories[name] = pd.DataFrame(training.history)
        metrics[f"seconds/{name}"] = time.perf_counter() - start
        metrics[f"parameters/{name}_heads"] = heads
        metrics[f"parameters/{name}"] = count_parameters(network)
        metrics[f"restored/{name}"] = training.restored
        scores = "test" if name == "pbp" else "twin"
        for count, strokes in tests.items():
            figures = judge(average, strokes, test_y)
            lines[count] |= {f"{name}_{what}": value for what, value in figures.items()}
            metrics[f"hidden/{count}/{name}"] = figures["accuracy"]
            if count == 0:
                metrics |= {f"{scores}/{what}": value for what, value in figures.items()}
            if count == HALF:
                metrics[f"{scores}/accuracy_half_hidden"] = figures["accuracy"]
        metrics[f"val/accuracy/{name}"] = judge(average, val[0], val[1].numpy())["accuracy"]
    metrics |= {
        "rows/train": len(data.train_y),
        "rows/test": len(test_y),
        "epochs": epochs,
        "seed": seed,
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }
    table = pd.DataFrame([lines[k] for k in sorted(lines)])
    if folder is not None:
        write_json(folder / "metrics.json", metrics)
        write_csv(folder / "metrics.csv", table)
        together = [frame.assign(network=name) for name, frame in histories.items()]
        write_csv(folder / "training.csv", pd.concat(together))
        write_hidden_plot(folder / "hidden.png", table)
        write_training_plot(folder / "training.png", histories)
    if verbose:
        print(format_embedding(metrics, table), flush=True)
    return metrics


def build_network(
    learner: Callable[..., PBP],
    strokes: Tensor,
    digits: Tensor,
    states: int,
    hidden_states: int,
    width: int,
    window: int,
    softness: float,
    two_stage: bool,
    seed: int,
) -> StrokeNetwork:
    """Encoder and PBP head where training starts; the arguments are those of :func:`run_digits_embedding`."""
    torch.manual_seed(seed)
    encoder = StrokeEncoder(states, width, window)
    graph = stroke_graph(states, hidden_states)
    model = _built(learner, graph)
    if two_stage:
        start_two_stage(model, encoder, strokes, digits, seed)
    else:
        start_remembering(model, seed)
    # Learning by regression needs float64; descent does not, and is faster in float32.
    return StrokeNetwork(encoder, ChainHead(model.float(), softness))


def perceptron_twin(network: StrokeNetwork, seed: int) -> StrokeNetwork:
    """The same encoder with a perceptron of as many parameters in the PBP head's place."""
    torch.manual_seed(seed)
    head = PerceptronHead(network.encoder.states, count_parameters(network.head))
    return StrokeNetwork(network.encoder, head)


def _built(learner: Callable[..., PBP], graph: LatentGraph) -> PBP:
    if isinstance(learner, nn.Module) or not callable(learner):
        raise StructureError(
            "Embedded pen digits: expected a learner that takes its graph from the model (learner=pbp), got one with a "
            f"graph of its own, {type(learner).__name__}."
        )
    model = learner(graph, root=[MIDDLE])
    if not isinstance(model, PBP):
        raise StructureError(f"Embedded pen digits: expected a learner of PBP models, got {type(model).__name__}.")
    return model


def _validation_rows(strokes: Tensor, digits: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Validation rows twice: complete, and with half of their points hidden."""
    return torch.cat([strokes, hide_points(strokes, HALF, seed)]), digits.repeat(2)


def _checkpoint_for(ckpt_path: str | None, prefix: str) -> Path | None:
    """The checkpoint a network goes on from; the twin's lies beside the first one's."""
    if ckpt_path is None:
        return None
    path = Path(ckpt_path)
    if not path.is_file():
        raise DataError(f"ckpt_path: expected a checkpoint written by such a run, got {ckpt_path!r}, which is no file.")
    beside = path.with_name(prefix + path.name)
    return beside if beside.is_file() else None


def count_parameters(module: nn.Module) -> int:
    """Numbers that training changes."""
    return sum(p.numel() for p in module.parameters())


def judge(network: nn.Module, strokes: Tensor, digits: Any) -> dict[str, float]:
    """Accuracy, log-loss (nats) and calibration error on (rows, 16) strokes."""
    with torch.no_grad():
        logits = torch.cat([network(part) for part in torch.split(strokes, 1024)])
    log_proba = torch.log_softmax(logits.double(), dim=1).numpy()
    predicted = log_proba.argmax(axis=1)
    confidence = np.exp(log_proba.max(axis=1))
    return {
        "accuracy": accuracy(predicted, digits),
        "log_loss": log_loss(log_proba, np.arange(CLASSES), digits),
        "calibration_error": calibration_error(confidence, predicted == digits),
    }


def format_embedding(metrics: Metrics, table: pd.DataFrame) -> str:
    """The results as text for a terminal."""
    shown = table[["hidden", "pbp_accuracy", "twin_accuracy"]]
    lines = [shown.to_string(index=False, float_format=lambda v: f"{v:.4f}")]
    for what in ("accuracy", "accuracy_half_hidden", "log_loss", "calibration_error"):
        lines.append(f"{what:<24} {metrics['test/' + what]:.4f}   twin {metrics['twin/' + what]:.4f}")
    lines.append(f"{'parameters':<24} {metrics['parameters/pbp']}   twin {metrics['parameters/twin']}")
    lines.append(f"{'seconds':<24} {metrics['seconds/pbp']:.0f}   twin {metrics['seconds/twin']:.0f}")
    return "\n".join(lines)
