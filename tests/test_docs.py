"""Pages of documentation: what they show runs, what they name exists, and docstrings make pages without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import torchpbp

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("name", ["architecture.md", "interchange.md"])
def test_python_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / name
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert blocks
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(blocks, start=1):
        if "pgmpy" in block and find_spec("pgmpy") is None:
            continue
        exec(compile(block, f"{page.name}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    words = set(re.findall(r"`([\w/]+(?:\.py|\.md)?)`", text))
    paths = {w for w in words if "/" in w and w.partition("/")[0] in ("torchpbp", "tests", "conf", "scripts", "docs")}
    assert not [p for p in paths if not (ROOT / p).exists()]
    files = {path.name for path in (ROOT / "torchpbp").rglob("*.py")}
    assert not [w for w in words - paths if w.endswith(".py") and w not in files]


def test_every_part_is_on_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = [p.parent.name for p in (ROOT / "torchpbp").glob("*/__init__.py")]
    assert len(folders) > 10
    assert not [f for f in folders if f"torchpbp/{f}" not in page]


def test_public_names_have_docstrings() -> None:
    bare = [name for name in torchpbp.__all__ if not (getattr(torchpbp, name).__doc__ or "").strip()]
    assert not bare


@pytest.mark.slow
def test_pages_of_the_api_build(tmp_path: Path) -> None:
    pytest.importorskip("pdoc", reason='pip install -e ".[docs]"')
    command = [sys.executable, str(ROOT / "scripts" / "build_docs.py"), str(tmp_path / "api")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "api" / "torchpbp.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in page for name in torchpbp.__all__ if name not in ("errors", "plotting", "templates"))
    assert "`~" not in page
    assert (tmp_path / "api" / "torchpbp" / "graph" / "templates.html").is_file()
