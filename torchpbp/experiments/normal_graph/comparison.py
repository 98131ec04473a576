"""Which rule does better, by how much and how often."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from torchpbp.baselines.normal_graph import RULES
from torchpbp.experiments.results import Metrics, Picture, Result, means_and_errors, metrics_of

TIE = 1e-9
"""Values that differ by no more than this share count as equal."""


def compare_rules(
    lines: Sequence[Mapping[str, Any]], measures: Sequence[str], main: tuple[str, str], pictures: Mapping[str, Picture]
) -> Result:
    """Compare each rule with the next, repeat by repeat.

    Args:
        lines: columns case, repeat, rule and the measures; a measure may be absent from some cases.
        measures: to compare; larger is better.
        main: measure and case to show first.
        pictures: by name.

    Returns:
        Metrics "<measure>/<case>/<rule>" and "<measure>_standard_error/…"; "<measure>_holds/<case>/ml>=kl" and so on (number
        of repeats, of "repeats/<case>"), and "<measure>_gain/…" (mean difference within a repeat) with its standard error.
    """
    table = pd.DataFrame(lines)
    metrics: Metrics = {}
    texts = []
    for measure in [m for m in measures if m in table]:
        measured = table.dropna(subset=[measure])
        means = means_and_errors(measured, ("case", "rule"), [measure])
        gains = gains_of(measured, measure)
        metrics |= metrics_of(means, ("case", "rule")) | metrics_of(gains.drop(columns="repeats"), ("case", "pair"))
        texts += [measure, described(means, gains, measure)]
    repeats = table[table["rule"].isin(RULES)].groupby("case", sort=False)["repeat"].nunique()
    metrics |= {f"repeats/{case}": int(number) for case, number in repeats.items()}
    shown = ["/".join([*main, rule]) for rule in RULES]
    return Result(metrics, table, "\n".join(texts), shown, pictures)


def gains_of(table: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Columns case, pair ("ml>=kl"), repeats, <measure>_holds, <measure>_gain and <measure>_gain_standard_error.

    Args:
        table: columns case, repeat, rule and the measure.
        measure: to compare.
    """
    wide = table.pivot(index=["case", "repeat"], columns="rule", values=measure)
    parts = []
    for better, worse in itertools.pairwise([rule for rule in RULES if rule in wide]):
        both = wide[[better, worse]].dropna()
        gain = both[better] - both[worse]
        columns = {f"{measure}_holds": gain >= -TIE * both[worse].abs(), f"{measure}_gain": gain}
        parts.append(pd.DataFrame(columns).reset_index().assign(pair=f"{better}>={worse}"))
    pairs, by = pd.concat(parts), ["case", "pair"]
    groups = pairs.groupby(by, sort=False)[f"{measure}_holds"]
    held = groups.agg(["size", "sum"]).set_axis(["repeats", f"{measure}_holds"], axis=1).reset_index()
    return held.merge(means_and_errors(pairs, by, [f"{measure}_gain"]), on=by)


def described(means: pd.DataFrame, gains: pd.DataFrame, measure: str) -> str:
    """A line for each case: mean ± standard error of each rule; repeats in which a rule is no worse than the next, and the gain.

    Args:
        means: columns case, rule, <measure> and <measure>_standard_error.
        gains: of :func:`gains_of`.
        measure: its name.
    """
    rules = means.assign(cell=cells(means, measure, "{:.1f}"), column=means["rule"])
    held = gains[f"{measure}_holds"].astype(str) + "/" + gains["repeats"].astype(str)
    pairs = gains.assign(cell=held + " (" + cells(gains, f"{measure}_gain", "{:+.2f}") + ")", column=gains["pair"])
    both = pd.concat([rules, pairs])
    wide = both.pivot(index="case", columns="column", values="cell")[list(dict.fromkeys(both["column"]))]
    return wide.loc[list(dict.fromkeys(both["case"]))].rename_axis(index=None, columns=None).to_string(na_rep="-")


def cells(table: pd.DataFrame, column: str, style: str) -> pd.Series[str]:
    """Means with their standard errors, as text."""
    errors = ("" if error != error else f" ± {error:.2g}" for error in table[f"{column}_standard_error"])
    return pd.Series(
        [style.format(mean) + error for mean, error in zip(table[column], errors, strict=True)], table.index
    )
