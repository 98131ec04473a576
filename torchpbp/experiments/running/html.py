"""Pieces of a web page that needs nothing but itself: no scripts, nothing fetched, pictures inside."""

from __future__ import annotations

import base64
import math
import numbers
import struct
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

import pandas as pd

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""A browser that obeys it fetches nothing, whatever texts the page was made from."""

LONG = 90  # characters of a text that gets a line of its own
MOST_COLUMNS = 10
INCH = 96  # pixels of a browser
NUMBER = ' class="number"'

STYLE = """
:root { --ink: #1d2530; --faint: #67717e; --line: #e2e6eb; --accent: #2b6ca3; }
* { box-sizing: border-box; }
body { margin: 0; background: #f5f6f8; color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", Arial, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 0; }
h2 { font-size: 1.15rem; margin: 0 0 .9rem; }
h3 { font-size: .95rem; margin: 1.4rem 0 .5rem; }
.under { color: var(--faint); margin: .2rem 0 1.5rem; }
section { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 1.2rem 1.4rem; margin: 0 0 1.2rem; }
.scroll { overflow-x: auto; margin-bottom: .9rem; }
table { border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .8rem .28rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top;
  max-width: 40rem; overflow-wrap: break-word; }
th { font-weight: 600; color: var(--faint); white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; }
tbody tr:hover { background: #f5f8fb; }
pre { background: #f8f9fa; border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem; overflow-x: auto;
  font: .82rem/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; margin: 0; }
.figures { display: flex; flex-wrap: wrap; gap: 1.2rem 2rem; margin-bottom: .9rem; }
figure { margin: 0; }
figcaption { color: var(--faint); font-size: .85rem; margin-bottom: .3rem; }
img { max-width: 100%; height: auto; }
a { color: var(--accent); }
summary { cursor: pointer; color: var(--accent); margin-bottom: .6rem; }
.pairs { columns: 2 24rem; column-gap: 2.5rem; margin-bottom: 1.4rem; }
.pairs th { white-space: normal; }
.pairs td { text-align: left; white-space: normal; }
.pairs table { width: 100%; }
.pairs tr { break-inside: avoid; }
@media print { body { background: #fff; } section { border: none; padding: 0; } }
"""


def page(title: str, under: str, sections: Iterable[str]) -> str:
    """A whole page.

    Args:
        title: shown on top and by the browser.
        under: a line below it.
        sections: of :func:`section`.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{escape(title)}</h1>\n<p class="under">{escape(under)}</p>\n' + "\n".join(sections) + "\n"
        "</main>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A part of the page; nothing if all its parts are empty."""
    body = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>" if body else ""


def heading(text: str) -> str:
    """The title of something within a section."""
    return f"<h3>{escape(text)}</h3>"


def folded(title: str, body: str, opened: bool = False) -> str:
    """Something that the reader unfolds."""
    return (
        f"<details{' open' if opened else ''}>\n<summary>{escape(title)}</summary>\n{body}\n</details>" if body else ""
    )


def code(text: str) -> str:
    """Text as it was written."""
    return f"<pre>{escape(text)}</pre>"


def picture(png: bytes, caption: str, dpi: float = 150.0) -> str:
    """A PNG picture, inside the page, at the size it was drawn for.

    Args:
        png: content of the file.
        caption: shown above it, and read out where pictures are not seen.
        dpi: dots per inch it was drawn with.
    """
    across, down = (round(pixels * INCH / dpi) for pixels in struct.unpack(">II", png[16:24]))
    data = base64.b64encode(png).decode("ascii")
    text = escape(caption)
    return (
        f"<figure>\n<figcaption>{text}</figcaption>\n"
        f'<img alt="{text}" width="{across}" height="{down}" src="data:image/png;base64,{data}">\n</figure>'
    )


def pictures(parts: Sequence[str]) -> str:
    """Pictures side by side as far as the window allows."""
    return '<div class="figures">\n' + "\n".join(parts) + "\n</div>" if parts else ""


def pairs(values: Mapping[str, Any]) -> str:
    """Names and their values, in two columns where the window is wide; long texts get the whole width, folded."""
    long = {k: v for k, v in values.items() if isinstance(v, str) and len(v) > LONG}
    short = "".join(f"<tr><th>{escape(str(k))}</th>{cell(v)}</tr>" for k, v in values.items() if k not in long)
    text = f'<div class="pairs"><table><tbody>{short}</tbody></table></div>' if short else ""
    remarks = pd.DataFrame({"name": list(long), "text": list(long.values())})
    return text + (folded(f"{len(long)} longer texts", table(remarks)) if long else "")


def listed(items: Sequence[tuple[str, str]]) -> str:
    """A list of texts, each with the path of a page it leads to, seen from this one; "" if it leads nowhere."""
    lines = []
    for text, path in items:
        shown = escape(text)
        lines.append(f'<li><a href="{escape(quote(path))}">{shown}</a></li>' if path else f"<li>{shown}</li>")
    return "<ul>\n" + "\n".join(lines) + "\n</ul>" if lines else ""


def table(frame: pd.DataFrame, most: int | None = None, rest: str = "") -> str:
    """A table without its index; numbers are shortened, missing values are dashes.

    Args:
        frame: the table.
        most: rows shown.
        rest: where the others are, for the line below a table that was cut.
    """
    shown = frame if most is None else frame.head(most)
    numeric = [all(v is None or isinstance(v, numbers.Number) for v in column) for _, column in frame.items()]
    head = "".join(_column(str(name), right) for name, right in zip(frame.columns, numeric, strict=True))
    body = "".join("<tr>" + "".join(map(cell, row)) + "</tr>" for row in shown.itertuples(index=False, name=None))
    text = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    if len(shown) < len(frame):
        text += f"<p>{len(frame) - len(shown):,} more rows{f' are in {escape(rest)}' if rest else ''}.</p>"
    return text


def cell(value: Any) -> str:
    """One cell of a table."""
    number = isinstance(value, numbers.Number) and not isinstance(value, bool)
    return f"<td{NUMBER if number else ''}>{escape(shortened(value))}</td>"


def shortened(value: Any) -> str:
    """A value as a reader wants it: four digits of a fraction, a dash for what is missing."""
    if isinstance(value, numbers.Integral):  # may be too large for a floating-point number
        return str(value)
    if value is None or (isinstance(value, numbers.Real) and math.isnan(value)):
        return "–"
    return f"{float(value):.4g}" if isinstance(value, numbers.Real) else str(value)


def pivoted(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[pd.DataFrame]]:
    """Sort metrics named ``a/…/z`` into tables, with a column per last part or a column per first part.

    Whichever takes fewer lines is chosen.

    Args:
        values: metrics of a run.

    Returns:
        The metrics that fit no table, and the tables: names that come with the same columns share one.
    """
    ways = [_pivoted(values, first) for first in (False, True)]
    return min(ways, key=lambda way: len(way[0]) + sum(map(len, way[1])))


def _pivoted(values: Mapping[str, Any], first: bool) -> tuple[dict[str, Any], list[pd.DataFrame]]:
    cases: dict[str, list[str]] = {}
    for name in values:
        start, mark, end = name.partition("/") if first else name.rpartition("/")
        if mark:
            cases.setdefault(end if first else start, []).append(start if first else end)
    alike: dict[tuple[str, ...], list[str]] = {}
    for what, columns in cases.items():
        if 1 < len(columns) <= MOST_COLUMNS:
            alike.setdefault(tuple(columns), []).append(what)
    tables = []
    placed: set[str] = set()
    for names, rows in alike.items():
        if len(rows) > 1:
            full = {(r, c): f"{c}/{r}" if first else f"{r}/{c}" for r in rows for c in names}
            tables.append(pd.DataFrame([{"": r, **{c: values[full[r, c]] for c in names}} for r in rows]))
            placed.update(full.values())
    return {k: v for k, v in values.items() if k not in placed}, tables


def _column(name: str, number: bool) -> str:
    return f"<th{NUMBER if number else ''}>{escape(name)}</th>"
