"""``python -m torchpbp predict``: a classifier's file and the rows of a CSV file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import torchpbp
from torchpbp import PBP, Continuous, GenerativeClassifier, KernelPBP, LatentGraph
from torchpbp.__main__ import main

GRAPH = LatentGraph(
    [("h", v) for v in ("weight", "colour", "legs")],
    {"h": 2, "weight": Continuous(), "colour": 3, "legs": 5},
    ["h"],
)
RNG = np.random.default_rng(0)
BIRD = RNG.random(120) < 0.5
TABLE = pd.DataFrame(
    {
        "weight": np.where(BIRD, 1.0, 6.0) + RNG.normal(size=120),
        "colour": np.array(["grey", "none", "red"])[np.where(BIRD, RNG.integers(1, 3, 120), RNG.integers(0, 2, 120))],
        "legs": np.where(BIRD, 2, 4),
    }
)
KINDS = np.where(BIRD, "bird", "mouse")
ROUNDING = 1e-4
"""Kernel models compute in single precision, and a row read from a file takes another way to the same answer."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("animals")
    classifier = GenerativeClassifier(GRAPH, KernelPBP, {"bandwidth": 1.0}).fit(TABLE, KINDS)
    classifier.save(folder / "classifier.pt")
    table = TABLE.assign(colour=pd.Categorical(TABLE["colour"]))
    KernelPBP(GRAPH, bandwidth=1.0).fit(table).save(folder / "kernel.pt")
    PBP(GRAPH).fit(table).save(folder / "pbp.pt")
    return folder


def predicted(files: Path, rows: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    assert main(["predict", str(files / "classifier.pt"), str(rows), "--json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def test_rows_are_predicted_as_in_python(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.csv"
    TABLE[["legs", "weight", "colour"]].assign(note="x").to_csv(rows, index=False)  # another order, one column more
    classifier = torchpbp.load(files / "classifier.pt")
    expected, proba = classifier.predict(TABLE), classifier.predict_proba(TABLE)
    found = predicted(files, rows, capsys)
    assert [line["row"] for line in found] == list(range(120))
    assert [line["predicted"] for line in found] == expected.tolist()
    assert [line["probability"] for line in found] == pytest.approx(proba.max(axis=1), rel=ROUNDING)
    answers = [list(line["probabilities"].values()) for line in found]  # type: ignore[attr-defined]
    np.testing.assert_allclose(answers, proba, rtol=ROUNDING, atol=ROUNDING)
    assert main(["predict", str(files / "classifier.pt"), str(rows)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["row", "predicted", "probability"]
    row, label, probability = printed[1].split()
    assert (row, label) == ("0", expected[0])
    assert float(probability) == pytest.approx(proba[0].max(), abs=1e-4)  # of four digits
    assert len(printed) == 121
    output = tmp_path / "new folder" / "answers.csv"
    assert main(["predict", str(files / "classifier.pt"), str(rows), "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"120 predictions in {output}\n"
    table = pd.read_csv(output)
    assert list(table) == ["row", "predicted", "probability", "P(bird)", "P(mouse)"]
    np.testing.assert_allclose(table["P(bird)"], proba[:, 0], rtol=ROUNDING, atol=ROUNDING)


def test_gaps_are_missing_values(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("\ufeffweight, colour,legs\n1.5,red,\n,none,2\nNaN,NA,\n 6 ,,4\n", encoding="utf-8")
    same = pd.DataFrame(
        {
            "weight": [1.5, None, None, 6.0],
            "colour": ["red", "none", None, None],  # "none" is a label here
            "legs": [None, 2, None, 4],
        }
    )
    proba = torchpbp.load(files / "classifier.pt").predict_proba(same)
    found = predicted(files, rows, capsys)
    assert [line["probability"] for line in found] == pytest.approx(proba.max(axis=1), rel=ROUNDING)
    share = max(BIRD.mean(), 1 - BIRD.mean())
    assert found[2]["probability"] == pytest.approx(share, abs=0.01)  # nothing seen: the prior, as far as penalties let


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty: expected a header that names the features"),
        ("\n\n", "is empty"),
        ("weight,colour,legs\n", "there is a header, but no rows below it"),
        ("weight,legs\n1,2\n", r"missing columns ['colour']; its header has weight, legs"),
        ("1.5,red,2\n1.6,red,2\n", "The first line must name the features: weight, colour, legs"),
        ("weight,colour,legs\n1,red,2\nheavy,red,2\n", "column 'weight', row 1: expected a finite number, got 'heavy'"),
        ("weight,colour,legs\ninf,red,2\n", "row 0: expected a finite number, got 'inf'"),
        ("weight,colour,legs\n1,pink,2\n", "column 'colour', row 0: expected one of grey, none, red, got 'pink'"),
        ("weight,colour,legs\n1,red,many\n", "column 'legs', row 0: expected a finite number, got 'many'"),
        ("weight,colour,legs\n1,red,9\n", "state 9 is out of range"),
        ("weight,colour,legs\n1,red,2.5\n", "2.5"),
        ("weight,weight,colour,legs\n1,1,red,2\n", "columns ['weight'] are there twice"),
        ("weight,colour,legs\n1,red,2,4\n", "is not a CSV table"),
        (
            "weight;colour;legs\n1;red;2\n",
            "missing columns ['weight', 'colour', 'legs']; its header has weight;colour;legs",
        ),
    ],
)
def test_bad_tables(
    content: str, message: str, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text(content)
    assert main(["predict", str(files / "classifier.pt"), str(tmp_path / "rows.csv")]) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_bad_files(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.csv"
    TABLE.to_csv(rows, index=False)
    (tmp_path / "latin.csv").write_bytes(b"weight,colour,legs\n1,gr\xfcn,2\n")
    (tmp_path / "a file").write_text("")
    for arguments, message in (
        ([files / "nowhere.pt", rows], "No model file at"),
        ([rows, rows], "is not a readable torchpbp model"),
        ([files / "classifier.pt", tmp_path / "nowhere.csv"], "No file at"),
        ([files / "classifier.pt", tmp_path], "No file at"),
        ([files / "classifier.pt", tmp_path / "latin.csv"], "is not a CSV table"),
        ([files / "kernel.pt", rows], "holds a KernelPBP, not a classifier. Ask it with 'python -m torchpbp query'"),
        ([files / "classifier.pt", rows, "--output", tmp_path / "a file" / "x.csv"], "could not be written"),
    ):
        assert main(["predict", *map(str, arguments)]) == 1, message
        assert message in capsys.readouterr().err


def test_kernel_models_are_shown_and_asked(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(files / "kernel.pt")
    assert main(["show", path]) == 0
    shown = capsys.readouterr().out
    assert "of 3 observed and 1 hidden variables" in shown
    assert "3 states: grey, none, red" in shown
    assert "learned from 120 rows, which it keeps" in shown
    model = torchpbp.load(path)
    assert main(["query", path, "--evidence", "colour=red", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    expected = model.posterior("weight", {"colour": ["red"]})
    assert answer["posteriors"]["weight"]["mean"] == pytest.approx(float(expected.mean[0]))
    assert answer["log_evidence"] == pytest.approx(float(model.log_evidence({"colour": ["red"]})[0]))
    assert main(["query", path, "--evidence", "legs=2", "--target", "weight"]) == 0
    assert capsys.readouterr().out.startswith("log P(evidence) = ")


def test_a_classifier_is_shown_and_rejects_queries(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(files / "classifier.pt")]) == 0
    shown = capsys.readouterr().out
    assert "classes: bird, mouse" in shown
    assert f"learned from {BIRD.sum()} rows, which it keeps" in shown
    assert "3 states: grey, none, red" in shown
    assert main(["query", str(files / "classifier.pt"), "--evidence", "legs=2"]) == 1
    assert (
        "holds a classifier, with a model for each class. Predict with 'python -m torchpbp predict'"
        in capsys.readouterr().err
    )


@pytest.mark.slow
def test_as_people_call_it(files: Path, tmp_path: Path) -> None:
    TABLE[:2].to_csv(tmp_path / "rows.csv", index=False)
    command = [sys.executable, "-m", "torchpbp", "predict", str(files / "classifier.pt"), str(tmp_path / "rows.csv")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""  # no progress bar where nobody watches
    assert result.stdout.splitlines()[1].split()[1] in ("bird", "mouse")
