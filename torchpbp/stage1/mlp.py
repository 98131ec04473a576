"""Small neural networks as stage-1 regressors: the nets of all separators and folds as one module.

How they are trained is not said here; see :class:`torchpbp.tasks.mlp_regressor.MLP`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchpbp.stage1.regressor import Predictor, Regression, families
from torchpbp.stage1.rows import Group, Rows


class Inputs(nn.Module):
    """Indicators or kernel features of the variables that each of S nets looks at, (S, rows, width).

    A net with fewer variables than others is padded with zeros.

    Args:
        groups: S groups of variables.
        rows: rows of the kind to be read.
    """

    where: Tensor
    start: Tensor

    def __init__(self, groups: Sequence[Group], rows: Rows) -> None:
        super().__init__()
        sizes = {v: rows.maps[v].dim for v in rows.names}
        self.width = max(1, max(sum(sizes[v] for v in g) for g in groups))
        most = max(1, max(len(g) for g in groups))
        if rows.states is not None:
            position = {v: i for i, v in enumerate(rows.names)}
            where = torch.zeros(len(groups), most, dtype=torch.int64)
            start = torch.full((len(groups), most), -1)
            for s, group in enumerate(groups):
                offset = 0
                for j, v in enumerate(group):
                    where[s, j], start[s, j] = position[v], offset
                    offset += sizes[v]
            self.register_buffer("where", where)
            self.register_buffer("start", start)
        else:
            columns, zero = rows.columns(), sum(sizes.values())
            index = torch.full((len(groups), self.width), zero)
            for s, group in enumerate(groups):
                found = [c for v in group for c in range(columns[v].start, columns[v].stop)]
                index[s, : len(found)] = torch.tensor(found, dtype=torch.int64)
            self.register_buffer("where", index)

    def forward(self, rows: Rows, dtype: torch.dtype) -> Tensor:
        if rows.states is None:
            assert rows.features is not None
            return rows.features[:, self.where].transpose(0, 1).to(dtype)
        # As a matrix of indicators: a product with it is faster, backwards above all, than summing rows of weights.
        index = rows.states[:, self.where] + self.start  # (rows, S, variables)
        index = torch.where(self.start < 0, self.width, index).transpose(0, 1)
        result = torch.zeros(len(self.where), len(rows), self.width + 1, dtype=dtype, device=rows.device)
        return result.scatter_(2, index, 1.0)[..., :-1]


class NetBank(nn.Module):
    """K·S multilayer perceptrons of equal shape: for each of S separators one per fold.

    Each net has a linear path from its inputs to its outputs beside the hidden layers. It starts with output 0, which is
    the mean of its targets.

    Args:
        inputs: what each of the S nets looks at.
        folds: K.
        outputs: length of the prediction.
        hidden: widths of the hidden layers; none for a linear model.
        separators: S.
        generator: of the initial weights.
        dtype: of the weights.
    """

    def __init__(
        self,
        inputs: Inputs,
        separators: int,
        folds: int,
        outputs: int,
        hidden: Sequence[int],
        generator: torch.Generator,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.inputs, self.separators, self.folds = inputs, separators, folds
        nets = folds * separators
        widths = [inputs.width, *hidden]
        active = inputs.where.shape[1] if inputs.where.shape[1] < inputs.width else inputs.width
        self.skip = nn.Parameter(torch.zeros(nets, inputs.width, outputs, dtype=dtype))
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for i, (left, right) in enumerate(itertools.pairwise(widths)):
            scale = math.sqrt(2.0 / (active if i == 0 else left))
            # All folds of a separator start alike.
            start = scale * torch.randn(separators, left, right, generator=generator, dtype=torch.float64)
            self.weights.append(nn.Parameter(start.repeat(folds, 1, 1).to(dtype)))
            self.biases.append(nn.Parameter(torch.zeros(nets, 1, right, dtype=dtype)))
        self.last = nn.Parameter(torch.zeros(nets, widths[-1], outputs, dtype=dtype)) if hidden else None
        self.constant = nn.Parameter(torch.zeros(nets, 1, outputs, dtype=dtype))

    def forward(self, rows: Rows) -> Tensor:
        """(K, S, rows, outputs)."""
        x = self.inputs(rows, self.skip.dtype)  # (S, rows, width)
        x = x.expand(self.folds, *x.shape).reshape(-1, *x.shape[1:]) if self.folds > 1 else x
        out = torch.baddbmm(self.constant, x, self.skip)
        if self.last is not None:
            for weight, bias in zip(self.weights, self.biases, strict=True):
                x = torch.relu(torch.baddbmm(bias, x, weight))
            out = out + torch.bmm(x, self.last)
        return out.reshape(self.folds, self.separators, *out.shape[1:])


class StageOneNets(nn.Module):
    """The nets of all regressions, with the parameters that did best on held-out rows kept beside those in training.

    Args:
        regressions: one per separator.
        rows: rows of the kind to be read.
        folds: nets per separator.
        hidden: widths of the hidden layers.
        seed: of the initial weights.
        dtype: of the weights.
    """

    best_loss: Tensor

    def __init__(
        self,
        regressions: Sequence[Regression],
        rows: Rows,
        folds: int,
        hidden: Sequence[int],
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.members: list[list[int]] = []
        self.banks = nn.ModuleList()
        self.targets = nn.ModuleList()
        for members, targets in families(regressions, rows):
            same = [regressions[i] for i in members]
            inputs = Inputs([r.inputs for r in same], rows)
            self.members.append(members)
            self.banks.append(NetBank(inputs, len(same), folds, same[0].size, hidden, generator, dtype))
            self.targets.append(targets.to(dtype))
        self.count, self.folds, self.dtype = len(regressions), folds, dtype
        self.register_buffer("best_loss", torch.full((folds, self.count), torch.inf, dtype=torch.float64))
        for name, parameter in self.banks.named_parameters():
            self.register_buffer(_best(name), parameter.detach().clone())

    def losses(self, rows: Rows, counted: Tensor) -> Tensor:
        """(K, separators) sums over rows of the mean squared error.

        Args:
            rows: a batch.
            counted: (K, rows) 1 for rows that count for a fold's nets, 0 for others.
        """
        result = torch.zeros(self.folds, self.count, dtype=counted.dtype, device=counted.device)
        for members, bank, targets in zip(self.members, self.banks, self.targets, strict=True):
            error = (bank(rows) - targets(rows).transpose(0, 1)).square().mean(dim=-1)  # (K, S, rows)
            result[:, members] = (error * counted.unsqueeze(1)).sum(dim=-1)
        return result

    @torch.no_grad()
    def keep_best(self, loss: Tensor) -> int:
        """Keep the present parameters of nets whose held-out loss, (K, separators), is their lowest so far.

        Returns:
            How many improved.
        """
        better = loss < self.best_loss
        self.best_loss.copy_(torch.where(better, loss.to(self.best_loss), self.best_loss))
        for i, (members, bank) in enumerate(zip(self.members, self.banks, strict=True)):
            chosen = better[:, members].reshape(-1, 1, 1)
            for name, parameter in bank.named_parameters():
                kept = getattr(self, _best(f"{i}.{name}"))
                kept.copy_(torch.where(chosen, parameter, kept))
        return int(better.sum())

    @torch.no_grad()
    def restore_best(self) -> None:
        """Put the best parameters into the nets."""
        for name, parameter in self.banks.named_parameters():
            parameter.copy_(getattr(self, _best(name)))

    @torch.no_grad()
    def predict(self, rows: Rows, fold: Tensor) -> list[Tensor]:
        """Prediction of each regression, (rows, size) in float64, each row by the net of its fold, (rows,)."""
        result: list[Tensor] = [torch.empty(0)] * self.count
        index = fold.reshape(1, 1, -1, 1)
        for members, bank in zip(self.members, self.banks, strict=True):
            out = bank(rows)  # (K, S, rows, size)
            own = out.gather(0, index.expand(1, *out.shape[1:]))[0].double()
            for s, i in enumerate(members):
                result[i] = own[s]
        return result


class NetPredictor(Predictor):
    """Trained nets, each row predicted by nets that did not see it.

    Args:
        nets: trained.
        fold: (rows of this process,) the fold of each row.
    """

    def __init__(self, nets: StageOneNets, fold: Tensor) -> None:
        self.nets, self.fold = nets, fold

    def predict(self, rows: Rows, positions: Tensor) -> list[Tensor]:
        device = self.nets.best_loss.device
        found = self.nets.predict(rows.to(device), self.fold[positions].to(device))
        return [p.to(rows.device) for p in found]


def _best(name: str) -> str:
    return "best_" + name.replace(".", "_")
