"""A model after training with PBPModule: its state, its file, and which questions it answers."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import torchpbp
from tests.neural.small import (
    KINDS,
    VECTORS,
    Own,
    class_table,
    context_model,
    evidence,
    finished,
    finished_mixed,
    mixed_table,
    point_model,
    solved,
    train,
)
from torchpbp import (
    PBP,
    ContextEncoder,
    Continuous,
    DiscreteNetwork,
    LatentGraph,
    PBPLayer,
    PBPModule,
    PointEncoder,
    templates,
)
from torchpbp.errors import ArgumentError, CheckpointError, QueryError, StructureError

# -- the model afterwards ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_nets_encoders_and_readout_are_in_the_state(kind: str) -> None:
    state = set(finished(kind).model.state_dict())
    for name in ("stage1.messages_.0.weights.0", "stage1.instruments_.0.mean", "stage1.log_ridge", "stage1.head_a0"):
        assert name in state
    assert "operators.readout.log_softness" in state
    assert "operators.encoders.log_ridge" in state
    assert "MessageNets" in repr(finished(kind).model)


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
@torch.no_grad()
def test_files_copies_and_moves_answer_the_same(kind: str, tmp_path: Path) -> None:
    module = finished_mixed() if kind == "mixed" else finished(kind)
    model, target = module.model, "e" if kind == "mixed" else "y"
    given = {v: x for v, x in (mixed_table if kind == "mixed" else class_table)(20, 5)[1].items() if v != target}
    expected = model.posterior(target, given)
    model.save(tmp_path / "model.pt")
    loaded = torchpbp.load(tmp_path / "model.pt")
    torch.testing.assert_close(loaded.posterior(target, given), expected, rtol=1e-6, atol=1e-6)
    assert set(loaded.state_dict()) == set(model.state_dict())
    assert loaded.nets.masking == model.nets.masking
    copied = copy.deepcopy(model)
    torch.testing.assert_close(copied.posterior(target, given), expected, rtol=1e-6, atol=1e-6)
    copied.to("cpu", torch.float64)
    torch.testing.assert_close(copied.posterior(target, given), expected, rtol=1e-3, atol=1e-4)
    assert model.nets.dtype == torch.float32  # the copy has nets of its own
    for x, y in zip(model.predicted_messages(given).values(), loaded.predicted_messages(given).values(), strict=True):
        torch.testing.assert_close(x.message, y.message, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(PBPLayer(model)(given)[target], expected, rtol=1e-6, atol=1e-6)


def test_an_encoder_of_ones_own_is_given_again_when_a_file_is_read(tmp_path: Path) -> None:
    graph, table = class_table(100, 1)
    torch.manual_seed(0)
    module = PBPModule(PBP(graph, features=Own(), condition="y"), hidden=[4])
    train(module, table)
    path = tmp_path / "model.pt"
    module.model.save(path)
    with pytest.raises(
        CheckpointError, match=r"an encoder of the class Own, .* torchpbp.load\(path, features=Own\(…\)\)"
    ):
        torchpbp.load(path)
    given = evidence()
    with torch.no_grad():
        loaded = torchpbp.load(path, features=Own())
        torch.testing.assert_close(
            loaded.posterior("y", given), module.model.posterior("y", given), rtol=1e-6, atol=1e-6
        )
    with pytest.raises(CheckpointError, match="the encoder of 'a' gives 5 features, but the model was made with 3"):
        torchpbp.load(path, features=Own(5))
    with pytest.raises(ArgumentError, match=r"features: expected an encoder .* got none for b, c, d"):
        torchpbp.load(path, features={"a": Own()})
    with pytest.raises(ArgumentError, match=r"features: expected .* got one for z"):
        torchpbp.load(path, features=dict.fromkeys("abcdz", Own()))
    discrete = PBP(templates.naive_bayes(3)).fit_population(DiscreteNetwork.random(templates.naive_bayes(3), seed=0))
    discrete.save(path)
    with pytest.raises(ArgumentError, match="has no encoders"):
        torchpbp.load(path, features=Own())


# -- which questions are valid -----------------------------------------------------------------------------------------


def test_context_encoders_answer_about_the_target_only() -> None:
    model, given = finished("context").model, evidence()
    for question in (
        lambda: model.log_evidence(given),
        lambda: model.sample(2, given),
        lambda: model.posterior("e", {"a": given["a"]}),
        lambda: model.posterior("a", {"b": given["b"]}),
        lambda: model.posterior(["y", "e"], {"a": given["a"]}),
        lambda: PBPLayer(model).log_evidence(given),
    ):
        with pytest.raises(QueryError, match=r"context=True"):
            question()
    assert model.posterior("y", given).shape == (20, 2)
    assert set(model.posteriors({v: x for v, x in given.items() if v != "e"})) == {"y"}
    assert set(PBPLayer(model)(given)) == {"y"}


@torch.no_grad()
def test_point_wise_encoders_answer_about_leaves() -> None:
    model = finished_mixed().model
    table = mixed_table(500, 7)[1]
    given = {v: x for v, x in table.items() if v not in ("s", "a")}
    for leaf, shape in (("s", ()), ("a", (2,))):
        answer = model.posterior(leaf, given)
        assert answer.mean.shape == (500, *shape)
        assert bool(answer.mean.isfinite().all())
        assert bool((answer.variance >= 0).all())
    posterior = model.posterior("e", {v: x for v, x in table.items() if v != "e"})
    torch.testing.assert_close(posterior.sum(dim=1), torch.ones(500, dtype=torch.float64))
    assert bool(model.log_evidence({v: x[:5] for v, x in table.items()}).isfinite().all())
    with pytest.raises(QueryError, match="has an encoder"):
        model.sample(2)
    with pytest.raises(QueryError, match="at= needs a density"):
        model.posterior("a", {}, at=[0.0])
    assert model.posterior(["e"], {}).shape == (1, 3)


@torch.no_grad()
def test_means_of_hidden_leaves_are_better_than_without_evidence() -> None:
    """Random nets do for that, with small ridges: messages of low variance are not shrunk then."""
    graph, table = mixed_table(2000, 1)
    module = PBPModule(point_model(graph), "e", hidden=[16], residual=False)
    module.model.nets.log_ridge.fill_(-9.0)
    model = solved(module, table).model
    rows = mixed_table(500, 7)[1]
    rest = {v: x for v, x in rows.items() if v not in ("s", "a")}
    error = (model.posterior("s", rest).mean - rows["s"]).square().mean()
    alone = (model.posterior("s", {}).mean - rows["s"]).square().mean()
    assert float(error) < 0.9 * float(alone)


@torch.no_grad()
def test_log_evidence_of_encoded_leaves_is_relative_to_their_marginals() -> None:
    graph, table = mixed_table(300, 7)
    model = solved(PBPModule(point_model(graph), hidden=[4], residual=False), table).model
    for v in VECTORS:  # one leaf by itself has a ratio of 1, whatever its value
        assert float(model.log_evidence({v: table[v][:20]}).abs().max()) < 1e-6
    both = model.log_evidence({"a": table["a"], "b": table["b"]})
    assert float(both.std()) > 1e-3


def test_encoders_of_numbers(tmp_path: Path) -> None:
    """A number may have an encoder in place of a kernel map."""
    names = [*VECTORS, "s"]
    graph, table = class_table(200, 1)
    variables = {v: Continuous() if v in VECTORS else graph.variables[v] for v in graph.names}
    scalar = LatentGraph(list(graph.edges), variables, latent=list(graph.latent))
    rows = {v: x[:, 0] if v in VECTORS else x for v, x in table.items()}
    rows["a"][:9] = torch.nan
    for encoder, context in ((PointEncoder((), 3), False), (ContextEncoder(VECTORS, (), 3, width=8, head=4), True)):
        module = PBPModule(PBP(scalar, features=encoder, context=context, condition="y"), hidden=[4])
        train(module, rows)
        given = {v: x[:20] for v, x in rows.items() if v in names}
        with torch.no_grad():
            answer = module.model.posterior("y", given)
            assert bool(answer.isfinite().all())
            module.model.save(tmp_path / "model.pt")
            again = torchpbp.load(tmp_path / "model.pt").posterior("y", given)
            torch.testing.assert_close(again, answer, rtol=1e-6, atol=1e-6)
            if not context:
                assert module.model.posterior("a", {"b": rows["b"][:20]}).mean.shape == (20,)
                assert module.model.posterior("a", {"b": rows["b"][:0]}).mean.shape == (0,)


def test_counts_do_not_replace_nets() -> None:
    truth = DiscreteNetwork.random(templates.hmm(4), seed=0)
    counts = PBP(truth.graph).count(truth.sample(50, seed=0))
    model = PBP(truth.graph)
    model.attach_nets(hidden=[4])
    for call in (lambda: model.partial_fit(truth.sample(50, seed=0)), lambda: model.fit_counts(counts)):
        with pytest.raises(StructureError, match=r"not enough for nets of leaves.* Use fit\(\)"):
            call()
    assert model.stage1 is not None


def test_a_model_without_nets_says_so() -> None:
    model = PBP(class_table(10, 1)[0], features=Own(), condition="y")
    with pytest.raises(StructureError, match="no nets of leaves"):
        _ = model.nets
    context = context_model(class_table(10, 1)[0], condition="y")
    with pytest.raises(StructureError, match=r"Train them by PBPModule\(model\)"):
        context.fit(class_table(10, 1)[1])
