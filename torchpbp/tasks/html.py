"""Pieces of a web page that needs nothing but itself: no scripts, no links to other files, pictures inside."""

from __future__ import annotations

import base64
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""A browser that obeys it fetches nothing, whatever texts the page was made from."""

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
  max-width: 24rem; overflow-wrap: break-word; }
th { font-weight: 600; color: var(--faint); white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; }
tbody tr:hover { background: #f5f8fb; }
pre { background: #f8f9fa; border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem; overflow-x: auto;
  font: .82rem/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; margin: 0; }
figure { margin: 0 0 1.3rem; }
figcaption { color: var(--faint); font-size: .85rem; margin-bottom: .3rem; }
img { max-width: 100%; height: auto; }
summary { cursor: pointer; color: var(--accent); margin-bottom: .6rem; }
.pairs { columns: 2 24rem; column-gap: 2.5rem; }
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


def picture(png: bytes, caption: str) -> str:
    """A PNG picture, inside the page.

    Args:
        png: content of the file.
        caption: shown above it, and read out where pictures are not seen.
    """
    data = base64.b64encode(png).decode("ascii")
    text = escape(caption)
    return (
        f'<figure>\n<figcaption>{text}</figcaption>\n<img alt="{text}" src="data:image/png;base64,{data}">\n</figure>'
    )


def pairs(values: Mapping[str, Any]) -> str:
    """Names and their values, in two columns where the window is wide."""
    if not values:
        return ""
    lines = "".join(f"<tr><th>{escape(str(k))}</th>{cell(v)}</tr>" for k, v in values.items())
    return f'<div class="pairs"><table><tbody>{lines}</tbody></table></div>'


def table(frame: pd.DataFrame, most: int | None = None, rest: str = "") -> str:
    """A table without its index; numbers are shortened, missing values are dashes.

    Args:
        frame: the table.
        most: rows shown.
        rest: where the others are, for the line below a table that was cut.
    """
    shown = frame if most is None else frame.head(most)
    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
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
    if value is None or (isinstance(value, numbers.Real) and math.isnan(value)):
        return "–"
    if isinstance(value, numbers.Integral):
        return str(value)
    return f"{float(value):.4g}" if isinstance(value, numbers.Real) else str(value)


def pivoted(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[pd.DataFrame]]:
    """Sort metrics named ``what/…/case`` into tables, a column per case.

    Args:
        values: metrics of a run.

    Returns:
        The metrics that fit no table, and the tables: names that come with the same cases share one.
    """
    cases: dict[str, list[str]] = {}
    for name in values:
        what, mark, case = name.rpartition("/")
        if mark:
            cases.setdefault(what, []).append(case)
    alike: dict[tuple[str, ...], list[str]] = {}
    for what, found in cases.items():
        if len(found) > 1:
            alike.setdefault(tuple(found), []).append(what)
    tables = []
    placed: set[str] = set()
    for columns, rows in alike.items():
        if len(rows) > 1:
            content: Sequence[dict[str, Any]] = [{"": r, **{c: values[f"{r}/{c}"] for c in columns}} for r in rows]
            tables.append(pd.DataFrame(content))
            placed |= {f"{r}/{c}" for r in rows for c in columns}
    return {k: v for k, v in values.items() if k not in placed}, tables


def _column(name: str, number: bool) -> str:
    return f"<th{NUMBER if number else ''}>{escape(name)}</th>"
