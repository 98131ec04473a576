"""Settings from files and command lines, held against the types that functions ask for before anything is made."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from torchpbp.errors import SettingError

TARGET = "_target_"


def check_settings(settings: Any, where: str) -> None:
    """Refuse values of the wrong type in a description of what to make.

    Args:
        settings: nested plain values; a dict with the key ``_target_`` names a function or class, its other entries are
            arguments. Types that are not annotated, or are classes of other libraries, are not checked.
        where: dotted name of the settings, for messages.

    Raises:
        SettingError: naming the first wrong value, the type expected and the one found.
    """
    if isinstance(settings, Mapping):
        expected = argument_types(str(settings[TARGET])) if TARGET in settings else {}
        for key, value in settings.items():
            name = f"{where}.{key}"
            if key in expected and not fits(value, expected[key]):
                raise SettingError(f"{name}: expected {readable(expected[key])}, got {value!r}.")
            check_settings(value, name)
    elif isinstance(settings, list):
        for i, value in enumerate(settings):
            check_settings(value, f"{where}[{i}]")


def check_setting(name: str, value: Any, expected: Any, least: int | None = None) -> None:
    """Refuse a single value of the wrong type, or below the least one."""
    if not fits(value, expected) or (least is not None and value is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        plain, _, others = readable(expected).partition(" or ")
        raise SettingError(f"{name}: expected {plain}{bound}{others and f' or {others}'}, got {value!r}.")


def argument_types(target: str) -> dict[str, Any]:
    """Types of the arguments of a function or class, given by its full name; those that can be evaluated."""
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
            break
        except ImportError:
            continue
    else:
        return {}
    for part in parts[cut:]:
        found = getattr(found, part, None)
    if not callable(found):
        return {}
    function: Any = found.__init__ if inspect.isclass(found) else found
    names = getattr(inspect.unwrap(function), "__globals__", {})
    result = {}
    for name, text in getattr(function, "__annotations__", {}).items():
        try:
            result[name] = eval(text, names) if isinstance(text, str) else text
        except Exception:  # a name that is imported for type checkers only
            continue
    return result


def fits(value: Any, expected: Any) -> bool:
    """Whether a plain value has a type; true for types that plain values cannot show."""
    origin, inner = get_origin(expected), get_args(expected)
    if isinstance(value, Mapping) and TARGET in value:
        return True  # what will be made is not known yet
    if origin in (Union, types.UnionType):
        return any(fits(value, kind) for kind in inner)
    if origin is Literal:
        return value in inner
    if expected in (None, type(None)):
        return value is None
    if expected is bool:
        return isinstance(value, bool)
    if expected is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if expected is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if expected is str:
        return isinstance(value, str)
    base = origin or expected
    if base is tuple and inner and Ellipsis not in inner:
        return isinstance(value, list) and len(value) == len(inner) and all(map(fits, value, inner))
    if base in (Sequence, list, tuple):
        return isinstance(value, list) and all(fits(_whole(v), inner[0]) for v in value if inner)
    if base in (Mapping, dict):
        return isinstance(value, Mapping)
    return True


def _whole(value: Any) -> Any:
    """Lists of sizes are often written as 1e5, which arrives as a float; tasks take those."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def readable(expected: Any) -> str:
    """A type in words for messages: ``int | None`` and the like, without the modules of names."""
    inner = get_args(expected)
    if get_origin(expected) in (Union, types.UnionType):
        return " or ".join(readable(kind) for kind in inner)
    if get_origin(expected) is Literal:
        return " or ".join(repr(value) for value in inner)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
    if expected in names:
        return names[expected]
    base = get_origin(expected) or expected
    if base is tuple and inner and Ellipsis not in inner:
        return f"a list of {len(inner)} entries, each {readable(inner[0])}"
    if base in (Sequence, list, tuple):
        return f"a list, each entry {readable(inner[0])}" if inner else "a list"
    return "a mapping" if base in (Mapping, dict) else getattr(base, "__name__", str(base))
