"""Classifiers from scikit-learn on rows with missing letters."""

from __future__ import annotations

import torch

from torchpbp.datasets import load_splice
from torchpbp.experiments.splice.baselines import NaiveBayes, support_vectors


def test_missing_letters_say_nothing_to_naive_bayes() -> None:
    data = load_splice()
    classifier = NaiveBayes(data.filled(), data.y)
    assert classifier.predict(torch.full((1, 60), -1)).tolist() == [2]  # the most frequent class
    assert float((classifier.predict(data.x) == data.y).double().mean()) > 0.9


def test_the_support_vector_machine_predicts_rows_with_missing_letters() -> None:
    data = load_splice()
    some = torch.arange(0, len(data.y), 20)
    x = data.x[some].clone()
    x[:, :5] = -1
    predicted = support_vectors(data.filled()[some], data.y[some]).predict(x.numpy())
    assert float((torch.from_numpy(predicted) == data.y[some]).double().mean()) > 0.9
