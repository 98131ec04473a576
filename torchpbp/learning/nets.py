"""Small neural networks as stage-1 regressors: the nets of all separators and folds as one module.

:class:`torchpbp.neural.mlp.MLP` trains them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchpbp.learning.regressions import Predictor, Regression, families
from torchpbp.moments.rows import TrainingRows
from torchpbp.planning.plan import Group


class Inputs(nn.Module):
    """Indicators or kernel features of the variables that each of S nets looks at, and the constant 1.

    Rows come last, (S, width, rows): what a net sees is then a choice of whole lines from the features of all variables. A
    net with fewer variables than others is padded with zeros.

    Args:
        groups: S groups of variables.
        rows: rows of the kind to be read.
    """

    where: Tensor
    start: Tensor

    def __init__(self, groups: Sequence[Group], rows: TrainingRows) -> None:
        super().__init__()
        columns = rows.columns()
        self.lines = sum(rows.maps[v].dim for v in rows.names)  # then one of zeros and one of ones
        chosen = [[c for v in g for c in range(columns[v].start, columns[v].stop)] for g in groups]
        self.width = 1 + max(map(len, chosen))
        where = torch.full((len(groups), self.width), self.lines)
        for s, lines in enumerate(chosen):
            where[s, : len(lines)] = torch.tensor(lines, dtype=torch.int64)
        where[:, -1] = self.lines + 1
        self.active = max(1, max(map(len, groups)))  # indicators that are 1 at a time
        self.register_buffer("where", where)
        self.register_buffer("start", torch.tensor([columns[v].start for v in rows.names]))

    def forward(self, rows: TrainingRows, dtype: torch.dtype) -> Tensor:
        ones = torch.ones(1, len(rows), dtype=dtype, device=rows.device)
        if rows.states is not None:
            # Indicators rather than sums of rows of weights: a product with them is faster, backwards above all.
            lines = torch.zeros(self.lines + 1, len(rows), dtype=dtype, device=rows.device)
            lines.scatter_(0, (rows.states + self.start).T, 1.0)
        else:
            assert rows.features is not None
            lines = rows.features.T.to(dtype)
        chosen = torch.cat([lines, ones]).index_select(0, self.where.reshape(-1))
        return chosen.reshape(*self.where.shape, len(rows))


class NetBank(nn.Module):
    """S·K multilayer perceptrons of equal shape: for each of S separators one per fold.

    Each net has a linear path from its inputs to its outputs beside the hidden layers. It starts with output 0, which is
    the mean of its targets. The first layer and the linear path of all folds are one matrix per separator.

    Args:
        inputs: what each of the S nets looks at.
        separators: S.
        folds: K.
        outputs: length of the prediction.
        hidden: widths of the hidden layers; none for a linear model.
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
        self.inputs, self.separators, self.folds, self.outputs = inputs, separators, folds, outputs

        def start(scale: float, *shape: int) -> Tensor:
            """Normal draws, the same for all folds of a separator."""
            drawn = scale * torch.randn(separators, 1, *shape, generator=generator, dtype=torch.float64)
            return drawn.expand(-1, folds, *shape).to(dtype).contiguous()

        widths = [*hidden, outputs]
        first = start(0.0, outputs + sum(hidden[:1]), inputs.width)
        if hidden:
            scale = math.sqrt(2.0 / inputs.active)
            first[:, :, outputs:, :-1] = start(scale, hidden[0], inputs.width - 1)
        self.first = nn.Parameter(first)  # (S, K, outputs + hidden units, inputs and the constant)
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for i, (left, right) in enumerate(itertools.pairwise(widths)):
            last = i == len(widths) - 2
            self.weights.append(nn.Parameter(start(0.0 if last else math.sqrt(2.0 / left), right, left)))
            self.biases.append(nn.Parameter(start(0.0, right, 1)))

    def forward(self, rows: TrainingRows) -> Tensor:
        """(S, K, outputs, rows)."""
        x = self.inputs(rows, self.first.dtype)  # (S, width, rows)
        nets = self.separators * self.folds
        z = torch.bmm(self.first.flatten(1, 2), x).reshape(self.separators, self.folds, -1, len(rows))
        out = z[:, :, : self.outputs]
        if len(self.weights):
            h = z[:, :, self.outputs :]
            for weight, bias in zip(self.weights, self.biases, strict=True):
                active = torch.relu(h).reshape(nets, -1, len(rows))
                h = torch.baddbmm(bias.flatten(0, 1), weight.flatten(0, 1), active)
                h = h.reshape(self.separators, self.folds, -1, len(rows))
            out = out + h
        return out


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
        rows: TrainingRows,
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

    def losses(self, rows: TrainingRows, counted: Tensor) -> Tensor:
        """(K, separators) sums over rows of the mean squared error.

        Args:
            rows: a batch.
            counted: (K, rows) 1 for rows that count for a fold's nets, 0 for others.
        """
        result = torch.zeros(self.folds, self.count, dtype=counted.dtype, device=counted.device)
        for members, bank, targets in zip(self.members, self.banks, self.targets, strict=True):
            y = targets(rows).permute(1, 2, 0).unsqueeze(1)  # (S, 1, outputs, rows)
            error = (bank(rows) - y).square().mean(dim=2)  # (S, K, rows)
            result[:, members] = (error * counted).sum(dim=-1).T
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
            chosen = better[:, members].T.reshape(len(members), -1, 1, 1)
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
    def predict(self, rows: TrainingRows, fold: Tensor) -> list[Tensor]:
        """Prediction of each regression, (rows, size) in float64, each row by the net of its fold, (rows,)."""
        result: list[Tensor] = [torch.empty(0)] * self.count
        for members, bank in zip(self.members, self.banks, strict=True):
            out = bank(rows)  # (S, K, size, rows)
            index = fold.expand(len(members), 1, *out.shape[2:])
            own = out.gather(1, index).squeeze(1).double()
            for s, i in enumerate(members):
                result[i] = own[s].T
        return result


class NetPredictor(Predictor):
    """Trained nets, each row predicted by nets that did not see it.

    Args:
        nets: trained.
        fold: (rows of this process,) the fold of each row.
    """

    def __init__(self, nets: StageOneNets, fold: Tensor) -> None:
        self.nets, self.fold = nets, fold

    def predict(self, rows: TrainingRows, positions: Tensor) -> list[Tensor]:
        device = self.nets.best_loss.device
        predictions = self.nets.predict(rows.to(device), self.fold[positions].to(device))
        return [p.to(rows.device) for p in predictions]


def _best(name: str) -> str:
    return "best_" + name.replace(".", "_")
