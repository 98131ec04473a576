"""The experiment on intervals counts what it says it counts."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from torchpbp import EM, MaximumLikelihood, templates
from torchpbp.contract.intervals import Interval, Intervals
from torchpbp.errors import StructureError
from torchpbp.experiments import run_coverage

GRAPHS = {"small": templates.naive_bayes(3, 2, 3), "chain": templates.hmm(3, 2, 3)}
TINY = {"rows": 200, "networks": 3, "questions": 4, "verbose": False}


class Fixed(MaximumLikelihood):
    """Gives the same interval for everything; nothing for the last row."""

    ends = (0.0, 1.0)

    def interval(self, query, evidence=None, level=0.95):
        estimate = self.network.posterior(query, evidence)
        lower, upper = (torch.full_like(estimate, end) for end in self.ends)
        lower[-1] = upper[-1] = torch.nan
        return Interval(estimate, lower, upper)


class Never(Fixed):
    ends = (2.0, 3.0)


@pytest.mark.parametrize(("learner", "coverage"), [(Fixed, 1.0), (Never, 0.0)])
def test_coverage_is_the_share_of_intervals_with_the_truth(learner, coverage, tmp_path):
    assert issubclass(learner, Intervals)
    metrics = run_coverage(lambda g: learner(g, progress=False), GRAPHS, output_dir=tmp_path, **TINY)
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert list(table["graph"]) == ["small", "chain", "small"]
    assert (table["asked"] == 4).all()
    assert ((table["answered"] >= 0) & (table["answered"] < 4)).all()
    answered = table.groupby("graph")["answered"].sum()
    for graph in GRAPHS:
        assert metrics[f"none/{graph}"] == pytest.approx(1 - answered[graph] / (4 * (table["graph"] == graph).sum()))
        if answered[graph]:
            assert metrics[f"width/{graph}"] == pytest.approx(1.0)
    assert metrics["coverage"] == coverage


def test_learners_without_intervals_raise():
    with pytest.raises(StructureError, match=r"coverage: EM has no intervals\. Choose"):
        run_coverage(lambda g: EM(g, restarts=1, max_steps=1, progress=False), GRAPHS, **TINY)
    with pytest.raises(StructureError, match="graphs: expected at least one graph"):
        run_coverage(MaximumLikelihood, {})
