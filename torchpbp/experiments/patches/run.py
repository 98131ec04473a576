"""Images with hidden patches, recognised by a tree of patches and by a perceptron with the same encoders."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.svm import SVC
from torch import Tensor

from torchpbp.errors import ArgumentError
from torchpbp.experiments.patches.data import CLASSES, DIGIT, PATCHES, PatchBatches, PatchDigits, columns, patch_masks
from torchpbp.experiments.patches.learner import PatchNets
from torchpbp.experiments.patches.plots import write_completed, write_hidden_plot
from torchpbp.experiments.running.answers import Classify, Masks, ask, judged, judged_labels
from torchpbp.experiments.running.experiment import one_or_more
from torchpbp.experiments.running.lightning_runs import facts, train
from torchpbp.experiments.running.results import Metrics, environment, write_csv, write_results
from torchpbp.experiments.running.run_folder import Parts
from torchpbp.experiments.running.scores import Labels
from torchpbp.experiments.running.twins import choose_fill
from torchpbp.models.pbp import PBP
from torchpbp.settings import Settings, flag, setting, several, whole

COMPLETE, HIDDEN = "complete", "hidden"
"""Training rows: complete images only, or with hidden patches as well."""
PBP_NAME, TWIN, SVM = "PBP", "twin", "SVM"
SHOWN = 10
"""Test images that are drawn, one of each digit."""


class Way(NamedTuple):
    """A way of training.

    Args:
        context: encoders see all patches that are seen; otherwise their own.
        prefix: of the files of model and twin.
    """

    context: bool
    prefix: tuple[str, str]


WAYS = {COMPLETE: Way(False, ("", "twin_")), HIDDEN: Way(True, ("hidden_", "hidden_twin_"))}


@dataclass(frozen=True)
class PatchesSettings(Settings):
    """Settings of :func:`run_patches`.

    Args:
        hidden: numbers of patches, of sixteen, to hide in validation and test rows.
        draws: of the patches to hide.
        practised: also train models and twins that see hidden patches in training.
    """

    hidden: tuple[int, ...] = setting((0, 4, 8, 12), one_or_more(several(whole(0, PATCHES))))
    draws: int = setting(3, whole(1))
    practised: bool = setting(True, flag())


class Run(NamedTuple):
    """What the parts of a run share."""

    data: PatchDigits
    learner: PatchNets
    masks: Masks
    seed: int
    folder: Path | None
    verbose: bool

    @property
    def rows(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Rows that are asked about."""
        return {"val": (self.data.val_x, self.data.val_y), "test": (self.data.test_x, self.data.test_y)}

    def batches(self) -> PatchBatches:
        own = self.learner
        return PatchBatches(self.data, own.epoch, own.support, own.query, self.seed)


def run_patches(
    data: PatchDigits,
    learner: PatchNets,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Metrics:
    """Train models and their twins on images, complete or with hidden patches, and ask them about images with hidden patches.

    Args:
        data: the images.
        learner: settings of the networks.
        seed: of initial weights and draws.
        output_dir: folder for metrics.json, metrics.csv, training.csv, hidden.png (accuracy by hidden patches), completed.png
            (test images, completed by the model of complete images), and the models, model.pt and hidden_model.pt, which
            ``torchpbp.load`` reads. ``None``: no files.
        verbose: show progress bars (stderr) and results (stdout).
        options: see :class:`PatchesSettings`.

    Returns:
        "test/accuracy/<training rows>/<classifier>/<percent hidden>" and "test/log_loss/…" (nats), the same for validation rows
        ("val/…"), "test/lead/<training rows>/<percent>" (accuracy of PBP minus that of the twin), seconds, and the facts of the
        run.
    """
    settings = PatchesSettings.from_dict(options)
    if not isinstance(learner, PatchNets):
        raise ArgumentError(f"learner: model=patches takes learner=patch_nets, got a {type(learner).__name__}.")
    folder = None if output_dir is None else Path(output_dir)
    own = Run(data, learner, patch_masks(sorted({0, *settings.hidden}), settings.draws), seed, folder, verbose)
    parts = Parts(output_dir)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for rows in (COMPLETE, HIDDEN) if settings.practised else (COMPLETE,):
        found[rows, PBP_NAME] = parts.get(f"{rows} pbp", partial(train_model, own, rows))
        found[rows, TWIN] = parts.get(f"{rows} twin", partial(train_twin, own, rows))
    found[COMPLETE, SVM] = parts.get("svm", partial(train_svm, own))
    table = pd.concat([tabulated(result["tables"], *where) for where, result in found.items()], ignore_index=True)
    metrics = collected(table, found)
    metrics |= {
        "rows/train": len(data.train_y),
        "rows/val": len(data.val_y),
        "rows/test": len(data.test_y),
        "steps": learner.epochs * learner.epoch,
        "seed": seed,
        **environment(),
    }
    if folder is not None:
        write_results(folder, metrics, table)
        curves = {" ".join(where): r["history"] for where, r in found.items() if "history" in r}
        write_csv(
            folder / "training.csv", pd.concat([pd.DataFrame(h).assign(network=name) for name, h in curves.items()])
        )
        write_hidden_plot(folder / "hidden.png", table[table["rows"] == "test"])
        write_completed(folder / "completed.png", found[COMPLETE, PBP_NAME]["completed"])
    if verbose:
        print(described(table, metrics), flush=True)
    return metrics


def train_model(run: Run, rows: str) -> dict[str, Any]:
    """Train a PBP model, write its file, and ask it."""
    way, learner = WAYS[rows], run.learner
    start = time.perf_counter()
    model, batches = learner.model(way.context, run.seed), run.batches()
    module = learner.module(model, learner.hide if rows == HIDDEN else 0.0, batches.support_share, run.seed)
    history = train(
        module, batches, learner.groups, learner.epochs, learner.gradient_clip, run.folder, way.prefix[0], run.verbose
    )
    seconds = time.perf_counter() - start
    model.cpu().eval()
    if run.folder is not None:
        model.save(run.folder / f"{way.prefix[0]}model.pt")

    @torch.no_grad()
    def classify(x: Tensor) -> Tensor:
        return model.posterior(DIGIT, columns(x)).log()

    result = asked(run, classify) | facts(history, seconds, model)
    return result if way.context else result | {"completed": completed(run, model)}


def train_twin(run: Run, rows: str) -> dict[str, Any]:
    """Train a twin and ask it, with the fill of hidden features that suits validation rows better."""
    way, learner = WAYS[rows], run.learner
    start = time.perf_counter()
    twin, batches = learner.twin(way.context, learner.hide if rows == HIDDEN else 0.0, run.seed), run.batches()
    history = train(
        twin, batches, learner.groups, learner.epochs, learner.gradient_clip, run.folder, way.prefix[1], run.verbose
    )
    seconds = time.perf_counter() - start
    twin.cpu().eval().measure_means(batches.training)

    @torch.no_grad()
    def classify(x: Tensor) -> Tensor:
        return twin(columns(x))

    choose_fill(twin, classify, run.data.val_x, run.data.val_y, run.masks)
    return asked(run, classify) | facts(history, seconds, twin) | {"fill": twin.fill}


def train_svm(run: Run) -> dict[str, Any]:
    """A support vector machine of the pixels, hidden ones replaced by their means; it gives no probabilities."""
    flat = run.data.train_x.flatten(1).double().numpy()
    mean = flat.mean(axis=0)
    machine = SVC(C=10.0, gamma="scale").fit(flat, run.data.train_y.numpy())

    def predict(x: Tensor) -> Labels:
        pixels = x.flatten(1).double().numpy()
        predicted: Labels = machine.predict(np.where(np.isnan(pixels), mean, pixels))
        return predicted

    return {
        "tables": {part: judged_labels(predict, x, y, run.masks).to_dict("list") for part, (x, y) in run.rows.items()}
    }


def asked(run: Run, classify: Classify) -> dict[str, Any]:
    """Figures of validation and test rows, and the seconds for complete test rows."""
    tables, seconds = {}, float("nan")
    for part, (x, y) in run.rows.items():
        found, seconds = ask(classify, x, run.masks)
        tables[part] = judged(found, y).to_dict("list")
    return {"tables": tables, "predict_seconds": seconds}


@torch.no_grad()
def completed(run: Run, model: PBP) -> dict[str, Tensor]:
    """One test image of each digit with half of its patches hidden, and with these predicted from the others."""
    y = run.data.test_y
    chosen = torch.tensor([int((y == c).nonzero()[0]) for c in range(CLASSES) if bool((y == c).any())][:SHOWN])
    x = run.data.test_x[chosen]
    (seen,) = patch_masks([PATCHES // 2], 1).of(x).values()
    table = columns(seen[0])
    means = torch.stack([model.posterior(v, table).mean for v in table], dim=1).to(x)
    known = ~seen[0].isnan()
    return {
        "true": x,
        "seen": seen[0],
        "completed": torch.where(known, x, means.clamp(0, 1)),
        "digit": y[chosen],
        "predicted": model.posterior(DIGIT, table).argmax(dim=1),
    }


def tabulated(tables: Mapping[str, Any], training: str, classifier: str) -> pd.DataFrame:
    """Columns rows ("val", "test"), training, classifier, hidden (percent), accuracy and, with probabilities, the rest."""
    frames = [pd.DataFrame(columns_).assign(rows=part) for part, columns_ in tables.items()]
    joined = pd.concat(frames, ignore_index=True).assign(training=training, classifier=classifier)
    joined["hidden"] = (100 * joined["hidden"] / PATCHES).round().astype(int)
    first = ["rows", "training", "classifier", "hidden"]
    return joined[[*first, *(c for c in joined.columns if c not in first)]]


def collected(table: pd.DataFrame, found: Mapping[tuple[str, str], Mapping[str, Any]]) -> Metrics:
    """Flat results."""
    metrics: Metrics = {}
    for line in table.to_dict("records"):
        where = f"{line['training']}/{line['classifier']}/{line['hidden']}"
        for figure in ("accuracy", "log_loss"):
            if line[figure] == line[figure]:
                metrics[f"{line['rows']}/{figure}/{where}"] = float(line[figure])
    test = table[table["rows"] == "test"].set_index(["training", "hidden", "classifier"])["accuracy"]
    for training in dict.fromkeys(table["training"]):
        for hidden in sorted(set(table["hidden"])):
            lead = test[training, hidden, PBP_NAME] - test[training, hidden, TWIN]
            metrics[f"test/lead/{training}/{hidden}"] = float(lead)
    for (training, name), result in found.items():
        for figure in ("fit_seconds", "predict_seconds", "parameters", "fill"):
            if figure in result:
                metrics[f"{figure}/{training}/{name}"] = result[figure]
    return metrics


def described(table: pd.DataFrame, metrics: Metrics) -> str:
    """The results as text for a terminal: accuracy and log-loss by percent of the patches hidden."""
    test = table[table["rows"] == "test"]
    shares = sorted(set(test["hidden"]))
    lines = ["test accuracy / log-loss by percent of the patches hidden"]
    lines.append(f"{'training rows':<14}{'classifier':<12}" + "".join(f"{h:>16}" for h in shares) + f"{'seconds':>10}")
    for (training, name), own in test.groupby(["training", "classifier"], sort=False):
        cells = own.set_index("hidden")
        shown = [
            f"{100 * cells.loc[h, 'accuracy']:.2f} %"
            + ("" if cells.loc[h, "log_loss"] != cells.loc[h, "log_loss"] else f" / {cells.loc[h, 'log_loss']:.3f}")
            for h in shares
        ]
        seconds = metrics.get(f"fit_seconds/{training}/{name}")
        last = "-" if seconds is None else f"{seconds:.1f}"
        lines.append(f"{training:<14}{name:<12}" + "".join(f"{s:>16}" for s in shown) + f"{last:>10}")
    return "\n".join(lines)
