"""Label sequences of six sites, a PBP model for them, and a Trainer without output."""

from __future__ import annotations

from functools import partial

from lightning.pytorch import Trainer

from torchpbp import PBP
from torchpbp.datasets import LabelledSignals, LabelSequences
from torchpbp.experiments.labelling.heads import PBPHead

DATA = LabelSequences(length=6)
PAIRS = partial(PBP, singles=2)
TRAINER = partial(
    Trainer,
    accelerator="cpu",
    max_epochs=-1,
    num_sanity_val_steps=0,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)


def parts(rows: LabelledSignals, train: int) -> tuple[LabelledSignals, LabelledSignals]:
    """The first rows, and the others."""
    return LabelledSignals(*(x[:train] for x in rows)), LabelledSignals(*(x[train:] for x in rows))


def fitted_head(count: int = 3_000, seed: int = 9) -> PBPHead:
    """A head fitted to label sequences."""
    labels = DATA.sample_labels(count, seed)
    return PBPHead(PAIRS(DATA.network.graph).fit({v: labels[:, t] for t, v in enumerate(DATA.names)}), DATA.names)
