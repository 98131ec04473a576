"""Models with one operator tree per class of an observed variable: structure, class shares and warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchpbp.errors import DataWarning, StructureError, warn_caller
from torchpbp.graph.conditioning import conditional_graph, require_condition
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.learning.class_fitting import ClassFitter
from torchpbp.learning.fitting import Fitter
from torchpbp.moments.class_rows import ClassRows

if TYPE_CHECKING:
    from torchpbp.models.two_stage_model import TwoStageModel

MOST_NAMED = 8


def check_condition(graph: LatentGraph, condition: str | None, rank: Any) -> None:
    """Raise a StructureError unless a model can have an operator tree per class of a variable.

    Args:
        graph: the model's.
        condition: the class variable; None for a model with one tree.
        rank: setting of the model.
    """
    if condition is None:
        return
    require_condition(graph, condition)
    if rank == "auto":
        raise StructureError(
            f"condition={condition!r}: rank='auto' chooses one rank on held-out rows of a single tree. Give a rank as a number."
        )


def planned_graph(graph: LatentGraph, condition: str | None) -> LatentGraph:
    """The graph of the junction tree: without the class variable."""
    return graph if condition is None else conditional_graph(graph, condition)


def register_classes(model: nn.Module, classes: int) -> None:
    """Register the buffers of a model with classes: shares of the classes, initially uniform, and rows of each class."""
    model.register_buffer("prior", torch.full((classes,), 1 / classes, dtype=torch.float64))
    model.register_buffer("class_rows", torch.zeros(classes, dtype=torch.int64))


def make_fitter(model: TwoStageModel) -> Fitter:
    """The fitter with a model's settings."""
    s = model.settings
    options: Any = {
        "regressor": model.regressor,
        "ridge": s.ridge,
        "whitening": s.whitening,
        "seed": s.seed,
        "device": model.device,
    }
    if s.condition is None:
        return Fitter(model.observables, model.kernel_map, **options)
    return ClassFitter(model.observables, model.kernel_map, condition=s.condition, shrinkage=s.shrinkage, **options)


@torch.no_grad()
def adopt_classes(model: TwoStageModel, classes: ClassRows) -> None:
    """Copy the shares and rows of the classes into a model's buffers; a population has no rows."""
    model.prior.copy_(classes.prior)
    model.class_rows.copy_(classes.counts.long())


def warn_of_classes(classes: ClassRows, labels: Any) -> None:
    """Warn of classes without rows and of rows without a class.

    Args:
        classes: of the fit.
        labels: of the states of the class variable; empty if it was given by number.
    """
    if classes.empty:
        class_labels = [*labels, *range(len(labels), len(classes))]
        named = ", ".join(str(class_labels[c]) for c in classes.empty[:MOST_NAMED])
        named += f", … ({len(classes.empty)} in all)" if len(classes.empty) > MOST_NAMED else ""
        warn_caller(
            f"No row has '{classes.name}' = {named}. Given such a class, answers are those of all rows together; without it, its "
            "probability is 0 before clipping. Give rows of these classes, or a graph with fewer states.",
            DataWarning,
        )
    if classes.missing:
        warn_caller(
            f"{int(classes.missing):,} of {int(classes.missing + classes.total):,} rows have no value of '{classes.name}'. They do "
            "not enter the moments of its classes.",
            DataWarning,
        )
