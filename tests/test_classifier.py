"""The generative classifier: scikit-learn's conventions, missing features, refusals."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError as SklearnNotFitted
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted

from torchpbp import PBP, Continuous, GenerativeClassifier, KernelPBP, LatentGraph, Nystroem, templates
from torchpbp.data import FEATURES, hide_points, load_digits, rows_per_class
from torchpbp.errors import DataError, NotFittedError, ShapeError, StructureError

NAN = float("nan")


def digits(classes, count, seed=0):
    """Rows of a few digits from the bundled training set: features, digits."""
    data = load_digits()
    chosen = torch.isin(data.train_y, torch.tensor(classes)).nonzero().flatten()
    rows = chosen[rows_per_class(data.train_y[chosen], count, seed)]
    return data.train_x[rows].numpy(), data.train_y[rows].numpy()


@pytest.fixture(scope="module")
def three():
    return digits([0, 4, 9], 60)


@pytest.fixture(scope="module")
def unseen():
    return digits([0, 4, 9], 150, seed=1)


def strokes(**options):
    return GenerativeClassifier(templates.pen_strokes(), KernelPBP, {"bandwidth": 20.0, **options})


@pytest.fixture(scope="module")
def fitted(three):
    return strokes().fit(*three)


# -- learning and predicting -----------------------------------------------------------------------------------------


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
    with pytest.raises(StructureError, match="prior: expected 'empirical' or 'uniform', got 'flat'"):
        strokes().set_params(prior="flat").fit(x, y)


# -- other learners --------------------------------------------------------------------------------------------------


def mixed_graph():
    variables = {"h": 2, "a": Continuous(), "b": 3, "c": Continuous()}
    return LatentGraph([("h", "a"), ("h", "b"), ("h", "c")], variables, ["h"])


def mixed(count, seed=0):
    """Two classes of equal centre: one narrow, one wide, which also prefer different states."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=count)
    scale = np.array([0.3, 3.0])[y]
    b = (rng.random(count)[:, None] > np.array([[0.6, 0.8], [0.2, 0.4]])[y]).sum(axis=1)
    return np.stack([scale * rng.normal(size=count), b, scale * rng.normal(size=count)], axis=1), y


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


# -- scikit-learn ----------------------------------------------------------------------------------------------------


def test_parameters_and_clones():
    classifier = strokes(ridge=(0.1, 0.2))
    params = classifier.get_params()
    assert params["prior"] == "empirical"
    assert params["options__bandwidth"] == 20.0
    assert params["options__ridge"] == (0.1, 0.2)
    assert not any("__" in k for k in classifier.get_params(deep=False))
    assert classifier.set_params(options__bandwidth=5.0, prior="uniform") is classifier
    assert classifier.options == {"bandwidth": 5.0, "ridge": (0.1, 0.2)}
    copied = clone(classifier)
    assert copied is not classifier
    assert copied.options == classifier.options
    assert copied.options is not classifier.options
    assert copied.learner is KernelPBP
    copied.set_params(options__bandwidth=1.0)
    assert classifier.options["bandwidth"] == 5.0
    with pytest.raises(ValueError, match="Invalid parameter"):
        classifier.set_params(nonsense=1)
    assert GenerativeClassifier().set_params(options__bandwidth=2.0).options == {"bandwidth": 2.0}
    assert is_classifier(classifier)
    assert "KernelPBP" in repr(classifier)


def test_settings_given_are_not_changed(three):
    x, y = three
    options = {"bandwidth": 20.0}
    classifier = GenerativeClassifier(templates.pen_strokes(), KernelPBP, options)
    before = x.copy()
    classifier.fit(x, y).predict(x)
    classifier.set_params(options__bandwidth=9.0)
    assert options == {"bandwidth": 20.0}
    assert np.array_equal(x, before)


def test_cross_validation(three):
    scores = cross_val_score(strokes(), *three, cv=3)
    assert scores.shape == (3,)
    assert scores.min() > 0.85


def test_grid_search_over_an_option(three):
    search = GridSearchCV(strokes(), {"options__bandwidth": [400.0, 20.0], "prior": ["uniform"]}, cv=2)
    search.fit(*three)
    assert search.best_params_ == {"options__bandwidth": 20.0, "prior": "uniform"}
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


# -- refusals --------------------------------------------------------------------------------------------------------


def test_unfitted_classifiers_say_so(three):
    for name in ("predict", "predict_proba", "predict_log_proba", "log_scores"):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            getattr(strokes(), name)(three[0])
    with pytest.raises(NotFittedError, match="not fitted yet"):
        strokes().score(*three)
    with pytest.raises(SklearnNotFitted):
        check_is_fitted(strokes())


def test_bad_training_data(three):
    x, y = three
    frame = pd.DataFrame(x, columns=list(FEATURES))
    for table, labels, error, text in [
        (x[:, :15], y, ShapeError, r"expected shape \(rows, 16\).*got \(180, 15\)"),
        (x[0], y, ShapeError, r"expected shape \(rows, features\), got \(16,\)"),
        (sparse.csr_array(x), y, DataError, "expected a dense table, got a sparse one"),
        (x + 1j, y, DataError, "Complex data not supported"),
        (x, np.where(y == 9, NAN, y), DataError, "y: expected classes, got NaN"),
        (x, None, DataError, "requires y to be passed"),
        (x, y[:-1], ShapeError, "one class for each of the 180 rows, got shape"),
        (x, np.stack([y, y], 1), ShapeError, "one class for each of the 180 rows"),
        (x[:0], y[:0], DataError, "empty"),
        (np.where(y[:, None] == y[0], NAN, x), y, DataError, "Column 'x1': all .* values are missing"),
        (np.where(x == x[0, 0], np.inf, x), y, DataError, "expected a finite number, got inf"),
        (x + 50, y, DataError, r"lies outside the declared range \[0\.0, 100\.0\]"),
        (frame.drop(columns="y3"), y, DataError, r"missing columns \['y3'\]"),
        (frame.assign(y3="high"), y, DataError, "column 'y3': expected a table of numbers"),
        ([*x.tolist()[:-1], ["left"] * 16], y, DataError, "expected a table of numbers"),
        ([[1.0], [1.0, 2.0]], [0, 1], DataError, "expected a table of numbers"),
        (x, np.linspace(0, 1, len(y)), ValueError, "continuous"),
    ]:
        with pytest.raises(error, match=text):
            strokes().fit(table, labels)


def test_rows_with_gaps_are_learned_from(three):
    x, y = three
    gaps = np.random.default_rng(0).random(x.shape) < 0.3
    holed = strokes().fit(np.where(gaps, NAN, x), y)
    masked = strokes().fit(np.ma.array(np.where(gaps, -99.0, x), mask=gaps), y)
    assert np.array_equal(holed.log_scores(x), masked.log_scores(x))
    assert holed.score(x, y) > 0.9
    assert holed.models_[0].missing["x1"] == pytest.approx(gaps[y == holed.classes_[0], 0].mean())


def test_a_failed_fit_leaves_the_old_models(three):
    x, y = three
    classifier = strokes().fit(x, y)
    before = classifier.log_scores(x)
    with pytest.raises(DataError):
        classifier.fit(np.where(y[:, None] == 9, NAN, x), y)
    assert np.array_equal(classifier.log_scores(x), before)


def test_bad_rows_to_predict(fitted, three):
    x, _ = three
    with pytest.raises(ShapeError, match=r"expected shape \(rows, 16\)"):
        fitted.predict(x[:, 1:])
    with pytest.raises(DataError, match="expected a finite value or NaN, got inf"):
        fitted.predict(np.where(x == x[0, 0], np.inf, x))
    with pytest.raises(DataError, match=r"missing columns \['x1'\]"):
        fitted.predict(pd.DataFrame(x[:, 1:], columns=list(FEATURES[1:])))


def test_fractional_states_are_refused():
    x, y = mixed(60)
    x[3, 1] = 0.5
    with pytest.raises(DataError, match=r"column 'b'.* expected a whole number from 0 to 2.*got 0\.5.*Continuous\(\)"):
        GenerativeClassifier(mixed_graph(), KernelPBP).fit(x, y)


def test_incomplete_settings(three):
    with pytest.raises(StructureError, match="pass graph=, or a model"):
        GenerativeClassifier().fit(*three)
    with pytest.raises(StructureError, match="pass graph=, or a model"):
        GenerativeClassifier(learner=KernelPBP).fit(*three)
    with pytest.raises(StructureError, match="expected a graph and a learner"):
        GenerativeClassifier(templates.pen_strokes()).fit(*three)
    with pytest.raises(TypeError, match="nonsense"):
        strokes(nonsense=3).fit(*three)
    with pytest.raises(StructureError, match="options: expected names and values for the learner, got 3"):
        GenerativeClassifier(templates.pen_strokes(), KernelPBP, 3).fit(*three)
