"""Tokens of a text in the Bayesian Interchange Format, in linear time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from torchpbp.errors import DataError

TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*)
      |(?P<comment>/\*)      # its end is found by tokens(): an expression would backtrack
      |"(?P<quoted>[^"\n]*)"
      |(?P<mark>[{}()\[\]|,;])
      |(?P<word>[^\s{}()\[\]|,;"]+)""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """A word or mark of the text; an empty one is the end.

    Args:
        text: without quotation marks.
        line: where it begins.
        quoted: a word in quotation marks is a name even if it looks like a mark.
    """

    text: str
    line: int
    quoted: bool = False


def tokens(text: str, source: str) -> Iterator[Token]:
    """Split a text into tokens, without comments.

    Args:
        text: in this format.
        source: name of the text in messages.

    Raises:
        DataError: a comment or a quotation mark is not closed; the message has the line.
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
