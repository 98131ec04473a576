"""Networks in the Bayesian Interchange Format, version 0.15: read and written."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from torchpbp.errors import DataError

Table = npt.NDArray[np.float64]

ROUNDING = 0.02
"""Printed probabilities are rounded; rows whose sum is within this of 1 are scaled to it."""

_TOKEN = re.compile(
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


def read_bif(path: str | os.PathLike[str]) -> BIF:
    """Read a file, plain or compressed by gzip.

    Raises:
        DataError: no such file, or not in this format; with the line.
    """
    source = str(path)
    try:
        content = Path(path).expanduser().read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        text = content.decode("utf-8")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"Could not read {source}: {getattr(error, 'strerror', None) or error}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: expected text in the Bayesian Interchange Format, got other bytes.") from error
    return parse_bif(text, source)


def parse_bif(text: str, source: str = "BIF text") -> BIF:
    """Read a network from text.

    Args:
        text: in this format; ``property`` lines and comments are passed over.
        source: its name, for messages.

    Raises:
        DataError: not in this format; with the line.
    """
    return _Parser(text, source).parse()


def format_bif(bif: BIF, name: str = "unknown") -> str:
    """The text of a network; numbers are printed so that reading gives the same ones back."""
    lines = [f"network {_quoted(name)} {{\n}}"]
    for v, labels in bif.states.items():
        listed = ", ".join(_quoted(label) for label in labels)
        lines.append(f"variable {_quoted(v)} {{\n  type discrete [ {len(labels)} ] {{ {listed} }};\n}}")
    for v, parents in bif.parents.items():
        table = bif.tables[v]
        if not parents:
            lines.append(f"probability ( {_quoted(v)} ) {{\n  table {_numbers(table)};\n}}")
            continue
        given = ", ".join(_quoted(p) for p in parents)
        rows = [
            f"  ({', '.join(_quoted(bif.states[p][i]) for p, i in zip(parents, at, strict=True))}) {_numbers(table[at])};"
            for at in product(*(range(n) for n in table.shape[:-1]))
        ]
        lines.append(f"probability ( {_quoted(v)} | {given} ) {{\n" + "\n".join(rows) + "\n}")
    return "\n".join(lines) + "\n"


def write_bif(path: str | os.PathLike[str], bif: BIF, name: str = "unknown") -> None:
    """Write a network, whole or not at all; compressed by gzip if the path ends with .gz."""
    target = Path(path).expanduser()
    content = format_bif(bif, name).encode("utf-8")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(gzip.compress(content) if target.suffix == ".gz" else content)
        os.replace(temporary, target)
    except OSError as error:
        raise DataError(f"Could not write {target}: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _numbers(row: Table) -> str:
    return ", ".join(repr(float(p)) for p in row)


def _quoted(word: str) -> str:
    """A name as it is, or in quotation marks if the format would take it apart."""
    match = _TOKEN.fullmatch(word)
    plain = match is not None and match.lastgroup == "word" and not word.startswith(("//", "/*"))
    if plain:
        return word
    if '"' in word or "\n" in word:
        raise DataError(f"{word!r}: names in this format may hold no quotation marks and no line breaks.")
    return f'"{word}"'


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
            match = _TOKEN.match(text, place)
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
