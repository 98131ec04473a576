"""The pen digits as a Lightning data module."""

from __future__ import annotations

import doctest
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import torchpbp.datasets
from tests.datasets.test_digits import original_texts
from torchpbp.datasets import DigitsDataModule, digits, digits_module, load_digits
from torchpbp.errors import ArgumentError, DataError

lightning = pytest.importorskip("lightning.pytorch")


def ready(**options: Any) -> DigitsDataModule:
    module = DigitsDataModule(**options)
    module.setup()
    return module


def test_official_split() -> None:
    data, d = ready(), load_digits()
    assert torch.equal(data.train_x, d.train_x[:7000])
    assert torch.equal(data.train_y, d.train_y[:7000])
    assert torch.equal(data.val_x, d.train_x[7000:])
    assert torch.equal(data.val_y, d.train_y[7000:])
    assert torch.equal(data.test_x, d.test_x)
    assert torch.equal(data.test_y, d.test_y)
    assert len(data.val_y) == 494
    assert len(data.test_y) == 3498


def test_cells_are_harder_than_random_rows() -> None:
    """A nearest neighbour is 99.4 % right on random rows of the training file (its README)."""
    data = ready(split="cells", fold=1, seed=3)
    assert torch.equal(data.val_rows, ready(split="cells", fold=1, seed=4).val_rows)
    assert len(data.val_rows) + len(data.train_rows) == 7494
    assert 1300 < len(data.val_rows) < 1700
    distance = torch.cdist(data.val_x, data.train_x)
    right = (data.train_y[distance.argmin(dim=1)] == data.val_y).float().mean()
    assert 0.95 < float(right) < 0.985


def test_rows_per_class_come_from_the_training_rows() -> None:
    data = ready(train_size=100, seed=5)
    assert data.train_y.bincount().tolist() == [100] * 10
    assert data.train_rows.max() < 7000
    assert torch.equal(data.train_rows, data.train_rows.sort().values)
    assert torch.equal(data.train_x, load_digits().train_x[data.train_rows])
    assert torch.equal(data.train_rows, ready(train_size=100, seed=5).train_rows)
    assert not torch.equal(data.train_rows, ready(train_size=100, seed=6).train_rows)
    assert set(ready(train_size=20, seed=5).train_rows.tolist()) < set(data.train_rows.tolist())
    assert len(data.val_y) == 494


def test_too_many_rows_per_class() -> None:
    with pytest.raises(
        DataError, match=r"Class \d: expected at least 700 rows to draw from, got 6\d\d. Reduce the count"
    ):
        ready(train_size=700)


def test_batches() -> None:
    data = ready(batch_size=512, train_size=100, seed=1)
    first, second = (list(data.train_dataloader()) for _ in range(2))
    assert [len(y) for _, y in first] == [512, 488]
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(first, second, strict=True))
    x, y = (torch.cat(part) for part in zip(*first, strict=True))
    assert not torch.equal(y, data.train_y)
    assert torch.equal(y.bincount(), data.train_y.bincount())
    rows = {(*a, b) for a, b in zip(map(tuple, data.train_x.tolist()), data.train_y.tolist(), strict=True)}
    assert {(*a, b) for a, b in zip(map(tuple, x.tolist()), y.tolist(), strict=True)} == rows
    assert torch.equal(torch.cat([x for x, _ in data.val_dataloader()]), data.val_x)
    assert torch.equal(torch.cat([y for _, y in data.test_dataloader()]), data.test_y)
    loader = data.train_dataloader()
    assert not torch.equal(next(iter(loader))[1], next(iter(loader))[1])  # a new order in each epoch


def test_batches_do_not_touch_the_global_generator() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    ready(train_size=3)
    assert torch.equal(torch.rand(3), expected)


def test_setup_is_needed_and_done_once() -> None:
    data = DigitsDataModule()
    with pytest.raises(AttributeError, match=r"no attribute 'train_x': call setup\(\) first"):
        _ = data.train_x
    with pytest.raises(AttributeError, match=r"call setup\(\) first"):
        data.val_dataloader()
    with pytest.raises(AttributeError, match=r"no attribute 'trian_x'$"):
        _ = data.trian_x
    data.setup("fit")
    tensor = data.train_x
    data.setup("test")
    assert data.train_x is tensor


def test_reads_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Could not read"):
        ready(folder=tmp_path)
    for name, content in original_texts().items():
        (tmp_path / name).write_bytes(content)
    assert torch.equal(ready(folder=tmp_path).test_x, load_digits().test_x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "random"}, "split: expected one of 'official', 'cells', got 'random'"),
        ({"batch_size": 0}, "batch_size: expected a whole number of at least 1, got 0"),
        ({"seed": -1}, "seed: expected a whole number of at least 0, got -1"),
        ({"train_size": 0}, "train_size: expected None or a whole number of at least 1, got 0"),
        ({"split": "cells", "fold": 5}, "fold: expected a whole number from 0 to 4, got 5"),
        ({"fold": 2}, "fold: split='official' has no folds"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        DigitsDataModule(**options)


def test_pickles() -> None:
    data = pickle.loads(pickle.dumps(ready(train_size=2)))
    assert data.train_x.shape == (20, 16)


class _Counter(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """A model without parameters that counts the rows it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = {"train": 0, "val": 0, "test": 0}

    def configure_optimizers(self) -> None:
        return None

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:
        self.rows["train"] += len(batch[1])

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:
        self.rows["val"] += len(batch[1])

    def test_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:
        self.rows["test"] += len(batch[1])


@pytest.mark.filterwarnings("ignore")
def test_in_a_trainer(tmp_path: Path) -> None:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", default_root_dir=tmp_path, num_sanity_val_steps=0, **quiet
    )
    model, data = _Counter(), DigitsDataModule(batch_size=1000)
    trainer.fit(model, datamodule=data)
    trainer.test(model, datamodule=data, verbose=False)
    assert model.rows == {"train": 7000, "val": 494, "test": 3498}


def test_names_of_the_package() -> None:
    assert all(hasattr(torchpbp.datasets, name) for name in torchpbp.datasets.__all__)
    assert torchpbp.datasets.DigitsDataModule is digits_module.DigitsDataModule
    with pytest.raises(AttributeError, match="no attribute 'load_digit'"):
        _ = torchpbp.datasets.load_digit


@pytest.mark.parametrize("module", [digits, digits_module])
def test_examples_in_docstrings(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
