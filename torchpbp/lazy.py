"""Packages that take long to import, loaded when they are first used.

``import torchpbp`` and a fit on tensors do not need pandas, which is imported when a table is first read or made.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, ForwardRef, TypeAlias

from typing_extensions import TypeIs

__all__ = ["DataFrame", "is_categorical", "is_frame", "is_series", "pandas"]


class LazyModule(ModuleType):
    """Stands in for a package and imports it on first use.

    Args:
        name: of the package.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by inspection, copying and the like, not by a user of the package
            raise AttributeError(name)
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)  # found without this method from now on
        return value


if TYPE_CHECKING:
    import pandas as pandas

    DataFrame: TypeAlias = pandas.DataFrame
else:
    pandas = LazyModule("pandas")
    DataFrame = ForwardRef("pandas.DataFrame", module=__name__)  # for types that are made when a module is loaded


def is_frame(value: object) -> TypeIs[pandas.DataFrame]:
    """Whether the value is a DataFrame. Nothing is one before pandas is imported."""
    return "pandas" in sys.modules and isinstance(value, pandas.DataFrame)


def is_series(value: object) -> TypeIs[pandas.Series[Any]]:
    """Whether the value is a pandas Series."""
    return "pandas" in sys.modules and isinstance(value, pandas.Series)


def is_categorical(value: object) -> TypeIs[pandas.Categorical]:
    """Whether the value is a pandas array of categories."""
    return "pandas" in sys.modules and isinstance(value, pandas.Categorical)
