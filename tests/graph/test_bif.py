"""The Bayesian Interchange Format: reading, writing, and errors with the line where they occur."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.closeness import assert_same_up_to_rounding
from torchpbp import DiscreteNetwork, LatentGraph, templates
from torchpbp.errors import DataError
from torchpbp.graph.bif import BIF, format_bif, parse_bif, read_bif

SPRINKLER = """
network "wet grass" { property author "x"; }
// rain first
variable rain { type discrete [ 2 ] { yes, no }; }
variable sprinkler { property position = (1, 2); type discrete [2] { on off }; }
variable grass { type discrete [ 3 ] { "very wet", damp, dry }; }  /* three
states */
probability ( rain ) { table 0.2, 0.8; }
probability ( sprinkler | rain ) { table 0.01 0.4 0.99 0.6; }
probability ( grass | sprinkler, rain ) {
  (on, yes) 0.9, 0.09, 0.01;
  (off, no) 0.0, 0.1, 0.9;
  default 0.5, 0.3, 0.2;
}
"""


def test_reads_every_kind_of_table() -> None:
    bif = parse_bif(SPRINKLER)
    assert bif.states["grass"] == ("very wet", "damp", "dry")
    assert bif.parents == {"rain": (), "sprinkler": ("rain",), "grass": ("sprinkler", "rain")}
    assert bif.edges == [("rain", "sprinkler"), ("sprinkler", "grass"), ("rain", "grass")]
    # in a table of several variables the child comes first and changes slowest
    assert np.allclose(bif.tables["sprinkler"], [[0.01, 0.99], [0.4, 0.6]])
    assert np.allclose(bif.tables["grass"][0], [[0.9, 0.09, 0.01], [0.5, 0.3, 0.2]])
    assert np.allclose(bif.tables["grass"][1], [[0.5, 0.3, 0.2], [0.0, 0.1, 0.9]])


@pytest.mark.parametrize("suffix", [".bif", ".bif.gz"])
@pytest.mark.parametrize("seed", [1, 2])
def test_networks_come_back_as_they_were(tmp_path: Path, suffix: str, seed: int) -> None:
    graph = templates.loopy_network(2, 3)
    network = DiscreteNetwork.random(graph, seed)
    path = tmp_path / f"net{suffix}"
    network.to_bif(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == (suffix == ".bif.gz")
    again = DiscreteNetwork.from_bif(path, latent=graph.latent)
    for read in (again.graph, LatentGraph.from_bif(path, latent=graph.latent)):
        assert (set(read.edges), read.variables, read.latent) == (set(graph.edges), graph.variables, graph.latent)
    assert again.labels["A"] == ("s0", "s1")
    for v, table in network.cpts.items():
        assert again.graph.parents(v) == graph.parents(v)
        assert torch.allclose(again.cpts[v], table, rtol=1e-15)


def test_labels_stand_for_states_in_evidence(tmp_path: Path) -> None:
    (tmp_path / "grass.bif").write_text(SPRINKLER)
    network = DiscreteNetwork.from_bif(tmp_path / "grass.bif")
    by_label = network.posterior("rain", {"grass": ["very wet", None], "sprinkler": "off"})
    by_state = network.posterior("rain", {"grass": torch.tensor([0, -1]), "sprinkler": torch.tensor(1)})
    assert_same_up_to_rounding(by_label, by_state)
    with pytest.raises(DataError, match="unseen category 'soaked'"):
        network.posterior("rain", {"grass": ["soaked"]})
    network.to_bif(tmp_path / "again.bif")
    assert read_bif(tmp_path / "again.bif").states == parse_bif(SPRINKLER).states


def test_names_that_the_format_would_take_apart_are_quoted() -> None:
    bif = BIF({"a b": ("(x", "//y"), "c|d": ("1", "2")}, {"a b": (), "c|d": ("a b",)}, {})
    bif.tables = {"a b": np.array([0.25, 0.75]), "c|d": np.array([[0.5, 0.5], [1.0, 0.0]])}
    again = parse_bif(format_bif(bif, "odd names"))
    assert (again.states, again.parents) == (bif.states, bif.parents)
    assert all(np.array_equal(again.tables[v], bif.tables[v]) for v in bif.tables)
    with pytest.raises(DataError, match="cannot contain quotation marks"):
        format_bif(BIF({'a"b': ("x", "y")}, {}, {}))


WORDS = st.text(st.characters(exclude_characters='"\n', exclude_categories=["Cs"]), max_size=4)


@given(
    names=st.lists(WORDS, min_size=2, max_size=2, unique=True),
    labels=st.lists(WORDS, min_size=1, max_size=5, unique=True),
)
@example(names=[",", "("], labels=["", "{", "}", ";", ",", "|", "property"])
@example(names=["table", "property"], labels=["type", "default", "network"])
def test_names_of_all_kinds_come_back(names: list[str], labels: list[str]) -> None:
    size = len(labels)
    bif = BIF({v: tuple(labels) for v in names}, {names[0]: (), names[1]: (names[0],)}, {})
    bif.tables = {names[0]: np.full(size, 1 / size), names[1]: np.full((size, size), 1 / size)}
    again = parse_bif(format_bif(bif, names[0]))
    assert (again.states, again.parents) == (bif.states, bif.parents)
    assert all(np.allclose(again.tables[v], bif.tables[v]) for v in bif.tables)


def test_rounded_rows_are_scaled() -> None:
    text = SPRINKLER.replace("0.2, 0.8", "0.333, 0.666")
    assert parse_bif(text).tables["rain"].sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("network", "netwok", "line 2: expected network, variable or probability, got 'netwok'"),
        ("discrete [ 2 ]", "continuous", "line 4: expected 'discrete', got 'continuous'"),
        ("discrete [ 2 ]", "discrete [ 3 ]", "line 4: expected 3 different states of 'rain', got '2: yes, no'"),
        ("variable sprinkler", "variable rain", "line 5: expected each variable once, but 'rain' came before"),
        ("| rain )", "| hail )", "line 9: expected a variable declared before, got 'hail'"),
        (
            "( rain ) { table 0.2, 0.8;",
            "( rain ) { table 0.2;",
            "line 8: expected 2 probabilities of 'rain', got '0.2'",
        ),
        ("0.2, 0.8", "0.2, much", "line 8: expected probabilities of 'rain', got '0.2, much'"),
        ("0.2, 0.8", "0.2, -0.8", "line 8: expected 2 probabilities of 'rain'"),
        ("0.2, 0.8", "0.2, 0.7", "expected probabilities of 'rain' that sum to 1, got a sum of 0.9"),
        ("(on, yes)", "(on, maybe)", "line 11: expected states of sprinkler, rain for 'grass', got 'on, maybe'"),
        ("(off, no)", "(on, yes)", "line 12: expected the probabilities of 'grass' once, got '.on, yes. again'"),
        (
            "default 0.5",
            "table 0.5",
            "line 13: expected the probabilities of 'grass' once, got 'a table besides others'",
        ),
        (
            "probability ( rain )",
            '"" probability ( rain )',
            "line 8: expected network, variable or probability, got ''",
        ),
        ("(on, yes)", "(on)", "line 11: expected states of sprinkler, rain for 'grass', got 'on'"),
        ("default 0.5, 0.3, 0.2;", "", "the probabilities of 'grass' leave out some states of its parents"),
        ("probability ( rain ) { table 0.2, 0.8; }", "", "no probabilities for the variables rain"),
        ("probability ( sprinkler | rain )", "probability ( rain )", "line 9: expected one table per variable"),
        ('"very wet"', '"very wet', "line 6: a quotation mark is not closed"),
        ("default 0.5, 0.3, 0.2;\n}", "default 0.5, 0.3", "line 14: expected more, got 'the end of the file'"),
    ],
)
def test_malformed_text_names_the_line(old: str, new: str, message: str) -> None:
    assert old in SPRINKLER
    with pytest.raises(DataError, match=message):
        parse_bif(SPRINKLER.replace(old, new, 1))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No BIF file at .*nowhere"):
        read_bif(tmp_path / "nowhere.bif")
    (tmp_path / "cut.bif.gz").write_bytes(gzip.compress(SPRINKLER.encode())[:-20])
    with pytest.raises(DataError, match="Could not read"):
        read_bif(tmp_path / "cut.bif.gz")
    (tmp_path / "bytes.bif").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="expected text"):
        read_bif(tmp_path / "bytes.bif")
    (tmp_path / "empty.bif").write_text("")
    with pytest.raises(DataError, match="expected a variable, got 'none'"):
        read_bif(tmp_path / "empty.bif")
    with pytest.raises(DataError, match="Could not write"):
        DiscreteNetwork.random(templates.naive_bayes(2), 0).to_bif(tmp_path / "empty.bif" / "is_no_folder.bif")


def test_missing_folders_are_made(tmp_path: Path) -> None:
    DiscreteNetwork.random(templates.naive_bayes(2), 0).to_bif(tmp_path / "new" / "folder" / "net.bif")
    assert [p.name for p in (tmp_path / "new" / "folder").iterdir()] == ["net.bif"]
    assert set(read_bif(tmp_path / "new" / "folder" / "net.bif").states) == {"h", "x1", "x2"}


def test_labels_that_are_no_words_are_written_as_words(tmp_path: Path) -> None:
    network = DiscreteNetwork.random(LatentGraph([], {"year": 2}), 0)
    network.labels = {"year": (2020, 2021)}
    network.to_bif(tmp_path / "years.bif")
    assert read_bif(tmp_path / "years.bif").states == {"year": ("2020", "2021")}


@pytest.mark.parametrize("name", ["asia", "alarm", "child"])
def test_published_networks_match_pgmpy(name: str) -> None:
    pgmpy = pytest.importorskip("pgmpy", reason='pip install -e ".[test]"')
    readwrite = pytest.importorskip("pgmpy.readwrite")
    path = Path(pgmpy.__file__).parent / "utils" / "example_models" / f"{name}.bif.gz"
    if not path.is_file():
        pytest.skip(f"this pgmpy has no {path.name}")
    mine = read_bif(path)
    theirs = readwrite.BIFReader(string=gzip.decompress(path.read_bytes()).decode()).get_model()
    assert set(mine.edges) == set(theirs.edges())
    for cpd in theirs.get_cpds():
        v = cpd.variable
        values = np.moveaxis(np.asarray(cpd.values), 0, -1)  # (parents…, states)
        order = [cpd.variables[1:].index(p) for p in mine.parents[v]]
        values = values.transpose([*order, len(order)])
        for axis, u in enumerate((*mine.parents[v], v)):
            names = [str(s) for s in cpd.state_names[u]]
            values = values.take([names.index(label) for label in mine.states[u]], axis=axis)
        assert np.allclose(values, mine.tables[v], atol=1e-6), v
