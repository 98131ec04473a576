"""Typed errors and warnings. Each message says what was expected, what came, and what to do about it."""

from __future__ import annotations

import sys
import warnings
from types import FrameType


class TorchPBPError(Exception):
    """Base class of every error torchpbp raises on purpose."""


class ArgumentError(TorchPBPError, ValueError):
    """An argument or setting has a value that is not accepted."""


class StructureError(TorchPBPError, ValueError):
    """The graph, tree or model parameters do not describe a valid model."""


class BudgetError(StructureError):
    """What a structure would take in memory, or a plan in time, by an estimate made beforehand, is above the budget."""


class ShapeError(TorchPBPError, ValueError):
    """A tensor has the wrong shape or length."""


class DataError(TorchPBPError, ValueError):
    """Training data or evidence holds values that the model cannot take."""


class QueryError(TorchPBPError, ValueError):
    """The question cannot be asked of this model (a latent or unknown variable)."""


class DeviceError(TorchPBPError, RuntimeError):
    """Tensors that are used together are on different devices."""


class NotFittedError(TorchPBPError, RuntimeError):
    """The model was asked for an answer before it was fitted."""


class CheckpointError(TorchPBPError, RuntimeError):
    """A saved model cannot be read, or a model cannot be saved."""


class RunError(TorchPBPError, RuntimeError):
    """A run cannot start, or go on, in its folder."""


class TorchPBPWarning(UserWarning):
    """Base class of every warning torchpbp gives on purpose."""


class RankWarning(TorchPBPWarning):
    """A separator's core group or instrument cannot reach the rank the structure needs."""


class DataWarning(TorchPBPWarning):
    """The data can be used, but something in it deserves a look."""


class LabelWarning(DataWarning):
    """Columns given by label have fewer labels than their variables have states."""


class ConvergenceWarning(TorchPBPWarning):
    """A learner stopped at its limit of steps."""


class IdentificationWarning(TorchPBPWarning):
    """The states of a latent are not determined by the distribution of the observables."""


class QueryWarning(TorchPBPWarning):
    """The query has an answer that is probably not what the caller intended."""


def warn_caller(text: str, category: type[TorchPBPWarning]) -> None:
    """Give a warning that points at the line which called into the library, directly or through a torch module.

    Args:
        text: of the warning.
        category: of the warning.
    """
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in ("torchpbp", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
