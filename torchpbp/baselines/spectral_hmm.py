"""The observable operators of a hidden Markov model [Hsu, Kakade and Zhang 2009], the special case that came first.

P(x₁, …, x_T) = b_∞ᵀ B_{x_T} ⋯ B_{x_1} b_1, where all parts come from tables of one, two and three neighbours [SP]. The
junction tree of a chain gives the same product: the operator of an inner node, contracted with a leaf's evidence, is B_x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from torchpbp.errors import QueryError, StructureError
from torchpbp.inputs.evidence import read_evidence


class Tables(Protocol):
    """What gives joint probabilities: counted tables, or an exact network's ``joint``."""

    def __call__(self, variables: Sequence[str], /) -> Tensor: ...


@dataclass(frozen=True)
class ObservableOperators:
    """A chain of operators that maps states of its observables to their joint probability.

    Args:
        names: the observables in order.
        first: (k,) b_1.
        steps: per observable (states, k of the next, k) B_x.
        last: (k,) b_∞.
    """

    names: tuple[str, ...]
    first: Tensor
    steps: tuple[Tensor, ...]
    last: Tensor

    def joint(self, rows: Mapping[str, Any]) -> Tensor:
        """(batch,) estimates of P(x₁, …, x_T), possibly negative.

        Args:
            rows: name -> (batch,) states; -1 where an observable is to be summed out. Read as evidence is, without weights.
        """
        absent = [v for v in self.names if v not in rows]
        if absent:
            raise QueryError(
                f"Joint probability of a chain: expected states of {list(self.names)}, {absent} are missing."
            )
        states = {v: len(step) for v, step in zip(self.names, self.steps, strict=True)}
        read = read_evidence({v: rows[v] for v in self.names}, states)
        if read.soft:
            raise QueryError(f"Joint probability of a chain: expected states of {list(read.soft)}, got weights.")
        message = self.first.expand(read.batch, -1)
        for name, step in zip(self.names, self.steps, strict=True):
            wide = torch.cat([step, step.sum(dim=0, keepdim=True)])  # index -1 takes the sum
            message = torch.einsum("nab,nb->na", wide[read.hard[name]], message)
        return message @ self.last


def chain_scopes(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Groups of variables whose tables :func:`chain_operators` needs."""
    return [tuple(names[t : t + 3]) for t in range(max(1, len(names) - 2))]


def chain_operators(names: Sequence[str], joint: Tables, rank: int) -> ObservableOperators:
    """Operators of a chain whose probabilities may differ from step to step.

    The message before x_t is U_tᵀ P(x_t | past); U_t holds the leading left singular vectors of P(x_t, x_{t-1}), and
    B_x = U_{t+1}ᵀ P(x_{t+1}, x_t = x, x_{t-1}) (U_tᵀ P(x_t, x_{t-1}))⁺.

    Args:
        names: observables x_1, …, x_T in order, three or more.
        joint: gives P(variables), with dimensions in the order asked for.
        rank: number of hidden states.
    """
    _check(names, joint, rank)
    steps = []
    projection, inverse = _projection(joint((names[1], names[0])), rank)
    # Nothing comes before x_1: its message is the constant 1.
    steps.append(torch.einsum("yx,yk->xk", joint((names[1], names[0])), projection).unsqueeze(-1))
    for before, now, after in zip(names, names[1:], names[2:], strict=False):
        following, next_inverse = _projection(joint((after, now)), rank)
        triple = joint((after, now, before))
        steps.append(torch.einsum("zyx,zk,xl->ykl", triple, following, inverse))
        inverse = next_inverse
    last = joint((names[-1], names[-2])) @ inverse  # (states, k)
    steps.append(last.unsqueeze(1))
    one = torch.ones(1, dtype=torch.float64)
    return ObservableOperators(tuple(names), one, tuple(steps), one)


def homogeneous_operators(names: Sequence[str], joint: Tables, rank: int) -> ObservableOperators:
    """Operators of a chain whose probabilities are the same at each step, from its first three observables.

    b_1 = UᵀP_1, b_∞ = (P_21ᵀU)⁺P_1, B_x = UᵀP_{3,x,1}(UᵀP_21)⁺.

    Args:
        names: observables in order, three or more; the operators serve all of them.
        joint: gives P(variables), with dimensions in the order asked for.
        rank: number of hidden states.
    """
    _check(names, joint, rank)
    one, two, three = names[:3]
    projection, inverse = _projection(joint((two, one)), rank)
    step = torch.einsum("zyx,zk,xl->ykl", joint((three, two, one)), projection, inverse)
    start = joint((one,))
    return ObservableOperators(tuple(names), projection.T @ start, (step,) * len(names), inverse.T @ start)


def _projection(pair: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """U of a table P(y, x), and (UᵀP)⁺."""
    u, s, vh = torch.linalg.svd(pair, full_matrices=False)
    kept = s[:rank]
    reciprocal = torch.where(kept > 1e-12 * s[0], 1 / kept.clamp(min=1e-300), torch.zeros_like(kept))
    return u[:, :rank], vh[:rank].T * reciprocal


def _check(names: Sequence[str], joint: Tables, rank: int) -> None:
    if len(names) < 3 or len(set(names)) != len(names):
        raise StructureError(f"Operators of a chain: expected three or more different observables, got {list(names)}.")
    least = min(len(joint((v,))) for v in names)
    if not 1 <= rank <= least:
        raise StructureError(
            f"rank: expected 1 to {least}, the fewest states of an observable, got {rank}. Hidden states that no single "
            "observable tells apart need SpectralJunctionTree, which takes groups of them."
        )
