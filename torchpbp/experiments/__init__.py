"""Experiments: functions that fit models and measure them, run by ``train.py`` with the settings in conf/."""

from __future__ import annotations

import importlib
from typing import Any

MODULES = {
    "compare": "compare.task",
    "kernel_digits": "kernel_digits.task",
    "labelling": "labelling.task",
    "ng_deep_graph": "normal_graph.deep_graph",
    "ng_one_embedding": "normal_graph.one_embedding",
    "ng_single_block": "normal_graph.single_block",
    "splice": "splice.task",
    "train": "train.task",
}
"""Experiment -> module that defines it; loaded when first asked for, since most need packages that take seconds to import."""

__all__ = list(MODULES)


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{MODULES[name]}"), name)
