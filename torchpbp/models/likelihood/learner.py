"""MaximumLikelihood: all tables of a network with hidden variables, from one deterministic start."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm
from typing_extensions import Self

from torchpbp.contract.intervals import Interval, Intervals, ask_interval
from torchpbp.contract.model_files import SaveOptions
from torchpbp.distributed import gather_objects, sum_over_processes
from torchpbp.errors import ConvergenceWarning, DataWarning, StructureError, warn_caller
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.inputs.columns import DataLike
from torchpbp.inputs.evidence import Evidence, EvidenceLike
from torchpbp.lazy import pandas as pd
from torchpbp.models.likelihood.choice import CHOICES, choose_states
from torchpbp.models.likelihood.climb import Climb, climb
from torchpbp.models.likelihood.expectation import ExpectationStep
from torchpbp.models.likelihood.intervals import DeltaMethod
from torchpbp.models.likelihood.layout import FamilyLayout
from torchpbp.models.likelihood.polish import MOST_PARAMETERS
from torchpbp.models.likelihood.rows import WeightedRows, read_rows
from torchpbp.models.network_learner import NetworkLearner
from torchpbp.settings import Settings, choice, flag, non_negative, positive, setting, whole
from torchpbp.settings import seed as seed_constraint

INFORMATION_ROWS, ROWS_PER_PARAMETER = 2_000, 50
"""Rows for the estimate of a fit's information: the larger of a number and a number per parameter."""
CONCLUSIONS = {
    3: "three views: its states are identified up to their order",
    2: "two views: some basis of its states that answers questions on observables; the states themselves have no meaning",
    0: "no views: the best of a few random starts; its states may be others in the next fit",
}
"""Number of views of a latent -> interpretation of its states."""


@dataclass(frozen=True, kw_only=True)
class MaximumLikelihoodSettings(Settings):
    """Settings of :class:`MaximumLikelihood`."""

    prior: float = setting(1.0, non_negative())
    tolerance: float = setting(0.01, positive())
    max_steps: int = setting(200, whole(1))
    states: str | None = setting(None, choice(None, *CHOICES))
    most_states: int = setting(6, whole(1))
    seed: int = setting(0, seed_constraint())
    progress: bool = setting(True, flag())


class MaximumLikelihood(NetworkLearner, Intervals):
    """Maximum likelihood by Gauss–Newton steps from tables recovered from moments.

    The start is determined by the data: groups of observables that are independent given a latent, its views, determine its
    tables by eigenvectors of their moments; Gauss–Newton steps then climb to a maximum of the likelihood. Latents
    without views, as in factorial models, start from the best of a few short runs with random tables. The recovered start is
    good if the graph fits the data. Otherwise (``misfit`` above 2), and with a prior below 1, for which the likelihood has many
    maxima on the boundary, a batch of random starts competes with it, and the highest maximum is returned. The result depends
    on the data and the seed only.

    Args:
        graph: directed and discrete. With ``states``, latents may have None in place of a number of states.
        prior: pseudo-rows per entry of a table (a Dirichlet prior with concentration 1 + prior). 0 is maximum likelihood,
            whose tables may have zeros, so that evidence absent from the training rows may be impossible.
        tolerance: in nats in total: the climb stops when the last and the predicted gain are both smaller.
        max_steps: largest number of steps of the climb; reaching it raises a warning.
        states: None: the graph's numbers of states. "auto" or "bic": numbers that are None, or all if none is, are selected by
            BIC; "held_out": by the likelihood of a held-out tenth of the rows. See ``state_scores``.
        most_states: largest selected number of states.
        seed: of random directions and, for latents without views, of random starts.
        progress: show a progress bar.

    Attributes:
        settings: as a :class:`MaximumLikelihoodSettings`.
        state_scores: table of the candidate numbers of states: log-likelihood, AIC, BIC, entropy; None without selection.
        objective: log-likelihood plus log-prior after each step, in nats in total; not part of a model file.
        rows: number of training rows, or their total weight.
        misfit: sum of squared residuals of all pairs of observables relative to its expectation for a graph that fits: at most
            about 1 if the graph fits, larger for dependences of observables that the graph lacks; see :meth:`pair_residuals`.
        information: (free parameters, free parameters) empirical Fisher information of the logits, in the layout of
            :class:`~torchpbp.models.likelihood.layout.FamilyLayout`; None beyond 4,000 parameters.

    Example:
        >>> from torchpbp import DiscreteNetwork, templates
        >>> truth = DiscreteNetwork.random(templates.naive_bayes(4), seed=1)
        >>> model = MaximumLikelihood(truth.graph, progress=False).fit(truth.sample(2000, seed=0))
        >>> model.posterior("h", {"x2": [0, -1]}).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        graph: LatentGraph,
        *,
        prior: float = 1.0,
        tolerance: float = 0.01,
        max_steps: int = 200,
        states: str | None = None,
        most_states: int = 6,
        seed: int = 0,
        progress: bool = True,
    ) -> None:
        settings = MaximumLikelihoodSettings(
            prior=prior,
            tolerance=tolerance,
            max_steps=max_steps,
            states=states,
            most_states=most_states,
            seed=seed,
            progress=progress,
        )
        remedy = ' torchpbp.PBP takes such graphs. Numbers of states of latents are chosen with states="auto".'
        super().__init__(graph, open_states=settings.states is not None, remedy=remedy)
        _require_no_barren_latents(graph)
        self.settings = settings
        self.state_scores: pd.DataFrame | None = None
        self.objective: tuple[float, ...] = ()
        self.converged = False
        self.information: Tensor | None = None
        self.rows, self.misfit = 0.0, float("nan")
        self._residuals: Tensor | None = None
        self._factored: DeltaMethod | None = None
        self._view_strengths: dict[str, tuple[int, float]] = {}  # views and strength of each latent
        self._declared_graph = graph

    @property
    def layout(self) -> FamilyLayout:
        """The layout of the tables as a vector of parameters."""
        return FamilyLayout(self.graph, self.device)

    def parameters_vector(self) -> Tensor:
        """(entries,) all tables, in the order of :attr:`layout`."""
        return self.layout.vector(dict(self.network.factors))

    def fit(self, data: DataLike, weights: Any = None) -> MaximumLikelihood:
        """Learn from rows of the observables, in which values may be missing at random.

        Args:
            data: as for :meth:`torchpbp.PBP.fit`. Missing values are -1, NaN, None or pandas NA; they are marginalised out.
                With several processes, this process's share of the rows.
            weights: (rows,) weights of the rows; 1 by default.

        Returns:
            The learner itself.

        Raises:
            DataError: a column without any value, negative weights, or no row.
        """
        rows = read_rows(self._declared_graph, data, weights, type(self).__name__, device=self._device)
        self.graph, self.state_scores = self._declared_graph, None
        if self.settings.states is not None:
            self.graph, self.state_scores = choose_states(self._declared_graph, rows, self.settings)
        self.__dict__.pop("latent_views", None)
        _warn_of_odd_rows(self.graph, rows)
        step = ExpectationStep(self.graph, rows.table, rows.weights)
        with tqdm(
            desc="MaximumLikelihood", unit="step", delay=2, leave=False, disable=not self.settings.progress
        ) as bar:
            fitted = climb(step, self.settings, bar.update)
        self._take(fitted, step, rows)
        return self

    def _take(self, fitted: Climb, step: ExpectationStep, rows: WeightedRows) -> None:
        end = fitted.end
        self._adopt(step.layout.named(end.vector), rows.labels, rows.missing)
        self.objective, self.converged = end.objective, end.converged
        self._view_strengths = {
            h: (len(s.views.groups) if s.recovered else 0, s.strength) for h, s in fitted.starts.items()
        }
        self.information, self.rows = None, step.rows
        self.misfit, self._residuals = fitted.residuals.misfit, fitted.residuals.relative
        if step.layout.parameters <= MOST_PARAMETERS:
            most = max(INFORMATION_ROWS, ROWS_PER_PARAMETER * step.layout.parameters)
            self.information = step.information(self.parameters_vector(), most)
        if not end.converged:
            warn_caller(
                f"MaximumLikelihood stopped at the limit of {self.settings.max_steps} steps: its last one gained "
                f"{end.objective[-1] - end.objective[-2]:.3g} nats. Raise max_steps or tolerance.",
                ConvergenceWarning,
            )

    def interval(self, query: str | Sequence[str] | None, evidence: EvidenceLike = None, level: float = 0.95) -> Any:
        """Confidence intervals of each entry of P(query | evidence), or of log P(evidence), by the delta method.

        Queries given latents are intervals of tables and profiles: ``interval("x", {"h": [0, 1, 2]})`` is of P(x | h). Intervals
        of probabilities are symmetric in logits. An answer that is not identified by the data, such as one about the states of a
        latent with two views, has the interval NaN, with a warning.

        Args:
            query: a variable, latent or not, or several for their joint distribution; None for the log-evidence.
            evidence: as for :meth:`posterior`; may include latents.
            level: probability with which an interval covers the true value, over repeated samples of training rows.

        Returns:
            :class:`~torchpbp.contract.intervals.Interval` (estimate, lower, upper) of (rows, states…) tensors, or (rows,) for the
            log-evidence. For a DataFrame of evidence a DataFrame with the same index.

        Raises:
            StructureError: a network with too many parameters for the information.
        """

        def answer(names: tuple[str, ...], checked: Evidence) -> Interval:
            return self._delta_method().interval(names, checked, level)

        return ask_interval(self.network, query, evidence, level, answer)

    def _delta_method(self) -> DeltaMethod:
        if self.information is None:
            raise StructureError(
                f"interval: the network has {self.layout.parameters:,} free parameters, and their information is kept up to "
                f"{MOST_PARAMETERS:,}. Use a smaller graph, or PBP.interval."
            )
        if self._factored is None or self._factored.information is not self.information:
            self._factored = DeltaMethod(self.network, self.layout, self.information, self.rows, self.settings.prior)
        return self._factored

    def to(self, device: torch.device | str) -> Self:
        """Set the device of learning and answers, and move a fitted model to it."""
        super().to(device)
        if self.information is not None:
            self.information = self.information.to(device)
        return self

    def reordered(self, orders: Mapping[str, Sequence[int]]) -> Self:
        """Renumber the states of latents, in place, also in the information."""
        super().reordered(orders)
        if self.information is not None:
            self.information = self.layout.reordered(self.information, orders)
        return self

    def diagnostics(self) -> pd.DataFrame:
        """One row per latent: its states, the number of its views and their observables, their strength, and the
        interpretation of its states.

        The strength is the smallest of the states − 1 leading canonical correlations over the views: 1 if the views determine
        the state, 0 if they cannot distinguish some states.
        """
        self.require_fitted()
        rows = []
        for h in self.graph.latent:
            count, strength = self._view_strengths.get(h, (0, float("nan")))
            rows.append(
                {
                    "latent": h,
                    "states": self.graph.num_states(h),
                    "views": count,
                    "observables": self.latent_views[h].groups if count else (),
                    "strength": strength,
                    "identified": count == 3,
                    "conclusion": CONCLUSIONS[count],
                }
            )
        columns = ["latent", "states", "views", "observables", "strength", "identified", "conclusion"]
        return pd.DataFrame(rows, columns=columns)

    def pair_residuals(self) -> pd.DataFrame:
        """One row per pair of observables: the distance between their joint distributions in the training rows and in the
        network, largest first.

        A residual is Pearson's statistic relative to its expectation for a network that fits. A residual far above 1 indicates
        a dependence that the graph lacks: an edge, a further latent, or more states of a common latent.
        """
        self.require_fitted()
        columns = ["first", "second", "residual"]
        if self._residuals is None:
            return pd.DataFrame(columns=columns)
        pairs = itertools.combinations(self.graph.observed, 2)
        table = self._residuals.cpu()
        above = torch.triu_indices(len(table), len(table), 1)  # in the order of the combinations
        rows = [(a, b, x) for (a, b), x in zip(pairs, table[above[0], above[1]].tolist(), strict=True)]
        return pd.DataFrame(rows, columns=columns).sort_values("residual", ascending=False, ignore_index=True)

    # -- files ---------------------------------------------------------------------------------------------------

    def pack(self, name: object, options: SaveOptions) -> dict[str, Any]:
        """Tables, settings, views of the latents and statistics of the fit."""
        content = super().pack(name, options)
        scores = None if self.state_scores is None else self.state_scores.to_dict(orient="list")
        return {
            **content,
            "settings": self.settings.to_dict(),
            "views": self._view_strengths,
            "information": self.information,
            "rows": self.rows,
            "misfit": self.misfit,
            "residuals": self._residuals,
            "state_scores": scores,
        }

    @classmethod
    def unpack(cls, content: Mapping[str, Any], name: object) -> MaximumLikelihood:
        """The model from the content of a file."""
        settings = MaximumLikelihoodSettings.from_dict(content["settings"])
        model = cls(LatentGraph.from_dict(content["graph"]), **settings.to_dict())._restore(content, name)
        model._view_strengths = content["views"]
        model.information, model.rows = content["information"], content["rows"]
        model.misfit, model._residuals = content["misfit"], content["residuals"]
        scores = content["state_scores"]
        model.state_scores = None if scores is None else pd.DataFrame(scores)
        return model

    @classmethod
    def unfitted(cls, content: Mapping[str, Any]) -> MaximumLikelihood:
        """An unfitted model with the graph and settings of a file."""
        return cls(LatentGraph.from_dict(content["graph"]), **content["settings"])


def _require_no_barren_latents(graph: LatentGraph) -> None:
    """Raise a StructureError for latents without observables below them."""
    useful = set(graph.observed)
    for v in reversed(graph.topological_order()):
        if v in useful:
            useful.update(graph.parents(v))
    barren = [h for h in graph.latent if h not in useful]
    if barren:
        raise StructureError(
            f"MaximumLikelihood: the latents {barren} have no observables below them, so no data depend on them. "
            "Remove them from the graph."
        )


def _warn_of_odd_rows(graph: LatentGraph, rows: WeightedRows) -> None:
    """Warn of constant columns and of latents with more states than rows."""
    values = [
        set().union(*x)
        for x in zip(*gather_objects([set(x.unique().tolist()) - {-1} for x in rows.table.values()]), strict=True)
    ]
    constant = [v for v, x in zip(rows.table, values, strict=True) if graph.num_states(v) > 1 and len(x) == 1]
    if constant:
        warn_caller(
            f"Columns {constant} have one value in all rows; they carry no information on latents, and their other states have "
            "the probability of the prior.",
            DataWarning,
        )
    total = float(sum_over_processes(rows.weights.sum()))
    many = [h for h in graph.latent if graph.num_states(h) > total]
    if many:
        warn_caller(
            f"The latents {many} have more states than there are rows: most of their entries come from the prior alone. Use "
            "fewer states.",
            DataWarning,
        )
