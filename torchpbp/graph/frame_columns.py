"""Domains and labels of the columns of a DataFrame, for :meth:`torchpbp.LatentGraph.from_frame`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torchpbp.errors import DataError, DataWarning, StructureError, warn_caller
from torchpbp.graph.domains import Continuous, Domain, checked_edges, checked_variables
from torchpbp.lazy import is_frame
from torchpbp.lazy import pandas as pd
from torchpbp.settings import shortened, whole

Column = tuple[Domain, tuple[Any, ...]]
"""Number of states or range, and labels of the states; no labels for the states 0, 1, 2, …"""

WHOLE, REAL = {"integer", "mixed-integer-float", "floating"}, {"mixed-integer-float", "floating"}


def read_frame(
    frame: Any,
    edges: Iterable[tuple[str, str]] | None,
    latent: Mapping[str, int | None] | Iterable[str],
    variables: Mapping[str, Domain] | None,
    max_states: int,
) -> tuple[list[tuple[str, str]], dict[str, Domain], list[str], dict[str, tuple[Any, ...]]]:
    """Edges, variables, latents and labels of the graph over the columns of a table; see ``LatentGraph.from_frame``."""
    if not is_frame(frame):
        raise DataError(f"from_frame: expected a pandas DataFrame, got {type(frame).__name__}. Pass DataFrame(rows).")
    whole(2).check("max_states", max_states)
    columns = list(frame.columns)
    if isinstance(latent, str):
        raise StructureError(f"latent: expected {{name: states}}, got the string '{latent}'. Write {{'{latent}': 3}}.")
    hidden = dict(latent) if isinstance(latent, Mapping) else dict.fromkeys(latent)
    taken = [v for v in hidden if v in columns]
    if taken:
        raise StructureError(
            f"latent: {taken} are columns of the table, so they are observed. Drop them from it, or rename the latents."
        )
    declared = dict(variables or {})
    if edges is None:
        if len(hidden) != 1:
            raise StructureError(
                f"from_frame: expected edges, or one latent whose children all columns are, got latent={hidden} without edges."
            )
        (parent,) = hidden
        pairs = [(parent, v) for v in columns]
        used = columns
    else:
        pairs = list(edges)
        names = [v for edge in pairs if isinstance(edge, tuple | list) for v in edge]
        used = [v for v in columns if v in names]
        unknown = sorted({str(v) for v in names if v not in hidden and v not in columns})
        if unknown:
            raise StructureError(
                f"edges: {unknown} are neither columns of the table nor latents. Columns: {shortened(columns, 300)}; "
                f"latents: {list(hidden)}. Hidden variables are named in latent={{name: states}}."
            )
    unknown_variables = [v for v in declared if v not in used]
    if unknown_variables:
        raise StructureError(
            f"variables: {unknown_variables} are not among the columns of the graph: {shortened(used, 300)}."
        )
    odd = [v for v in used if not isinstance(v, str)]
    if odd:
        raise DataError(f"Columns {odd[:8]}: expected names that are strings. Use df.rename(columns=str).")
    if not used or not len(frame):
        raise DataError(f"from_frame: expected rows and columns, got {len(frame)} rows of {len(used)} columns.")
    if not frame.columns.is_unique:
        raise DataError(f"Columns {columns_twice(columns)} occur more than once. Rename or drop them.")
    columns_read: dict[str, Column] = {v: read_column(v, frame[v], declared.get(v), max_states) for v in used}
    domains = checked_variables({**hidden, **{v: domain for v, (domain, _) in columns_read.items()}})
    labels = {v: labels for v, (_, labels) in columns_read.items() if labels}
    return list(checked_edges(pairs, domains, True)), domains, list(hidden), labels


def columns_twice(columns: Collection[Any]) -> list[Any]:
    """Names that occur more than once."""
    seen: set[Any] = set()
    return sorted({v for v in columns if v in seen or seen.add(v)})  # type: ignore[func-returns-value]


def read_column(name: str, column: pd.Series[Any], given: Domain, max_states: int) -> Column:
    """Number of states or range of a column, and its labels.

    Args:
        name: name of the column.
        column: values of the column.
        given: declared domain; None to infer it from the values.
        max_states: largest number of distinct values of a column without category dtype.

    Raises:
        DataError: no values, a single value, too many, or values that are neither labels nor numbers.
    """
    if isinstance(given, Continuous):
        return given, ()
    present = column.dropna()
    if not len(present):
        raise DataError(f"Column '{name}': all {len(column)} values are missing. Leave it out, or make it a latent.")
    if isinstance(column.dtype, pd.CategoricalDtype):
        return _counted(name, list(column.dtype.categories), given)
    kind = pd.api.types.infer_dtype(present)
    values = present.drop_duplicates().tolist()
    if kind in WHOLE and all(float(x).is_integer() for x in values) and not (kind in REAL and len(values) > max_states):
        return _whole_numbers(name, sorted(int(x) for x in values), given, max_states)
    if kind in WHOLE or kind == "decimal":
        _require_several(name, values)
        if given is not None:
            raise DataError(
                f"Column '{name}': expected states, got fractions. Make it a category column, or Continuous()."
            )
        return Continuous(), ()
    if kind == "boolean":
        _require_several(name, values)
        return given or 2, ()
    if kind != "string":
        remedy = " Convert dates to numbers, such as days." if "date" in kind else " Make it a category column."
        raise DataError(f"Column '{name}': expected labels or numbers, got {kind} values.{remedy}")
    _require_few(name, values, max_states)
    return _counted(name, sorted(values), given)


def _whole_numbers(name: str, values: list[int], declared: Domain, max_states: int) -> Column:
    """States 0, 1, 2, … without labels, with -1 for a missing value; other whole numbers are labels."""
    codes = values[1:] if values[0] == -1 else values
    if codes == list(range(len(codes))) or (isinstance(declared, int) and set(codes) <= set(range(declared))):
        _require_several(name, codes)
        _require_few(name, codes, max_states)
        if codes is not values:
            warn_caller(f"Column '{name}': -1 is read as a missing value. Rename it if it is a state.", DataWarning)
        return declared or len(codes), ()
    _require_few(name, values, max_states)
    return _counted(name, values, declared)


def _counted(name: str, labels: list[Any], declared: Domain) -> Column:
    _require_several(name, labels)
    states = len(labels) if declared is None else declared
    if isinstance(states, int) and states < len(labels):
        raise DataError(f"Column '{name}': got {len(labels)} labels for {states} states: {shortened(labels, 200)}.")
    return states, tuple(labels)


def _require_several(name: str, values: Collection[Any]) -> None:
    if len(values) < 2:
        raise DataError(
            f"Column '{name}': expected at least 2 different values, got {shortened(list(values), 60)} in every row, which says "
            f"nothing about other variables. Leave it out, or make it a category column with all its categories."
        )


def _require_few(name: str, values: Collection[Any], max_states: int) -> None:
    if len(values) > max_states:
        raise DataError(
            f"Column '{name}' has {len(values)} different values, such as {shortened(list(values)[:3], 60)}; at most "
            f"max_states={max_states} are taken for states. Drop an identifier; bin a number, or declare it by "
            f"variables={{'{name}': Continuous()}}; make labels a category column, or raise max_states."
        )
