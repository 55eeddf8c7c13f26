"""The limiter's numbers, and what importing it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from brimful.errors import UsageError
from brimful_worker.admission import Limits
from brimful_worker.limiter import InvalidLimit, Limiter, SyncLimiter, Window
from brimful_worker.limiter.windows import NO_SLOTS, Timing, admissions

URL = "redis://127.0.0.1:1"
_IMPORT = """
import sys

class OnlyRedis:
    def find_spec(self, name, path=None, target=None):
        root = name.split(".")[0]
        if root not in sys.stdlib_module_names and root not in {"brimful", "brimful_worker", "redis"} \
                and not root.startswith(("_", "dotless")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, OnlyRedis())
from brimful_worker.limiter import Limiter, SyncLimiter, Window
import brimful_worker.limiter.httpx_adapter
Limiter("redis://127.0.0.1:1", "x", slots=1, windows=[Window(10, 1), Window(600, 60)])
SyncLimiter("redis://127.0.0.1:1", "x", slots=1)
ours = {"brimful", "brimful_worker", "redis"}
print(*sorted({name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - ours))
"""


def test_importing_the_limiter_needs_redis_only() -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # which the other tests set
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    foreign = [name for name in done.stdout.split() if not name.startswith("_")]  # a venv's start-up modules
    assert not foreign


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ({"slots": 0}, "slots = 0"),
        ({"slots": -1}, "slots = -1"),
        ({"slots": 1.5}, "slots = 1.5"),
        ({"slots": True}, "slots = True"),
        ({"slots": 10**13}, "slots"),
        ({"starts": -5}, "starts = -5"),
        ({"starts": 0}, "starts = 0"),
        ({"tokens": 0}, "tokens = 0"),
        ({"starts": 5, "window_s": 0}, "seconds = 0"),
        ({"starts": 5, "window_s": float("nan")}, "seconds = nan"),
        ({"starts": 5, "window_s": "1m"}, "seconds = '1m'"),
        ({"slots": 1, "lease_s": 0}, "lease_s"),
        ({"slots": 1, "lease_s": -1}, "lease_s = -1"),
        ({"slots": 1, "guard_s": -1}, "guard_s = -1"),
        ({"slots": 1, "timeout_s": -1}, "timeout_s = -1"),
        ({"slots": 1, "circuit_breaker": -1}, "circuit_breaker"),
        ({}, "limits nothing"),
        ({"starts": 5, "windows": [Window(7, 60)]}, "same length"),
    ],
)
@pytest.mark.parametrize("kind", [Limiter, SyncLimiter])
def test_numbers_that_cannot_be_limits(kind: Any, numbers: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidLimit, match=named) as raised:
        kind(URL, "name", **numbers)
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, UsageError)


@pytest.mark.parametrize("name", ["", "a{b}", "a\nb", 7])
def test_a_name_that_cannot_be_part_of_a_key(name: Any) -> None:
    with pytest.raises(InvalidLimit, match="name = "):
        Limiter(URL, name, slots=1)


def test_a_window_that_limits_nothing() -> None:
    with pytest.raises(InvalidLimit, match="limits nothing"):
        Window(seconds=1)


def test_a_redis_that_is_no_client() -> None:
    with pytest.raises(TypeError, match="redis = int"):
        Limiter(6379, "name", slots=1)  # type: ignore[arg-type]


async def test_arguments_of_a_slot() -> None:
    limiter = Limiter(URL, "name", tokens=100)
    with pytest.raises(InvalidLimit, match="more than the 100 of a window of 60 s"):
        limiter.slot(tokens=101)
    with pytest.raises(InvalidLimit, match="tokens = -1"):
        limiter.slot(tokens=-1)
    with pytest.raises(InvalidLimit, match="timeout_s = -1"):
        limiter.slot(timeout_s=-1)


def test_one_window_is_one_admission_as_a_worker_s() -> None:
    assert admissions("key", 16, [Window(600, 60)], Timing(circuit_breaker=20)) == [
        ("key", Window(600, 60), Limits(slots=16, starts=600))
    ]


def test_further_windows_are_admissions_of_their_own() -> None:
    found = admissions("key", 16, [Window(10, 1), Window(600, 60, tokens=9000)], Timing())
    assert [tag for tag, _, _ in found] == ["key", "key:1s"]
    longest, short = (limits for _, _, limits in found)
    assert (longest.slots, longest.starts, longest.tokens, longest.window_s) == (16, 600, 9000, 60.0)
    assert (short.slots, short.starts, short.tokens, short.window_s) == (NO_SLOTS, 10, None, 1.0)
    assert (longest.guard_s, short.guard_s) == (pytest.approx(1.8), pytest.approx(0.21))
