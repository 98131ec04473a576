"""Counting of many small tables as marginals of a few larger ones.

The tables that learning needs overlap: the 27 tables of a loopy diamond are over the same eight variables. A cover is a group of
variables that contains several tables and still fits into a processor's cache. Rows are coded and counted once per cover
instead of once per table, and the tables are computed as marginals of their cover at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from torchpbp.graph.domains import Scope
from torchpbp.grouping import holders

LARGEST_COVER = 1 << 16
"""Largest number of cells of a cover of several tables: 512 KB of counts."""
COVER_BUDGET = 1 << 24
"""Largest number of cells of all such covers: 128 MB."""
ROWS_AT_ONCE = 1 << 18
"""Rows per block of codes."""


class Cover:
    """Counts of the joint states of a group of variables.

    Args:
        variables: the group, in the order of the data.
        states: number of states of each variable.
        counts: (cells,) tensor of any dtype to add counts to; a new int64 tensor by default.
        device: device of the rows.
    """

    def __init__(
        self,
        variables: Scope,
        states: Mapping[str, int],
        counts: Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.variables = variables
        self.sizes = [states[v] for v in variables]
        cells = math.prod(self.sizes)
        self.counts = torch.zeros(cells, dtype=torch.int64, device=device) if counts is None else counts
        self.parts = byte_parts(variables, states)

    def add(self, codes: Tensor) -> None:
        """Count rows by their (rows,) joint states."""
        if len(self.counts) <= 4 * len(codes):
            self.counts += torch.bincount(codes, minlength=len(self.counts))
        else:  # time proportional to rows, not to cells
            self.counts.index_add_(0, codes.long(), self.counts.new_ones(len(codes)))

    def marginals(self, scopes: Iterable[Scope]) -> list[Tensor]:
        """Counts of groups within the cover, each (cells of the group,).

        Variables are summed out one by one, the last one first, and common partial sums are reused. Summing scattered
        dimensions at once is many times slower.
        """
        sums = {self.variables: self.counts}
        size = dict(zip(self.variables, self.sizes, strict=True))
        result = []
        for scope in scopes:
            left = self.variables
            for v in reversed(self.variables):
                if v in scope:
                    continue
                at = left.index(v)
                shorter = (*left[:at], *left[at + 1 :])
                if shorter not in sums:
                    after = math.prod(size[w] for w in left[at + 1 :])
                    sums[shorter] = sums[left].reshape(-1, size[v], after).sum(dim=1).reshape(-1)
                left = shorter
            result.append(sums[left])
        return result


def byte_parts(variables: Scope, states: Mapping[str, int]) -> list[tuple[Scope, int]]:
    """Runs of variables with at most 255 joint states, each with its number of joint states: codes of one byte.

    Arithmetic on bytes is many times faster than on 64 bits.
    """
    parts: list[tuple[Scope, int]] = []
    for v in variables:
        if parts and parts[-1][1] * states[v] <= 255:
            parts[-1] = ((*parts[-1][0], v), parts[-1][1] * states[v])
        else:
            parts.append(((v,), states[v]))
    return parts


class RowCounter:
    """Counts rows in several covers.

    Memory for codes is allocated once: if the C library returns freed memory at once, as in Dask's workers, allocation per block
    takes longer than counting.

    Args:
        covers: covers to count in.
    """

    def __init__(self, covers: Sequence[Cover]) -> None:
        self._covers = covers
        last = {part: i for i, cover in enumerate(covers) for part, _ in cover.parts}
        slots: dict[Scope, int] = {}
        free: list[int] = []
        self._slots = 0
        self._new: list[list[tuple[Scope, int]]] = []  # per cover the new parts and their slots
        for i, cover in enumerate(covers):
            new = [part for part, _ in cover.parts if len(part) > 1 and part not in slots]
            for part in new:
                slots[part] = free.pop() if free else self._slots
                self._slots = max(self._slots, slots[part] + 1)
            self._new.append([(part, slots[part]) for part in new])
            free += [slots[part] for part, _ in cover.parts if part in slots and last[part] == i]
        self._memory: tuple[Tensor, Tensor] | None = None  # (slots, rows) bytes, and (2, rows) int32

    def add(self, columns: Mapping[str, Tensor]) -> None:
        """Count rows.

        Args:
            columns: name -> (rows,) states, uint8 for at most 256 states, otherwise int32.
        """
        first = next(iter(columns.values()))
        block = min(len(first), ROWS_AT_ONCE)
        if self._memory is None or self._memory[0].shape[1] < block:
            self._memory = (
                torch.empty(self._slots, block, dtype=torch.uint8, device=first.device),
                torch.empty(2, block, dtype=torch.int32, device=first.device),
            )
        for start in range(0, len(first), block):
            rows = min(block, len(first) - start)
            slots, codes = (memory[:, :rows] for memory in self._memory)
            self._add_block({(v,): c[start : start + rows] for v, c in columns.items()}, slots, *codes)

    def _add_block(self, codes: dict[Scope, Tensor], slots: Tensor, code: Tensor, wide: Tensor) -> None:
        for cover, new in zip(self._covers, self._new, strict=True):
            for part, slot in new:
                codes[part] = _byte_code(codes, part, cover, slots[slot])
            code.copy_(codes[cover.parts[0][0]])
            for part, size in cover.parts[1:]:
                torch.add(wide.copy_(codes[part]), code, alpha=size, out=code)
            cover.add(code)


def _byte_code(codes: Mapping[Scope, Tensor], part: Scope, cover: Cover, out: Tensor) -> Tensor:
    code = codes[part[:1]]
    for v in part[1:]:
        code = torch.add(codes[v,], code, alpha=cover.sizes[cover.variables.index(v)], out=out)
    return code


def find_covers(scopes: Sequence[Scope], states: Mapping[str, int]) -> list[tuple[Scope, list[int]]]:
    """Groups of variables that contain all scopes, each with the indices of its scopes.

    Covers are as large as their total memory allows.
    """
    largest = LARGEST_COVER
    while True:
        covers = _greedy_covers(scopes, states, largest)
        if sum(math.prod(states[v] for v in group) for group, members in covers if len(members) > 1) <= COVER_BUDGET:
            return covers
        largest //= 4


def _greedy_covers(scopes: Sequence[Scope], states: Mapping[str, int], largest: int) -> list[tuple[Scope, list[int]]]:
    """Few covers with at most ``largest`` cells.

    A cover starts with a scope and is extended one variable at a time: by the variable that completes most scopes, and among
    equals the one that shares most scopes with the cover. A scope with more than ``largest`` cells is a cover of its own.
    """
    position = {v: i for i, v in enumerate(states)}
    members = [frozenset(s) for s in scopes]
    open_scopes = dict.fromkeys(range(len(scopes)))
    places = holders(scopes)
    result = []
    while open_scopes:
        first = next(iter(open_scopes))
        group = set(scopes[first])
        cells = math.prod(states[v] for v in group)
        while cells < largest:
            gains: dict[str, list[int]] = {}
            for i in dict.fromkeys(i for v in group for i in places[v] if i in open_scopes):
                absent = members[i] - group
                for v in absent:
                    gain = gains.setdefault(v, [0, 0])
                    gain[len(absent) > 1] += 1
            fitting = [v for v in gains if cells * states[v] <= largest]
            if not fitting:
                break
            best = max(fitting, key=lambda v: (*gains[v], -position[v]))
            group.add(best)
            cells *= states[best]
        held = [
            i for i in dict.fromkeys(i for v in group for i in places[v]) if i in open_scopes and members[i] <= group
        ]
        for i in held:
            del open_scopes[i]
        used = set().union(*(members[i] for i in held))  # drop variables that completed no scope
        result.append((tuple(sorted(used, key=position.__getitem__)), sorted(held)))
    return result
