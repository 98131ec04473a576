"""What README and the pages of docs show runs as printed, and figures are those that their commands print."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.composed import accept, composed
from torchpbp.experiments.run import train

ROOT = Path(__file__).parents[2]
PAGES = {p.name: p.read_text(encoding="utf-8") for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
OTHERS = [ROOT / "CONTRIBUTING.md", *(ROOT / "conf").rglob("*.yaml"), *sorted((ROOT / "notebooks").glob("*.ipynb"))]
"""Files with commands, beside the pages."""


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def train_commands() -> list[list[str]]:
    """Arguments of every train.py command: of blocks, of lines within text and tables, and of other files."""
    lines = [line for text in PAGES.values() for block in blocks(text, "bash") for line in block.splitlines()]
    lines += [" ".join(c.split()) for text in PAGES.values() for c in re.findall(r"`(python train\.py[^`<]*)`", text)]
    for path in OTHERS:
        text = path.read_text(encoding="utf-8").replace("\\n", " ").replace('"', " ")
        lines += [re.split(r"[`#]|  ", line)[0] for line in re.findall(r"python train\.py.*", text)]
    commands = [
        shlex.split(line.partition("python train.py")[2], comments=True) for line in lines if "train.py" in line
    ]
    return [c for c in commands if not any(a.startswith("--config-dir") or "<" in a or "my_package" in a for a in c)]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """README's blocks, run one after the other in an empty folder: the names they leave, and the folder."""
    folder = tmp_path_factory.mktemp("readme")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    os.chdir(folder)
    try:
        for number, block in enumerate(blocks(PAGES["README.md"], "python"), start=1):
            exec(compile(block, f"README block {number}", "exec"), namespace)
    finally:
        os.chdir(before)
    return namespace, folder


def test_quickstart_runs(quickstart: tuple[dict[str, Any], Path]) -> None:
    namespace, folder = quickstart
    learned, exact = (namespace[m].posterior("d1", namespace["evidence"]) for m in ("model", "truth"))
    assert (learned - exact).abs().max() < 0.05
    assert (folder / "diamond.pt").exists()


@pytest.mark.parametrize("page", [name for name in PAGES if name != "README.md" and blocks(PAGES[name], "python")])
def test_pages_run(page: str, quickstart: tuple[dict[str, Any], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages continue from README; their own blocks run one after the other."""
    namespace, folder = quickstart
    monkeypatch.chdir(folder)
    own = dict(namespace)
    for number, block in enumerate(blocks(PAGES[page], "python"), start=1):
        for package in ("pgmpy", "dask"):
            if package in block:
                pytest.importorskip(package)
        exec(compile(block, f"{page} block {number}", "exec"), own)


def test_links_lead_somewhere() -> None:
    for name, text in PAGES.items():
        here = ROOT if name == "README.md" else ROOT / "docs"
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (here / target).exists(), f"{name}: {target}"


def test_commands_are_accepted() -> None:
    """Every choice and setting in them exists and is read, those of help, notebooks and CONTRIBUTING among them."""
    commands = [list(c) for c in dict.fromkeys(map(tuple, train_commands()))]
    assert len(commands) > 40
    for arguments in commands:
        overrides = [a for a in arguments if "=" in a or a.startswith("~")]
        if "-m" in arguments:  # the first value of each sweep
            overrides = [a if "[" in a else a.split(",")[0] for a in overrides]
        if any(a.startswith("hparams_search=") for a in overrides) and importlib.util.find_spec("optuna") is None:
            continue
        accept([a for a in overrides if not a.startswith("hydra")])


def test_table_holds_the_figures_of_its_command() -> None:
    table = re.findall(r"^\| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \|", PAGES["learning.md"], flags=re.MULTILINE)
    figures = {int(n.replace(",", "")): (float(kl), float(error)) for n, kl, error in table}
    assert ["experiment=consistency"] in train_commands()
    full = composed("experiment=consistency")
    assert list(figures) == list(full.task.sizes)
    metrics = train(composed("experiment=consistency", "task.sizes=[1000,10000]", output_dir=None)).metrics
    for n in (1_000, 10_000):
        kl, error = figures[n]
        assert metrics[f"kl/{n}"] == pytest.approx(kl, rel=0.01, abs=1e-6)
        assert metrics[f"kl_standard_error/{n}"] == pytest.approx(error, rel=0.01, abs=1e-6)
