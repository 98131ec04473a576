"""What a user is told about separators that cannot be learned, or have not been."""

from __future__ import annotations

import warnings

import pytest

from torchpbp import PBP, DiscreteNetwork, KernelRidge, templates
from torchpbp.errors import RankWarning, StructureError, TorchPBPWarning
from torchpbp.exact.parity import noisy_parity

NETWORK = DiscreteNetwork.random(templates.diamond(observed_states=3), seed=1)


def test_a_structure_that_falls_short_is_named_at_once_and_in_the_table() -> None:
    with pytest.warns(RankWarning, match=r"Separator {B, C} .*needs 4.*Add outside observables, raise pool="):
        model = PBP(NETWORK.graph, pool=1)
    table = model.fit(NETWORK.sample(50_000, seed=1)).diagnostics(rows=20)
    short = table[table["reached"] < table["needed"]]
    assert len(short) == 1
    assert short["separator"].iloc[0].startswith("{B, C}")
    assert (
        short["remedy"]
        .iloc[0]
        .startswith("structure: the instrument reaches 3 of 4 dimensions. Add outside observables")
    )
    assert not table.drop(index=short.index)["remedy"].str.contains("structure").any()
    with pytest.raises(StructureError, match=r"Separator {B, C}"):
        PBP(NETWORK.graph, pool=1, strict=True)


def test_data_that_fall_short_are_a_remark_but_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", TorchPBPWarning)
        few, many = (PBP(NETWORK.graph).fit(NETWORK.sample(n, seed=2)).diagnostics(rows=20) for n in (100, 100_000))
    for table in (few, many):
        short = table["significant"] < table["rank"]
        assert (table["remedy"].str.startswith("data: ") == short).all()
    line = few[few["significant"] < few["rank"]].iloc[0]
    assert (
        f"data: {line['significant']} of {line['rank']} dimensions are statistically significant. More rows"
        in line["remedy"]
    )
    assert (few["remedy"] != "").sum() > (many["remedy"] != "").sum()


def test_nothing_to_say_about_exact_moments() -> None:
    assert (PBP(NETWORK.graph).fit_population(NETWORK).diagnostics(rows=20)["remedy"] == "").all()


def test_the_remedy_for_blind_linear_regression_helps() -> None:
    network = noisy_parity(templates.parity(), 0, concentration=0.5)
    rows = network.sample(10_000, seed=0)
    blind = PBP(network.graph).fit(rows).diagnostics(rows=20)
    assert blind["remedy"].str.contains(r"regressor=KernelRidge\(\)").any()
    seen = PBP(network.graph, regressor=KernelRidge(landmarks=100)).fit(rows).diagnostics(rows=20)
    assert (seen["remedy"] != "").sum() < (blind["remedy"] != "").sum()
