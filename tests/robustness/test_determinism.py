"""The same fit gives the same bits in every process, and the same numbers up to rounding with more threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torchpbp import PBP, DiscreteNetwork, templates

ROOT = Path(__file__).parents[2]

FITS = """
import hashlib, json, torch
torch.set_num_threads(1)
from torchpbp import EM, PBP, Continuous, DiscreteNetwork, LatentGraph, SpectralJunctionTree, templates

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


def fits(hash_seed: str) -> dict[str, str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", FITS]
    return json.loads(subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, check=True).stdout)


@pytest.mark.slow
def test_fits_have_the_same_bits_in_every_process() -> None:
    """Names are hashed differently in each process, so sets of them come in another order."""
    first, second = fits("1"), fits("12345")
    assert len(first) == 12
    assert first == second


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_two_threads_give_the_same_model_up_to_rounding() -> None:
    network = DiscreteNetwork.random(templates.hmm(8, 3, 4), seed=0)
    data, models = network.sample(2_000, seed=1), []
    for count in (1, 2):
        torch.set_num_threads(count)
        models.append(PBP(network.graph).fit(data).state_dict())
    for key, value in models[0].items():
        assert torch.allclose(value.double(), models[1][key].double(), atol=1e-9, rtol=1e-6), key
