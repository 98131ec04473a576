"""Classifiers from scikit-learn for rows of letters, of which some may be missing (-1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.naive_bayes import CategoricalNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import SVC
from torch import Tensor

from torchpbp.datasets.splice import LETTERS, SITES


class NaiveBayes:
    """Sites are independent given the class; missing ones are left out.

    Args:
        x: (rows, sites) states without missing ones.
        y: (rows,) classes.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        model = CategoricalNB(min_categories=len(LETTERS)).fit(x.numpy(), y.numpy())
        self.tables = torch.tensor(np.stack(model.feature_log_prob_))  # (sites, classes, letters)
        self.log_prior = torch.tensor(model.class_log_prior_)

    def predict(self, x: Tensor) -> Tensor:
        """(rows,) classes."""
        logs = self.tables[torch.arange(SITES), :, x.clamp(min=0)]  # (rows, sites, classes)
        seen = torch.where((x >= 0).unsqueeze(-1), logs, 0.0)
        return (seen.sum(dim=1) + self.log_prior).argmax(dim=1)


def support_vectors(x: Tensor, y: Tensor) -> Any:
    """An RBF support vector machine (C = 3, γ = 0.02) on one-hot letters; missing ones are zeros.

    Args:
        x: (rows, sites) states without missing ones.
        y: (rows,) classes.
    """
    encoder = OneHotEncoder(categories=[range(len(LETTERS))] * SITES, handle_unknown="ignore")
    return make_pipeline(encoder, SVC(C=3.0, gamma=0.02)).fit(x.numpy(), y.numpy())
