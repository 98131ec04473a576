"""Products of tables and messages over the same rows, faster than einsum where the rows are many and the tables small."""

from __future__ import annotations

import string
from collections.abc import Hashable, Sequence
from functools import lru_cache

import opt_einsum
import torch
from torch import Tensor

RUN, ROW = object(), object()
"""Mode labels of the runs and of the rows."""

Part = tuple[Tensor, tuple[Hashable, ...]]
"""A tensor with a label for each of its modes."""

Modes = tuple[int, ...]


def rowwise_product(parts: Sequence[Part], output: tuple[Hashable, ...]) -> Tensor:
    """Sum of products of tensors with labelled modes, where most of them have a long last dimension ROW in common.

    Contractions along a common dimension become batches of tiny matrix products in einsum; multiplying elementwise and
    summing is many times faster there.

    Args:
        parts: tensors with their modes; ROW, where present, comes last.
        output: modes of the result.
    """
    numbers: dict[Hashable, int] = {ROW: -1, RUN: 0}
    keys = tuple(tuple(numbers.setdefault(m, len(numbers)) for m in modes) for _, modes in parts)
    pool = [t for t, _ in parts]
    for positions, modes, kept in _plan(keys, tuple(numbers[m] for m in output), tuple(tuple(t.shape) for t in pool)):
        taken = [pool[i] for i in positions]
        pool = [t for i, t in enumerate(pool) if i not in positions]
        pool.append(_pair(taken, modes, kept))
    return pool[0]


def _pair(taken: list[Tensor], modes: tuple[Modes, ...], kept: Modes) -> Tensor:
    if len(taken) == 2 and all(-1 in m for m in modes):
        union = (*dict.fromkeys(m for m in (*kept, *modes[0], *modes[1]) if m != -1), -1)
        first, second = (_aligned(t, m, union) for t, m in zip(taken, modes, strict=True))
        summed = [i for i, m in enumerate(union) if m not in kept]
        product = first * second
        return product.sum(dim=summed) if summed else product
    letters = {m: string.ascii_letters[i] for i, m in enumerate(dict.fromkeys(m for scope in modes for m in scope))}
    inputs = ",".join("".join(letters[m] for m in scope) for scope in modes)
    return torch.einsum(inputs + "->" + "".join(letters[m] for m in kept), *taken)


def _aligned(tensor: Tensor, modes: Modes, union: Modes) -> Tensor:
    """A view with one dimension for each mode of the union, of size 1 where the tensor has none."""
    ordered = [m for m in union if m in modes]
    tensor = tensor.permute([modes.index(m) for m in ordered])
    sizes = dict(zip(ordered, tensor.shape, strict=True))
    return tensor.reshape([sizes.get(m, 1) for m in union])


@lru_cache(maxsize=4096)
def _plan(
    modes: tuple[Modes, ...], output: Modes, shapes: tuple[tuple[int, ...], ...]
) -> tuple[tuple[tuple[int, ...], tuple[Modes, ...], Modes], ...]:
    """Steps: positions in the pool, their modes, and the modes of the result, which goes to the end of the pool."""
    path: list[tuple[int, ...]] = [tuple(range(len(modes)))]
    if len(modes) > 2:
        names = ["".join(opt_einsum.get_symbol(m + 1) for m in scope) for scope in (*modes, output)]
        equation = ",".join(names[:-1]) + "->" + names[-1]
        path = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize="auto")[0]
    pool, steps = list(modes), []
    for positions in path:
        taken = tuple(pool[i] for i in positions)
        pool = [m for i, m in enumerate(pool) if i not in positions]
        later = set(output).union(*pool)
        remaining = [m for m in dict.fromkeys(m for scope in taken for m in scope) if m in later]
        kept = output if not pool else tuple(sorted(remaining, key=lambda m: (m == -1, m)))
        steps.append((tuple(positions), taken, kept))
        pool.append(kept)
    return tuple(steps)
