"""Cost estimates of computations on a graph, from sizes alone before allocation, and their limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchpbp.errors import BudgetError

BUDGET = float(2**32)
"""Default limit of the bytes of a plan, its moments and operators, or of the tables of an exact network: 4 GiB."""
PLANNING_SECONDS = 60.0
"""Limit of the time for planning within this budget, in proportion for larger ones."""
SHOWN = 6
"""Number of variables of a clique listed in an error."""


@dataclass(frozen=True)
class Cost:
    """An estimate of memory and time, accurate within a small factor and computed in milliseconds.

    Args:
        clique: clique of the largest table.
        entries: number of entries of this table.
        moments: number of entries of all tables or moments.
        operators: number of entries of all operators.
        bytes: peak memory.
        seconds: time on one core.
        planning: seconds of planning, part of ``seconds``.
    """

    clique: tuple[str, ...]
    entries: int
    moments: int
    operators: int
    bytes: float
    seconds: float
    planning: float = 0.0

    def require(self, budget: float | None, what: str, remedy: str) -> None:
        """Raise an error if peak memory, or the time for planning, exceeds a budget.

        Args:
            budget: bytes; None for no limit.
            what: name of the computation, which begins the error.
            remedy: end of the error.

        Raises:
            BudgetError: with the largest table and the estimates.
        """
        if budget is None:
            return
        limit = PLANNING_SECONDS * max(1.0, budget / BUDGET)
        if self.bytes <= budget and self.planning <= limit:
            return
        plan = f", {_time(self.planning)} of it for the plan" if self.planning > limit else ""
        allowed = f", which allows {_time(limit)} for a plan" if plan else ""
        more = f", … ({len(self.clique)} variables)" if len(self.clique) > SHOWN else ""
        raise BudgetError(
            f"{what} would take about {_amount(self.bytes)} of memory and {_time(self.seconds)}{plan}, more than the budget of "
            f"{_amount(budget)}{allowed}. The largest table, of the clique {{{', '.join(self.clique[:SHOWN])}{more}}}, has "
            f"{_count(self.entries)} entries; all tables have {_count(self.moments)}. {remedy}"
        )


def table_cost(scopes: Iterable[Iterable[str]], states: Mapping[str, int], copies: float = 1.0) -> Cost:
    """The cost of float64 tables over groups of variables, such as the potentials of a clique tree.

    Args:
        scopes: variables of each table.
        states: number of states of each variable.
        copies: number of simultaneous copies of all tables.
    """
    tables = [tuple(sorted(scope)) for scope in scopes]
    sizes = [math.prod(states[v] for v in table) for table in tables]
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    total = sum(sizes)
    return Cost(tables[largest], sizes[largest], total, 0, 8.0 * copies * saturated(total), 1e-8 * saturated(total))


def saturated(number: int) -> float:
    """A whole number as float, clipped to the range of floats."""
    return float(number) if number < 10**300 else 1e300


def _amount(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:,.3g} {unit}"
        size /= 1024
    raise AssertionError


def _count(number: int) -> str:
    return f"{number:,}" if number < 10**12 else f"{saturated(number):.3g}"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.3g} h"
