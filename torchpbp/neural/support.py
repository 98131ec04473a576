"""The closed-form half of a training step: moments of the support rows, and the operators solved from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from torchpbp.distributed import shared_sums
from torchpbp.inference.leaf_features import LeafFeatures, LeafReader, Statistics
from torchpbp.inference.operator_tree import OperatorTree
from torchpbp.learning.net_fitting import penalties_of
from torchpbp.learning.net_moments import BatchRows, ClassLayout, fully_observed_rows
from torchpbp.learning.net_stage1 import NetStage1
from torchpbp.learning.stage1 import Penalties
from torchpbp.learning.two_stage import solve
from torchpbp.models.pbp import PBP
from torchpbp.precision import full_precision


class Solved(NamedTuple):
    """Result of the closed-form stages of a training step.

    Args:
        tree: operators, with a class dimension if the model has a condition variable.
        statistics: means and spreads that standardise encoder outputs.
        grams: Gram matrix C of each encoded leaf.
        prior: (classes,) shares of the classes.
        error: loss of stage 1, which trains the instrument nets.
    """

    tree: OperatorTree
    statistics: Statistics
    grams: dict[str, Tensor]
    prior: Tensor
    error: Tensor


def solve_support(
    model: PBP, table: Mapping[str, Tensor], seen: Tensor, shown: Tensor, context: Tensor, through: bool = True
) -> Solved:
    """Solve both stages from the support rows of a training step.

    Args:
        model: with nets.
        table: the support rows.
        seen: (rows, leaves) mask of the observed leaves.
        shown: (rows, leaves) mask of the leaves shown to instrument nets.
        context: (rows, leaves) mask of the leaves shown to context encoders.
        through: let gradients pass; otherwise operators are constants.
    """
    nets, reader, condition = model.nets, model.operators.reader, model.condition
    encoded = reader.encode(table, seen, context)
    with full_precision(seen.device):
        statistics = reader.batch_statistics(encoded, seen)
        leaves = reader.features(table, encoded, seen, statistics)
        complete = fully_observed_rows(nets, leaves)
        labels = None if condition is None else table[condition]
        layout = ClassLayout(labels, model.operators.classes or 1, len(seen), seen.device)
        messages = nets.messages(leaves, complete)
        instruments = nets.instrument_features(leaves, shown, complete)
        rows = BatchRows(nets, leaves, messages, instruments, layout, complete)
        sums = rows.sums().over_processes()
        moments, grams, penalties = sums.averages(), _grams(reader, leaves), penalties_of(nets)
        if not through:
            moments, penalties = [m.detach() for m in moments], Penalties(*(p.detach() for p in nets.log_ridge.exp()))
        tree = solve(nets.plan, NetStage1(nets, moments, condition is not None), penalties).tree
        counts = sums.counts[-1] + 1e-3
        return Solved(tree, statistics, grams, counts / counts.sum(), rows.regression_error())


def _grams(reader: LeafReader, leaves: LeafFeatures) -> dict[str, Tensor]:
    """Gram matrix C of each encoded leaf."""
    result: dict[str, Tensor] = {}
    every = shared_sums([x for pair in reader.gram_sums(leaves) for x in pair])
    for i, names in enumerate(reader.equal_sizes()):
        total, count = every[2 * i], every[2 * i + 1][:, None, None]
        # Leaves without support rows have the identity; any positive definite C would do.
        eye = torch.eye(total.shape[-1], dtype=total.dtype, device=total.device)
        result |= zip(names, torch.where(count > 0, total / count.clamp(min=1), eye).unbind(), strict=True)
    return result
