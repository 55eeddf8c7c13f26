"""Every block of code of README and docs is typed here, or says above it why it is not.

``make test`` types those of the README, ``make docs`` those of the other pages. A page's blocks run in their order, in
one folder, against a rehearsal's fleet, with a front door if the page asks one. Comments directly above a block say
what else there is to know:

- ``not run: REASON``; ``not run, any block: REASON`` is for a whole page
- ``file: NAME``: the block is the content of this file
- ``exit: CODE``: of the last command; otherwise 0
- ``after: COMMAND``: typed before
- ``alternatives``: each line is typed with no output of the others there
- ``transcript``: lines with ``$`` are typed
- ``background: WORDS``: runs until the page ends; typing goes on once it has printed a line with these words, and with
  the ``export`` before it
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from brimful.config import Settings
from brimful.profile import load_prices, load_profiles
from brimful_worker.local.fleet import LocalFleet
from brimful_worker.local.server.valkey import free_port
from support import markdown
from support.commands import Running, environment
from support.markdown import ROOT, Block, label

pytestmark = pytest.mark.timeout(400)  # a page is up to ten commands, each of which starts workers
PAGES = [page for page in markdown.pages() if page.parent.name != "bench"]
RUN = [page for page in PAGES if any("not run" not in block.markers for block in markdown.blocks(page))]
PORT = "8000"
"""The front door's in the docs. Tests take a free one in its place."""
READY = "ready"
"""What ``brimful up`` says once its workers are."""
STARTS_ITS_OWN, CHANGES_ITS_FLEET = ("tutorial.md",), ("serve.md",)
"""Pages that start their fleet themselves, and those after which a fleet is no longer as it was (callers' tokens)."""
QUESTIONS = [{"id": place, "question": f"{place} + 2?", "answer": str(place + 2)} for place in range(1, 4)]
LANGUAGES = {"sh", "python", "json", "toml", "yaml", "js", "text"}


def _lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _prepare(folder: Path) -> None:
    """The files that the pages speak of."""
    (folder / "examples").symlink_to(ROOT / "examples")
    prompts = [{"id": f"p{place}", "prompt": f"Prompt {place}"} for place in range(4)]
    (folder / "prompts.jsonl").write_text(_lines(prompts))
    (folder / "sums.jsonl").write_text('{"id": 7, "prompt": "2+2=", "answer": "4", "tags": ["sum", "small"]}\n')
    (folder / "questions.jsonl").write_text(_lines(QUESTIONS))
    (folder / "questions.csv").write_text("key,question\na,Why?\nb,How?\n")
    chats = [[{"role": "user", "content": "Why?"}]]
    pq.write_table(pa.table({"messages": chats}), folder / "train.parquet")
    for place in ("shards", "data"):
        (folder / place).mkdir()
    (folder / "shards" / "one.jsonl").write_text(_lines(prompts[:2]))
    (folder / "data" / "one-train.jsonl.gz").write_bytes(gzip.compress(_lines(prompts[:2]).encode()))
    (folder / "a.json").write_text(json.dumps(prompts[2:]))
    (folder / "my_service.py").write_text(_SERVICE)


_SERVICE = """
from brimful import errors, sample


def ask(question):
    try:
        return sample.delay(question, max_tokens=16).get()["choices"][0]["text"]
    except errors.PermanentFailure:
        return "I may not answer that."
"""


class Typist:
    """Types a page's blocks in a folder of its own."""

    def __init__(self, folder: Path, port: int, env: Mapping[str, str]) -> None:
        self._folder, self._port = folder, port
        path = f"{Path(sys.executable).parent}:{environment()['PATH']}"
        self._env = {**environment(), **env, "PATH": path}
        self._background = ExitStack()

    def __enter__(self) -> Typist:
        return self

    def __exit__(self, *_: object) -> None:
        self._background.close()

    def type(self, block: Block) -> None:
        markers, text = block.markers, block.text.replace(f":{PORT}/", f":{self._port}/")
        if "after" in markers:
            self._run(markers["after"], block)
        if "file" in markers:
            (self._folder / markers["file"]).write_text(text)
            _check_file(self._folder / markers["file"])
        elif "background" in markers:
            self._start(text.replace(f" {PORT}", f" {self._port}"), markers["background"])
        elif block.language == "python":
            (self._folder / "block.py").write_text(text)
            self._run("python -W error::DeprecationWarning block.py", block)
        elif "alternatives" in markers:
            for line in re.sub(r"\\\n *", "", text).splitlines():
                self._run(f"rm -f out.jsonl*; {line}", block)
        elif "transcript" in markers:
            typed = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
            self._run("\n".join(typed), block)
        else:
            self._run(text, block)

    def _run(self, script: str, block: Block) -> None:
        """As in one terminal: what is exported stays."""
        if "curl " in script and not shutil.which("curl"):
            return
        kept = self._folder / ".environment"
        done = subprocess.run(
            ["bash", "-ec", f"trap 'env -0 > {kept}' EXIT\n{script}"],
            cwd=self._folder, env=self._env, capture_output=True, text=True, timeout=150,
        )  # fmt: skip
        said = f"{block}: {script}\n{done.stdout}{done.stderr}"
        assert done.returncode == int(block.markers.get("exit", 0)), said
        assert "Traceback" not in said
        if kept.exists():
            self._env = dict(pair.split("=", 1) for pair in kept.read_text().split("\0") if pair)

    def _start(self, typed: str, words: str) -> None:
        arguments = typed.split()
        assert arguments.pop(0) == "brimful"
        running = self._background.enter_context(Running(*arguments))
        if found := re.search(r"export (\w+)=(\S+)", running.text_until(words)):
            self._env[found[1]] = found[2].strip("'\"")


def _check_file(file: Path) -> None:
    """What no command of the page reads must at least be read."""
    match file.name:
        case "profiles.toml":
            assert "mine" in load_profiles(file)
        case "prices.toml":
            assert load_prices(file)
        case _ if file.suffix == ".toml":
            tomllib.loads(file.read_text())
        case _ if file.suffix == ".yaml":
            assert yaml.safe_load(file.read_text())


def _started(port: int) -> Running:
    return Running("up", "--rehearse", "--workers", "1", "--serve-port", str(port))


def _url(up: Running) -> str:
    found = re.search(r"export BRIMFUL_REDIS_URL=(\S+)", up.text_until(READY))
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """The port of a front door, and the Redis of its fleet."""
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("fleet")))
        with _started(port) as up:
            yield port, _url(up)


@pytest.fixture(scope="module")
def without_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The Redis of a fleet that has no front door."""
    settings = Settings.load(state_dir=tmp_path_factory.mktemp("fleet"))
    with LocalFleet(settings, workers=1, rehearse=True) as fleet:
        yield fleet.redis_url


def _asks_a_door(page: Path) -> bool:
    return any(f":{PORT}" in block.text for block in markdown.blocks(page) if "not run" not in block.markers)


@pytest.fixture
def typist(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Typist]:
    page: Path = request.node.callspec.params["page"]
    folder = tmp_path / "typed"
    folder.mkdir()
    _prepare(folder)
    with ExitStack() as stack:
        if page.name in STARTS_ITS_OWN:
            port, env = free_port(), {}
        elif page.name in CHANGES_ITS_FLEET:
            port = free_port()
            env = {"BRIMFUL_REDIS_URL": _url(stack.enter_context(_started(port)))}
        elif not _asks_a_door(page):
            port, env = 0, {"BRIMFUL_REDIS_URL": request.getfixturevalue("without_door")}
        else:
            port, url = request.getfixturevalue("shared")
            env = {"BRIMFUL_REDIS_URL": url}
        yield stack.enter_context(Typist(folder, port, env))


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    for block in markdown.blocks(page):
        assert block.language in LANGUAGES, block
        reason = block.markers.get("not run")
        if reason is not None:
            assert len(reason.split()) > 1, f"{block}: say why it is not run"
        elif block.language in ("json", "toml", "yaml", "js"):
            assert "file" in block.markers, f"{block}: is neither a file of the page nor marked as not run"


@pytest.mark.parametrize(
    "page",
    [page if label(page) == "README.md" else pytest.param(page, marks=pytest.mark.docs) for page in RUN],
    ids=label,
)
def test_the_blocks_of_a_page_run(page: Path, typist: Typist) -> None:
    for block in markdown.blocks(page):
        if "not run" not in block.markers and block.language != "text":
            typist.type(block)
