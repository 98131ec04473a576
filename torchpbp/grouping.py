"""Items grouped by a key, and sets by their elements."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Key -> the items with this key; keys and items in the order of ``items``."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def holders(sets: Iterable[Iterable[K]]) -> dict[K, list[int]]:
    """Element -> numbers of the sets that contain it, in ascending order."""
    result: dict[K, list[int]] = {}
    for number, elements in enumerate(sets):
        for element in elements:
            result.setdefault(element, []).append(number)
    return result
