"""The downloader, against a server on this machine."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.datasets.test_digits import original_texts
from torchpbp.datasets import download_digits, load_digits
from torchpbp.datasets.digits import TRAIN_FILE, UCI_URL
from torchpbp.datasets.download import RemoteFile, fetch
from torchpbp.errors import DataError


class Server(http.server.ThreadingHTTPServer):
    """Serves ``files``; counts requests; ``announce`` overrides the length that it claims to send."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.announce: int | None = None
        self.wait: threading.Event | None = None
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.server.wait is not None:
            self.server.wait.wait(10)
            return
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(self.server.announce or len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture(scope="module")
def texts() -> dict[str, bytes]:
    return original_texts()


@pytest.fixture
def server(texts: dict[str, bytes]) -> Iterator[Server]:
    with Server() as running:
        running.files = {f"/d/{name}": content for name, content in texts.items()}
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_downloads_both_files_once(server: Server, tmp_path: Path, texts: dict[str, bytes]) -> None:
    folder = download_digits(tmp_path / "a" / "b", server.url + "/d/")
    assert folder == tmp_path / "a" / "b"
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == texts
    assert torch.equal(load_digits(folder).test_x, load_digits().test_x)
    assert server.asked == ["/d/pendigits.tra", "/d/pendigits.tes"]
    download_digits(folder, server.url + "/d")
    assert len(server.asked) == 2


def test_replaces_a_damaged_file(server: Server, tmp_path: Path, texts: dict[str, bytes]) -> None:
    (tmp_path / "pendigits.tra").write_bytes(texts["pendigits.tra"][:1000])
    (tmp_path / "pendigits.tes").write_bytes(texts["pendigits.tes"])
    download_digits(tmp_path, server.url + "/d")
    assert server.asked == ["/d/pendigits.tra"]
    assert (tmp_path / "pendigits.tra").read_bytes() == texts["pendigits.tra"]


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda b: b[:-1] + b" ", "got 502098 bytes"),
        (lambda b: b[:-5], "got 502093 bytes"),
        (lambda b: b + b"\n", "got more than 502098 bytes"),
        (lambda b: b"", "got 0 bytes"),
    ],
)
def test_wrong_content_keeps_nothing(change, got, server: Server, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    server.files["/d/pendigits.tra"] = change(server.files["/d/pendigits.tra"])
    (tmp_path / "pendigits.tra").write_bytes(b"mine")
    with pytest.raises(
        DataError, match=rf"pendigits\.tra: expected 502098 bytes with sha256 e2b9eb9f.*, {got}.*load_digits\(\)"
    ):
        download_digits(tmp_path, server.url + "/d")
    assert [p.name for p in tmp_path.iterdir()] == ["pendigits.tra"]
    assert (tmp_path / "pendigits.tra").read_bytes() == b"mine"


def test_connection_lost_half_way(server: Server, tmp_path: Path) -> None:
    server.announce = 502_098
    server.files["/d/pendigits.tra"] = server.files["/d/pendigits.tra"][:2000]
    with pytest.raises(DataError, match=r"pendigits\.tra"):
        download_digits(tmp_path, server.url + "/d")
    assert list(tmp_path.iterdir()) == []


def test_not_found(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Could not download http://127.*/e/pendigits\.tra: Not Found"):
        download_digits(tmp_path, server.url + "/e")


def test_offline(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(DataError, match=r"Could not download .*refused.*Check the connection.*load_digits\(\)"):
            download_digits(tmp_path, url)
    assert list(tmp_path.iterdir()) == []


def test_no_answer(server: Server, tmp_path: Path) -> None:
    server.wait = threading.Event()
    try:
        with pytest.raises(DataError, match=r"Could not download .*timed out"):
            download_digits(tmp_path, server.url + "/d", timeout=0.2)
    finally:
        server.wait.set()


@pytest.mark.parametrize("url", ["nonsense", "http://[", "gopher://x/y", "http://a b/c"])
def test_bad_address(url: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Could not download"):
        download_digits(tmp_path, url)


def test_folder_that_cannot_be_made(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="expected a folder that can be written"):
        download_digits(tmp_path / "file", server.url + "/d")
    assert server.asked == []


def test_target_that_is_a_folder(server: Server, tmp_path: Path) -> None:
    (tmp_path / "pendigits.tra").mkdir()
    with pytest.raises(DataError, match="expected a folder that can be written"):
        download_digits(tmp_path, server.url + "/d")
    assert [p.name for p in tmp_path.iterdir()] == ["pendigits.tra"]


def test_fetch_of_any_known_file(server: Server, tmp_path: Path) -> None:
    server.files["/note"] = b"abc"
    file = RemoteFile("note", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    assert fetch(file, tmp_path, server.url, 5.0).read_bytes() == b"abc"


def test_default_source() -> None:
    assert UCI_URL.startswith("https://archive.ics.uci.edu/")
    assert TRAIN_FILE.name == "pendigits.tra"
