"""Experiments: plain functions that fit learners, measure them, and write their results into a folder."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchpbp.tasks.digits import run_digits
    from torchpbp.tasks.digits_curve import run_digits_curve
    from torchpbp.tasks.digits_embedding import run_digits_embedding
    from torchpbp.tasks.digits_missing import run_digits_missing
    from torchpbp.tasks.jt_synthetic import run_jt_synthetic
    from torchpbp.tasks.learners import run_learners
    from torchpbp.tasks.ng_deep_graph import run_ng_deep_graph
    from torchpbp.tasks.ng_one_embedding import run_ng_one_embedding
    from torchpbp.tasks.ng_single_block import run_ng_single_block
    from torchpbp.tasks.pbp_synthetic import run_pbp_synthetic
    from torchpbp.tasks.sequence_labelling import run_sequence_labelling
    from torchpbp.tasks.splice import run_splice
    from torchpbp.tasks.synthetic import run_synthetic

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


def __getattr__(name: str) -> Callable[..., Any]:
    """The experiment ``run_<module>``, loaded when first asked for: most need packages that take seconds to import."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: Callable[..., Any] = getattr(importlib.import_module(f"{__name__}.{name.removeprefix('run_')}"), name)
    return found
