"""Model files: what is in them, and that models come back as they were."""

from __future__ import annotations

import copy
import datetime
import json
import math
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import torchpbp
from tests.closeness import assert_same_up_to_rounding
from tests.files.model_zoo import GRAPH, MAKERS, answers, fitted, load
from torchpbp import PBP, KernelPBP, MaximumLikelihood
from torchpbp.errors import CheckpointError, NotFittedError
from torchpbp.io import read_file, write_file

# -- models ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ""])
@pytest.mark.parametrize("name", MAKERS)
def test_a_model_comes_back_with_equal_answers(name: str, suffix: str, tmp_path: Path) -> None:
    model, path = fitted(name), tmp_path / f"model{suffix}"
    model.save(path)
    for loaded in (load(model, path), type(model).load(path)):
        assert type(loaded) is type(model)
        assert answers(loaded).dtype == answers(model).dtype
        torch.testing.assert_close(
            answers(loaded), answers(model), rtol=1e-10, atol=1e-12
        )  # tables are normalised once more
        assert getattr(loaded, "labels", None) == getattr(model, "labels", None)
        assert getattr(loaded, "missing", None) == getattr(model, "missing", None)
        if isinstance(model, PBP | KernelPBP | MaximumLikelihood):  # files of others do not hold all settings
            assert loaded.settings == model.settings
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", MAKERS)
def test_a_loaded_model_is_saved_as_the_same_bytes(name: str, tmp_path: Path) -> None:
    fitted(name).save(tmp_path / "first")
    load(fitted(name), tmp_path / "first").save(tmp_path / "second")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_holds_tensors_and_one_text(name: str, tmp_path: Path) -> None:
    fitted(name).save(tmp_path / "model.pt")
    assert not zipfile.is_zipfile(tmp_path / "model.pt")  # as torch's own files, which hold a pickle
    with safe_open(tmp_path / "model.pt", framework="pt") as archive:
        (text,) = archive.metadata().values()
        header, names = json.loads(text), set(archive.keys())
    assert (header["format"], header["version"]) == ("torchpbp", 1)
    assert header["content"]["class"] == type(fitted(name)).__name__
    expected = {
        "PBP": "state.operators.root.weight",
        "EM": "tables.x1",
        "KernelPBP": "examples",
        "GenerativeClassifier": "models.1.state.operators.root.weight",
        "Counts": "counts",
    }
    assert expected.get(name, next(iter(names))) in names


@pytest.mark.parametrize("counts", [False, True])
def test_parameters_are_the_same_to_the_bit(counts: bool, tmp_path: Path) -> None:
    model = fitted("PBP")
    model.save(tmp_path / "model.pt", counts=counts)
    loaded = torchpbp.load(tmp_path / "model.pt")
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
        assert tensor.dtype == model.state_dict()[name].dtype
    assert (loaded.counts is not None) == counts
    assert (loaded.tree, loaded.plan) == (model.tree, model.plan)


@pytest.mark.parametrize("name", ["PBP", "Nystroem", "KernelPBP"])
def test_tensors_of_a_loaded_model_share_nothing(name: str, tmp_path: Path) -> None:
    """Otherwise each of them would hold all others in memory."""
    fitted(name).save(tmp_path / "model.pt")
    tensors = list(torchpbp.load(tmp_path / "model.pt").state_dict().values())
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in tensors)
    assert len({t.data_ptr() for t in tensors if t.numel()}) == sum(t.numel() > 0 for t in tensors)


def test_a_loaded_model_can_do_what_modules_do(tmp_path: Path) -> None:
    fitted("PBP").save(tmp_path / "model.pt")
    model = torchpbp.load(tmp_path / "model.pt")
    evidence = {"x1": torch.tensor([0, 1, -1])}
    before = model.log_evidence(evidence).detach()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.to("cpu")):
        assert_same_up_to_rounding(other.log_evidence(evidence), before)
    fresh = PBP(model.graph)
    fresh.load_state_dict(model.state_dict())
    assert_same_up_to_rounding(fresh.log_evidence(evidence), before)
    single = copy.deepcopy(model).float()
    single.save(tmp_path / "single.pt")
    assert torchpbp.load(tmp_path / "single.pt").operators.root.weight.dtype == torch.float32
    assert_same_up_to_rounding(
        torchpbp.load(tmp_path / "single.pt").log_evidence(evidence),
        single.log_evidence(evidence),
        rtol=1e-5,
        atol=1e-5,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    (-model.log_evidence(evidence).sum()).backward()
    optimizer.step()
    assert not torch.equal(model.log_evidence(evidence), before)
    model.save(tmp_path / "model.pt")
    assert_same_up_to_rounding(
        torchpbp.load(tmp_path / "model.pt").log_evidence(evidence), model.log_evidence(evidence)
    )


@pytest.mark.parametrize("name", ["PBP", "EM", "SpectralJunctionTree", "NormalGraphLearner", "KernelPBP", "GenerativeClassifier"])  # fmt: skip
def test_an_unfitted_model_leaves_no_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        getattr(torchpbp, name)(GRAPH).save(tmp_path / "model.pt")
    assert not list(tmp_path.iterdir())


# -- tensors -----------------------------------------------------------------------------------------------------------


def stored(content: dict[str, Any], path: Path) -> tuple[dict[str, Any], int]:
    """The content as it is read again, and the bytes of tensors in the file."""
    write_file(path, content)
    with safe_open(path, framework="pt") as archive:
        size = sum(archive.get_tensor(name).nbytes for name in archive.keys())  # noqa: SIM118
    return read_file(path), size


def equal(a: Any, b: Any) -> bool:
    """Whether values are equal and of the same types, tensors with the same order in memory."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and equal(list(a.items()), list(b.items()))
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


BIG = torch.arange(10_000, dtype=torch.float64).reshape(100, 100)
SHARED: dict[str, tuple[list[Tensor], int]] = {
    "one tensor many times": ([BIG] * 50, BIG.nbytes),
    "views of all of it": ([BIG, BIG.T, BIG.view(-1), BIG.view(10, 1000), *[BIG.view(5, 20, 100)] * 9], BIG.nbytes),
    "parts that overlap": ([BIG[i:] for i in range(50)], BIG.nbytes),
    "parts side by side": (list(BIG.split(10)), BIG.nbytes),
    "a small part": ([BIG[:2, 3]], 16),
    "small parts that overlap": ([BIG[0, i : i + 3] for i in range(10)], 12 * 8),
    "one number repeated": ([torch.ones(1).expand(10**10)], 4),
    "parameters": ([torch.nn.Parameter(BIG), BIG], BIG.nbytes),
    "empty ones": ([torch.zeros(0), torch.zeros(3, 0), torch.zeros(0)], 0),
}  # fmt: skip
"""Tensors of a content, and the bytes that they take in a file."""


@pytest.mark.parametrize("kind", SHARED)
def test_memory_that_tensors_share_is_written_once(kind: str, tmp_path: Path) -> None:
    tensors, size = SHARED[kind]
    found, written = stored({"tensors": tensors}, tmp_path / "file")
    assert written == size
    if kind != "one number repeated":
        assert equal([t.contiguous() for t in found["tensors"]], [t.detach().contiguous() for t in tensors])
    assert [t.shape for t in found["tensors"]] == [t.shape for t in tensors]


def test_tensors_keep_type_and_order_in_memory(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    cube = torch.randn(3, 4, 5, generator=generator)
    content = {
        "transposed": cube.permute(2, 0, 1),
        "types": [cube.to(t) for t in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool)],
        "scalar": torch.tensor(3.5),
        "conjugate": torch.complex(cube, -cube).conj(),
        "a.b": torch.zeros(2),
        "a": {"b": torch.ones(2)},
    }  # fmt: skip
    found, _ = stored(content, tmp_path / "file")
    assert equal(found, content)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("kind", ["sparse_coo", "sparse_csr", "meta", "complex128"])
def test_tensors_that_safetensors_does_not_hold_raise(kind: str, tmp_path: Path) -> None:
    odd = {
        "sparse_coo": lambda: BIG.to_sparse(),
        "sparse_csr": lambda: BIG.to_sparse_csr(),
        "meta": lambda: BIG.to("meta"),
        "complex128": lambda: BIG.to(torch.complex128),
    }[kind]()
    with pytest.raises(CheckpointError, match="file' could not be written"):
        write_file(tmp_path / "file", {"odd": odd})
    assert not list(tmp_path.iterdir())


# -- plain values ------------------------------------------------------------------------------------------------------


def test_plain_values_come_back_with_their_types(tmp_path: Path) -> None:
    content = {
        "scalars": [None, True, False, 0, -(10**40), 0.1, 5e-324, 1e308, "", "ü\ud800\n\"'\\", '"torchpbp":"{"checksum":"'],
        "not finite": (math.nan, math.inf, -math.inf),
        "nested": [(), (1, (2, [3])), [], {}, {"x": {"y": ({},)}}],
        "keys": {1: "a", "1": "b", None: 0, (1, "x"): torch.ones(1), 2.5: (), np.int64(7): 1, True and "t": 0},
        "names like tags": {"$tuple": [1], "$tensor": "keys"},
        "tag alone": {"$x": 1},
        "types": [torch.float32, torch.int64, torch.complex64, torch.bool],
        "numpy": [np.float64(0.1), np.float32(np.nan), np.int8(-3), np.uint64(2**63), np.bool_(True), np.str_("x")],
    }  # fmt: skip
    found, _ = stored(content, tmp_path / "file")
    assert equal(found, content)


@pytest.mark.parametrize(
    "value", [datetime.date(2020, 1, 2), {1, 2}, b"x", 1j, object(), len, np.arange(3), np.datetime64("2020-01-02"), np.longdouble(1)], ids=lambda v: type(v).__name__
)  # fmt: skip
def test_values_that_could_not_be_read_back_are_not_written(value: Any, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"holds numbers, strings and tensors; a\.b\.1: got .* Give it as a number"
    ):
        write_file(tmp_path / "file", {"a": {"b": [0, value]}})
    assert not list(tmp_path.iterdir())
