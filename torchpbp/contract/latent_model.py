"""LatentModel: the interface of all models of the distribution of a latent graph's variables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchpbp.contract.frames import map_frame, posterior_frame, posteriors_frame
from torchpbp.contract.model_files import Saved
from torchpbp.errors import NotFittedError, QueryError
from torchpbp.graph.latent_graph import Continuous, Domain, LatentGraph
from torchpbp.inputs.columns import ColumnReader, DataLike
from torchpbp.inputs.evidence import (
    Evidence,
    EvidenceLike,
    left_to_ask,
    query_names,
    read_evidence,
    warn_of_observed_query,
)
from torchpbp.lazy import is_frame
from torchpbp.lazy import pandas as pd

SCORED_ROWS = 1 << 14
"""Rows scored at once."""


class LatentModel(Saved):
    """The interface of all models.

    A model implements :meth:`posterior` and :meth:`posteriors`, possibly with further options, by a call of :meth:`_ask` or
    :meth:`_ask_all`, which read the evidence, check the query and convert answers to DataFrames. The class has no
    ``__init__`` and may be combined with ``nn.Module`` as the first base.

    Attributes:
        graph: the structure.
        labels: variable -> labels of its states, for variables given by label.
        missing: share of missing values in each column of the training data.
        fitted: whether the model has learned a distribution.
    """

    graph: LatentGraph
    labels: dict[str, tuple[Any, ...]]
    missing: dict[str, float]
    fitted: bool

    @property
    def device(self) -> torch.device:
        """Device of evidence and answers."""
        return torch.device("cpu")

    # -- queries -------------------------------------------------------------------------------------------------

    @abstractmethod
    def posterior(self, query: str | Sequence[str], evidence: EvidenceLike = None) -> Any:
        """P(query | evidence).

        Args:
            query: a variable, or, for :class:`~torchpbp.contract.abilities.JointQueries`, several for their joint distribution.
            evidence: name -> state or value, states or values per row (-1 or NaN: not observed), or (rows, states) weights.
                In rows that observe the query, a discrete variable has probability 1 at the observed state.

        Returns:
            (rows, states) tensor, (rows, states, states, …) for several variables, or a
            :class:`~torchpbp.inference.density.Density` for a continuous variable. For a DataFrame of evidence a DataFrame with
            the same index: a column for each state, named by its label, with a level per variable of a joint query; for a
            continuous variable mean, std and quantiles.
        """

    @abstractmethod
    def posteriors(self, evidence: EvidenceLike = None) -> Any:
        """Posteriors of all variables that are not observed in every row.

        Returns:
            name -> posterior. For a DataFrame of evidence a DataFrame with the same index and columns (variable, state). Empty,
            with a warning, if every row observes everything.
        """

    @abstractmethod
    def log_evidence(self, evidence: EvidenceLike = None) -> Tensor:
        """(rows,) log P(evidence), or the log of a density for continuous evidence."""

    @abstractmethod
    def diagnostics(self) -> pd.DataFrame:
        """Diagnostics of the model's fit, as a table."""

    @torch.no_grad()
    def score(self, data: DataLike) -> float:
        """Mean of :meth:`log_evidence` over the rows of a table.

        The score is -inf if a row has probability 0. PBP's estimates of probabilities may be negative: with few training rows,
        the estimate of a rare row may be 0 or less.

        Args:
            data: as for ``fit``; values may be missing.
        """
        self.require_fitted()
        total, rows = 0.0, 0
        for batch in self._batches(data):
            total += float(self.log_evidence(batch).double().sum())
            rows += batch.batch
        return total / rows

    def map_states(
        self, query: str | Sequence[str], evidence: EvidenceLike = None, **options: Any
    ) -> pd.Series[Any] | pd.DataFrame:
        """The most probable state of a discrete variable given the evidence, or the most probable joint state of several.

        Args:
            query: a variable, or several, as for :meth:`posterior`.
            evidence: as for :meth:`posterior`; for rows that observe the query, the result is the observed state.
            **options: of the model's ``posterior``.

        Returns:
            Labels, with a row per row of evidence: a Series for one variable, a DataFrame with a column per variable for several.
        """
        names = self.query_names(query)
        for v in names:
            if isinstance(self.graph.variables.get(v), Continuous):
                raise QueryError(
                    f"Most probable state of '{v}': it is continuous and has no states. posterior() has its mean."
                )
        frame = map_frame(self, names, self.posterior(query, evidence, **options), evidence)
        return frame[query] if isinstance(query, str) else frame

    # -- for implementations -------------------------------------------------------------------------------------

    def require_fitted(self) -> None:
        """Raise a NotFittedError before the model is fitted."""
        if not self.fitted:
            raise NotFittedError(
                f"This {type(self).__name__} model is not fitted yet. Call fit(data), or read a fitted one by torchpbp.load(path)."
            )

    def evidence_domains(self) -> dict[str, Domain]:
        """Variables that may be observed and queried -> number of states, or range."""
        return self.graph.observed_domains

    def query_domains(self) -> dict[str, Domain]:
        """Variables that may be queried -> domain; by default those of :meth:`evidence_domains`."""
        return self.evidence_domains()

    def read_evidence(self, evidence: EvidenceLike) -> Evidence:
        """Evidence, checked and normalised, on the model's device."""
        self.require_fitted()
        return read_evidence(
            evidence, self.evidence_domains(), latent=self.graph.latent, labels=self.labels, device=self.device
        )

    def _batches(self, data: DataLike) -> Iterator[Evidence]:
        """Rows of a table as evidence, in batches; values may be missing."""
        observed = {v: d for v, d in self.evidence_domains().items() if v in self.graph.observed}
        reader = ColumnReader(observed, self.labels, missing=True, quiet=True, device=self.device)
        for table in reader.tables(data, SCORED_ROWS):
            states = {v: x for v, x in table.items() if isinstance(observed[v], int)}
            values = {v: x for v, x in table.items() if v not in states}
            yield Evidence(len(next(iter(table.values()))), states, {}, values)

    def query_names(self, query: Any) -> tuple[str, ...]:
        """The names in a query: a single one, except for :class:`~torchpbp.contract.abilities.JointQueries`."""
        names = query_names(query)
        if not isinstance(query, str):
            raise QueryError(
                f"{type(self).__name__} answers about one variable at a time, got {query!r}. Query each separately."
            )
        return names

    def check_query(self, names: Sequence[str]) -> None:
        """Raise a QueryError for a query that the model cannot answer."""
        domains = self.query_domains()
        if not names or len(set(names)) != len(names):
            raise QueryError(f"Expected one or more different variables to query, got {names}.")
        for name in names:
            if name not in domains and name in self.graph.latent:
                raise QueryError(
                    f"Query of '{name}': it is latent. {type(self).__name__} answers about observables only: "
                    f"{', '.join(domains)}. EM and MaximumLikelihood learn tables of latents."
                )
            if name not in domains:
                raise QueryError(f"Query of unknown variable '{name}'. The model observes: {', '.join(domains)}.")

    def _ask(
        self,
        query: str | Sequence[str],
        evidence: EvidenceLike,
        answer: Callable[[tuple[str, ...], Evidence], Any],
        at: Any = None,
    ) -> Any:
        """Check a query, compute its answer, and convert it to a DataFrame if the evidence is one.

        Args:
            query, evidence: arguments of :meth:`posterior`.
            answer: (checked names, checked evidence) -> tensor or Density.
            at: points of a queried density, which name the columns of the DataFrame.
        """
        names = self.query_names(query)
        checked = self.read_evidence(evidence)
        self.check_query(names)
        warn_of_observed_query(names, checked)
        result = answer(names, checked)
        if not is_frame(evidence):
            return result
        return posterior_frame(self, names, result, at).set_axis(evidence.index)

    def _ask_all(
        self,
        evidence: EvidenceLike,
        answer: Callable[[list[str], Evidence], dict[str, Any]],
        names: Sequence[str] | None = None,
    ) -> Any:
        """As :meth:`_ask`, for :meth:`posteriors`.

        Args:
            evidence: argument of :meth:`posteriors`.
            answer: (names of variables not observed in every row, checked evidence) -> name -> answer.
            names: of the variables that may be queried; the observables by default.
        """
        checked = self.read_evidence(evidence)
        wanted = left_to_ask(self.graph.observed if names is None else names, checked)
        answers = answer(wanted, checked)
        if not is_frame(evidence):
            return answers
        return posteriors_frame(self, answers, evidence.index)
