"""Asking a fitted KernelPBP: posteriors, probability of evidence, samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchpbp.arguments import seed_or_drawn, whole_number
from torchpbp.contract.frames import Frames
from torchpbp.errors import NotFittedError, QueryError, ShapeError
from torchpbp.features.kernels import RBF, Kernel
from torchpbp.graph.junction_tree import JunctionTree
from torchpbp.graph.latent_graph import Continuous, Domain, LatentGraph
from torchpbp.inputs.evidence import Evidence, EvidenceLike, left_to_ask, read_evidence
from torchpbp.models.answers import check_query
from torchpbp.models.kernel.charts import Chart
from torchpbp.models.kernel.comparison import Comparison
from torchpbp.models.kernel.estimates import density_at, joined, state_probabilities, value_density
from torchpbp.models.kernel.messages import MessagePassing, Upward, product
from torchpbp.models.kernel.sampling import Blur, draw_rows

BATCH_ELEMENTS = 1 << 22
"""Entries of one (rows of evidence, training rows) matrix handled at once."""


class GramAnswers(Frames, nn.Module):
    """The query side of a model that keeps its training rows.

    Attributes:
        graph, tree: the structure.
        names: the observables, in the order of the columns of ``examples``.
        kernel, chart: how continuous variables are compared.
        examples: (rows, variables) training rows, completed.
        widths, evidence_widths: (variables,) bandwidths of learning and of evidence.
        bounds: (variables, 2) ranges of densities.
        operators: node -> operator of its separator.
        positive: whether messages are clipped at 0.
        dtype: of messages.
        labels: labels of the states of variables that were given by label.
        fitted: whether there is anything to ask.
    """

    graph: LatentGraph
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
    labels: dict[str, tuple[Any, ...]]
    fitted: bool

    def _solved_operators(self) -> nn.ModuleDict:
        return self.operators

    # -- queries -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def log_evidence(self, evidence: EvidenceLike = None) -> Tensor:
        """(batch,) log P(evidence); for continuous evidence the log of a kernel-smoothed density.

        An estimate that is not positive is replaced by the smallest positive number of its scale, so the result is finite.
        """
        checked = self._read(evidence)
        parts = []
        for rows in self._chunks(checked):
            up = self._upward(rows)
            value = product([up.messages[c] for c in self.tree.children[0]]).mean(dim=1)
            logs = value.clamp(min=torch.finfo(value.dtype).tiny).log().double() + up.log_scale
            parts.append(rows.scaled(logs))
        return torch.cat(parts)

    @torch.no_grad()
    def posterior(self, query: str, evidence: EvidenceLike = None, *, at: Any = None) -> Any:
        """P(query | evidence).

        Returns:
            (batch, states) for a discrete variable. For a continuous one the (batch, n) density at the points ``at``, or
            without them a :class:`~torchpbp.inference.density.Density`.
        """
        checked = self._read(evidence)
        if not isinstance(query, str):
            raise QueryError(f"KernelPBP answers about one variable at a time, got {query!r}.")
        check_query(self.graph, (query,), checked)
        domain = self.graph.variables[query]
        if at is not None and not isinstance(domain, Continuous):
            raise QueryError(f"Query of '{query}': at= is for continuous variables, and this one has states.")
        parts = [self._answer(query, self._weights(rows, [query])[query], rows, at) for rows in self._chunks(checked)]
        return joined(parts)

    @torch.no_grad()
    def posteriors(self, evidence: EvidenceLike = None) -> dict[str, Any]:
        """Posteriors of every observable that is not observed in all rows, from one pass up and one down.

        Complete rows leave nothing to ask: a warning says so, and :meth:`log_evidence` has their probability.
        """
        checked = self._read(evidence)
        wanted = left_to_ask(self.names, checked)
        parts: dict[str, list[Any]] = {v: [] for v in wanted}
        for rows in self._chunks(checked):
            weights = self._weights(rows, wanted)
            for v in wanted:
                parts[v].append(self._answer(v, weights[v], rows, None))
        return {v: joined(p) for v, p in parts.items()}

    forward = posteriors

    @torch.no_grad()
    def sample(self, n: int, evidence: EvidenceLike = None, seed: int | None = None) -> dict[str, Tensor]:
        """Draw all observables given evidence: leaf by leaf, each from a training row blurred by the evidence kernel.

        Draws stay within each variable's range, and follow its posterior density there.

        Returns:
            name -> (n,) without evidence, (n, batch) with.
        """
        if whole_number("n", n, ShapeError) < 0:
            raise ShapeError(f"n: expected a non-negative number of draws, got {n}.")
        if not isinstance(self.kernel, RBF):
            raise QueryError("Sampling needs the RBF kernel: others have no noise to draw from here.")
        checked = self._read(evidence)
        self._check_charted([v for v in self.names if not checked.observed_everywhere(v)])
        generator = torch.Generator().manual_seed(seed_or_drawn(seed, QueryError))
        wide = checked.repeat_interleave(n)
        current = Evidence(wide.batch, dict(wide.hard), dict(wide.soft), dict(wide.real))
        for leaf in self.tree.leaves:
            group = self.tree.leaf_observables[leaf]
            chosen = torch.cat([self._draw_rows(rows, leaf, generator) for rows in self._chunks(current)])
            for v in group:
                i = self.names.index(v)
                if isinstance(self.graph.variables[v], Continuous):
                    drawn = self._blur().draw(i, chosen, generator)
                    known = current.real.get(v)
                    current.real[v] = drawn if known is None else torch.where(known.isnan(), drawn, known)
                else:
                    drawn, states = self.examples[chosen, i].long(), current.hard.get(v)
                    current.hard[v] = drawn if states is None else torch.where(states < 0, drawn, states)
                    current.soft.pop(v, None)
        values = {v: current.real[v] if v in current.real else current.hard[v] for v in self.names}
        if evidence is None:
            return values
        return {v: x.reshape(checked.batch, n).T for v, x in values.items()}

    # -- inner workings ------------------------------------------------------------------------------------------

    def _read(self, evidence: EvidenceLike) -> Evidence:
        if not self.fitted:
            raise NotFittedError("This KernelPBP model is not fitted yet. Call fit(data).")
        return read_evidence(
            evidence, self._domains(), latent=self.graph.latent, labels=self.labels, device=self.examples.device
        )

    def _chunks(self, evidence: Evidence) -> Iterator[Evidence]:
        step = max(1, BATCH_ELEMENTS // len(self.examples))
        for start in range(0, max(1, evidence.batch), step):
            yield evidence.rows(slice(start, start + step))

    def _upward(self, evidence: Evidence) -> Upward:
        return self._passing().upward(*self._leaf_values(evidence))

    def _downward(self, up: Upward, leaves: set[int]) -> dict[int, Tensor]:
        return self._passing().downward(up, leaves)

    def _passing(self) -> MessagePassing:
        return MessagePassing(self.tree, self._solved_operators(), self.positive)

    def _blur(self) -> Blur:
        return Blur(self.examples, self.evidence_widths, self.bounds)

    def _leaf_values(self, evidence: Evidence, skip: str | None = None) -> tuple[dict[int, Tensor], Tensor]:
        leaves = {leaf: self.tree.leaf_observables[leaf] for leaf in self.tree.leaves}
        return self._comparison().leaf_values(leaves, evidence, skip)

    def _domains(self) -> dict[str, Domain]:
        return {v: self.graph.variables[v] for v in self.names}

    def _comparison(self) -> Comparison:
        return Comparison(self._domains(), self.chart, self.kernel, self.evidence_widths, self.examples, self.dtype)

    def _weights(self, evidence: Evidence, names: Sequence[str]) -> dict[str, Tensor]:
        """(batch, rows) weights of the training rows for each variable, its own evidence left out."""
        self._check_charted(names)
        up = self._upward(evidence)
        leaves = {self.tree.leaf_of[v] for v in names}
        down = self._downward(up, leaves)
        result = {}
        for v in names:
            leaf = self.tree.leaf_of[v]
            weights = down[leaf]
            if len(self.tree.leaf_observables[leaf]) > 1:
                weights = weights * self._leaf_values(evidence, skip=v)[0][leaf]
            result[v] = weights
        return result

    def _check_charted(self, names: Sequence[str]) -> None:
        for v in names:
            if v in self.chart.moved:
                raise QueryError(
                    f"Query of '{v}': it is compared by increments, which have no density of their own. Leave it out of sequences=."
                )

    def _answer(self, name: str, weights: Tensor, evidence: Evidence, at: Any) -> Any:
        i = self.names.index(name)
        values, domain = self.examples[:, i], self.graph.variables[name]
        if isinstance(domain, int):
            return state_probabilities(weights, values, domain, evidence.soft.get(name), evidence.hard.get(name))
        density = value_density(weights, values, self.bounds[i], self.kernel, float(self.evidence_widths[i]))
        return density if at is None else density_at(density, at)

    def _draw_rows(self, evidence: Evidence, leaf: int, generator: torch.Generator) -> Tensor:
        """(batch,) training rows drawn by the weights at a leaf, evidence on the leaf included."""
        up = self._upward(evidence)
        weights = (self._downward(up, {leaf})[leaf] * up.messages[leaf]).clamp(min=0).double()
        table = self._comparison().table(evidence)
        for v in self.tree.leaf_observables[leaf]:
            i = self.names.index(v)
            if isinstance(self.graph.variables[v], Continuous):  # only what lies in the range can be drawn
                inside = weights * self._blur().share_inside(i)
                weights = torch.where(table[:, i].isnan().unsqueeze(1), inside, weights)
        return draw_rows(weights, generator)
