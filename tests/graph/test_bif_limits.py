"""The Bayesian Interchange Format with files made to take long or to fill the memory, and with odd arguments."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchpbp import DiscreteNetwork, LatentGraph, templates
from torchpbp.errors import ArgumentError, DataError
from torchpbp.graph import bif as files
from torchpbp.graph import bif_parser, bif_tokens
from torchpbp.graph.bif import parse_bif, read_bif, write_bif

NETWORK = DiscreteNetwork.random(templates.naive_bayes(2), 0)


def peak_memory(action: Callable[[], Any]) -> int:
    """Most bytes that were in use at once, beyond what was before."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def star(parents: int, states: int = 2, body: str = "default 0.5 0.5;") -> str:
    """A binary variable 'child' with many parents."""
    labels = " ".join(f"s{i}" for i in range(states))
    names = [f"p{i}" for i in range(parents)]
    lines = [f"variable {v} {{ type discrete [{states}] {{ {labels} }}; }}" for v in names]
    lines += [f"probability ( {v} ) {{ table {' '.join(['1'] + ['0'] * (states - 1))}; }}" for v in names]
    lines += ["variable child { type discrete [2] { yes no }; }"]
    return "\n".join([*lines, f"probability ( child | {', '.join(names)} ) {{ {body} }}"])


# -- time --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 350_000])
@pytest.mark.parametrize("beginning", ["", "network x {\n", "variable a {\nproperty "])
def test_an_unclosed_comment_is_told_at_once(beginning: str, count: int) -> None:
    line = 1 + beginning.count("\n")
    with pytest.raises(DataError, match=rf"line {line}: a comment /\* is not closed"):
        parse_bif(beginning + "/* " * count)


def test_a_comment_needs_marks_of_its_own_at_both_ends() -> None:
    with pytest.raises(DataError, match="comment"):
        parse_bif("/*/ variable")
    text = "/**/ variable /* a\nb */ x { type discrete [1] { /*//*/ y }; } // /*\nprobability (x) { table /***/ 1; }"
    assert parse_bif(text).states == {"x": ("y",)}


class Counted(str):
    """Text that counts how many of its characters were looked at."""

    looked_at = 0

    def find(self, *arguments: Any) -> int:
        found = super().find(*arguments)
        self.looked_at += (len(self) if found < 0 else found) - arguments[1]
        return found

    def count(self, *arguments: Any) -> int:
        self.looked_at += arguments[2] - arguments[1]
        return super().count(*arguments)


@pytest.mark.parametrize(
    "repeated",
    ["/* ", "/* x */", "/*", "*/", "// /*\n", '"a b"', '"', '"\n', "{", "}", "a ", "a", ";", " ", "\n", "/", "/*/ */"],
)
@pytest.mark.parametrize("beginning", ["", "network x {"])
def test_each_character_is_looked_at_a_few_times_only(
    repeated: str, beginning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = bif_tokens.TOKEN

    class Matching:
        looked_at = 0

        def match(self, text: str, place: int) -> Any:
            found = pattern.match(text, place)
            self.looked_at += 1 if found is None else found.end() - place
            return found

    for length in (1_000, 20_000):
        matching, text = Matching(), Counted(beginning + repeated * length)
        monkeypatch.setattr(bif_tokens, "TOKEN", matching)
        with pytest.raises(DataError):
            parse_bif(text)
        assert matching.looked_at + text.looked_at <= 3 * len(text)


class Compared(str):
    """A word that counts how often words are compared."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return str.__eq__(self, other)


def test_states_are_found_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern, count = bif_tokens.TOKEN, 400

    class Match:
        def __init__(self, found: Any) -> None:
            self.found, self.lastgroup, self.end = found, found.lastgroup, found.end

        def __getitem__(self, group: int | str) -> str:
            return Compared(self.found[group])

    class Matching:
        def match(self, text: str, place: int) -> Match:
            return Match(pattern.match(text, place))

    labels = [f"s{i}" for i in range(count)]
    text = f"variable p {{ type discrete [{count}] {{ {' '.join(labels)} }}; }} variable c {{ type discrete [1] {{ x }}; }}"
    text += f"probability (p) {{ table {' '.join(['1'] + ['0'] * (count - 1))}; }} probability (c | p) {{"
    text += " ".join(f"({label}) 1;" for label in labels) + "}"
    monkeypatch.setattr(bif_tokens, "TOKEN", Matching())
    monkeypatch.setattr(Compared, "comparisons", 0)
    assert parse_bif(text).tables["c"].shape == (count, 1)
    assert Compared.comparisons < 40 * count  # a search would take count² / 2


# -- sizes of tables ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parents", "states", "message"),
    [
        (24, 2, "the table of 'child' has 33,554,432 entries, at most 16,777,216 can be read"),
        (33, 2, "the table of 'child' has 17,179,869,184 entries, at most 16,777,216 can be read"),
        (69, 2, "the table of 'child' has 1,180,591,620,717,411,303,424 entries, at most 16,777,216 can be read"),
        (2_000, 2, "the table of 'child' has more than 10^30 entries, at most 16,777,216 can be read"),
        (69, 1, "the table of 'child' (2 entries) has 70 variables, at most 32 can be read"),
    ],
)
def test_a_table_that_is_too_large_is_told_before_memory_is_taken(parents: int, states: int, message: str) -> None:
    text = star(parents, states)
    caught: list[str] = []

    def read() -> None:
        with pytest.raises(DataError) as error:
            parse_bif(text)
        caught.append(str(error.value))

    assert peak_memory(read) < 2**20 + 50 * len(text)
    assert message in caught[0]
    assert caught[0].startswith(f"BIF text, line {2 * parents + 2}: ")
    assert "fewer parents" in caught[0]


def test_tables_that_are_too_large_together(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [star(3).replace("child", f"child{i}") for i in range(3)]
    text = "\n".join([parts[0], *(part[part.index("variable child") :] for part in parts[1:])])
    assert len(parse_bif(text).tables) == 6
    monkeypatch.setattr(bif_parser, "LARGEST_NETWORK", 3 * 2 + 2 * 16 + 15)
    with pytest.raises(DataError, match="up to that of 'child2' have 54 entries, at most 53 can be read"):
        parse_bif(text)
    monkeypatch.setattr(bif_parser, "LARGEST_NETWORK", 3 * 2 + 3 * 16)
    assert len(parse_bif(text).tables) == 6


def test_a_default_may_fill_a_large_table() -> None:
    rows = "(s1, s0, s0, s0, s0, s0, s0, s0, s0, s0, s0, s0, s0, s0, s0, s0) 0.25 0.75; default 1 0;"
    table = parse_bif(star(16, body=rows)).tables["child"]
    assert table.shape == (2,) * 17
    assert table.sum() == 2**16
    assert table[1].flat[:2].tolist() == [0.25, 0.75]
    assert (table[..., 1] > 0).sum() == 1


def test_a_table_with_missing_rows_takes_no_memory() -> None:
    text = star(22, body=f"({', '.join(['s0'] * 22)}) 1 0;")  # 2^23 entries, two of which are given

    def read() -> None:
        with pytest.raises(DataError, match="probabilities of 'child' leave out some states"):
            parse_bif(text)

    assert peak_memory(read) < 2**20


# -- sizes of files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repeated", ["; ", "a, ", "{ } ", '"a" '])
def test_words_that_say_nothing_take_no_memory(repeated: str) -> None:
    text = "network x {" + repeated * 20_000 + "}"

    def read() -> None:
        with pytest.raises(DataError, match="expected a variable, got 'none'"):
            parse_bif(text)

    assert peak_memory(read) < 2**18


def test_a_long_list_of_probabilities_takes_little_memory() -> None:
    text = "variable a { type discrete [2] { x y }; } probability (a) { table " + "0.5 " * 100_000 + "; }"

    def read() -> None:
        with pytest.raises(DataError, match=r"line 1: expected 2 probabilities of 'a', got '0.5, 0.5, "):
            parse_bif(text)

    assert peak_memory(read) < 2**18


@pytest.mark.parametrize("compressed", [True, False])
def test_a_file_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool) -> None:
    path = tmp_path / "blanks.bif"
    content = b" " * 2**25
    path.write_bytes(gzip.compress(content) if compressed else content)
    del content
    monkeypatch.setattr(files, "LARGEST_FILE", 2**20, raising=False)

    def read() -> None:
        with pytest.raises(DataError, match=r"blanks.bif: expected at most 1,048,576 bytes of text, got more"):
            read_bif(path)

    assert peak_memory(read) < 2**22


@pytest.mark.parametrize("suffix", [".bif", ".bif.gz"])
def test_a_file_of_the_largest_size_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    path = tmp_path / f"net{suffix}"
    NETWORK.to_bif(path)
    size = len(gzip.decompress(path.read_bytes()) if suffix == ".bif.gz" else path.read_bytes())
    monkeypatch.setattr(files, "LARGEST_FILE", size)
    assert len(read_bif(path).tables) == 3
    monkeypatch.setattr(files, "LARGEST_FILE", size - 1)
    with pytest.raises(DataError, match=f"at most {size - 1:,} bytes"):
        read_bif(path)


def test_a_message_repeats_only_the_beginning_of_a_long_text() -> None:
    with pytest.raises(DataError) as caught:
        parse_bif("x" * 10_000)
    assert len(str(caught.value)) < 200
    with pytest.raises(DataError, match=r"for the variables v0, v1, .*, v9 and 90 more"):
        parse_bif("\n".join(f"variable v{i} {{ type discrete [1] {{ x }}; }}" for i in range(100)))


# -- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [None, 5, b"net.bif", [], "a\0b", "~nobody of this name/net.bif"])
def test_what_is_no_path(path: Any) -> None:
    for action in (LatentGraph.from_bif, DiscreteNetwork.from_bif, read_bif, NETWORK.to_bif):
        with pytest.raises(ArgumentError, match="Expected the path of a BIF file, got "):
            action(path)


def test_names_that_are_not_valid_text_raise(tmp_path: Path) -> None:
    for text in (None, b"network", 5):
        with pytest.raises(DataError, match="expected text in the Bayesian Interchange Format, got a "):
            parse_bif(text)  # type: ignore[arg-type]
    for name in (None, 5):
        with pytest.raises(DataError, match="Expected a string as a name"):
            NETWORK.to_bif(tmp_path / "net.bif", name=name)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="is not valid text"):
        NETWORK.to_bif(tmp_path / "net.bif", name="half of a character \ud800")
    odd = bif_parser.BIF({"a": ("x", "y\udfff")}, {"a": ()}, {"a": np.array([0.5, 0.5])})
    with pytest.raises(DataError, match="is not valid text"):
        write_bif(tmp_path / "net.bif", odd)
    assert not list(tmp_path.iterdir())
