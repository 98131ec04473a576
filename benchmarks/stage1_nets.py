"""Stage-1 networks of a long chain compared with one network of the same total width.

The networks of all separators of a 60-site hidden Markov model are trained as one batched module. The reference is the
network of one separator with as many hidden units as all of them together.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.timing import Comparison, compare, write_comparisons
from torchpbp import MLP, DiscreteNetwork, build_junction_tree, templates
from torchpbp.features.maps import OneHot
from torchpbp.learning.regressions import core_regression
from torchpbp.moments.joint_tables import JointTables
from torchpbp.moments.rows import TrainingRows
from torchpbp.moments.table_moments import TableMoments
from torchpbp.planning import plan_tree


def run(sites: int = 60, rows: int = 4_000, hidden: int = 16, epochs: int = 2, rounds: int = 5) -> Comparison:
    """Time both.

    Args:
        sites: of the chain.
        rows: to train on.
        hidden: units of each separator's net.
        epochs: passes over the rows.
        rounds: measurements of each.
    """
    network = DiscreteNetwork.random(templates.hmm(sites), seed=0)
    states = {v: network.states[v] for v in network.graph.observed}
    data = network.sample(rows, seed=1)
    plan = plan_tree(build_junction_tree(network.graph))
    tables = JointTables(MLP().required_tables(plan), states)
    tables.add(torch.stack([data[v] for v in states]))
    moments = TableMoments(tables)
    regressions = [core_regression(plan, n, moments)[0] for n in range(1, len(plan.tree))]
    table = TrainingRows.of(data, {v: OneHot(s) for v, s in states.items()})
    quiet = {"enable_progress_bar": False}
    settings = {"folds": 2, "epochs": epochs, "batch_size": 500, "patience": None, "trainer": quiet}
    middle = regressions[len(regressions) // 2]
    return compare(
        {
            f"one net with {hidden * len(regressions)} hidden units": lambda: MLP(
                hidden=[hidden * len(regressions)], **settings
            ).fit(table, [middle]),
            f"{len(regressions)} nets with {hidden} each": lambda: MLP(hidden=[hidden], **settings).fit(
                table, regressions
            ),
        },
        title=f"stage 1A of a {sites}-site chain: {len(regressions)} separators, {rows:,} rows, {epochs} epochs",
        rounds=rounds,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in {"sites": 60, "rows": 4_000, "hidden": 16, "epochs": 2, "rounds": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--output", default="benchmarks/results", help="folder for the results")
    arguments = vars(parser.parse_args())
    folder = arguments.pop("output")
    torch.set_num_threads(1)
    result = run(**arguments)
    print(result)
    write_comparisons(folder, "stage1_nets", [result], packages=["lightning"])
