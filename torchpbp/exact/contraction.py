"""Tensor contraction over labelled modes, along cached paths."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache

import opt_einsum
import torch
from torch import Tensor

Modes = tuple[int, ...]
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def contract(operands: Sequence[Tensor], modes: Sequence[Sequence[Hashable]], output: Sequence[Hashable]) -> Tensor:
    """Sum of products of tensors whose modes have labels, such as variable names.

    Modes with the same label are multiplied elementwise; labels absent from ``output`` are summed over. The contraction path
    is computed by opt_einsum and cached by the form of the problem.

    Args:
        operands: tensors.
        modes: labels of each tensor's dimensions.
        output: labels of the result, in order.
    """
    numbers: dict[Hashable, int] = {}
    keys = tuple(tuple(numbers.setdefault(label, len(numbers)) for label in scope) for scope in modes)
    wanted = tuple(numbers[label] for label in output)
    shapes = tuple(tuple(t.shape) for t in operands)
    pool = list(operands)
    for positions, equation in _plan(keys, wanted, shapes):
        taken = [pool[i] for i in positions]
        for i in sorted(positions, reverse=True):
            del pool[i]
        pool.append(torch.einsum(equation, *taken))
    return pool[0]


def rescaled(message: Tensor, dims: Sequence[int] = (-2,)) -> tuple[Tensor, Tensor]:
    """A message divided by its largest absolute entry along some dimensions, and these entries, 1 for zeros.

    Args:
        message: (…) tensor.
        dims: dimensions; by default the rank of a (…, rank, batch) message.

    Returns:
        The message, and the entries with size 1 along the dimensions.
    """
    scale = message.detach().abs()
    if dims:
        scale = scale.amax(dim=tuple(dims), keepdim=True)
    # otherwise the gradients of zeros would be infinite
    scale.masked_fill_(scale < torch.finfo(message.dtype).tiny, 1.0)
    return message / scale, scale


@lru_cache(maxsize=4096)
def _plan(
    modes: tuple[Modes, ...], output: Modes, shapes: tuple[tuple[int, ...], ...]
) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Steps (positions in the pool, two-operand equation); each result is appended to the pool."""
    if len(modes) <= 2:
        path = [tuple(range(len(modes)))]
    else:
        symbols = [opt_einsum.get_symbol(i) for i in range(1 + max(m for scope in modes for m in scope))]
        names = ",".join("".join(symbols[m] for m in scope) for scope in modes)
        equation = names + "->" + "".join(symbols[m] for m in output)
        path = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize="auto")[0]
    pool = list(modes)
    steps = []
    for positions in path:
        taken = [pool[i] for i in positions]
        for i in sorted(positions, reverse=True):
            del pool[i]
        later = set(output).union(*pool)
        result = output if not pool else tuple(dict.fromkeys(m for scope in taken for m in scope if m in later))
        steps.append((tuple(positions), _equation(taken, result)))
        pool.append(result)
    return tuple(steps)


def _equation(inputs: Sequence[Modes], output: Modes) -> str:
    letters: dict[int, str] = {}
    for scope in inputs:
        for m in scope:
            letters.setdefault(m, _LETTERS[len(letters)])
    return ",".join("".join(letters[m] for m in scope) for scope in inputs) + "->" + "".join(letters[m] for m in output)
