"""report.html: what it holds, that it needs nothing else, and that a browser shows it."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_dir
from matplotlib.figure import Figure

import torchpbp.experiments.running.program
from torchpbp import EM, PBP, DiscreteNetwork, templates
from torchpbp.__main__ import main
from torchpbp.errors import DataError
from torchpbp.experiments.running.html import page, picture, pivoted, section, shortened, table
from torchpbp.experiments.running.program import train
from torchpbp.experiments.running.report import write_report

ROOT = Path(__file__).parents[2]
EVIL = "<script>alert('&')</script>"
CONFIG = f"model:\n  _target_: torchpbp.experiments.run_test_run\n  note: {EVIL}\nseed: 7\n"
NETWORK = DiscreteNetwork.random(templates.naive_bayes(4, 2, 3), seed=1)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
VOID = {"meta", "img"}


class Page(HTMLParser):
    """Reads a page and fails on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.words.setdefault(self.open[-1] if self.open else "", []).append(data.strip())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def draw(path: Path, inches: float = 2.0) -> None:
    figure = Figure(figsize=(inches, 1.0))
    figure.subplots().plot([0, 1])
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=100)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A folder with everything that a run may leave."""
    folder = tmp_path / "run & <co>"
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text("- model=test_run\n- note=two words\n")
    metrics = {"kl/10": 0.123456, "kl/20": None, "seconds/10": 1.5, "seconds/20": 2, "graph": EVIL, "seed": 7}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    pd.DataFrame({"rows": range(300), EVIL: [EVIL] * 300}).to_csv(folder / "metrics.csv", index=False)
    draw(folder / "kl.png")
    draw(folder / "more" / f"{EVIL.replace('/', '')}.png", 3.0)
    (folder / "broken.png").write_bytes(b"not a picture")
    PBP(NETWORK.graph).fit(NETWORK.sample(500, seed=2)).save(folder / "model.pt")
    EM(NETWORK.graph, restarts=1, max_steps=2, progress=False).fit(NETWORK.sample(50, seed=2)).save(folder / "em.pt")
    torch.save({"state": 1}, folder / "state.pt")
    return folder


def test_the_page_is_whole_and_escapes_what_it_shows(run_dir: Path) -> None:
    path = write_report(run_dir, CONFIG, seconds=75.2)
    assert path == run_dir / "report.html"
    text = path.read_text(encoding="utf-8")
    read = Page(text)
    assert "script" not in {tag for tag, _ in read.tags}
    assert read.words["h1"] == ["Test run"]
    assert "run & <co>" in read.words["p"][0]
    assert read.words["pre"][0] == CONFIG.strip()
    assert read.words["td"].count(EVIL) >= 200  # as text, in cells of both tables
    assert not list(run_dir.glob(".*.tmp"))


def test_nothing_is_fetched_from_elsewhere(run_dir: Path) -> None:
    read = Page(write_report(run_dir, CONFIG).read_text(encoding="utf-8"))
    sources = [image["src"] or "" for image in read.all("img")]
    assert len(sources) == 2 + 2  # of the run; separators and tree of its model
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    decoded = [base64.b64decode(source.partition(",")[2], validate=True) for source in sources]
    assert (run_dir / "kl.png").read_bytes() in decoded
    assert all(image["alt"] for image in read.all("img"))
    for _, attributes in read.tags:
        assert not {"href", "srcset", "data", "action", "poster"} & set(attributes)
    assert "url(" not in read.words["style"][0]
    assert "@import" not in read.words["style"][0]
    assert any("default-src 'none'" in (meta.get("content") or "") for meta in read.all("meta"))


def test_results_settings_and_circumstances_are_there(run_dir: Path) -> None:
    words = Page(write_report(run_dir, CONFIG, seconds=75.2).read_text(encoding="utf-8")).words
    cells = words["td"]
    for value in ("0.1235", "–", "1.5", "1 min 15 s", torch.__version__, str(torch.get_num_threads()), "7"):
        assert value in cells, value
    assert "python train.py model=test_run 'note=two words'" in cells
    assert any("100 more rows are in metrics.csv" in text for text in words["p"])
    assert "metrics.csv: 300 rows" in words["summary"]
    titles = words["h3"]
    assert titles == [
        "em.pt: EM of 4 observed and 1 hidden variables",
        "model.pt: PBP of 4 observed and 1 hidden variables",
    ]
    model = PBP.load(run_dir / "model.pt")
    assert set(model.diagnostics()["separator"]) <= set(cells)
    assert {"kl.png", "state.pt", "metrics.json"} <= set(cells)  # among the files
    assert not {"report.html", ".hydra/overrides.yaml"} & set(cells)


def test_a_report_can_be_written_again(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_dir / ".hydra" / "config.yaml").write_text(CONFIG)
    write_report(run_dir, seconds=1.0)
    assert main(["report", str(run_dir)]) == 0
    assert capsys.readouterr().out.strip() == str(run_dir / "report.html")
    words = Page((run_dir / "report.html").read_text(encoding="utf-8")).words
    assert words["pre"][0] == CONFIG.strip()
    assert "duration" not in words["th"]  # not known any more, nor the versions
    assert "torch" not in words["th"]


def test_an_empty_folder_gives_a_page_too(tmp_path: Path) -> None:
    read = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert read.words["h1"] == [tmp_path.name]
    assert read.all("img") == []


BROKEN: dict[str, tuple[str, bytes, str]] = {
    "cut JSON": ("metrics.json", b"{", "metrics.json: not valid JSON"),
    "binary JSON": ("metrics.json", b"\xff\xfe\x00", "metrics.json: not valid JSON"),
    "nested JSON": ("metrics.json", b"[" * 100_000, "metrics.json: not valid JSON"),
    "a list of metrics": ("metrics.json", b"[1, 2]", "metrics.json: expected a mapping of names to values, got a list"),
    "null": ("metrics.json", b"null", "metrics.json: expected a mapping of names to values, got a NoneType"),
    "empty CSV": ("metrics.csv", b"", "metrics.csv: not valid CSV"),
    "binary CSV": ("metrics.csv", b"\x89PNG\xff\xfe\x00\x00", "metrics.csv: not valid CSV"),
    "cut YAML": (".hydra/config.yaml", b"a: [", "config.yaml: not valid YAML"),
    "binary YAML": (".hydra/config.yaml", b"\x00\xff", "config.yaml: not valid YAML"),
    "a date that is none": (".hydra/config.yaml", b"a: 2001-99-99", "config.yaml: not valid YAML"),
    "an object of Python": (".hydra/config.yaml", b"a: !!python/object:os.system {}", "config.yaml: not valid YAML"),
    "a truth value that is none": (".hydra/config.yaml", b"a: !!bool x", "config.yaml: not valid YAML"),
    "a time that is none": (".hydra/config.yaml", b"a: !!timestamp x", "config.yaml: not valid YAML"),
    "an unhashable key": (".hydra/config.yaml", b"? [1]\n: 2", "config.yaml: not valid YAML"),
    "nested YAML": (".hydra/config.yaml", b"[" * 20_000, "config.yaml: not valid YAML"),
    "a list of settings": (
        ".hydra/config.yaml",
        b"- 1",
        "config.yaml: expected a mapping of names to values, got a list",
    ),
    "a text": (".hydra/config.yaml", b"text", "config.yaml: expected a mapping of names to values, got a str"),
    "numbers as overrides": (".hydra/overrides.yaml", b"[1, 2]", "overrides.yaml: expected a YAML list of overrides"),
    "a mapping of overrides": (".hydra/overrides.yaml", b"a: 1", "overrides.yaml: expected a YAML list of overrides"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_files_are_named(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, content, message = BROKEN[kind]
    (tmp_path / ".hydra").mkdir()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()
    assert main(["report", str(tmp_path)]) == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1  # one line, no traceback


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (".hydra/config.yaml", b""),
        (".hydra/config.yaml", b"model: 5\nseed: [1, {a: b}]\n1: 2\n"),
        (".hydra/config.yaml", b"model: {_target_: [1]}\n"),
        (".hydra/config.yaml", b"model: &a\n  _target_: *a\n"),
        (".hydra/overrides.yaml", b""),
        ("metrics.json", b'{"a": {"b": [1]}, "c": NaN, "d": 1' + b"0" * 400 + b', "e": "\\ud800", "f/1": null}'),
        ("cut.png", b"\x89PNG\r\n\x1a\n\x00"),
        ("model.pt", b"PK\x03\x04"),
    ],
)
def test_odd_files_are_shown_all_the_same(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    (tmp_path / name).write_bytes(content)
    (tmp_path / "folder.csv").mkdir()
    assert Page(write_report(tmp_path).read_text(encoding="utf-8")).words["h1"] == [tmp_path.name]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "metrics.json").write_text("{}")

    def denied(path: Path, *_: Any, **__: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(DataError, match=r"metrics.json: cannot be read \(Permission denied\)"):
        write_report(tmp_path)


@pytest.mark.parametrize("path", ["nowhere", "", "a\0b", "x" * 5000])
def test_a_folder_is_needed(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command, what in (("report", "the folder of a run"), ("sweep", "a multirun folder")):
        assert main([command, path]) == 1
        printed = capsys.readouterr().err
        assert f"Expected {what}" in printed
        assert "which is not a folder" in printed


# -- pieces ------------------------------------------------------------------------------------------------------


def test_metrics_with_common_cases_share_a_table() -> None:
    values = {"kl/10": 1, "kl/20": 2, "seconds/10": 3, "seconds/20": 4, "seed": 0, "rows/test": 5}
    single, (found,) = pivoted(values)
    assert single == {"seed": 0, "rows/test": 5}
    assert found.to_dict("list") == {"": ["kl", "seconds"], "10": [1, 3], "20": [2, 4]}


def test_the_shorter_of_two_tables_is_chosen() -> None:
    values = {f"{m}/{g}/{n}": f"{m}{g}{n}" for g in "abcd" for n in "12" for m in ("error", "time", "share")}
    single, (found,) = pivoted(values)
    assert not single
    assert list(found) == ["", "error", "time", "share"]
    assert len(found) == 8
    assert found.set_index("").loc["c/2", "time"] == "timec2"


def test_values_are_shortened() -> None:
    given = [None, float("nan"), 0.00012345678, 12, True, 1e9, float("inf"), "text"]
    assert [shortened(v) for v in given] == ["–", "–", "0.0001235", "12", "True", "1e+09", "inf", "text"]


def test_pictures_have_the_size_they_were_drawn_for(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", inches=3.0)
    (image,) = Page(picture((tmp_path / "a.png").read_bytes(), "a", dpi=100)).all("img")
    assert (image["width"], image["height"]) == ("288", "96")  # 96 of a browser's pixels per inch


def test_empty_sections_are_left_out() -> None:
    assert section("Pictures", "", "") == ""
    assert Page(page("t", "u", [section("Here", "<p>x</p>")])).words["h2"] == ["Here"]


def test_tables_mark_numbers() -> None:
    cells = Page(table(pd.DataFrame({"a": ["x"], "b": [1.0]}))).all("td")
    assert [c.get("class") for c in cells] == [None, "number"]


# -- train.py and a browser --------------------------------------------------------------------------------------


def tiny_run(folder: Path, *overrides: str) -> Any:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        quick = ["model=synthetic", "debug=default", "model.verbose=false", "model.repeats=1", "model.sizes=[200]"]
        cfg = compose("config", overrides=[*quick, f"output_dir={folder}", *overrides])
    return train(cfg)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    tiny_run(folder, "seed=5")
    return folder / "report.html"


def test_train_writes_it(real: Path) -> None:
    metrics = json.loads((real.parent / "metrics.json").read_text())
    words = Page(real.read_text(encoding="utf-8")).words
    assert words["h1"] == ["Synthetic"]
    assert shortened(metrics["kl/200"]) in words["td"]
    assert "seed: 5" in words["pre"][0]
    assert "${" not in words["pre"][0]  # resolved
    assert "model.pt: PBP of 8 observed and 4 hidden variables" in words["h3"]


def test_a_report_that_fails_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(torchpbp.experiments.running.report, "write_report", full)
    assert "kl/200" in tiny_run(tmp_path)
    assert "No report.html: OSError: no space left" in capsys.readouterr().err
    assert (tmp_path / "metrics.json").exists()


def chromium(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_shows_it(real: Path, tmp_path: Path) -> None:
    shown = chromium(f"--screenshot={tmp_path / 'shot.png'}", real.as_uri())
    assert (tmp_path / "shot.png").is_file(), shown.stderr
    assert "CONSOLE" not in shown.stderr, shown.stderr  # neither errors nor anything that the policy forbids
    # The page has no scripts and forbids them; a copy that allows one tells what became of the pictures.
    probe = (
        "<script>addEventListener('load', () => {document.title = 'widths ' + "
        "[...document.images].map(i => i.naturalWidth).join(' ');});</script>"
    )
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', probe, real.read_text(encoding="utf-8"))
    (tmp_path / "copy.html").write_text(text, encoding="utf-8")
    dom = chromium("--dump-dom", (tmp_path / "copy.html").as_uri()).stdout
    found = re.search(r"<title>widths ([\d ]+)</title>", dom)
    assert found is not None, dom[:500]
    widths = [int(w) for w in found[1].split()]
    assert len(widths) == len(Page(real.read_text(encoding="utf-8")).all("img")) == 3
    assert min(widths) > 100


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_the_browser_notices_what_is_forbidden(real: Path, tmp_path: Path) -> None:
    """The check above can fail: a picture from elsewhere and a script are reported on the console."""
    text = real.read_text(encoding="utf-8").replace(
        "<main>", '<main><img src="http://localhost/x.png"><script>1</script>'
    )
    (tmp_path / "bad.html").write_text(text, encoding="utf-8")
    assert "CONSOLE" in chromium("--dump-dom", (tmp_path / "bad.html").as_uri()).stderr
