"""Template latent graphs: the structures of the papers and of the tests.

Invalid numbers raise an :class:`~torchpbp.errors.ArgumentError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from torchpbp.errors import ArgumentError
from torchpbp.graph.latent_graph import Continuous, Domain, LatentGraph
from torchpbp.settings import whole


def hmm(length: int = 6, states: int | None = 3, observed_states: int = 4, order: int = 1) -> LatentGraph:
    """A hidden Markov model h1 -> h2 -> … with one observable per latent; each latent depends on the ``order`` previous ones."""
    _at_least(1, length=length, order=order)
    variables: dict[str, Domain] = {f"h{t}": states for t in range(1, length + 1)}
    variables |= {f"x{t}": observed_states for t in range(1, length + 1)}
    edges = [(f"h{t - k}", f"h{t}") for t in range(1, length + 1) for k in range(order, 0, -1) if t - k >= 1]
    edges += [(f"h{t}", f"x{t}") for t in range(1, length + 1)]
    return LatentGraph(edges, variables, [f"h{t}" for t in range(1, length + 1)])


def factorial_hmm(length: int = 4, chains: int = 2, states: int | None = 2, observed_states: int = 6) -> LatentGraph:
    """Independent hidden chains with one common observable per time step."""
    _at_least(1, length=length, chains=chains)
    latent = [f"h{c}_{t}" for t in range(1, length + 1) for c in range(1, chains + 1)]
    variables: dict[str, Domain] = dict.fromkeys(latent, states)
    variables |= {f"x{t}": observed_states for t in range(1, length + 1)}
    edges = [(f"h{c}_{t - 1}", f"h{c}_{t}") for t in range(2, length + 1) for c in range(1, chains + 1)]
    edges += [(f"h{c}_{t}", f"x{t}") for t in range(1, length + 1) for c in range(1, chains + 1)]
    return LatentGraph(edges, variables, latent)


def latent_tree(
    depth: int = 2, branching: int = 2, states: int | None = 2, observed_states: int = 4, leaves: int = 2
) -> LatentGraph:
    """A rooted tree of latents h, h1, h2, h11, …; each latent of the lowest level has ``leaves`` observables.

    With more than nine branches the numbers in a name are separated by underscores, as in h1_12.
    """
    _at_least(1, branching=branching, leaves=leaves)
    _at_least(0, depth=depth)
    mark = "" if branching <= 9 else "_"
    variables: dict[str, Domain] = {"h": states}
    edges, level = [], ["h"]
    for _ in range(depth):
        below = []
        for parent in level:
            for i in range(1, branching + 1):
                child = f"{parent}{mark}{i}" if parent != "h" else f"h{i}"
                variables[child] = states
                edges.append((parent, child))
                below.append(child)
        level = below
    latent = list(variables)
    for parent in level:
        for i in range(1, leaves + 1):
            observable = f"x{parent[1:]}_{i}"
            variables[observable] = observed_states
            edges.append((parent, observable))
    return LatentGraph(edges, variables, latent)


def diamond(states: int | None = 2, observed_states: int = 6, leaves: int = 2) -> LatentGraph:
    """The loop A -> B, A -> C, {B, C} -> D of latents, each with ``leaves`` observables a1, a2, b1, …"""
    _at_least(1, leaves=leaves)
    variables: dict[str, Domain] = dict.fromkeys("ABCD", states)
    edges = [("A", "B"), ("A", "C"), ("B", "D"), ("C", "D")]
    for h in "ABCD":
        for i in range(1, leaves + 1):
            variables[f"{h.lower()}{i}"] = observed_states
            edges.append((h, f"{h.lower()}{i}"))
    return LatentGraph(edges, variables, list("ABCD"))


def nested_loops(states: int | None = 2, observed_states: int = 5) -> LatentGraph:
    """Two loops that share an edge, A -> {B, C} -> D -> {E, F} -> G with B -> E across, one observable per latent."""
    latent = list("ABCDEFG")
    edges = [("A", "B"), ("A", "C"), ("B", "D"), ("C", "D"), ("D", "E"), ("D", "F"), ("B", "E"), ("E", "G"), ("F", "G")]
    edges += [(h, h.lower()) for h in latent]
    variables: dict[str, Domain] = dict.fromkeys(latent, states)
    variables |= {h.lower(): observed_states for h in latent}
    return LatentGraph(edges, variables, latent)


def loopy_network(states: int | None = 2, observed_states: int = 6) -> LatentGraph:
    """A loopy network similar to [PBP Fig. 2]: four latents in a loop and six observables.

    The observable ``c`` has a child, so the loop contains observables too.
    """
    latent = ["A", "B", "D", "F"]
    variables: dict[str, Domain] = dict.fromkeys(latent, states)
    variables |= dict.fromkeys(["c", "d", "e", "f", "g", "h"], observed_states)
    edges = [("A", "B"), ("A", "D"), ("B", "F"), ("D", "F")]
    edges += [("A", "c"), ("c", "h"), ("A", "h"), ("B", "e"), ("D", "d"), ("F", "f"), ("F", "g")]
    return LatentGraph(edges, variables, latent)


def synthetic_junction_tree(states: int | None = 2, observed_states: int = 16) -> LatentGraph:
    """A junction tree similar to the part shown in [JT Fig. 2-3]: neither a chain nor a tree, with cliques of four.

    The root clique {A, C, E} has three children, {B, C, D, E}, {A, C, I, J} and {A, E, K, L}. Each is
    connected to two latents of the root, adds two latents, all dependent, and two observables with two latent parents each.
    """
    latent = list("ACEBDIJKL")
    variables: dict[str, Domain] = dict.fromkeys(latent, states)
    variables |= dict.fromkeys("fghmno", observed_states)
    edges = [("A", "C"), ("A", "E"), ("C", "E")]
    for above, first, second, one, other in (
        ("CE", "B", "D", "f", "g"),
        ("AC", "I", "J", "h", "m"),
        ("AE", "K", "L", "n", "o"),
    ):
        edges += [(above[0], first), (above[1], first), (above[0], second), (above[1], second), (first, second)]
        edges += [(first, one), (above[0], one), (first, other), (second, other)]
    return LatentGraph(edges, variables, latent)


def mixture(names: Sequence[str], states: int | None = 2) -> LatentGraph:
    """Continuous variables that depend on one hidden variable, called ``mixture``."""
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise ArgumentError(f"names: expected a list of names, got {names!r}.")
    hidden = "mixture"
    while hidden in names:
        hidden += "_"
    variables: dict[str, Domain] = {hidden: states, **dict.fromkeys(names, Continuous())}
    return LatentGraph([(hidden, v) for v in names], variables, [hidden])


def naive_bayes(features: int = 5, states: int | None = 3, observed_states: int = 4) -> LatentGraph:
    """One latent with several observables: a latent class model."""
    _at_least(1, features=features)
    names = [f"x{i}" for i in range(1, features + 1)]
    return LatentGraph([("h", x) for x in names], {"h": states, **dict.fromkeys(names, observed_states)}, ["h"])


def grid(rows: int = 2, columns: int = 3, states: int | None = 2, observed_states: int = 4) -> LatentGraph:
    """An undirected grid of latents with one observable each: a hidden Markov random field."""
    _at_least(1, rows=rows, columns=columns)
    cells = [(r, c) for r in range(1, rows + 1) for c in range(1, columns + 1)]
    variables: dict[str, Domain] = {f"h{r}_{c}": states for r, c in cells}
    variables |= {f"x{r}_{c}": observed_states for r, c in cells}
    edges = [(f"h{r}_{c}", f"h{r + 1}_{c}") for r, c in cells if r < rows]
    edges += [(f"h{r}_{c}", f"h{r}_{c + 1}") for r, c in cells if c < columns]
    edges += [(f"h{r}_{c}", f"x{r}_{c}") for r, c in cells]
    return LatentGraph(edges, variables, [f"h{r}_{c}" for r, c in cells], directed=False)


def parity(leaves: int = 2, observed_states: int = 3) -> LatentGraph:
    """G1 -> H <- G2, all binary and latent, with observables g1_1, g1_2, …, g2_1, …, h_1, …

    If H is the parity of G1 and G2, the observables of G1 alone, or of G2 alone, are independent of H.
    """
    _at_least(1, leaves=leaves, observed_states=observed_states)
    latent = ["G1", "G2", "H"]
    variables: dict[str, Domain] = dict.fromkeys(latent, 2)
    edges = [("G1", "H"), ("G2", "H")]
    for h in latent:
        for i in range(1, leaves + 1):
            variables[f"{h.lower()}_{i}"] = observed_states
            edges.append((h, f"{h.lower()}_{i}"))
    return LatentGraph(edges, variables, latent)


def pen_strokes(points: int = 8, order: int = 1, low: float = 0.0, high: float = 100.0) -> LatentGraph:
    """A hidden chain over the points of a pen stroke; each point is a leaf with coordinates (x1, y1), (x2, y2), …

    The numbers of latent states are unknown.
    """
    _at_least(1, points=points, order=order)
    domain = Continuous(low, high)
    latent = [f"h{t}" for t in range(1, points + 1)]
    variables: dict[str, Domain] = dict.fromkeys(latent)
    edges = [(f"h{t - k}", f"h{t}") for t in range(1, points + 1) for k in range(order, 0, -1) if t - k >= 1]
    for t in range(1, points + 1):
        variables |= {f"x{t}": domain, f"y{t}": domain}
        edges += [(f"h{t}", f"x{t}"), (f"h{t}", f"y{t}"), (f"x{t}", f"y{t}")]
    return LatentGraph(edges, variables, latent)


def pen_tree(
    points: int = 8,
    leaf_states: int | None = 8,
    states: int | None = 10,
    classes: int = 10,
    low: float = 0.0,
    high: float = 100.0,
) -> LatentGraph:
    """A binary tree of hidden variables over the points of a pen stroke, p1, p2, …, each a vector of two coordinates.

    Each point is connected to one latent. Two neighbouring latents and the latent above them are connected with each other, and
    so on up to the two halves of the stroke. The observed variable ``digit`` is a neighbour of all latents: a model with
    ``condition="digit"`` has one set of operators per digit.

    Args:
        points: number of points, a power of two, at least 2.
        leaf_states: number of states of the latents above single points.
        states: number of states of the other latents.
        classes: number of states of ``digit``.
        low: smallest coordinate.
        high: largest coordinate.
    """
    _at_least(2, points=points)
    if points & (points - 1):
        raise ArgumentError(f"points: expected a power of two, got {points}.")
    names = [f"p{t}" for t in range(1, points + 1)]
    variables: dict[str, Domain] = {"digit": classes, **dict.fromkeys(names, Continuous(low, high, shape=(2,)))}

    def name(height: int, number: int) -> str:
        first, last = (number - 1) * 2**height + 1, number * 2**height
        return f"h{first}_{last}" if height else f"h{first}"

    return _binary_tree(names, variables, name, leaf_states, states, ["digit"])


def balanced_tree(
    leaves: Mapping[str, Domain],
    leaf_states: int | None = 8,
    states: int | None = 8,
    condition: Mapping[str, int] | None = None,
) -> LatentGraph:
    """A binary tree of latents over leaves of any kind: patches of an image, points of a stroke, sensors along a line.

    The leaves are halved in their order, and so are the halves, down to single leaves. Each leaf is connected to one latent. The
    latents of two halves are connected with each other and with the latent above them, up to the two halves of the whole.

    Args:
        leaves: name -> domain, at least 2. Related leaves should be adjacent.
        leaf_states: number of states of the latents h_<leaf> above single leaves.
        states: number of states of the others: h1_1, h1_2, … above two leaves, h2_1, … above three or four, and so on.
        condition: an observed variable with its number of states, connected to all latents, for ``PBP(graph, condition=name)``.
    """
    names = list(leaves)
    _at_least(2, leaves=len(names))
    variables: dict[str, Domain] = {
        **leaves,
        **dict.fromkeys((f"h_{v}" for v in names), leaf_states),
        **(condition or {}),
    }

    def name(height: int, number: int) -> str:
        return f"h{height}_{number}" if height else f"h_{names[number - 1]}"

    return _binary_tree(names, variables, name, leaf_states, states, condition or ())


def _binary_tree(
    leaves: Sequence[str],
    variables: Mapping[str, Domain],
    name: Callable[[int, int], str],
    leaf_states: int | None,
    states: int | None,
    condition: Iterable[str],
) -> LatentGraph:
    """A binary tree of latents over leaves, which are halved in their order, and the halves again, down to single leaves.

    The latents of two halves are connected with each other and with the latent above them.

    Args:
        leaves: names of the leaves.
        variables: domains of the leaves and of the variables connected to all latents.
        name: (height, number from 1 on) -> name of a latent.
        leaf_states: number of states of the latents above single leaves.
        states: number of states of the others.
        condition: names of the variables connected to all latents.
    """
    levels: dict[int, list[tuple[str, str, str]]] = {}

    def above(start: int, stop: int) -> str:
        """The latent above a block of leaves, noted in its level with the latents of the two halves."""
        if stop - start == 1:
            return name(0, stop)
        middle = (start + stop + 1) // 2
        first, second = above(start, middle), above(middle, stop)
        height = (stop - start - 1).bit_length()
        level = levels.setdefault(height, [])
        level.append((name(height, len(level) + 1), first, second))
        return level[-1][0]

    middle = (len(leaves) + 1) // 2
    top = above(0, middle), above(middle, len(leaves))
    latent = [name(0, i) for i in range(1, len(leaves) + 1)]
    edges = list(zip(latent, leaves, strict=True))
    domains = {**variables, **dict.fromkeys(latent, leaf_states)}
    for height in sorted(levels):
        edges += [(parent, half) for parent, *halves in levels[height] for half in halves]
        edges += [(first, second) for _, first, second in levels[height]]
        latent += [parent for parent, *_ in levels[height]]
    domains |= dict.fromkeys(latent[len(leaves) :], states)
    edges.append(top)
    edges += [(v, h) for v in condition for h in latent]
    return LatentGraph(edges, domains, latent, directed=False)


def _at_least(least: int, /, **numbers: int) -> None:
    for name, value in numbers.items():
        whole(least).check(name, value)
