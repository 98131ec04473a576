"""One regression in two forms: one-hot features give what tables give."""

import pytest
import torch

from torchpbp import PBP, DiscreteNetwork, Ridge, templates
from torchpbp.features import OneHot
from torchpbp.learning.stage1 import Penalties
from torchpbp.learning.two_stage import learn
from torchpbp.moments.feature_moments import FeatureMoments
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.table_moments import TableMoments


@pytest.mark.parametrize("name", ["hmm", "diamond", "loopy"])
@torch.no_grad()
def test_one_hot_feature_moments_give_the_same_operators_as_tables(name):
    graph = {
        "hmm": templates.hmm(5, states=2, observed_states=3),
        "diamond": templates.diamond(observed_states=3),
        "loopy": templates.loopy_network(observed_states=3),
    }[name]
    data = DiscreteNetwork.random(graph, seed=0, concentration=2.0).sample(4_000, seed=1)
    tables, features = (PBP(graph).fit(data) for _ in range(2))
    plan = tables.plan
    counts = JointTables(Ridge().required_tables(plan), tables.states)
    counts.add(torch.stack(list(data.values())))
    batches = [{v: x[i : i + 900] for v, x in data.items()} for i in range(0, 4_000, 900)]
    maps = {v: OneHot(s) for v, s in tables.states.items()}
    pairs = Ridge().required_pairs(plan)
    moments = FeatureMoments(maps, lambda: iter(batches), pairs, 1e-15, None, Ridge().required_separators(plan))
    # Tables scale instruments before they penalise, features do not: they agree without penalties only.
    results = [learn(plan, m, Ridge(), Penalties(0.0, 0.0)) for m in (TableMoments(counts), moments)]
    assert moments.rows == 4_000
    for model, solution in zip((tables, features), results, strict=True):
        model.operators.set_tree(solution.tree)
        model.operators.floor.fill_(1e-15)
    for a, b in zip(results[0].strengths, results[1].strengths, strict=True):
        assert torch.allclose(a, b, atol=1e-9)
    evidence = {
        v: torch.randint(-1, 3, (40,), generator=torch.Generator().manual_seed(i)) for i, v in enumerate(graph.observed)
    }
    assert torch.allclose(tables.log_evidence(evidence), features.log_evidence(evidence), atol=1e-8)
    a, b = tables.posteriors(evidence, raw=True), features.posteriors(evidence, raw=True)
    for v in a:
        usual = a[v].abs().amax(dim=1) < 5  # a sum near 0 divides rounding errors
        assert usual.float().mean() > 0.9
        assert torch.allclose(a[v][usual], b[v][usual], atol=1e-8), v
