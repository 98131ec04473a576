"""Model files whose tensors were changed: what does not make a model raises an error, also where all types are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torchpbp import EM, DiscreteNetwork, NormalGraphLearner, SpectralJunctionTree, templates
from torchpbp.errors import CheckpointError
from torchpbp.io import read_file, write_file

GRAPH = templates.naive_bayes(3, states=2, observed_states=3)
DATA = DiscreteNetwork.random(GRAPH, seed=0).sample(100, seed=1)
LEARNERS = {
    "EM": EM(GRAPH, restarts=1, max_steps=2, progress=False),
    "NormalGraphLearner": NormalGraphLearner(GRAPH, epochs=2, progress=False),
    "SpectralJunctionTree": SpectralJunctionTree(GRAPH),
}
CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: t.mT.contiguous(),
    "one dimension": lambda t: t.flatten(),
    "a row less": lambda t: t[:-1],
    "not a number": lambda t: t * torch.nan,
    "infinite": lambda t: t / 0.0,
}


def changed(saved: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The content of a file with its tables changed: those of two dimensions, where all changes show."""
    if isinstance(saved, dict):
        return {k: changed(v, change) for k, v in saved.items()}
    if isinstance(saved, list):
        return [changed(v, change) for v in saved]
    return change(saved) if isinstance(saved, Tensor) and saved.ndim == 2 else saved


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", LEARNERS)
def test_tables_that_do_not_fit_raise(name: str, change: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    model = LEARNERS[name].fit(DATA)
    model.save(path)
    saved = read_file(path)
    write_file(path, changed(saved, lambda t: t))
    again = type(model).load(path)
    torch.testing.assert_close(again.posterior("x1", {"x2": [0, -1]}), model.posterior("x1", {"x2": [0, -1]}))
    write_file(path, changed(saved, CHANGES[change]))
    with pytest.raises(CheckpointError, match="its parts do not make a model"):
        type(model).load(path)
