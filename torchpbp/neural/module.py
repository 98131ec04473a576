"""PBPModule: encoders and stage-1 nets of a PBP model, trained with Lightning through both closed-form stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from typing_extensions import Self

from torchpbp.distributed import gather_rows, process_rank, shares, sum_over_processes, world_size
from torchpbp.errors import ArgumentError, DataError, DataWarning, StructureError, warn_caller
from torchpbp.inference.leaf_features import LeafReader
from torchpbp.inputs.sources import DataLike
from torchpbp.lazy import pandas as pd
from torchpbp.learning.message_nets import Masking
from torchpbp.learning.net_fitting import random_masks
from torchpbp.models.pbp import PBP
from torchpbp.neural.answers import Answers
from torchpbp.neural.batches import TableLoader, read_batch, several_batches
from torchpbp.neural.fitting import fit_table
from torchpbp.neural.support import solve_support
from torchpbp.settings import (
    Settings,
    between,
    choice,
    flag,
    instance,
    non_negative,
    optional,
    positive,
    setting,
    several,
    whole,
)
from torchpbp.settings import seed as seed_setting

PREPARED_ROWS = 20_000
"""Largest number of rows from which kernel maps and input scales are estimated before training."""


@dataclass(frozen=True, kw_only=True)
class ModuleSettings(Settings):
    """Settings of :class:`PBPModule`."""

    hide: float = setting(0.8, between(0.0, 1.0))
    most_hidden: float = setting(0.75, between(0.0, 1.0))
    support: float = setting(0.6, between(0.0, 1.0))
    hidden: tuple[int, ...] | None = setting(
        None, optional(several(whole(1), expected="a list with the width of each hidden layer"))
    )
    instruments: float | None = setting(None, optional(positive()))
    residual: bool = setting(True, flag())
    link: bool = setting(True, flag())
    gradient: Literal["solve", "stopped"] = setting("solve", choice("solve", "stopped"))
    learning_rate: float = setting(3e-3, positive())
    weight_decay: float = setting(0.01, non_negative())
    warmup: int = setting(100, whole(1))
    clip: float = setting(1.0, positive())
    validation_rows: int = setting(4_000, whole(1))
    seed: int = setting(0, seed_setting())


class PBPModule(LightningModule):
    """Trains the encoders and stage-1 nets of a :class:`~torchpbp.PBP` model by the loss of its answers.

    Each step solves both closed-form stages on a part of the batch, the support, and predicts the other rows, the queries;
    the prediction loss is differentiated through contraction, stage 2 and stage 1. It trains the encoders and the message nets.
    The instrument nets learn to predict messages (S1A) and their products (S1B); their error is added to the loss.
    After training, the operators of :attr:`model` are solved on all rows of ``datamodule.solve_dataloader()`` or, without
    such a method, of the training loader.

    :meth:`fit` trains on a table in one call. With a Trainer of one's own, a batch is a dict, leaf -> (rows, *shape) values (NaN where missing) or (rows,) states (-1 where missing), including the
    target; or a tuple of tensors in the order of ``model.graph.observed``. The first ``support`` share of its rows is the
    support.

    Args:
        model: a PBP model, with encoders or without. Its ``stage1`` becomes the separators' nets.
        target: the variable to predict, with the loss −log P(target | visible leaves). By default the model's condition
            variable. Without target and condition each leaf is predicted from the others: discrete leaves with the loss
            −log P, other leaves contrastively among the values of the batch.
        hide: share of the rows with hidden leaves, which train encoders and readout on missing values.
        most_hidden: largest share of hidden leaves in such a row; the number of hidden leaves is uniform from one to this.
        support: share of the rows of a batch that form the support.
        hidden: widths of the hidden layers of the separators' nets, by default (48, 48); of a model with nets, theirs.
        instruments: dimensions of an instrument per dimension of its message, by default 2; of a model with nets, theirs.
        residual: add a learned residual to the evidence of encoded leaves.
        link: compute probabilities of the target by a learned link (:class:`~torchpbp.inference.readout.Readout`) instead of
            by clipping.
        gradient: "solve": through both stages; "stopped": operators are constants to the loss, for comparison.
        learning_rate: rate of AdamW after the warm-up; that of the ridges is ten times larger.
        weight_decay: of AdamW.
        warmup: number of steps in which the rate rises; it is constant from then on.
        clip: largest norm of the gradient.
        validation_rows: largest number of training rows on which operators are solved before a validation.
        seed: of the nets' initial weights and of the hidden leaves; draws depend on it and on the step only.

    Attributes:
        model: the model, trained in place.
        history: table with a row for each validation of :meth:`fit`; None before.
        skipped: number of steps skipped because loss or gradient was not finite.
        unlabelled: rows without a target in the last epoch.

    Example:
        >>> import torchpbp
        >>> truth = torchpbp.DiscreteNetwork.random(torchpbp.templates.naive_bayes(3), seed=1)
        >>> module = PBPModule(torchpbp.PBP(truth.graph), target="x1").fit(truth.sample(500, seed=0), max_steps=20)
        >>> module.model.posterior("x1", {"x2": [0, 1]}).shape
        torch.Size([2, 4])
    """

    skipped: Tensor
    unlabelled: Tensor
    prepared: Tensor

    def __init__(
        self,
        model: PBP,
        target: str | None = None,
        *,
        hide: float = 0.8,
        most_hidden: float = 0.75,
        support: float = 0.6,
        hidden: Sequence[int] | None = None,
        instruments: float | None = None,
        residual: bool = True,
        link: bool = True,
        gradient: Literal["solve", "stopped"] = "solve",
        learning_rate: float = 3e-3,
        weight_decay: float = 0.01,
        warmup: int = 100,
        clip: float = 1.0,
        validation_rows: int = 4_000,
        seed: int = 0,
    ) -> None:
        super().__init__()
        instance(PBP, expected="a torchpbp.PBP model").check("model", model)
        self.settings = ModuleSettings(
            hide=hide,
            most_hidden=most_hidden,
            support=support,
            hidden=hidden,  # type: ignore[arg-type]
            instruments=instruments,
            residual=residual,
            link=link,
            gradient=gradient,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            warmup=warmup,
            clip=clip,
            validation_rows=validation_rows,
            seed=seed,
        )
        self.model = model.train()  # a fitted or loaded model is in evaluation mode
        self.target = _checked_target(model, target)
        settings = self.settings
        if model.encoders is not None and settings.residual:
            model.encoders.add_residuals()
        masking = Masking(context=settings.hide, most=settings.most_hidden)
        linked = self.target if settings.link else None
        model.attach_nets(settings.hidden, settings.instruments, settings.seed, linked, masking)
        self.answers = Answers(model, self.target)
        self.history: pd.DataFrame | None = None
        self._ended = False
        self.register_buffer("skipped", torch.zeros((), dtype=torch.int64))
        self.register_buffer("unlabelled", torch.zeros((), dtype=torch.int64))
        self.register_buffer("prepared", torch.zeros((), dtype=torch.bool))

    @property
    def reader(self) -> LeafReader:
        """Reader of the model's leaves."""
        return self.model.operators.reader

    # -- training ------------------------------------------------------------------------------------------------

    def fit(
        self,
        table: DataLike,
        validation: DataLike | None = None,
        *,
        batch_size: int = 400,
        max_steps: int = 4_000,
        seed: int | None = None,
        progress: bool = True,
        trainer: Mapping[str, Any] | None = None,
    ) -> Self:
        """Train on a table, as long as validation rows improve, then solve the operators on all rows.

        A running average of the weights (:class:`~torchpbp.WeightAverage`) is validated every 100 steps, 250 with more than
        3,000 training rows: operators are solved on training rows (at most ``validation_rows``), and the loss is the mean over the validation rows with
        none, a third, half and four fifths of their leaves hidden. Training stops if the loss has not improved by 0.1 % for
        400 steps, or for half of the steps up to the best validation if that is more. The weights of the best validation are
        used; the operators are then solved on training and validation rows.

        Args:
            table: rows of any kind that :meth:`PBP.fit <torchpbp.PBP.fit>` reads, with the target. States, also those of the
                target, may be strings or categories; ``model.labels`` has them afterwards.
            validation: rows for validation. By default a fifth of the rows is held out, at most about 4,000: of each class of
                the target the same share.
            batch_size: rows of a step, about; all rows if there are fewer. Batches of an epoch have the same size.
            max_steps: largest number of steps.
            seed: of the order of the rows, of the rows held out and of the leaves hidden in validation; by default the module's.
            progress: show a progress bar, after two seconds.
            trainer: further arguments of Lightning's Trainer, such as ``{"accelerator": "gpu"}``; by default it trains on the
                device of the model.

        Returns:
            The module itself. ``history`` has the columns step, loss and, with a target, accuracy, of the validation rows
            without hidden leaves.

        Raises:
            DataError: rows that cannot be read or learned from, or no rows to validate on.
        """
        size, steps = whole(1).check("batch_size", batch_size), whole(1).check("max_steps", max_steps)
        seeded = self.settings.seed if seed is None else seed_setting().check("seed", seed)
        shown = flag().check("progress", progress)
        self.train()
        self.history = pd.DataFrame(fit_table(self, table, validation, size, steps, seeded, shown, trainer or {}))
        return self

    def configure_optimizers(self) -> Any:
        settings = self.settings
        ridges = [self.model.nets.log_ridge]
        if self.model.encoders is not None:
            ridges.append(self.model.encoders.log_ridge)
        readout = self.model.operators.readout
        links = [] if readout is None else list(readout.parameters())
        special = {id(p) for p in (*ridges, *links)}
        learned = [
            p
            for part in (self.model.encoders, self.model.nets)
            if part is not None
            for p in part.parameters()
            if id(p) not in special
        ]
        groups: list[dict[str, Any]] = [
            {"params": learned, "lr": settings.learning_rate, "weight_decay": settings.weight_decay},
            {"params": ridges, "lr": 10 * settings.learning_rate, "weight_decay": 0.0},
            {"params": links, "lr": 3 * settings.learning_rate, "weight_decay": 0.0},
        ]
        groups = [g for g in groups if g["params"]]
        # A fused optimiser unscales the gradients of mixed precision in its step, which is too late for clipping.
        optimizer = torch.optim.AdamW(groups, fused=not str(self.trainer.precision).endswith("-mixed"))
        return warmed_up(optimizer, settings.warmup)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        largest = self.settings.clip if gradient_clip_val is None else gradient_clip_val  # 0: no clipping
        self.clip_gradients(optimizer, largest, gradient_clip_algorithm or "norm")

    def setup(self, stage: str) -> None:
        if stage != "fit":
            return
        self._require_gradients(False)  # operators are solved for, not trained
        self.model.nets.train()  # an earlier training left the model in evaluation mode
        contrasted = [v for v, o in self.reader.observables.items() if o.continuous]
        if world_size() > 1 and self.target is None and contrasted:
            raise StructureError(
                f"PBPModule: without a target, values of {contrasted[:3]} are contrasted with those of all other rows of a batch, "
                "which several processes do not share. Give target=, or train in one process."
            )
        precision = str(self.trainer.precision)
        if precision in ("16-true", "bf16-true"):
            raise ArgumentError(
                f"precision={precision}: least-squares problems cannot be solved in half precision. Use "
                f"{precision.replace('true', 'mixed')}, in which only the encoders run in half precision, or 32-true."
            )
        if precision.endswith("-mixed") and self.model.encoders is None:
            raise ArgumentError(
                f"precision={precision}: only encoders run in mixed precision, and the model has no encoders, so it would change "
                "nothing. Leave it out."
            )

    def _require_gradients(self, required: bool) -> None:
        net = self.model.operators
        net.separators.requires_grad_(required)
        net.root.requires_grad_(required)

    def on_train_start(self) -> None:
        loader = self.trainer.train_dataloader
        if self.trainer.overfit_batches and isinstance(loader, TableLoader):
            loader.sampler.shuffle = False  # the same batches in each epoch; Lightning changes DataLoaders only
        if not bool(self.prepared):
            most = -(-PREPARED_ROWS // world_size())
            tables = several_batches(self._solve_batches, most, self.model, self.device)
            self.model.prepare_leaves(tables if world_size() == 1 else _gathered(tables))
            self.prepared.fill_(True)

    def on_train_epoch_start(self) -> None:
        self.unlabelled.zero_()

    def training_step(self, batch: Any, _: int) -> Tensor | None:
        settings, reader = self.settings, self.reader
        table = read_batch(batch, self.model, self.device)
        rows = len(next(iter(table.values())))
        cut = max(1, min(rows - 1, round(settings.support * rows)))
        # Masks are drawn for the rows of all processes, supports first, so that they depend on row and seed only.
        parts = shares(cut, rows - cut)
        if any(min(part) < 1 for part in parts):
            raise DataError(
                f"PBPModule: expected batches of at least 2 rows, some for the support and some to predict, got {rows}. Raise "
                "the batch size, or drop_last=True."
            )
        before, total = ([sum(x) for x in zip((0, 0), *p, strict=True)] for p in (parts[: process_rank()], parts))
        supports, queries = zip(before, total, strict=True)
        support, query = ({v: x[part] for v, x in table.items()} for part in (slice(cut), slice(cut, None)))
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + self.global_step)
        if self.target is not None:
            self.unlabelled += sum_over_processes((table[self.target] < 0).sum())
        seen = reader.seen(support)
        rates = self.model.nets.masking.instruments, settings.most_hidden
        shown = seen & random_masks(seen, *rates, generator, supports)
        context = seen & random_masks(seen, settings.hide, settings.most_hidden, generator, supports)
        asked = reader.seen(query)
        asked = asked & random_masks(asked, settings.hide, settings.most_hidden, generator, queries)
        try:
            solved = solve_support(self.model, support, seen, shown, context, settings.gradient == "solve")
            answered = self.answers.loss(solved, query, asked, shared=world_size() > 1)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # moments that are not finite have no factors
            return self._skipped()
        loss = answered + solved.error.to(answered)
        if world_size() == 1 and not bool(torch.isfinite(loss.detach())):
            return self._skipped()
        several = world_size() > 1
        self.log("train/loss", answered.detach(), prog_bar=True, batch_size=rows - cut, sync_dist=several)
        self.log("train/stage1_error", solved.error.detach(), batch_size=cut, sync_dist=several)
        return loss + 0.0 * self._every_parameter() if several else loss

    def _skipped(self) -> Tensor | None:
        """The loss of a skipped step: None, or NaN in several processes, whose gradients are then dropped in all of them."""
        if world_size() > 1:
            return float("nan") * self._every_parameter()
        self.skipped += 1
        return None

    def _every_parameter(self) -> Tensor:
        """A scalar that depends on all trained parameters, because processes wait for the gradient of each."""
        return torch.stack([p.sum().double() for p in self.parameters() if p.requires_grad]).sum()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if gradients and not bool(torch.stack([n.float() for n in torch._foreach_norm(gradients)]).isfinite().all()):
            self.skipped += 1
            optimizer.zero_grad(set_to_none=True)

    # -- solving on all rows -------------------------------------------------------------------------------------

    def on_fit_end(self) -> None:
        if bool(self.prepared) and not self._ended:  # the checkpoint was that of a finished training: no step was left
            self.on_train_end()
        self._ended = False

    def on_train_end(self) -> None:
        self._ended = True
        self._require_gradients(True)
        self.solve(self._solve_batches)
        self.model.eval()
        if int(self.skipped):
            warn_caller(
                f"PBPModule: {int(self.skipped)} steps were skipped because loss or gradient was not finite. Lower learning_rate=.",
                DataWarning,
            )
        if int(self.unlabelled):
            warn_caller(
                f"PBPModule: {int(self.unlabelled)} rows of the last epoch have no '{self.target}'; they were left out of the loss.",
                DataWarning,
            )

    def solve(self, batches: Any, rows: int | None = None) -> None:
        """Solve the model's operators on rows, for fixed encoders and nets.

        Args:
            batches: a loader, or a function that returns a fresh iterator over batches.
            rows: largest number of rows; all by default.

        Raises:
            DataError: rows that nothing can be learned from, or weights by which the operators are not determined.
        """
        opened = batches if callable(batches) else lambda: iter(batches)
        most = None if rows is None else -(-rows // world_size())
        reason = "NaN or infinity"
        try:
            self.model.solve(lambda: several_batches(opened, most, self.model, self.device))
            if bool(torch.stack([op.weight.isfinite().all() for op in self.model.operators.separator_operators]).all()):
                return
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            reason = str(error)
        raise DataError(
            f"PBPModule: the operators cannot be solved on these rows ({reason}), because features or weights are too large or not "
            "finite. Train again with a lower learning_rate=, and look for huge values in the rows."
        )

    def _solve_batches(self) -> Iterator[Any]:
        data: Any = getattr(self.trainer, "datamodule", None)
        loader = data.solve_dataloader() if hasattr(data, "solve_dataloader") else self.trainer.train_dataloader
        if loader is None:
            raise StructureError("PBPModule: no training rows to solve the operators on. Call module.solve(loader).")
        return iter(loader)

    # -- validation ----------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        if self.trainer.state.fn != TrainerFn.FITTING:  # trainer.validate(module): no solve
            self.model.require_fitted()
        elif not self.trainer.sanity_checking:
            self.solve(self._solve_batches, self.settings.validation_rows)

    def validation_step(self, batch: Any, _: int, dataloader_idx: int = 0) -> None:
        if self.trainer.sanity_checking:
            return
        table = read_batch(batch, self.model, self.device)
        for name, (value, rows) in self.answers.scores(table).items():
            self.log(f"val/{name}", value, prog_bar=name != "rows", batch_size=rows, sync_dist=world_size() > 1)

    def forward(self, evidence: Mapping[str, Any]) -> Any:
        """Posteriors of the model."""
        return self.model(evidence)


def warmed_up(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    """An optimizer for Lightning whose rates rise over a number of steps and are constant from then on."""
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / steps, total_iters=steps)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def _gathered(tables: Iterator[dict[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """The rows of all processes as one table."""
    parts = list(tables)
    yield {v: gather_rows(torch.cat([part[v] for part in parts])) for v in parts[0]}


def _checked_target(model: PBP, target: str | None) -> str | None:
    if target is None:
        target = model.condition
    context = model.encoders is not None and model.encoders.context
    if target is None:
        if context:
            raise ArgumentError(
                "target: a context encoder is trained to answer about a target. Give target= or condition=."
            )
        return None
    if target not in model.states:
        raise ArgumentError(
            f"target: expected a discrete observable, one of {', '.join(model.states) or 'none'}; got {target!r}."
        )
    return target
