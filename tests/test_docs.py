"""Documentation pages: the files and names they mention exist.

tests/cli/test_readme.py runs their code and commands; scripts/build_docs.py builds the API pages.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

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


def called_files(call: Callable[[], Any]) -> set[str]:
    """Files of the package in which a call executes code."""
    package = str(ROOT / "torchpbp") + os.sep
    files = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            files.add(frame.f_code.co_filename.removeprefix(package))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return files


@pytest.mark.parametrize(("heading", "most"), [("## 3. Fit", 10), ("## 4. Answers", 6)])
def test_the_architecture_page_lists_the_files_of_a_call(heading: str, most: int) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition(heading)[2].partition("\n## ")[0]
    steps = re.findall(r"^\| `([\w/]+\.py)` \|", section, flags=re.MULTILINE)
    named = set(re.findall(r"`([\w/]+\.py)`", section))
    truth = torchpbp.DiscreteNetwork.random(torchpbp.templates.diamond(observed_states=3), seed=1)
    frame, evidence = truth.sample_frame(2_000, seed=2), {"a1": torch.tensor([0, 2])}
    model = torchpbp.PBP(truth.graph)
    model.fit(frame)
    calls = {"## 3. Fit": lambda: model.fit(frame), "## 4. Answers": lambda: model.posterior("d1", evidence)}
    files = called_files(calls[heading])
    assert 0 < len(steps) <= most
    assert set(steps) <= files
    assert not files - named
