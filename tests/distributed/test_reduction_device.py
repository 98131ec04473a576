"""Counts are kept in main memory, which processes with a GPU each cannot add up in."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from torchpbp import distributed


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A group of two equal processes."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_backend", lambda: request.param)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: tensor.mul_(2))
    return request.param


@pytest.mark.parametrize("backend", ["gloo", "nccl"], indirect=True)
def test_tensors_go_where_they_can_be_added_up_and_come_back(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    visited = []

    def moved(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
        visited.append(place.type)
        return tensor if place.type == "cpu" else tensor.clone()  # a copy elsewhere

    monkeypatch.setattr(torch.Tensor, "to", moved)
    counts = torch.tensor([1.0, 2.0])
    result = distributed.sum_over_processes(counts)
    assert visited == ["cuda" if backend == "nccl" else "cpu"]
    assert result is counts
    assert counts.tolist() == [2.0, 4.0]
