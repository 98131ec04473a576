"""The graph of all other variables given one of them."""

from __future__ import annotations

from torchpbp.errors import StructureError
from torchpbp.graph.latent_graph import Continuous, LatentGraph


def conditional_graph(graph: LatentGraph, name: str) -> LatentGraph:
    """The structure of P(all others | ``name``).

    Conditioning removes a node from the moral graph. For a node without parents, the directed graph without it is equivalent; a
    node with parents makes them dependent, which only an undirected graph can express.

    Args:
        graph: directed or undirected.
        name: an observed variable.
    """
    variables = {v: d for v, d in graph.variables.items() if v != name}
    directed = graph.directed and not graph.parents(name)
    edges = graph.edges if directed else tuple(graph.moral_graph().edges())
    labels = {v: x for v, x in graph.labels.items() if v != name}
    return LatentGraph([e for e in edges if name not in e], variables, graph.latent, directed, labels)


def require_condition(graph: LatentGraph, name: str) -> None:
    """Raise unless a variable can be conditioned on: observed, discrete, and not the only observable.

    Args:
        graph: graph of the model.
        name: name of the variable, unchecked.

    Raises:
        StructureError: any other variable.
    """
    discrete = [v for v in graph.observed if not isinstance(graph.variables[v], Continuous)]
    discrete_names = f"Discrete observables: {', '.join(discrete) or 'none'}."
    if name not in graph.variables:
        raise StructureError(f"condition={name!r}: the graph has no such variable. {discrete_names}")
    if graph.is_latent(name):
        raise StructureError(
            f"condition={name!r}: it is latent, and its classes cannot be told apart in the data. {discrete_names}"
        )
    if name not in discrete:
        raise StructureError(f"condition={name!r}: it is continuous and has no classes. {discrete_names}")
    if len(graph.observed) == 1:
        raise StructureError(f"condition={name!r}: it is the only observable, so that nothing is left to learn about.")
