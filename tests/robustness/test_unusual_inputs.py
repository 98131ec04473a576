"""Tensors and numbers that cannot be computed with raise a DataError wherever data and evidence come in; the others are read."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from torchpbp import (
    EM,
    PBP,
    Continuous,
    DiscreteNetwork,
    Evidence,
    GenerativeClassifier,
    KernelPBP,
    Laplace,
    LatentGraph,
    Matern,
    Nystroem,
    PBPLayer,
    RandomFourier,
    templates,
)
from torchpbp.errors import ArgumentError, DataError, DeviceError, QueryError, ShapeError, StructureError
from torchpbp.features import complete_table

ROWS = 40
GRAPH = templates.naive_bayes(3, 2, 2)
DATA = DiscreteNetwork.random(GRAPH, seed=0).sample(ROWS, seed=1)
TABLE = torch.stack(list(DATA.values()), dim=1)
CLASSES = [0, 1] * (ROWS // 2)
MODEL = PBP(GRAPH).fit(DATA)
LAYER = PBPLayer(MODEL)
MIXED_GRAPH = LatentGraph([("h", "x"), ("h", "y"), ("h", "z")], {"h": 2, "x": 2, "y": Continuous(), "z": 2}, ["h"])
MIXED_DATA = {"x": DATA["x1"], "y": torch.linspace(-1, 1, ROWS).double() + DATA["x2"], "z": DATA["x3"]}
MIXED = PBP(MIXED_GRAPH).fit(MIXED_DATA)

pytestmark = pytest.mark.filterwarnings("ignore:.*(nested tensors|Sparse CSR|quantize_per_tensor)")

REJECTED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "meta": (lambda t: t.to("meta"), "got a meta tensor, which has no values"),
    "quantised": (lambda t: torch.quantize_per_tensor(t.float(), 0.5, 0, torch.quint8), "got a quantised tensor"),
    "nested": (lambda t: torch.nested.nested_tensor([t.flatten()[:3], t.flatten()[:2]]), "got a nested tensor"),
    "jagged": (
        lambda t: torch.nested.nested_tensor([t.flatten()[:3], t.flatten()[:2]], layout=torch.jagged),
        "got a nested tensor",
    ),
    "complex": (lambda t: t.to(torch.complex64), "got complex64 values"),
    "bits": (lambda t: torch.empty(t.shape, dtype=torch.bits8), "got bits8 values"),
    "int4": (lambda t: torch.empty(t.shape, dtype=torch.int4), "got int4 values"),
}

ACCEPTED: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr() if t.ndim == 2 else t.to_sparse(),
    "float8_e4m3fn": lambda t: t.to(torch.float8_e4m3fn),
    "float8_e5m2": lambda t: t.to(torch.float8_e5m2),
}

COLUMNS: dict[str, Callable[[Any], Any]] = {
    "fit": lambda c: PBP(GRAPH).fit({**DATA, "x1": c}),
    "fit EM": lambda c: EM(GRAPH, max_steps=1, restarts=1).fit({**DATA, "x1": c}),
    "count": lambda c: PBP(GRAPH).count({**DATA, "x1": c}),
    "mini-batches": lambda c: PBP(GRAPH).fit([{**DATA, "x1": c}] * 2),
    "mini-batches of tuples": lambda c: PBP(GRAPH).fit([(c, DATA["x2"], DATA["x3"])] * 2),
    "continuous": lambda c: PBP(MIXED_GRAPH).fit({**MIXED_DATA, "y": c}),
    "KernelPBP": lambda c: KernelPBP(MIXED_GRAPH).fit({**MIXED_DATA, "y": c}),
    "complete_table": lambda c: complete_table(
        {**MIXED_DATA, "y": c}, {v: MIXED_GRAPH.variables[v] for v in MIXED_GRAPH.observed}
    ),
    "evidence": lambda c: MODEL.posterior("x2", {"x1": c}),
    "log_evidence": lambda c: MODEL.log_evidence({"x1": c}),
    "continuous evidence": lambda c: MIXED.posterior("x", {"y": c}),
    "Evidence": lambda c: MODEL.posterior("x2", Evidence(ROWS, {"x1": c})),
    "continuous Evidence": lambda c: MIXED.posterior("x", Evidence(ROWS, real={"y": c})),
    "layer": lambda c: LAYER({"x1": c}),
    "continuous layer": lambda c: PBPLayer(MIXED)({"y": c}),
    "classes": lambda c: GenerativeClassifier(GRAPH, KernelPBP).fit(TABLE, c),
}

TABLES: dict[str, Callable[[Any], Any]] = {
    "fit": lambda t: PBP(GRAPH).fit(t),
    "count": lambda t: PBP(GRAPH).count(t),
    "mini-batches": lambda t: PBP(GRAPH).fit([t, t]),
    "classifier": lambda t: GenerativeClassifier(GRAPH, KernelPBP).fit(t, CLASSES),
    "prediction": lambda t: GenerativeClassifier(GRAPH, KernelPBP).fit(TABLE, CLASSES).predict(t),
}

WEIGHTS: dict[str, Callable[[Any], Any]] = {
    "posterior": lambda w: MODEL.posterior("x2", {"x1": w}),
    "log_evidence": lambda w: MODEL.log_evidence({"x1": w}),
    "Evidence": lambda w: MODEL.posterior("x2", Evidence(ROWS, soft={"x1": w})),
    "layer": lambda w: LAYER({"x1": w})["x2"],
}


@pytest.mark.parametrize("kind", REJECTED)
@pytest.mark.parametrize("entry", COLUMNS)
def test_columns_that_cannot_be_computed_with_raise(entry: str, kind: str) -> None:
    make, text = REJECTED[kind]
    with pytest.raises(
        (DataError, DeviceError), match=f"expected a tensor (of real numbers, {text}|on the device.*'meta')"
    ):
        COLUMNS[entry](make(DATA["x1"]))


@pytest.mark.parametrize("kind", REJECTED)
@pytest.mark.parametrize("entry", TABLES)
def test_tables_that_cannot_be_computed_with_raise(entry: str, kind: str) -> None:
    make, text = REJECTED[kind]
    with pytest.raises(
        (DataError, DeviceError), match=f"expected a tensor (of real numbers, {text}|on the device.*'meta')"
    ):
        TABLES[entry](make(TABLE))


@pytest.mark.parametrize("kind", REJECTED)
@pytest.mark.parametrize("entry", WEIGHTS)
def test_weights_that_cannot_be_computed_with_raise(entry: str, kind: str) -> None:
    make, text = REJECTED[kind]
    with pytest.raises(
        (DataError, DeviceError), match=f"expected a tensor (of real numbers, {text}|on the device.*'meta')"
    ):
        WEIGHTS[entry](make(torch.ones(ROWS, 2, dtype=torch.int64)))


@pytest.mark.parametrize("kind", ACCEPTED)
def test_sparse_and_float8_tensors_are_read(kind: str) -> None:
    make = ACCEPTED[kind]
    states, values, weights = DATA["x1"], (4 * MIXED_DATA["y"]).round() / 4, torch.rand(ROWS, 2).round() + 1.0
    expected = PBP(GRAPH).fit(TABLE).posterior("x1")
    assert torch.equal(PBP(GRAPH).fit(make(TABLE.float())).posterior("x1"), expected)
    assert torch.equal(MODEL.posterior("x2", {"x1": make(states.float())}), MODEL.posterior("x2", {"x1": states}))
    assert torch.equal(MIXED.posterior("x", {"y": make(values)}), MIXED.posterior("x", {"y": values}))
    assert torch.equal(MODEL.posterior("x2", {"x1": make(weights)}), MODEL.posterior("x2", {"x1": weights}))
    assert torch.equal(LAYER({"x1": make(weights)})["x2"], LAYER({"x1": weights})["x2"])
    fitted = PBP(MIXED_GRAPH).fit({**MIXED_DATA, "y": make(values)})
    assert torch.equal(fitted.posterior("x"), PBP(MIXED_GRAPH).fit({**MIXED_DATA, "y": values}).posterior("x"))


def test_a_layer_on_the_meta_device_takes_meta_tensors() -> None:
    layer = PBPLayer(PBP(GRAPH).fit(DATA)).to("meta")
    assert layer({"x1": torch.zeros(5, dtype=torch.int64, device="meta")})["x2"].shape == (5, 2)


RAGGED: dict[str, Any] = {
    "rows": [[0]] * (ROWS - 1) + [[0, 1]],
    "one row": [0] * (ROWS - 1) + [[1, 2]],
    "tensors": [torch.zeros(2)] * (ROWS - 1) + [torch.zeros(3)],
    "meta tensors": [torch.tensor(1, device="meta")] * ROWS,
    "float8 tensors and numbers": [torch.tensor(1.0).to(torch.float8_e5m2), 1] * (ROWS // 2),
}


LISTS = [e for e in COLUMNS if "Evidence" not in e and "tuples" not in e and e != "complete_table" and "layer" not in e]


@pytest.mark.parametrize("kind", RAGGED)
@pytest.mark.parametrize("entry", LISTS)
def test_lists_that_make_no_array_raise(entry: str, kind: str) -> None:
    with pytest.raises((DataError, ShapeError), match=r"(column|Evidence|y).*(: expected|tensors of different shapes)"):
        COLUMNS[entry](RAGGED[kind])


def test_layers_and_completion_take_tensors_only() -> None:
    for entry in ("layer", "continuous layer", "complete_table"):
        with pytest.raises(DataError, match=r"tensors? of states.* got list"):
            COLUMNS[entry]([0] * ROWS)


LARGE: dict[str, Any] = {
    "list": [1, 10**400] * (ROWS // 2),
    "objects": np.array([1, 10**5000] * (ROWS // 2), dtype=object),
    "negative": [-(10**400)] * ROWS,
    "fractions": [Fraction(10**400, 3)] * ROWS,
}


@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize("entry", LISTS)
def test_integers_beyond_float_range_raise(entry: str, kind: str) -> None:
    text = r"Unknown label type" if entry == "classes" else r"(column|Evidence).* row [01]: expected a"
    with pytest.raises(DataError, match=text):
        COLUMNS[entry](LARGE[kind])


def test_weights_and_points_beyond_float_range_raise() -> None:
    with pytest.raises(DataError, match=r"row 0: expected a whole number from 0 to 1, got 1e\+400"):
        MODEL.posterior("x2", {"x1": [[10**400, 1]]})
    with pytest.raises(QueryError, match="expected numbers as points to evaluate at, got"):
        MIXED.posterior("y", {"x": 0}, at=[10**400])
    with pytest.raises(QueryError, match="expected numbers as points to evaluate at, got"):
        MIXED.posterior("y", {"x": 0}, at=torch.zeros(3, device="meta"))


@pytest.mark.parametrize("scale", [1e307, 8e307, 1e155])
@pytest.mark.parametrize(
    "make",
    [
        lambda: PBP(MIXED_GRAPH),
        lambda: PBP(MIXED_GRAPH, features=Nystroem(kernel=Laplace(), landmarks="grid")),
        lambda: PBP(MIXED_GRAPH, features=RandomFourier(10)),
        lambda: PBP(MIXED_GRAPH, features=RandomFourier(10, Matern(1.5))),
        lambda: KernelPBP(MIXED_GRAPH),
    ],
    ids=["Nystroem", "grid", "RandomFourier", "Matern", "KernelPBP"],
)
def test_values_whose_squares_overflow_raise(make: Callable[[], Any], scale: float) -> None:
    for column in (torch.linspace(-scale, scale, ROWS, dtype=torch.float64), np.linspace(-scale, scale, ROWS)):
        with pytest.raises(DataError, match=r"column 'y', row 0: value .* is too large: its square"):
            make().fit({**MIXED_DATA, "y": column})


@pytest.mark.parametrize("features", [Nystroem(), RandomFourier(10)], ids=["Nystroem", "RandomFourier"])
def test_values_whose_squares_just_fit_are_learned_from(features: Any) -> None:
    scaled = PBP(MIXED_GRAPH, features=features).fit({**MIXED_DATA, "y": MIXED_DATA["y"] * 1e149})
    posterior = scaled.posterior("x", {"y": MIXED_DATA["y"] * 1e149})
    assert posterior.isfinite().all()
    assert scaled.posterior("y", {"x": [0]}).mean.isfinite().all()
    huge = scaled.posterior("x", {"y": [1e307, -1.7e308]})
    torch.testing.assert_close(huge.sum(dim=1), torch.ones(2, dtype=torch.float64))


def test_huge_evidence_on_a_kernel_model() -> None:
    model = KernelPBP(MIXED_GRAPH).fit({**MIXED_DATA, "y": MIXED_DATA["y"] * 1e149})
    assert model.posterior("x", {"y": [1e307, -1.7e308]}).isfinite().all()


def test_settings_beyond_float_range_raise() -> None:
    with pytest.raises(ArgumentError, match=r"size: .* got 1e\+400"):
        Nystroem(10**400)
    with pytest.raises(ArgumentError, match="seed: expected a whole number of at least 0, got 1e"):
        complete_table(MIXED_DATA, {"x": 2}, seed=10**400)
    with pytest.raises(ArgumentError, match=r"seed: .* got 1e\+400, which is beyond"):
        PBPLayer(PBP(GRAPH)).initialise(seed=10**400)
    with pytest.raises(ArgumentError, match=r"scale: .* got 1e\+400, which is beyond"):
        PBPLayer(PBP(GRAPH)).initialise(scale=10**400)
    with pytest.raises(ArgumentError, match=r"n: .* got 1e\+400, which is beyond"):
        MODEL.sample(10**400)
    with pytest.raises(StructureError, match=r"Variable 'x': expected a number of states .* got 1e\+400"):
        LatentGraph([], {"x": 10**400})
    with pytest.raises(ArgumentError, match=r"ridge: .* got"):
        PBP(GRAPH, ridge=(10**400, 1))


@pytest.mark.parametrize(
    ("evidence", "error", "text"),
    [
        (Evidence(ROWS, {"x1": [0] * ROWS}), DataError, "'x1': expected a tensor of states"),  # type: ignore[dict-item]
        (Evidence(2, soft={"x1": torch.ones(2)}), ShapeError, r"'x1': expected shape \(batch, 2\), got \(2,\)"),
        (Evidence("a"), ArgumentError, "Evidence: batch: expected a whole number of at least 0, got 'a'"),  # type: ignore[arg-type]
    ],
)
def test_evidence_made_by_hand_is_checked(evidence: Evidence, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        MODEL.posterior("x2", evidence)
