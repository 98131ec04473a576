"""Reading and writing of networks in the Bayesian Interchange Format, version 0.15."""

from __future__ import annotations

import gzip
import math
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from torchpbp.errors import DataError
from torchpbp.io import checked_path, open_for_reading, replacing

ROUNDING = 0.02
"""Tolerance for sums of printed probabilities, which are rounded; rows within it of 1 are normalised."""
SHOWN = 60
"""Largest number of characters quoted in a message."""
MARKS = frozenset("{}()[]|,;")
TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*[\s\S]*?\*/)
      |"(?P<quoted>[^"\n]*)"
      |(?P<mark>[{}()\[\]|,;])
      |(?P<word>(?!/\*)[^\s{}()\[\]|,;"]+)""",
    re.VERBOSE,
)
Table = npt.NDArray[np.float64]


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


def read_bif(path: str | os.PathLike[str]) -> BIF:
    """Read a file, plain or compressed by gzip.

    Raises:
        DataError: no such file, or not in this format (the message has the line).
    """
    source = checked_path(path, "a BIF file").expanduser()
    try:
        with open_for_reading(source, "a BIF file", DataError) as file:
            content = file.read()
        text = (gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected text in the Bayesian Interchange Format, got other bytes.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"Could not read {path}: {getattr(error, 'strerror', None) or error}.") from error
    return parse_bif(text, str(path))


def parse_bif(text: str, source: str = "BIF text") -> BIF:
    """Read a network from text.

    Args:
        text: text in this format; ``property`` lines and comments are skipped.
        source: name of the text in messages.

    Raises:
        DataError: not in this format (the message has the line).
    """
    return _Parser(text, source).parse()


def write_bif(path: str | os.PathLike[str], bif: BIF, name: str = "unknown") -> None:
    """Write a network atomically; compressed by gzip if the path ends with .gz. Missing folders are created.

    Raises:
        DataError: the file cannot be written, or a name cannot be written in this format.
    """
    target = checked_path(path, "a BIF file").expanduser()
    try:
        content = format_bif(bif, name).encode("utf-8")
        with replacing(target) as temporary:
            temporary.write_bytes(gzip.compress(content) if target.suffix == ".gz" else content)
    except (UnicodeEncodeError, OSError) as error:
        raise DataError(f"Could not write {target}: {getattr(error, 'strerror', None) or error}.") from error


def format_bif(bif: BIF, name: str = "unknown") -> str:
    """The text of a network; numbers are printed so that reading restores them exactly."""
    lines = [f"network {_quoted(name)} {{\n}}"]
    for v, labels in bif.states.items():
        listed = ", ".join(_quoted(label) for label in labels)
        lines.append(f"variable {_quoted(v)} {{\n  type discrete [ {len(labels)} ] {{ {listed} }};\n}}")
    for v, parents in bif.parents.items():
        table = bif.tables[v]
        if not parents:
            lines.append(f"probability ( {_quoted(v)} ) {{\n  table {_numbers(table)};\n}}")
            continue
        condition = ", ".join(_quoted(p) for p in parents)
        rows = [
            f"  ({', '.join(_quoted(bif.states[p][i]) for p, i in zip(parents, at, strict=True))}) {_numbers(table[at])};"
            for at in product(*(range(n) for n in table.shape[:-1]))
        ]
        lines.append(f"probability ( {_quoted(v)} | {condition} ) {{\n" + "\n".join(rows) + "\n}")
    return "\n".join(lines) + "\n"


class _Token(NamedTuple):
    """A word or mark of the text; an empty token is the end.

    Args:
        text: the token without quotation marks.
        line: number of its first line.
        quoted: whether the word is in quotation marks; it is a name then, even if it looks like a mark.
    """

    text: str
    line: int
    quoted: bool = False


def _tokens(text: str, source: str) -> Iterator[_Token]:
    """Words and marks without comments, followed by an empty token."""
    place, line = 0, 1
    while place < len(text):
        match = TOKEN.match(text, place)
        if match is None:
            fault = "comment /*" if text.startswith("/*", place) else "quotation mark"
            raise DataError(f"{source}, line {line}: a {fault} is not closed.")
        kind, end = match.lastgroup or "", match.end()
        if kind == "blank":
            line += text.count("\n", place, end)
        else:
            yield _Token(match[kind], line, kind == "quoted")
        place = end
    yield _Token("", line)


class _Parser:
    """Recursive descent over the tokens, with one token of lookahead."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._tokens = _tokens(text, source)
        self._token = next(self._tokens)
        self._line = 1  # line of the previous token
        self._result = BIF()

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
            listed = ", ".join(missing[:10]) + (" …" if len(missing) > 10 else "")
            raise DataError(f"{self._source}: no probabilities for the variables {listed}.")
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
            for mark in ("type", "discrete", "["):
                self._expect(mark)
            count = self._take()
            self._expect("]")
            self._expect("{")
            labels = tuple(self._words("}"))
            self._expect(";")
            if count != str(len(labels)) or len(set(labels)) != len(labels) or not labels:
                found = f"{len(labels)}: {', '.join(labels)}"
                self._fail(f"{count} different states of '{name}'", found, back=True)
        self._expect("}")
        if not labels:
            self._fail(f"the type of '{name}'", "none")
        self._result.states[name] = labels

    def _probability(self) -> None:
        self._expect("(")
        name = self._declared(self._take())
        parents: tuple[str, ...] = ()
        if self._at("|"):
            self._take()
            parents = tuple(self._declared(p) for p in self._words(")"))
        else:
            self._expect(")")
        if name in self._result.tables:
            self._fail(f"one table per variable, but '{name}' has one", name)
        shape = [len(self._result.states[v]) for v in (*parents, name)]
        try:
            table = np.full(shape, np.nan)
        except (ValueError, MemoryError):
            self._fail("a table that fits into memory", f"{len(shape)} variables with {math.prod(shape):,} entries")
        default = np.full(shape[-1], np.nan)
        once = f"the probabilities of '{name}' once"
        self._expect("{")
        while not self._at("}"):
            kind = self._take()
            if kind == "property":
                self._skip_to(";")
            elif kind == "table":
                if not np.isnan(table).all():
                    self._fail(once, "a table besides others", back=True)
                numbers = self._probabilities(math.prod(shape), name)
                table = np.moveaxis(numbers.reshape(shape[-1], *shape[:-1]), 0, -1)
            elif kind == "default":
                default = self._probabilities(shape[-1], name)
            elif kind == "(":
                labels = list(self._words(")"))
                place = self._place(labels, parents, name)
                if not np.isnan(table[place]).all():
                    self._fail(once, f"({', '.join(labels)}) again", back=True)
                table[place] = self._probabilities(shape[-1], name)
            else:
                self._fail("table, default or a row of states", kind, back=True)
        self._expect("}")
        self._result.parents[name] = parents
        self._result.tables[name] = self._scaled(np.where(np.isnan(table), default, table), name)

    def _place(self, labels: Sequence[str], parents: Sequence[str], name: str) -> tuple[int, ...]:
        """Index of a row of the table."""
        states = [self._result.states[p] for p in parents]
        if len(labels) != len(parents) or any(x not in s for x, s in zip(labels, states, strict=True)):
            self._fail(f"states of {', '.join(parents) or 'no parents'} for '{name}'", ", ".join(labels))
        return tuple(s.index(x) for x, s in zip(labels, states, strict=True))

    def _probabilities(self, count: int, name: str) -> Table:
        words = list(self._words(";"))
        try:
            row = np.array([float(word) for word in words])
        except ValueError:
            self._fail(f"probabilities of '{name}'", ", ".join(words), back=True)
        if len(row) != count or not (np.isfinite(row) & (row >= 0)).all():
            self._fail(f"{count} probabilities of '{name}'", ", ".join(words), back=True)
        return row

    def _scaled(self, table: Table, name: str) -> Table:
        if np.isnan(table).any():
            raise DataError(f"{self._source}: the probabilities of '{name}' leave out some states of its parents.")
        total = table.sum(axis=-1, keepdims=True)
        distance = np.abs(total - 1)
        if distance.max() > ROUNDING:
            worst = float(total.flat[distance.argmax()])
            raise DataError(
                f"{self._source}: expected probabilities of '{name}' that sum to 1, got a sum of {worst:.4g}."
            )
        return np.asarray(table / total)

    # -- tokens --------------------------------------------------------------------------------------------------

    def _at(self, wanted: str) -> bool:
        """Whether the next token is a mark or keyword; the empty string is the end."""
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

    def _skip_to(self, mark: str) -> None:
        while not self._at(mark):
            self._take()
        self._take()

    def _skip_block(self) -> None:
        depth = 1
        while depth:
            depth += self._at("{") - self._at("}")
            self._take()

    def _declared(self, name: str) -> str:
        if name not in self._result.states:
            self._fail("a variable declared before", name, back=True)
        return name

    def _fail(self, wanted: str, got: str, back: bool = False) -> NoReturn:
        """Raise a DataError about the next token, or with ``back`` about the previous one."""
        line = self._line if back else self._token.line
        short = got if len(got) <= SHOWN else f"{got[:SHOWN]}…"
        raise DataError(f"{self._source}, line {line}: expected {wanted}, got {short!r}.")


def _numbers(row: Table) -> str:
    return ", ".join(repr(float(p)) for p in row)


def _quoted(word: str) -> str:
    """A name, in quotation marks if it would be read as several tokens."""
    match = TOKEN.fullmatch(word)
    if match is not None and match.lastgroup == "word" and not word.startswith("//"):
        return word
    if '"' in word or "\n" in word:
        raise DataError(f"{word!r}: names in this format cannot contain quotation marks or line breaks.")
    return f'"{word}"'
