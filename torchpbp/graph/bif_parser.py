"""The text of a network in the Bayesian Interchange Format, taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from torchpbp.errors import DataError

Table = npt.NDArray[np.float64]

ROUNDING = 0.02
"""Printed probabilities are rounded; rows whose sum is within this of 1 are scaled to it."""

TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/)      # also comments
      |"(?P<quoted>[^"\n]*)"
      |(?P<mark>[{}()\[\]|,;])
      |(?P<word>[^\s{}()\[\]|,;"]+)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass
class BIF:
    """What a file in this format says.

    Args:
        states: name -> labels of its states, in the order of the file.
        parents: name -> its parents.
        tables: name -> (states of each parent…, states of name) conditional probabilities.
    """

    states: dict[str, tuple[str, ...]] = field(default_factory=dict)
    parents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)

    @property
    def edges(self) -> list[tuple[str, str]]:
        return [(p, v) for v, parents in self.parents.items() for p in parents]


def parse_bif(text: str, source: str = "BIF text") -> BIF:
    """Read a network from text.

    Args:
        text: in this format; ``property`` lines and comments are passed over.
        source: its name, for messages.

    Raises:
        DataError: not in this format; with the line.
    """
    return _Parser(text, source).parse()


class _Parser:
    """Recursive descent over the tokens."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._tokens = list(self._split(text))
        self._next = 0
        self._result = BIF()

    def _split(self, text: str) -> Iterator[tuple[str, int]]:
        """(token, line); ends with an empty token."""
        place, line = 0, 1
        while place < len(text):
            match = TOKEN.match(text, place)
            if match is None:
                raise DataError(f"{self._source}, line {line}: a quotation mark is not closed.")
            if match.lastgroup != "blank":
                yield match[match.lastgroup or 0], line
            line += match[0].count("\n")
            place = match.end()
        yield "", line

    # -- grammar -------------------------------------------------------------------------------------------------

    def parse(self) -> BIF:
        while self._token:
            kind = self._take()
            if kind == "network":
                self._skip_to("{")
                self._skip_block()
            elif kind == "variable":
                self._variable()
            elif kind == "probability":
                self._probability()
            else:
                self._fail("network, variable or probability", kind, back=True)
        if not self._result.states:
            self._fail("a variable", "none")
        missing = [v for v in self._result.states if v not in self._result.tables]
        if missing:
            raise DataError(f"{self._source}: no probabilities for the variables {', '.join(missing)}.")
        return self._result

    def _variable(self) -> None:
        name = self._take()
        if name in self._result.states:
            self._fail(f"each variable once, but '{name}' came before", name, back=True)
        self._expect("{")
        labels: tuple[str, ...] = ()
        while self._token != "}":
            if self._token == "property":
                self._skip_to(";")
                continue
            self._expect("type")
            self._expect("discrete")
            self._expect("[")
            count = self._take()
            self._expect("]")
            self._expect("{")
            labels = tuple(self._list("}"))
            self._expect(";")
            if count != str(len(labels)) or len(set(labels)) != len(labels) or not labels:
                self._fail(f"{count} different states of '{name}'", f"{len(labels)}: {', '.join(labels)}")
        self._expect("}")
        if not labels:
            self._fail(f"the type of '{name}'", "none")
        self._result.states[name] = labels

    def _probability(self) -> None:
        self._expect("(")
        name = self._known(self._take())
        parents: tuple[str, ...] = ()
        if self._token == "|":
            self._take()
            parents = tuple(self._known(p) for p in self._list(")"))
        else:
            self._expect(")")
        if name in self._result.tables:
            self._fail(f"one table per variable, but '{name}' has one", name)
        states = self._result.states
        table = np.full([len(states[v]) for v in (*parents, name)], np.nan)
        self._expect("{")
        default: Table | None = None
        while self._token != "}":
            kind = self._take()
            if kind == "property":
                self._skip_to(";")
            elif kind == "table":
                numbers = self._probabilities(table.size, name)
                table = np.moveaxis(numbers.reshape(len(states[name]), *table.shape[:-1]), 0, -1)
            elif kind == "default":
                default = self._probabilities(len(states[name]), name)
            elif kind == "(":
                at = self._place(self._list(")"), parents, name)
                table[at] = self._probabilities(len(states[name]), name)
            else:
                self._fail("table, default or a row of states", kind, back=True)
        self._expect("}")
        if default is not None:
            table = np.where(np.isnan(table), default, table)
        self._result.parents[name] = parents
        self._result.tables[name] = self._scaled(table, name)

    def _place(self, given: Sequence[str], parents: Sequence[str], name: str) -> tuple[int, ...]:
        states = self._result.states
        if len(given) != len(parents) or any(g not in states[p] for g, p in zip(given, parents, strict=True)):
            self._fail(f"states of {', '.join(parents) or 'no parents'} for '{name}'", ", ".join(given))
        return tuple(states[p].index(g) for g, p in zip(given, parents, strict=True))

    def _probabilities(self, count: int, name: str) -> Table:
        words = self._list(";")
        try:
            numbers = np.array([float(w) for w in words])
        except ValueError:
            self._fail(f"probabilities of '{name}'", ", ".join(words)[:60])
        if len(numbers) != count or not (np.isfinite(numbers) & (numbers >= 0)).all():
            self._fail(f"{count} probabilities of '{name}'", ", ".join(words)[:60])
        return numbers

    def _scaled(self, table: Table, name: str) -> Table:
        if np.isnan(table).any():
            raise DataError(f"{self._source}: the probabilities of '{name}' leave out some states of its parents.")
        total = table.sum(axis=-1, keepdims=True)
        if np.abs(total - 1).max() > ROUNDING:
            raise DataError(
                f"{self._source}: expected probabilities of '{name}' that sum to 1, got a sum of "
                f"{float(total.flat[np.abs(total - 1).argmax()]):.4g}."
            )
        return table / total

    # -- tokens --------------------------------------------------------------------------------------------------

    @property
    def _token(self) -> str:
        return self._tokens[self._next][0]

    def _take(self) -> str:
        token = self._token
        if self._next + 1 < len(self._tokens):
            self._next += 1
        elif not token:
            self._fail("more", "the end of the file")
        return token

    def _expect(self, wanted: str) -> None:
        if self._token != wanted:
            self._fail(f"'{wanted}'", self._token or "the end of the file")
        self._take()

    def _list(self, end: str) -> list[str]:
        """Words up to an end mark, with or without commas."""
        words = []
        while self._token != end:
            word = self._take()
            if word in "{}()[]|;":
                self._fail(f"'{end}'", word, back=True)
            if word != ",":
                words.append(word)
        self._take()
        return words

    def _skip_to(self, mark: str) -> None:
        while self._take() != mark:
            pass

    def _skip_block(self) -> None:
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self._take(), 0)

    def _known(self, name: str) -> str:
        if name not in self._result.states:
            self._fail("a variable declared before", name, back=True)
        return name

    def _fail(self, wanted: str, got: str, back: bool = False) -> NoReturn:
        line = self._tokens[max(0, self._next - back)][1]
        raise DataError(f"{self._source}, line {line}: expected {wanted}, got {got!r}.")
