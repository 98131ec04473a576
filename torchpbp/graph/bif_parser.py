"""A parser of the Bayesian Interchange Format: from tokens to a network."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from torchpbp.errors import DataError
from torchpbp.graph.bif_rows import Table, TableRows
from torchpbp.graph.bif_tokens import tokens

ROUNDING = 0.02
"""Printed probabilities are rounded; rows whose sum is within this of 1 are scaled to it."""
LARGEST_TABLE = 2**24
"""Most entries of one table; a ``default`` line fills any number of them with a few words."""
LARGEST_NETWORK = 2**25
"""Most entries of all tables together: 256 MiB."""
MOST_AXES = 32
"""Most variables of one table: numpy's arrays have no more axes."""
SHOWN = 60
"""Characters of the text that a message quotes."""
MARKS = frozenset("{}()[]|,;")


@dataclass
class BIF:
    """The contents of a file in this format.

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
    """Read a network from text, in time and memory proportional to its length and to the entries of its tables.

    Args:
        text: in this format; ``property`` lines and comments are skipped.
        source: name of the text in messages.

    Raises:
        DataError: not in this format (the message has the line), or tables beyond ``LARGEST_TABLE``, ``LARGEST_NETWORK`` or ``MOST_AXES``.
    """
    if not isinstance(text, str):
        raise DataError(f"{source}: expected text in the Bayesian Interchange Format, got a {type(text).__name__}.")
    return _Parser(text, source).parse()


class _Parser:
    """Recursive descent over the tokens, of which only the next one is kept."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._tokens = tokens(text, source)
        self._token = next(self._tokens)
        self._line = 1  # of the token before
        self._result = BIF()
        self._places: dict[str, dict[str, int]] = {}
        self._entries = 0

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
            more = f" and {len(missing) - 10:,} more" if len(missing) > 10 else ""
            raise DataError(
                f"{self._source}: no probabilities for the variables {', '.join(map(_short, missing[:10]))}{more}."
            )
        return self._result

    def _variable(self) -> None:
        name = self._take()
        if name in self._result.states:
            self._fail(f"each variable once, but '{_short(name)}' came before", name, back=True)
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
            labels = tuple(self._words("}"))
            self._expect(";")
            if count != str(len(labels)) or len(set(labels)) != len(labels) or not labels:
                shown = ", ".join(labels[:SHOWN])
                self._fail(
                    f"{_short(count)} different states of '{_short(name)}'", f"{len(labels)}: {shown}", back=True
                )
        self._expect("}")
        if not labels:
            self._fail(f"the type of '{_short(name)}'", "none")
        self._result.states[name] = labels

    def _probability(self) -> None:
        self._expect("(")
        name = self._known(self._take())
        parents: tuple[str, ...] = ()
        if self._at("|"):
            self._take()
            parents = tuple(self._known(p) for p in self._words(")"))
        else:
            self._expect(")")
        if name in self._result.tables:
            self._fail(f"one table per variable, but '{_short(name)}' has one", name)
        rows = TableRows(self._shape(name, parents))
        self._expect("{")
        while not self._at("}"):
            kind = self._take()
            if kind == "property":
                self._skip_to(";")
            elif kind == "table":
                if not rows.empty:
                    self._fail(f"the probabilities of '{_short(name)}' once", "a table besides others", back=True)
                numbers = self._probabilities(math.prod(rows.shape), name)
                rows.whole = np.moveaxis(numbers.reshape(rows.shape[-1], *rows.shape[:-1]), 0, -1)
            elif kind == "default":
                rows.default = self._probabilities(rows.shape[-1], name)
            elif kind == "(":
                given = self._up_to(len(parents) + 1, ")")
                place = self._place(given, parents, name)
                if place in rows:
                    self._fail(f"the probabilities of '{_short(name)}' once", f"({', '.join(given)}) again", back=True)
                rows.add(place, self._probabilities(rows.shape[-1], name))
            else:
                self._fail("table, default or a row of states", kind, back=True)
        self._expect("}")
        self._result.parents[name] = parents
        self._result.tables[name] = self._scaled(rows.table(), name)

    def _shape(self, name: str, parents: Sequence[str]) -> list[int]:
        """Numbers of states of the parents and of the variable itself, whose product is checked against the limits."""
        shape = [len(self._result.states[v]) for v in (*parents, name)]
        entries = 1
        for states in shape:
            entries *= states
            if entries > 10**30:  # large integers are slow
                break
        if entries > LARGEST_TABLE:
            shown = "more than 10^30" if entries > 10**30 else f"{entries:,}"
            self._too_large(f"the table of '{_short(name)}' has {shown} entries, at most {LARGEST_TABLE:,} can be read")
        if len(shape) > MOST_AXES:
            self._too_large(
                f"the table of '{_short(name)}' ({entries:,} entries) has {len(shape):,} variables, at most {MOST_AXES} can be read"
            )
        self._entries += entries
        if self._entries > LARGEST_NETWORK:
            self._too_large(
                f"the tables up to that of '{_short(name)}' have {self._entries:,} entries, at most {LARGEST_NETWORK:,} can be read"
            )
        return shape

    def _too_large(self, what: str) -> NoReturn:
        raise DataError(f"{self._source}, line {self._line}: {what}. Give variables fewer parents or fewer states.")

    def _place(self, given: Sequence[str], parents: Sequence[str], name: str) -> int:
        """Number of a row, the state of the last parent changing fastest."""
        place = 0
        if len(given) == len(parents):
            for label, parent in zip(given, parents, strict=True):
                states = self._numbered(parent)
                if label not in states:
                    break
                place = place * len(states) + states[label]
            else:
                return place
        self._fail(
            f"states of {', '.join(map(_short, parents)) or 'no parents'} for '{_short(name)}'", ", ".join(given)
        )

    def _numbered(self, name: str) -> dict[str, int]:
        """Label -> number of the states of a variable."""
        if name not in self._places:
            self._places[name] = {label: i for i, label in enumerate(self._result.states[name])}
        return self._places[name]

    def _probabilities(self, count: int, name: str) -> Table:
        numbers = array("d")
        found, wrong = 0, False
        shown: list[str] = []
        for word in self._words(";"):
            found += 1
            if found <= SHOWN:
                shown.append(word[:SHOWN])
            try:
                number = float(word)
            except ValueError:
                wrong = True
                continue
            if found <= count:
                numbers.append(number)
        if wrong:
            self._fail(f"probabilities of '{_short(name)}'", ", ".join(shown), back=True)
        row = np.frombuffer(numbers) if numbers else np.empty(0)
        if found != count or not (np.isfinite(row) & (row >= 0)).all():
            self._fail(f"{count} probabilities of '{_short(name)}'", ", ".join(shown), back=True)
        return row

    def _scaled(self, table: Table | None, name: str) -> Table:
        if table is None:
            raise DataError(
                f"{self._source}: the probabilities of '{_short(name)}' leave out some states of its parents."
            )
        total = table.sum(axis=-1, keepdims=True)
        distance = np.abs(total - 1)
        if distance.max() > ROUNDING:
            raise DataError(
                f"{self._source}: expected probabilities of '{_short(name)}' that sum to 1, got a sum of "
                f"{float(total.flat[distance.argmax()]):.4g}."
            )
        table /= total
        return table

    # -- tokens --------------------------------------------------------------------------------------------------

    def _at(self, wanted: str) -> bool:
        """Whether a mark or keyword comes next; the empty string is the end."""
        return not self._token.quoted and self._token.text == wanted

    def _take(self) -> str:
        if self._at(""):
            self._fail("more", "the end of the file")
        taken, self._token = self._token, next(self._tokens)
        self._line = taken.line
        return taken.text

    def _expect(self, wanted: str) -> None:
        if not self._at(wanted):
            self._fail(f"'{wanted}'", "the end of the file" if self._at("") else self._token.text)
        self._take()

    def _words(self, end: str) -> Iterator[str]:
        """Words up to an end mark, with or without commas."""
        while not self._at(end):
            mark = not self._token.quoted and self._token.text in MARKS
            word = self._take()
            if not mark:
                yield word
            elif word != ",":
                self._fail(f"'{end}'", word, back=True)
        self._take()

    def _up_to(self, most: int, end: str) -> list[str]:
        """The first words up to an end mark; further ones are skipped."""
        words: list[str] = []
        for word in self._words(end):
            if len(words) < most:
                words.append(word)
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
        """Report what was expected instead of the next token, or with ``back`` instead of the one before."""
        line = self._line if back else self._token.line
        raise DataError(f"{self._source}, line {line}: expected {wanted}, got {_short(got)!r}.")


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
