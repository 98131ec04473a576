"""Train a PBPModule with Lightning and measure its model by the number of hidden inputs."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from torch import Tensor

from torchpbp.distributed import process_rank
from torchpbp.errors import ArgumentError
from torchpbp.experiments.grid import Run
from torchpbp.experiments.results import Metrics, Result
from torchpbp.experiments.scores import accuracy, calibration_error, class_table, confusion, confusion_picture, log_loss
from torchpbp.experiments.train.baseline import ImputedSVM, LeafMLP
from torchpbp.experiments.train.leaf_data import LeafData, Table, hidden_leaves
from torchpbp.experiments.train.pictures import calibration_picture, hidden_picture, training_picture
from torchpbp.experiments.training import fit
from torchpbp.io import load
from torchpbp.neural.module import PBPModule

MODEL, MLP, SVM = "PBP", "baseline MLP", "SVM after imputation"
Classify = Callable[[Table], Tensor]
"""Rows, NaN where hidden -> (rows, classes) log-probabilities, or (rows,) classes."""


@dataclass(frozen=True)
class Questions:
    """What classifiers are asked: the same rows and hidden leaves for all of them, whatever seed they are trained with.

    Args:
        tables: "val" and "test" -> complete rows.
        leaves: names of the leaves.
        target: column of the classes.
        hidden: numbers of leaves to hide.
        draws: of the leaves, for each number; results are averaged.
    """

    tables: Mapping[str, Table]
    leaves: Sequence[str]
    target: str
    hidden: Sequence[int]
    draws: int

    def judged(self, classifier: str, classify: Classify, draws: int | None = None) -> pd.DataFrame:
        """Columns classifier, rows ("val" or "test"), hidden, accuracy, log_loss (nats), calibration_error, seconds.

        Args:
            classifier: its name.
            classify: answers.
            draws: of hidden leaves; those of the questions by default.
        """
        lines = []
        for part, table in self.tables.items():
            true = table[self.target].numpy()
            for count in self.hidden:
                for draw in range((draws or self.draws) if count else 1):
                    start = time.perf_counter()
                    answer = classify(hidden_leaves(table, self.leaves, count, draw)).double().cpu().numpy()
                    line = {"classifier": classifier, "rows": part, "hidden": count, **figures(answer, true)}
                    lines.append({**line, "seconds": time.perf_counter() - start})
        by = ["classifier", "rows", "hidden"]
        return pd.DataFrame(lines).groupby(by, sort=False).mean().reset_index()


def figures(answer: Any, true: Any) -> dict[str, float]:
    """Accuracy and, for (rows, classes) log-probabilities, log-loss and calibration error."""
    if answer.ndim == 1:
        return {"accuracy": accuracy(answer, true)}
    predicted, confidence = answer.argmax(axis=1), np.exp(answer.max(axis=1))
    return {
        "accuracy": accuracy(predicted, true),
        "log_loss": log_loss(answer, np.arange(answer.shape[1]), true),
        "calibration_error": calibration_error(confidence, predicted == true),
    }


def train(
    model: Callable[..., PBPModule],
    data: LeafData,
    trainer: Callable[..., Trainer],
    run: Run,
    callbacks: Mapping[str, Callback] | None = None,
    logger: Mapping[str, Logger] | None = None,
    ckpt_path: str | None = None,
    hidden: Sequence[int] = (0,),
    draws: int = 3,
    baseline: bool = False,
    svm: bool = False,
) -> Result:
    """Train a model, and a perceptron behind the same encoders if asked for; measure both on validation and test rows.

    Args:
        model: makes the PBPModule, given its share of support rows.
        data: training batches, and tables of complete rows.
        trainer: makes Lightning's Trainer.
        run: seed, folder and kept parts.
        callbacks: of Lightning, by name.
        logger: of Lightning, by name.
        ckpt_path: checkpoint to go on from.
        hidden: numbers of leaves to hide in validation and test rows.
        draws: of the leaves to hide.
        baseline: also train a perceptron with the same encoders in the same way.
        svm: also measure a support vector machine after imputation (one draw of hidden leaves, since imputation takes long).

    Returns:
        "<rows>/accuracy", "…/log_loss" (nats), "…/calibration_error" of the model for complete rows and with half of the leaves
        hidden ("…_half_hidden"), "<rows>/accuracy/<classifier>/<hidden>" of all classifiers, seconds and parameters.
    """
    most = len(data.leaves)
    if not set(hidden) <= set(range(most + 1)) or not hidden:
        raise ArgumentError(f"task.hidden: expected numbers of leaves from 0 to {most}, got {list(hidden)}.")
    module = model(support=data.support_share)
    perceptron = None
    if baseline:
        if module.model.encoders is None:
            raise ArgumentError("task.baseline: expected a model with encoders, which the baseline shares.")
        encoders = copy.deepcopy(module.model.encoders)
        perceptron = LeafMLP(encoders, data.target, data.classes, module.settings)
    facts = {MODEL: run.part(MODEL, lambda: fitted_model(module, data, trainer, callbacks, logger, run, ckpt_path))}
    if not module.model.fitted and run.folder is not None:  # kept by an earlier run
        module.model = load(run.folder / "model.pt")
    if perceptron is not None:
        facts[MLP] = run.part(MLP, lambda: fitted_baseline(perceptron, data, trainer, callbacks, logger, run))
        if run.folder is not None and process_rank() == 0:
            perceptron.load_state_dict(torch.load(run.folder / "baseline.pt", weights_only=True))
    if process_rank() > 0:
        return Result({})  # the first process reports for all
    return measured(module, perceptron, data, run, facts, sorted({0, *hidden}), draws, svm)


def fitted_model(
    module: PBPModule, data: LeafData, trainer: Any, callbacks: Any, logger: Any, run: Run, ckpt_path: str | None
) -> dict[str, Any]:
    """Train the model and write its file."""
    facts = fit(module, data, trainer, callbacks, logger, run, MODEL, ckpt_path)
    module.model.cpu().eval()
    if run.folder is not None and process_rank() == 0:
        module.model.save(run.folder / "model.pt")
    return facts


def fitted_baseline(
    perceptron: LeafMLP, data: LeafData, trainer: Any, callbacks: Any, logger: Any, run: Run
) -> dict[str, Any]:
    """Train the perceptron and write its weights."""
    facts = fit(perceptron, data, trainer, callbacks, logger, run, MLP, subfolder="baseline")
    half = hidden_leaves(data.tables["val"], data.leaves, len(data.leaves) // 2, 0)
    perceptron.cpu().eval().choose_fill(data.tables["train"], data.tables["val"], half)
    if run.folder is not None and process_rank() == 0:
        torch.save(perceptron.state_dict(), run.folder / "baseline.pt")
    return {**facts, "fill": perceptron.fill}


@torch.no_grad()
def measured(
    module: PBPModule,
    perceptron: LeafMLP | None,
    data: LeafData,
    run: Run,
    facts: Mapping[str, Mapping[str, Any]],
    hidden: Sequence[int],
    draws: int,
    svm: bool,
) -> Result:
    """Ask all classifiers and gather what the run found."""
    target, learned = data.target, module.model.eval()

    def answer(table: Table) -> Tensor:
        return learned.posterior(target, {v: table[v] for v in data.leaves}).log()

    tables = {part: table for part, table in data.tables.items() if part != "train"}
    questions = Questions(tables, data.leaves, target, hidden, draws)
    parts = [questions.judged(MODEL, answer)]
    if perceptron is not None:
        perceptron.eval().fill = facts[MLP]["fill"]
        parts.append(questions.judged(MLP, perceptron))
    if svm:
        run.say("support vector machine after imputation")
        parts.append(pd.DataFrame(run.part(SVM, lambda: judged_svm(data, questions).to_dict("list"))))
    table = pd.concat(parts, ignore_index=True)
    last = "test" if "test" in tables else "val"
    logs, true = answer(tables[last]), tables[last][target]
    predicted, confidence = logs.argmax(dim=1).numpy(), logs.amax(dim=1).exp().double().numpy()
    matrix = confusion(predicted, true.numpy(), range(data.classes))
    metrics = collected(table, len(data.leaves))
    for name, found in facts.items():
        metrics |= {f"fit_seconds/{name}": found["seconds"], f"parameters/{name}": found["parameters"]}
    metrics |= {f"rows/{part}": len(rows[target]) for part, rows in data.tables.items()}
    metrics["steps"] = int(facts[MODEL]["history"]["step"][-1]) if facts[MODEL]["history"] else 0
    histories = {name: found["history"] for name, found in facts.items()}
    curves = [pd.DataFrame(history).assign(network=name) for name, history in histories.items()]
    shown = {
        "hidden": hidden_picture(table[table["rows"] == last], len(data.leaves)),
        "training": training_picture(histories),
        "confusion": confusion_picture(matrix, range(data.classes)),
        "calibration": calibration_picture(confidence, predicted == true.numpy()),
        **data.pictures(learned, tables[last], logs),
    }
    predictions = {"true": true, "predicted": predicted, "probability": confidence}
    return Result(
        metrics,
        table,
        described(table, metrics, last),
        (f"{last}/accuracy", f"{last}/accuracy_half_hidden", f"{last}/log_loss"),
        shown,
        {
            "training": pd.concat(curves, ignore_index=True),
            "predictions": pd.DataFrame(predictions).rename_axis("row").reset_index(),
            "classes": class_table(matrix, range(data.classes)),
        },
        {"model": learned} if run.folder is not None else {},
    )


def judged_svm(data: LeafData, questions: Questions) -> pd.DataFrame:
    """Figures of a support vector machine, with one draw of the hidden leaves."""
    return questions.judged(SVM, ImputedSVM(data.tables["train"], data.target).predict, draws=1)


def collected(table: pd.DataFrame, leaves: int) -> Metrics:
    """Flat results, of the model in front."""
    metrics: Metrics = {}
    lines = table.to_dict("records")
    for line in [line for line in lines if line["classifier"] == MODEL and line["hidden"] in (0, leaves // 2)]:
        suffix = "_half_hidden" if line["hidden"] else ""
        for figure in ("accuracy", "log_loss", "calibration_error"):
            metrics[f"{line['rows']}/{figure}{suffix}"] = float(line[figure])
    for line in lines:
        for figure in ("accuracy", "log_loss"):
            if line.get(figure) == line.get(figure):
                metrics[f"{line['rows']}/{figure}/{line['classifier']}/{line['hidden']}"] = float(line[figure])
        if line["hidden"] == 0:
            metrics[f"predict_seconds/{line['classifier']}"] = float(line["seconds"])
    return metrics


def described(table: pd.DataFrame, metrics: Metrics, last: str) -> str:
    """Accuracies in percent by classifier and number of hidden inputs, and the figures of the model."""
    wide = table[table["rows"] == last].pivot(index="classifier", columns="hidden", values="accuracy")
    wide = (100 * wide).loc[list(dict.fromkeys(table["classifier"]))].rename_axis(columns="hidden inputs", index=None)
    lines = [f"{last} accuracy, %", wide.to_string(float_format="{:.2f}".format, na_rep="-")]
    names = [f"{last}/log_loss", f"{last}/calibration_error", f"fit_seconds/{MODEL}", f"predict_seconds/{MODEL}"]
    return "\n".join([*lines, *(f"{name:<26} {metrics[name]:.4f}" for name in names)])
