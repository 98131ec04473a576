"""Pen strokes for learners of discrete variables: each point becomes the number of its cell in a grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.datasets.digits import FEATURES, LARGEST, POINTS
from torchpbp.errors import DataError, StructureError
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.graph.templates import hmm, pen_strokes

ROUNDING = 1e-3
"""Coordinates may be outside the square by so much, as scaling and single precision can make them."""


class BinnedStrokes(nn.Module):
    """A hidden Markov model over the cells of a grid on the writing square, behind the sixteen coordinates.

    A point of which one coordinate is missing is missing; one outside the square raises. Log-evidence is the logarithm of
    the cells' probability, not a density; for comparing classes that makes no difference.

    Args:
        learner: makes a discrete model for a graph.
        states: hidden states.
        cells: of the grid, along each side.
    """

    def __init__(self, learner: Callable[[LatentGraph], Any], states: int = 16, cells: int = 8) -> None:
        super().__init__()
        if cells < 2:
            raise StructureError(f"cells: expected at least 2 along a side, got {cells}.")
        self.graph = pen_strokes(POINTS)
        self.cells = cells
        self.model = learner(hmm(POINTS, states, cells * cells))

    def fit(self, data: Mapping[str, Tensor]) -> BinnedStrokes:
        """Learn from complete rows of the sixteen coordinates."""
        codes = self.codes(data)
        if any(bool((c < 0).any()) for c in codes.values()):
            raise DataError("BinnedStrokes: expected complete rows to learn from, got missing coordinates.")
        self.model.fit(codes)
        return self

    def log_evidence(self, evidence: Mapping[str, Tensor]) -> Tensor:
        """(batch,) log-probability of the points' cells.

        Args:
            evidence: all sixteen coordinates; NaN where missing.
        """
        return torch.as_tensor(self.model.log_evidence(self.codes(evidence)))

    def codes(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Name of a point's observable -> (batch,) int64 numbers of cells; -1 where missing.

        Raises:
            DataError: columns are missing, or coordinates outside the writing square, which have no cell.
        """
        missing = [v for v in FEATURES if v not in columns]
        if missing:
            raise DataError(
                f"BinnedStrokes: expected the columns {', '.join(FEATURES)}; missing: {', '.join(missing)}."
            )
        codes = {}
        for t in range(1, POINTS + 1):
            x, y = (self._cells(f"{axis}{t}", columns[f"{axis}{t}"]) for axis in "xy")
            codes[f"x{t}"] = torch.where((x < 0) | (y < 0), -1, x * self.cells + y)
        return codes

    def _cells(self, name: str, column: Tensor) -> Tensor:
        """(batch,) number of the cell along one side; -1 where missing."""
        values = torch.as_tensor(column).double()
        outside = (values < -ROUNDING) | (values > LARGEST + ROUNDING)
        if bool(outside.any()):
            raise DataError(
                f"BinnedStrokes: expected coordinates from 0 to {LARGEST}, got {float(values[outside][0]):g} in column {name}. "
                "Scale the strokes to that square."
            )
        cell = (values / LARGEST * self.cells).nan_to_num(0.0).clamp(0, self.cells - 1).long()
        return torch.where(values.isnan(), -1, cell)
