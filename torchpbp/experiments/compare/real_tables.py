"""Small tables of real data, from the data sets that come with the package, which their graphs do not fit exactly."""

from __future__ import annotations

from torch import Tensor

from torchpbp.datasets import load_digits, load_splice
from torchpbp.graph import templates
from torchpbp.graph.latent_graph import LatentGraph

LARGEST_COORDINATE = 100
"""Of the points of pen strokes."""
FIRST_EXON_SITE = 30
"""Position at which splice junctions may be."""


def real_tables() -> dict[str, tuple[LatentGraph, dict[str, Tensor]]]:
    """name -> graph and rows of its observables.

    Points of pen strokes, of writers that the test rows of the data set are from, in three or four levels: classes of strokes, a
    chain along the stroke, and a tree of its two halves. Letters around splice junctions, of which all are known: classes of
    junctions, and a chain along the sequence.
    """
    strokes, letters = load_digits().test_x.long(), load_splice().x.long()
    across, heights = strokes[:, 0::2], strokes[:, 1::2]
    window = letters[:, FIRST_EXON_SITE - 3 : FIRST_EXON_SITE + 3]
    window = window[(window >= 0).all(dim=1)][:1_000]
    chosen = {
        "strokes_classes": (templates.naive_bayes(8, states=4, observed_states=3), _levels(across[:1_000], 3)),
        "strokes_chain": (templates.hmm(8, states=2, observed_states=4), _levels(heights[1_000:2_000], 4)),
        "strokes_tree": (
            templates.latent_tree(1, 2, states=3, observed_states=3, leaves=4),
            _levels(heights[2_000:3_000], 3),
        ),
        "junctions_classes": (templates.naive_bayes(6, states=3, observed_states=4), window),
        "junctions_chain": (templates.hmm(6, states=2, observed_states=4), window),
    }
    return {
        name: (graph, dict(zip(graph.observed, columns.unbind(dim=1), strict=True)))
        for name, (graph, columns) in chosen.items()
    }


def _levels(points: Tensor, count: int) -> Tensor:
    """Coordinates in so many levels of the same width."""
    return points * count // (LARGEST_COORDINATE + 1)
