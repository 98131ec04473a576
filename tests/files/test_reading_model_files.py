"""Model files are read once, in few records, and give back what was saved; files of earlier versions are read too."""

from __future__ import annotations

import copy
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor
from torchpbp.files.checkpoint import read_checkpoint

import torchpbp
from tests.files.model_zoo import LABELLED, MAKERS, fitted, load
from torchpbp import EM, PBP, DiscreteNetwork, KernelPBP, SpectralJunctionTree, templates
from torchpbp.graph.junction_tree import build_junction_tree

EARLIER = Path(__file__).with_name("earlier_model_files.zip")
"""Files that hold a record for each tensor, with some answers of the models in them, written by an earlier version."""


# -- how files are read ------------------------------------------------------------------------------------------------


class Counting:
    """Stands in for a function and counts its calls."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.function(*args, **kwargs)


@pytest.mark.parametrize("way", ["torchpbp.load", "its own load"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_file_is_opened_and_read_once(name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.pt"
    fitted(name).save(path)
    opening, reading, listing = Counting(open), Counting(torch.load), Counting(zipfile.ZipFile)
    monkeypatch.setattr("torchpbp.files.paths.open", opening, raising=False)
    monkeypatch.setattr(torch, "load", reading)
    monkeypatch.setattr(zipfile, "ZipFile", listing)
    model = load(name, path) if way == "torchpbp.load" else type(fitted(name)).load(path)
    assert isinstance(fitted(name), type(model))
    assert (opening.calls, reading.calls, listing.calls) == (1, 1, 1)


@pytest.mark.parametrize("learner", [PBP, EM, SpectralJunctionTree, KernelPBP])
def test_the_number_of_records_does_not_grow_with_the_model(learner: Any, tmp_path: Path) -> None:
    found = []
    for length in (4, 12):
        truth = DiscreteNetwork.random(templates.hmm(length, 2, 3), seed=0)
        options = {"progress": False} if learner is EM else {}
        model = learner(truth.graph, **options).fit(truth.sample(60, seed=1))
        model.save(tmp_path / "model.pt")
        with zipfile.ZipFile(tmp_path / "model.pt") as archive:
            found.append(len(archive.infolist()))
            assert {r.compress_type for r in archive.infolist()} == {zipfile.ZIP_STORED}
        assert len(torch.load(tmp_path / "model.pt", weights_only=True)) > 3  # whatever holds it, it is the same dict
    assert found[0] == found[1] < 15


def test_a_part_of_a_large_tensor_is_written_without_the_rest(tmp_path: Path) -> None:
    model = copy.deepcopy(fitted("KernelPBP"))
    model.examples = torch.zeros(100_000, 5, dtype=torch.float64)[: len(model.examples)].copy_(model.examples)
    model.save(tmp_path / "model.pt")
    assert (tmp_path / "model.pt").stat().st_size < 100_000


# -- what comes back ---------------------------------------------------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    """Whether the contents of two files are equal, with the order in memory of their tensors."""
    if isinstance(a, Tensor):
        return torch.equal(a.nan_to_num(), b.nan_to_num()) and a.dtype == b.dtype and a.stride() == b.stride()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("name", MAKERS)
def test_saving_a_loaded_model_gives_the_same_file(name: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first.pt", tmp_path / "second.pt"
    fitted(name).save(first)
    type(fitted(name)).load(first).save(second)
    assert same(torch.load(first, weights_only=True), torch.load(second, weights_only=True))


@pytest.mark.parametrize("counts", [False, True])
def test_parameters_are_the_same_to_the_bit(counts: bool, tmp_path: Path) -> None:
    model = fitted("PBP")
    model.save(tmp_path / "model.pt", counts=counts)
    again = torchpbp.load(tmp_path / "model.pt")
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
        assert tensor.dtype == model.state_dict()[name].dtype
    assert (again.counts is not None) == counts
    assert again.tree == model.tree
    assert again.plan == model.plan
    assert again.labels == model.labels


@pytest.mark.parametrize("name", ["PBP", "Nystroem", "KernelPBP"])
def test_tensors_of_a_model_that_was_read_share_nothing(name: str, tmp_path: Path) -> None:
    """Otherwise each of them would keep all others in memory, and write them to files."""
    fitted(name).save(tmp_path / "model.pt")
    tensors = list(torchpbp.load(tmp_path / "model.pt").state_dict().values())
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in tensors)
    assert len({t.data_ptr() for t in tensors if t.numel()}) == sum(t.numel() > 0 for t in tensors)


def test_a_model_that_was_read_can_do_what_modules_do(tmp_path: Path) -> None:
    fitted("PBP").save(tmp_path / "model.pt")
    model = torchpbp.load(tmp_path / "model.pt")
    evidence = {"x1": torch.tensor([0, 1, -1])}
    before = model.log_evidence(evidence).detach()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.to("cpu")):
        assert torch.equal(other.log_evidence(evidence), before)
    fresh = PBP(model.graph)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh.log_evidence(evidence), before)
    assert torch.allclose(copy.deepcopy(model).float().log_evidence(evidence).double(), before, atol=1e-5)
    weights = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    (-model.log_evidence(evidence).sum()).backward()
    optimizer.step()
    assert all(p.requires_grad for p in model.parameters())
    assert sum(not torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True)) > 1
    model.save(tmp_path / "model.pt")
    assert torch.equal(torchpbp.load(tmp_path / "model.pt").log_evidence(evidence), model.log_evidence(evidence))


def test_a_state_that_is_not_the_model_s_raises(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    fitted("PBP").save(path)
    saved = torch.load(path, weights_only=True)
    changes: dict[str, Any] = {
        "rows: missing": {k: v for k, v in saved["state"].items() if k != "rows"},
        "more: missing in the file, or unknown": {**saved["state"], "more": torch.zeros(1)},
        "rows: expected torch.int64, got torch.float64": {**saved["state"], "rows": torch.tensor(3.0).double()},
        "root.weight: expected torch.float64, got torch.int64": {**saved["state"], "root.weight": saved["state"]["root.weight"].long()},
        "root.weight: expected a dense tensor, got list": {**saved["state"], "root.weight": [1.0]},
    }  # fmt: skip
    for message, state in changes.items():
        torch.save({**saved, "state": state}, path)
        with pytest.raises(torchpbp.errors.CheckpointError, match=message):
            torchpbp.load(path)


# -- files of earlier versions -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("earlier")
    with zipfile.ZipFile(EARLIER) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize(
    "name",
    ["PBP", "continuous", "RefinedPBP", "EM", "SpectralJunctionTree", "NormalGraphLearner", "KernelPBP", "GenerativeClassifier", "Counts"],
)  # fmt: skip
def test_files_of_earlier_versions_are_read(name: str, earlier: Path, tmp_path: Path) -> None:
    path = earlier / f"{name}.pt"
    expected = torch.tensor(json.loads((earlier / "answers.json").read_text())[name], dtype=torch.float64)
    model = PBP.load(path) if name == "RefinedPBP" else load(name, path)  # a class that no longer exists
    torch.testing.assert_close(answers(name, model), expected, rtol=1e-6, atol=1e-8)
    model.save(tmp_path / "again.pt")
    torch.testing.assert_close(answers(name, load(name, tmp_path / "again.pt")), expected, rtol=1e-6, atol=1e-8)
    if name == "PBP":
        assert model.counts.rows == 200
        assert model.labels["x1"] == ("high", "low")


def test_earlier_files_hold_a_record_for_each_tensor(earlier: Path) -> None:
    """So that they stay what they are here for."""
    with zipfile.ZipFile(earlier / "PBP.pt") as archive:
        assert len(archive.infolist()) > len(read_checkpoint(earlier / "PBP.pt", "cpu")["state"])


def answers(name: str, model: Any) -> Tensor:
    if name == "Counts":
        return model.tables.counts
    if name == "GenerativeClassifier":
        return torch.from_numpy(model.log_scores(pd.DataFrame(LABELLED)[:4]).ravel())
    if name in ("continuous", "KernelPBP"):
        return model.log_evidence({"a": [0.5, float("nan"), 2.0], "b": [1.0, 0.0, -1.0]}).detach().double()
    return model.log_evidence({"x1": torch.tensor([0, 1, -1]), "x2": torch.tensor([1, 1, 0])}).detach().double()


# -- names of separators -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "graph", [templates.hmm(12), templates.diamond(), templates.latent_tree(3), templates.nested_loops()]
)
def test_names_of_separators_list_the_first_observables_below(graph: Any) -> None:
    tree = build_junction_tree(graph)
    for node in range(1, len(tree)):
        below = sorted(tree.inside[node])
        assert tree.separator_name(node).endswith(f"above {{{', '.join(below[:4])}{', …' if len(below) > 4 else ''}}}")
