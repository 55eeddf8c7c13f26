"""The shard runner on a real Valkey, with a sampler whose requests end when the test lets them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis
from celery.exceptions import Reject
from redis.asyncio import Redis

from brimful.dispatch.ledger import Keys, Result, RunLedger
from brimful.outcome import Cause, Outcome
from brimful.packing.units import Manifest, ManifestEntry, manifest_message
from brimful.profile import get_profile
from brimful.request import Request
from brimful.state.redis_url import redis_client
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.shards.shard import ShardRunner
from support.proxy import Proxy
from support.sentinel import sentinel
from support.waiting import wait_until_async

RUN, SHARD = "run", "s1"


class HeldSampler:
    """Requests end when their ``holds`` are set; ``free`` ends all at once."""

    def __init__(self, free: bool = True) -> None:
        self.free = free
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.holds: dict[str, asyncio.Event] = {}
        self.waiting: set[str] = set()
        """Requests that wait for a grant: never on the wire."""

    async def sample(
        self, request: Request, *, scope: str = "", on_wire: Callable[[bool], None] | None = None, **_: Any
    ) -> Outcome:
        assert scope == RUN
        self.begun.append(request.id)
        hold = self.holds.setdefault(request.id, asyncio.Event())
        if on_wire is not None and request.id not in self.waiting:
            on_wire(True)
        try:
            if not self.free:
                await hold.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.id)
            raise
        self.ended.append(request.id)
        return Outcome(
            request.id, completion={"choices": [{"index": 0, "text": f"{request.fields['prompt']}\ud800 \u2028"}]}
        )


def message(*ids: str) -> list[dict[str, Any]]:
    return [{"id": id, "units": manifest_message(manifest(id)), "request": {"prompt": f"say {id}"}} for id in ids]


def manifest(id: str) -> Manifest:
    return (ManifestEntry(1, id, 0, (0,)),)


@pytest.fixture
async def ledger(valkey: Valkey) -> AsyncIterator[RunLedger]:
    async with redis_client(valkey.url) as client:
        yield RunLedger(client, RUN)


@contextlib.asynccontextmanager
async def worker(valkey: Valkey | Proxy, sampler: Any, **options: Any) -> AsyncIterator[ShardRunner]:
    stopping = options.pop("stopping", None) or asyncio.Event()
    async with ShardRunner(sampler.sample, valkey.url, "w", stopping, parse, check_s=0.05, **options) as runner:
        yield runner


def parse(fields: Mapping[str, Any]) -> Request:
    return Request.parse(fields, get_profile("acs"))


async def stored(ledger: RunLedger) -> list[Result]:
    return await ledger.results("0", 1000, None)


async def record(ledger: RunLedger, *ids: str) -> None:
    await ledger.record({SHARD: {id: manifest(id) for id in ids}})


async def test_outcomes_reach_the_stream_and_the_shards_keys_are_removed(valkey: Valkey, ledger: RunLedger) -> None:
    await record(ledger, "a", "b")
    async with worker(valkey, HeldSampler()) as runner:
        assert await runner.run(RUN, SHARD, message("a", "b")) == {"requests": 2, "failed": 0}
        await wait_until_async(lambda: _is_empty(ledger), "the shard's keys are gone")
    results = await stored(ledger)
    assert {result.id: result.manifest for result in results} == {"a": manifest("a"), "b": manifest("b")}
    assert results[0].outcome.completion is not None
    assert results[0].outcome.completion["choices"][0]["text"] == "say a\ud800 \u2028"


async def _is_empty(ledger: RunLedger) -> bool:
    return await ledger.outstanding() == {} and await ledger.look([SHARD]) == {SHARD: (False, False, False)}


async def test_only_what_is_still_wanted_is_sampled(valkey: Valkey, ledger: RunLedger) -> None:
    await record(ledger, "b")
    sampler = HeldSampler()
    async with worker(valkey, sampler) as runner:
        await runner.run(RUN, SHARD, message("a", "b"))
        assert await runner.run(RUN, SHARD, message("a", "b")) == {"requests": 0, "failed": 0}
    assert sampler.begun == ["b"]


async def test_a_request_that_is_withdrawn_ends_while_the_others_of_its_shard_go_on(
    valkey: Valkey, ledger: RunLedger
) -> None:
    await record(ledger, "a", "b", "c")
    sampler = HeldSampler(free=False)
    async with worker(valkey, sampler) as runner:
        running = asyncio.create_task(runner.run(RUN, SHARD, message("a", "b", "c")))
        await wait_until_async(lambda: len(sampler.begun) == 3, "all to be on the wire")
        await ledger.cancel({SHARD: ["b"]})
        await wait_until_async(lambda: sampler.cancelled == ["b"], "the withdrawn one to be cancelled")
        sampler.holds["a"].set()
        await wait_until_async(lambda: stored(ledger), "the first outcome")
        await ledger.cancel({SHARD: ["c"]})  # the last one: the shard is withdrawn as a whole
        await asyncio.wait_for(running, 60)
        assert sampler.cancelled == ["b", "c"]
        await wait_until_async(lambda: _is_empty(ledger), "the shard's keys are gone")
    assert [result.id for result in await stored(ledger)] == ["a"]


async def test_a_shard_ends_if_its_last_request_is_withdrawn_after_the_others_ended(
    valkey: Valkey, ledger: RunLedger
) -> None:
    await record(ledger, "a", "b")
    sampler = HeldSampler(free=False)
    async with worker(valkey, sampler) as runner:
        running = asyncio.create_task(runner.run(RUN, SHARD, message("a", "b")))
        await wait_until_async(lambda: len(sampler.begun) == 2, "both to be on the wire")
        await ledger.cancel({SHARD: ["a"]})
        await wait_until_async(lambda: sampler.cancelled == ["a"], "the withdrawn one to be cancelled")
        sampler.holds["b"].set()
        assert await asyncio.wait_for(running, 60) == {"requests": 1, "failed": 0}
        await wait_until_async(lambda: _is_empty(ledger), "the shard's keys are gone")


async def test_a_second_delivery_waits_and_finds_nothing_left(valkey: Valkey, ledger: RunLedger) -> None:
    await record(ledger, "a")
    sampler = HeldSampler(free=False)
    async with worker(valkey, sampler) as one, worker(valkey, sampler) as two:
        first = asyncio.create_task(one.run(RUN, SHARD, message("a")))
        await wait_until_async(lambda: sampler.begun, "the first delivery samples")
        second = asyncio.create_task(two.run(RUN, SHARD, message("a")))
        await asyncio.sleep(0)
        assert not second.done()
        sampler.holds["a"].set()
        assert (await first)["requests"] == 1
        assert (await second)["requests"] == 0
    assert sampler.begun == ["a"]
    assert len(await stored(ledger)) == 1


async def test_a_delivery_cancelled_before_it_begins_leaves_no_claim(valkey: Valkey, ledger: RunLedger) -> None:
    await record(ledger, "a")
    async with (
        Proxy(valkey.port) as proxy,
        worker(proxy, HeldSampler()) as runner,
        redis_client(valkey.url) as client,
    ):
        proxy.before = (b"HKEYS", proxy.freeze)  # it has the claim, and never learns which requests are wanted
        running = asyncio.create_task(runner.run(RUN, SHARD, message("a")))
        await wait_until_async(lambda: not proxy.frozen.is_set(), "the delivery to ask for them")
        assert await client.exists(ledger.keys.claim(SHARD))
        running.cancel()
        proxy.thaw()
        await asyncio.wait([running])
        assert not await client.exists(ledger.keys.claim(SHARD))
        assert (await runner.run(RUN, SHARD, message("a")))["requests"] == 1


async def test_a_dead_workers_claim_expires_and_its_shard_is_taken_over(valkey: Valkey, ledger: RunLedger) -> None:
    await record(ledger, "a")
    async with redis_client(valkey.url) as client:
        await client.set(ledger.keys.claim(SHARD), "the dead", px=300)
    async with worker(valkey, HeldSampler()) as runner:
        assert (await runner.run(RUN, SHARD, message("a")))["requests"] == 1


async def test_a_claim_is_renewed_while_its_shard_runs(valkey: Valkey, ledger: RunLedger) -> None:
    await record(ledger, "a")
    sampler = HeldSampler(free=False)
    async with worker(valkey, sampler, claim_ttl_s=0.5) as runner, redis_client(valkey.url) as client:
        running = asyncio.create_task(runner.run(RUN, SHARD, message("a")))
        await wait_until_async(lambda: sampler.begun, "sampling")
        await client.pexpire(ledger.keys.claim(SHARD), 10_000)
        await wait_until_async(lambda: _ttl_under(client, ledger, 600), "the claim is renewed")
        await client.delete(ledger.keys.claim(SHARD))  # ran out during an outage
        await wait_until_async(lambda: client.exists(ledger.keys.claim(SHARD)), "the claim is there again")
        sampler.holds["a"].set()
        assert (await running)["requests"] == 1


async def _ttl_under(client: Any, ledger: RunLedger, milliseconds: int) -> bool:
    return bool(0 < await client.pttl(ledger.keys.claim(SHARD)) < milliseconds)


async def test_a_withdrawn_shards_sent_requests_are_cancelled_too(valkey: Valkey, ledger: RunLedger) -> None:
    await record(ledger, "a", "b")
    sampler = HeldSampler(free=False)
    async with worker(valkey, sampler) as runner:
        running = asyncio.create_task(runner.run(RUN, SHARD, message("a", "b")))
        await wait_until_async(lambda: len(sampler.begun) == 2, "both sampled")
        await ledger.withdraw([SHARD])
        assert (await running)["requests"] == 0
        assert sorted(sampler.cancelled) == ["a", "b"]
    assert await stored(ledger) == []


async def test_a_claim_taken_by_another_worker_ends_the_work_here(valkey: Valkey, ledger: RunLedger) -> None:
    await record(ledger, "a")
    sampler = HeldSampler(free=False)
    async with worker(valkey, sampler) as runner, redis_client(valkey.url) as client:
        running = asyncio.create_task(runner.run(RUN, SHARD, message("a")))
        await wait_until_async(lambda: sampler.begun, "sampling")
        await client.set(ledger.keys.claim(SHARD), "another")
        await running
        assert sampler.cancelled == ["a"]
        assert await client.get(ledger.keys.claim(SHARD)) == "another"


async def test_stopping_finishes_sent_requests_and_gives_the_rest_back(valkey: Valkey, ledger: RunLedger) -> None:
    await record(ledger, "a", "b")
    sampler, stopping = HeldSampler(free=False), asyncio.Event()
    sampler.waiting = {"b"}
    async with worker(valkey, sampler, stopping=stopping) as runner:
        running = asyncio.create_task(runner.run(RUN, SHARD, message("a", "b")))
        await wait_until_async(lambda: len(sampler.begun) == 2, "both begun")
        stopping.set()
        await wait_until_async(lambda: sampler.cancelled == ["b"], "the one that waits for its grant is let go")
        assert not running.done()
        sampler.holds["a"].set()
        with pytest.raises(Reject) as given_back:
            await running
        assert given_back.value.requeue
        with pytest.raises(Reject):
            await runner.run(RUN, SHARD, message("a", "b"))
    assert [result.id for result in await stored(ledger)] == ["a"]
    async with worker(valkey, HeldSampler()) as next_worker:
        assert (await next_worker.run(RUN, SHARD, message("a", "b")))["requests"] == 1


async def test_a_request_between_attempts_is_given_back_when_the_worker_stops(
    valkey: Valkey, ledger: RunLedger
) -> None:
    await record(ledger, "a")
    stopping = asyncio.Event()
    failed = asyncio.Event()

    class Retrying(HeldSampler):
        async def sample(self, request: Request, *, scope: str = "", on_wire: Any = None, **_: Any) -> Outcome:
            on_wire(True)
            self.begun.append(request.id)
            await failed.wait()
            on_wire(False)
            await asyncio.Event().wait()
            raise AssertionError

    sampler = Retrying()
    async with worker(valkey, sampler, stopping=stopping) as runner:
        running = asyncio.create_task(runner.run(RUN, SHARD, message("a")))
        await wait_until_async(lambda: sampler.begun, "on the wire")
        stopping.set()
        await asyncio.sleep(0)
        assert not running.done()
        failed.set()
        with pytest.raises(Reject):
            await running


async def test_draining_cancels_unsent_requests_with_an_outcome(valkey: Valkey, ledger: RunLedger) -> None:
    await record(ledger, "a", "b")
    sampler = HeldSampler(free=False)
    sampler.waiting = {"b"}
    async with worker(valkey, sampler) as runner:
        running = asyncio.create_task(runner.run(RUN, SHARD, message("a", "b")))
        await wait_until_async(lambda: len(sampler.begun) == 2, "both begun")
        await ledger.drain(True)
        [withdrawn] = await wait_until_async(lambda: stored(ledger), "the waiting request to be stored as cancelled")
        assert withdrawn.id == "b"
        assert withdrawn.outcome.failure.cause is Cause.CANCELLED
        sampler.holds["a"].set()
        await running
    assert [result.outcome.ok for result in await stored(ledger)] == [False, True]


async def test_outcomes_wait_for_redis(valkey: Valkey, ledger: RunLedger, tmp_path: Any) -> None:
    with Valkey(tmp_path / "kept", appendonly=True, options=("appendfsync always",)) as server:
        async with redis_client(server.url) as client:
            kept = RunLedger(client, RUN)
            await record(kept, "a", "b")
            sampler = HeldSampler(free=False)
            async with worker(server, sampler) as runner:
                running = asyncio.create_task(runner.run(RUN, SHARD, message("a", "b")))
                await wait_until_async(lambda: len(sampler.begun) == 2, "both begun")
                server.kill()
                for hold in sampler.holds.values():
                    hold.set()
                await wait_until_async(lambda: len(sampler.ended) == 2, "two outcomes to wait for Redis")
                server.start()
                assert (await running)["requests"] == 2
        async with redis_client(server.url) as client:
            assert sorted(result.id for result in await stored(RunLedger(client, RUN))) == ["a", "b"]


async def test_claims_are_renewed_again_when_redis_is_back(tmp_path: Path) -> None:
    with Valkey(tmp_path / "kept", appendonly=True, options=("appendfsync always",)) as server:
        sampler = HeldSampler(free=False)
        async with worker(server, sampler) as runner:
            async with redis_client(server.url) as client:
                kept = RunLedger(client, RUN)
                await record(kept, "a")
                running = asyncio.create_task(runner.run(RUN, SHARD, message("a")))
                await wait_until_async(lambda: sampler.begun, "it to be begun")
                await _renewed(client)
            server.kill()
            server.start()  # its scripts are gone
            async with redis_client(server.url) as client:
                await _renewed(client)
            sampler.holds["a"].set()
            assert (await running)["requests"] == 1


async def _renewed(client: Redis) -> None:
    claim = Keys(RUN).claim(SHARD)
    await client.delete(claim)
    await wait_until_async(lambda: client.get(claim), "the claim to be renewed")


async def test_connections_to_a_sentinel_are_closed_with_the_runner(valkey: Valkey, tmp_path: Path) -> None:
    with sentinel(tmp_path, valkey.port) as port, redis.Redis(port=port, decode_responses=True) as watcher:
        before = len(watcher.client_list())
        url = f"sentinel://127.0.0.1:{port}/0?master=mymaster"
        runner = ShardRunner(HeldSampler().sample, url, "w", asyncio.Event(), parse)
        async with runner:
            assert (await runner.run(RUN, SHARD, message("a")))["requests"] == 0
            assert len(watcher.client_list()) > before
        await wait_until_async(lambda: len(watcher.client_list()) == before, "its connections to be closed")


async def test_the_sampler_learns_what_may_be_divided_and_what_was(valkey: Valkey, ledger: RunLedger) -> None:
    told = {}

    class Listening(HeldSampler):
        async def sample(self, request: Request, **options: Any) -> Outcome:
            told[request.id] = options["divided"], options["divisible"]
            return await super().sample(request, **options)

    await record(ledger, "line", "pack", "part")
    line, pack, part = message("line", "pack", "part")
    pack["units"] = part["units"] = manifest_message([*manifest("a"), *manifest("b")])
    part["suspect"] = True
    async with worker(valkey, Listening()) as runner:
        await runner.run(RUN, SHARD, [line, pack, part])
    assert told == {"line": (False, False), "pack": (False, True), "part": (True, True)}


async def test_deaths_do_not_count_for_a_shard(valkey: Valkey, ledger: RunLedger) -> None:
    """The admission counts them for the requests that were on the wire."""
    await record(ledger, "a")
    async with redis_client(valkey.url) as client:
        await client.set(ledger.keys.tries(SHARD), 100)
    async with worker(valkey, HeldSampler()) as runner:
        assert await runner.run(RUN, SHARD, message("a")) == {"requests": 1, "failed": 0}


async def test_a_fault_fails_its_request_alone(valkey: Valkey, ledger: RunLedger) -> None:
    await record(ledger, "a", "b")
    bad, good = message("a", "b")
    del bad["request"]
    async with worker(valkey, HeldSampler()) as runner:
        assert await runner.run(RUN, SHARD, [bad, good]) == {"requests": 2, "failed": 1}
    failed = [result.outcome.failure for result in await stored(ledger) if result.outcome.failure]
    assert [(failure.cause, failure.message) for failure in failed] == [
        (Cause.INTERNAL, "brimful's own fault (KeyError): see the worker's log")
    ]


async def test_a_bad_request_fails_alone(valkey: Valkey, ledger: RunLedger) -> None:
    await record(ledger, "a", "b")
    async with worker(valkey, HeldSampler()) as runner:
        bad, good = message("a", "b")
        bad["request"]["n"] = 0
        assert await runner.run(RUN, SHARD, [bad, good]) == {"requests": 2, "failed": 1}
    outcomes = {result.id: result.outcome for result in await stored(ledger)}
    assert outcomes["a"].failure is not None
    assert outcomes["a"].failure.cause is Cause.BAD_REQUEST
    assert outcomes["b"].ok
