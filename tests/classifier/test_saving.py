"""Files of classifiers: they predict as before, know their classes and labels, and can be fitted again where that makes sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

import torchpbp
from torchpbp import (
    EM,
    PBP,
    Continuous,
    DiscreteNetwork,
    GenerativeClassifier,
    KernelPBP,
    Laplace,
    LatentGraph,
    templates,
)
from torchpbp.errors import CheckpointError, DataError, StructureError
from torchpbp.io import read_file, write_file

RNG = np.random.default_rng(0)
KIND = RNG.integers(0, 3, 90)
X = pd.DataFrame({f"f{i}": KIND * (1.0 + i) + RNG.normal(size=90) for i in range(3)})
GAPPY = X.mask(RNG.random(X.shape) < 0.2).assign(f0=X["f0"])


def kernel(**options: Any) -> GenerativeClassifier:
    return GenerativeClassifier(templates.mixture, KernelPBP, {"bandwidth": 0.8, **options})


def back(classifier: GenerativeClassifier, folder: Path, operators: bool | None = None) -> GenerativeClassifier:
    classifier.save(folder / "classifier.pt", operators)
    loaded = torchpbp.load(folder / "classifier.pt")
    assert type(loaded) is GenerativeClassifier
    return loaded


MODELS: dict[str, Any] = {
    "kernel": kernel(),
    "low rank": kernel(landmarks=8),
    "features": GenerativeClassifier(templates.mixture, PBP, {"rank": 2}, prior="uniform"),
    "a model": GenerativeClassifier(learner=KernelPBP(templates.mixture(list(X)), kernel=Laplace()), progress=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_predicts_bit_for_bit_as_before(name: str, tmp_path: Path) -> None:
    fitted = clone(MODELS[name]).fit(GAPPY, KIND)
    loaded = back(fitted, tmp_path)
    assert np.array_equal(loaded.log_scores(GAPPY), fitted.log_scores(GAPPY))
    assert np.array_equal(loaded.predict(X), fitted.predict(X))
    assert np.array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    assert loaded.score(X, KIND) == fitted.score(X, KIND) > 0.5
    assert loaded.feature_names_in_.tolist() == ["f0", "f1", "f2"]
    assert (loaded.n_features_in_, loaded.prior, loaded.progress) == (3, fitted.prior, fitted.progress)
    assert [m.missing for m in loaded.models_] == [m.missing for m in fitted.models_]
    assert np.array_equal(loaded.predict(X[["f2", "f0", "f1"]]), fitted.predict(X))  # columns are found by name


@pytest.mark.parametrize("name", MODELS)
def test_it_can_be_cloned_and_fitted_again(name: str, tmp_path: Path) -> None:
    loaded = back(clone(MODELS[name]).fit(X, KIND), tmp_path)
    again = clone(loaded)
    assert not hasattr(again, "models_")
    expected = clone(MODELS[name]).fit(X[:60], KIND[:60]).log_scores(X)
    assert np.array_equal(again.fit(X[:60], KIND[:60]).log_scores(X), expected)
    assert np.array_equal(loaded.fit(X[:60], KIND[:60]).log_scores(X), expected)


@pytest.mark.parametrize(
    "classes",
    [
        np.array([3, 5, 9]),
        np.array([3, 5, 200], dtype=np.uint8),
        np.array(["a", "bc", "ü"]),
        np.array(["a", "bc", "ü"], dtype=object),
        np.array([0.0, 2.0, 7.0], dtype=np.float32),
        np.array([True, False, True]),
        np.array([np.str_("a"), np.str_("b"), np.str_("c")], dtype=object),
    ],
    ids=lambda c: f"{c.dtype} {c[0]!r}",
)
def test_classes_of_all_types_are_kept(classes: np.ndarray, tmp_path: Path) -> None:
    fitted = kernel().fit(X, classes[KIND])
    loaded = back(fitted, tmp_path)
    assert loaded.classes_.dtype == fitted.classes_.dtype
    assert loaded.classes_.tolist() == fitted.classes_.tolist()
    assert loaded.predict(X).dtype == fitted.predict(X).dtype
    assert loaded.predict(X).tolist() == fitted.predict(X).tolist()


def test_classes_that_no_file_holds_raise(tmp_path: Path) -> None:
    days = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], dtype="datetime64[D]")
    fitted = kernel().fit(X, KIND)
    fitted.classes_ = days
    with pytest.raises(CheckpointError, match=r"Classes of type datetime64\[D\] cannot be saved.*y.astype\(str\)"):
        fitted.save(tmp_path / "classifier.pt")
    assert not list(tmp_path.iterdir())


def test_labels_of_features_are_kept(tmp_path: Path) -> None:
    graph = LatentGraph([("h", "colour"), ("h", "size")], {"h": 2, "colour": 3, "size": Continuous()}, ["h"])
    colours = np.array(["red", "green", "blue"])
    table = pd.DataFrame({"colour": colours[KIND], "size": X["f0"]})
    fitted = GenerativeClassifier(graph, KernelPBP, {"bandwidth": 1.0}).fit(table, np.where(KIND == 1, "yes", "no"))
    loaded = back(fitted, tmp_path)
    assert loaded.labels_ == fitted.labels_ == {"colour": ("blue", "green", "red")}
    new = pd.DataFrame({"colour": ["green", None, "red"], "size": [1.0, 2.0, np.nan]})
    assert np.array_equal(loaded.log_scores(new), fitted.log_scores(new))
    with pytest.raises(DataError, match="pink"):
        loaded.predict(pd.DataFrame({"colour": ["pink"], "size": [1.0]}))


def test_without_names_of_features(tmp_path: Path) -> None:
    fitted = kernel().fit(X.to_numpy(), KIND)
    loaded = back(fitted, tmp_path)
    assert not hasattr(loaded, "feature_names_in_")
    assert np.array_equal(loaded.log_scores(X.to_numpy()), fitted.log_scores(X.to_numpy()))


def test_learners_that_no_file_holds(tmp_path: Path) -> None:
    """Made by a function, of models whose files do not hold all settings: it predicts, and says why it cannot be fitted."""
    fitted = GenerativeClassifier(templates.mixture, lambda graph: PBP(graph, rank=2)).fit(X, KIND)
    loaded = back(fitted, tmp_path)
    assert np.array_equal(loaded.predict(X), fitted.predict(X))
    assert loaded.get_params()["learner"] is None
    with pytest.raises(StructureError, match=r"read from a file without its learner.*set_params"):
        loaded.fit(X, KIND)
    assert np.array_equal(loaded.predict(X), fitted.predict(X))  # nothing was lost
    assert loaded.set_params(learner=PBP, options={"rank": 2}).fit(X, KIND).score(X, KIND) > 0.5


class Mute:
    """A model without a file format."""

    graph = templates.mixture(list(X))

    def fit(self, data: Any) -> Mute:
        return self

    def log_evidence(self, evidence: Any) -> torch.Tensor:
        return torch.zeros(len(evidence["f0"]))


def test_models_without_a_file_format_are_named(tmp_path: Path) -> None:
    fitted = GenerativeClassifier(learner=Mute()).fit(X, KIND)
    with pytest.raises(CheckpointError, match="GenerativeClassifier, model of class 0: Mute has no file format"):
        fitted.save(tmp_path / "classifier.pt")
    assert not list(tmp_path.iterdir())


def test_models_that_are_no_torch_modules(tmp_path: Path) -> None:
    network = DiscreteNetwork.random(templates.naive_bayes(3, 2, 3), seed=0)
    table = network.sample_frame(120, seed=1)
    options = {"restarts": 1, "relative_tolerance": 0.01, "progress": False}
    fitted = GenerativeClassifier(network.graph, EM, options).fit(table, ["a", "b"] * 60)
    loaded = back(fitted, tmp_path)
    assert np.allclose(
        loaded.log_scores(table), fitted.log_scores(table), rtol=1e-12
    )  # tables are normalised once more
    assert loaded.get_params()["options"] == options
    assert np.array_equal(clone(loaded).fit(table, ["a", "b"] * 60).log_scores(table), fitted.log_scores(table))


def test_operators_may_be_left_out_or_kept(tmp_path: Path) -> None:
    sizes = {}
    chain = GenerativeClassifier(
        templates.pen_strokes(5, low=-90.0, high=90.0), KernelPBP, {"bandwidth": 1.0, "landmarks": 9}
    )
    table = np.random.default_rng(1).normal(size=(80, 10))
    chain.fit(table, ["a", "b"] * 40)
    for operators in (True, False):
        loaded = back(chain, tmp_path, operators)
        sizes[operators] = (tmp_path / "classifier.pt").stat().st_size
        assert np.array_equal(loaded.log_scores(table), chain.log_scores(table))
    assert sizes[True] > sizes[False] + 2 * 80 * 9 * 4


def test_files_that_make_no_classifier_name_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "classifier.pt"
    kernel().fit(X, KIND).save(path)
    saved = read_file(path)
    for change, message in (
        (
            {"models": [saved["models"][0], {**saved["models"][1], "class": "Oracle"}, saved["models"][2]]},
            "class 1' holds Oracle, none of the models",
        ),
        ({"classes": {"dtype": "nonsense", "values": [0, 1, 2]}}, "its parts do not make a model"),
        ({"made_by": "Oracle"}, "its parts do not make a model"),
    ):
        write_file(path, {**saved, **change})
        with pytest.raises(CheckpointError, match=message):
            torchpbp.load(path)
