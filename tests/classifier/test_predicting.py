"""Learning and predicting, with learners of all kinds."""

import numpy as np
import pandas as pd
import pytest
import torch

from tests.classifier.strokes import NAN, mixed, mixed_graph, strokes
from torchpbp import PBP, GenerativeClassifier, KernelPBP, LatentGraph, Nystroem, templates
from torchpbp.datasets import FEATURES, hide_points
from torchpbp.errors import ArgumentError, StructureError


def test_digits_are_told_apart(fitted, unseen):
    x, y = unseen
    assert fitted.score(x, y) > 0.95
    found = fitted.predict(x)
    assert found.shape == y.shape
    assert set(found) <= {0, 4, 9}
    assert fitted.score(x, y) == pytest.approx((found == y).mean())
    assert fitted.classes_.tolist() == [0, 4, 9]
    assert fitted.n_features_in_ == 16
    assert len(fitted.models_) == 3


def test_probabilities_are_scores_normalised(fitted, unseen):
    x, _ = unseen
    scores = fitted.log_scores(x)
    assert scores.shape == (len(x), 3)
    by_hand = np.stack(
        [m.log_evidence(dict(zip(FEATURES, torch.from_numpy(x).T, strict=True))) for m in fitted.models_], 1
    )
    assert np.allclose(scores, by_hand + np.log(1 / 3), atol=1e-4)
    p = fitted.predict_proba(x)
    expected = np.exp(scores - scores.max(axis=1, keepdims=True))
    assert np.allclose(p, expected / expected.sum(axis=1, keepdims=True), atol=1e-12)
    assert np.allclose(p.sum(axis=1), 1)
    assert np.allclose(np.log(p.clip(1e-300)), fitted.predict_log_proba(x).clip(np.log(1e-300)), atol=1e-9)
    assert (fitted.classes_[p.argmax(axis=1)] == fitted.predict(x)).all()


def test_tables_of_all_kinds_give_the_same_answers(fitted, three):
    x, y = three
    expected = fitted.log_scores(x)
    names = pd.DataFrame(x, columns=list(FEATURES))
    shuffled = names[list(reversed(FEATURES))].assign(unrelated=1.0)
    for table, labels in [
        (torch.from_numpy(x), torch.from_numpy(y)),
        (names, pd.Series(y)),
        (shuffled, y),
        (names.astype("Float64"), list(y)),
        (x.tolist(), y),
        (x.astype(">f8"), y),
    ]:
        assert np.allclose(fitted.log_scores(table), expected, atol=1e-4)
        again = strokes().fit(table, labels)
        assert np.allclose(again.log_scores(x), expected, atol=1e-4)
    assert fitted.log_scores(x[:0]).shape == (0, 3)
    assert fitted.predict(x[:1]).shape == (1,)


def test_labels_may_be_strings(three):
    x, y = three
    words = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])[y]
    classifier = strokes().fit(x, words)
    assert classifier.classes_.tolist() == ["four", "nine", "zero"]
    assert classifier.score(x, words) > 0.95


def test_missing_features(fitted, unseen):
    x, y = unseen
    hidden = hide_points(torch.from_numpy(x), 4, seed=0).numpy()
    score = fitted.score(hidden, y)
    assert 0.8 < score <= fitted.score(x, y)
    nothing = np.full((1, 16), NAN)
    assert np.allclose(fitted.predict_proba(nothing), 1 / 3, atol=0.02)
    one = x[:1].copy()
    one[0, 3] = NAN
    assert np.isfinite(fitted.predict_log_proba(one)).all()
    assert not np.allclose(fitted.log_scores(one), fitted.log_scores(x[:1]))


def test_priors(three):
    x, y = three
    keep = np.concatenate([np.flatnonzero(y == 0)[:40], np.flatnonzero(y == 4)[:10]])
    nothing = np.full((1, 16), NAN)
    empirical = strokes().fit(x[keep], y[keep])
    assert np.allclose(empirical.predict_proba(nothing), [[0.8, 0.2]], atol=0.03)
    uniform = strokes().set_params(prior="uniform").fit(x[keep], y[keep])
    assert np.allclose(uniform.predict_proba(nothing), [[0.5, 0.5]], atol=0.03)
    gap = empirical.log_scores(x) - uniform.log_scores(x)
    assert np.allclose(gap, np.log([0.8, 0.2]), atol=1e-9)
    with pytest.raises(ArgumentError, match="prior: expected 'empirical' or 'uniform', got 'flat'"):
        strokes().set_params(prior="flat").fit(x, y)


@pytest.mark.parametrize("learner", [PBP, KernelPBP])
def test_discrete_and_continuous_features_in_one_array(learner):
    x, y = mixed(600)
    classifier = GenerativeClassifier(mixed_graph(), learner).fit(x, y)
    new, truth = mixed(600, seed=1)
    assert classifier.score(new, truth) > 0.85
    new[::3, 1], new[1::3, 0] = NAN, NAN
    assert classifier.score(new, truth) > 0.75


@pytest.mark.parametrize("learner", [PBP, KernelPBP])
def test_bandwidths_that_differ_between_classes_do_not_tilt_the_scores(learner):
    """The median rule gives the narrow class a tenth of the width; its kernels must be normalised for that."""
    x, y = mixed(600)
    classifier = GenerativeClassifier(mixed_graph(), learner).fit(x, y)
    centre, outskirts = np.array([[0.0, NAN, 0.1]]), np.array([[2.5, NAN, -2.0]])
    assert classifier.predict_proba(centre)[0, 0] > 0.9
    assert classifier.predict_proba(outskirts)[0, 1] > 0.9


def test_a_model_as_learner_is_copied(three):
    x, y = three
    model = KernelPBP(templates.pen_strokes(), bandwidth=20.0)
    classifier = GenerativeClassifier(learner=model).fit(x, y)
    assert not model.fitted
    assert np.allclose(classifier.log_scores(x), strokes().fit(x, y).log_scores(x), atol=1e-4)
    with pytest.raises(StructureError, match="options= go with a learner class"):
        GenerativeClassifier(learner=model, options={"bandwidth": 3.0}).fit(x, y)


def test_a_function_as_learner():
    x, y = mixed(200)

    def learner(graph, size):
        return PBP(graph, features=Nystroem(size))

    classifier = GenerativeClassifier(mixed_graph(), learner, {"size": 9}).fit(x, y)
    assert classifier.models_[0].dims["a"] == 10
    assert classifier.score(x, y) > 0.8


def test_a_row_that_no_class_explains_gets_the_prior():
    graph = LatentGraph([("h", "a"), ("h", "b")], {"h": 1, "a": 3, "b": 2}, ["h"])
    x = np.array([[0, 0], [1, 1], [0, 1], [1, 0]] * 10)
    y = np.repeat([7, 8], [10, 30])
    classifier = GenerativeClassifier(graph, PBP).fit(x, y)
    never = np.array([[2, 0]])  # no row has state 2
    assert np.isneginf(classifier.log_scores(never)).all()
    assert np.allclose(classifier.predict_proba(never), [[0.25, 0.75]])
    assert classifier.predict(never).tolist() == [8]
