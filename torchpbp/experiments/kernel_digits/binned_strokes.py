"""Pen strokes for models of discrete variables: each point becomes the number of its cell in a grid."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.datasets.digits import LARGEST, POINTS
from torchpbp.errors import DataWarning, RankWarning
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.graph.templates import hmm


class BinnedStrokes(nn.Module):
    """A hidden Markov model over the cells of a grid on the writing square, behind the sixteen coordinates.

    A point of which one coordinate is missing is missing. Log-evidence is the logarithm of the cells' probability, not a
    density; for comparing classes that makes no difference.

    Args:
        graph: over the coordinates; only its observables are used.
        learner: makes a discrete model for the graph of the hidden Markov model.
        states: hidden states.
        cells: of the grid, along each side.
    """

    def __init__(
        self, graph: LatentGraph, learner: Callable[[LatentGraph], Any], states: int = 16, cells: int = 8
    ) -> None:
        super().__init__()
        self.graph, self.cells = graph, cells
        self.model = learner(hmm(POINTS, states, cells * cells))

    def fit(self, data: Mapping[str, Tensor]) -> BinnedStrokes:
        """Learn from rows of coordinates."""
        with warnings.catch_warnings():
            # With few rows most cells are empty: ranks are low, and some points stay in one cell.
            warnings.simplefilter("ignore", RankWarning)
            warnings.simplefilter("ignore", DataWarning)
            self.model.fit(self.codes(data))
        return self

    def log_evidence(self, evidence: Mapping[str, Tensor]) -> Tensor:
        """(rows,) log-probability of the points' cells.

        Args:
            evidence: all sixteen coordinates; NaN where missing.
        """
        return torch.as_tensor(self.model.log_evidence(self.codes(evidence)))

    def codes(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Observable of each point -> (rows,) int64 numbers of cells; -1 where missing."""
        codes = {}
        for t in range(1, POINTS + 1):
            point = torch.stack([torch.as_tensor(columns[f"{axis}{t}"]).double() for axis in "xy"])
            x, y = (point / LARGEST * self.cells).nan_to_num().clamp(0, self.cells - 1).long()
            codes[f"x{t}"] = torch.where(point.isnan().any(dim=0), -1, x * self.cells + y)
        return codes
