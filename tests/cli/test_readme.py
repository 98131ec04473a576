"""What README and the pages of docs show runs as printed, and figures are those that their commands print."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from torchpbp.datasets import DigitsDataModule, hide_points
from torchpbp.experiments.digits.baselines import PartialDistanceNeighbour
from train import train

ROOT = Path(__file__).parents[2]
PAGES = {p.name: p.read_text(encoding="utf-8") for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def train_commands() -> list[list[str]]:
    """Arguments of every train.py command: of blocks, and of lines within the text and tables."""
    lines = [line for text in PAGES.values() for block in blocks(text, "bash") for line in block.splitlines()]
    lines += [" ".join(c.split()) for text in PAGES.values() for c in re.findall(r"`(python train\.py[^`<]*)`", text)]
    return [
        shlex.split(line.partition("python train.py")[2], comments=True) for line in lines if "python train.py" in line
    ]


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


def test_commands_compose() -> None:
    commands = [list(c) for c in dict.fromkeys(map(tuple, train_commands()))]
    assert len(commands) >= 6
    if importlib.util.find_spec("optuna") is None:
        commands = [c for c in commands if "sweep=optuna" not in c]
    for arguments in commands:
        overrides = [a for a in arguments if not a.startswith("-")]
        if "-m" in arguments:  # the first value of each sweep
            overrides = [a if "[" in a else a.split(",")[0] for a in overrides]
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            compose("config", overrides=[*overrides, "output_dir=null"])


def test_table_holds_the_figures_of_its_command() -> None:
    table = re.findall(r"^\| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \|", PAGES["learning.md"], flags=re.MULTILINE)
    figures = {int(n.replace(",", "")): (float(kl), float(error)) for n, kl, error in table}
    command = next(c for c in train_commands() if c == ["experiment=synthetic_consistency"])
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        full = compose("config", overrides=[*command, "output_dir=null"])
        quick = compose(
            "config", overrides=[*command, "output_dir=null", "model.sizes=[1000,10000]", "model.verbose=false"]
        )
    assert list(figures) == list(full.model.sizes)
    metrics = train(quick)
    for n in (1_000, 10_000):
        kl, error = figures[n]
        assert metrics[f"kl/{n}"] == pytest.approx(kl, rel=0.01, abs=1e-6)
        assert metrics[f"kl_standard_error/{n}"] == pytest.approx(error, rel=0.01, abs=1e-6)


def test_digits_table_is_of_these_rows_and_hidden_points() -> None:
    """The quickest of its lines, computed again."""
    (line,) = re.findall(r"^\| nearest neighbour by partial distance \|(.*)\|$", PAGES["digits.md"], flags=re.MULTILINE)
    printed = [float(cell.strip(" %")) for cell in line.split("|")]
    data = DigitsDataModule()
    data.setup()
    predict = PartialDistanceNeighbour(data.train_x, data.train_y)
    truth = data.test_y.numpy()
    found = [100 * (predict(hide_points(data.test_x, k, seed=0)) == truth).mean() for k in (0, 2, 4, 6)]
    assert printed == pytest.approx(found, abs=0.006)
