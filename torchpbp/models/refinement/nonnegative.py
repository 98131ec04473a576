"""The non-negative form of a model: the same tree, the same message ranks, all operators probability tables.

A message has no basis of its own. If V_S is invertible, V_S W ×_k V_{S_k}^{-1} in place of W at every separator is the
same model. A latent tree model has a basis in which a message is a distribution over hidden states, every operator is a
conditional probability table and the root a joint one. It is found in two steps, without random restarts:

1. Extreme points. Downward messages, scaled to mass 1, are averages of the hidden states' messages, so they lie in a
   simplex. Successive projection picks the outermost ones as first guesses of its corners.
2. Descent on negative mass. The corners move until the operators have as little negative mass as possible. The joint
   distribution does not change on the way; only what remains negative at the end is clipped.

With exact moments nothing remains wherever a non-negative form of these ranks exists. Whatever the operators, they then
define a valid joint distribution, so refinement cannot make a probability negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchpbp.errors import StructureError
from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.inference.operator_tree import OperatorTree
from torchpbp.inputs.evidence import Evidence
from torchpbp.models.two_stage_model import TwoStageModel

BASIS_STEPS = 150
SMOOTHING = 1e-4
"""Share of each table replaced by its average row and the uniform one, so that no entry starts at 0."""
LEAST_MASS = 0.01
OUTERMOST = 0.95
"""Messages beyond this quantile of the distances from the mean are noise of rare evidence, not corners."""


def refuse_continuous(model: TwoStageModel) -> None:
    """The non-negative form needs tables of states."""
    continuous = [v for v, o in model.observables.items() if o.continuous]
    if continuous:
        raise StructureError(
            f"form='nonnegative': expected discrete observables only, got continuous {continuous}, whose kernel features "
            "have no non-negative tables. Use form='signed'."
        )


@torch.no_grad()
def nonnegative_form(model: TwoStageModel, patterns: Evidence, steps: int = BASIS_STEPS) -> list[Tensor]:
    """Operators of the same model in a basis that makes them probability tables, as nearly as it can be done.

    Args:
        model: fitted, discrete observables only.
        patterns: evidence whose messages span the simplex; rows with different patterns of missing values do it well.
        steps: most iterations of the descent on negative mass.

    Returns:
        Per node a table; entry 0 is the root's, summing to 1, others sum to 1 over all but the first dimension.
    """
    refuse_continuous(model)
    operators = [w.detach().double() for w in model.operator_tree.operators]
    tree = OperatorTree(model.plan, operators, operators[0], model.operator_tree.schedule)
    up = tree.upward(Evidence(1))
    totals = [torch.zeros(0) if m is None else m[0] for m in up.messages]
    marginal = [
        torch.zeros(0) if m is None else m[0] / (m[0] @ total)
        for m, total in zip(tree.downward(up), totals, strict=True)
    ]
    seen = tree.downward(tree.upward(patterns))
    corners = [
        torch.zeros(0) if m is None else extreme_messages(m, total, average)
        for m, total, average in zip(seen, totals, marginal, strict=True)
    ]
    rotated = _least_negative(operators, model.tree, corners, totals, marginal, steps)
    return [t.to(model.root.weight.dtype) for t in as_tables(rotated)]


def extreme_messages(messages: Tensor, total: Tensor, average: Tensor) -> Tensor:
    """Outermost of a batch of messages, by successive projection.

    Args:
        messages: (batch, rank) downward messages of any scale.
        total: (rank,) functional that gives a message's mass.
        average: (rank,) message without evidence, of mass 1.

    Returns:
        (rank, rank) corners, one per row, of mass 1 and linearly independent.
    """
    rank = len(total)
    mass, size = messages @ total, messages.abs() @ total.abs()
    usable = mass > 0.1 * size  # the others are differences of nearly equal numbers
    points = torch.cat([average.unsqueeze(0), messages[usable] / mass[usable].unsqueeze(1)])
    tangent = torch.linalg.qr(torch.cat([total.unsqueeze(1), torch.eye(rank).to(total)], dim=1))[0][:, 1:]
    flat = (points - average) @ tangent  # (points, rank - 1): all points have mass 1
    values, directions = torch.linalg.eigh(flat.T @ flat / len(flat))
    least = 1e-6 * values.max().clamp(min=1e-12) if rank > 1 else 0.0
    spread = values.clamp(min=least).sqrt()
    white = flat @ directions / spread
    far = white.norm(dim=1)
    white = white[far <= far.quantile(OUTERMOST)]
    # Two standard deviations along each axis: keeps the corners independent where messages do not vary.
    white = torch.cat([white, 2 * torch.eye(rank - 1).to(white)])
    rest = torch.cat([white, torch.ones_like(total[:1]).expand(len(white), 1)], dim=1)
    chosen = []
    for _ in range(rank):
        row = int(rest.norm(dim=1).argmax())
        chosen.append(row)
        direction = rest[row] / rest[row].norm()
        rest = rest - (rest @ direction).unsqueeze(1) * direction
    return average + (white[chosen] * spread) @ directions.T @ tangent.T


def as_tables(operators: Sequence[Tensor], smoothing: float = SMOOTHING) -> list[Tensor]:
    """Clip at 0, normalise, and mix in a little of the average row and of the uniform one."""
    tables = []
    for node, operator in enumerate(operators):
        rows = normalised(table_rows(operator.clamp(min=0), node))
        mixed = (1 - smoothing) * rows + smoothing * prior_row(rows)
        tables.append(normalised(mixed).reshape(operator.shape))
    return tables


def prior_row(rows: Tensor) -> Tensor:
    """(1, entries) distribution, half like the average row, half uniform."""
    return (normalised(rows.sum(dim=0, keepdim=True)) + 1 / rows.shape[1]) / 2


def normalised(rows: Tensor) -> Tensor:
    """Rows of a non-negative matrix scaled to sum to 1; rows of zeros stay."""
    return rows / rows.sum(dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)


def table_rows(operator: Tensor, node: int) -> Tensor:
    """(rows, entries): the root is one distribution, another operator one per state of its message."""
    return operator.reshape(1, -1) if node == 0 else operator.reshape(len(operator), -1)


def _least_negative(
    operators: Sequence[Tensor],
    tree: JunctionTree,
    corners: Sequence[Tensor],
    totals: Sequence[Tensor],
    marginal: Sequence[Tensor],
    steps: int,
) -> list[Tensor]:
    """Operators in the basis with the least squared negative mass, found by L-BFGS from the given corners."""
    bases = _Bases(operators, tree, corners, totals, marginal)
    best: tuple[float, list[Tensor]] = (float("inf"), [m.detach().clone() for m in bases.moves])
    optimiser = torch.optim.LBFGS(
        bases.moves, max_iter=steps, history_size=20, line_search_fn="strong_wolfe", tolerance_change=1e-14
    )

    def closure() -> float:
        nonlocal best
        optimiser.zero_grad()
        try:
            loss = bases.negative()
        except RuntimeError:  # a line search may pass through a singular basis
            return float("inf")
        value = float(loss.detach())
        if value < best[0]:
            best = value, [m.detach().clone() for m in bases.moves]
        torch.autograd.backward(loss)
        return value

    with torch.enable_grad():
        optimiser.step(closure)  # type: ignore[no-untyped-call]
    for move, kept in zip(bases.moves, best[1], strict=True):
        move.data.copy_(kept)
    root, tables, _ = bases.transformed()
    found = {n: table[i] for group, table in zip(bases.groups, tables, strict=True) for i, n in enumerate(group.nodes)}
    return [root.detach(), *(found[n].detach() for n in range(1, len(operators)))]


@dataclass(frozen=True)
class _Group:
    """Operators of one shape, stacked, with the places of their own and their children's bases."""

    nodes: list[int]
    weight: Tensor
    rank: int
    own: Tensor
    children: list[tuple[int, Tensor]]
    marginal: Tensor


class _Bases:
    """A basis per separator, as a move from the given corners, and the operators seen in them.

    Bases of one rank are stacked, and so are operators of one shape: many small matrices cost as much as one large.
    """

    def __init__(
        self,
        operators: Sequence[Tensor],
        tree: JunctionTree,
        corners: Sequence[Tensor],
        totals: Sequence[Tensor],
        marginal: Sequence[Tensor],
    ) -> None:
        by_rank: dict[int, list[int]] = {}
        by_shape: dict[tuple[bool, torch.Size], list[int]] = {}
        for node in range(1, len(operators)):
            by_rank.setdefault(len(totals[node]), []).append(node)
            by_shape.setdefault((bool(tree.children[node]), operators[node].shape), []).append(node)
        self.ranks = list(by_rank)
        self.base = [torch.stack([corners[n] for n in nodes]) for nodes in by_rank.values()]
        self.total = [torch.stack([totals[n] for n in nodes]).unsqueeze(-1) for nodes in by_rank.values()]
        self.moves = [torch.eye(b.shape[-1]).to(b).repeat(len(b), 1, 1).requires_grad_() for b in self.base]
        place = {n: i for nodes in by_rank.values() for i, n in enumerate(nodes)}

        def places(nodes: Sequence[int]) -> tuple[int, Tensor]:
            return self.ranks.index(len(totals[nodes[0]])), torch.tensor([place[n] for n in nodes]).to(
                operators[0].device
            )

        self.root = operators[0]
        self.root_children = [places([c]) for c in tree.children[0]]
        self.groups = [
            _Group(
                nodes,
                torch.stack([operators[n] for n in nodes]),
                *places(nodes),
                [places(list(column)) for column in zip(*(tree.children[n] for n in nodes), strict=True)],
                torch.stack([marginal[n] for n in nodes]),
            )
            for nodes in by_shape.values()
        ]

    def transformed(self) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The root, the operators of each group and the inverse bases of each rank."""
        raw = [m @ b for m, b in zip(self.moves, self.base, strict=True)]
        basis = [r / (r @ t) for r, t in zip(raw, self.total, strict=True)]
        inverse = [torch.linalg.inv(b) for b in basis]
        tables = []
        for group in self.groups:
            weight = group.weight.flatten(2)
            weight = (basis[group.rank][group.own] @ weight).reshape(*group.weight.shape)
            for rank, index in group.children:  # each contraction takes the first remaining mode and puts it last
                weight = torch.einsum("gsb...,gbc->gs...c", weight, inverse[rank][index])
            tables.append(weight)
        root = self.root
        for rank, index in self.root_children:
            root = torch.tensordot(root, inverse[rank][index[0]], dims=([0], [0]))
        return root / root.sum(), tables, inverse

    def negative(self) -> Tensor:
        """Squared negative mass, states weighed by how often they occur."""
        root, tables, inverse = self.transformed()
        loss = root.clamp(max=0).square().sum()
        for group, table in zip(self.groups, tables, strict=True):
            mass = group.marginal.unsqueeze(1) @ inverse[group.rank].detach()[group.own]  # (nodes, 1, states)
            weight = mass.mT.clamp(min=LEAST_MASS)
            loss = loss + (weight * table.flatten(2).clamp(max=0).square()).sum()
        return loss
