"""Five hidden variables above three observables."""

from __future__ import annotations

from torchpbp import DiscreteNetwork, NormalGraphLearner
from torchpbp.experiments.normal_graph.deep_graph import deep_graph


def test_the_deep_graph_has_the_sizes_of_the_paper_and_can_be_learned() -> None:
    graph = deep_graph()
    assert graph.parents("Y2") == ("S1", "S2")
    assert graph.parents("X3") == ("Y2", "S3")
    assert graph.observed == ("X1", "X2", "X3")
    model = NormalGraphLearner(graph, epochs=2, progress=False)
    fixed = {name: tuple(b.fixed.shape) for name, b in model.converted.graph.blocks.items() if b.fixed is not None}
    assert sorted(fixed.values()) == [(2, 8), (3, 12), (4, 8), (4, 12)]
    model.fit(DiscreteNetwork.random(graph, seed=1).sample(50, seed=2))
    assert len(model.thetas) == 8
