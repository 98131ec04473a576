"""Spans of columns: ranks of joined matrices without computing them from scratch."""

import pytest
import torch

from torchpbp.planning.spans import Span, numerical_rank


def matrix(rows: int, columns: int, rank: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(n, rank, generator=generator, dtype=torch.float64) for n in (rows, columns))
    return left @ right.T


@pytest.mark.parametrize(("rows", "columns", "rank"), [(8, 5, 3), (8, 20, 6), (8, 3, 0), (6, 9, 6)])
def test_gains_are_those_of_the_joined_matrix(rows, columns, rank):
    first = matrix(rows, columns, rank, 0)
    span = Span.of(first, scale=1.0)
    assert span.rank == rank
    inside = first @ matrix(columns, 4, 2, 1)
    further = torch.cat([inside, matrix(rows, 3, 2, 2)], dim=1)
    joined = numerical_rank(torch.cat([first, further], dim=1))
    assert span.gain(inside) == 0
    assert span.gain(further) == joined - rank == min(2, rows - rank)
    assert span.with_columns(further).rank == joined


def test_what_is_tiny_beside_others_is_no_gain():
    span = Span.of(torch.eye(4, dtype=torch.float64)[:, :2])
    tiny = 1e-9 * torch.eye(4, dtype=torch.float64)[:, 2:3]
    assert span.gain(tiny) == 1
    assert span.scaled_for([1e6 * torch.eye(4, dtype=torch.float64)]).gain(tiny) == 0
