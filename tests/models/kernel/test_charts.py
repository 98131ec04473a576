"""Increments against a loop that spells them out."""

import math

import pytest
import torch

from tests.closeness import assert_same_up_to_rounding
from tests.models.kernel.rows import clique_graph
from torchpbp import KernelPBP, templates
from torchpbp.errors import StructureError
from torchpbp.models.kernel import Chart

NAMES = ("a", "x1", "y1", "x2", "y2", "x3", "y3")
SEQUENCES = [("x1", "x2", "x3"), ("y1", "y2", "y3")]


def spelled_out(rows, training, names, sequences):
    """differences[n][variable][d] of the chart, with NaN where row n does not observe the variable."""
    following = {}
    for sequence in sequences:
        for k, v in enumerate(sequence):
            following[v] = sequence[k + 1 :]
    result = torch.full((len(rows), len(names), len(training)), math.nan, dtype=torch.float64)
    for n, row in enumerate(rows.tolist()):
        for i, v in enumerate(names):
            if math.isnan(row[i]):
                continue
            seen = [names.index(w) for w in following.get(v, ()) if not math.isnan(row[names.index(w)])]
            for d, example in enumerate(training.tolist()):
                mine, theirs = row[i], example[i]
                if seen:
                    mine, theirs = mine - row[seen[0]], theirs - example[seen[0]]
                result[n, i, d] = mine - theirs
    return result


@pytest.mark.parametrize("hidden", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("sequences", [[], SEQUENCES, [("y3", "x1", "y1")]], ids=["none", "two", "one, out of order"])
def test_differences_for_random_patterns(hidden, sequences):
    generator = torch.Generator().manual_seed(int(10 * hidden))
    rows = torch.randn(40, len(NAMES), generator=generator, dtype=torch.float64)
    rows[torch.rand(rows.shape, generator=generator) < hidden] = math.nan
    training = torch.randn(9, len(NAMES), generator=generator, dtype=torch.float64)
    chart = Chart(NAMES, sequences)
    expected = spelled_out(rows, training, NAMES, sequences)
    successors = chart.successors(rows)
    for i in range(len(NAMES)):
        found = chart.differences(rows, successors, i, training)
        assert torch.equal(found.isnan(), expected[:, i].isnan())
        assert torch.allclose(found, expected[:, i], atol=1e-12, equal_nan=True)


def test_coordinates_of_complete_rows():
    rows = torch.randn(5, len(NAMES), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = Chart(NAMES, SEQUENCES).coordinates(rows)
    column = {v: rows[:, i] for i, v in enumerate(NAMES)}
    expected = [
        column["a"],
        column["x1"] - column["x2"],
        column["y1"] - column["y2"],
        column["x2"] - column["x3"],
        column["y2"] - column["y3"],
        column["x3"],
        column["y3"],
    ]
    assert_same_up_to_rounding(found, torch.stack(expected, dim=1))
    assert torch.equal(Chart(NAMES).coordinates(rows), rows)
    matrix = Chart(NAMES, SEQUENCES).coordinates(torch.eye(len(NAMES), dtype=torch.float64))
    assert torch.linalg.det(matrix).item() == pytest.approx(1.0)  # densities need no correction


def test_bad_sequences():
    with pytest.raises(StructureError, match="unknown variable 'z'"):
        Chart(NAMES, [("x1", "z")])
    with pytest.raises(StructureError, match="'x1' is listed twice"):
        Chart(NAMES, [("x1", "x2"), ("x1", "y1")])
    with pytest.raises(StructureError, match="unknown variable 'z'"):
        KernelPBP(clique_graph(2, 9.0), sequences=[("x1", "z")])
    graph = templates.naive_bayes(3)
    with pytest.raises(StructureError, match=r"'x[12]' is discrete"):
        KernelPBP(graph, sequences=[("x1", "x2")])


# -- what a kernel density makes of it -------------------------------------------------------------------------------

SERIES = [("x1", "x2", "x3"), ("y1", "y2", "y3")]


def strokes(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
    steps[:, 2:] = 2 + 0.5 * steps[:, 2:]
    names = ["x1", "y1", "x2", "y2", "x3", "y3"]
    return dict(zip(names, torch.cat([steps[:, :2].cumsum(1), steps[:, 2:].cumsum(1)], dim=1).T, strict=True))


def clique(sequences=(), width=0.7):
    graph = clique_graph(3, 100.0)
    return KernelPBP(graph, bandwidth=width, dtype=torch.float64, sequences=sequences)


def test_log_evidence_of_complete_rows_is_the_density_of_the_increments():
    data, new = strokes(30, 0), strokes(7, 1)
    found = clique(SERIES).fit(data).log_evidence(new)
    chart = Chart(list(data), SERIES)
    train, rows = (chart.coordinates(torch.stack(list(x.values()), dim=1)) for x in (data, new))
    squares = ((rows.unsqueeze(1) - train) / 0.7).square().sum(dim=2)
    expected = torch.logsumexp(-0.5 * squares, dim=1) - math.log(30) - 6 * math.log(0.7 * math.sqrt(2 * math.pi))
    assert torch.allclose(found, expected, atol=1e-9)
    assert not torch.allclose(clique().fit(data).log_evidence(new), found, atol=0.1)


def test_increments_do_not_matter_where_nothing_follows():
    data = strokes(30, 0)
    moved, plain = clique(SERIES).fit(data), clique().fit(data)
    for v in ("x1", "x2", "x3", "y2"):  # one value alone: compared as it is
        evidence = {v: torch.linspace(-3, 8, 12, dtype=torch.float64)}
        assert torch.allclose(moved.log_evidence(evidence), plain.log_evidence(evidence), atol=1e-10)
    across = {"x2": torch.tensor([0.0, 2.0]), "y3": torch.tensor([1.0, 4.0])}  # different sequences
    assert torch.allclose(moved.log_evidence(across), plain.log_evidence(across), atol=1e-10)
    along = {"x2": torch.tensor([0.0, 2.0]), "x3": torch.tensor([1.0, 4.0])}
    assert not torch.allclose(moved.log_evidence(along), plain.log_evidence(along), atol=0.01)


@pytest.mark.parametrize("sequences", [(), SERIES], ids=["as they are", "by increments"])
def test_both_charts_are_densities_of_the_same_vector(sequences):
    """∫∫ p(x1, x3) over the plane is 1, and hidden points leave p(x1, x3) a density too."""
    model = clique(sequences).fit(strokes(12, 0))
    axis = torch.linspace(-14, 22, 181, dtype=torch.float64)
    a, b = torch.meshgrid(axis, axis, indexing="ij")
    density = model.log_evidence({"x1": a.flatten(), "x3": b.flatten()}).exp().reshape(a.shape)
    total = torch.trapezoid(torch.trapezoid(density, axis, dim=1), axis)
    assert total.item() == pytest.approx(1.0, abs=1e-6)


def test_increments_forgive_a_shift_of_all_but_the_last_point():
    data = strokes(40, 0)
    moved, plain = clique(SERIES).fit(data), clique().fit(data)
    shifted = {v: x[:5] + (3.0 if v[0] == "x" else 0.0) for v, x in data.items()}
    own = {v: x[:5] for v, x in data.items()}
    loss = plain.log_evidence(own) - plain.log_evidence(shifted)
    forgiven = moved.log_evidence(own) - moved.log_evidence(shifted)
    assert (forgiven < loss).all()
