"""Tensors of model files: small ones packed into one record, and checks of their sizes, shapes and values.

Functions called ``…_fault`` return what is wrong, for an error that names the file, or None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.errors import CheckpointError

SMALL = 1 << 16
"""Bytes up to which tensors share a record. Larger ones are not copied: that would double the memory that saving takes."""
SHARING = 10
"""How many entries of lists a byte of a file may stand for: lists that occur several times are written once."""


def with_shared_storages(content: Any) -> Any:
    """The same content with small tensors as parts of one storage per dtype.

    A file has a record for each storage, and reading a record costs as much as thousands of numbers: a model of 2,000 sites
    has 18,000 small tensors. A tensor or list that occurs several times is written once.

    Args:
        content: nested dicts, lists and tuples of tensors and plain values. It is left as it is.

    Raises:
        CheckpointError: tensors that are not dense, such as sparse ones.
    """
    small: dict[torch.dtype, list[Tensor]] = {}
    moved: dict[int, Tensor] = {}
    for tensor in _tensors(content):
        kind = _unusual(tensor)
        if kind:
            raise CheckpointError(f"A model file holds dense tensors, got a {kind} one. Convert it before saving.")
        if tensor.nbytes <= SMALL:
            small.setdefault(tensor.dtype, []).append(tensor)
            continue
        moved[id(tensor)] = with_own_storage(tensor.detach().cpu())
    for dtype, group in small.items():
        flat, start = torch.empty(sum(t.numel() for t in group), dtype=dtype), 0
        for tensor in group:
            part = flat.as_strided(tensor.shape, _dense_strides(tensor), start)
            moved[id(tensor)] = part.copy_(tensor.detach())
            start += tensor.numel()
    return _replaced(content, moved, {})


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides of a dense copy in the same order of dimensions: matrix products round differently by the order in memory."""
    return tensor.stride() if tensor.is_contiguous() else torch.empty_like(tensor).stride()


def with_own_storage(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy if it is a part of something larger, which it would keep in memory and in files."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _replaced(value: Any, moved: Mapping[int, Tensor], done: dict[int, Any]) -> Any:
    """A copy with other tensors in which what was one object is one object."""
    if isinstance(value, Tensor):
        return moved[id(value)]
    if type(value) not in (dict, list, tuple):
        return value
    if id(value) not in done:
        if isinstance(value, dict):
            done[id(value)] = {k: _replaced(v, moved, done) for k, v in value.items()}
        else:
            done[id(value)] = type(value)(_replaced(v, moved, done) for v in value)
    return done[id(value)]


def _tensors(content: Any) -> Iterator[Tensor]:
    """Each tensor in nested dicts, lists and tuples once, however often it occurs."""
    stack, seen = [content], set[int]()
    while stack:
        value = stack.pop()
        if isinstance(value, Tensor | dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, Tensor):
                yield value
            else:
                stack.extend(value.values() if isinstance(value, dict) else value)


def _unusual(tensor: Tensor) -> str:
    """The kind of a tensor that is not dense; empty for a dense one."""
    if tensor.is_meta:
        return "meta"
    if tensor.is_quantized or tensor.is_nested:
        return "quantized" if tensor.is_quantized else "nested"
    return "" if tensor.layout == torch.strided else str(tensor.layout).removeprefix("torch.")


def size_fault(content: Any, size: int) -> str | None:
    """Whether what was read would take more memory than its file can account for.

    A few bytes can stand for a large tensor, one number repeated along a dimension, and for a large list, one list
    repeated within lists.

    Args:
        content: as read.
        size: of the file in bytes.
    """
    total = 0
    for tensor in _tensors(content):
        kind = _unusual(tensor)
        if kind:
            return f"it holds a {kind} tensor"
        total += tensor.numel() * tensor.element_size()
        if total > size:
            return f"its tensors would take more than {size:,} bytes, the size of the file, one with shape {tuple(tensor.shape)}"
    entries = _entries(content, {})
    return f"its lists would have {entries:,} entries" if entries > SHARING * size else None


def _entries(value: Any, known: dict[int, int]) -> int:
    """Number of values in nested dicts, lists and tuples, each counted as often as it occurs.

    Args:
        value: what to count.
        known: numbers of what was seen before, by identity.
    """
    if not isinstance(value, dict | list | tuple):
        return 1
    if id(value) not in known:
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum([_entries(v, known) for v in inner])
    return known[id(value)]


def number_fault(named: Mapping[str, Any]) -> str | None:
    """The first tensor that holds NaN or infinity, or is not dense.

    Args:
        named: name -> tensor; integers are passed over.
    """
    for name, tensor in named.items():
        kind = _unusual(tensor) if isinstance(tensor, Tensor) else type(tensor).__name__
        if kind:
            return f"{name}: expected a dense tensor, got {kind}"
    real = {name: t.detach() for name, t in named.items() if t.is_floating_point() or t.is_complex()}
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    suspect = False
    for tensor in real.values():
        if tensor.nbytes <= SMALL:
            groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        else:
            suspect = suspect or not bool(tensor.isfinite().all())
    # One check of many small tensors takes a tenth of the time of many checks.
    if not suspect and all(bool(torch.cat([t.reshape(-1) for t in g]).isfinite().all()) for g in groups.values()):
        return None
    for name, tensor in real.items():
        bad = tensor.numel() - int(tensor.isfinite().sum())
        if bad:
            return f"{name}: expected finite numbers, got NaN or infinity in {bad} of {tensor.numel()} entries"
    return None


def shape_fault(expected: Mapping[str, Sequence[int]], state: Mapping[str, Any]) -> str | None:
    """The first tensor that is absent or has another shape than the structure says.

    Checked before anything of these shapes is allocated: the structure comes from a file too.

    Args:
        expected: name -> shape.
        state: name -> tensor.
    """
    for name, shape in expected.items():
        tensor = state.get(name)
        if not isinstance(tensor, Tensor):
            return f"{name}: expected a tensor of shape {tuple(shape)}, got {type(tensor).__name__}"
        if tensor.shape != tuple(shape):
            return f"{name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}"
    return None


def copy_state(model: nn.Module, state: Mapping[str, Tensor]) -> str | None:
    """Copy saved numbers into a model, as ``load_state_dict`` does, whose time grows with the square of the number of modules.

    Args:
        model: with parameters and buffers of the right shapes.
        state: name -> tensor, for exactly these.

    Returns:
        What does not fit; the model is then of no use.
    """
    own = model.state_dict(keep_vars=True)
    unmatched = [*(own.keys() - state.keys()), *(state.keys() - own.keys())]
    if unmatched:
        return f"{sorted(map(str, unmatched))[0]}: missing in the file, or unknown to the model"
    fault = shape_fault({name: tensor.shape for name, tensor in own.items()}, state)
    if fault:
        return fault
    with torch.no_grad():
        for name, tensor in own.items():
            saved = state[name]
            if saved.is_complex() or saved.is_floating_point() != tensor.is_floating_point():
                return f"{name}: expected {tensor.dtype}, got {saved.dtype}"
            tensor.copy_(saved)
    return None
