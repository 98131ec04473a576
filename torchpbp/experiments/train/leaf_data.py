"""Data modules of tables whose leaves may be hidden: drawn batches, validation rows, and rows to solve operators on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from torchpbp.distributed import own_share, world_size
from torchpbp.errors import ArgumentError, DataError
from torchpbp.experiments.results import Picture
from torchpbp.experiments.training import generator_of
from torchpbp.models.pbp import PBP
from torchpbp.settings import whole

Table = dict[str, Tensor]
"""Leaf -> (rows, *shape) values, NaN where hidden; target -> (rows,) classes."""
Change = Callable[[Table, torch.Generator], Table]
ROWS_AT_ONCE = 2048
"""Rows of a batch without gradients."""


class LeafData(LightningDataModule):
    """Batches of as many support rows of each class, followed by query rows; the same after an interruption.

    Several processes share the rows of training batches and of solving; each validates all rows.

    Args:
        tables: "train", "val" and, unless test rows are left alone, "test" -> complete rows.
        target: column of the classes.
        steps_per_epoch: batches between two validations.
        support: rows of each class at the start of a batch, on which operators are solved.
        query: further rows, drawn independently, of which the loss is computed.
        seed: of all draws.
        change: of the training rows of a batch, such as distortions.
        copies: changed copies of each training row on which operators are solved in the end, besides the row itself.
    """

    def __init__(
        self,
        tables: Mapping[str, Table],
        target: str,
        steps_per_epoch: int,
        support: int,
        query: int,
        seed: int,
        change: Change | None = None,
        copies: int = 0,
    ) -> None:
        super().__init__()
        self.tables, self.target = dict(tables), target
        self.leaves = [name for name in tables["train"] if name != target]
        self.steps_per_epoch: int = whole(1).check("steps_per_epoch", steps_per_epoch)
        rows = tables["train"]
        y = rows[target]
        self.draws = BalancedDraws(
            rows,
            target,
            whole(1).check("support", support),
            whole(1).check("query", query),
            seed,
            change,
            self.steps_per_epoch,
        )
        half = hidden_leaves(tables["val"], self.leaves, len(self.leaves) // 2, seed)
        self.validation = {name: torch.cat([x, half[name]]) for name, x in tables["val"].items()}
        self.solving = ChangedCopies(rows, whole(0).check("copies", copies) if change else 0, seed, change)
        self.classes = int(y.max()) + 1

    @property
    def support_share(self) -> float:
        """Share of a batch's rows that are support."""
        return self.draws.support_rows / (self.draws.support_rows + self.draws.query)

    def train_dataloader(self) -> DataLoader[Table]:
        """The batches of an epoch.

        Raises:
            ArgumentError: numbers of rows that processes cannot share equally.
        """
        support, query = self.draws.support_rows, self.draws.query
        if support % world_size() or query % world_size():
            raise ArgumentError(
                f"data.support, data.query: expected numbers of rows that {world_size()} processes can share equally, got "
                f"{support} rows of all classes and {query}."
            )
        return DataLoader(Shared(self.draws, support), batch_size=None, sampler=Numbers(self.steps_per_epoch))

    def val_dataloader(self) -> DataLoader[Table]:
        """Validation rows, complete and with half of their leaves hidden."""
        return DataLoader(ChangedCopies(self.validation), batch_size=None)

    def solve_dataloader(self) -> DataLoader[Table]:
        """All training rows."""
        return DataLoader(Shared(self.solving), batch_size=None)

    def pictures(self, model: PBP, table: Table, log_probabilities: Tensor) -> dict[str, Picture]:
        """Pictures of rows and of the model's answers about them; none by default.

        Args:
            model: trained.
            table: complete rows.
            log_probabilities: (rows, classes) the model's answers about them.
        """
        return {}


def hidden_leaves(table: Table, leaves: Sequence[str], count: int, seed: int) -> Table:
    """The table with ``count`` leaves of each row NaN, drawn uniformly at random row by row."""
    rows = len(table[leaves[0]])
    order = np.random.default_rng(seed).random((rows, len(leaves))).argsort(axis=1, kind="stable")
    hidden = torch.from_numpy(order < count)
    masked = {
        name: table[name].masked_fill(hidden[:, i].reshape(-1, *[1] * (table[name].ndim - 1)), torch.nan)
        for i, name in enumerate(leaves)
    }
    return {**table, **masked}


class BalancedDraws(Dataset[Table]):
    """Batch number i: support rows, as many of each class, then query rows, both drawn by (seed, i).

    Its length is that of an epoch, for ``trainer.overfit_batches``; there are batches of any number.
    """

    def __init__(
        self, table: Table, target: str, support: int, query: int, seed: int, change: Change | None, length: int = 1
    ) -> None:
        counts = torch.bincount(table[target])
        if bool((counts == 0).any()):
            absent = (counts == 0).nonzero().flatten().tolist()
            raise DataError(f"Training rows: expected some of every class, got none of {absent}.")
        order = table[target].argsort(stable=True)
        self.table = {name: x[order] for name, x in table.items()}  # grouped by class
        self.counts, self.starts, self.rows = counts, counts.cumsum(0) - counts, len(order)
        self.support, self.query, self.seed, self.change = support, query, seed, change
        self.length = length

    def __len__(self) -> int:
        return self.length

    @property
    def support_rows(self) -> int:
        """Support rows of all classes."""
        return len(self.counts) * self.support

    def __getitem__(self, number: int) -> Table:
        generator = generator_of(self.seed, number)
        share = torch.rand(len(self.counts), self.support, generator=generator)
        support = self.starts.unsqueeze(1) + (share * self.counts.unsqueeze(1)).long()
        chosen = torch.cat([support.flatten(), torch.randint(self.rows, (self.query,), generator=generator)])
        table = {name: x[chosen] for name, x in self.table.items()}
        return table if self.change is None else self.change(table, generator)


class Numbers(Sampler[int]):
    """Numbers of the batches of an epoch: epoch · length, epoch · length + 1, …"""

    def __init__(self, length: int) -> None:
        self.length, self.epoch = length, 0

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls it before each epoch, after an interruption too."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        # The epoch is read with the first batch: after an interruption Lightning makes the iterator before it sets the epoch.
        for step in range(self.length):
            yield self.epoch * self.length + step


class ChangedCopies(Dataset[Table]):
    """All rows as they are, then changed copies of all of them, in blocks; made on demand."""

    def __init__(self, table: Table, copies: int = 0, seed: int = 0, change: Change | None = None) -> None:
        self.table, self.copies, self.seed, self.change = table, copies, seed, change
        self.blocks = -(-len(next(iter(table.values()))) // ROWS_AT_ONCE)

    def __len__(self) -> int:
        return (self.copies + 1) * self.blocks

    def __getitem__(self, number: int) -> Table:
        if number >= len(self):
            raise IndexError(number)
        copy, block = divmod(number, self.blocks)
        rows = {name: x[block * ROWS_AT_ONCE : (block + 1) * ROWS_AT_ONCE] for name, x in self.table.items()}
        if not copy or self.change is None:
            return rows
        return self.change(rows, generator_of(self.seed, 1, number))  # other draws than in training


class Shared(Dataset[Table]):
    """This process's share of the rows of each batch: all processes draw the same batches, so that draws depend on row and seed only.

    Args:
        batches: by number.
        cut: the share is one of the first so many rows and one of the others.
    """

    def __init__(self, batches: Dataset[Table], cut: int = 0) -> None:
        self.batches, self.cut = batches, cut

    def __getitem__(self, number: int) -> Table:
        batch = self.batches[number]
        if world_size() == 1:
            return batch
        rows = torch.arange(len(next(iter(batch.values()))))
        first, rest = rows[: self.cut], rows[self.cut :]
        share = torch.cat([first[own_share(len(first))], rest[own_share(len(rest))]])
        return {name: column[share] for name, column in batch.items()}

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]
