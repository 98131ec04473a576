"""Four learning rules on a single block between random messages [NG 6]."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchpbp.baselines.normal_graph import RULES, learn_block
from torchpbp.baselines.normal_graph.rules import Rule, block_log_likelihood
from torchpbp.errors import ArgumentError
from torchpbp.experiments.grid import Run
from torchpbp.experiments.normal_graph.comparison import compare_rules
from torchpbp.experiments.normal_graph.pictures import Floats, coefficients_picture, courses_picture
from torchpbp.experiments.normal_graph.rules import Line, MakeModel
from torchpbp.experiments.results import Result
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.settings import whole

REFERENCE = "random matrix"


def ng_single_block(
    model: MakeModel,
    run: Run,
    inputs: Sequence[int] = (3, 3, 5, 5),
    outputs: Sequence[int] = (4, 4, 6, 6),
    exponents: Sequence[int] = (1, 20, 1, 20),
    rows: int = 200,
    iterations: int = 100,
    repeats: int = 20,
) -> Result:
    """Log-likelihood of a block that learns from random forward and backward messages, by each rule.

    A message is a vector of uniform numbers, each raised to an exponent and divided by the sum: the larger the exponent, the
    sharper. Input and output messages are independent, so there is nothing to find but the noise itself. A random
    matrix is the reference. The matrix learned from the first half of the rows is measured on the second half.

    Args:
        model: makes a learner of normal graphs; its delta is used.
        run: the run.
        inputs: states at the input, one number per case.
        outputs: states at the output, one number per case.
        exponents: of both messages, one per case.
        rows: messages N.
        iterations: of ML and KL.
        repeats: draws of the messages.

    Returns:
        Metrics of :func:`~torchpbp.experiments.normal_graph.comparison.compare_rules`; measures are "log_likelihood" (learned
        from all rows) and "test_log_likelihood" (second half, learned from the first), both sums over rows.
    """
    if not len(inputs) == len(outputs) == len(exponents) > 0:
        raise ArgumentError(
            f"task.inputs, task.outputs, task.exponents: expected one number per case in each, got {len(inputs)}, "
            f"{len(outputs)} and {len(exponents)}."
        )
    for name, value, least in (("rows", rows, 2), ("iterations", iterations, 1), ("repeats", repeats, 1)):
        whole(least).check(f"task.{name}", value)
    everything = torch.ones(rows, dtype=torch.float64)
    first_half = (torch.arange(rows) < rows // 2).double()
    sizes = {f"{x}x{y}_exponent_{e}": (x, y, e) for x, y, e in zip(inputs, outputs, exponents, strict=True)}

    @lru_cache(maxsize=1)
    def drawn(case: str) -> tuple[Tensor, Tensor, Tensor]:
        return draw_messages([run.seeds(repeat, 1)[0] for repeat in range(repeats)], rows, *sizes[case])

    def learned(case: str, name: str) -> dict[str, Any]:
        x, y, _ = sizes[case]
        f, b, reference = drawn(case)
        if name == REFERENCE:
            values, held_out = (block_log_likelihood(reference, f, b, w)[None] for w in (everything, 1 - first_half))
            return {"values": values.tolist(), "held_out": held_out[-1].tolist(), "entries": []}
        rule: Rule = model(LatentGraph([("x", "y")], {"x": x, "y": y}), rule=name).rule
        values, _, thetas = learn_block(f, b, everything, rule, iterations)
        _, held_out, _ = learn_block(f, b, first_half, rule, iterations)
        entries = thetas[:, 0].flatten(1)  # (iterations + 1, entries) of the first repeat
        return {"values": values.tolist(), "held_out": held_out[-1].tolist(), "entries": entries.tolist()}

    lines: list[Line] = []
    courses: dict[str, dict[str, Floats]] = {case: {} for case in sizes}
    coefficients: dict[str, dict[str, Floats]] = {rule: {} for rule in RULES}
    points = [(case, rule) for case in sizes for rule in (*RULES, REFERENCE)]
    for (case, rule), found in run.grid("single block", points, learned):
        courses[case][rule] = np.array(found["values"]).T
        if rule in coefficients:
            coefficients[rule][case] = np.array(found["entries"])
        for i, (value, held_out) in enumerate(zip(found["values"][-1], found["held_out"], strict=True)):
            line: Line = {"case": case, "repeat": i, "rule": rule}
            lines.append({**line, "log_likelihood": value, "test_log_likelihood": held_out})
    pictures = {
        "log_likelihood": courses_picture(courses, "iterations", "log-likelihood", first=0),
        "coefficients": coefficients_picture(coefficients),
    }
    main = "log_likelihood", next(iter(sizes))
    return compare_rules(lines, ("log_likelihood", "test_log_likelihood"), main, pictures)


def draw_messages(seeds: Sequence[int], rows: int, x: int, y: int, exponent: float) -> tuple[Tensor, Tensor, Tensor]:
    """Random forward and backward messages, and a random matrix, for each seed.

    Returns:
        (repeats, rows, x), (repeats, rows, y) and (repeats, x, y), each summing to 1 over its last dimension.
    """
    drawn: list[list[Tensor]] = [[], [], []]
    for seed in seeds:
        rng = np.random.default_rng(seed)
        for target, shape, power in zip(drawn, ((rows, x), (rows, y), (x, y)), (exponent, exponent, 1.0), strict=True):
            uniform = torch.from_numpy(rng.random(shape)).clamp(min=1e-12)
            sharp = (uniform / uniform.amax(dim=-1, keepdim=True)) ** power  # the largest stays 1: no underflow of all
            target.append(sharp / sharp.sum(dim=-1, keepdim=True))
    f, b, theta = (torch.stack(tensors) for tensors in drawn)
    return f, b, theta
