"""Documentation pages: the files and names they mention exist.

tests/cli/test_readme.py runs their code and commands; scripts/build_docs.py builds the API pages.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import torchpbp

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    words = set(re.findall(r"`([\w/]+(?:\.py|\.md)?)`", text))
    paths = {w for w in words if "/" in w and w.partition("/")[0] in ("torchpbp", "tests", "conf", "scripts", "docs")}
    assert not [p for p in paths if not (ROOT / p).exists()]
    files = {"train.py", *(path.name for path in (ROOT / "torchpbp").rglob("*.py"))}
    named = [w for w in words - paths if w.endswith(".py")]  # a path within torchpbp, or the name of a file
    assert not [w for w in named if w not in files and not (ROOT / "torchpbp" / w).exists()]


def test_every_part_is_on_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = [p.parent.name for p in (ROOT / "torchpbp").glob("*/__init__.py")]
    assert len(folders) > 10
    assert not [f for f in folders if f"torchpbp/{f}" not in page]


def test_the_readme_lists_all_public_names() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    table = page.partition("## Public interface")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("|")]
    listed = [name for names in rows for name in re.findall(r"`(\w+)`", names)]
    assert sorted(listed) == sorted(torchpbp.__all__)
