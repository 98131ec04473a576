"""The wheel: what an installed package holds, and its command in a folder that knows nothing of the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
import yaml

import torchpbp
from torchpbp.experiments.overrides import CONF

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason='pip install -e ".[test]"')
    folder = tmp_path_factory.mktemp("wheel")
    offline = ["--no-deps", "--no-build-isolation", "--no-index"]
    built = run([sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", str(folder), str(ROOT)], folder)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and its command, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(folder), str(wheel)]
    result = run(command, folder)
    assert result.returncode == 0, result.stderr
    return folder


def test_everything_that_belongs_to_the_package_is_in_the_wheel(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    for folder, pattern, place in [
        (ROOT / "conf", "*.yaml", "torchpbp/conf"),
        (ROOT / "torchpbp", "*.py", "torchpbp"),
        (ROOT / "torchpbp" / "datasets" / "files", "*", "torchpbp/datasets/files"),
    ]:
        wanted = {f"{place}/{path.relative_to(folder).as_posix()}" for path in folder.rglob(pattern) if path.is_file()}
        assert wanted
        assert wanted <= inside
    assert "torchpbp/py.typed" in inside
    assert {name.split("/")[0] for name in inside} == {"torchpbp", f"torchpbp-{torchpbp.__version__}.dist-info"}


def test_the_version_stands_in_one_place(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [n for n in archive.namelist() if n.endswith("METADATA")]
    metadata = message_from_string(archive.read(name).decode())
    assert metadata["Version"] == torchpbp.__version__
    assert metadata["License-Expression"] == "MIT"
    assert f"\nversion: {torchpbp.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert 'version = "' not in (ROOT / "pyproject.toml").read_text().partition("[tool.")[0]


@pytest.mark.slow
def test_the_command_runs_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    alone = {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(installed / "bin" / "torchpbp-train")]
    result = run([*command, "model=digits", "debug=default"], tmp_path, **alone)
    assert result.returncode == 0, result.stderr
    (folder,) = (tmp_path / "outputs").iterdir()
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["rows/test"] == 3498
    assert metrics["test/accuracy"] > 0.5
    settings = yaml.safe_load((folder / ".hydra" / "hydra.yaml").read_text())["hydra"]
    used = [s["path"] for s in settings["runtime"]["config_sources"] if s["provider"] == "main"]
    assert [Path(path) for path in used] == [installed / "torchpbp" / "conf"]
    assert settings["job"]["name"] == "train"  # as with train.py
    assert "torchpbp-train model=digits debug=default" in (folder / "report.html").read_text()
    rejected = run([*command, "modle=em"], tmp_path, **alone)
    assert rejected.returncode != 0
    assert "Did you mean model?" in rejected.stderr


def test_the_checkout_has_its_settings_beside_the_package() -> None:
    assert ROOT / "conf" == CONF
    assert not (ROOT / "torchpbp" / "conf").exists()
