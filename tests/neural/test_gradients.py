"""Gradients of the loss of answers, through contraction, stage 2 and stage 1, against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchpbp import PBP, ContextEncoder, Continuous, LatentGraph, PBPModule, PointEncoder, templates
from torchpbp.graph.domains import shape_of
from torchpbp.neural.support import solve_support

GRAPHS = {
    "tree": templates.latent_tree(depth=1, branching=2, leaves=2, observed_states=3),
    "chain": templates.hmm(3, states=2, observed_states=3),
    "loop": templates.diamond(observed_states=3, leaves=1),
}
ROWS = 24


def mixed(graph: LatentGraph, condition: bool) -> LatentGraph:
    """Vectors in place of all observables but the first, a number for the last; with a class that the latents depend on."""
    variables = {v: graph.variables[v] for v in graph.names}
    variables |= {v: Continuous(shape=(2,)) for v in graph.observed[1:]}
    variables |= {graph.observed[-1]: Continuous()} if len(graph.observed) > 3 else {}
    edges = list(graph.edges)
    if condition:
        variables["class"] = 2
        edges += [("class", v) for v in graph.latent]
    return LatentGraph(edges, variables, latent=list(graph.latent))


def rows(model: PBP, missing: float = 0.15) -> dict[str, Tensor]:
    """Rows in which values are missing; a class and the first discrete leaf are always known."""
    generator = torch.Generator().manual_seed(0)
    table = {}
    for i, v in enumerate(model.graph.observed):
        hidden = torch.rand(ROWS, generator=generator) < missing
        if v in model.states:
            states = torch.arange(ROWS) % model.states[v]
            table[v] = states if v == "class" or i == 0 else states[torch.randperm(ROWS, generator=generator)]
            table[v] = table[v].masked_fill(hidden & (i > 0) & (v != "class"), -1)
        else:
            values = torch.randn(*shape_of(model.graph.variables[v]), ROWS, generator=generator, dtype=torch.float64)
            table[v] = (values + 3 * table[model.graph.observed[0]]).masked_fill(hidden, torch.nan).movedim(-1, 0)
    return table


class StepLoss(nn.Module):
    """The loss of a training step, with everything shown that rows observe."""

    def __init__(self, module: PBPModule, table: dict[str, Tensor], through: bool = True) -> None:
        super().__init__()
        self.module, self.table, self.through = module, table, through

    def forward(self) -> Tensor:
        support, query = ({v: x[part] for v, x in self.table.items()} for part in (slice(16), slice(16, None)))
        reader = self.module.reader
        seen = reader.seen(support)
        shown = seen.clone()
        shown[::3, 0] = False  # what instruments do not see
        solved = solve_support(self.module.model, support, seen, shown, shown, self.through)
        loss: Tensor = self.module.answers.loss(solved, query, reader.seen(query))
        return loss


def double_module(graph: LatentGraph, target: str | None, condition: bool, context: bool = False) -> PBPModule:
    """A small module, all in double precision."""
    torch.manual_seed(0)
    leaves = [v for v in graph.observed if getattr(graph.variables[v], "shape", ())]
    encoder: nn.Module = PointEncoder((2,), 2, width=3)
    if context:
        encoder = ContextEncoder(leaves, (2,), 2, width=4, head=3)
    features = dict.fromkeys(leaves, encoder)
    model = PBP(graph, features=features, context=context, condition="class" if condition else None)
    module = PBPModule(model, target, hidden=[3], instruments=1.0).double()
    model.prepare_leaves([rows(model)])
    with torch.no_grad():
        model.nets.log_ridge.fill_(-2.0)
    return module


def gradients_agree(loss: StepLoss, names: list[str]) -> bool:
    """Compare the gradients of some parameters with finite differences; buffers are those of the start in each call."""
    buffers = {name: x.clone() for name, x in loss.named_buffers()}
    others = {name: p.detach() for name, p in loss.named_parameters() if name not in names}

    def value(*moved: Tensor) -> Tensor:
        kept = {name: x.clone() for name, x in buffers.items()}
        result: Tensor = torch.func.functional_call(
            loss, {**kept, **others, **dict(zip(names, moved, strict=True))}, ()
        )
        return result

    inputs = [loss.get_parameter(name).detach().clone().requires_grad_() for name in names]
    gradient = torch.autograd.grad(value(*inputs), inputs)
    assert max(float(g.abs().max()) for g in gradient) > 1e-3
    return torch.autograd.gradcheck(value, inputs, fast_mode=True, atol=1e-7, rtol=1e-4)


def learned(module: StepLoss) -> list[str]:
    """Parameters of encoders and nets that are trained, ridges and link included."""
    parts = ("module.model.operators.encoders.", "module.model.stage1.", "module.model.operators.readout.")
    return [name for name, _ in module.named_parameters() if name.startswith(parts)]


@pytest.mark.parametrize(
    ("name", "question"), [("tree", "target"), ("chain", "leaves"), ("loop", "target"), ("loop", "classes")]
)
def test_point_wise_encoders(name: str, question: str) -> None:
    graph = mixed(GRAPHS[name], question == "classes")
    target = graph.observed[0] if question == "target" else None
    module = double_module(graph, target, question == "classes")
    loss = StepLoss(module, rows(module.model))
    names = learned(loss)
    assert {part for n in names for part in n.split(".")} >= {"encoders", "stage1"}
    assert gradients_agree(loss, names)


def test_context_encoders() -> None:
    module = double_module(mixed(GRAPHS["loop"], True), None, True, context=True)
    loss = StepLoss(module, rows(module.model))
    assert gradients_agree(loss, learned(loss))


def test_a_leaf_asked_about_in_a_model_with_classes() -> None:
    graph = mixed(GRAPHS["chain"], True)
    module = double_module(graph, graph.observed[0], True)
    loss = StepLoss(module, rows(module.model))
    assert gradients_agree(loss, learned(loss))


def test_stopped_at_the_operators_nets_and_ridges_have_no_gradient() -> None:
    """Encoders keep one, by the evidence that they make, and it is another."""
    module = double_module(mixed(GRAPHS["loop"], True), None, True)
    table, encoders = rows(module.model), list(module.model.encoders.parameters())
    through = torch.autograd.grad(StepLoss(module, table)(), encoders)
    loss = StepLoss(module, table, through=False)()
    stopped = torch.autograd.grad(loss, encoders, retain_graph=True)
    assert any(float((a - b).abs().max()) > 1e-3 for a, b in zip(through, stopped, strict=True))
    nets = list(module.model.nets.parameters())
    assert all(g is None for g in torch.autograd.grad(loss, nets, allow_unused=True))


@pytest.mark.parametrize("condition", [False, True])
def test_the_error_of_stage_1_trains_nets_of_instruments_only(condition: bool) -> None:
    graph = mixed(GRAPHS["chain"], condition)
    module = double_module(graph, graph.observed[0], condition)
    model, table = module.model, rows(module.model)
    seen = module.reader.seen(table)
    instruments = list(model.nets.instruments_.parameters())
    others = [*model.nets.messages_.parameters(), model.nets.log_ridge]

    def error() -> Tensor:
        return solve_support(model, table, seen, seen, seen).error

    value = error()
    assert 0 < float(value.detach()) < 1
    assert all(g is None for g in torch.autograd.grad(value, others, allow_unused=True, retain_graph=True))
    gradient = torch.autograd.grad(value, instruments)
    for p, g in zip(instruments, gradient, strict=True):
        direction = torch.randn(p.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        with torch.no_grad():
            p += 1e-5 * direction
            above = float(error())
            p -= 2e-5 * direction
            below = float(error())
            p += 1e-5 * direction
        assert (above - below) / 2e-5 == pytest.approx(float((g * direction).sum()), rel=1e-4, abs=1e-8)
