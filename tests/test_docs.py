"""Documentation pages: the files and names they mention exist.

tests/cli/test_readme.py runs their code and commands; scripts/build_docs.py builds the site.
"""

from __future__ import annotations

import importlib.util
import inspect
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


def test_all_public_names_have_an_entry() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    entries = set(re.findall(r":: torchpbp\.(\S+)$", text, flags=re.MULTILINE))
    modules = {
        name: getattr(torchpbp, name).__name__ for name in torchpbp.__all__ if inspect.ismodule(getattr(torchpbp, name))
    }
    assert len(modules) > 2
    assert not [
        name
        for name in torchpbp.__all__
        if modules.get(name, f"torchpbp.{name}") not in {f"torchpbp.{e}" for e in entries}
    ]


def test_citations_have_a_reference() -> None:
    keys = re.findall(r"^### (\w+)$", (ROOT / "docs" / "references.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    pattern = re.search(
        r"^CITATION = .*\((.+?)\)", (ROOT / "docs" / "conf.py").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert pattern is not None
    assert sorted(pattern[1].split("|")) == sorted(keys)
    texts = [path.read_text(encoding="utf-8") for path in [*PAGES, *(ROOT / "torchpbp").rglob("*.py")]]
    cited = {key for text in texts for key in re.findall(r"(?<!\w)\[([A-Z]{2,4})(?: [^\]]+| ?)\](?!\()", text)}
    cited -= {"MLP"}  # a list of regressors
    assert {"PBP", "JT", "NG", "MP"} <= cited <= set(keys)


def test_faults_of_a_site_are_found(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("build_docs", ROOT / "scripts" / "build_docs.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    entries = "".join(f'<dt id="torchpbp.{name}"></dt>' for name in torchpbp.__all__)
    (tmp_path / "api.html").write_text(entries, encoding="utf-8")
    good = (
        '<h2 id="here"></h2><a href="#here"></a><a href="api.html#torchpbp.PBP"></a><a href="https://pytorch.org"></a>'
    )
    (tmp_path / "index.html").write_text(good, encoding="utf-8")
    assert script.check(tmp_path) == []
    bad = '<a href="#there"></a><a href="gone.html"></a><script src="https://cdn.example/x.js"></script>'
    (tmp_path / "index.html").write_text(bad, encoding="utf-8")
    (tmp_path / "api.html").write_text(entries.replace("torchpbp.PBP", "PBP", 1), encoding="utf-8")
    faults = "\n".join(script.check(tmp_path))
    assert faults.count("\n") == 3
    for part in (
        "nothing at the link #there",
        "no file for the link gone.html",
        "loads https://cdn.example/x.js",
        "No entry for torchpbp.",
    ):
        assert part in faults
