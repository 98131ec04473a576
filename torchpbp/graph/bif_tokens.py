"""Words and marks of a text in the Bayesian Interchange Format, one at a time, each character looked at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from torchpbp.errors import DataError

TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*)
      |(?P<comment>/\*)      # its end is looked for outside: an expression would try again from each beginning
      |"(?P<quoted>[^"\n]*)"
      |(?P<mark>[{}()\[\]|,;])
      |(?P<word>[^\s{}()\[\]|,;"]+)""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """A word or mark of the text; the last one is empty and marks the end.

    Args:
        text: without quotation marks.
        line: where it begins.
        quoted: a word in quotation marks is a name even if it looks like a mark.
    """

    text: str
    line: int
    quoted: bool = False


def tokens(text: str, source: str) -> Iterator[Token]:
    """Take a text apart; comments are passed over.

    Args:
        text: in this format.
        source: its name, for messages.

    Raises:
        DataError: a comment or a quotation mark is not closed; with the line.
    """
    place, line = 0, 1
    while place < len(text):
        match = TOKEN.match(text, place)
        if match is None:
            raise DataError(f"{source}, line {line}: a quotation mark is not closed.")
        kind, end = match.lastgroup or "", match.end()
        if kind == "comment":
            closing = text.find("*/", end)
            if closing < 0:
                raise DataError(f"{source}, line {line}: a comment /* is not closed.")
            end = closing + 2
        if kind in ("blank", "comment"):
            line += text.count("\n", place, end)
        else:
            yield Token(match[kind], line, kind == "quoted")
        place = end
    yield Token("", line)
