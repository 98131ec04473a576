"""EM compared with pgmpy's EM, per iteration from the same start, on a loopy network of eight variables.

pgmpy enumerates all joint states of the latent variables for each distinct row; torchpbp passes messages for all rows at
once. A second comparison is between ten starts in one batch and the same ten one after the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import torch
from torch import Tensor

from benchmarks.other_libraries.with_pgmpy import PgmpyEM
from benchmarks.this_library import tables_of
from benchmarks.timing import Comparison, compare, write_comparisons
from torchpbp import EM, DiscreteNetwork, LatentGraph
from torchpbp.errors import DataError
from torchpbp.models.likelihood.expectation import ExpectationStep
from torchpbp.models.likelihood.rows import distinct_rows


def loopy_eight(states: int = 2, observed_states: int = 4) -> LatentGraph:
    """The loop A -> {B, C} -> D of latents, each with one observable."""
    edges = [("A", "B"), ("A", "C"), ("B", "D"), ("C", "D"), *((h, h.lower()) for h in "ABCD")]
    return LatentGraph(edges, dict.fromkeys("ABCD", states) | dict.fromkeys("abcd", observed_states), list("ABCD"))


def pgmpy_tables(start: DiscreteNetwork, data: Mapping[str, Tensor], iterations: int) -> dict[str, Tensor]:
    """Tables after some iterations of pgmpy's EM, laid out as those of :class:`torchpbp.DiscreteNetwork`."""
    columns = {v: x.numpy() for v, x in data.items()}
    learner = PgmpyEM("pgmpy", tables_of(start), tuple(start.graph.latent), columns, iterations)
    learner.prepare()
    return {v: torch.from_numpy(table) for v, table in learner.answer(learner.run()).items()}


def run(rows: int = 5_000, iterations: int = 5, rounds: int = 3) -> list[Comparison]:
    """Time both.

    Args:
        rows: of the training data.
        iterations: of each call.
        rounds: measurements of each.
    """
    graph = loopy_eight()
    data = DiscreteNetwork.random(graph, seed=1).sample(rows, seed=2)
    start = DiscreteNetwork.random(graph, seed=3)

    def ours() -> EM:
        settings = {"restarts": 1, "max_steps": iterations, "relative_tolerance": 0.0, "prior": 0.0, "progress": False}
        return EM(graph, start=start, **settings).fit(data)

    expected = pgmpy_tables(start, data, iterations)
    learned = ours().match_states(DiscreteNetwork(graph, expected)).network.cpts
    difference = max(float((learned[v] - expected[v]).abs().max()) for v in learned)
    if difference > 1e-6:
        raise DataError(f"EM: expected the tables of pgmpy, got tables that differ by {difference}.")
    implementations = {"torchpbp": ours, "pgmpy": lambda: pgmpy_tables(start, data, iterations)}
    against = compare(implementations, f"EM from data to tables: {iterations} iterations, {rows:,} rows", rounds)
    return [against, side_by_side(graph, data, rounds=max(rounds, 5))]


def side_by_side(graph: LatentGraph, data: Mapping[str, Tensor], starts: int = 10, rounds: int = 5) -> Comparison:
    """One iteration from several starts, as one batch and one start after the other."""
    rows, counts = distinct_rows(data, torch.ones(len(next(iter(data.values()))), dtype=torch.float64))
    step = ExpectationStep(graph, rows, counts)
    networks = [DiscreteNetwork.random(graph, seed) for seed in range(starts)]
    vectors = torch.stack([step.layout.vector(dict(n.factors)) for n in networks])

    def iterate(given: Tensor) -> Tensor:
        return step.layout.maximised(step(given)[1], 0.01)

    if not torch.allclose(iterate(vectors), torch.cat([iterate(v[None]) for v in vectors])):
        raise DataError("EM: runs side by side differ from runs alone.")
    implementations = {"side by side": lambda: iterate(vectors), "in turn": lambda: [iterate(v[None]) for v in vectors]}
    return compare(implementations, f"one iteration of {starts} starts, {len(counts):,} different rows", rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in {"rows": 5_000, "iterations": 5, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--output", default="benchmarks/results", help="folder for the results")
    arguments = vars(parser.parse_args())
    folder = arguments.pop("output")
    torch.set_num_threads(1)
    results = run(**arguments)
    print(*results, sep="\n\n")
    write_comparisons(folder, "em", results, packages=["pgmpy"])
