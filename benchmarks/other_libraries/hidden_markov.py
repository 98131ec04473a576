"""hmmlearn and pomegranate: Baum-Welch for discrete hidden Markov models, from given parameters."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.work import Answer, Array, Work, first_step, needs


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


@needs("hmmlearn")
def hmmlearn_em(initial: Parameters, sequences: Array, iterations: int) -> Work:
    """hmmlearn's CategoricalHMM on (rows, sites) symbols, with scaling, which is faster than the default (logarithms)."""
    from hmmlearn.hmm import CategoricalHMM

    rows, sites = sequences.shape
    column, lengths = sequences.reshape(-1, 1), [sites] * rows
    states, symbols = initial.emission.shape

    def run(steps: int = iterations) -> Any:
        options = {"init_params": "", "implementation": "scaling", "n_features": symbols}
        model = CategoricalHMM(states, n_iter=steps, tol=-np.inf, **options)
        model.startprob_, model.transmat_, model.emissionprob_ = initial.start, initial.step, initial.emission
        return model.fit(column, lengths)

    def parameters(model: Any) -> Answer:
        return {"start": model.startprob_, "step": model.transmat_, "emission": model.emissionprob_}

    return Work(run, lambda model: parameters(model) | first_step(parameters(run(1))))


@needs("pomegranate")
def pomegranate_em(initial: Parameters, sequences: Array, iterations: int) -> Work:
    """pomegranate's DenseHMM on (rows, sites) symbols.

    It also models the end of a sequence by a probability in each state. This has no counterpart here and is removed from its
    transition table; the first iteration, from equal end probabilities, is the same as in the other libraries.
    """
    import torch
    from pomegranate.distributions import Categorical
    from pomegranate.hmm import DenseHMM

    data = torch.from_numpy(sequences).unsqueeze(2)
    continuing = 1 - 1 / sequences.shape[1]

    def run(steps: int = iterations) -> Any:
        single = {name: table.astype(np.float32) for name, table in asdict(initial).items()}
        model = DenseHMM(
            [Categorical(row[None]) for row in single["emission"]],
            edges=single["step"] * np.float32(continuing),
            starts=single["start"],
            ends=np.full(len(initial.start), 1 - continuing, dtype=np.float32),
            max_iter=steps,
            tol=0.0,
        )
        return model.fit(data)

    def parameters(model: Any) -> Answer:
        start, step = model.starts.exp().double().numpy(), model.edges.exp().double().numpy()
        emission = np.stack([d.probs[0].double().numpy() for d in model.distributions])
        tables = {"start": start, "step": step, "emission": emission}
        return {name: table / table.sum(axis=-1, keepdims=True) for name, table in tables.items()}

    return Work(run, lambda model: parameters(model) | first_step(parameters(run(1))))
