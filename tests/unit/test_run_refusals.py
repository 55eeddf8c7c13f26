"""What Redis answers is not its absence."""

from __future__ import annotations

import logging

import pytest
from kombu.exceptions import OperationalError
from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from brimful.errors import ExitCode, RedisRefused, RedisUnreachable
from brimful.state import redis_retry as insist
from brimful.state.redis_retry import REFUSED_S, RetryPolicy, refused_lately


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insist, "_said", {})
    monkeypatch.setattr(insist, "_last", [])


def _wrapped(cause: Exception) -> OperationalError:
    error = OperationalError("about it")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "says", "way"),
    [
        (ResponseError("MISCONF Errors writing to the AOF file: No space left on device"), "MISCONF Errors", "disk"),
        (ResponseError("Command # 1 (HSET k {}) of pipeline caused error: ('MISCONF x',)"), ": MISCONF x. ", "disk"),
        (OutOfMemoryError("command not allowed"), "OOM command not allowed", "maxmemory"),
        (ReadOnlyError("You can't write against a read only replica."), "READONLY You can't", "primary"),
        (_wrapped(ResponseError("NOREPLICAS Not enough good replicas")), "NOREPLICAS Not enough", "log"),
    ],
)
def test_a_refusal_is_told_once_and_ends_the_run_when_it_lasts(
    error: Exception, says: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    patience = RetryPolicy(clock=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            patience.bear(error)
            now[0] += REFUSED_S / 3 - 0.1
    assert len(caplog.messages) == 1
    assert refused_lately() is not None
    now[0] += 1.0
    with pytest.raises(RedisRefused) as ended:
        patience.bear(error)
    assert says in str(ended.value)
    assert way in str(ended.value)
    assert "HSET" not in str(ended.value)
    assert ended.value.exit_code is ExitCode.INTERNAL


@pytest.mark.parametrize(
    "error",
    [
        AuthenticationError("invalid username-password pair or user is disabled."),
        NoPermissionError("User app has no permissions to run the 'hset' command"),
        _wrapped(AuthenticationError("Authentication required.")),
    ],
)
def test_a_user_without_rights_ends_the_run_at_once(error: Exception) -> None:
    with pytest.raises(RedisUnreachable, match="BRIMFUL_REDIS_URL") as ended:
        RetryPolicy().bear(error)
    assert ended.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("error", [ConnectionError("gone"), OSError("reset"), ClusterDownError("electing")])
def test_absence_is_waited_out(error: Exception) -> None:
    now = [0.0]
    patience = RetryPolicy(clock=lambda: now[0])
    for _ in range(10):
        patience.bear(error)
        now[0] += REFUSED_S
    # A refusal begins anew after it.
    patience.bear(ResponseError("MISCONF x"))
