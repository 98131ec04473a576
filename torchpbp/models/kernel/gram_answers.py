"""Queries of a fitted KernelPBP: posteriors, log-evidence and samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.contract.abilities import Learner, Sampling
from torchpbp.errors import QueryError
from torchpbp.features.kernels import RBF, Kernel
from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.graph.latent_graph import Continuous
from torchpbp.inputs.evidence import Evidence, EvidenceLike
from torchpbp.models.kernel.blur import Blur, draw_rows
from torchpbp.models.kernel.charts import Chart
from torchpbp.models.kernel.comparison import Comparison
from torchpbp.models.kernel.estimates import density_at, joined, state_probabilities, value_density
from torchpbp.models.kernel.gram_messages import GramMessagePassing, GramMessages, flushed_denormals, product

BATCH_ELEMENTS = 1 << 19
"""Entries of one (rows of evidence, training rows) matrix handled at once."""


class GramAnswers(nn.Module, Learner, Sampling):
    """The query side of a model that stores its training rows.

    Attributes:
        tree: the junction tree.
        names: the observables, in the order of the columns of ``examples``.
        kernel, chart: kernel and coordinates of continuous variables.
        examples: (rows, variables) training rows, completed.
        widths, evidence_widths: (variables,) bandwidths of learning and of evidence.
        bounds: (variables, 2) ranges of densities.
        operators: node -> operator of its separator.
        positive: whether messages are clipped at 0.
        dtype: of messages.
    """

    tree: JunctionTree
    names: tuple[str, ...]
    kernel: Kernel
    chart: Chart
    examples: Tensor
    widths: Tensor
    evidence_widths: Tensor
    bounds: Tensor
    operators: nn.ModuleDict
    positive: bool
    dtype: torch.dtype

    @property
    def device(self) -> torch.device:
        """Device of the training rows."""
        return self.examples.device if self.fitted else torch.device("cpu")

    def _solved_operators(self) -> nn.ModuleDict:
        return self.operators

    # -- queries -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def log_evidence(self, evidence: EvidenceLike = None) -> Tensor:
        """(batch,) log P(evidence); for continuous evidence the log of a kernel-smoothed density.

        An estimate that is not positive is replaced by the smallest positive number of its scale, so the result is finite.
        """
        parts = []
        for rows in self._chunks(self.read_evidence(evidence)):
            up = self._upward(rows, keep=False)
            with flushed_denormals():
                value = product([up.messages[c] for c in self.tree.children[0]]).mean(dim=1)
            logs = value.clamp(min=torch.finfo(value.dtype).tiny).log().double() + up.log_scale
            parts.append(rows.scaled(logs))
        return torch.cat(parts)

    @torch.no_grad()
    def posterior(self, query: str | Sequence[str], evidence: EvidenceLike = None, *, at: Any = None) -> Any:
        """P(query | evidence) of one variable.

        Returns:
            (batch, states) for a discrete variable. For a continuous one the (batch, n) density at the points ``at``, or
            without them a :class:`~torchpbp.inference.density.Density`. A DataFrame for a DataFrame.
        """

        def answer(names: tuple[str, ...], checked: Evidence) -> Any:
            (name,) = names
            if at is not None and not isinstance(self.graph.variables[name], Continuous):
                raise QueryError(f"Query of '{name}': at= is for continuous variables, and this one has states.")
            return joined([self._answers([name], rows, at)[name] for rows in self._chunks(checked)])

        return self._ask(query, evidence, answer, at)

    @torch.no_grad()
    def posteriors(self, evidence: EvidenceLike = None) -> Any:
        """Posteriors of every observable that is not observed in all rows, from one upward and one downward pass.

        If every row observes everything, the result is empty, with a warning; :meth:`log_evidence` returns the probability.
        """

        def answer(names: list[str], checked: Evidence) -> dict[str, Any]:
            parts = [self._answers(names, rows) for rows in self._chunks(checked)]
            return {v: joined([part[v] for part in parts]) for v in names}

        return self._ask_all(evidence, answer)

    forward = posteriors

    @torch.no_grad()
    def sample(self, n: int, evidence: EvidenceLike = None, seed: int | None = None) -> dict[str, Tensor]:
        """Draw all observables given evidence, leaf by leaf, each from a training row blurred by the evidence kernel.

        Draws follow the posterior density within each variable's range.

        Returns:
            name -> (n,) without evidence, (n, batch) with.
        """
        if not isinstance(self.kernel, RBF):
            raise QueryError("Sampling needs the RBF kernel: others have no noise to draw from here.")
        return self._draw(n, evidence, seed, self._draw_all)

    # -- inner workings ------------------------------------------------------------------------------------------

    def _draw_all(self, rows: Evidence, generator: torch.Generator) -> dict[str, Tensor]:
        """One draw for each row of evidence."""
        self._check_charted([v for v in self.names if not rows.observed_everywhere(v)])
        current = Evidence(rows.batch, dict(rows.hard), dict(rows.soft), dict(rows.real))
        for leaf in self.tree.leaves:
            group = self.tree.leaf_observables[leaf]
            chosen = torch.cat([self._draw_rows(part, leaf, generator) for part in self._chunks(current)])
            for v in group:
                i = self.names.index(v)
                if isinstance(self.graph.variables[v], Continuous):
                    drawn = self._blur().draw(i, chosen, generator)
                    values = current.real.get(v)
                    current.real[v] = drawn if values is None else torch.where(values.isnan(), drawn, values)
                else:
                    drawn, states = self.examples[chosen, i].long(), current.hard.get(v)
                    current.hard[v] = drawn if states is None else torch.where(states < 0, drawn, states)
                    current.soft.pop(v, None)
        return {v: current.real[v] if v in current.real else current.hard[v] for v in self.names}

    def _chunks(self, evidence: Evidence) -> Iterator[Evidence]:
        step = max(1, BATCH_ELEMENTS // len(self.examples))
        for start in range(0, max(1, evidence.batch), step):
            yield evidence.rows(slice(start, start + step))

    def _upward(self, evidence: Evidence, keep: bool = True) -> GramMessages:
        passing, comparison = self._passing(), self._comparison()

        def leaf_values(leaf: int) -> tuple[Tensor, Tensor]:
            values, log_factor = comparison.leaf_values({leaf: self.tree.leaf_observables[leaf]}, evidence)
            return values[leaf], log_factor

        with flushed_denormals():
            return passing.upward(leaf_values, keep)

    def _downward(self, up: GramMessages, leaves: set[int]) -> dict[int, Tensor]:
        with flushed_denormals():
            return self._passing().downward(up, leaves)

    def _passing(self) -> GramMessagePassing:
        return GramMessagePassing(self.tree, self._solved_operators(), self.positive)

    def _blur(self) -> Blur:
        return Blur(self.examples, self.evidence_widths, self.bounds)

    def _comparison(self) -> Comparison:
        return Comparison(
            self.evidence_domains(), self.chart, self.kernel, self.evidence_widths, self.examples, self.dtype
        )

    def _weights(self, evidence: Evidence, names: Sequence[str]) -> dict[str, Tensor]:
        """name -> (batch, rows) weights of the training rows, without the variable's own evidence."""
        self._check_charted(names)
        up = self._upward(evidence)
        leaves = {self.tree.leaf_of[v] for v in names}
        down = self._downward(up, leaves)
        result = {}
        for v in names:
            leaf = self.tree.leaf_of[v]
            weights = down[leaf]
            if len(self.tree.leaf_observables[leaf]) > 1:
                group = {leaf: self.tree.leaf_observables[leaf]}
                weights = weights * self._comparison().leaf_values(group, evidence, skip=v)[0][leaf]
            result[v] = weights
        return result

    def _check_charted(self, names: Sequence[str]) -> None:
        for v in names:
            if v in self.chart.moved:
                raise QueryError(
                    f"Query of '{v}': it is compared by increments, which have no density of their own. Leave it out of sequences=."
                )

    def _answers(self, names: Sequence[str], evidence: Evidence, at: Any = None) -> dict[str, Any]:
        """Posteriors of variables for checked evidence; with ``at`` the density of a continuous variable at these points."""
        result: dict[str, Any] = {}
        for name, weights in self._weights(evidence, names).items():
            i = self.names.index(name)
            values, domain = self.examples[:, i], self.graph.variables[name]
            if isinstance(domain, int):
                soft, hard = evidence.soft.get(name), evidence.hard.get(name)
                result[name] = state_probabilities(weights, values, domain, soft, hard)
            else:
                density = value_density(weights, values, self.bounds[i], self.kernel, float(self.evidence_widths[i]))
                result[name] = density if at is None else density_at(density, at)
        return result

    def _draw_rows(self, evidence: Evidence, leaf: int, generator: torch.Generator) -> Tensor:
        """(batch,) training rows drawn by the weights at a leaf, including evidence on the leaf."""
        up = self._upward(evidence)
        weights = (self._downward(up, {leaf})[leaf] * up.messages[leaf]).clamp(min=0).double()
        table = self._comparison().table(evidence)
        for v in self.tree.leaf_observables[leaf]:
            i = self.names.index(v)
            if isinstance(self.graph.variables[v], Continuous):  # draws are truncated to the range
                inside = weights * self._blur().share_inside(i)
                weights = torch.where(table[:, i].isnan().unsqueeze(1), inside, weights)
        return draw_rows(weights, generator)
