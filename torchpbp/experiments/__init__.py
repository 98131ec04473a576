"""Experiments: plain functions that fit learners, measure them, and write their results into a folder."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torchpbp.experiments.digits.learning_curve import run_digits_curve
    from torchpbp.experiments.digits.missing_points import run_digits_missing
    from torchpbp.experiments.digits.run import run_digits
    from torchpbp.experiments.embedding.run import run_digits_embedding
    from torchpbp.experiments.jt_synthetic.run import run_jt_synthetic
    from torchpbp.experiments.labelling.run import run_sequence_labelling
    from torchpbp.experiments.learners.run import run_learners
    from torchpbp.experiments.normal_graph.deep_graph import run_ng_deep_graph
    from torchpbp.experiments.normal_graph.one_embedding import run_ng_one_embedding
    from torchpbp.experiments.normal_graph.single_block import run_ng_single_block
    from torchpbp.experiments.pbp_synthetic.run import run_pbp_synthetic
    from torchpbp.experiments.splice.run import run_splice
    from torchpbp.experiments.synthetic.run import run_synthetic
    from torchpbp.settings import Settings

__all__ = [
    "run_digits",
    "run_digits_curve",
    "run_digits_embedding",
    "run_digits_missing",
    "run_jt_synthetic",
    "run_learners",
    "run_ng_deep_graph",
    "run_ng_one_embedding",
    "run_ng_single_block",
    "run_pbp_synthetic",
    "run_sequence_labelling",
    "run_splice",
    "run_synthetic",
]


class Experiment(NamedTuple):
    """Where an experiment is defined, and what it makes of the settings around it.

    Args:
        module: below this package; loaded when first asked for, since most need packages that take seconds to import.
        settings: name of the class of its settings.
        shares_rows: whether several processes each learn from a share of the rows.
        replaces: settings of the learner that it sets itself.
    """

    module: str
    settings: str
    shares_rows: bool = False
    replaces: tuple[str, ...] = ()


EXPERIMENTS = {
    "run_digits": Experiment("digits.run", "DigitsSettings", shares_rows=True),
    "run_digits_curve": Experiment("digits.learning_curve", "DigitsCurveSettings", shares_rows=True),
    "run_digits_embedding": Experiment("embedding.run", "EmbeddingSettings"),
    "run_digits_missing": Experiment("digits.missing_points", "DigitsMissingSettings", shares_rows=True),
    "run_jt_synthetic": Experiment("jt_synthetic.run", "JTSyntheticSettings", shares_rows=True),
    "run_learners": Experiment("learners.run", "LearnersSettings"),
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
    "run_pbp_synthetic": Experiment("pbp_synthetic.run", "PBPSyntheticSettings", shares_rows=True),
    "run_sequence_labelling": Experiment("labelling.run", "LabellingSettings", shares_rows=True),
    "run_splice": Experiment("splice.run", "SpliceSettings", replaces=("ridge",)),
    "run_synthetic": Experiment("synthetic.run", "SyntheticSettings", shares_rows=True),
}


def settings_class(name: str) -> type[Settings]:
    """The class that declares the settings of an experiment, such as "run_digits"."""
    experiment = EXPERIMENTS[name]
    return getattr(importlib.import_module(f"{__name__}.{experiment.module}"), experiment.settings)


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in EXPERIMENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    experiment: Callable[..., Any] = getattr(importlib.import_module(f"{__name__}.{EXPERIMENTS[name].module}"), name)
    return experiment
