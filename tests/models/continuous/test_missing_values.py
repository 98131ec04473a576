"""Models with continuous variables learned from rows with gaps: exact on populations, convergent on samples."""

import itertools
import math

import numpy as np
import pytest
import torch

from tests.closeness import assert_same_up_to_rounding
from tests.models.continuous.mixed_model import errors_against_quadrature, mixed, mixed_graph
from torchpbp import PBP, DiscreteNetwork, KernelRidge, Nystroem, Ridge, templates
from torchpbp.errors import DataError
from torchpbp.features import OneHot, complete_table
from torchpbp.learning.stage1 import Penalties
from torchpbp.learning.two_stage import learn
from torchpbp.moments.feature_moments import FeatureMoments

NAN = math.nan


def holed(rows, seed, share=0.3):
    table = mixed(rows, seed)
    generator = torch.Generator().manual_seed(seed + 50)
    gaps = torch.rand(3, rows, generator=generator) < share
    gaps[2] &= ~(gaps[0] & gaps[1])  # no row without any value
    return {v: table[v].masked_fill(g, -1 if v == "c" else NAN) for v, g in zip("xyc", gaps, strict=True)}


# -- populations -----------------------------------------------------------------------------------------------------


def quarters(graph):
    """A network whose probabilities are multiples of 1/4, so that a whole number of rows makes up its population."""
    rng = np.random.default_rng(0)
    shapes = {2: [[1, 3], [3, 1]], 3: [[2, 1, 1], [1, 1, 2], [1, 2, 1]]}
    tables = {}
    for v in graph.variables:
        parents = graph.parents(v)
        choices = shapes[graph.num_states(v)]
        above = math.prod(graph.num_states(p) for p in parents)
        rows = [choices[(i + int(rng.integers(2))) % len(choices)] if i else choices[0] for i in range(above)]
        if above > 1:
            rows[1] = choices[1]
        shape = [graph.num_states(p) for p in parents] + [graph.num_states(v)]
        tables[v] = torch.tensor(rows, dtype=torch.float64).reshape(shape) / 4
    return DiscreteNetwork(graph, tables)


def population(truth):
    """Rows in which every joint state of the observables occurs as often as it should."""
    names = truth.graph.observed
    cells = torch.tensor(list(itertools.product(*[range(truth.states[v]) for v in names])))
    chance = truth.log_evidence(dict(zip(names, cells.T, strict=True))).exp()
    number = 4 ** len(truth.graph.variables)
    counts = (chance * number).round().long()
    assert torch.allclose(counts.double() / number, chance, atol=1e-12)
    return dict(zip(names, cells.repeat_interleave(counts // counts.gcd(counts[0]).min(), dim=0).T, strict=True))


@pytest.mark.parametrize("odd", [False, True])
@torch.no_grad()
def test_a_population_with_gaps_is_learned_exactly(odd):
    graph = templates.hmm(3, states=2, observed_states=3)
    truth = quarters(graph)
    rows = population(truth)
    names = list(rows)
    # Each pattern of gaps hides values of a full copy of the population: completely at random, to the last digit.
    patterns = [set(), *({v} for v in names), set(names[:2]), set(names[1:])]
    copies = [{v: torch.full_like(x, -1) if v in hidden else x for v, x in rows.items()} for hidden in patterns]
    data = {v: torch.cat([copy[v] for copy in copies]) for v in names}
    model = PBP(graph)
    blanks = {v: torch.full((3,), 1 / 3, dtype=torch.float64) for v in names}
    if odd:  # any constant will do for a missing value of an instrument
        blanks = {v: torch.tensor([0.2, -1.0, 0.7], dtype=torch.float64) for v in names}
    moments = FeatureMoments(
        {v: OneHot(3) for v in names},
        lambda: iter(
            [{v: x[part] for v, x in data.items()} for part in torch.arange(len(data[names[0]])).split(5_000)]
        ),
        [],
        1e-15,
        blanks,
        Ridge().required_separators(model.plan),
    )
    assert moments.rows == len(data[names[0]])
    tree = learn(model.plan, moments, Ridge(), Penalties(0.0, 0.0)).tree
    model.operators.set_tree(tree)
    model.fitted = True
    model.operators.floor.fill_(1e-15)
    states = [range(-1, 3)] * len(names)
    evidence = dict(zip(names, torch.tensor(list(itertools.product(*states))).T, strict=True))
    assert torch.allclose(model.log_evidence(evidence), truth.log_evidence(evidence), atol=1e-8)


# -- samples ---------------------------------------------------------------------------------------------------------


def test_answers_converge_with_a_third_missing():
    few, many = (
        np.mean([errors_against_quadrature(PBP(mixed_graph()).fit(holed(n, seed))) for seed in range(2)], axis=0)
        for n in (1_500, 20_000)
    )
    assert (many < 0.6 * few).all()
    assert many[0] < 0.006
    assert many[1] < 0.06


def test_batches_passes_and_choices_with_gaps():
    data = holed(3_000, 1)
    whole = PBP(mixed_graph()).fit(data)
    parts = PBP(mixed_graph()).fit([{v: x[i : i + 700] for v, x in data.items()} for i in range(0, 3_000, 700)])
    # Answers, not operators: singular vectors may come with either sign. Whitening amplifies the rounding of sums.
    rows = {v: x[:50] for v, x in data.items()}
    assert_same_up_to_rounding(parts.log_evidence(rows), whole.log_evidence(rows), rtol=0, atol=1e-8)
    assert_same_up_to_rounding(parts.posterior("c").detach(), whole.posterior("c").detach(), rtol=0, atol=1e-8)
    chosen = PBP(mixed_graph(states=None), rank="auto", max_rank=4, features=Nystroem(10, bandwidth="validate"))
    chosen.fit(holed(6_000, 2))
    assert max(p.rank for p in chosen.plan.separators) >= 2
    assert all(math.isfinite(s.score) for s in chosen.rank_scores)
    assert len(chosen.bandwidth_scores) > 1
    assert "of the values missing" in str(whole)
    assert whole.missing["x"] == pytest.approx(0.3, abs=0.04)


def test_gaps_that_depend_on_what_is_seen_call_for_completion_first():
    table = mixed(3_000, 4)
    generator = torch.Generator().manual_seed(2)
    for v in "xy":
        gaps = torch.rand(3_000, generator=generator) < torch.where(table["c"] >= 2, 0.6, 0.1)
        table[v] = table[v].masked_fill(gaps, NAN)
    graph = mixed_graph()
    filled = complete_table(table, {v: graph.variables[v] for v in table})
    plain, completed = (errors_against_quadrature(PBP(graph).fit(rows))[0] for rows in (table, filled))
    assert plain > 0.1  # rows that see x, y and c are not like the others
    assert completed < 0.15 * plain


def test_regressors_learn_from_rows_with_gaps():
    data = holed(2_500, 1)
    model = PBP(mixed_graph(), regressor=KernelRidge(landmarks=60)).fit(data)
    assert model.missing["y"] == pytest.approx(0.3, abs=0.04)
    found = errors_against_quadrature(model)[0]
    alone = errors_against_quadrature(PBP(mixed_graph(), rank=1).fit(data))[
        0
    ]  # a model in which nothing tells of anything
    assert found < 0.2 * alone


def test_what_is_never_seen_together_cannot_be_learned():
    table = mixed(200, 0)
    half = torch.arange(200) < 100
    apart = {**table, "x": table["x"].masked_fill(half, NAN), "y": table["y"].masked_fill(~half, NAN)}
    with pytest.raises(DataError, match="No row observes all of"):
        PBP(mixed_graph()).fit(apart)
    with pytest.raises(DataError, match="Column 'x': all 200 values are missing"):
        PBP(mixed_graph()).fit({**table, "x": torch.full((200,), NAN)})
