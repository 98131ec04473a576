"""Errors of the classifier: class and text."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError as SklearnNotFitted
from sklearn.utils.validation import check_is_fitted

from tests.classifier.strokes import NAN, mixed, mixed_graph, strokes
from torchpbp import GenerativeClassifier, KernelPBP, templates
from torchpbp.datasets import FEATURES
from torchpbp.errors import DataError, NotFittedError, ShapeError, StructureError


def test_unfitted_classifiers_raise(three):
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
        (x, np.where(y == 9, NAN, y), DataError, "y, row .*: expected a class, got nan"),
        (x, None, DataError, "requires y to be passed"),
        (x, y[:-1], ShapeError, "one class for each of the 180 rows, got shape"),
        (x, np.stack([y, y], 1), ShapeError, "one class for each of the 180 rows"),
        (x[:0], y[:0], DataError, "empty"),
        (np.where(y[:, None] == y[0], NAN, x), y, DataError, "Column 'x1': all .* values are missing"),
        (np.where(x == x[0, 0], np.inf, x), y, DataError, "expected a finite number, got inf"),
        (x + 50, y, DataError, r"lies outside the declared range \[0\.0, 100\.0\]"),
        (frame.drop(columns="y3"), y, DataError, r"missing columns \['y3'\]"),
        (frame.assign(y3="high"), y, DataError, "column 'y3': expected numbers, got 'high'"),
        ([*x.tolist()[:-1], ["left"] * 16], y, DataError, "expected numbers, got 'left'"),
        ([[1.0], [1.0, 2.0]], [0, 1], DataError, "expected a table of numbers"),
        (x, np.linspace(0, 1, len(y)), ValueError, "continuous"),
    ]:
        with pytest.raises(error, match=text):
            strokes().fit(table, labels)


def test_rows_with_missing_values_are_learned_from(three):
    x, y = three
    gaps = np.random.default_rng(0).random(x.shape) < 0.3
    holed = strokes().fit(np.where(gaps, NAN, x), y)
    masked = strokes().fit(np.ma.array(np.where(gaps, -99.0, x), mask=gaps), y)
    np.testing.assert_allclose(holed.log_scores(x), masked.log_scores(x), rtol=1e-5, atol=1e-4)  # in single precision
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


def test_fractional_states_raise():
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
