"""Batches drawn for a network: as many support rows of each class first, the same after an interruption."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from torchpbp.distributed import own_share, world_size
from torchpbp.errors import ArgumentError, DataError
from torchpbp.settings import whole

Batch = dict[str, Tensor]
"""Name of a leaf -> (rows, *shape) values, NaN where hidden; name of the target -> (rows,) classes."""
ROWS_AT_ONCE = 2048
"""Rows of a batch where nothing is learned by gradients."""


def generator_of(*numbers: int) -> torch.Generator:
    """A generator that follows from numbers, such as a seed and a step."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(numbers).generate_state(1)[0]))


class BalancedDraws(Dataset[Batch]):
    """Batch number i: support rows, as many of each class, then query rows, both drawn by (seed, i).

    Args:
        x: (rows, …) values.
        y: (rows,) classes, each at least once.
        classes: their number.
        support: rows of each class.
        query: rows drawn independently of these.
        seed: of all draws.
        make: the batch from values, classes and the generator of the draws, which may change the values.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        classes: int,
        support: int,
        query: int,
        seed: int,
        make: Callable[[Tensor, Tensor, torch.Generator], Batch],
    ) -> None:
        self.counts = torch.bincount(y, minlength=classes)
        if bool((self.counts == 0).any()):
            absent = (self.counts == 0).nonzero().flatten().tolist()
            raise DataError(f"Training rows: expected some of every class, got none of {absent}.")
        order = y.argsort(stable=True)
        self.x, self.y = x[order], y[order]  # grouped by class
        self.starts = self.counts.cumsum(0) - self.counts
        self.support, self.query, self.seed, self.make = support, query, seed, make

    def __getitem__(self, number: int) -> Batch:
        generator = generator_of(self.seed, number)
        share = torch.rand(len(self.counts), self.support, generator=generator)
        support = self.starts.unsqueeze(1) + (share * self.counts.unsqueeze(1)).long()
        rows = torch.cat([support.flatten(), torch.randint(len(self.y), (self.query,), generator=generator)])
        return self.make(self.x[rows], self.y[rows], generator)


class Numbers(Sampler[int]):
    """Numbers of the batches of an epoch: epoch · length, epoch · length + 1, …

    Args:
        length: batches of an epoch.
    """

    def __init__(self, length: int) -> None:
        self.length, self.epoch = length, 0

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls it before each epoch, after an interruption too."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        # The epoch is looked up when the first batch is: after an interruption Lightning makes the iterator before it sets it.
        for step in range(self.length):
            yield self.epoch * self.length + step


class Blocks(Dataset[Batch]):
    """Rows in order, in blocks.

    Args:
        columns: name -> (rows, …).
        rows: of a block.
    """

    def __init__(self, columns: Batch, rows: int = ROWS_AT_ONCE) -> None:
        self.columns, self.rows = columns, rows

    def __len__(self) -> int:
        return -(-len(next(iter(self.columns.values()))) // self.rows)

    def __getitem__(self, number: int) -> Batch:
        if number >= len(self):
            raise IndexError(number)
        return {name: column[number * self.rows : (number + 1) * self.rows] for name, column in self.columns.items()}


class Shared(Dataset[Batch]):
    """This process's share of the rows of each batch: all processes draw the same batches, so that draws depend on row and seed only.

    Args:
        batches: by number.
        cut: the share is one of the first so many rows and one of the others.
    """

    def __init__(self, batches: Dataset[Batch], cut: int = 0) -> None:
        self.batches, self.cut = batches, cut

    def __getitem__(self, number: int) -> Batch:
        batch = self.batches[number]
        if world_size() == 1:
            return batch
        rows = torch.arange(len(next(iter(batch.values()))))
        first, rest = rows[: self.cut], rows[self.cut :]
        own = torch.cat([first[own_share(len(first))], rest[own_share(len(rest))]])
        return {name: column[own] for name, column in batch.items()}

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]


class DrawnBatches(LightningDataModule):
    """Training batches, validation rows, and the rows on which operators are solved in the end.

    Several processes share the rows of training batches and of solving; each validates all rows.

    Args:
        draws: training batches by number.
        validation: rows in which leaves may be hidden.
        solving: all training rows.
        steps: batches of an epoch.
    """

    def __init__(self, draws: BalancedDraws, validation: Batch, solving: Dataset[Batch], steps: int) -> None:
        super().__init__()
        whole(1).check("support", draws.support)
        whole(1).check("query", draws.query)
        self.steps: int = whole(1).check("steps", steps)
        self.draws, self.validation, self.solving = draws, Blocks(validation), solving

    @property
    def support_rows(self) -> int:
        """Rows of a batch that are support."""
        return len(self.draws.counts) * self.draws.support

    @property
    def support_share(self) -> float:
        """Share of a batch's rows that are support."""
        return self.support_rows / (self.support_rows + self.draws.query)

    def train_dataloader(self) -> DataLoader[Batch]:
        """One virtual epoch.

        Raises:
            ArgumentError: numbers of rows that processes cannot share equally.
        """
        if self.support_rows % world_size() or self.draws.query % world_size():
            raise ArgumentError(
                f"support, query: expected numbers of rows that {world_size()} processes can share equally, got "
                f"{self.support_rows} rows of all classes and {self.draws.query}."
            )
        return DataLoader(Shared(self.draws, self.support_rows), batch_size=None, sampler=Numbers(self.steps))

    def val_dataloader(self) -> DataLoader[Batch]:
        """Validation rows."""
        return DataLoader(self.validation, batch_size=None)

    def solve_dataloader(self) -> DataLoader[Batch]:
        """All training rows."""
        return DataLoader(Shared(self.solving), batch_size=None)
