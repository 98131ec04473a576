"""Moments of classes: weights of rows, and tables sliced by class."""

from __future__ import annotations

import pytest
import torch

from torchpbp.errors import DataError
from torchpbp.features import Nystroem
from torchpbp.features.maps import OneHot
from torchpbp.moments.class_rows import ClassRows, class_tables
from torchpbp.moments.feature_moments import FeatureMoments
from torchpbp.moments.joint_tables import JointTables
from torchpbp.planning.plan import SeparatorPlan

COUNTS = torch.tensor([5.0, 0.0, 40.0, 155.0], dtype=torch.float64)


@pytest.mark.parametrize("shrinkage", [0.0, 7.0, 1000.0])
def test_weights_add_up_to_effective_rows(shrinkage):
    rows = ClassRows("c", COUNTS, 3.0, shrinkage)
    classes = torch.repeat_interleave(torch.arange(4), COUNTS.long())
    for label in range(4):
        weights = rows.row_weights(label, classes)
        assert float(weights.sum()) == pytest.approx(rows.effective(label))
        assert float(weights.sum() ** 2 / weights.square().sum()) == pytest.approx(rows.effective(label))
        n = float(COUNTS[label])
        own = float(weights[classes == label].sum() / weights.sum())
        if n:  # rows of the class, and pseudo-rows of which it has its share
            assert own == pytest.approx((n + shrinkage * n / 200) / (n + shrinkage))
    assert rows.effective(1) == 200
    assert rows.empty == [1]
    assert torch.allclose(rows.prior, COUNTS / 200)
    with pytest.raises(DataError, match="No row has a value of 'c'"):
        ClassRows("c", 0 * COUNTS, 3.0, shrinkage)


def test_tables_of_classes_are_weighted_counts():
    generator = torch.Generator().manual_seed(0)
    states = {"x": 2, "c": 3, "y": 3, "z": 2}
    codes = {v: torch.randint(n + (v in "xc"), (300,), generator=generator) for v, n in states.items()}
    tables = JointTables([("x", "c", "y"), ("z", "y", "c")], states, ["x", "c"])
    tables.add(list(codes.values()))
    rows, by_class = class_tables(tables, "c", 10.0)
    assert rows.counts.tolist() == [int((codes["c"] == c).sum()) for c in range(3)]
    assert rows.missing == int((codes["c"] == 3).sum())
    known = codes["c"] < 3
    for label, own in enumerate(by_class):
        weights = rows.row_weights(label, codes["c"][known])
        assert own.rows == pytest.approx(float(weights.sum()))
        expected = torch.zeros(3, 3, dtype=torch.float64)  # one state of x more for missing values
        expected.index_put_((codes["x"][known], codes["y"][known]), weights, accumulate=True)
        assert torch.allclose(own.sums(["x", "y"]), expected)
        assert own.incomplete == {"x"}


def test_features_are_averaged_by_weight():
    """Whole-number weights are rows that occur more than once."""
    generator = torch.Generator().manual_seed(0)
    table = {"u": torch.randn(60, generator=generator, dtype=torch.float64)}
    table["w"] = table["u"] + torch.randn(60, generator=generator, dtype=torch.float64)
    table["k"] = torch.randint(3, (60,), generator=generator)
    table["w"][::5] = torch.nan
    times = torch.randint(4, (60,), generator=generator)
    maps = {"u": Nystroem(5), "w": Nystroem(5), "k": OneHot(3)}
    maps["u"].fit(table["u"])
    maps["w"].fit(table["w"][~table["w"].isnan()])
    missing = {"w": torch.full((maps["w"].dim,), 0.3, dtype=torch.float64)}
    separator = SeparatorPlan(1, ("w",), (("u",), ("k",)), 2, 2, 2)
    below = [("w",), ("k",)]

    def moments(rows, weight=None):
        return FeatureMoments(
            maps, lambda: iter([rows]), [(("k",), ("k",))], 1e-3, missing, [(separator, below)], weight
        )

    repeated = {v: x.repeat_interleave(times) for v, x in table.items()}
    weighted, expected = moments(table, lambda batch: times.double()), moments(repeated)
    assert weighted.rows == expected.rows == float(times.sum())
    for a, b in zip(
        vars(weighted.separators([separator])).values(), vars(expected.separators([separator])).values(), strict=True
    ):
        assert torch.allclose(a, b, atol=1e-9)
    question = [[(below, None, separator.instrument)]]
    for a, b in zip(weighted.below(question)[0], expected.below(question)[0], strict=True):
        assert torch.allclose(a, b, atol=1e-9)
    assert torch.allclose(weighted.mean(("k",)), expected.mean(("k",)))
