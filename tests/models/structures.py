"""Structures on which learned models are held to exactness."""

from torchpbp import LatentGraph, templates

STRUCTURES = {
    "chain, order 1": templates.hmm(5, states=3, observed_states=4),
    "chain, order 2": templates.hmm(6, states=2, observed_states=4, order=2),
    "chain, order 3": templates.hmm(6, states=2, observed_states=3, order=3),
    "factorial HMM": templates.factorial_hmm(3, chains=2, states=2, observed_states=5),
    "latent tree": templates.latent_tree(),
    "latent tree, three-way": templates.latent_tree(depth=1, branching=3, states=3, observed_states=4),
    "diamond": templates.diamond(observed_states=4),
    "nested loops": templates.nested_loops(),
    "loop with an observed parent": templates.loopy_network(observed_states=4),
    "latent class": templates.naive_bayes(6),
    "undirected grid": templates.grid(2, 3),
    "undirected cycle": LatentGraph(
        [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")] + [(h, f"x{h}") for h in "abcd"],
        {**dict.fromkeys("abcd", 2), **{f"x{h}": 3 for h in "abcd"}},
        list("abcd"),
        directed=False,
    ),
    "observables with children": LatentGraph(
        [("h", "x"), ("x", "k"), ("h", "k"), ("x", "g"), ("k", "y"), ("g", "z"), ("y", "w")],
        {"h": 2, "x": 3, "k": 2, "g": 2, "y": 3, "z": 4, "w": 2},
        ["h", "k", "g"],
    ),
    "disconnected": LatentGraph(
        [("h", "a"), ("h", "b"), ("h", "c"), ("k", "d"), ("k", "e")],
        {"h": 2, "a": 3, "b": 2, "c": 4, "k": 2, "d": 3, "e": 3, "alone": 4},
        ["h", "k"],
    ),
    "no latents": LatentGraph([("x", "y"), ("y", "z"), ("x", "w")], {"x": 2, "y": 3, "z": 4, "w": 2}),
    "single clique": LatentGraph([("x", "y")], {"x": 2, "y": 3}),
    "single observable": templates.naive_bayes(1),
    "mixed cardinalities": LatentGraph(
        [("p", "q"), ("p", "r"), ("q", "r"), ("p", "a"), ("p", "b"), ("q", "c"), ("r", "d"), ("r", "e"), ("q", "f")],
        {"p": 2, "q": 3, "r": 2, "a": 5, "b": 2, "c": 4, "d": 3, "e": 7, "f": 3},
        ["p", "q", "r"],
    ),
    "observables coarser than the latent": LatentGraph(
        [("h", f"x{i}") for i in range(5)], {"h": 4, **{f"x{i}": 2 for i in range(5)}}, ["h"]
    ),
    "latents without observables": LatentGraph(
        [("top", "h"), ("h", "x"), ("h", "y"), ("h", "barren"), ("x", "z")],
        {"top": 3, "h": 2, "x": 3, "y": 3, "barren": 2, "z": 2},
        ["top", "h", "barren"],
    ),
    "tree of coarse observables": templates.latent_tree(depth=1, states=4, observed_states=2, leaves=3),
    "undirected tree through observables": LatentGraph(
        [("h", "x"), ("x", "k"), ("h", "a"), ("h", "b"), ("k", "c"), ("k", "l"), ("l", "d"), ("l", "e")],
        {"h": 3, "x": 2, "k": 3, "l": 4, "a": 2, "b": 3, "c": 4, "d": 3, "e": 2},
        ["h", "k", "l"],
        directed=False,
    ),
}
