"""One table of all entry points that read columns: the same values in every form, and the same errors, at each of them."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from torchpbp import (
    EM,
    PBP,
    GenerativeClassifier,
    KernelPBP,
    MaximumLikelihood,
    PBPModule,
    TableLoader,
    templates,
)
from torchpbp.__main__ import main
from torchpbp.errors import DataError, ShapeError, TorchPBPError, TorchPBPWarning
from torchpbp.features import complete_table
from torchpbp.inputs.arrays import unmasked
from torchpbp.inputs.columns import read_column
from torchpbp.neural.batches import read_batch

GRAPH = templates.naive_bayes(3, 2, 2)
CODES = [0, 1, -1, 1, 0, 1, 0, 0, 1, 1] * 4
GAPS = np.array(CODES) < 0
PLAIN = np.where(GAPS, 1, CODES)
Y = np.tile([0, 1, 1, 1, 0, 1, 0, 0, 1, 1], 4)
OTHERS = {"x2": torch.from_numpy(Y), "x3": torch.from_numpy(np.roll(Y, 1))}
QUICK: dict[str, Any] = {"progress": False, "max_steps": 5}
WORDS = np.array(["no", "yes"], dtype=object)


def words(missing: Any = None) -> np.ndarray:
    column = WORDS[PLAIN]
    column[GAPS] = missing
    return column


NUMBERS: dict[str, Any] = {
    "-1": np.array(CODES),
    "None": [None if c < 0 else c for c in CODES],
    "NaN": np.where(GAPS, math.nan, PLAIN),
    "NA": pd.Series([pd.NA if c < 0 else c for c in CODES], dtype="Int64"),
    "NaT": [pd.NaT if c < 0 else c for c in CODES],
    "masked integers": np.ma.array(PLAIN, mask=GAPS),
    "masked floats": np.ma.array(PLAIN.astype(float), mask=GAPS),
    "masked booleans": np.ma.array(PLAIN == 1, mask=GAPS),
    "booleans": pd.Series([pd.NA if c < 0 else c == 1 for c in CODES], dtype="boolean"),
    "Series": pd.Series(CODES, index=[f"r{i}" for i in range(40)]),
}
LABELS: dict[str, Any] = {
    "None": list(words()),
    "NaN": words(math.nan),
    "NA": pd.Series(words(pd.NA), dtype="string"),
    "categories": pd.Categorical(words()),
    "Series of categories": pd.Series(pd.Categorical(words(), categories=["yes", "no"])).cat.reorder_categories(
        ["no", "yes"]
    ),
    "masked strings": np.ma.array(WORDS[PLAIN].astype(str), mask=GAPS),
}
Answer = Callable[[Any], Any]


def table(column: Any) -> dict[str, Any]:
    return {"x1": column, **OTHERS}


def fitted(labels: bool) -> PBP:
    model = PBP(GRAPH).fit({v: torch.from_numpy(np.roll(Y, i)) for i, v in enumerate(GRAPH.observed)})
    model.labels = {"x1": ("no", "yes")} if labels else {}
    return model


def posterior_after(learner: Callable[..., Any], **options: Any) -> Answer:
    return lambda column: learner(GRAPH, **options).fit(table(column)).posterior("x2", {"x3": [0, 1]})


def classified(column: Any) -> Any:
    """Answers of a classifier about the rows it is fitted to."""
    values = (
        pd.Series(unmasked(column)) if isinstance(column, np.ma.MaskedArray) else column
    )  # a DataFrame has no masks
    frame = pd.DataFrame({"x1": values.array if isinstance(values, pd.Series) else list(values)})
    frame = frame.assign(**{v: x.numpy() for v, x in OTHERS.items()})
    return GenerativeClassifier(GRAPH, EM, {**QUICK, "restarts": 1}).fit(frame, Y).predict_proba(frame)


def loaded(column: Any) -> torch.Tensor:
    (batch,) = TableLoader({"x1": column}, 40, shuffle=False)
    return batch["x1"].double().nan_to_num(-1.0)


def solved(column: Any) -> torch.Tensor:
    model = PBP(GRAPH)
    module = PBPModule(model, hidden=[4])
    module.solve(TableLoader(table(column), 40, shuffle=False))
    return model.posterior("x2", {"x3": [0, 1]})


FITTING: dict[str, Answer] = {
    "PBP.fit": posterior_after(PBP),
    "EM.fit": posterior_after(EM, restarts=1, **QUICK),
    "MaximumLikelihood.fit": posterior_after(MaximumLikelihood, **QUICK),
    "KernelPBP.fit": posterior_after(KernelPBP),
    "PBP.count": lambda column: PBP(GRAPH).count(table(column)).tables.counts,
    "TableLoader": loaded,
    "PBPModule": solved,
    "classifier.fit": classified,
}
"""Entry points that learn from a column: from numbers and from labels."""
ASKING: dict[str, Callable[[PBP, Any], Any]] = {
    "posterior": lambda model, column: model.posterior("x2", {"x1": column}),
    "posteriors": lambda model, column: model.posteriors({"x1": column, "x3": OTHERS["x3"]})["x2"],
    "log_evidence": lambda model, column: model.log_evidence(table(column)),
    "score": lambda model, column: torch.tensor(model.score(table(column))),
    "batch": lambda model, column: read_batch(table(column), model, "cpu")["x1"],
    "read_column": lambda model, column: read_column("x1", column, 2, model.labels.get("x1")),
}
"""Entry points of a model that has been fitted."""


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", TorchPBPWarning)
        yield


@pytest.mark.parametrize("entry", FITTING)
def test_learning_from_numbers_and_labels_in_every_form(entry: str) -> None:
    learn = FITTING[entry]
    expected = torch.as_tensor(learn(NUMBERS["-1"]))
    for kind, forms in {"numbers": NUMBERS, "labels": LABELS}.items():
        for form, column in forms.items():
            found = torch.as_tensor(learn(column))
            torch.testing.assert_close(found, expected, equal_nan=True, msg=f"{entry}, {kind}, {form}")


@pytest.mark.parametrize("entry", ASKING)
def test_asking_by_numbers_and_labels_in_every_form(entry: str) -> None:
    plain, labelled = fitted(False), fitted(True)
    expected = ASKING[entry](plain, torch.tensor(CODES))
    for form, column in NUMBERS.items():
        torch.testing.assert_close(ASKING[entry](plain, column), expected, msg=f"{entry}, {form}")
    for form, column in LABELS.items():
        torch.testing.assert_close(ASKING[entry](labelled, column), expected, msg=f"{entry}, {form}")


@pytest.mark.parametrize("entry", [*(f"fit: {v}" for v in FITTING if v != "TableLoader"), *ASKING])
@pytest.mark.parametrize(
    ("column", "text"),
    [
        (np.where(np.arange(40) == 3, 2, PLAIN), "x1.*row 3: state 2 is out of range; expected 0 to 1"),
        (np.where(np.arange(40) == 3, 0.5, PLAIN), r"x1.*row 3: expected a whole number from 0 to 1, got 0.5"),
        ([1j] * 40, "x1.*complex"),
    ],
)
def test_mistakes_have_one_text(entry: str, column: Any, text: str) -> None:
    asks = {
        **{f"fit: {v}": learn for v, learn in FITTING.items()},
        **{v: partial(a, fitted(False)) for v, a in ASKING.items()},
    }
    with pytest.raises(DataError, match=text):
        asks[entry](column)


@pytest.mark.parametrize("entry", ASKING)
def test_unseen_labels_are_named(entry: str) -> None:
    column = words()
    column[5] = "perhaps"
    for form in (list(column), pd.Series(column), pd.Categorical(column)):
        with pytest.raises(
            DataError, match=r"x1.*(row 5: unseen category 'perhaps'|categories .* differ from the known)"
        ):
            ASKING[entry](fitted(True), form)


TABLES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "PBP.fit": lambda frame: PBP(GRAPH).fit(frame),
    "EM.fit": lambda frame: EM(GRAPH, restarts=1, **QUICK).fit(frame),
    "MaximumLikelihood.fit": lambda frame: MaximumLikelihood(GRAPH, **QUICK).fit(frame),
    "KernelPBP.fit": lambda frame: KernelPBP(GRAPH).fit(frame),
    "PBP.count": lambda frame: PBP(GRAPH).count(frame),
    "posterior": lambda frame: fitted(False).posterior("x2", frame),
    "log_evidence": lambda frame: fitted(False).log_evidence(frame),
    "classifier.fit": lambda frame: GenerativeClassifier(GRAPH, PBP).fit(frame, Y),
    "classifier.predict": lambda frame: GenerativeClassifier(GRAPH, PBP).fit(frame.iloc[:, 1:], Y).predict(frame),
    "complete_table": lambda frame: complete_table(frame, dict.fromkeys(GRAPH.observed, 2)),
    "TableLoader": lambda frame: TableLoader(frame, 10),
}


@pytest.mark.parametrize("entry", TABLES)
def test_two_columns_of_one_name_raise(entry: str) -> None:
    frame = pd.DataFrame(np.stack([Y, Y, np.roll(Y, 1), np.roll(Y, 2)], axis=1), columns=["x1", "x1", "x2", "x3"])
    with pytest.raises(DataError, match=r"columns \['x1'\] occur more than once"):
        TABLES[entry](frame)


ALIGNED: dict[str, Callable[[dict[str, pd.Series]], Any]] = {
    "classifier.fit": lambda columns: GenerativeClassifier(GRAPH, PBP).fit(
        pd.DataFrame({**columns, "x2": PLAIN}), columns["x2"]
    ),
    "TableLoader": lambda columns: TableLoader(columns, 10),
    "PBPModule": lambda columns: TableLoader(columns, 10),
    "PBP.count": lambda columns: PBP(GRAPH).count(columns),
    "KernelPBP.fit": lambda columns: KernelPBP(GRAPH).fit(columns),
    "MaximumLikelihood.fit": lambda columns: MaximumLikelihood(GRAPH, **QUICK).fit(columns),
    "EM.fit": lambda columns: EM(GRAPH, restarts=1, **QUICK).fit(columns),
    "PBP.fit": lambda columns: PBP(GRAPH).fit(columns),
    "batch": lambda columns: read_batch(columns, fitted(False), "cpu"),
    "score": lambda columns: fitted(False).score(columns),
    "posterior": lambda columns: fitted(False).posterior("x1", {v: columns[v] for v in ("x2", "x3")}),
    "posteriors": lambda columns: fitted(False).posteriors(columns),
    "log_evidence": lambda columns: fitted(False).log_evidence(columns),
}


@pytest.mark.parametrize("entry", ALIGNED)
def test_series_in_another_order_raise(entry: str) -> None:
    column = pd.Series(PLAIN)
    with pytest.raises(DataError, match=r"its index has rows of '.*' in other places"):
        ALIGNED[entry]({"x1": column, "x2": column[::-1], "x3": column})


# -- targets and weights ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "y",
    [
        np.ma.array(Y, mask=np.arange(40) == 4),
        np.ma.array(WORDS[Y].astype(str), mask=np.arange(40) == 4),
        np.where(np.arange(40) == 4, math.nan, Y),
        [None if i == 4 else WORDS[c] for i, c in enumerate(Y)],
        pd.Series([pd.NA if i == 4 else c for i, c in enumerate(Y)], dtype="Int64"),
    ],
)
def test_classes_that_are_missing_raise(y: Any) -> None:
    with pytest.raises(DataError, match="y, row 4: expected a class, got"):
        GenerativeClassifier(GRAPH, PBP).fit(np.stack([Y, Y, Y], axis=1), y)


def learned(learner: Any, weights: Any, data: Any = None) -> torch.Tensor:
    model = learner(GRAPH, **({**QUICK, "restarts": 1} if learner is EM else QUICK))
    return model.fit(table(torch.from_numpy(PLAIN)) if data is None else data, weights=weights).posterior(
        "x1", {"x2": [0, 1]}
    )


@pytest.mark.parametrize("learner", [EM, MaximumLikelihood])
def test_weights_by_mask_and_by_index(learner: Any) -> None:
    weights = np.arange(1.0, 41.0)
    frame = pd.DataFrame({"x1": PLAIN, **{v: x.numpy() for v, x in OTHERS.items()}}, index=[f"r{i}" for i in range(40)])
    expected = learned(learner, weights)
    series = pd.Series(weights, index=frame.index)
    columns = {v: frame[v] for v in frame}
    for form, data in ((series, frame), (series[::-1], frame), (series[::-1], columns), (pd.Series(weights), None)):
        torch.testing.assert_close(learned(learner, form, data), expected)
    torch.testing.assert_close(learned(learner, np.ma.array(weights)), expected)
    for other in (pd.Series(weights), series[1:], series.rename({"r3": "r99"}), pd.concat([series, series[:1]])):
        with pytest.raises(DataError, match="weights: expected a Series with the index of the data"):
            learned(learner, other, frame)
    for missing in (
        np.ma.array(weights, mask=weights == 6),
        [None if w == 6 else w for w in weights],
        series.where(series != 6),
    ):
        with pytest.raises(DataError, match="weights, row 5: expected a finite non-negative number, got nan"):
            learned(learner, missing, frame)


# -- booleans --------------------------------------------------------------------------------------------------------


def boolean_frame(dtype: str = "bool") -> pd.DataFrame:
    return pd.DataFrame({v: pd.Series(np.roll(Y, i) == 1, dtype=dtype) for i, v in enumerate(GRAPH.observed)})


@pytest.mark.parametrize("dtype", ["bool", "boolean", "object"])
@pytest.mark.parametrize("learner", [PBP, KernelPBP, EM, MaximumLikelihood])
def test_boolean_columns_come_back_as_booleans(learner: Any, dtype: str) -> None:
    options = {} if learner in (PBP, KernelPBP) else QUICK
    frame = boolean_frame(dtype)
    model, numbered = (learner(GRAPH, **options).fit(data) for data in (frame, frame.astype(int)))
    answer = model.posterior("x1", frame[["x2"]])
    assert answer.columns.tolist() == [False, True]
    assert all(isinstance(label, bool) for label in answer.columns)
    assert np.allclose(answer, numbered.posterior("x1", frame[["x2"]].astype(int)))
    assert np.allclose(answer, model.posterior("x1", frame[["x2"]].astype(int)))
    assert model.map_states("x1", frame[["x2"]]).dtype == bool
    if hasattr(model, "sample_frame"):
        drawn = model.sample_frame(20, seed=0)
        assert {str(dtype) for dtype in drawn.dtypes} == {"bool"}
        learner(GRAPH, **options).fit(drawn)


def test_boolean_columns_are_states_of_variables_with_more_of_them() -> None:
    model = PBP(templates.naive_bayes(3, 2, 3)).fit(boolean_frame())
    assert model.labels == {}
    assert model.posterior("x1").shape == (1, 3)


def test_counts_of_booleans_and_of_numbers_merge() -> None:
    model, frame = PBP(GRAPH), boolean_frame()
    counts = model.count(frame).merge(model.count(frame.astype(int)))
    assert counts.rows == 80
    assert model.fit_counts(counts).labels == dict.fromkeys(GRAPH.observed, (False, True))


def test_tables_are_completed_in_the_form_of_their_columns() -> None:
    frame = boolean_frame("object").assign(x2=words(), x3=pd.Categorical(words()))
    frame.loc[[3, 8], "x1"] = None
    full = complete_table(frame, dict.fromkeys(GRAPH.observed, 2))
    assert full["x1"].dtype == bool
    assert set(full["x2"]) == {"no", "yes"}
    assert full["x3"].cat.categories.tolist() == ["no", "yes"]
    assert not full.isna().any(axis=None)
    for v in frame:
        assert full.loc[frame[v].notna(), v].tolist() == frame[v].dropna().tolist()
    twice = complete_table(frame.set_axis([7] * len(frame)), dict.fromkeys(GRAPH.observed, 2))
    pd.testing.assert_frame_equal(twice.reset_index(drop=True), full)
    tensors = complete_table({"x1": torch.from_numpy(Y == 1), "x2": torch.tensor(CODES)}, {"x1": 2, "x2": 2})
    assert tensors["x1"].dtype == torch.bool


# -- command line ----------------------------------------------------------------------------------------------------


def test_the_command_line_reads_booleans_labels_and_missing_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = boolean_frame().assign(x2=WORDS[Y])
    model = PBP(GRAPH).fit(frame)
    model.save(tmp_path / "model.pt")
    answers = []
    for value in ("True", "1"):
        given = ["--evidence", f"x1={value}", "x2=yes", "--target", "x3", "--json"]
        assert main(["query", str(tmp_path / "model.pt"), *given]) == 0
        answers.append(json.loads(capsys.readouterr().out)["posteriors"]["x3"])
    assert answers[0] == answers[1]
    assert list(answers[0]) == ["False", "True"]
    classifier = GenerativeClassifier(GRAPH, PBP).fit(frame, Y)
    classifier.save(tmp_path / "classifier.pt")
    gaps = frame.astype(object).mask(np.stack([GAPS] * 3, axis=1))
    gaps.to_csv(tmp_path / "rows.csv", index=False)
    assert main(["predict", str(tmp_path / "classifier.pt"), str(tmp_path / "rows.csv"), "--json"]) == 0
    found = [line["predicted"] for line in json.loads(capsys.readouterr().out)]
    assert found == classifier.predict(gaps).tolist()


@pytest.mark.parametrize("entry", ["PBP.fit", "posterior", "TableLoader", "classifier.fit"])
def test_columns_of_other_lengths_raise(entry: str) -> None:
    short = {"x1": PLAIN[:7], "x2": PLAIN, "x3": PLAIN}
    asks: dict[str, Callable[[], Any]] = {
        "PBP.fit": lambda: PBP(GRAPH).fit(short),
        "posterior": lambda: fitted(False).posterior("x3", {"x1": PLAIN[:7], "x2": PLAIN}),
        "TableLoader": lambda: TableLoader(short, 4),
        "classifier.fit": lambda: GenerativeClassifier(GRAPH, PBP).fit(np.stack([Y] * 3, axis=1), Y[:7]),
    }
    with pytest.raises((ShapeError, TorchPBPError), match=r"length|rows"):
        asks[entry]()
