"""Digits to learn from, others to classify, and a fitted classifier that no test changes."""

import pytest

from tests.classifier.strokes import digits, strokes


@pytest.fixture(scope="session")
def three():
    return digits([0, 4, 9], 60)


@pytest.fixture(scope="session")
def unseen():
    return digits([0, 4, 9], 150, seed=1)


@pytest.fixture(scope="session")
def fitted(three):
    return strokes().fit(*three)
