"""What README shows runs as printed, and its figures are those that its command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from torchpbp.data import DigitsDataModule, hide_points
from torchpbp.tasks.rivals import PartialDistanceNeighbour
from train import train

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def train_commands() -> list[list[str]]:
    """Arguments of every train.py command."""
    lines = [line for block in blocks("bash") for line in block.splitlines() if "python train.py" in line]
    return [shlex.split(line.partition("python train.py")[2], comments=True) for line in lines]


def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(blocks("python"), start=1):
        exec(compile(block, f"README block {number}", "exec"), namespace)
    learned, exact = (namespace[m].posterior("d1", namespace["evidence"]) for m in ("model", "truth"))
    assert (learned - exact).abs().max() < 0.05
    assert "clipped_mass" in capsys.readouterr().out


def test_commands_compose() -> None:
    commands = train_commands()
    assert len(commands) >= 6
    for arguments in commands:
        overrides = [a for a in arguments if not a.startswith("-")]
        if "-m" in arguments:  # the first value of each sweep
            overrides = [a if "[" in a else a.split(",")[0] for a in overrides]
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            compose("config", overrides=[*overrides, "output_dir=null"])


def test_table_holds_the_figures_of_its_command() -> None:
    table = re.findall(r"^\| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \|", README, flags=re.MULTILINE)
    figures = {int(n.replace(",", "")): (float(kl), float(error)) for n, kl, error in table}
    (command,) = (c for c in train_commands() if c == ["experiment=synthetic_consistency"])
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
    (line,) = re.findall(r"^\| nearest neighbour by partial distance \|(.*)\|$", README, flags=re.MULTILINE)
    printed = [float(cell.strip(" %")) for cell in line.split("|")]
    data = DigitsDataModule()
    data.setup()
    predict = PartialDistanceNeighbour(data.train_x, data.train_y)
    truth = data.test_y.numpy()
    found = [100 * (predict(hide_points(data.test_x, k, seed=0)) == truth).mean() for k in (0, 2, 4, 6)]
    assert printed == pytest.approx(found, abs=0.006)
