"""A layer as a program for batches of any size: exported, saved and loaded; compiled, with gradients."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from torchpbp import PBP, Continuous, DiscreteNetwork, LatentGraph, Nystroem, PBPLayer, templates

Draw = Callable[[int], dict[str, Tensor]]
SIZES = (5, 2, 7, 64, 1)


def soft(rows: int, states: int, generator: torch.Generator) -> Tensor:
    return 0.1 + torch.rand(rows, states, generator=generator, dtype=torch.float64)


def codes(rows: int, states: int, generator: torch.Generator) -> Tensor:
    """States, some of them -1 (not observed) or out of range."""
    return torch.randint(-1, states + 1, (rows,), generator=generator)


def discrete() -> tuple[PBPLayer, Draw]:
    network = DiscreteNetwork.random(templates.diamond(states=2, observed_states=3), seed=1)

    def draw(rows: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(rows)
        return {"a1": codes(rows, 3, generator), "b1": soft(rows, 3, generator)}

    return PBPLayer(PBP(network.graph).fit_population(network)), draw


def mixed() -> tuple[PBPLayer, Draw]:
    """Numbers and states below two latents; one number is bounded."""
    domains = {"h": 2, "k": 2, "x": Continuous(), "y": 3, "u": Continuous(low=0.0), "v": 3, "w": 2}
    edges = [("h", "k"), ("h", "x"), ("h", "y"), ("k", "u"), ("k", "v"), ("k", "w")]
    generator = torch.Generator().manual_seed(0)
    h = torch.randint(2, (400,), generator=generator)
    k = torch.where(torch.rand(400, generator=generator) < 0.8, h, 1 - h)
    data = {
        "x": 2.0 * h + torch.randn(400, generator=generator),
        "u": k + torch.rand(400, generator=generator),
        "y": h + torch.randint(2, (400,), generator=generator),
        "v": k + torch.randint(2, (400,), generator=generator),
        "w": k,
    }

    def draw(rows: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(rows)
        x = torch.randn(rows, generator=generator, dtype=torch.float64)
        x[::3] = torch.nan
        u = torch.rand(rows, generator=generator, dtype=torch.float64) - 0.1  # negative values are out of range
        return {"x": x, "u": u, "y": codes(rows, 3, generator), "v": soft(rows, 3, generator)}

    return PBPLayer(PBP(LatentGraph(edges, domains, ["h", "k"]), features=Nystroem(5)).fit(data)), draw


def conditional() -> tuple[PBPLayer, Draw]:
    plain = templates.diamond(states=2, observed_states=3)
    edges = [*plain.edges, *(("c", h) for h in plain.latent)]
    graph = LatentGraph(edges, {**plain.variables, "c": 3}, plain.latent)
    data = DiscreteNetwork.random(graph, seed=2).sample(1_000, seed=0)

    def draw(rows: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(rows)
        return {"a1": codes(rows, 3, generator), "b1": soft(rows, 3, generator), "d1": codes(rows, 3, generator)}

    return PBPLayer(PBP(graph, condition="c").fit(data)), draw


KINDS = [mixed, *(pytest.param(make, marks=pytest.mark.slow, id=make.__name__) for make in (discrete, conditional))]


@pytest.fixture(scope="module", params=KINDS, ids=["mixed", None, None])
def served(request: pytest.FixtureRequest) -> tuple[PBPLayer, Draw]:
    return request.param()


def assert_same_answers(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for v, p in expected.items():
        torch.testing.assert_close(found[v], p, rtol=0, atol=1e-12, equal_nan=True)


def test_an_exported_program_takes_batches_of_any_size(served: tuple[PBPLayer, Draw], tmp_path: Path) -> None:
    layer, draw = served
    evidence = draw(5)
    batch = torch.export.Dim("batch")
    program = torch.export.export(layer, (evidence,), dynamic_shapes=({v: {0: batch} for v in evidence},))
    torch.export.save(program, tmp_path / "layer.pt2")
    loaded = torch.export.load(tmp_path / "layer.pt2").module()
    for rows in SIZES:
        assert_same_answers(loaded(draw(rows)), layer(draw(rows)))
    assert next(iter(layer(draw(64)).values())).isnan().any()  # invalid rows are among them


@pytest.mark.slow
def test_a_compiled_layer_is_compiled_once(served: tuple[PBPLayer, Draw]) -> None:
    layer, draw = served
    torch.compiler.reset()
    programs = []

    def counted(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        programs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counted)
    compiled(draw(5))
    first = len(programs)
    for rows in (2, 7, 64):
        assert_same_answers(compiled(draw(rows)), layer(draw(rows)))
    layer.model.posterior("c2" if "c2" in layer.model.states else "w")  # questions to the model leave programs alone
    assert_same_answers(compiled(draw(9)), layer(draw(9)))
    assert len(programs) == first
    assert_same_answers(compiled(draw(1)), layer(draw(1)))  # torch makes a program of its own for one row


@pytest.mark.slow
def test_gradients_of_a_compiled_layer(served: tuple[PBPLayer, Draw]) -> None:
    layer, draw = served
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")

    def gradients(answer: Callable[[dict[str, Tensor]], dict[str, Tensor]], rows: int) -> list[Tensor]:
        evidence = {v: x.requires_grad_() if x.ndim == 2 else x for v, x in draw(rows).items()}
        loss = sum(p.nan_to_num(1.0)[:, 0].log().sum() for p in answer(evidence).values())
        by = [x for x in evidence.values() if x.ndim == 2] + list(layer.parameters())
        return list(torch.autograd.grad(loss, by))

    for rows in (5, 3, 20):
        for found, expected in zip(gradients(compiled, rows), gradients(layer, rows), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_inductor_gives_the_same_answers() -> None:
    network = DiscreteNetwork.random(templates.naive_bayes(3), seed=0)
    layer = PBPLayer(PBP(network.graph).fit_population(network))
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for rows in (4, 9):
        evidence = {"x1": torch.arange(rows) % 4}
        assert_same_answers(compiled(evidence), layer(evidence))
