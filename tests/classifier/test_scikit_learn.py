"""The classifier among scikit-learn's tools."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from tests.classifier.strokes import strokes
from torchpbp import GenerativeClassifier, KernelPBP, templates


def test_parameters_and_clones():
    classifier = strokes(ridge=(0.1, 0.2))
    params = classifier.get_params()
    assert params["prior"] == "empirical"
    assert params["learner__bandwidth"] == 20.0
    assert params["learner__ridge"] == (0.1, 0.2)
    assert not any("__" in k for k in classifier.get_params(deep=False))
    assert classifier.set_params(learner__bandwidth=5.0, prior="uniform") is classifier
    assert classifier.options == {"bandwidth": 5.0, "ridge": (0.1, 0.2)}
    copied = clone(classifier)
    assert copied is not classifier
    assert copied.options == classifier.options
    assert copied.options is not classifier.options
    assert copied.learner is KernelPBP
    copied.set_params(learner__bandwidth=1.0)
    assert classifier.options["bandwidth"] == 5.0
    with pytest.raises(ValueError, match="Invalid parameter"):
        classifier.set_params(nonsense=1)
    assert GenerativeClassifier().set_params(learner__bandwidth=2.0).options == {"bandwidth": 2.0}
    assert is_classifier(classifier)
    assert "KernelPBP" in repr(classifier)


def test_settings_given_are_not_changed(three):
    x, y = three
    options = {"bandwidth": 20.0}
    classifier = GenerativeClassifier(templates.pen_strokes(), KernelPBP, options)
    before = x.copy()
    classifier.fit(x, y).predict(x)
    classifier.set_params(learner__bandwidth=9.0)
    assert options == {"bandwidth": 20.0}
    assert np.array_equal(x, before)


def test_cross_validation(three):
    scores = cross_val_score(strokes(), *three, cv=3)
    assert scores.shape == (3,)
    assert scores.min() > 0.85


def test_grid_search_over_an_option(three):
    search = GridSearchCV(strokes(), {"learner__bandwidth": [400.0, 20.0], "prior": ["uniform"]}, cv=2)
    search.fit(*three)
    assert search.best_params_ == {"learner__bandwidth": 20.0, "prior": "uniform"}
    assert search.best_estimator_.options["bandwidth"] == 20.0
    assert search.best_score_ > 0.85
    assert search.cv_results_["mean_test_score"][0] < search.best_score_


def test_pipelines(three):
    x, y = three
    half = make_pipeline(FunctionTransformer(lambda t: t / 2), strokes()).fit(x, y)
    assert half.score(x, y) > 0.9


def test_pickling(fitted, unseen):
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.log_scores(unseen[0]), fitted.log_scores(unseen[0]))


def test_fitting_again_starts_afresh(three):
    x, y = three
    classifier = strokes().fit(x, y)
    kept = y != 4
    classifier.fit(x[kept], y[kept])
    assert classifier.classes_.tolist() == [0, 9]
    assert classifier.predict_proba(x).shape == (len(x), 2)


def test_a_class_unseen_in_training_is_scored_as_wrong(fitted, three):
    x, y = three
    stranger = np.where(y == 9, 5, y)
    right = fitted.predict(x) == stranger
    assert fitted.score(x, stranger) == pytest.approx(right.mean())
    assert fitted.score(x[y == 9], stranger[y == 9]) == 0.0
