"""Images as trees of patches: the data, the twin, and a run with tiny networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import nn

import torchpbp
from torchpbp import ContextEncoder, PointEncoder
from torchpbp.errors import ArgumentError
from torchpbp.experiments.patches import data as images
from torchpbp.experiments.patches.data import DIGIT, NAMES, SHAPE, PatchBatches, PatchDigits, columns, patch_masks
from torchpbp.experiments.patches.run import run_patches
from torchpbp.experiments.running.twins import LeafTwin
from train import train

CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture(scope="module")
def digits() -> PatchDigits:
    return PatchDigits(train=300, validation=50)


def twin(context: bool) -> LeafTwin:
    torch.manual_seed(0)
    encoder: nn.Module = (
        ContextEncoder(NAMES, SHAPE, 3, 16, 8, relative=False) if context else PointEncoder(SHAPE, 3, 8)
    )
    return LeafTwin(dict.fromkeys(NAMES, encoder), dict.fromkeys(NAMES, SHAPE), DIGIT, 10, context, width=16).eval()


def test_patches_are_cut_row_by_row_and_put_together_again() -> None:
    whole = torch.arange(128.0).reshape(2, 8, 8)
    patches = images.cut(whole)
    assert patches.shape == (2, 16, 1, 2, 2)
    assert patches[0, 5, 0].tolist() == [[18.0, 19.0], [26.0, 27.0]]  # second row of patches, second from the left
    assert torch.equal(images.put_together(patches), whole)


def test_neighbours_in_the_list_are_blocks_of_the_image() -> None:
    order = images.neighbours_first(4)
    assert sorted(order) == list(range(16))
    for size, extent in ((2, (1, 2)), (4, (2, 2)), (8, (2, 4))):
        for start in range(0, 16, size):
            rows, across = zip(*(divmod(i, 4) for i in order[start : start + size]), strict=True)
            assert (max(rows) - min(rows) + 1, max(across) - min(across) + 1) == extent


def test_splits_follow_from_the_seed_and_share_no_rows(digits: PatchDigits) -> None:
    parts = [digits.train_x, digits.val_x, digits.test_x]
    assert [len(p) for p in parts] == [250, 50, 1497]
    again, other = PatchDigits(300, 50, 0), PatchDigits(300, 50, 1)
    assert torch.equal(again.test_x, digits.test_x)
    assert not torch.equal(other.test_x, digits.test_x)
    sums = torch.cat(parts).flatten(1).sort(dim=0)[0]
    assert torch.equal(sums, torch.cat([other.train_x, other.val_x, other.test_x]).flatten(1).sort(dim=0)[0])
    with pytest.raises(ArgumentError, match="train: expected rows of every digit"):
        PatchDigits(train=6, validation=1)
    with pytest.raises(ArgumentError, match="validation"):
        PatchDigits(train=100, validation=100)


def test_so_many_patches_are_hidden_in_every_row(digits: PatchDigits) -> None:
    rows = patch_masks((0, 4, 12), 2).of(digits.val_x)
    assert {k: len(draws) for k, draws in rows.items()} == {0: 1, 4: 2, 12: 2}
    for count, draws in rows.items():
        for x in draws:
            hidden = x.isnan().flatten(2)
            assert torch.equal(hidden.any(dim=2), hidden.all(dim=2))
            assert (hidden.all(dim=2).sum(dim=1) == count).all()
    assert not torch.equal(rows[4][0].isnan(), rows[4][1].isnan())


def test_batches_have_as_many_support_rows_of_each_digit(digits: PatchDigits) -> None:
    batches = PatchBatches(digits, steps=3, support=4, query=20, seed=0)
    drawn = list(batches.train_dataloader())
    assert len(drawn) == 3
    for batch in drawn:
        assert torch.bincount(batch[DIGIT][:40], minlength=10).tolist() == [4] * 10
        assert len(batch[DIGIT]) == round(40 / batches.support_share) == 60
    assert not torch.equal(drawn[0]["patch3"], drawn[1]["patch3"])


@pytest.mark.parametrize("context", [False, True])
@pytest.mark.parametrize("fill", ["zero", "mean"])
def test_hidden_leaves_have_no_influence_on_the_twin(context: bool, fill: str, digits: PatchDigits) -> None:
    net = twin(context)
    net.measure_means(columns(digits.train_x))
    net.fill = fill
    (seen,) = patch_masks((8,), 1).of(digits.val_x)[8]
    flags = net.seen(columns(seen))
    noise = torch.where(seen.isnan(), torch.rand_like(seen), seen)
    logs = net(columns(seen))
    assert torch.equal(net.answer(columns(noise), flags), logs)
    assert not torch.allclose(net(columns(noise)), logs)  # as seen patches they have
    assert torch.allclose(logs.exp().sum(dim=1), torch.ones(len(seen)), atol=1e-5)


def test_means_of_features_stand_for_hidden_leaves(digits: PatchDigits) -> None:
    net = twin(False)
    table = columns(digits.train_x)
    net.measure_means(table)
    net.fill = "mean"
    nothing = columns(torch.full((1, 16, *SHAPE), torch.nan))
    expected = torch.log_softmax(net.head(net.encoded(table, net.seen(table)).mean(dim=0).flatten()[None]), dim=1)
    assert torch.allclose(net(nothing), expected, atol=1e-5)


def test_other_learners_are_named(digits: PatchDigits) -> None:
    learner: Any = torchpbp.PBP
    with pytest.raises(ArgumentError, match="model=patches takes learner=patch_nets"):
        run_patches(digits, learner)


@pytest.mark.slow
def test_a_run_writes_tables_figures_and_models(tmp_path: Path) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", ["model=patches", "debug=default", "model.verbose=false", f"output_dir={tmp_path}"])
    metrics = train(cfg)
    assert metrics == json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
    table = pd.read_csv(tmp_path / "metrics.csv")
    test = table[table["rows"] == "test"].set_index(["training", "classifier", "hidden"])
    for way in ("complete", "hidden"):
        for name in ("PBP", "twin"):
            for share in (0, 50):
                line = test.loc[way, name, share]
                assert metrics[f"test/accuracy/{way}/{name}/{share}"] == pytest.approx(line["accuracy"])
                assert metrics[f"test/log_loss/{way}/{name}/{share}"] == pytest.approx(line["log_loss"])
        lead = metrics[f"test/accuracy/{way}/PBP/50"] - metrics[f"test/accuracy/{way}/twin/50"]
        assert metrics[f"test/lead/{way}/50"] == pytest.approx(lead)
    assert metrics["test/accuracy/complete/SVM/0"] > 0.9
    names = {path.name for path in tmp_path.iterdir()}
    assert {"hidden.png", "completed.png", "training.csv", "model.pt", "hidden_model.pt", "report.html"} <= names
    model = torchpbp.load(tmp_path / "model.pt")
    x = PatchDigits(300, 100, 0).test_x
    right = (model.posterior(DIGIT, columns(x)).argmax(dim=1) == PatchDigits(300, 100, 0).test_y).double().mean()
    assert float(right) == pytest.approx(metrics["test/accuracy/complete/PBP/0"])
