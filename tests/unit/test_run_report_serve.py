"""``brimful report --serve``: who gets what, over a real socket, and the search."""

from __future__ import annotations

import http.client
import json
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from brimful.outcome import Cause, Failure
from brimful.packing.units import Unit
from brimful.run.output.records import dump_line
from brimful.run.report.serve import ReportServer
from support.fake_driver import FakeDriver
from support.runs import options, records, run, write_lines

TEXTS = {2: 'a "quoted" line\nand Ärger \U0001f600', 3: "plain NEEDLE plain", 4: ""}


def _answer(unit: Unit, prompt: int, choice: int) -> str | Failure:
    if unit.line == 5:
        return Failure(Cause.TIMEOUT, "no answer in 7 s")
    return TEXTS.get(unit.line, "one")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "o.jsonl"
    lines = [{"id": f"id-{line}", "prompt": f"Prompt {line} Straße", "n": 2} for line in range(1, 8)]
    run(options(write_lines(tmp_path / "in.jsonl", lines), out=out), FakeDriver(_answer, reverse=True))
    there = records(out)
    there[0] |= {"input": {"subject": "botany"}, "hook": {"verdict": "splendid"}}
    out.write_bytes(b"".join(map(dump_line, there)))
    return out


class _Client:
    def __init__(self, server: ReportServer) -> None:
        parts = urlsplit(server.url)
        self.host, self.token = parts.netloc, parts.path

    def get(self, path: str, **headers: str) -> tuple[int, http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection(self.host, timeout=30)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer, answer.read()
        finally:
            connection.close()

    def rows(self, needle: str) -> list[int]:
        found = array("I")
        found.frombytes(self.get(f"{self.token}search?q={quote(needle)}")[2])
        return found.tolist()


@pytest.fixture
def client(out: Path) -> Iterator[_Client]:
    with ReportServer(out) as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        yield _Client(server)
        server.stop()
        thread.join()


def test_the_page_and_its_texts_are_served_to_who_knows_the_address(client: _Client) -> None:
    status, answer, page = client.get(client.token)
    assert status == 200
    assert answer.headers["Cache-Control"] == "no-store"
    assert b"connect-src 'self'" in page
    assert b'class="chunk"' not in page
    groups = json.loads(client.get(f"{client.token}groups?from=1&to=3")[2])
    assert [group["id"] for group in groups] == ["id-2", "id-3"]
    assert groups[0]["cells"][0]["text"] == TEXTS[2]
    assert client.get(f"{client.token}groups?from=0&to=100000")[0] == 400
    assert client.get(f"{client.token}groups")[0] == 400
    assert client.get("/")[0] == client.get("/wrong/")[0] == client.get(f"{client.token}../x")[0] == 404
    assert client.get(client.token, Host="evil.example")[0] == 403


def test_the_search_finds_what_the_page_shows(client: _Client) -> None:
    assert client.rows("needle") == [4, 5]
    assert client.rows('"QUOTED" line\nand') == [2, 3]
    assert client.rows("ärger \U0001f600") == client.rows("ÄRGER") == [2, 3]
    assert client.rows("prompt 3 stra") == [4, 5]  # the prompt is in the input only
    assert client.rows("id-7") == [12, 13]
    assert client.rows("in 7 s") == [8, 9]  # a failure's message
    assert client.rows("botany") == [12, 13]  # of the prompt
    assert client.rows("splendid") in ([12], [13])  # of one rollout
    assert client.rows("finish_reason") == client.rows("stop") == []  # names and values that are no text
    assert client.rows("straße") == list(range(14))
