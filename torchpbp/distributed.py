"""Several processes, each with a share of the rows: sums over all of them.

Every function does nothing special where ``torch.distributed`` is not in use. The rows of a fit are the shares put one
after the other in the order of the processes.
"""

from __future__ import annotations

from typing import TypeVar

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
        there = tensor.to(_meeting_place(tensor))
        dist.all_reduce(there)
        if there is not tensor:
            tensor.copy_(there)
    return tensor


def _meeting_place(tensor: Tensor) -> torch.device:
    """Where processes can add a tensor up: NCCL, which joins processes with a GPU each, knows no other memory."""
    return torch.device("cuda") if dist.get_backend() == "nccl" else tensor.device


def gather_objects(value: T) -> list[T]:
    """The value of each process, in their order, on all of them."""
    if world_size() == 1:
        return [value]
    found: list[T] = [value] * world_size()
    dist.all_gather_object(found, value)
    return found


def gather_rows(tensor: Tensor) -> Tensor:
    """Rows of all processes, one share after the other."""
    return torch.cat(gather_objects(tensor.cpu())).to(tensor.device) if world_size() > 1 else tensor


def own_share(rows: int) -> slice:
    """The rows of a table that belong to this process, for callers that hold all of them."""
    size, rank = world_size(), process_rank()
    return slice(rows * rank // size, rows * (rank + 1) // size)
