"""Build the site: ``python scripts/build_docs.py [folder]``. Needs the extra ``docs`` (Sphinx).

Warnings of Sphinx, such as names that do not resolve, are errors, and so are links that lead nowhere, requests to other hosts for
scripts, styles, fonts or images, and public names without an entry.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

import torchpbp

DOCS = Path(__file__).parents[1] / "docs"
MODULES = ("errors", "plotting", "templates")
"""Public names that are modules; their content has entries."""


class Page(HTMLParser):
    """Links, identifiers and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attributes if value}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        elif tag != "a":
            self.loaded |= {values[name] for name in ("src", "href") if name in values}


def build(folder: Path) -> None:
    """Write the site.

    Args:
        folder: created if needed.
    """
    from sphinx.cmd.build import build_main  # check() does not need it

    options = ["-b", "html", "--fail-on-warning", "--keep-going", "--fresh-env", "--quiet"]
    with TemporaryDirectory() as doctrees:
        if code := build_main([*options, "-d", doctrees, str(DOCS), str(folder)]):
            raise SystemExit(code)
    faults = check(folder)
    if faults:
        raise SystemExit("\n".join(faults))


def check(folder: Path) -> list[str]:
    """Faults of a site: links that lead nowhere, files from other hosts, public names without an entry."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    faults = []
    for path, page in sorted(pages.items()):
        name = path.relative_to(folder.resolve())
        faults += [f"{name}: loads {url}" for url in sorted(page.loaded) if urlsplit(url).netloc]
        for link in sorted(page.links | page.loaded):
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.scheme or parts.netloc:
                continue
            if not target.exists():
                faults.append(f"{name}: no file for the link {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                faults.append(f"{name}: nothing at the link {link}")
    entries = set().union(*(page.ids for page in pages.values()))
    faults += [
        f"No entry for torchpbp.{n}" for n in torchpbp.__all__ if n not in MODULES and f"torchpbp.{n}" not in entries
    ]
    return faults


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "build/site")
    build(target)
    print(f"{target / 'index.html'}; to read it with search: python -m http.server --directory {target}")
