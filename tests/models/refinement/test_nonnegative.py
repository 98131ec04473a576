"""The non-negative form: the same distribution, all operators probability tables."""

import itertools

import pytest
import torch

from torchpbp import PBP, Continuous, DiscreteNetwork, LatentGraph, templates
from torchpbp.errors import StructureError
from torchpbp.inputs import Evidence
from torchpbp.models.refinement.descent import MultiplicativeSteps, distinct_rows
from torchpbp.models.refinement.nonnegative import as_tables, extreme_messages, nonnegative_form
from torchpbp.models.refinement.objectives import hide, negative_share, random_cells
from torchpbp.models.refinement.walk import adopt

STRUCTURES = {
    "diamond": templates.diamond(2, 4, 2),
    "latent tree": templates.latent_tree(2, 2, 2, 4, 2),
    "loop with an observed parent": templates.loopy_network(2, 4),
    "latent class": templates.naive_bayes(4, 3, 4),
    "no latents": LatentGraph([("x", "y"), ("y", "z"), ("x", "w")], {"x": 2, "y": 3, "z": 4, "w": 2}),
    "single observable": templates.naive_bayes(1),
    "disconnected": LatentGraph(
        [("h", "a"), ("h", "b"), ("h", "c"), ("k", "d"), ("k", "e")],
        {"h": 2, "a": 3, "b": 2, "c": 4, "k": 2, "d": 3, "e": 3, "alone": 4},
        ["h", "k"],
    ),
}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def converted(model, data):
    rows = Evidence(len(next(iter(data.values()))), data)
    adopt(model, nonnegative_form(model, hide(rows, generator())[0]))
    return rows


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_population_keeps_its_distribution_and_every_operator_becomes_a_table(name):
    network = DiscreteNetwork.random(STRUCTURES[name], seed=4)
    model = PBP(network.graph).fit_population(network)
    rows = converted(model, network.sample(500, seed=5))
    root, *tables = (w.detach() for w in model.operator_tree.operators)
    assert all(bool((w >= 0).all()) for w in (root, *tables))
    assert float(root.sum()) == pytest.approx(1)
    assert all(torch.allclose(w.flatten(1).sum(dim=1), torch.ones(len(w)).to(w)) for w in tables)
    true = network.log_evidence(rows.hard)
    found = model.log_evidence(rows).detach()
    # What remains is the smoothing that keeps entries off 0, and what descent on negative mass leaves.
    assert float((true - found).mean()) < 5e-3


def test_a_noisy_model_loses_its_negative_mass():
    network = DiscreteNetwork.random(STRUCTURES["diamond"], seed=4)
    data = network.sample(60, seed=5)
    model = PBP(network.graph, ridge=(0.01, 0.01)).fit(data)
    cells = random_cells(model, 200, generator())
    with torch.no_grad():
        before = float(negative_share(model, cells))
        converted(model, data)
        after = float(negative_share(model, cells))
    assert before > 0.01
    assert after == 0
    assert model.diagnostics()["clipped_mass"].max() == 0


def test_probabilities_of_all_cells_sum_to_one_after_likelihood_steps():
    network = DiscreteNetwork.random(templates.diamond(2, 3, 1), seed=4)
    data = network.sample(300, seed=5)
    model = PBP(network.graph).fit(data)
    steps = MultiplicativeSteps(model, converted(model, data), 64, prior=1.0)
    for _ in range(3):
        steps.sweep()
    names = list(model.observables)
    cells = torch.cartesian_prod(*[torch.arange(model.states[v]) for v in names])
    total = model.log_evidence(dict(zip(names, cells.unbind(dim=1), strict=True))).exp().sum()
    assert float(total.detach()) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("batch_size", [50, 10_000])
def test_likelihood_steps_never_lower_the_likelihood_and_do_not_depend_on_batches(batch_size):
    network = DiscreteNetwork.random(STRUCTURES["latent tree"], seed=4)
    data = network.sample(400, seed=5)
    model = PBP(network.graph).fit(data)
    rows = converted(model, data)
    other = PBP(network.graph).fit(data)
    adopt(other, model.operator_tree.operators)
    steps = MultiplicativeSteps(model, rows, batch_size, prior=0.0)
    losses = [steps.sweep() for _ in range(6)]
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(losses))
    assert losses[-1] < losses[0] - 1e-3
    whole = MultiplicativeSteps(other, rows, 10_000, prior=0.0)
    assert whole.sweep() == pytest.approx(losses[0], rel=1e-9)


def test_a_prior_keeps_unseen_states_possible():
    network = DiscreteNetwork.random(STRUCTURES["latent class"], seed=4)
    data = {v: x.clamp(max=2) for v, x in network.sample(300, seed=5).items()}  # the last state never occurs
    found = {}
    for prior in (0.0, 5.0):
        model = PBP(network.graph).fit(data)
        steps = MultiplicativeSteps(model, converted(model, data), 1000, prior)
        for _ in range(5):
            steps.sweep()
        found[prior] = float(model.log_evidence({"x1": [3]}).detach().exp())
    assert found[0.0] < 1e-6
    assert 1e-3 < found[5.0] < 0.1


def test_corners_of_a_sampled_simplex_are_found():
    corners = torch.tensor([[1.0, 0.2, 0.0], [0.1, 1.0, 0.3], [0.4, 0.0, 1.0]], dtype=torch.float64)
    total = torch.linalg.solve(corners, torch.ones(3, dtype=torch.float64))
    inside = torch.distributions.Dirichlet(torch.full((3,), 2.0, dtype=torch.float64))
    torch.manual_seed(0)
    weights = torch.cat([torch.eye(3, dtype=torch.float64).repeat(40, 1), inside.sample((200,))])
    found = extreme_messages(7.0 * weights @ corners, total, corners.mean(dim=0))
    assert torch.allclose(found @ total, torch.ones(3, dtype=torch.float64))
    distances = torch.cdist(found, corners)
    assert sorted(distances.argmin(dim=1).tolist()) == [0, 1, 2]
    assert float(distances.amin(dim=1).max()) < 1e-6


def test_messages_that_never_vary_still_give_independent_corners():
    total = torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64)
    average = torch.tensor([0.5, 0.6, 1.0], dtype=torch.float64)
    average = average / (average @ total)
    found = extreme_messages(average.repeat(10, 1), total, average)
    assert int(torch.linalg.matrix_rank(found)) == 3
    assert torch.allclose(found @ total, torch.ones(3, dtype=torch.float64))


def test_clipping_gives_tables_without_zeros():
    root, table = as_tables(
        [torch.tensor([[0.6, -0.1], [0.3, 0.2]]), torch.tensor([[0.5, -0.5, 1.0], [0.2, 0.3, 0.5]])]
    )
    assert bool((root > 0).all())
    assert bool((table > 0).all())
    assert float(root.sum()) == pytest.approx(1)
    assert table[0, 2] / table[0, 0] == pytest.approx(2.0, rel=1e-3)


def test_equal_rows_are_counted():
    rows = Evidence(5, {"a": torch.tensor([0, 1, 0, 0, 1]), "b": torch.tensor([2, 0, 2, 1, 0])})
    found, counts = distinct_rows(rows)
    pairs = dict(
        zip(zip(found.hard["a"].tolist(), found.hard["b"].tolist(), strict=True), counts.tolist(), strict=True)
    )
    assert pairs == {(0, 2): 2, (1, 0): 2, (0, 1): 1}


def test_continuous_observables_raise():
    graph = LatentGraph([("h", "x"), ("h", "y")], {"h": 2, "x": Continuous(), "y": 3}, ["h"])
    with pytest.raises(StructureError, match="Use form='signed'"):
        nonnegative_form(PBP(graph), Evidence(1))
