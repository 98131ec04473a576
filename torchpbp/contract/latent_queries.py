"""Queries of latents, for models with tables of all variables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from torchpbp.contract.frames import labelled, posterior_frame, posteriors_frame, state_labels
from torchpbp.contract.latent_model import LatentModel
from torchpbp.errors import IdentificationWarning, QueryError, StructureError, warn_caller
from torchpbp.graph.views import Views, find_views
from torchpbp.inputs.columns import DataLike
from torchpbp.inputs.evidence import Evidence, EvidenceLike
from torchpbp.lazy import is_frame
from torchpbp.lazy import pandas as pd


class LatentQueries(LatentModel):
    """A model whose latents can be queried."""

    @abstractmethod
    def posteriors(self, evidence: EvidenceLike = None, *, include_latent: bool = False) -> Any:
        """Posteriors of all observables, and of latents on request, that are not observed in every row."""

    @property
    @abstractmethod
    def network(self) -> Any:
        """The network with all tables."""

    @abstractmethod
    def reordered(self, orders: Mapping[str, Sequence[int]]) -> Self:
        """Renumber the states of latents, in place.

        Args:
            orders: latent -> the current numbers of its states, in the new order.
        """

    @cached_property
    def latent_views(self) -> dict[str, Views]:
        """latent -> groups of observables that are independent given it; three determine its states. For directed graphs."""
        return find_views(self.graph) if self.graph.directed else {h: Views(h, ()) for h in self.graph.latent}

    def predict(self, data: DataLike, name: str | None = None) -> Any:
        """The most probable state of a latent in each row.

        Args:
            data: as for ``fit``; values may be missing.
            name: of the latent; all by default.

        Returns:
            (rows,) states; latent -> states for several latents. For a DataFrame a Series, or a
            DataFrame with a column for each latent, with the same index.
        """
        answers = {h: p.argmax(dim=1) for h, p in self._memberships(data, name).items()}
        if not is_frame(data):
            return next(iter(answers.values())) if len(answers) == 1 else answers
        frame = pd.DataFrame({h: labelled(self, h, x.cpu().numpy()) for h, x in answers.items()}).set_axis(data.index)
        return frame[next(iter(answers))] if len(answers) == 1 else frame

    def predict_proba(self, data: DataLike, name: str | None = None) -> Any:
        """Probabilities of the states of a latent in each row.

        Args:
            data, name: as for :meth:`predict`.

        Returns:
            (rows, states); latent -> (rows, states) for several latents. For a DataFrame a DataFrame
            with the same index and a column for each state, or for each (variable, state).
        """
        answers = self._memberships(data, name)
        if not is_frame(data):
            return next(iter(answers.values())) if len(answers) == 1 else answers
        if len(answers) == 1:
            ((h, p),) = answers.items()
            return posterior_frame(self, [h], p).set_axis(data.index)
        return posteriors_frame(self, answers, data.index)

    def profiles(self, name: str) -> pd.DataFrame:
        """P(x | state of a latent) of all observables.

        Args:
            name: of the latent.

        Returns:
            A row for each (variable, state), a column for each state of the latent.
        """
        self.require_fitted()
        self._check_latent(name)
        states = torch.arange(self.graph.num_states(name), device=self.device)
        answers = self.network.posteriors(Evidence(len(states), {name: states}))
        tables = {
            x: pd.DataFrame(answers[x].detach().cpu().numpy().T, index=pd.Index(state_labels(self, x), dtype=object))
            for x in self.graph.observed
        }
        frame = pd.concat(tables, names=["variable", "state"])
        return frame.set_axis(pd.Index(state_labels(self, name), name=name), axis=1)

    def match_states(self, other: LatentQueries) -> Self:
        """Renumber the states of all latents as in another model of the same variables, in place.

        States are matched by the assignment with the smallest sum of absolute differences of the joint probabilities P(x, h) of all
        observables.
        """
        self.require_fitted()
        other.require_fitted()
        if self.graph.variables != other.graph.variables or set(self.graph.latent) != set(other.graph.latent):
            raise StructureError("match_states: expected a model with the same variables, states and latents.")
        from scipy.optimize import linear_sum_assignment

        orders = {}
        for h in self.graph.latent:
            profile, target = self._joint_profile(h), other._joint_profile(h).to(self.device)
            cost = (target.unsqueeze(2) - profile.unsqueeze(1)).abs().sum(dim=0)  # (states of other, states of self)
            orders[h] = linear_sum_assignment(cost.cpu().numpy())[1].tolist()
        return self.reordered(orders)

    # -- inner workings ------------------------------------------------------------------------------------------

    def _joint_profile(self, name: str) -> Tensor:
        """(indicators of all observables, states) P(x, h)."""
        tables = [self.network.joint((x, name)) for x in self.graph.observed]
        return torch.cat([*tables, self.network.joint(name)[None]]).detach()

    def _check_latent(self, name: str) -> None:
        if name not in self.graph.latent:
            latents = ", ".join(self.graph.latent) or "none"
            raise QueryError(f"Expected the name of a latent, got {name!r}. The model has: {latents}.")

    @torch.no_grad()
    def _memberships(self, data: DataLike, name: str | None) -> dict[str, Tensor]:
        """latent -> (rows, states) posteriors."""
        self.require_fitted()
        if name is None and not self.graph.latent:
            raise QueryError("The model has no latent variable to predict.")
        if name is not None:
            self._check_latent(name)
        names = list(self.graph.latent) if name is None else [name]
        self._warn_unidentified(names)
        parts: dict[str, list[Tensor]] = {h: [] for h in names}
        for batch in self._batches(data):
            if len(names) == 1:
                parts[names[0]].append(self.network.posterior(names[0], batch))
            else:
                answers = self.network.posteriors(batch, include_latent=True)
                for h in names:
                    parts[h].append(answers[h])
        return {h: torch.cat(x) for h, x in parts.items()}

    def _warn_unidentified(self, names: Sequence[str]) -> None:
        """Warn of latents whose states are not identified by the distribution of the observables."""
        free = [h for h in names if len(self.latent_views[h].groups) < 3 and self.graph.num_states(h) > 1]
        if free:
            warn_caller(
                f"The states of {free} are not identified: fewer than three groups of observables are independent given it, so "
                "other tables give the observables the same distribution. Do not read a meaning into them; see diagnostics().",
                IdentificationWarning,
            )
