"""One regression in two forms: one-hot features give what tables give."""

import pytest
import torch

from torchpbp import PBP, DiscreteNetwork, templates
from torchpbp.features import OneHot
from torchpbp.learning.linear import learn, required_pairs, required_scopes
from torchpbp.moments.feature_moments import FeatureMoments
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.table_moments import TableMoments


@pytest.mark.parametrize("name", ["hmm", "diamond", "loopy"])
@pytest.mark.parametrize("compressed", [True, False])
@torch.no_grad()
def test_one_hot_feature_moments_give_the_same_operators_as_tables(name, compressed):
    graph = {
        "hmm": templates.hmm(5, states=2, observed_states=3),
        "diamond": templates.diamond(observed_states=3),
        "loopy": templates.loopy_network(observed_states=3),
    }[name]
    data = DiscreteNetwork.random(graph, seed=0, concentration=2.0).sample(4_000, seed=1)
    tables, features = (PBP(graph, compressed=compressed).fit(data) for _ in range(2))
    tree, specification = tables.tree, tables.specification
    counts = JointTables(required_scopes(tree, specification), tables.states)
    counts.add(torch.stack(list(data.values())))
    batches = [{v: x[i : i + 900] for v, x in data.items()} for i in range(0, 4_000, 900)]
    maps = {v: OneHot(s) for v, s in tables.states.items()}
    moments = FeatureMoments(maps, lambda: iter(batches), required_pairs(specification), whitening=1e-15)
    # Tables scale instruments before they penalise, features do not: compressed models agree without penalties only.
    penalties = (0.0, 0.0) if compressed else (1e-3, 1e-2)
    results = [learn(tree, specification, m, *penalties, compressed) for m in (TableMoments(counts), moments)]
    assert moments.rows == 4_000
    for model, learned in zip((tables, features), results, strict=True):
        for operator, weight in zip(model.operators, learned.operators[1:], strict=True):
            operator.weight.copy_(weight)
        model.root.weight.copy_(learned.root)
    if not compressed:
        for a, b in zip(tables.parameters(), features.parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-10)
    for a, b in zip(results[0].strengths, results[1].strengths, strict=True):
        assert torch.allclose(a, b, atol=1e-9)
    evidence = {
        v: torch.randint(-1, 3, (40,), generator=torch.Generator().manual_seed(i)) for i, v in enumerate(graph.observed)
    }
    for model in (tables, features):
        model.floor.fill_(1e-15)
    assert torch.allclose(tables.log_evidence(evidence), features.log_evidence(evidence), atol=1e-8)
    a, b = tables.posteriors(evidence, raw=True), features.posteriors(evidence, raw=True)
    for v in a:
        usual = a[v].abs().amax(dim=1) < 5  # a sum near 0 divides rounding errors
        assert usual.float().mean() > 0.9
        assert torch.allclose(a[v][usual], b[v][usual], atol=1e-8), v
