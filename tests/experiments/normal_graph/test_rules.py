"""Graphs learned by rules: repeats learned together, and the measures of the truth."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from torchpbp import NormalGraphLearner
from torchpbp.baselines.normal_graph import RULES
from torchpbp.experiments.grid import Run
from torchpbp.experiments.normal_graph.one_embedding import embedding_graph, embedding_network
from torchpbp.experiments.normal_graph.rules import Case, learn_cases, truth_line


def test_repeats_learned_together_are_those_learned_alone() -> None:
    """From random matrices, so that the start does not depend on the rows."""
    truth = embedding_network()
    samples = [truth.sample(50, seed=s) for s in range(3)]
    mask = (torch.arange(50) < 30).double()
    options: dict[str, Any] = {"start": "parameters", "epochs": 6}
    seeds = [s * 1_000_003 for s in (7, 8, 9)]  # of the first start of learners with seeds 7, 8 and 9
    case = Case("c", embedding_graph(3), samples, seeds, mask=mask, history=True, options={"epochs": 6})
    model = partial(NormalGraphLearner, start="parameters")
    found = learn_cases("test", model, [case], Run())["c"]
    lines = pd.DataFrame(found.lines)
    for rule in RULES:
        for i, sample in enumerate(samples):
            alone = NormalGraphLearner(embedding_graph(3), rule=rule, seed=7 + i, progress=False, **options)
            line = lines[(lines["rule"] == rule) & (lines["repeat"] == i)].iloc[0]
            (course,) = alone.fit(sample, mask).runs
            assert line["log_evidence"] == pytest.approx(course.log_evidence[-1])
            assert line["test_aggregated"] == pytest.approx(course.held_out_aggregated[-1])
            assert found.courses[rule][i] == pytest.approx(np.array(course.held_out_aggregated))
            if i == 0:  # hidden states of a fitted learner are in another order
                entries = np.sort(alone.thetas["X3"].flatten().numpy())
                assert np.sort(found.coefficients[rule]["X3"][-1]) == pytest.approx(entries)


def test_the_measures_of_the_truth() -> None:
    truth = embedding_network()
    data = truth.sample(20, seed=1)
    line = truth_line("c", 0, truth, data, (torch.arange(20) < 5).double())
    assert line["log_evidence"] == pytest.approx(float(truth.log_evidence(data)[:5].sum()))
    assert truth_line("c", 0, truth, data, None)["log_evidence"] == pytest.approx(float(truth.log_evidence(data).sum()))
    total = 0.0
    for row in range(5, 20):
        for v in data:
            others = {u: x[row : row + 1] for u, x in data.items() if u != v}
            total += math.log(float(truth.posterior(v, others)[0, int(data[v][row])]))
    assert line["test_aggregated"] == pytest.approx(total)
