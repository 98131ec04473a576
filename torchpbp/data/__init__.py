"""Data sets: loaders, splits, and pictures. Bundled files, their origin and licences: see README.md in this folder."""

from typing import TYPE_CHECKING, Any

from torchpbp.data.digits import FEATURES, Digits, download_digits, load_digits
from torchpbp.data.label_sequences import LabelledSignals, LabelSequences
from torchpbp.data.pictures import draw_confusion, draw_digits
from torchpbp.data.splice import SPLICE_CLASSES, SPLICE_SITES, Splice, download_splice, load_splice
from torchpbp.data.splits import block_folds, hide_points, rows_per_class

if TYPE_CHECKING:
    from torchpbp.data.digits_module import DigitsDataModule

__all__ = [
    "FEATURES",
    "SPLICE_CLASSES",
    "SPLICE_SITES",
    "Digits",
    "DigitsDataModule",
    "LabelSequences",
    "LabelledSignals",
    "Splice",
    "block_folds",
    "download_digits",
    "download_splice",
    "draw_confusion",
    "draw_digits",
    "hide_points",
    "load_digits",
    "load_splice",
    "rows_per_class",
]


def __getattr__(name: str) -> Any:
    # Importing Lightning takes seconds, which those who only want the tensors need not wait.
    if name == "DigitsDataModule":
        from torchpbp.data.digits_module import DigitsDataModule

        return DigitsDataModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
