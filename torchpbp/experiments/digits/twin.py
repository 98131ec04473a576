"""The twin of a neural PBP model: the same encoder with a perceptron behind it in place of the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from torchpbp.datasets.digits import CLASSES, LARGEST, POINTS
from torchpbp.experiments.digits.distortions import hidden_at_random
from torchpbp.experiments.digits.stroke_batches import DIGIT, POINT_NAMES, Batch
from torchpbp.neural.encoders import ContextEncoder, PointEncoder

FILLS = ("zero", "mean")
"""What stands for the features of a hidden point."""


CENTRE, SCALE = LARGEST / 2, LARGEST / 3
"""By which encoders bring coordinates to numbers of about unit size around 0."""


def context_encoder(features: int = 7, width: int = 192, head: int = 64) -> ContextEncoder:
    """Features of each point from its own position and from all other points that are seen."""
    return ContextEncoder(POINT_NAMES, (2,), features, width, head, centre=CENTRE, scale=SCALE)


def point_encoder(features: int = 7, width: int = 64) -> PointEncoder:
    """Features of a point from its own two coordinates."""
    return PointEncoder((2,), features, width, CENTRE, SCALE)


class PointEncoders(nn.Module):
    """One :class:`~torchpbp.neural.encoders.PointEncoder` for each point.

    Args:
        features: of each point.
        width: of the hidden layers.
    """

    def __init__(self, features: int = 7, width: int = 64) -> None:
        super().__init__()
        self.features = features
        self.each = nn.ModuleList(point_encoder(features, width) for _ in POINT_NAMES)

    def forward(self, points: Tensor) -> Tensor:
        """(n, points, 2) coordinates -> (n, points, features)."""
        return torch.stack([net(points[:, t]) for t, net in enumerate(self.each)], dim=1)


class StrokeTwin(LightningModule):
    """Encoder and perceptron, trained by cross-entropy on distorted strokes with hidden points.

    All draws follow from the seed and the number of the step, so that a resumed training goes on as it would have.

    Args:
        encoder: features of points.
        width: of the perceptron's two hidden layers.
        hide: share of the training rows with hidden points.
        most_hidden: points hidden in one row.
        learning_rate: largest one; it rises, then falls to nearly 0.
        weight_decay: of AdamW.
        warm_up: share of the steps in which the learning rate rises.
        seed: of the hidden points.
    """

    mean: Tensor

    def __init__(
        self,
        encoder: ContextEncoder | PointEncoders,
        width: int = 192,
        hide: float = 0.8,
        most_hidden: int = 6,
        learning_rate: float = 3e-3,
        weight_decay: float = 0.01,
        warm_up: float = 0.15,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        outputs = 2 * encoder.features + 1 if isinstance(encoder, ContextEncoder) else encoder.features
        self.head = nn.Sequential(
            nn.Linear(POINTS * outputs, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, CLASSES)
        )
        self.register_buffer("mean", torch.zeros(POINTS, outputs))
        self.fill = "zero"
        self.hide, self.most_hidden, self.seed = hide, most_hidden, seed
        self.learning_rate, self.weight_decay, self.warm_up = learning_rate, weight_decay, warm_up

    def forward(self, points: Tensor) -> Tensor:
        """(n, points, 2) coordinates, NaN where hidden -> (n, classes) log-probabilities."""
        seen = ~points.isnan().any(dim=2, keepdim=True)
        features = self.encoded(points.nan_to_num(0.0), seen)
        filled = torch.where(seen, features, self.mean if self.fill == "mean" else 0.0)
        return torch.log_softmax(self.head(filled.flatten(1)), dim=1)

    def encoded(self, points: Tensor, seen: Tensor) -> Tensor:
        """(n, points, outputs) of the encoder; ``seen`` (n, points, 1)."""
        if isinstance(self.encoder, ContextEncoder):
            return self.encoder.outputs((points - self.encoder.centre) / self.encoder.scale, seen.to(points))
        found: Tensor = self.encoder(points)
        return found

    @torch.no_grad()
    def measure_means(self, x: Tensor) -> None:
        """Note the mean features of complete strokes (rows, 16), for ``fill="mean"``."""
        points = x.reshape(len(x), POINTS, 2)
        self.mean.copy_(self.encoded(points, torch.ones_like(points[..., :1], dtype=torch.bool)).mean(dim=0))

    def training_step(self, batch: Batch, index: int) -> Tensor:
        state = np.random.SeedSequence([self.seed, 2, self.global_step]).generate_state(1)[0]
        flat = torch.cat([batch[name] for name in POINT_NAMES], dim=1)
        seen = hidden_at_random(flat, self.hide, self.most_hidden, torch.Generator().manual_seed(int(state)))
        loss = nn.functional.nll_loss(self(seen.reshape(len(flat), POINTS, 2)), batch[DIGIT])
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=len(flat))
        return loss

    def validation_step(self, batch: Batch, index: int) -> None:
        logs = self(torch.stack([batch[name] for name in POINT_NAMES], dim=1))
        right = (logs.argmax(dim=1) == batch[DIGIT]).float().mean()
        figures = {"val/loss": nn.functional.nll_loss(logs, batch[DIGIT]), "val/accuracy": right}
        self.log_dict(figures, on_epoch=True, batch_size=len(logs))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), self.learning_rate, weight_decay=self.weight_decay)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.learning_rate, steps + 1, pct_start=self.warm_up)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
