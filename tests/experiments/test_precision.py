"""The precision experiment: what is measured, and what is written."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from torchpbp import EM, PBP, MaximumLikelihood, templates
from torchpbp.errors import ArgumentError
from torchpbp.experiments import run_precision

GRAPHS = {"classes": templates.naive_bayes(4, states=2), "factorial": templates.factorial_hmm(2, observed_states=3)}
LEARNER = partial(MaximumLikelihood, progress=False)
OTHERS = {"EM": partial(EM, restarts=2, prior=1.0, progress=False), "PBP": PBP}


def test_all_measures_are_written(tmp_path: Path) -> None:
    metrics = run_precision(
        LEARNER, GRAPHS, OTHERS, sizes=[300], repeats=2, test_rows=100, output_dir=tmp_path, verbose=False
    )
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert len(table) == 2 * 3 * 2
    lines = table[(table["graph"] == "classes") & (table["learner"] == "likelihood")]
    assert metrics["kl/classes/likelihood/300"] == pytest.approx(lines["kl"].mean())
    assert metrics["kl_ratio/classes/EM/300"] == pytest.approx(
        float(metrics["kl/classes/likelihood/300"]) / float(metrics["kl/classes/EM/300"])  # type: ignore[arg-type]
    )
    assert lines["agreement"].between(0.5, 1.0).all()
    assert table.loc[table["learner"] == "PBP", "agreement"].isna().all()  # knows nothing of hidden states
    assert table.loc[table["graph"] == "factorial", "agreement"].isna().all()  # no three views
    assert (table["cpu_seconds"] > 0).all()
    assert (tmp_path / "precision.png").exists()
    with pytest.raises(ArgumentError, match="'likelihood' is the name of the main learner"):
        run_precision(LEARNER, GRAPHS, {"likelihood": PBP})
