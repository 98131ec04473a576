"""One model, three forms: joint tables, kernel features and Gram matrices must give the same answers."""

import numpy as np
import pytest
import torch

from tests.models.continuous.gaussian_chain import QUERIES, gaussian_chain, kalman_error
from tests.models.structures import STRUCTURES
from tests.models.test_population_exactness import patterns
from tests.uncompressed import fit_uncompressed
from torchpbp import PBP, RBF, Continuous, DiscreteNetwork, KernelPBP, LatentGraph, Nystroem, templates

NAN = float("nan")


# -- delta kernels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRUCTURES)
def test_delta_kernels_give_the_discrete_model(name):
    """Uncompressed PBP on one-hot features and Gram PBP on delta kernels are the same regression."""
    graph, ridge = STRUCTURES[name], (0.5, 0.2)
    data = DiscreteNetwork.random(graph, seed=1).sample(150, seed=2)
    tables = fit_uncompressed(graph, data, ridge)
    gram = KernelPBP(graph, plan=tables.plan, ridge=ridge, positive=False, dtype=torch.float64).fit(data)
    assert gram.tree.cliques == tables.tree.cliques
    evidence = patterns(graph, 40, 3)
    with torch.no_grad():
        sign, log_size = tables.log_evidence(evidence, raw=True)
        positive = sign > 0
        assert positive.sum() > 20
        assert torch.allclose(gram.log_evidence(evidence)[positive], log_size[positive], atol=1e-8, rtol=0)
        assert (gram.log_evidence(evidence)[~positive] < -500).all()  # the smallest number of float64
        for v in graph.observed:
            given = {u: x for u, x in evidence.items() if u != v}
            raw = tables.posterior(v, given, raw=True)
            # A sum below 0 would turn signs around; both models then have nothing to say.
            usable = (tables.log_evidence(given, raw=True)[0] > 0).expand(len(raw))
            clipped = raw.clamp(min=0) / raw.clamp(min=0).sum(dim=1, keepdim=True)
            assert torch.allclose(gram.posterior(v, given)[usable], clipped[usable], atol=1e-8, rtol=0), v


def test_soft_evidence_on_delta_kernels():
    graph, ridge = STRUCTURES["diamond"], (0.5, 0.2)
    data = DiscreteNetwork.random(graph, seed=1).sample(400, seed=2)
    tables = fit_uncompressed(graph, data, ridge)
    gram = KernelPBP(graph, plan=tables.plan, ridge=ridge, positive=False, dtype=torch.float64).fit(data)
    weights = torch.rand(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    evidence = {"a1": weights, "c1": torch.tensor([0, 1, 2, 3, -1, -1])}
    with torch.no_grad():
        assert torch.allclose(gram.log_evidence(evidence), tables.log_evidence(evidence, raw=True)[1], atol=1e-8)
        for v in ("d1", "a1"):
            raw = tables.posterior(v, evidence, raw=True)
            assert (raw > 0).all()
            assert torch.allclose(gram.posterior(v, evidence), raw, atol=1e-8)


# -- kernel features -------------------------------------------------------------------------------------------------


class OnePlusRBF(RBF):
    """1 + k: the kernel whose features are (1, z), as kernel maps have them."""

    def profile(self, distance):
        return 1 + super().profile(distance)


def chain(states):
    graph = templates.hmm(4, states=states, observed_states=3)
    domains = {**graph.variables, **{f"x{t}": Continuous() for t in (1, 2, 4)}}
    return LatentGraph(graph.edges, domains, graph.latent)  # x3 stays discrete


def draw(rows, seed, rounded=None):
    """A hidden linear chain; x3 is a coarse view of it, the others noisy ones, possibly rounded to few values."""
    rng = np.random.default_rng(seed)
    hidden, table = rng.normal(size=rows), {}
    for t in range(1, 5):
        hidden = 0.8 * hidden + 0.6 * rng.normal(size=rows)
        x = hidden + 0.5 * rng.normal(size=rows)
        if rounded is not None:
            x = np.round(x / rounded) * rounded
        table[f"x{t}"] = torch.from_numpy(np.digitize(x, [-0.5, 0.5]) if t == 3 else x)
    return table


EVIDENCE = {
    "x1": torch.tensor([0.0, 1.0, NAN, -1.5, NAN], dtype=torch.float64),
    "x4": torch.tensor([0.5, NAN, -1.0, -0.5, NAN], dtype=torch.float64),
    "x3": torch.tensor([1, -1, 0, -1, -1]),
}


def finite_and_gram(landmarks, data, width=0.8, ridge=(0.5, 0.3)):
    """PBP on Nyström features, and the Gram model of the kernel that they approximate.

    Features (1, z) belong to the kernel 1 + k, evidence (0, z) to k: so the Gram model learns with the one and is asked
    with the other.
    """
    finite = fit_uncompressed(chain(3), data, ridge, rank=3, features=Nystroem(landmarks, bandwidth=width))
    gram = KernelPBP(
        chain(3),
        kernel=OnePlusRBF(),
        bandwidth=width,
        ridge=ridge,
        plan=finite.plan,
        positive=False,
        dtype=torch.float64,
    ).fit(data)
    gram.kernel = RBF()
    assert gram.tree.cliques == finite.tree.cliques
    assert gram.tree.parent == finite.tree.parent
    return finite, gram


@torch.no_grad()
def disagreement(finite, gram):
    """Largest differences in log-evidence, density, mean and probability."""
    sign, log_size = finite.log_evidence(EVIDENCE, raw=True)
    assert (sign > 0).all()
    at = torch.linspace(-2, 2, 41, dtype=torch.float64)
    a, b = finite.posterior("x2", EVIDENCE), gram.posterior("x2", EVIDENCE)
    given = {v: x for v, x in EVIDENCE.items() if v != "x3"}
    raw = finite.posterior("x3", given, raw=True)
    pairs = [
        (log_size, gram.log_evidence(EVIDENCE)),
        (a.prob(at), b.prob(at)),
        (a.mean, b.mean),
        (raw.clamp(min=0) / raw.clamp(min=0).sum(dim=1, keepdim=True), gram.posterior("x3", given)),
    ]
    return [float((x - y).abs().max()) for x, y in pairs]


def test_landmarks_at_all_values_give_the_gram_model():
    data = draw(120, 0, rounded=0.5)
    assert max(len(data[v].unique()) for v in ("x1", "x2", "x4")) <= 16
    log_evidence, density, mean, probability = disagreement(*finite_and_gram(16, data))
    assert log_evidence < 1e-6
    assert density < 1e-6
    assert probability < 1e-6
    assert mean < 1e-4  # read off a slightly penalised regression of the value on its features


def test_nystroem_and_gram_answers_agree_as_landmarks_grow():
    data = draw(120, 0)
    errors = [disagreement(*finite_and_gram(m, data)) for m in (3, 6, 12, 40)]
    for few, some, many, most in zip(*errors, strict=True):
        assert few > 2 * some > 4 * many
        assert many > most
        assert most < 1e-3


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
