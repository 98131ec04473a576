"""Two-stage regression with the model's own messages as instruments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.inference.messages import downward_pass, upward_pass
from torchpbp.inference.operators import operator_shapes
from torchpbp.inference.schedule import Schedule, build_schedule
from torchpbp.inputs.evidence import Evidence
from torchpbp.learning.linear import learn
from torchpbp.learning.messages import Messages
from torchpbp.learning.regressed import learn_regressed
from torchpbp.learning.regressor import Predictor, Regression, Regressor
from torchpbp.learning.two_stage import Learned
from torchpbp.moments.moments import Moments
from torchpbp.moments.rows import Rows
from torchpbp.planning.plan import Specification

BOUND = 4.0
"""Messages' dimensions have unit variance; a prediction beyond this is the noise of a division by nearly 0."""
ROWS_AT_ONCE = 8192


def learn_by_messages(
    tree: JunctionTree,
    specification: Specification,
    moments: Moments,
    rows: Rows,
    regressor: Messages,
    stage1: float,
    stage2: float,
) -> Learned:
    """Solve every separator, first with linear stage 1, then with the messages of the solution before.

    Args:
        tree: junction tree.
        specification: core groups, instruments of the first solution, and ranks.
        moments: all that linear stage 1 needs.
        rows: of this process, of discrete variables.
        regressor: says how often.
        stage1: ridge penalty λ of regressions on instruments.
        stage2: ridge penalty λ of S2.
    """
    dims = {v: m.dim for v, m in rows.maps.items()}
    schedule = build_schedule(tree, operator_shapes(tree, specification, dims))
    learned = learn(tree, specification, moments, stage1, stage2)
    for _ in range(regressor.rounds):
        given = _Given(outside_messages(learned, schedule, rows))
        learned = learn_regressed(tree, specification, moments, rows, given, stage1, stage2)
    return learned


def outside_messages(learned: Learned, schedule: Schedule, rows: Rows) -> list[Tensor]:
    """Predictions of each separator's message given all that lies outside of it in the same row.

    Returns:
        Per node, the root left out, (rows, message dim without the constant).
    """
    assert rows.states is not None
    parts = []
    for states in torch.split(rows.states, ROWS_AT_ONCE):
        evidence = Evidence(len(states), dict(zip(rows.names, states.unbind(dim=1), strict=True)))
        upward = upward_pass(learned.operators, schedule, evidence)
        downward = downward_pass(learned.operators, learned.root, schedule, upward)
        parts.append([_normalised(message) for message in downward if message is not None])
    return [torch.cat(found) for found in zip(*parts, strict=True)]


def _normalised(message: Tensor) -> Tensor:
    """E[θ | outside] of (rows, message dim) downward messages E[θ 1(outside)], whose first entry is P(outside)."""
    probability = message[:, :1]
    found = message[:, 1:] / probability.clamp(min=1e-6)
    return found.clamp(-BOUND, BOUND).masked_fill(probability <= 0, 0.0)


def distinct_rows(table: Mapping[str, Tensor], states: Mapping[str, int]) -> tuple[dict[str, Tensor], Tensor]:
    """Rows that differ, and how often each occurs.

    Args:
        table: name -> (rows,) int64 states.
        states: number of states of each variable.
    """
    if math.prod(states.values()) < 1 << 62:  # one number says it all
        codes = torch.zeros_like(next(iter(table.values())))
        for v, n in states.items():
            codes = codes * n + table[v]
        keys = codes.numpy()
    else:
        keys = torch.stack([table[v] for v in states], dim=1).numpy()
    _, first, counts = np.unique(keys, axis=0, return_index=True, return_counts=True)
    chosen = torch.from_numpy(first)
    return {v: table[v][chosen] for v in states}, torch.from_numpy(counts).double()


class _Given(Regressor, Predictor):
    """Predictions made before."""

    def __init__(self, predictions: list[Tensor]) -> None:
        self.predictions = predictions

    def fit(self, rows: Rows, regressions: Sequence[Regression], stage: str) -> Predictor:
        return self

    def predict(self, rows: Rows, positions: Tensor) -> list[Tensor]:
        return [p[positions] for p in self.predictions]

    def __repr__(self) -> str:
        return "Messages()"
