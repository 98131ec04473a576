"""Files that claim to be larger than they are: rejected before anything of the size they claim is allocated."""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchpbp.files.archive import check_archive

import torchpbp
from tests.files.model_zoo import GRAPH, fitted, load
from torchpbp import PBP, Counts, KernelPBP
from torchpbp.errors import CheckpointError, StructureError

MANY = 10**10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fitted("PBP").save(tmp_path / "model.pt")
    return tmp_path / "model.pt"


def records(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


# -- zip archives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressed_records_raise(path: Path, method: int) -> None:
    content = records(path)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    with pytest.raises(CheckpointError, match=r"is compressed.*Save the model again"):
        torchpbp.load(path)


def test_a_bomb_is_rejected_before_it_is_unpacked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MB of zeros in 64 kB; nothing of it is read."""
    content = records(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
        archive.writestr("model/data/999", bytes(1 << 26), zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 18
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("a record was opened"))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("the file was read"))
    with pytest.raises(CheckpointError, match="is compressed, from 67,108,864 bytes"):
        torchpbp.load(path)


def raw_archive(entries: list[tuple[str, bytes, int, int]], body: bytes, comment: bytes = b"") -> bytes:
    """A zip archive whose table of contents says what it is told to.

    Args:
        entries: (name, content, offset of its header, declared size).
        body: what comes before the table of contents.
        comment: at the end.
    """
    directory = b""
    for name, content, offset, size in entries:
        # signature, versions, flags, method, time, date, sum, sizes, lengths of name, extra, comment, disk, attributes, offset
        directory += struct.pack(
            "<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 0, 0, 33, zlib.crc32(content), size, size, len(name), 0, 0, 0, 0, 0, offset
        ) + name.encode()  # fmt: skip
    end = struct.pack(
        "<4s4H2LH", b"PK\x05\x06", 0, 0, len(entries), len(entries), len(directory), len(body), len(comment)
    )
    return body + directory + end + comment


def header(name: str, content: bytes) -> bytes:
    return struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, 0, 0, 0, 33, zlib.crc32(content), len(content), len(content), len(name), 0) + name.encode()  # fmt: skip


def raw_model(path: Path) -> tuple[list[tuple[str, bytes, int, int]], bytes]:
    """The records of a model file as entries and body of :func:`raw_archive`."""
    entries, body = [], b""
    for name, content in records(path).items():
        entries.append((name, content, len(body), len(content)))
        body += header(name, content) + content
    return entries, body


def test_an_archive_made_by_hand_is_read(path: Path) -> None:
    entries, body = raw_model(path)
    path.write_bytes(raw_archive(entries, body))
    assert isinstance(torchpbp.load(path), PBP)


def test_records_that_declare_more_than_the_file_holds_raise(path: Path) -> None:
    entries, body = raw_model(path)
    name, content, offset, _ = entries[-1]
    path.write_bytes(raw_archive([*entries[:-1], (name, content, offset, 1 << 31)], body))
    with pytest.raises(CheckpointError, match=r"its records declare 2,147,.* bytes, and the file has"):
        torchpbp.load(path)


def test_records_within_records_raise(path: Path) -> None:
    """Each small record of a series holds all that follow it: together they declare far more than there is."""
    entries, body = raw_model(path)
    inner = header("model/inner", b"x" * 50) + b"x" * 50
    outer = header("model/outer", inner) + inner
    start = len(body)
    nested = [
        ("model/outer", inner, start, len(inner)),
        ("model/inner", b"x" * 50, start + len(outer) - len(inner), 50),
    ]
    path.write_bytes(raw_archive([*entries, *nested], body + outer))
    with pytest.raises(CheckpointError, match="'model/outer' overlaps"):
        torchpbp.load(path)


def test_records_that_come_twice_raise(path: Path) -> None:
    entries, body = raw_model(path)
    path.write_bytes(raw_archive([*entries, entries[-1]], body))
    with pytest.raises(CheckpointError, match="come twice"):
        torchpbp.load(path)


def test_a_comment_or_bytes_around_the_archive_raise(path: Path) -> None:
    """Two readers might find two archives in such a file."""
    entries, body = raw_model(path)
    whole = raw_archive(entries, body)
    for odd in (raw_archive(entries, body, b"comment"), whole + b"\0", b"#!/bin/sh\n" + whole):
        path.write_bytes(odd)
        with pytest.raises(CheckpointError, match="Save the model again"):
            torchpbp.load(path)


def test_checksums_are_compared_chunk_by_chunk(path: Path) -> None:
    """A file of 8 MB is checked with little memory."""
    torch.save({"x": torch.zeros(1 << 20, dtype=torch.float64)}, path)

    class Watched(io.FileIO):
        most = 0

        def read(self, size: int | None = -1) -> bytes:
            found = super().read(-1 if size is None else size)
            self.most = max(self.most, len(found))
            return found

    with Watched(path) as file:
        assert check_archive(file, "model", "") == path.stat().st_size  # type: ignore[arg-type]
        assert 0 < file.most <= 1 << 20
    damaged = bytearray(path.read_bytes())
    damaged[5 << 20] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match="BadZipFile"):
        torchpbp.load(path)


# -- tensors and lists -------------------------------------------------------------------------------------------------


def resaved(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    saved = torch.load(path, weights_only=True)
    change(saved)
    torch.save(saved, path)


def doubled(times: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(times):
        found = [found, found]
    return found


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


ODD: dict[str, tuple[Callable[[], Any], str]] = {
    "repeated number": (lambda: torch.zeros(1, dtype=torch.float64).expand(MANY), r"would take more than .* \(10000000000,\)"),
    "overlapping rows": (lambda: torch.zeros(2 << 12).as_strided((1 << 12, 1 << 12), (1, 1)), "would take more than"),
    "shared storage": (lambda: [(lambda t: [t.view(-1) for _ in range(999)])(torch.zeros(1 << 10))], "would take more than"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "sparse_coo tensor"),
    "compressed rows": (lambda: torch.eye(3).to_sparse_csr(), "sparse_csr tensor"),
    "meta": (lambda: torch.zeros(MANY, device="meta"), "meta tensor"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.qint8), "quantized tensor"),
    "doubled lists": (lambda: doubled(60), "its lists would have .* entries"),
    "endless list": (endless, "RecursionError"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("kind", ODD)
def test_small_files_of_large_things_raise(kind: str, path: Path) -> None:
    make, message = ODD[kind]
    resaved(path, lambda saved: saved.update(odd=make()))
    assert path.stat().st_size < 1 << 17
    with pytest.raises(CheckpointError, match=message):
        torchpbp.load(path)


@pytest.mark.parametrize("kind", ["sparse", "meta"])
def test_tensors_without_numbers_of_their_own_are_not_written(kind: str, path: Path) -> None:
    before = path.read_bytes()
    model = torchpbp.load(path)
    weight = model.operators[0].weight
    odd = torch.empty_like(weight, device="meta") if kind == "meta" else weight.detach().to_sparse()
    model.state_dict = lambda: {"odd": odd}
    with pytest.raises(CheckpointError, match=f"odd: expected a dense tensor, got {kind}"):
        model.save(path)
    assert path.read_bytes() == before


# -- numbers of states -------------------------------------------------------------------------------------------------


def with_states(graph: dict[str, Any], name: str, states: Any) -> None:
    """Change a variable in the content of a file."""
    graph["variables"] = [[v, states if v == name else d] for v, d in graph["variables"]]


def both_graphs(saved: dict[str, Any]) -> None:
    for key in ("graph", "resolved_graph"):
        with_states(saved[key], "x2", MANY)


GROWN: dict[tuple[str, str], tuple[Callable[[dict[str, Any]], object], str]] = {
    ("PBP", "graphs"): (both_graphs, r"_observables.1.marginal: expected shape \(10000000000,\), got \(2,\)"),
    ("PBP", "graph"): (lambda s: with_states(s["graph"], "x2", MANY), r"_observables.1.marginal: expected shape"),
    ("PBP", "resolved graph"): (lambda s: with_states(s.update(resolved_graph=dict(s["resolved_graph"])) or s["resolved_graph"], "x2", MANY), "two graphs give 'x2' 2 and 10000000000"),
    ("PBP", "rank"): (lambda s: s["specification"][1].update(rank=MANY), r"operators.1.weight: expected shape \(10000000000, 2\)"),
    ("PBP", "weight"): (lambda s: s["state"].update({"root.weight": torch.zeros(2, 2)}), r"root.weight: expected shape \(2, 2, 2\)"),
    ("Nystroem", "features"): (lambda s: s["features"].update(size=MANY), r"kernel_map.centres: expected shape \(10000000000,\)"),
    ("RandomFourier", "features"): (lambda s: s["features"].update(size=MANY), r"kernel_map.frequencies: expected shape"),
    ("EM", "graph"): (lambda s: with_states(s["graph"], "x2", MANY), "CPT of 'x2': expected shape"),
    ("NormalGraphLearner", "graph"): (lambda s: with_states(s["graph"], "x2", MANY), "CPT of 'x2': expected shape"),
    ("SpectralJunctionTree", "graph"): (lambda s: with_states(s["graph"], "x2", MANY), "do not fit the tree"),
    ("SpectralJunctionTree", "root"): (lambda s: s.update(root=torch.zeros(2, 2)), "root of shape"),
    ("KernelPBP", "graph"): (lambda s: with_states(s["graph"], "x2", MANY), "at most 67,108,864 states"),
    ("KernelPBP", "examples"): (lambda s: s["examples"].fill_(7.0), "examples of 'x1': expected states from 0 to 1"),
    ("KernelPBP", "operators"): (lambda s: s["operators"].update({k: [x[:3], y] for k, (x, y) in s["operators"].items()}), "expected values at 15 training rows"),
    ("GenerativeClassifier", "graph"): (lambda s: with_states(s["graph"], "x2", MANY), r"give \['x2'.* other numbers of states"),
    ("GenerativeClassifier", "model"): (lambda s: both_graphs(s["models"][1]), "class b.*_observables.1.marginal"),
    ("GenerativeClassifier", "classes"): (lambda s: s["classes"].update(dtype="<U500000000"), "classes of type '<U500000000' would take"),
    ("Counts", "states"): (lambda s: s["states"].update(x2=1 << 20), "expected .* counts, got shape"),
    ("Counts", "no number"): (lambda s: s["states"].update(x2=2.0), "expected numbers of states"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "what"), GROWN, ids=map(" ".join, GROWN))
def test_declared_sizes_are_compared_with_the_tensors(name: str, what: str, tmp_path: Path) -> None:
    """Before anything of the declared size is made, which would not fit into memory."""
    change, message = GROWN[name, what]
    path = tmp_path / "model.pt"
    fitted(name).save(path)
    resaved(path, change)
    with pytest.raises(CheckpointError, match=message):
        load(name, path)


def test_counts_inside_a_model_file_are_compared_too(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    fitted("PBP").save(path, counts=True)
    assert isinstance(torchpbp.load(path).counts, Counts)
    resaved(path, lambda s: s["counts"]["states"].update(x2=1 << 20))
    with pytest.raises(CheckpointError, match=r"expected .* counts"):
        torchpbp.load(path)


def test_a_kernel_model_of_more_states_than_an_answer_can_have_is_not_made() -> None:
    with pytest.raises(StructureError, match=re.escape("['x2'] have more")):
        KernelPBP(GRAPH.with_states({"x2": MANY}))


def test_plans_have_numbers_of_their_nodes(path: Path) -> None:
    for odd in ({"rank": 2.0}, {"rank": True}, {"node": 7}, {"reached": -1}, {"needed": None}):
        fitted("PBP").save(path)
        resaved(path, lambda saved, odd=odd: saved["specification"][0].update(odd))
        with pytest.raises(CheckpointError, match="Plan of node 1"):
            torchpbp.load(path)
