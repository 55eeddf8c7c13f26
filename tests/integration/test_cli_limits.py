"""``brimful limits set`` and ``limits show``: warnings, refusals, and options with a former name."""

from __future__ import annotations

import json
import subprocess

import pytest
import redis

from brimful.errors import ExitCode
from brimful.state.keys import TAGS, admission_keys
from brimful_worker.local.server.valkey import Valkey
from support.commands import brimful, brimful_in_process

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
    return brimful_in_process("limits", "set", "--tag", "aaaa", *arguments, BRIMFUL_REDIS_URL=url)


def test_limits_above_those_of_the_workers_are_set_with_a_warning(brought: str) -> None:
    done = _set(brought, "--slots", "99", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["limits"]["slots"] == 99
    assert "slots = 99 allows more than the 16" in done.stderr
    assert "starts = no limit allows more than the 600" in _set(brought, "--starts", "0").stderr
    assert "window_s = 30 allows more than the 60" in _set(brought, "--window", "30").stderr
    assert _set(brought, "--slots", "8", "--starts", "300", "--window", "61").stderr == ""


def test_a_reserve_that_leaves_nothing_to_batch_is_refused(brought: str) -> None:
    for arguments in (["--reserve-slots", "16"], ["--slots", "4", "--reserve-slots", "5"], ["--reserve-starts", "600"]):
        done = _set(brought, *arguments)
        assert done.returncode == ExitCode.USAGE
        assert "leaves none to batch" in done.stderr
    assert _set(brought, "--reserve-slots", "15").returncode == 0
    done = _set(brought, "--slots", "15")
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith("brimful: --slots 15: the reserve of 15 leaves none to batch"), "the option typed"
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


def test_the_output_names_the_key(brought: str) -> None:
    done = brimful_in_process("limits", "show", "--tag", "b", BRIMFUL_REDIS_URL=brought)
    assert done.stdout.startswith("key bbbb\n")


def test_slots_may_be_learnt_and_set_again(brought: str) -> None:
    done = _set(brought, "--slots", "auto")
    assert done.returncode == 0
    assert "slots" in done.stdout
    assert "auto   set by hand" in done.stdout
    assert json.loads(_set(brought, "--slots", "12", "--json").stdout)["limits"]["slots_auto"] == 0
    assert "slots                    12   set by hand" in _set(brought, "--starts", "5").stdout
    refused = _set(brought, "--slots", "many")
    assert (refused.returncode, "--slots many: must be a whole number, or auto" in refused.stderr) == (
        ExitCode.USAGE,
        True,
    )
