"""One model in several forms: regression on features, with landmarks and on Gram matrices must give the same answers."""

import numpy as np
import pytest
import torch

from tests.models.continuous.gaussian_chain import QUERIES, gaussian_chain, kalman_error
from tests.models.kernel.primal import PrimalModel, weights
from tests.models.structures import STRUCTURES
from tests.models.test_population_exactness import patterns
from torchpbp import PBP, Continuous, DiscreteNetwork, KernelPBP, LatentGraph, Nystroem, templates

# -- delta kernels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRUCTURES)
def test_delta_kernels_give_regression_on_one_hot_features(name):
    graph, ridge = STRUCTURES[name], (0.5, 0.2)
    data = DiscreteNetwork.random(graph, seed=1).sample(150, seed=2)
    gram = KernelPBP(graph, plan=PBP(graph).plan, ridge=ridge, positive=False, dtype=torch.float64).fit(data)
    primal = PrimalModel(gram, data)
    evidence = patterns(graph, 40, 3)
    mass = primal.mass(weights(evidence, primal.states))
    positive = mass > 0
    assert positive.sum() > 20
    assert torch.allclose(gram.log_evidence(evidence)[positive], mass[positive].log(), atol=1e-8, rtol=0)
    assert (gram.log_evidence(evidence)[~positive] < -500).all()  # the smallest number of float64
    for v in graph.observed:
        given = {u: x for u, x in evidence.items() if u != v}
        known = weights(given, primal.states)
        raw = primal.posterior(v, known)
        usable = (primal.mass(known) > 0).expand(len(raw))  # a sum below 0 would turn signs around
        clipped = raw.clamp(min=0) / raw.clamp(min=0).sum(dim=1, keepdim=True)
        assert torch.allclose(gram.posterior(v, given)[usable], clipped[usable], atol=1e-8, rtol=0), v


def test_soft_evidence_on_delta_kernels():
    graph = STRUCTURES["diamond"]
    data = DiscreteNetwork.random(graph, seed=1).sample(400, seed=2)
    gram = KernelPBP(graph, ridge=(0.5, 0.2), positive=False, dtype=torch.float64).fit(data)
    primal = PrimalModel(gram, data)
    soft = torch.rand(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    evidence = {"a1": soft, "c1": torch.tensor([0, 1, 2, 3, -1, -1])}
    known = weights(evidence, primal.states)
    assert torch.allclose(gram.log_evidence(evidence), primal.mass(known).log(), atol=1e-8)
    raw = primal.posterior("d1", known)
    assert (raw > 0).all()
    assert torch.allclose(gram.posterior("d1", evidence), raw, atol=1e-8)
    own = primal.posterior("a1", {"c1": known["c1"]}) * soft
    assert torch.allclose(gram.posterior("a1", evidence), own / own.sum(dim=1, keepdim=True), atol=1e-8)


# -- kernel features -------------------------------------------------------------------------------------------------


def chain(states):
    graph = templates.hmm(4, states=states, observed_states=3)
    domains = {**graph.variables, **{f"x{t}": Continuous() for t in (1, 2, 4)}}
    return LatentGraph(graph.edges, domains, graph.latent)  # x3 stays discrete


def draw(rows, seed):
    """A hidden linear chain; x3 is a coarse view of it, the others noisy ones."""
    rng = np.random.default_rng(seed)
    hidden, table = rng.normal(size=rows), {}
    for t in range(1, 5):
        hidden = 0.8 * hidden + 0.6 * rng.normal(size=rows)
        x = hidden + 0.5 * rng.normal(size=rows)
        table[f"x{t}"] = torch.from_numpy(np.digitize(x, [-0.5, 0.5]) if t == 3 else x)
    return table


def test_gram_models_agree_as_landmarks_grow():
    data, new = draw(200, 0), draw(50, 1)
    evidence = {v: new[v] for v in ("x1", "x3", "x4")}
    settings = {"bandwidth": 0.8, "positive": False, "dtype": torch.float64}
    exact = KernelPBP(chain(None), **settings).fit(data)
    errors = []
    for landmarks in (10, 40, 160, 200, 500):
        model = KernelPBP(chain(None), landmarks=landmarks, **settings).fit(data)
        mean = (model.posterior("x2", evidence).mean - exact.posterior("x2", evidence).mean).square().mean().sqrt()
        logs = (model.log_evidence(evidence) - exact.log_evidence(evidence)).abs().median()
        errors.append((float(mean), float(logs)))
    for few, some, many, whole, more in zip(*errors, strict=True):
        assert few > some > 2 * many
        assert many < 0.02
        assert max(whole, more) < 1e-12  # all rows: no approximation is made


def test_compressed_features_and_product_kernels_approach_each_other_with_rows():
    """Their kernels differ (1 + k against k) and one is cut to rank 4: only the limit of many rows is the same."""
    new = draw(300, 77)
    evidence = {v: new[v] for v in ("x1", "x3", "x4")}
    usual = (new["x1"].abs() < 1.5) & (new["x4"].abs() < 1.5)
    gaps = []
    for rows in (100, 1_000):
        squares = []
        for seed in (1, 2, 3):
            data = draw(rows, seed)
            with torch.no_grad():
                a = PBP(chain(4), rank=4, features=Nystroem(20, bandwidth=0.8)).fit(data).posterior("x2", evidence)
                gram = KernelPBP(chain(None), bandwidth=0.8, positive=False, dtype=torch.float64).fit(data)
                b = gram.posterior("x2", evidence)
            squares.append(float((a.mean - b.mean)[usual].square().mean()))
        gaps.append(np.sqrt(np.mean(squares)))
    assert gaps[1] < gaps[0] / 2
    assert gaps[1] < 0.08


def test_a_linear_gaussian_chain_recovers_the_smoothers_means():
    """As for finite features: error falls with rows, towards the means for evidence blurred by the kernel's width.

    Messages are left as they are. Clipped at 0 they would stop at an error of 0.09, however many the rows.
    """
    graph = templates.hmm(5, states=None, observed_states=2)
    graph = LatentGraph(graph.edges, {**graph.variables, **{f"x{t}": Continuous() for t in range(1, 6)}}, graph.latent)
    few, many = (
        KernelPBP(graph, bandwidth=1.0, landmarks=60, positive=False, dtype=torch.float64).fit(gaussian_chain(n, 0))
        for n in (300, 4_000)
    )
    before, after = ([kalman_error(m, query, seen, blur=1.0) for query, seen in QUERIES] for m in (few, many))
    assert max(after) < 0.06, after
    assert sum(after) < sum(before) / 2, (before, after)  # 13 times the rows
