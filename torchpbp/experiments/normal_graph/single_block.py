"""Four learning rules on a single block between random messages [NG 6]."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from torchpbp.baselines.normal_graph import RULES, learn_block
from torchpbp.baselines.normal_graph.rules import Rule, block_log_likelihood
from torchpbp.errors import DataError
from torchpbp.experiments.normal_graph.comparison import finish
from torchpbp.experiments.normal_graph.plots import Floats, write_coefficients, write_courses
from torchpbp.experiments.normal_graph.rules import Line, MakeLearner, check_learner
from torchpbp.experiments.running.experiment import check_positive, seeds_of
from torchpbp.experiments.running.results import Metrics
from torchpbp.experiments.running.run_folder import Parts
from torchpbp.graph.latent_graph import LatentGraph


def run_ng_single_block(
    learner: MakeLearner,
    inputs: Sequence[int] = (3, 3, 5, 5),
    outputs: Sequence[int] = (4, 4, 6, 6),
    exponents: Sequence[int] = (1, 20, 1, 20),
    rows: int = 200,
    iterations: int = 100,
    repeats: int = 20,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    verbose: bool = True,
) -> Metrics:
    """Log-likelihood of a block that learns from random forward and backward messages, by each rule.

    A message is a vector of uniform numbers, each raised to an exponent and divided by the sum: the larger the exponent, the
    sharper. Input and output messages are independent, so there is nothing to find but the noise itself. A random
    matrix is the reference. What is learned from the first half of the rows is also measured on the second half.

    Args:
        learner: makes a learner of normal graphs; its delta is used.
        inputs: states at the input, one number per case.
        outputs: states at the output, one number per case.
        exponents: of both messages, one per case.
        rows: messages N.
        iterations: of ML and KL.
        repeats: draws of the messages.
        seed: of the draws.
        output_dir: folder for metrics.json, metrics.csv, log_likelihood.png and coefficients.png. ``None``: no files.
        verbose: show a progress bar (stderr) and the results (stdout).

    Returns:
        See :func:`torchpbp.experiments.normal_graph.comparison.compare`; measures are "log_likelihood" (learned from all rows) and
        "test_log_likelihood" (second half, learned from the first), each a sum over rows.
    """
    check_learner(learner)
    check_positive(inputs=inputs, outputs=outputs, exponents=exponents, iterations=iterations, repeats=repeats)
    if not len(inputs) == len(outputs) == len(exponents):
        raise DataError(
            f"inputs, outputs, exponents: expected one number per case in each, got {len(inputs)}, {len(outputs)} and "
            f"{len(exponents)}."
        )
    if rows < 2:
        raise DataError(f"rows: expected at least 2, one to learn from and one to test, got {rows}.")
    everything = torch.ones(rows, dtype=torch.float64)
    first_half = (torch.arange(rows) < rows // 2).double()
    lines: list[Line] = []
    courses: dict[str, dict[str, Floats]] = {}
    coefficients: dict[str, dict[str, Floats]] = {rule: {} for rule in RULES}
    cases = list(zip(inputs, outputs, exponents, strict=True))
    parts = Parts(output_dir)
    with tqdm(total=len(cases) * len(RULES), desc="single block", disable=not verbose) as bar:
        for x, y, exponent in cases:
            case = f"{x}x{y}_exponent_{exponent}"
            f, b, reference = draw_messages(seed, repeats, rows, x, y, exponent)
            courses[case] = {}
            for rule in RULES:
                how = learner(LatentGraph([("x", "y")], {"x": x, "y": y}), rule=rule, progress=False).rule
                found = parts.get(f"{case},{rule}", partial(_learned, f, b, first_half, how, iterations))
                courses[case][rule] = found["values"].T.numpy()
                coefficients[rule][case] = found["thetas"].flatten(1).numpy()
                lines += _lines(case, rule, found["values"][-1], found["held_out"])
                bar.update()
            drawn, later = (block_log_likelihood(reference, f, b, w) for w in (everything, 1 - first_half))
            courses[case]["random matrix"] = drawn[:, None].numpy()
            lines += _lines(case, "random matrix", drawn, later)
    if output_dir is not None:
        folder = Path(output_dir)
        write_courses(folder / "log_likelihood.png", courses, "iterations", "log-likelihood", first=0)
        write_coefficients(folder / "coefficients.png", coefficients)
    facts: Metrics = {"seed": seed, "rows": rows, "iterations": iterations}
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
