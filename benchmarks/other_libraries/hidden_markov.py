"""hmmlearn and pomegranate: Baum-Welch for discrete hidden Markov models, from given parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.implementation import Answer, Array, Implementation, first_step


@dataclass(frozen=True)
class Parameters:
    """Parameters of a homogeneous hidden Markov model.

    Args:
        start: (states,) of the first state.
        step: (states, states) from each state to the next.
        emission: (states, symbols).
    """

    start: Array
    step: Array
    emission: Array

    def answer(self) -> Answer:
        return {"start": self.start, "step": self.step, "emission": self.emission}


@dataclass
class BaumWelch(Implementation):
    """A number of EM iterations; the result are the parameters, and those after a single iteration."""

    initial: Parameters
    sequences: Array  # (rows, sites) symbols
    iterations: int

    def run(self) -> Any:
        return self.fit(self.iterations)

    def fit(self, iterations: int) -> Any:
        raise NotImplementedError

    def parameters(self, model: Any) -> Parameters:
        raise NotImplementedError

    def answer(self, result: Any) -> Answer:
        once = self.parameters(self.fit(1)).answer()
        return self.parameters(result).answer() | {first_step(name): values for name, values in once.items()}


@dataclass
class Hmmlearn(BaumWelch):
    """hmmlearn's CategoricalHMM, with scaling, which is faster than the default (logarithms)."""

    library: ClassVar[str] = "hmmlearn"

    def prepare(self) -> None:
        from hmmlearn.hmm import CategoricalHMM

        self._make = CategoricalHMM
        rows, sites = self.sequences.shape
        self._column = self.sequences.reshape(-1, 1)
        self._lengths = [sites] * rows

    def fit(self, iterations: int) -> Any:
        states, symbols = self.initial.emission.shape
        model = self._make(
            states, n_iter=iterations, tol=-np.inf, init_params="", implementation="scaling", n_features=symbols
        )
        model.startprob_, model.transmat_, model.emissionprob_ = (
            self.initial.start,
            self.initial.step,
            self.initial.emission,
        )
        return model.fit(self._column, self._lengths)

    def parameters(self, model: Any) -> Parameters:
        return Parameters(model.startprob_, model.transmat_, model.emissionprob_)


@dataclass
class Pomegranate(BaumWelch):
    """pomegranate's DenseHMM.

    It also models the end of a sequence by a probability in each state. This has no counterpart here and is removed from its
    transition table; the first iteration, from equal end probabilities, is the same as in the other libraries.
    """

    library: ClassVar[str] = "pomegranate"

    def prepare(self) -> None:
        import torch
        from pomegranate.distributions import Categorical
        from pomegranate.hmm import DenseHMM

        self._make, self._emission = DenseHMM, Categorical
        self._data = torch.from_numpy(self.sequences).unsqueeze(2)

    def fit(self, iterations: int) -> Any:
        states = len(self.initial.start)
        continuing = 1 - 1 / self.sequences.shape[1]
        model = self._make(
            [self._emission(row[None].astype(np.float32)) for row in self.initial.emission],
            edges=(self.initial.step * continuing).astype(np.float32),
            starts=self.initial.start.astype(np.float32),
            ends=np.full(states, 1 - continuing, dtype=np.float32),
            max_iter=iterations,
            tol=0.0,
        )
        return model.fit(self._data)

    def parameters(self, model: Any) -> Parameters:
        step = model.edges.exp().double().numpy()
        start = model.starts.exp().double().numpy()
        emission = np.stack([d.probs[0].double().numpy() for d in model.distributions])
        step, emission = (table / table.sum(axis=1, keepdims=True) for table in (step, emission))
        return Parameters(start / start.sum(), step, emission)
