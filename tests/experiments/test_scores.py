"""Scores of classifiers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torchpbp.experiments.scores import calibration_error, class_table, confusion, log_loss


def test_calibration_error_is_the_definition() -> None:
    confidence, right = np.array([0.9, 0.9, 0.6, 1.0]), np.array([True, False, True, True])
    assert calibration_error(confidence, right, bins=10) == pytest.approx((2 * 0.4 + 0.4 + 0.0) / 4)
    assert calibration_error(np.ones(3), np.ones(3, dtype=bool)) == 0.0


def test_log_loss_is_the_definition() -> None:
    log_proba = np.log(np.array([[0.5, 0.5], [0.25, 0.75]]))
    expected = -(math.log(0.5) + math.log(0.75)) / 2
    assert log_loss(log_proba, np.array([3, 7]), np.array([3, 7])) == pytest.approx(expected)
    assert log_loss(log_proba, np.array([3, 7]), np.array([3, 8])) == math.inf


def test_class_table_counts_rows() -> None:
    matrix = confusion(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1]), [0, 1, 2])
    assert matrix.tolist() == [[1, 1, 0], [0, 2, 0], [0, 0, 0]]
    table = class_table(matrix, [0, 1, 2])
    assert table["recall"].tolist()[:2] == [0.5, 1.0]
    assert table["precision"].tolist()[:2] == [1.0, pytest.approx(2 / 3)]
    assert table.loc[2, ["precision", "recall"]].isna().all()
    assert table["count"].tolist() == [2, 2, 0]
