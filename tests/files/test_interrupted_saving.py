"""Saving that the system stops: a process that is killed while it writes, and a limit on the size of files."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from tests.processes import ended, forked, wait_for
from torchpbp import PBP, DiscreteNetwork, templates
from torchpbp.errors import CheckpointError

resource = pytest.importorskip("resource")  # not on Windows

GRAPH = templates.hmm(20, 2, 4)
MODELS = [PBP(GRAPH).fit(DiscreteNetwork.random(GRAPH, seed=s).sample(100, seed=s)) for s in (0, 1)]


def limited(size: int) -> None:
    """From now on this process cannot write files beyond a size, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.slow
def test_a_model_is_whole_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    draw = random.Random(0)

    def write_for_ever() -> None:
        while True:
            for model in MODELS:
                model.save(path)

    states = [model.state_dict() for model in MODELS]
    half_written = kills = 0
    while kills < 8 or (half_written == 0 and kills < 200):  # go on until one was hit while it wrote
        kills += 1
        child = forked(write_for_ever, tmp_path / "log")
        assert wait_for(path.exists, child), (tmp_path / "log").read_text()
        time.sleep(0.05 * draw.random())
        os.kill(child, signal.SIGKILL)
        ended(child)
        found = PBP.load(path).state_dict()
        assert any(all(torch.equal(found[k], state[k]) for k in state) for state in states)
        half_written += len(list(tmp_path.glob(".*.tmp")))
    assert half_written > 0  # some were hit while writing
    MODELS[0].save(path)
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1000, 20_000])
def test_a_model_that_does_not_fit_on_the_disk_leaves_the_old_file(tmp_path: Path, size: int) -> None:
    path, log = tmp_path / "model.pt", tmp_path / "log"
    MODELS[0].save(path)
    before = path.read_bytes()
    assert len(before) > size

    def save() -> None:
        limited(size)
        try:
            MODELS[1].save(path)
        except CheckpointError as error:
            os._exit(42 if "could not be written: " in str(error) else 43)

    code = ended(forked(save, log))
    assert code == 42
    assert path.read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"model.pt", "log"}
