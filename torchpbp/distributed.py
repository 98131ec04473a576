"""Several processes, each with a share of the rows: sums over all of them.

Without ``torch.distributed`` there is one process. The rows of a fit are the shares of the processes, concatenated in their
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def sum_over_processes(tensor: Tensor) -> Tensor:
    """The sum of a tensor over all processes, in place and returned."""
    if world_size() > 1:
        moved = tensor.to(_reduction_device(tensor))
        dist.all_reduce(moved)
        if moved is not tensor:
            tensor.copy_(moved)
    return tensor


class _SharedSum(torch.autograd.Function):
    """The sum over processes; each share's gradient is the sum of the gradients that all of them have of it."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return sum_over_processes(tensor.detach().clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return sum_over_processes(gradient.clone(memory_format=torch.contiguous_format))


def shared_sums(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Sums over all processes, differentiable, of tensors with the same shapes in each; in one process the tensors themselves.

    They travel together, in float64. If process p minimises ℓ_p, which depends on sums of all of them, the gradient of its
    share is that of Σ ℓ_p; ``DistributedDataParallel`` then takes the mean over processes.
    """
    if world_size() == 1 or not tensors:
        return list(tensors)
    flat = torch.cat([t.reshape(-1).double() for t in tensors])
    total: Tensor = _SharedSum.apply(flat)  # type: ignore[no-untyped-call]
    parts = zip(total.split([t.numel() for t in tensors]), tensors, strict=True)
    return [(part if t.requires_grad else part.detach()).reshape(t.shape).to(t.dtype) for part, t in parts]


def shares(*numbers: int) -> list[list[int]]:
    """Whole numbers of each process, in their order, on all of them."""
    table = torch.zeros(world_size(), len(numbers), dtype=torch.int64, device="cpu")
    table[process_rank()] = torch.tensor(numbers, device="cpu")
    result: list[list[int]] = sum_over_processes(table).tolist()
    return result


def _reduction_device(tensor: Tensor) -> torch.device:
    """Device on which processes can sum a tensor: NCCL reduces tensors on GPUs only."""
    return torch.device("cuda") if dist.get_backend() == "nccl" else tensor.device


def gather_objects(value: T) -> list[T]:
    """The value of each process, in their order, on all of them."""
    if world_size() == 1:
        return [value]
    values: list[T] = [value] * world_size()
    dist.all_gather_object(values, value)
    return values


def gather_rows(tensor: Tensor) -> Tensor:
    """Rows of all processes, concatenated in their order."""
    return torch.cat(gather_objects(tensor.cpu())).to(tensor.device) if world_size() > 1 else tensor


def own_share(rows: int) -> slice:
    """The rows of a table that belong to this process, for callers that hold all of them."""
    size, rank = world_size(), process_rank()
    return slice(rows * rank // size, rows * (rank + 1) // size)
