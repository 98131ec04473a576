"""The same command gives the same bits: in another process, with another hash seed, and nearly so with more threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.robustness.runs import NETS, SYNTHETIC, configuration, results
from torchpbp import PBP
from torchpbp.experiments.running.program import train

ROOT = Path(__file__).parents[2]
THREADS_TOLERANCE = 1e-9
"""Sums in another order differ by rounding, which least squares on small samples amplify."""

FITS = """
import hashlib, json, torch
torch.set_num_threads(1)
from torchpbp import EM, PBP, Continuous, DiscreteNetwork, LatentGraph, NormalGraphLearner, SpectralJunctionTree, templates

def digest(tensors):
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().contiguous().numpy().tobytes())
    return whole.hexdigest()

found = {}
for name, graph in {"diamond": templates.diamond(2, 3, 2), "grid": templates.grid(2, 3), "hmm": templates.hmm(5, 2, 3)}.items():
    network = DiscreteNetwork.random(graph, seed=1)
    data = network.sample(300, seed=2)
    model = PBP(graph).fit(data)
    found[name] = digest([network.joint(graph.observed[:3]), *data.values(), *model.state_dict().values()])
    found[name + " drawn"] = digest(model.sample(20, seed=3).values())
    found[name + " spectral"] = digest([SpectralJunctionTree(graph).fit(data).log_evidence(data)])
graph = templates.hmm(4, 2, 3)
data = DiscreteNetwork.random(graph, seed=1).sample(200, seed=2)
found["em"] = digest([EM(graph, max_steps=5, restarts=2, seed=1).fit(data).log_evidence(data)])
found["auto"] = digest(PBP(graph, rank="auto").fit(data).state_dict().values())
mixed = LatentGraph([("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": 2, "y": Continuous(), "z": 2}, ["h"])
columns = list(data.values())
values = torch.linspace(0, 1, 200, dtype=torch.float64) + columns[2]
found["continuous"] = digest(PBP(mixed).fit({"x": columns[0] % 2, "y": values, "z": columns[1] % 2}).state_dict().values())
print(json.dumps(found))
"""


def fits(hash_seed: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", FITS], env=environment, text=True, stdout=subprocess.PIPE)


@pytest.mark.slow
def test_fits_have_the_same_bits_in_every_process() -> None:
    """Names are hashed differently in each process, so sets of them come in another order."""
    outputs = [fits(seed).communicate(timeout=300)[0] for seed in ("1", "12345")]
    first, second = (json.loads(text) for text in outputs)
    assert len(first) == 12
    assert first == second


def state(folder: Path) -> dict[str, Any]:
    return PBP.load(folder / "model.pt").state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [SYNTHETIC, NETS], ids=["ridge", "nets"])
def test_the_same_command_gives_the_same_metrics_and_model(tmp_path: Path, overrides: list[str]) -> None:
    quick = [*overrides, "model.repeats=1", "model.sizes=[200]"]
    for name in ("first", "second"):
        train(configuration(tmp_path / name, *quick))
    train(configuration(tmp_path / "other", *quick, "seed=1"))
    assert results(tmp_path / "first") == results(tmp_path / "second")
    assert results(tmp_path / "first") != results(tmp_path / "other")
    first, second = state(tmp_path / "first"), state(tmp_path / "second")
    assert all(torch.equal(first[k], second[k]) for k in first)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_two_threads_give_the_same_results_up_to_rounding(tmp_path: Path) -> None:
    quick = [*SYNTHETIC, "model.repeats=1", "model.sizes=[1000]", "model/graph=hmm"]
    for threads in ("1", "2"):
        train(configuration(tmp_path / threads, *quick, f"threads={threads}"))
    one, two = results(tmp_path / "1"), results(tmp_path / "2")
    assert (one.pop("threads"), two.pop("threads")) == (1, 2)
    assert one.keys() == two.keys()
    for key, value in one.items():
        assert two[key] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), key
    first, second = state(tmp_path / "1"), state(tmp_path / "2")
    for key in first:
        assert torch.allclose(first[key].double(), second[key].double(), atol=THREADS_TOLERANCE, rtol=1e-6), key
