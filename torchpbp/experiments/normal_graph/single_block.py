"""Four learning rules on a single block between random messages [NG 6]."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from torchpbp.baselines.normal_graph import RULES, learn_block
from torchpbp.baselines.normal_graph.rules import Rule, block_log_likelihood
from torchpbp.errors import ArgumentError
from torchpbp.experiments.normal_graph.comparison import finish
from torchpbp.experiments.normal_graph.plots import Floats, write_coefficients, write_courses
from torchpbp.experiments.normal_graph.rules import Line, MakeLearner, check_learner
from torchpbp.experiments.running.experiment import one_or_more, seeds_of
from torchpbp.experiments.running.grid import measure_grid
from torchpbp.experiments.running.results import Metrics
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.settings import Settings, setting, several, whole


@dataclass(frozen=True)
class SingleBlockSettings(Settings):
    """Settings of :func:`run_ng_single_block`.

    Args:
        inputs: states at the input, one number per case.
        outputs: states at the output, one number per case.
        exponents: of both messages, one per case.
        rows: messages N.
        iterations: of ML and KL.
        repeats: draws of the messages.
    """

    inputs: tuple[int, ...] = setting((3, 3, 5, 5), one_or_more(several(whole(1))))
    outputs: tuple[int, ...] = setting((4, 4, 6, 6), one_or_more(several(whole(1))))
    exponents: tuple[int, ...] = setting((1, 20, 1, 20), one_or_more(several(whole(1))))
    rows: int = setting(200, whole(2))
    iterations: int = setting(100, whole(1))
    repeats: int = setting(20, whole(1))

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = len(self.inputs), len(self.outputs), len(self.exponents)
        if len(set(counts)) > 1:
            raise ArgumentError(
                f"inputs, outputs, exponents: expected one number per case in each, got {counts[0]}, {counts[1]} and "
                f"{counts[2]}."
            )


def run_ng_single_block(
    learner: MakeLearner,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Metrics:
    """Log-likelihood of a block that learns from random forward and backward messages, by each rule.

    A message is a vector of uniform numbers, each raised to an exponent and divided by the sum: the larger the exponent, the
    sharper. Input and output messages are independent, so there is nothing to find but the noise itself. A random
    matrix is the reference. What is learned from the first half of the rows is also measured on the second half.

    Args:
        learner: makes a learner of normal graphs; its delta is used.
        seed: of the draws.
        output_dir: folder for metrics.json, metrics.csv, log_likelihood.png and coefficients.png. ``None``: no files.
        verbose: show a progress bar (stderr) and the results (stdout).
        options: see :class:`SingleBlockSettings`.

    Returns:
        See :func:`torchpbp.experiments.normal_graph.comparison.compare`; measures are "log_likelihood" (learned from all rows) and
        "test_log_likelihood" (second half, learned from the first), each a sum over rows.
    """
    settings = SingleBlockSettings.from_dict(options)
    check_learner(learner)
    rows = settings.rows
    everything = torch.ones(rows, dtype=torch.float64)
    first_half = (torch.arange(rows) < rows // 2).double()
    sizes = {
        f"{x}x{y}_exponent_{exponent}": (x, y, exponent)
        for x, y, exponent in zip(settings.inputs, settings.outputs, settings.exponents, strict=True)
    }

    @lru_cache(maxsize=1)
    def drawn(case: str) -> tuple[Tensor, Tensor, Tensor]:
        return draw_messages(seed, settings.repeats, rows, *sizes[case])

    def one_rule(case: str, name: str) -> dict[str, Tensor]:
        x, y, _ = sizes[case]
        f, b, _ = drawn(case)
        rule = learner(LatentGraph([("x", "y")], {"x": x, "y": y}), rule=name, progress=False).rule
        return _learned(f, b, first_half, rule, settings.iterations)

    lines: list[Line] = []
    courses: dict[str, dict[str, Floats]] = {case: {} for case in sizes}
    coefficients: dict[str, dict[str, Floats]] = {rule: {} for rule in RULES}
    points = [(case, rule) for case in sizes for rule in RULES]
    for (case, rule), learned in measure_grid("single block", points, one_rule, output_dir, verbose):
        courses[case][rule] = learned["values"].T.numpy()
        coefficients[rule][case] = learned["thetas"].flatten(1).numpy()
        lines += _lines(case, rule, learned["values"][-1], learned["held_out"])
        if rule == RULES[-1]:
            f, b, reference = drawn(case)
            likelihood, later = (block_log_likelihood(reference, f, b, w) for w in (everything, 1 - first_half))
            courses[case]["random matrix"] = likelihood[:, None].numpy()
            lines += _lines(case, "random matrix", likelihood, later)
    if output_dir is not None:
        folder = Path(output_dir)
        write_courses(folder / "log_likelihood.png", courses, "iterations", "log-likelihood", first=0)
        write_coefficients(folder / "coefficients.png", coefficients)
    facts: Metrics = {"seed": seed, "rows": rows, "iterations": settings.iterations}
    return finish(pd.DataFrame(lines), ("log_likelihood", "test_log_likelihood"), facts, output_dir, verbose)


def draw_messages(seed: int, repeats: int, rows: int, x: int, y: int, exponent: float) -> tuple[Tensor, Tensor, Tensor]:
    """Random forward and backward messages, and a random matrix.

    Returns:
        (repeats, rows, x), (repeats, rows, y) and (repeats, x, y), each summing to 1 over its last dimension.
    """
    drawn: list[list[Tensor]] = [[], [], []]
    for repeat in range(repeats):
        rng = np.random.default_rng(seeds_of(seed, repeat, 1)[0])
        for target, shape, power in zip(drawn, ((rows, x), (rows, y), (x, y)), (exponent, exponent, 1.0), strict=True):
            uniform = torch.from_numpy(rng.random(shape)).clamp(min=1e-12)
            sharp = (uniform / uniform.amax(dim=-1, keepdim=True)) ** power  # the largest stays 1: no underflow of all
            target.append(sharp / sharp.sum(dim=-1, keepdim=True))
    f, b, theta = (torch.stack(tensors) for tensors in drawn)
    return f, b, theta


def _learned(f: Tensor, b: Tensor, first_half: Tensor, rule: Rule, iterations: int) -> dict[str, Tensor]:
    """One rule: its course on all rows, matrices of the first repeat, and what half of the rows teach about the others."""
    values, _, thetas = learn_block(f, b, torch.ones_like(first_half), rule, iterations)
    _, held_out, _ = learn_block(f, b, first_half, rule, iterations)
    return {"values": values, "thetas": thetas[:, 0].clone(), "held_out": held_out[-1].clone()}


def _lines(case: str, rule: str, values: Tensor, held_out: Tensor) -> list[Line]:
    pairs = zip(values.tolist(), held_out.tolist(), strict=True)
    return [
        {"case": case, "repeat": i, "rule": rule, "log_likelihood": v, "test_log_likelihood": h}
        for i, (v, h) in enumerate(pairs)
    ]
