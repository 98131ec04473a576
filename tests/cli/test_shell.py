"""``python -m torchpbp``: a look at model files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import torchpbp
from torchpbp import (
    EM,
    PBP,
    Continuous,
    DiscreteNetwork,
    LatentGraph,
    NormalGraphLearner,
    SpectralJunctionTree,
    templates,
)
from torchpbp.__main__ import main
from torchpbp.errors import CheckpointError
from torchpbp.io import write_file

CHAIN = templates.hmm(4, 2, 3)
NETWORK = DiscreteNetwork.random(CHAIN, seed=1)
DATA = NETWORK.sample(500, seed=2)

LEARNERS: dict[str, Any] = {
    "PBP": lambda: PBP(CHAIN),
    "EM": lambda: EM(CHAIN, restarts=1, max_steps=5, progress=False),
    "SpectralJunctionTree": lambda: SpectralJunctionTree(CHAIN),
    "NormalGraphLearner": lambda: NormalGraphLearner(CHAIN, epochs=3, progress=False),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for name, make in LEARNERS.items():
        make().fit(DATA).save(folder / f"{name}.pt")
    return {name: folder / f"{name}.pt" for name in LEARNERS}


@pytest.mark.parametrize("name", LEARNERS)
def test_files_of_all_learners_are_shown_and_asked(
    name: str, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = torchpbp.load(files[name])
    assert type(model).__name__ == name
    assert main(["show", str(files[name])]) == 0
    shown = capsys.readouterr().out
    assert f"{name} of 4 observed and 4 hidden variables" in shown
    assert "h1 -> h2" in shown
    assert main(["query", str(files[name]), "--evidence", "x1=2", "x3=0", "--target", "x2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    expected = model.posterior("x2", {"x1": [2], "x3": [0]})[0]
    assert list(answer["posteriors"]) == ["x2"]
    assert np.allclose(list(answer["posteriors"]["x2"].values()), expected.detach())
    assert answer["log_evidence"] == pytest.approx(float(model.log_evidence({"x1": [2], "x3": [0]}).detach()))


def test_all_others_are_asked_by_default_and_bars_are_drawn(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", str(files["PBP"]), "--evidence", "x1=1"]) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("P(")] == [f"P(x{t} | x1=1)" for t in (2, 3, 4)]
    assert "█" in printed
    assert main(["query", str(files["PBP"])]) == 0
    assert "P(x1)" in capsys.readouterr().out.splitlines()


def test_labels_and_continuous_variables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = LatentGraph(
        [("h", v) for v in ("colour", "size", "taste")], {"h": 2, "colour": 2, "size": Continuous(), "taste": 3}, ["h"]
    )
    rng = np.random.default_rng(0)
    h = rng.integers(0, 2, 400)
    table = pd.DataFrame(
        {
            "colour": pd.Categorical.from_codes(np.where(rng.random(400) < 0.9, h, 1 - h), ["red", "green"]),
            "size": rng.normal(3.0 * h, 0.5),
            "taste": pd.Categorical.from_codes((h + rng.integers(0, 2, 400)), ["sour", "mild", "sweet"]),
        }
    )
    PBP(graph).fit(table).save(tmp_path / "fruit.pt")
    assert main(["query", str(tmp_path / "fruit.pt"), "--evidence", "colour=green", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["posteriors"]
    assert list(answer["taste"]) == ["sour", "mild", "sweet"]
    assert 1.5 < answer["size"]["mean"] < 3.5
    assert main(["query", str(tmp_path / "fruit.pt"), "--evidence", "size=0.1", "--target", "colour"]) == 0
    assert "red" in capsys.readouterr().out
    assert main(["show", str(tmp_path / "fruit.pt")]) == 0
    shown = capsys.readouterr().out
    assert "3 states: sour, mild, sweet" in shown
    assert "continuous" in shown
    assert main(["query", str(tmp_path / "fruit.pt"), "--evidence", "colour=blue"]) == 1
    assert "expected one of red, green" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--evidence", "x1"], "expected name=value, got 'x1'"),
        (["--evidence", "x1=0", "x1=1"], "'x1' is given twice"),
        (["--evidence", "x1=red"], "expected a number, for the model has no labels here"),
        (["--evidence", "x1=7"], "state 7 is out of range"),
        (["--evidence", "z=0"], "unknown variable 'z'"),
        (["--target", "h1"], "it is latent"),
    ],
)
def test_bad_questions(
    arguments: list[str], message: str, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", str(files["PBP"]), *arguments]) == 1
    assert message in capsys.readouterr().err


def test_bad_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tmp_path / "nowhere.pt")]) == 1
    assert "No model file" in capsys.readouterr().err
    write_file(tmp_path / "other.pt", {"class": "Oracle"})
    with pytest.raises(
        CheckpointError, match=r"holds Oracle, none of the models that torchpbp.load\(\) reads: PBP, KernelPBP"
    ):
        torchpbp.load(tmp_path / "other.pt")


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "usage" in capsys.readouterr().out
