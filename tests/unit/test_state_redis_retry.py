"""Retrying Redis commands: which errors end a run, which are waited out, and cancellation meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

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
from brimful.state.redis_retry import (
    REFUSAL_LIMIT_S,
    RetryPolicy,
    forget_refusals,
    recent_refusal,
    retry_until_available,
)
from brimful.state.redis_url import sync_redis_client
from brimful_worker.local.server.valkey import Valkey


@pytest.fixture(autouse=True)
def _nothing_refused_yet() -> Iterator[None]:
    forget_refusals()
    yield
    forget_refusals()


def _wrapped(cause: Exception) -> OperationalError:
    error = OperationalError("about it")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "says", "remedy"),
    [
        (ResponseError("MISCONF Errors writing to the AOF file: No space left on device"), "MISCONF Errors", "disk"),
        (ResponseError("Command # 1 (HSET k {}) of pipeline caused error: ('MISCONF x',)"), ": MISCONF x. ", "disk"),
        (OutOfMemoryError("command not allowed"), "OOM command not allowed", "maxmemory"),
        (ReadOnlyError("You can't write against a read only replica."), "READONLY You can't", "primary"),
        (_wrapped(ResponseError("NOREPLICAS Not enough good replicas")), "NOREPLICAS Not enough", "log"),
    ],
)
def test_an_error_reply_is_logged_once_and_raised_when_it_lasts(
    error: Exception, says: str, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    policy = RetryPolicy(clock=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            policy.check(error)
            now[0] += REFUSAL_LIMIT_S / 3 - 0.1
    assert len(caplog.messages) == 1
    assert recent_refusal() is not None
    now[0] += 1.0
    with pytest.raises(RedisRefused) as ended:
        policy.check(error)
    assert says in str(ended.value)
    assert remedy in str(ended.value)
    assert "HSET" not in str(ended.value)
    assert ended.value.exit_code is ExitCode.INTERNAL


def test_an_error_reply_in_a_pipeline_is_shown_without_its_command(valkey: Valkey) -> None:
    with sync_redis_client(valkey.url) as client, pytest.raises(ResponseError) as raised:
        client.pipeline().set("k", "secret prompt").hset("k", "field", "secret prompt").execute()
    RetryPolicy().check(raised.value)
    assert "Redis refuses commands: WRONGTYPE Operation against a key" in str(recent_refusal()), (
        "redis-py words a pipeline's error otherwise: adapt brimful.state.redis_retry"
    )
    assert "secret" not in str(recent_refusal())


@pytest.mark.parametrize(
    "error",
    [
        AuthenticationError("invalid username-password pair or user is disabled."),
        NoPermissionError("User app has no permissions to run the 'hset' command"),
        _wrapped(AuthenticationError("Authentication required.")),
    ],
)
def test_missing_rights_are_raised_at_once(error: Exception) -> None:
    with pytest.raises(RedisUnreachable, match="BRIMFUL_REDIS_URL") as ended:
        RetryPolicy().check(error)
    assert ended.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("error", [ConnectionError("gone"), OSError("reset"), ClusterDownError("electing")])
def test_an_outage_is_waited_out(error: Exception) -> None:
    now = [0.0]
    policy = RetryPolicy(clock=lambda: now[0])
    for _ in range(10):
        policy.check(error)
        now[0] += REFUSAL_LIMIT_S
    # An error reply after the outage gets the whole time again.
    policy.check(ResponseError("MISCONF x"))


@pytest.mark.parametrize("away", [False, True])
async def test_a_cancellation_that_redis_py_loses_ends_the_retrying(away: bool) -> None:
    calls, asked = 0, asyncio.Event()

    async def loses_it() -> None:
        nonlocal calls
        calls += 1
        asked.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if away:
            raise ConnectionError

    async def forever() -> None:
        while True:
            await retry_until_available(loses_it)

    task = asyncio.create_task(forever())
    await asked.wait()
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
    assert calls == 1


async def test_a_cancelled_task_may_still_use_redis_to_clean_up() -> None:
    async def cleans_up() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await retry_until_available(answers)
        raise AssertionError

    async def answers() -> str:
        await asyncio.sleep(0)
        return "withdrawn"

    task = asyncio.create_task(cleans_up())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "withdrawn"
