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
from torchpbp.graph.latent_graph import Continuous, LatentGraph, require_graph
from torchpbp.inputs.columns import DataLike
from torchpbp.inputs.evidence import Evidence, EvidenceLike
from torchpbp.lazy import pandas as pd
from torchpbp.models.likelihood.choice import CHOICES, choose_states
from torchpbp.models.likelihood.climb import Climb, climb
from torchpbp.models.likelihood.expectation import ExpectationStep
from torchpbp.models.likelihood.intervals import Precision, delta_interval
from torchpbp.models.likelihood.layout import FamilyLayout
from torchpbp.models.likelihood.polish import MOST_PARAMETERS
from torchpbp.models.likelihood.rows import WeightedRows, read_rows
from torchpbp.models.network_learner import NetworkLearner
from torchpbp.settings import Settings, choice, flag, non_negative, positive, setting, whole
from torchpbp.settings import seed as seed_constraint

INFORMATION_ROWS, ROWS_PER_PARAMETER = 2_000, 50
"""Rows from which the information of a fit is estimated, at most: so many, or so many for each parameter."""
CONCLUSIONS = {
    3: "three views: its states are identified up to their order",
    2: "two views: some basis of its states that answers questions on observables; the states themselves have no meaning",
    0: "no views: the best of a few random starts; its states may be others in the next fit",
}
"""What may be concluded from the states of a latent with so many views."""


@dataclass(frozen=True, kw_only=True)
class MaximumLikelihoodSettings(Settings):
    """Settings of :class:`MaximumLikelihood`, described there."""

    prior: float = setting(1.0, non_negative())
    tolerance: float = setting(0.01, positive())
    max_steps: int = setting(200, whole(1))
    states: str | None = setting(None, choice(None, *CHOICES))
    most_states: int = setting(6, whole(1))
    seed: int = setting(0, seed_constraint())
    progress: bool = setting(True, flag())


class MaximumLikelihood(NetworkLearner, Intervals):
    """Maximum likelihood by Gauss–Newton steps from tables that are recovered from moments.

    It takes one run, from a start that the data decide. Groups of observables that are independent given a latent, its
    views, determine its tables by eigenvectors of their moments; the likelihood is then climbed to its maximum. Latents
    without views, as in factorial models, start at random: the best of a few short runs goes on. Moments are a good start where
    the graph fits the data. Where it does not (``misfit`` above 2), and with a prior below 1, whose likelihood has many maxima on
    the boundary, random starts race as well, all in one batch; the winners climb, and the highest end counts. All of it is
    decided by the data and the seed.

    Args:
        graph: directed and discrete. Numbers of states of latents may be None if they are to be chosen.
        prior: pseudo-rows per entry of a table (a Dirichlet prior with concentration 1 + prior). 0 gives maximum likelihood,
            with tables that may hold zeros; evidence that never occurred may then be impossible.
        tolerance: nats in total: the climb ends when the last and the predicted gain are both smaller.
        max_steps: of the climb, at most; a warning says when it stopped there.
        states: None takes the graph's numbers of states. "auto" or "bic" chooses those that are None, or all if none is, by
            BIC, "held_out" by the likelihood of a tenth of the rows; see ``state_scores``.
        most_states: of a latent whose number is chosen.
        seed: of random directions and, where there are no views, of random starts.
        progress: show a progress bar.

    Attributes:
        settings: as a :class:`MaximumLikelihoodSettings`.
        state_scores: table of the numbers of states that were tried: log-likelihood, AIC, BIC, entropy; None if none were.
        objective: log-likelihood plus the prior's term after each step, in nats in total; not part of a model file.
        rows: number of training rows, or their total weight.
        misfit: squared residuals of all pairs of observables, relative to what they are where the graph fits: 1 or less there, and
            larger the more the observables depend on each other in ways that the graph does not have; see
            :meth:`pair_residuals`.
        information: (free parameters, free parameters) empirical Fisher information of the logits, laid out as
            :class:`~torchpbp.models.likelihood.layout.FamilyLayout` does; None beyond 4,000 parameters.

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
        _check_graph(graph, settings.states is not None)
        super().__init__(graph)
        self.settings = settings
        self.state_scores: pd.DataFrame | None = None
        self.objective: tuple[float, ...] = ()
        self.converged = False
        self.information: Tensor | None = None
        self.rows, self.misfit = 0.0, float("nan")
        self._residuals: Tensor | None = None
        self._factored: tuple[Tensor, Precision] | None = None  # the information, and what was made of it
        self._found: dict[str, tuple[int, float]] = {}  # views and strength of each latent
        self._given = graph

    @property
    def layout(self) -> FamilyLayout:
        """How the tables make up a vector of parameters."""
        return FamilyLayout(self.graph, self.device)

    def parameters_vector(self) -> Tensor:
        """(entries,) all tables, as :attr:`layout` lays them out."""
        return self.layout.vector(dict(self.network.factors))

    def fit(self, data: DataLike, weights: Any = None) -> MaximumLikelihood:
        """Learn from rows of the observables, in which values may be missing at random.

        Args:
            data: as for :meth:`torchpbp.PBP.fit`. Missing values: -1, NaN, None or pandas NA. A missing value says nothing;
                the row's other values count in full. In several processes, this one's share of the rows.
            weights: (rows,) how much each row counts; 1 by default.

        Returns:
            The learner itself.

        Raises:
            DataError: a column without any value, negative weights, or no row.
        """
        rows = read_rows(self._given, data, weights, type(self).__name__, device=self._device)
        self.graph, self.state_scores = self._given, None
        if self.settings.states is not None:
            self.graph, self.state_scores = choose_states(self._given, rows, self.settings)
        self.__dict__.pop("latent_views", None)
        _warn_of_odd_rows(self.graph, rows)
        step = ExpectationStep(self.graph, rows.table, rows.weights)
        with tqdm(
            desc="MaximumLikelihood", unit="step", delay=2, leave=False, disable=not self.settings.progress
        ) as bar:
            fitted = climb(
                self.graph,
                step,
                self.settings.prior,
                self.settings.tolerance,
                self.settings.max_steps,
                self.settings.seed,
                bar.update,
            )
        self._take(fitted, step, rows)
        return self

    def _take(self, fitted: Climb, step: ExpectationStep, rows: WeightedRows) -> None:
        end = fitted.end
        self._adopt(step.layout.named(end.vector), rows.labels, rows.missing)
        self.objective, self.converged = end.objective, end.converged
        self._found = {h: (len(s.views.groups) if s.recovered else 0, s.strength) for h, s in fitted.starts.items()}
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

        Entries of tables and of profiles are answers too: ``interval("x", {"h": [0, 1, 2]})`` has P(x | h). Intervals of
        probabilities are symmetric in logits. An answer that depends on what the rows do not determine, such as the states of a
        latent with two views, has the interval NaN, and a warning says so.

        Args:
            query: a variable, latent or not, or several for their joint distribution; None for the log-evidence.
            evidence: as for :meth:`posterior`; latents may be observed here too.
            level: probability with which an interval covers the true value, over repeated samples of training rows.

        Returns:
            :class:`~torchpbp.contract.intervals.Interval` (estimate, lower, upper) of (rows, states…) tensors, or (rows,) for the
            log-evidence. For a DataFrame of evidence a DataFrame with the same index.

        Raises:
            StructureError: more parameters than the information is kept of.
        """

        def answer(names: tuple[str, ...], checked: Evidence) -> Interval:
            return delta_interval(self.network, self.layout, self._precision(), names, checked, level)

        return ask_interval(self.network, query, evidence, level, answer)

    def _precision(self) -> Precision:
        if self.information is None:
            raise StructureError(
                f"interval: the network has {self.layout.parameters:,} free parameters, and their information is kept up to "
                f"{MOST_PARAMETERS:,}. Use a smaller graph, or PBP.interval."
            )
        if self._factored is None or self._factored[0] is not self.information:
            args = self.network, self.layout, self.information, self.rows, self.settings.prior
            self._factored = self.information, Precision.of(*args)
        return self._factored[1]

    def to(self, device: torch.device | str) -> Self:
        """Learn and answer on a device; what has been learned moves there."""
        super().to(device)
        if self.information is not None:
            self.information = self.information.to(device)
        return self

    def reordered(self, orders: Mapping[str, Sequence[int]]) -> Self:
        """Number the states of latents anew, in place; the information goes along."""
        super().reordered(orders)
        if self.information is not None:
            self.information = self.layout.reordered(self.information, orders)
        return self

    def diagnostics(self) -> pd.DataFrame:
        """One row per latent: its states, the number of its views and their observables, their strength, and what may be
        concluded from its states.

        The strength is the smallest canonical correlation that the states need, over the views: 1 where they are seen
        without error, 0 where nothing tells them apart.
        """
        self.require_fitted()
        rows = []
        for h in self.graph.latent:
            count, strength = self._found.get(h, (0, float("nan")))
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
        """One row per pair of observables, the largest residual first: how far their joint distribution in the training rows is
        from that of the network.

        A residual is Pearson's statistic, relative to its expectation where the network is right. One far above 1 shows two
        observables that depend on each other in a way that the graph does not have: they may need an edge, a latent of their own,
        or more states of the one they share.
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
        """Tables, settings, and what is known of the latents."""
        content = super().pack(name, options)
        scores = None if self.state_scores is None else self.state_scores.to_dict(orient="list")
        return {
            **content,
            "settings": self.settings.to_dict(),
            "views": self._found,
            "information": self.information,
            "rows": self.rows,
            "misfit": self.misfit,
            "residuals": self._residuals,
            "state_scores": scores,
        }

    @classmethod
    def unpack(cls, content: Mapping[str, Any], name: object) -> MaximumLikelihood:
        """The model as it was saved, with its settings."""
        settings = MaximumLikelihoodSettings.from_dict(content["settings"])
        model = cls(LatentGraph.from_dict(content["graph"]), **settings.to_dict())._restore(content, name)
        model._found = content["views"]
        model.information, model.rows = content["information"], content["rows"]
        model.misfit, model._residuals = content["misfit"], content["residuals"]
        scores = content["state_scores"]
        model.state_scores = None if scores is None else pd.DataFrame(scores)
        return model

    @classmethod
    def unfitted(cls, content: Mapping[str, Any]) -> MaximumLikelihood:
        """A model with the same graph and settings."""
        return cls(LatentGraph.from_dict(content["graph"]), **content["settings"])


def _check_graph(graph: LatentGraph, open_states: bool) -> None:
    """Raise a StructureError for graphs whose likelihood this learner cannot climb."""
    require_graph(graph, "MaximumLikelihood")
    if not graph.directed:
        raise StructureError(
            "MaximumLikelihood: expected a directed graph, whose tables are conditional probabilities. torchpbp.PBP learns "
            "undirected graphs."
        )
    continuous = [v for v in graph.names if isinstance(graph.variables[v], Continuous)]
    if continuous:
        raise StructureError(
            f"MaximumLikelihood: expected discrete variables, got continuous {continuous}. torchpbp.PBP learns them."
        )
    unknown = [v for v in graph.latent if graph.variables[v] is None]
    if unknown and not open_states:
        raise StructureError(
            f'MaximumLikelihood: the numbers of states of {unknown} are not given. Give them, or have them chosen: states="auto".'
        )
    useful = set(graph.observed)
    for v in reversed(graph.topological_order()):
        if v in useful:
            useful.update(graph.parents(v))
    barren = [h for h in graph.latent if h not in useful]
    if barren:
        raise StructureError(
            f"MaximumLikelihood: the latents {barren} have no observables below them, so the data say nothing about them. "
            "Remove them from the graph."
        )


def _warn_of_odd_rows(graph: LatentGraph, rows: WeightedRows) -> None:
    """Warn of columns with one value and of latents with more states than there are rows."""
    values = [
        set().union(*x)
        for x in zip(*gather_objects([set(x.unique().tolist()) - {-1} for x in rows.table.values()]), strict=True)
    ]
    constant = [v for v, x in zip(rows.table, values, strict=True) if graph.num_states(v) > 1 and len(x) == 1]
    if constant:
        warn_caller(
            f"Columns {constant} have one value in all rows; they tell nothing about latents, and their other states get the "
            "probability that the prior gives them.",
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
