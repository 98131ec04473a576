"""The text of a network in the Bayesian Interchange Format, taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

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


class _Token(NamedTuple):
    """A word or mark of the text; the last one is empty and marks the end.

    Args:
        text: without quotation marks.
        line: where it begins.
        quoted: a word in quotation marks is a name even if it looks like a mark.
    """

    text: str
    line: int
    quoted: bool = False


class _Parser:
    """Recursive descent over the tokens."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._tokens = list(self._split(text))
        self._next = 0
        self._result = BIF()

    def _split(self, text: str) -> Iterator[_Token]:
        place, line = 0, 1
        while place < len(text):
            match = TOKEN.match(text, place)
            if match is None:
                raise DataError(f"{self._source}, line {line}: a quotation mark is not closed.")
            if match.lastgroup != "blank":
                yield _Token(match[match.lastgroup or 0], line, match.lastgroup == "quoted")
            line += match[0].count("\n")
            place = match.end()
        yield _Token("", line)

    # -- grammar -------------------------------------------------------------------------------------------------

    def parse(self) -> BIF:
        while not self._at(""):
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
        while not self._at("}"):
            if self._at("property"):
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
        if self._at("|"):
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
        while not self._at("}"):
            kind = self._take()
            if kind == "property":
                self._skip_to(";")
            elif kind == "table":
                if not np.isnan(table).all():
                    self._fail(f"the probabilities of '{name}' once", "a table besides others", back=True)
                numbers = self._probabilities(table.size, name)
                table = np.moveaxis(numbers.reshape(len(states[name]), *table.shape[:-1]), 0, -1)
            elif kind == "default":
                default = self._probabilities(len(states[name]), name)
            elif kind == "(":
                given = self._list(")")
                at = self._place(given, parents, name)
                if not np.isnan(table[at]).all():
                    self._fail(f"the probabilities of '{name}' once", f"({', '.join(given)}) again", back=True)
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

    def _at(self, wanted: str) -> bool:
        """Whether a mark or keyword comes next; the empty one stands for the end."""
        token = self._tokens[self._next]
        return not token.quoted and token.text == wanted

    def _take(self) -> str:
        if self._at(""):
            self._fail("more", "the end of the file")
        self._next += 1
        return self._tokens[self._next - 1].text

    def _expect(self, wanted: str) -> None:
        if not self._at(wanted):
            self._fail(f"'{wanted}'", "the end of the file" if self._at("") else self._tokens[self._next].text)
        self._take()

    def _list(self, end: str) -> list[str]:
        """Words up to an end mark, with or without commas."""
        words = []
        while not self._at(end):
            separator, mark = self._at(","), any(self._at(m) for m in "{}()[]|;")
            word = self._take()
            if mark:
                self._fail(f"'{end}'", word, back=True)
            if not separator:
                words.append(word)
        self._take()
        return words

    def _skip_to(self, mark: str) -> None:
        while not self._at(mark):
            self._take()
        self._take()

    def _skip_block(self) -> None:
        depth = 1
        while depth:
            depth += self._at("{") - self._at("}")
            self._take()

    def _known(self, name: str) -> str:
        if name not in self._result.states:
            self._fail("a variable declared before", name, back=True)
        return name

    def _fail(self, wanted: str, got: str, back: bool = False) -> NoReturn:
        line = self._tokens[max(0, self._next - back)].line
        raise DataError(f"{self._source}, line {line}: expected {wanted}, got {got!r}.")
