"""Bootstrap of a two-stage fit: rows are resampled with replacement, and the models of many replicates solved as one batch.

The counts of a model are overlapping marginals of the same rows. Resampling each table separately would lose their
covariance, so the distinct rows are resampled, with multinomial weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchpbp.contract.intervals import Interval
from torchpbp.errors import DataWarning, StructureError, warn_caller
from torchpbp.inference.operator_tree import OperatorTree, variable_estimate
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.inputs.evidence import Evidence
from torchpbp.learning.fitting import CountFitter
from torchpbp.moments.distinct_rows import numbered
from torchpbp.moments.joint_tables import JointTables

if TYPE_CHECKING:
    from torchpbp.models.pbp import PBP

ENTRIES = 1 << 22
"""Largest number of counts, weights and answers of the replicates that are solved at once."""
SAME = 1e-3
"""Largest difference, absolute plus relative, between answers of a model and of a fit to the same rows."""
MOST = 128
"""Largest number of replicates that are solved at once; more are not faster."""


class Bootstrap:
    """Replicates of a model without classes.

    Args:
        model: fitted to the data.
        fitter: the model's fitter from counts.
        data: the rows.
        replicates: bootstrap samples.
        seed: of their draws.
    """

    def __init__(self, model: PBP, fitter: CountFitter, data: DataLike, replicates: int, seed: int) -> None:
        if model.condition is not None:
            raise StructureError(
                f"interval: a model with condition={model.condition!r} has a tree per class, which is not bootstrapped. Use a "
                "graph with the variable in it."
            )
        self.model, self.fitter, self.data = model, fitter, data
        self.replicates, self.seed = replicates, seed

    @torch.no_grad()
    def interval(self, names: tuple[str, ...], evidence: Evidence, level: float) -> Interval:
        """Percentile intervals of a model's answers.

        Args:
            names: of the queried variables; empty for the log-evidence.
            evidence: checked.
            level: of the intervals.
        """
        net = self.model.operators
        evidence = net.prepare(evidence)
        estimate = self.answers(net.tree, names, evidence)
        refitted, *values = [self.answers(tree, names, evidence) for tree in self.trees(estimate.numel())]
        if not torch.allclose(refitted[0], estimate, SAME, SAME):
            warn_caller(
                "interval: the answers of the model differ from those of a fit to these rows, because its operators were refined, "
                "trained or learned from other rows. Intervals are those of the fit.",
                DataWarning,
            )
        tails = estimate.new_tensor([(1 - level) / 2, (1 + level) / 2])
        answers = torch.cat(values)
        lower, upper = answers.quantile(tails, dim=0) if answers.numel() else (estimate, estimate)
        return Interval(estimate, lower, upper)

    def trees(self, answers: int) -> Iterator[OperatorTree]:
        """Operator trees of the rows themselves and of bootstrap samples, with a leading dimension of replicates.

        Args:
            answers: number of answers of one replicate.
        """
        model, fitter = self.model, self.fitter
        reader = ColumnReader(model.evidence_domains(), model.labels, missing=True, quiet=True, device=model.device)
        codes = torch.cat(list(reader.batches(self.data)), dim=1)
        rows = codes.shape[1]
        missing = [v for v, column in zip(fitter.states, codes, strict=True) if bool((column < 0).any())]
        tables = JointTables(fitter.required_tables([model.plan]), fitter.states, missing)
        wide = codes.new_tensor(list(fitter.states.values())).unsqueeze(1)
        codes = torch.where(codes < 0, wide, codes)
        number, firsts = numbered(list(codes))
        counts = number.bincount().cpu().numpy()
        counting = _counting(torch.cat(list(tables.layout.cell_numbers(codes[:, firsts]))), tables.layout.cells)
        step = max(1, min(MOST, ENTRIES // (sum(counting.shape) + answers)))
        generator = np.random.default_rng(self.seed)
        tables.rows = float(rows)
        for start in (-1, *range(0, self.replicates, step)):
            size = min(step, self.replicates - start)
            weights = counts[None] if start < 0 else generator.multinomial(rows, counts / rows, size=size)
            tables.counts = counting @ torch.from_numpy(weights).to(codes.device, torch.float64).T
            yield fitter.solve(model.plan, tables)[0].tree

    def answers(self, tree: OperatorTree, names: tuple[str, ...], evidence: Evidence) -> Tensor:
        """(replicates, rows, states…) posteriors, or (replicates, rows) log-evidence, of a tree with or without replicates."""
        net = self.model.operators
        if not names:
            return net.mass(evidence, tree).log(net.floor)
        if len(names) > 1:
            return net.joint(names, evidence, tree=tree)
        (name,) = names
        leaf = tree.plan.tree.leaf_of[name]
        group = tree.plan.tree.leaf_observables[leaf]
        table = tree.estimates(evidence, [leaf])[leaf]
        leading, states = table.shape[: -len(group)], net.observables[name].map.dim
        repeated = evidence.rows(torch.arange(evidence.batch, device=table.device).repeat(leading[:-1].numel()))
        zetas = [net.observables[v].zeta(repeated, table) for v in group]
        estimate = variable_estimate(table.reshape(-1, *table.shape[len(leading) :]), group.index(name), zetas)
        return net.distribution(name, estimate, repeated).reshape(*leading, states)


def _counting(cells: Tensor, size: int) -> Tensor:
    """(size, rows) sparse matrix of zeros and ones that maps weights of rows to counts.

    Args:
        cells: (tables, rows) cell of each table in which a row is counted.
        size: number of cells.
    """
    flat = cells.flatten()
    starts = torch.cat([flat.new_zeros(1), flat.bincount(minlength=size).cumsum(0)])
    rows = flat.argsort(stable=True) % cells.shape[1]
    ones = torch.ones(len(flat), dtype=torch.float64, device=flat.device)
    shape = (size, cells.shape[1])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(starts, rows, ones, shape, device=flat.device, check_invariants=False)
