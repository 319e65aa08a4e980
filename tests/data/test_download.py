"""Fetching and checking data files, against a server on this machine."""

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from coterie.data.published import catalogue, download
from coterie.data.published.catalogue import File, PublishedSource, check
from coterie.errors import FileError, ParameterError

CONTENT = b"id\tvalue\n1\trock\n2\tnull\n"
TOY = PublishedSource(
    "a toy",
    ("toy",),
    (File("tags.dat", 2, hashlib.sha256(CONTENT).hexdigest()), File("rows.dat", 3)),
    archive="https://example.org/toy.zip",
    partial=(File("part.tsv", 1),),
)


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalogue.SOURCES, "toy", TOY)


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, bytes]]]:
    answers: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path)
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Length", str(len(body or b"") + 100 * (self.path == "/broken.zip")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    running = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}", answers
    running.shutdown()
    running.server_close()
    thread.join()


def archive(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as members:
        for name, content in files.items():
            members.writestr(name, content)
    return out.getvalue()


WHOLE = {"toy-2k/tags.dat": CONTENT.replace(b"\n", b"\r\n"), "toy-2k/rows.dat": b"a\n1\n2\n3\n"}


def test_archive_is_fetched_checked_and_not_fetched_again(
    server: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    address, answers = server
    answers["/toy.zip"] = archive(WHOLE)
    heard: list[int] = []
    files = download.get(
        "toy", tmp_path, url=f"{address}/toy.zip", on_progress=lambda done, _: heard.append(done)
    )
    assert [path.name for path in files] == ["tags.dat", "rows.dat"]
    assert files[0].read_bytes() == CONTENT  # lines end in LF now
    assert heard[-1] == len(answers["/toy.zip"])
    assert [found.state for found in check("toy", tmp_path)] == ["ok", "ok"]
    answers.clear()
    assert download.get("toy", tmp_path, url=f"{address}/toy.zip") == files
    assert sorted(path.name for path in (tmp_path / "toy").iterdir()) == ["rows.dat", "tags.dat"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {**WHOLE, "toy-2k/tags.dat": b"id\tvalue\n1\trock\n"},
            "tags.dat has 1 rows, the published file has 2",
        ),
        ({**WHOLE, "toy-2k/tags.dat": b"id\tvalue\n1\trock\n2\tpop\n"}, "tags.dat has other content"),
        ({"tags.dat": CONTENT}, "holds no rows.dat"),
    ],
)
def test_wrong_archive_is_refused(
    server: tuple[str, dict[str, bytes]], tmp_path: Path, files: dict[str, bytes], said: str
) -> None:
    address, answers = server
    answers["/toy.zip"] = archive(files)
    with pytest.raises(FileError, match=said):
        download.get("toy", tmp_path, url=f"{address}/toy.zip")


def test_failures_on_the_way_are_told(server: tuple[str, dict[str, bytes]], tmp_path: Path) -> None:
    address, answers = server
    with pytest.raises(FileError, match=r"cannot be fetched .*404"):
        download.get("toy", tmp_path, url=f"{address}/nothing.zip")
    answers["/page.zip"] = b"<html>log in first</html>"
    with pytest.raises(FileError, match="not a whole zip file"):
        download.get("toy", tmp_path, url=f"{address}/page.zip")
    answers["/broken.zip"] = archive(WHOLE)
    with pytest.raises(FileError, match="broke off after"):
        download.get("toy", tmp_path, url=f"{address}/broken.zip")
    with pytest.raises(FileError, match="needs a Kaggle account"):
        download.get("avazu", tmp_path)
    with pytest.raises(ParameterError, match="unknown dataset 'spotify'; choose among lastfm"):
        download.get("spotify", tmp_path)


def test_check_says_what_is_there_what_is_missing_and_what_differs(tmp_path: Path) -> None:
    place = tmp_path / "toy"
    place.mkdir()
    (place / "tags.dat").write_bytes(CONTENT + b"3\tpop\n")
    (place / "part.tsv").write_bytes(b"a\n1\n")
    assert [(f.file, f.state) for f in check("toy", tmp_path)] == [
        ("tags.dat", "differs"),
        ("rows.dat", "missing"),
        ("part.tsv", "ok"),
    ]
    (place / "rows.dat.gz").write_bytes(b"\x1f\x8b\x08")
    found = check("toy", tmp_path)
    assert [f.state for f in found] == ["differs", "unreadable"]
    assert "fetch it again" in found[1].note
