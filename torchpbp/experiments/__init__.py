"""Experiments: plain functions that fit learners, measure them, and write their results into a folder."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchpbp.experiments.digits.comparison import run_digits_missing
    from torchpbp.experiments.digits.learning_curve import run_digits_curve
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


EXPERIMENTS = {
    "run_digits": "digits.run",
    "run_digits_curve": "digits.learning_curve",
    "run_digits_embedding": "embedding.run",
    "run_digits_missing": "digits.comparison",
    "run_jt_synthetic": "jt_synthetic.run",
    "run_learners": "learners.run",
    "run_ng_deep_graph": "normal_graph.deep_graph",
    "run_ng_one_embedding": "normal_graph.one_embedding",
    "run_ng_single_block": "normal_graph.single_block",
    "run_pbp_synthetic": "pbp_synthetic.run",
    "run_sequence_labelling": "labelling.run",
    "run_splice": "splice.run",
    "run_synthetic": "synthetic.run",
}
"""Experiment -> the module that defines it, loaded when first asked for: most need packages that take seconds to import."""


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in EXPERIMENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    experiment: Callable[..., Any] = getattr(importlib.import_module(f"{__name__}.{EXPERIMENTS[name]}"), name)
    return experiment
