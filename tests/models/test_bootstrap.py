"""Bootstrap intervals: replicates are models of resampled rows, and intervals have the width that statistics gives them."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from torchpbp import PBP, Continuous, DiscreteNetwork, KernelRidge, LatentGraph, templates
from torchpbp.errors import ArgumentError, DataError, DataWarning, QueryError, StructureError
from torchpbp.models.bootstrap import Bootstrap
from torchpbp.moments.distinct_rows import numbered

TRUTH = DiscreteNetwork.random(templates.diamond(observed_states=3), seed=1)
ROWS = TRUTH.sample(2_000, seed=0)
EVIDENCE = {"a1": torch.tensor([0, 2, -1]), "b1": torch.tensor([1, -1, -1])}


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_replicates_are_models_of_resampled_rows(missing):
    """Solved together, they are what fits to the same draws give one by one."""
    hide = torch.Generator().manual_seed(5)
    rows = {v: x.where(torch.rand(len(x), generator=hide) >= missing, -1) for v, x in ROWS.items()}
    model = PBP(TRUTH.graph).fit(rows)
    bootstrap = Bootstrap(model, model._counting_fitter(), rows, replicates=3, seed=4)
    _, tree = bootstrap.trees(answers=1)  # the first is that of the rows themselves
    evidence = model.read_evidence(EVIDENCE)
    codes = torch.stack(list(rows.values())).numpy()
    codes = np.where(codes < 0, 3, codes)
    number, firsts = numbered(list(torch.from_numpy(codes)))
    different, counts = codes[:, firsts], np.bincount(number)
    weights = np.random.default_rng(4).multinomial(2_000, counts / 2_000, size=3)
    with torch.no_grad():
        for replicate, occurrences in enumerate(weights):
            drawn = np.repeat(different, occurrences, axis=1)
            table = {v: np.where(x == 3, -1, x) for v, x in zip(rows, drawn, strict=True)}
            single = PBP(TRUTH.graph).fit(table)
            single.operators.floor.copy_(model.operators.floor)
            for v, o in single.observables.items():
                o.marginal.copy_(model.observables[v].marginal)
            for names in ((), ("d1",), ("c1", "d2")):
                together = bootstrap.answers(tree, names, evidence)[replicate]
                alone = Bootstrap(single, bootstrap.fitter, rows, replicates=1, seed=0)
                expected = alone.answers(single.operators.tree, names, evidence)
                assert torch.allclose(together, expected, atol=1e-9)


def test_a_marginal_has_the_width_of_a_proportion():
    """Without evidence the model repeats the shares in the rows, whose standard errors are known."""
    model = PBP(TRUTH.graph).fit(ROWS)
    estimate, lower, upper = model.interval("a1", data=ROWS, level=0.9, replicates=400)
    share = torch.bincount(ROWS["a1"], minlength=3).double() / 2_000
    assert torch.allclose(estimate[0], share, atol=1e-8)
    expected = 2 * 1.645 * (share * (1 - share) / 2_000).sqrt()
    assert torch.allclose(upper[0] - lower[0], expected, rtol=0.2)
    assert bool(((lower < estimate) & (estimate < upper)).all())
    log = model.interval(None, {"a1": 0}, data=ROWS, level=0.9, replicates=400)
    assert torch.allclose(log.upper - log.lower, expected[:1] / share[:1], rtol=0.2)
    assert math.isclose(float(log.estimate), float(share[0].log()), abs_tol=1e-8)


def test_intervals_are_those_of_the_posterior():
    model = PBP(TRUTH.graph).fit(ROWS)
    options = {"data": ROWS, "replicates": 50}
    narrow, wide = (model.interval("d1", EVIDENCE, level, **options) for level in (0.5, 0.95))
    with torch.no_grad():
        assert torch.allclose(wide.estimate, model.posterior("d1", EVIDENCE))
        assert torch.allclose(
            model.interval(["d1", "c1"], EVIDENCE, **options).estimate, model.posterior(["d1", "c1"], EVIDENCE)
        )
    assert bool((wide.lower <= narrow.lower).all() and (narrow.upper <= wide.upper).all())
    again = model.interval("d1", EVIDENCE, **options)
    assert all(torch.equal(a, b) for a, b in zip(again, wide, strict=True))
    frame = model.interval(
        "d1", pd.DataFrame({"a1": [0, 2, None], "b1": [1, None, None]}, index=list("pqr")), **options
    )
    assert np.allclose(frame["lower"], wide.lower)
    assert list(frame.index) == list("pqr")
    logs = model.interval(None, pd.DataFrame({"a1": [0, 2]}), **options)
    assert list(logs.columns) == ["estimate", "lower", "upper"]
    assert model.interval("d1", pd.DataFrame({"a1": []}), **options).shape == (0, 9)


def test_what_cannot_be_bootstrapped_raises():
    model = PBP(TRUTH.graph).fit(ROWS)
    with pytest.raises(ArgumentError, match=r"interval: expected data=, the rows"):
        model.interval("d1")
    for level in (0, 1, 95, "x"):
        with pytest.raises(ArgumentError, match="level: expected a number between 0 and 1"):
            model.interval("d1", level=level, data=ROWS)
    with pytest.raises(ArgumentError, match="replicates: expected a whole number of at least 2, got 1"):
        model.interval("d1", data=ROWS, replicates=1)
    with pytest.raises(QueryError, match="Query of 'A': it is latent"):
        model.interval("A", data=ROWS)
    with pytest.raises(DataError, match="missing columns"):
        model.interval("d1", data={"a1": ROWS["a1"]})
    with pytest.warns(DataWarning, match="differ from those of a fit to these rows"):
        model.interval("d1", data={v: x[:500] for v, x in ROWS.items()}, replicates=2)
    with pytest.raises(StructureError, match=r"KernelRidge.* needs the rows themselves"):
        PBP(TRUTH.graph, regressor=KernelRidge()).interval("d1", data=ROWS)
    with pytest.raises(StructureError, match="condition='a1' has a tree per class"):
        PBP(TRUTH.graph, condition="a1").fit(ROWS).interval("d1", data=ROWS)
    number = LatentGraph([("h", v) for v in "xyz"], {"h": 2, "x": Continuous(), "y": 2, "z": 2}, ["h"])
    with pytest.raises(StructureError, match=r"\['x'\] are continuous"):
        PBP(number).interval("y", data=ROWS)
