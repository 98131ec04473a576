"""Experiments: plain functions that fit learners, measure them, and write their results into a folder."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torchpbp.settings import Settings


class Experiment(NamedTuple):
    """Where an experiment is defined, and what it makes of the settings around it.

    Args:
        module: below this package; loaded when first asked for, since most need packages that take seconds to import.
        settings: name of the class of its settings.
        shares_rows: whether several processes each learn from a share of the rows.
        replaces: settings of the learner that it sets itself.
        unused: class of a learner -> settings of the experiment that have no effect with it.
    """

    module: str
    settings: str
    shares_rows: bool = False
    replaces: tuple[str, ...] = ()
    unused: Mapping[str, tuple[str, ...]] = MappingProxyType({})


EXPERIMENTS = {
    "run_coverage": Experiment("precision.coverage", "CoverageSettings"),
    "run_digits": Experiment(
        "digits.run",
        "DigitsSettings",
        shares_rows=True,
        unused={"NeuralDigits": ("samples", "copies", "slant", "missing_training", "missing_kind", "missing_fill")},
    ),
    "run_digits_curve": Experiment("digits.learning_curve", "DigitsCurveSettings", shares_rows=True),
    "run_digits_missing": Experiment("digits.missing_points", "DigitsMissingSettings", shares_rows=True),
    "run_jt_synthetic": Experiment("jt_synthetic.run", "JTSyntheticSettings", shares_rows=True),
    "run_learners": Experiment("learners.run", "LearnersSettings"),
    "run_maxima": Experiment("precision.maxima", "MaximaSettings"),
    "run_ng_deep_graph": Experiment(
        "normal_graph.deep_graph",
        "DeepGraphSettings",
        replaces=("rule", "epochs", "inner_iterations", "restarts", "history", "seed", "progress"),
    ),
    "run_ng_one_embedding": Experiment(
        "normal_graph.one_embedding",
        "OneEmbeddingSettings",
        replaces=("rule", "epochs", "inner_iterations", "restarts", "history", "seed", "progress"),
    ),
    "run_ng_single_block": Experiment(
        "normal_graph.single_block",
        "SingleBlockSettings",
        replaces=("rule", "epochs", "inner_iterations", "restarts", "start", "history", "seed", "progress"),
    ),
    "run_patches": Experiment("patches.run", "PatchesSettings"),
    "run_pbp_synthetic": Experiment("pbp_synthetic.run", "PBPSyntheticSettings", shares_rows=True),
    "run_precision": Experiment("precision.run", "PrecisionSettings"),
    "run_sequence_labelling": Experiment("labelling.run", "LabellingSettings", shares_rows=True),
    "run_splice": Experiment("splice.run", "SpliceSettings", replaces=("ridge",)),
    "run_synthetic": Experiment("synthetic.run", "SyntheticSettings", shares_rows=True),
}


__all__ = list(EXPERIMENTS)


def settings_class(name: str) -> type[Settings]:
    """The class that declares the settings of an experiment, such as "run_digits"."""
    experiment = EXPERIMENTS[name]
    return getattr(importlib.import_module(f"{__name__}.{experiment.module}"), experiment.settings)


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in EXPERIMENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    experiment: Callable[..., Any] = getattr(importlib.import_module(f"{__name__}.{EXPERIMENTS[name].module}"), name)
    return experiment
