"""Observable operators of hidden Markov models, and that junction trees contain them."""

from __future__ import annotations

import pytest
import torch

from torchpbp import DiscreteNetwork, build_junction_tree, templates
from torchpbp.baselines import SpectralJunctionTree, chain_operators, homogeneous_operators
from torchpbp.baselines.spectral_hmm import chain_scopes
from torchpbp.baselines.spectral_operators import Representation, observable_representation, required_scopes
from torchpbp.errors import DataError, QueryError, StructureError
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.table_moments import TableMoments
from torchpbp.planning.plan import specify

NAMES = [f"x{t}" for t in range(1, 6)]


def homogeneous(seed: int) -> DiscreteNetwork:
    """A chain whose steps all have the same tables."""
    graph = templates.hmm(5, states=2, observed_states=4)
    cpts = DiscreteNetwork.random(graph, seed=seed).cpts
    for t in range(3, 6):
        cpts[f"h{t}"] = cpts["h2"]
    for t in range(2, 6):
        cpts[f"x{t}"] = cpts["x1"]
    return DiscreteNetwork(graph, cpts)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_chain_operators_are_exact_and_agree_with_the_junction_tree(seed):
    network = DiscreteNetwork.random(templates.hmm(5, states=3, observed_states=4), seed=seed)
    rows = network.sample(100, seed=seed)
    found = chain_operators(NAMES, network.joint, rank=3).joint(rows)
    torch.testing.assert_close(found, network.log_evidence(rows).exp(), atol=0, rtol=1e-8)
    tree = SpectralJunctionTree(network.graph).fit_population(network)
    torch.testing.assert_close(found, tree.estimates(rows), atol=0, rtol=1e-8)


def test_unobserved_steps_are_summed_out():
    network = DiscreteNetwork.random(templates.hmm(5, states=2, observed_states=3), seed=0)
    rows = network.sample(30, seed=1)
    rows["x1"][::2], rows["x3"][:], rows["x5"][::3] = -1, -1, -1
    found = chain_operators(NAMES, network.joint, rank=2).joint(rows)
    torch.testing.assert_close(found, network.log_evidence(rows).exp(), atol=0, rtol=1e-8)


@pytest.mark.parametrize("seed", [0, 1])
def test_homogeneous_operators_serve_all_steps(seed):
    network = homogeneous(seed)
    rows = network.sample(100, seed=seed)
    operators = homogeneous_operators(NAMES, network.joint, rank=2)
    exact = network.log_evidence(rows).exp()
    torch.testing.assert_close(operators.joint(rows), exact, atol=0, rtol=1e-8)
    assert all(step is operators.steps[0] for step in operators.steps)
    other = DiscreteNetwork.random(network.graph, seed=seed)  # whose steps differ
    wrong = homogeneous_operators(NAMES, other.joint, rank=2).joint(rows)
    assert float((wrong / other.log_evidence(rows).exp() - 1).abs().max()) > 0.01


def test_on_data_the_junction_tree_with_the_same_tables_gives_the_same_numbers():
    """As many observed as hidden states, so that projections lose nothing, and the step before as outside group."""
    network = DiscreteNetwork.random(templates.hmm(5, states=3, observed_states=3), seed=2)
    data, rows = network.sample(2_000, seed=1), network.sample(100, seed=3)
    states = dict.fromkeys(NAMES, 3)
    tree = build_junction_tree(network.graph, ("h1", "h2"))
    specification = specify(tree)
    cores = {p.node: p.core[0] for p in specification.plans}
    before = {v: NAMES[max(i - 1, 0)] if i else NAMES[1] for i, v in enumerate(NAMES)}
    choices = {n: ((before[core],),) for n, core in cores.items()}
    tables = JointTables([*required_scopes(tree, specification, choices), *chain_scopes(NAMES)], states)
    tables.add(torch.stack([data[v] for v in NAMES]))
    chain = chain_operators(NAMES, tables.table, rank=3).joint(rows)
    model = SpectralJunctionTree(network.graph, root=("h1", "h2"))
    model.choices = choices
    model.fit(data)
    torch.testing.assert_close(model.estimates(rows), chain, atol=1e-12, rtol=1e-8)
    assert float((chain / network.log_evidence(rows).exp() - 1).abs().mean()) > 0.01  # data, not the truth
    same = observable_representation(tree, specification, choices, TableMoments(tables))
    assert isinstance(same, Representation)
    torch.testing.assert_close(same.root, model.representation.root)


def test_bad_input():
    network = DiscreteNetwork.random(templates.hmm(5, states=3, observed_states=4), seed=0)
    with pytest.raises(StructureError, match="three or more different observables"):
        chain_operators(NAMES[:2], network.joint, rank=2)
    with pytest.raises(StructureError, match="rank: expected 1 to 4, the fewest states of an observable, got 5"):
        homogeneous_operators(NAMES, network.joint, rank=5)
    operators = chain_operators(NAMES, network.joint, rank=3)
    with pytest.raises(QueryError, match=r"\['x5'\] are missing"):
        operators.joint({v: torch.zeros(2, dtype=torch.int64) for v in NAMES[:4]})


def test_states_of_a_chain_are_checked():
    network = DiscreteNetwork.random(templates.hmm(5, states=3, observed_states=4), seed=0)
    operators = chain_operators(NAMES, network.joint, rank=3)
    rows = network.sample(6, seed=1)
    listed = {v: x.tolist() for v, x in rows.items()}
    torch.testing.assert_close(operators.joint(listed), operators.joint(rows))
    for bad in (-2, 4):
        with pytest.raises(DataError, match=f"Evidence on 'x2', row 0: state {bad} is out of range"):
            operators.joint({**listed, "x2": [bad] * 6})
    with pytest.raises(QueryError, match=r"expected states of \['x2'\], got weights"):
        operators.joint({**listed, "x2": torch.rand(6, 4)})
