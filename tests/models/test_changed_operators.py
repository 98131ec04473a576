"""Plans of a query are remembered, numbers are not: answers follow every change of a model's operators."""

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from torchpbp import PBP, DiscreteNetwork, PBPLayer, templates

GRAPH = templates.diamond(observed_states=3)
EVIDENCE = {"a1": 0, "b2": 1}


def fitted(seed: int) -> PBP:
    return PBP(GRAPH).fit(DiscreteNetwork.random(GRAPH, seed=seed).sample(2_000, seed=0))


def answers(model: PBP) -> dict[str, Tensor]:
    one_by_one = {v: model.posterior(v, EVIDENCE) for v in model.states if v not in EVIDENCE}
    evidence = {v: torch.tensor([state]) for v, state in EVIDENCE.items()}
    assert_equal(one_by_one, PBPLayer(model)(evidence))
    return {v: p.detach() for v, p in one_by_one.items()} | {"all": model.log_evidence(EVIDENCE).detach()}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for v, p in expected.items():
        torch.testing.assert_close(found[v], p, rtol=1e-9, atol=1e-9)


def descend(model: PBP) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    (-model.posterior("d1", EVIDENCE)[:, 0].log().sum()).backward()
    optimizer.step()


def scale_data(model: PBP) -> None:
    """A change that version counters do not see."""
    for operator in model.operators.separator_operators:
        operator.weight.data[..., 0] *= 1.5


CHANGES: dict[str, Callable[[PBP], object]] = {
    "optimiser": descend,
    "data": scale_data,
    "state dict": lambda model: model.load_state_dict(fitted(2).state_dict()),
    "assigned state dict": lambda model: model.load_state_dict(fitted(2).state_dict(), assign=True),
    "fit": lambda model: model.fit(DiscreteNetwork.random(GRAPH, seed=2).sample(2_000, seed=0)),
    "partial fit": lambda model: model.partial_fit(DiscreteNetwork.random(GRAPH, seed=2).sample(2_000, seed=0)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_answers_follow_a_change(change: str) -> None:
    model = fitted(1)
    before = answers(model)
    CHANGES[change](model)
    after = answers(model)
    assert not torch.allclose(before["d1"], after["d1"], atol=1e-6)
    untouched = fitted(3)  # has never been asked
    untouched.load_state_dict(model.state_dict())
    assert_equal(after, answers(untouched))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_answers_of_its_own(duplicate: Callable[[PBP], PBP]) -> None:
    model = fitted(1)
    before = answers(model)
    other = duplicate(model)
    assert_equal(answers(other), before)
    descend(other)
    assert_equal(answers(model), before)
    assert not torch.allclose(answers(other)["d1"], before["d1"], atol=1e-6)


def test_another_precision() -> None:
    model = fitted(1)
    expected = model.posterior("d1", EVIDENCE)
    single = model.to(torch.float32).posterior("d1", EVIDENCE)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-5)


def test_threads_share_a_model() -> None:
    """Ways to leaves are first worked out while other threads ask."""
    expected = answers(fitted(1))
    names = [v for v in expected if v != "all"] * 8
    for _ in range(5):
        with ThreadPoolExecutor(8) as threads:
            asked = [threads.submit(model.posterior, v, EVIDENCE) for model in [fitted(1)] for v in names]
        for v, answer in zip(names, asked, strict=True):
            torch.testing.assert_close(answer.result().detach(), expected[v], rtol=1e-9, atol=1e-9)


def test_equal_graphs_share_plans_but_not_operators() -> None:
    one, two = PBP(GRAPH), PBP(templates.diamond(observed_states=3))
    assert one.tree is two.tree
    one.fit(DiscreteNetwork.random(GRAPH, seed=1).sample(500, seed=0))
    assert not two.fitted
    assert not two.operators.root.weight.any()
