"""Notebooks run from the first cell to the last, and are stored without traces of the machine they were written on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason='pip install -e ".[notebooks]"')

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS_PER_CELL = 300
LARGEST_FILE = 300_000

RUN = """
import sys
import nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
client = nbclient.NotebookClient(notebook, timeout=int(sys.argv[3]), kernel_name="python3")
try:
    client.execute()
finally:
    nbformat.write(notebook, sys.argv[2])
"""


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_there_are_notebooks_and_each_has_a_number_of_its_own() -> None:
    assert NOTEBOOKS
    for name in names(NOTEBOOKS):
        assert re.fullmatch(r"\d\d_[a-z0-9_]+\.ipynb", name), f"{name}: expected a name such as 03_what_it_shows.ipynb"
    numbers = [name[:2] for name in names(NOTEBOOKS)]
    assert len(set(numbers)) == len(numbers), f"two notebooks share a number: {numbers}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=names(NOTEBOOKS))
def test_stored_notebook_is_valid_and_clean(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].cell_type == "markdown", "starts with what it is about"
    assert notebook.cells[0].source.startswith("# ")
    absolute = re.findall(
        r"(?<![\w.:/])(?:/(?:home|Users|tmp|root|work|mnt|usr|var|opt)/[^\s\"'\\]*|[A-Z]:\\\\[^\s\"']*)", text
    )
    assert not absolute, f"absolute paths: {absolute}"
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [o for o in outputs if o.output_type == "error"]
    assert not [o for o in outputs if o.get("name") == "stderr"], "progress bars and warnings are not worth storing"
    assert len(text) < LARGEST_FILE, "outputs too large to be stored: use smaller pictures"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=names(NOTEBOOKS))
def test_stored_notebook_shows_what_a_run_from_the_top_shows(path: Path) -> None:
    """Readers of the repository see results without running anything."""
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert [o for o in outputs if "image/png" in o.get("data", {})], "no picture is stored"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=names(NOTEBOOKS))
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    """In a process and folder of its own, so that a hanging kernel or a written file does no harm."""
    pytest.importorskip("nbclient", reason='pip install -e ".[notebooks]"')
    pytest.importorskip("ipykernel", reason='pip install -e ".[notebooks]"')
    executed = tmp_path / path.name
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
    }
    result = subprocess.run(
        [sys.executable, "-c", RUN, str(path), str(executed), str(SECONDS_PER_CELL)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=4 * SECONDS_PER_CELL,
    )
    assert result.returncode == 0, result.stderr[-3_000:]
    notebook = nbformat.read(executed, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    assert cells
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert any(cell.outputs for cell in cells), "a notebook that shows nothing"
