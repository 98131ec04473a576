"""Data sets: loaders and splits. README.md in this folder lists the origin and licence of the bundled files."""

from typing import TYPE_CHECKING, Any

from torchpbp.datasets.digits import FEATURES, Digits, download_digits, load_digits
from torchpbp.datasets.label_sequences import LabelledSignals, LabelSequences
from torchpbp.datasets.splice import SPLICE_CLASSES, SPLICE_SITES, Splice, download_splice, load_splice
from torchpbp.datasets.splits import cell_folds, hide_points, rows_per_class

if TYPE_CHECKING:
    from torchpbp.datasets.digits_module import DigitsDataModule

__all__ = [
    "FEATURES",
    "SPLICE_CLASSES",
    "SPLICE_SITES",
    "Digits",
    "DigitsDataModule",
    "LabelSequences",
    "LabelledSignals",
    "Splice",
    "cell_folds",
    "download_digits",
    "download_splice",
    "hide_points",
    "load_digits",
    "load_splice",
    "rows_per_class",
]


def __getattr__(name: str) -> Any:
    # Lightning takes seconds to import and is needed for this class only.
    if name == "DigitsDataModule":
        from torchpbp.datasets.digits_module import DigitsDataModule

        return DigitsDataModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
