"""EM step for step against pgmpy's, from the same start."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("pgmpy")

from benchmarks.networks import arrays, loopy_eight, tables_of
from benchmarks.other_libraries.with_pgmpy import pgmpy_em
from torchpbp import EM, DiscreteNetwork


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_tables_agree_after_each_iteration(iterations: int) -> None:
    graph = loopy_eight()
    truth, start = DiscreteNetwork.random(graph, seed=1), DiscreteNetwork.random(graph, seed=2)
    data = truth.sample(40, seed=3)
    work = pgmpy_em(tables_of(start), tuple(graph.latent), arrays(data), iterations)
    expected = {v: torch.from_numpy(table) for v, table in work.answer(work.run()).items()}
    settings = {"max_steps": iterations, "relative_tolerance": 0.0, "prior": 0.0, "progress": False}
    model = EM(graph, restarts=1, start=start, **settings).fit(data).match_states(DiscreteNetwork(graph, expected))
    assert expected.keys() == model.network.cpts.keys()
    for name, table in model.network.cpts.items():
        torch.testing.assert_close(table, expected[name], rtol=0.0, atol=1e-6, msg=name)
        assert float((start.cpts[name] - table).abs().max()) > 1e-3  # both have moved
