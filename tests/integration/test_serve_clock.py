"""The clock of the callers' limits: Redis's TIME that is set back or forward neither stops nor opens a limit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest

from brimful.state.callers.tokens import CallerRecord
from brimful.state.keys import caller_starts_key, caller_tokens_keys, callers_clock_key
from brimful.state.redis_url import sync_redis_client
from brimful_worker.admission.wire.redis_clock import RedisClock
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.serve.callers.clock import CallersClock
from brimful_worker.serve.callers.minute import Minutes, line_id
from brimful_worker.serve.refusals import Refusal
from brimful_worker.singles.pipeline import SharedPipeline

STEP_MS = 3_600_000
FEW = CallerRecord("few", "d", 0.0, starts=3, tokens_per_minute=100)


@pytest.fixture
async def pipeline(valkey: Valkey) -> AsyncIterator[SharedPipeline]:
    pipeline = SharedPipeline(valkey.url, "clock")
    pipeline.start()
    yield pipeline
    await pipeline.aclose()


def step(valkey: Valkey, by_ms: int) -> None:
    """As if Redis's TIME had been set by so much: of a clock, only its difference to TIME is known."""
    with sync_redis_client(valkey.url) as client:
        client.hincrby(callers_clock_key(""), "skew", by_ms)


async def wait_s(minutes: Minutes, pipeline: SharedPipeline, request: str) -> int:
    """The Retry-After of a request of the caller; 0 if it is let in."""
    try:
        await minutes.count(pipeline, FEW, request, 5)
    except Refusal as refusal:
        return int(refusal.headers["Retry-After"])
    return 0


@pytest.mark.parametrize("by_ms", [-STEP_MS, STEP_MS], ids=["back", "forward"])
async def test_a_step_of_the_clock_moves_no_minute(valkey: Valkey, pipeline: SharedPipeline, by_ms: int) -> None:
    clock = CallersClock("")
    minutes = Minutes("", clock)
    await clock.read(pipeline)
    before = clock.now_s
    assert [await wait_s(minutes, pipeline, f"r{number}") for number in range(3)] == [0, 0, 0]
    step(valkey, by_ms)
    assert 0 < await wait_s(minutes, pipeline, "r3") <= 60
    await clock.read(pipeline)
    assert before <= clock.now_s < before + 600


async def test_a_minute_passes_whatever_the_clock_did(valkey: Valkey, pipeline: SharedPipeline) -> None:
    minutes = Minutes("", CallersClock(""))
    for number in range(3):
        await minutes.count(pipeline, FEW, f"r{number}", 5)
    step(valkey, -STEP_MS)
    assert await wait_s(minutes, pipeline, "r3")
    with sync_redis_client(valkey.url) as client:
        for key, names in ((caller_starts_key("", "few"), 3), (caller_tokens_keys("", "few")[0], 3)):
            assert client.zcard(key) == names
            for id in client.zrange(key, 0, -1):
                client.zincrby(key, -60_000, id)
        assert await wait_s(minutes, pipeline, "r4") == 0
        assert client.hgetall(caller_tokens_keys("", "few")[1]) == {"r4": "5", "sum": "5"}
        for key in (caller_starts_key("", "few"), *caller_tokens_keys("", "few")):
            assert int(str(client.pttl(key))) > STEP_MS, "a step forward ends no key"


async def test_a_command_that_comes_late_holds_nothing_back(pipeline: SharedPipeline) -> None:
    class Late(RedisClock):
        """The next command's bound is one that it is past."""

        bounds: ClassVar[list[int]] = []

        def bound_ms(self, sent: float, *, stepped: bool = False) -> int | None:
            right = super().bound_ms(sent, stepped=stepped)
            return self.bounds.pop() if self.bounds else right

    clock = CallersClock("", Late())
    await clock.read(pipeline)
    before = clock.now_s
    Late.bounds.append(int(before * 1000) - 5000)
    await clock.read(pipeline)
    assert not Late.bounds
    assert clock.now_s >= before


async def test_lines_of_a_batch_leave_a_tenth_to_single_requests(valkey: Valkey, pipeline: SharedPipeline) -> None:
    minutes = Minutes("", CallersClock(""))
    caller = CallerRecord("ann", "d", 0.0, starts=20, tokens_per_minute=1000)
    assert await minutes.count_lines(pipeline, caller, "b", 1, [10] * 30) == 18
    assert await minutes.count_lines(pipeline, caller, "b", 19, [10] * 12) == 0
    await minutes.count(pipeline, caller, "r0", 5)
    await minutes.count(pipeline, caller, "r1", 5)
    with pytest.raises(Refusal, match="limited to 20 requests a minute"):
        await minutes.count(pipeline, caller, "r2", 5)
    times, amounts = caller_tokens_keys("", "ann")
    with sync_redis_client(valkey.url) as client:
        assert client.hget(amounts, "sum") == "190"
        minutes.settle(pipeline, caller, {line_id("b", 1): 4, line_id("b", 18): 3, "other": 50})
        await pipeline.ask("PING")
        assert client.hget(amounts, "sum") == str(190 - 13)
        assert client.zcard(times) == 20


async def test_lines_of_a_batch_are_bounded_by_their_tokens(pipeline: SharedPipeline) -> None:
    minutes = Minutes("", CallersClock(""))
    caller = CallerRecord("ann", "d", 0.0, tokens_per_minute=100)
    assert await minutes.count_lines(pipeline, caller, "b", 1, [95, 1]) == 1, "one that is larger goes alone"
    assert await minutes.count_lines(pipeline, caller, "b", 2, [1]) == 0
    minutes.settle(pipeline, caller, {line_id("b", 1): 30})
    await pipeline.ask("PING")
    assert await minutes.count_lines(pipeline, caller, "b", 2, [40, 20, 1]) == 2


async def test_a_caller_that_goes_away_while_it_is_counted_is_settled(valkey: Valkey, pipeline: SharedPipeline) -> None:
    minutes = Minutes("", CallersClock(""))
    counting = asyncio.ensure_future(minutes.count(pipeline, FEW, "r0", 80))
    await asyncio.sleep(0)  # it is asked for
    counting.cancel()
    minutes.settle(pipeline, FEW, {"r0": 0})
    await pipeline.ask("PING")
    with sync_redis_client(valkey.url) as client:
        assert client.hget(caller_tokens_keys("", "few")[1], "sum") == "0"


async def test_scripts_are_sent_as_a_whole_once(valkey: Valkey, pipeline: SharedPipeline) -> None:
    minutes = Minutes("", CallersClock(""))

    def calls(command: str) -> int:
        with sync_redis_client(valkey.url) as client:
            found: Any = client.info("commandstats")
        return int(found.get(f"cmdstat_{command}", {"calls": 0})["calls"])

    await asyncio.gather(*(minutes.count(pipeline, FEW, f"r{number}", 1) for number in range(3)))
    assert (calls("eval"), calls("evalsha")) == (1, 5), "the others were too early, and are called again"
    with sync_redis_client(valkey.url) as client:
        client.script_flush()
    both = minutes.count_lines(pipeline, FEW, "b", 1, [1]), wait_s(minutes, pipeline, "r3")
    counted, wait = await asyncio.gather(*both)
    assert counted == 0
    assert wait > 0
    assert calls("eval") == 3


async def test_error_replies_are_raised(valkey: Valkey, pipeline: SharedPipeline) -> None:
    with sync_redis_client(valkey.url) as client:
        client.set(callers_clock_key(""), json.dumps({}))
    with pytest.raises(Exception, match="WRONGTYPE"):
        await CallersClock("").read(pipeline)
