"""Small neural networks as stage-1 regressors: one module with the hidden layers of all separators and folds.

:class:`torchpbp.neural.mlp.MLP` trains them; their last layers are solved in closed form (:mod:`torchpbp.learning.heads`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from torchpbp.moments.rows import TrainingRows
from torchpbp.planning.plan import Group


class Inputs(nn.Module):
    """Inputs of S networks: indicators or kernel features of their variables, and the constant 1.

    Rows come last, (S, width, rows), so the inputs of a network are complete lines of the features of all variables. Inputs of
    networks with fewer variables are padded with zeros; the features of a missing variable are all zero.

    Args:
        groups: S groups of variables.
        dims: feature dimensions of all variables, in order.
    """

    where: Tensor
    start: Tensor
    owner: Tensor

    def __init__(self, groups: Sequence[Group], dims: Mapping[str, int]) -> None:
        super().__init__()
        self.names = tuple(dims)
        start = dict(zip(dims, itertools.accumulate(dims.values(), initial=0), strict=False))
        self.lines = sum(dims.values())  # followed by a line of zeros and a line of ones
        chosen = [[c for v in g for c in range(start[v], start[v] + dims[v])] for g in groups]
        self.width = input_width(groups, dims)
        where = torch.full((len(groups), self.width), self.lines)
        for s, lines in enumerate(chosen):
            where[s, : len(lines)] = torch.tensor(lines, dtype=torch.int64)
        where[:, -1] = self.lines + 1
        self.active = max(1, max(map(len, groups)))  # indicators that are 1 at a time
        # Derived from the plan, and not saved.
        self.register_buffer("where", where, persistent=False)
        self.register_buffer("start", torch.tensor(list(start.values())), persistent=False)
        owner = torch.arange(len(dims)).repeat_interleave(torch.tensor(list(dims.values())))
        self.register_buffer("owner", owner, persistent=False)

    def of_rows(self, rows: TrainingRows, dtype: torch.dtype, seen: Tensor | None = None) -> Tensor:
        """(lines, rows) features of training rows.

        Args:
            rows: rows with the variables of the networks.
            dtype: dtype of the result.
            seen: (rows, variables) mask, False for hidden values; by default nothing is hidden.
        """
        if rows.states is not None:
            # A product with indicators is faster than sums of rows of weights, in particular in the backward pass.
            lines = torch.zeros(self.lines + 1, len(rows), dtype=dtype, device=rows.device)
            if seen is None:
                return lines.scatter_(0, (rows.states + self.start).T, 1.0)
            return lines.scatter_(0, (rows.states + self.start).T, seen.T.to(dtype))
        assert rows.features is not None
        lines = rows.features.T.to(dtype)
        if seen is not None:
            lines = torch.cat([lines[:-1] * seen.T[self.owner], lines[-1:]])
        return lines

    def of_features(self, features: Mapping[str, Tensor], seen: Tensor, dtype: torch.dtype) -> Tensor:
        """(lines, rows) features of evidence; features of hidden variables are zero.

        Args:
            features: variable -> (rows, dim).
            seen: (rows, variables) mask in the order of ``features``.
            dtype: dtype of the result.
        """
        order = {v: i for i, v in enumerate(features)}
        parts = [
            torch.where(
                seen[:, order[v], None], features[v].to(dtype), torch.zeros((), dtype=dtype, device=seen.device)
            )
            for v in self.names
        ]
        return torch.cat([*parts, torch.zeros_like(parts[0][:, :1])], dim=1).T

    def forward(self, lines: Tensor) -> Tensor:
        """(S, width, rows) inputs of each network."""
        ones = torch.ones_like(lines[:1])
        chosen = torch.cat([lines, ones]).index_select(0, self.where.reshape(-1))
        return chosen.reshape(*self.where.shape, lines.shape[1])


def input_width(groups: Sequence[Group], dims: Mapping[str, int]) -> int:
    """Number of inputs, including the constant, for the largest of some groups of variables."""
    return 1 + max(sum(dims[v] for v in g) for g in groups)


class HiddenNets(nn.Module):
    """Hidden layers of S·K multilayer perceptrons of equal shape: one per separator and fold.

    Args:
        inputs: inputs of the S separators.
        folds: K.
        hidden: widths of the hidden layers; empty for a linear model.
        dtype: dtype of the weights.
    """

    def __init__(self, inputs: Inputs, folds: int, hidden: Sequence[int], dtype: torch.dtype) -> None:
        super().__init__()
        self.inputs, self.folds, self.widths = inputs, folds, tuple(hidden)
        self.separators = len(inputs.where)
        shapes = hidden_shapes(self.separators, folds, inputs.width, hidden)
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(s, dtype=dtype)) for s in shapes["weights"])
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(s, dtype=dtype)) for s in shapes["biases"])
        self.dtype = dtype

    @property
    def size(self) -> int:
        """Dimensions of η, the input of a head: network inputs with the constant, and the last hidden layer."""
        return self.inputs.width + (self.widths[-1] if self.widths else 0)

    @torch.no_grad()
    def start(self, generator: torch.Generator) -> None:
        """Initialise weights by normal draws, equal for all folds of a separator."""
        for i, weight in enumerate(self.weights):
            scale = math.sqrt(2.0 / (weight.shape[-1] if i else self.inputs.active))
            shape = (weight.shape[0], 1, *weight.shape[2:])
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
            if i == 0:
                drawn[..., -1] = 0.0  # the constant
            weight.copy_((scale * drawn).expand(weight.shape))

    def forward(self, lines: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (S, width, rows) and last hidden layer (S, K, units, rows) for features (lines, rows)."""
        x = self.inputs(lines)
        rows, nets = x.shape[-1], self.separators * self.folds
        if not len(self.weights):
            return x, x.new_empty(self.separators, self.folds, 0, rows)
        h = torch.bmm(self.weights[0].flatten(1, 2), x).reshape(nets, -1, rows)
        for weight, bias in zip(list(self.weights)[1:], self.biases, strict=True):
            h = torch.baddbmm(bias.flatten(0, 1), weight.flatten(0, 1), torch.relu(h))
        return x, torch.relu(h).reshape(self.separators, self.folds, -1, rows)

    def eta(self, lines: Tensor) -> Tensor:
        """(S, K, size, rows) in float64: inputs, the constant, hidden units."""
        x, h = self(lines)
        return torch.cat([x.unsqueeze(1).expand(-1, self.folds, -1, -1), h], dim=2).double()

    def extra_repr(self) -> str:
        return f"{self.separators} separators, {self.folds} folds, hidden={list(self.widths)}"


def hidden_shapes(
    separators: int, folds: int, width: int, hidden: Sequence[int]
) -> dict[str, list[tuple[int, int, int, int]]]:
    """Shapes of the parameters of :class:`HiddenNets`. The first layer's bias is the weight of the constant."""
    pairs = list(itertools.pairwise([width, *hidden]))
    return {
        "weights": [(separators, folds, right, left) for left, right in pairs],
        "biases": [(separators, folds, right, 1) for _, right in pairs[1:]],
    }


class NetsInTraining(nn.Module):
    """Hidden layers with trainable last layers, and a copy of the best parameters on held-out rows.

    The last layer's inputs are the network's inputs and the last hidden units. Its initial output is 0, the mean of the targets.

    Args:
        hidden: hidden layers.
        members: indices of separators with targets of equal size, by family.
        sizes: size of the targets of each family.
    """

    best_loss: Tensor

    def __init__(self, hidden: HiddenNets, members: Sequence[Sequence[int]], sizes: Sequence[int]) -> None:
        super().__init__()
        self.hidden = hidden
        self.members = [list(m) for m in members]
        self.linear, self.last = nn.ParameterList(), nn.ParameterList()
        width = hidden.inputs.width
        for family, size in zip(self.members, sizes, strict=True):
            shape = (len(family), hidden.folds, size)
            self.linear.append(nn.Parameter(torch.zeros(*shape, width, dtype=hidden.dtype)))
            self.last.append(nn.Parameter(torch.zeros(*shape, hidden.size - width, dtype=hidden.dtype)))
        self.count, self.folds = hidden.separators, hidden.folds
        self.register_buffer("best_loss", torch.full((self.folds, self.count), torch.inf, dtype=torch.float64))
        for name, parameter in self.named_parameters():
            self.register_buffer(_best(name), parameter.detach().clone())

    def losses(
        self, rows: TrainingRows, targets: Sequence[Tensor], counted: Tensor, seen: Tensor | None = None
    ) -> Tensor:
        """(K, separators) sums over rows of the mean squared error.

        Args:
            rows: a batch.
            targets: per family (rows, separators, size).
            counted: (K, rows) 1 for rows in a fold's loss, 0 for others.
            seen: (rows, variables) mask, False for hidden values.
        """
        result = torch.zeros(self.folds, self.count, dtype=counted.dtype, device=counted.device)
        x, h = self.hidden(self.hidden.inputs.of_rows(rows, self.hidden.dtype, seen))
        for members, linear, last, target in zip(self.members, self.linear, self.last, targets, strict=True):
            y = target.permute(1, 2, 0).unsqueeze(1)  # (S, 1, outputs, rows)
            inputs, units = (x, h) if len(members) == len(x) else (x[members], h[members])
            shape = (len(members), self.folds, -1, len(rows))
            out = torch.bmm(linear.flatten(1, 2), inputs).reshape(shape)
            out = out + torch.bmm(last.flatten(0, 1), units.flatten(0, 1)).reshape(shape)
            error = (out - y).square().mean(dim=2)  # (S, K, rows)
            result[:, members] = (error * counted).sum(dim=-1).T
        return result

    @torch.no_grad()
    def keep_best(self, loss: Tensor) -> int:
        """Store the current parameters of networks whose held-out loss, (K, separators), is the lowest so far.

        Returns:
            Number of improved networks.
        """
        better = loss < self.best_loss
        self.best_loss.copy_(torch.where(better, loss.to(self.best_loss), self.best_loss))
        for name, parameter in self.named_parameters():
            group, _, index = name.partition(".")
            members = self.members[int(index)] if group in ("linear", "last") else slice(None)
            chosen = better[:, members].T.reshape(len(parameter), -1, 1, 1)
            best = getattr(self, _best(name))
            best.copy_(torch.where(chosen, parameter, best))
        return int(better.sum())

    @torch.no_grad()
    def restore_best(self) -> None:
        """Load the best parameters."""
        for name, parameter in self.named_parameters():
            parameter.copy_(getattr(self, _best(name)))

    def last_layers(self) -> list[Tensor]:
        """Weights of the last layers in float64, per separator (K, outputs, size), for inputs, constant and hidden units."""
        result: list[Tensor] = [self.best_loss] * self.count
        for members, linear, last in zip(self.members, self.linear, self.last, strict=True):
            for i, layer in zip(members, torch.cat([linear, last], dim=-1).detach().double(), strict=True):
                result[i] = layer
        return result


def _best(name: str) -> str:
    return "best_" + name.replace(".", "_")
