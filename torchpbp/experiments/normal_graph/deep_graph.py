"""Four learning rules on a deeper graph: five hidden variables above three observables [NG 7.2]."""

from __future__ import annotations

from torchpbp.exact.network import DiscreteNetwork
from torchpbp.experiments.grid import Run
from torchpbp.experiments.normal_graph.comparison import compare_rules
from torchpbp.experiments.normal_graph.pictures import coefficients_picture, courses_picture
from torchpbp.experiments.normal_graph.rules import Case, MakeModel, learn_cases
from torchpbp.experiments.results import Result
from torchpbp.graph.latent_graph import LatentGraph
from torchpbp.settings import positive, whole


def deep_graph() -> LatentGraph:
    """Eight variables in layers: S1 -> Y1 -> X1, X2; (S1, S2) -> Y2; (Y2, S3) -> X3; only X1, X2, X3 are observed.

    Numbers of states, and which pairs of variables meet in a product space, are those of the paper's text; that X1 and X2
    hang on Y1 is our reading, since the text leaves it to a figure.
    """
    edges = [("S1", "Y1"), ("S1", "Y2"), ("S2", "Y2"), ("Y1", "X1"), ("Y1", "X2"), ("Y2", "X3"), ("S3", "X3")]
    states = {"S1": 4, "S2": 2, "S3": 3, "Y1": 3, "Y2": 4, "X1": 3, "X2": 2, "X3": 3}
    return LatentGraph(edges, states, latent=["S1", "S2", "S3", "Y1", "Y2"])


def ng_deep_graph(model: MakeModel, run: Run, rows: int = 100, concentration: float = 0.3, repeats: int = 20) -> Result:
    """Log-likelihood reached by each rule on rows of random networks with five hidden variables.

    Each repeat draws a network, rows, and one start that is the same for all rules.

    Args:
        model: makes a learner of normal graphs.
        run: the run.
        rows: to learn from.
        concentration: of the Dirichlet distribution of the networks' tables; small values tie variables more closely.
        repeats: networks.

    Returns:
        Metrics of :func:`~torchpbp.experiments.normal_graph.comparison.compare_rules`; the case is "deep", measures are
        "aggregated" [NG eq. 28] and "log_evidence", both sums over rows.
    """
    for name, value in (("rows", rows), ("repeats", repeats)):
        whole(1).check(f"task.{name}", value)
    positive().check("task.concentration", concentration)
    graph = deep_graph()
    seeds = [run.seeds(repeat, 3) for repeat in range(repeats)]  # of the network, its rows, and the start
    truths = [DiscreteNetwork.random(graph, network, concentration) for network, _, _ in seeds]
    samples = [truth.sample(rows, seed=drawn) for truth, (_, drawn, _) in zip(truths, seeds, strict=True)]
    case = Case("deep", graph, samples, [start for _, _, start in seeds], truths, history=True)
    learned = learn_cases("deep graph", model, [case], run)["deep"]
    pictures = {
        "log_likelihood": courses_picture(
            {"five hidden variables": learned.courses}, "epochs", "aggregated log-likelihood"
        ),
        "coefficients": coefficients_picture(learned.coefficients),
    }
    return compare_rules(learned.lines, ("log_evidence", "aggregated"), ("log_evidence", "deep"), pictures)
