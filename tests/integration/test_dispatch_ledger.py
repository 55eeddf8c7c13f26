"""A run's ledger, method by method, on a real Valkey."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis

from brimful.dispatch.ledger import CLOSED_TTL_S, TTL_S, RunLedger, ShardState, parse_results, result_fields
from brimful.errors import VersionMismatch
from brimful.outcome import Cause, Failure, Outcome
from brimful.packing.slot_model import Weights
from brimful.packing.units import ManifestEntry, manifest_message
from brimful.state.keys import entry_key, revoked_key, weights_key
from brimful.state.redis_url import redis_client, sync_redis_client
from brimful.state.runs.entry import Asked
from brimful.state.runs.heartbeat import Heartbeat
from brimful_worker.local.server.valkey import Valkey
from support.proxy import Proxy

ONE, TWO = (ManifestEntry(1, "a", 0, (0, 1)),), (ManifestEntry(2, "b", 3, (0,)), ManifestEntry(3, "c", 0, (2,)))
MANY = [f"s{number}" for number in range(501)]
"""One more than is asked of Redis at once."""


@pytest.fixture
async def client(server: Valkey) -> AsyncIterator[Redis]:
    async with redis_client(server.url) as client:
        await client.flushall()
        yield client


@pytest.fixture
def ledger(client: Redis) -> RunLedger:
    return RunLedger(client, "r")


async def claim(ledger: RunLedger, shard: str, *, now: bool = True) -> None:
    """A worker has begun it, and runs it ``now``."""
    await ledger.client.incr(ledger.keys.tries(shard))
    if now:
        await ledger.client.set(ledger.keys.claim(shard), "token")


async def ended(ledger: RunLedger, id: str, units: Any = ONE, **outcome: Any) -> None:
    fields: Any = result_fields(id, manifest_message(units), Outcome(id, **outcome))
    await ledger.client.xadd(ledger.keys.results, fields)


async def test_what_is_recorded_is_outstanding(ledger: RunLedger, client: Redis) -> None:
    assert await ledger.outstanding() == {}
    await ledger.record({"s": {"q1": ONE, "q2": TWO}, "t": {"q3": ONE}})
    assert await ledger.outstanding() == {"s": {"q1": ONE, "q2": TWO}, "t": {"q3": ONE}}
    await client.hdel(ledger.keys.shard("t"), "q3")
    assert (await ledger.outstanding())["t"] == {}
    for key in (ledger.keys.shard("s"), ledger.keys.shards, ledger.keys.schema):
        assert TTL_S - 3600 < await client.ttl(key) <= TTL_S
    await ledger.check_schema()
    await client.set(ledger.keys.schema, "99")
    with pytest.raises(VersionMismatch, match="resume it with the release that began it"):
        await ledger.check_schema()


async def test_many_shards_are_recorded_found_and_withdrawn(ledger: RunLedger, client: Redis) -> None:
    await ledger.record({shard: {f"q-{shard}": ONE} for shard in MANY})
    assert list(await ledger.outstanding()) == sorted(MANY)
    await claim(ledger, MANY[-1])
    states = await ledger.look(MANY)
    assert [shard for shard, state in states.items() if state.claimed] == MANY[-1:]
    assert len(states) == len(MANY)
    await client.set(revoked_key(MANY[-1]), "terminate")
    assert await ledger.revoked(MANY) == {MANY[-1]: "terminate"}
    await ledger.withdraw(MANY[1:])
    assert list(await ledger.outstanding()) == MANY[:1]
    assert await client.exists(ledger.keys.tries(MANY[-1])) == 0


async def test_the_state_of_a_shard(ledger: RunLedger) -> None:
    await ledger.record({shard: {"q": ONE} for shard in ("new", "runs", "died")})
    await claim(ledger, "runs")
    await claim(ledger, "died", now=False)
    assert await ledger.look(["new", "runs", "died", "unknown"]) == {
        "new": ShardState(recorded=True, claimed=False, begun=False),
        "runs": ShardState(recorded=True, claimed=True, begun=True),
        "died": ShardState(recorded=True, claimed=False, begun=True),
        "unknown": ShardState(recorded=False, claimed=False, begun=False),
    }


async def test_a_shard_is_withdrawn_with_its_last_cancelled_request(ledger: RunLedger) -> None:
    await ledger.record({"s": {"q1": ONE, "q2": ONE}, "t": {"q3": ONE}})
    await ledger.cancel({"s": ["q1"], "t": ["q3", "unknown"]})
    assert await ledger.outstanding() == {"s": {"q2": ONE}}
    await ledger.cancel({"s": ["q2"]})
    assert await ledger.outstanding() == {}


async def test_revocations_are_the_fleet_s_own(client: Redis) -> None:
    await client.set(revoked_key("s", "f"), "skip")
    assert await RunLedger(client, "f.r", "f").revoked(["s"]) == {"s": "skip"}
    assert await RunLedger(client, "r").revoked(["s"]) == {}


async def test_results_are_read_in_order_and_trimmed_up_to_what_is_written(ledger: RunLedger) -> None:
    failure = Failure(Cause.TIMEOUT, "late", 504, code="slow")
    await ended(ledger, "q1", attempts=2, completion={"choices": []})
    await ended(ledger, "q2", TWO, failure=failure)
    await ended(ledger, "q3")
    first, second = await ledger.results("0", 2, None)
    assert (first.id, first.manifest, first.outcome.attempts, first.outcome.ok) == ("q1", ONE, 2, True)
    assert (second.id, second.manifest, second.outcome.failure) == ("q2", TWO, failure)
    [third] = await ledger.results(second.entry, 9, None)
    assert third.id == "q3"
    assert await ledger.results(third.entry, 9, 1) == []
    await ledger.forget(second.entry)
    assert [result.id for result in await ledger.results("0", 9, None)] == ["q3"]


def test_the_answers_of_both_protocols_are_read() -> None:
    row = ("1-0", {"id": "q", "units": '[[1,"a",0,[0,1]]]', "outcome": '{"id":"q"}'})
    for answer in ([["k", [row]]], {"k": [[row]]}):
        [result] = parse_results(answer, "k")
        assert (result.entry, result.id, result.manifest, result.outcome) == ("1-0", "q", ONE, Outcome("q"))
    for nothing in (None, [], {}, {"k": []}, [["other", [row]]]):
        assert parse_results(nothing, "k") == []


async def test_workers_see_whether_they_may_send(ledger: RunLedger, client: Redis) -> None:
    await ledger.drain(True)
    assert 0 < await client.ttl(ledger.keys.drain) <= 24 * 3600
    await ledger.drain(False)
    assert await client.exists(ledger.keys.drain) == 0


@pytest.mark.parametrize("keep", [True, False])
async def test_what_is_left_of_a_run_that_is_cleared(ledger: RunLedger, client: Redis, keep: bool) -> None:
    for uncollected in (True, False):
        await client.flushall()
        await ledger.record({"s": {"q": ONE}})
        await claim(ledger, "s", now=False)
        await ledger.drain(True)
        if uncollected:
            await ended(ledger, "q")
        await ledger.clear(keep=keep)
        left = {ledger.keys.results} if keep and uncollected else set()
        assert set(await client.keys("*")) == (left if keep else {ledger.keys.closed})
        assert keep or 0 < await client.ttl(ledger.keys.closed) <= CLOSED_TTL_S


async def test_an_outcome_that_is_stored_while_its_run_is_cleared_stays(server: Valkey, client: Redis) -> None:
    """It is paid for, and the run's next submitter collects it. Its worker may be of any release."""
    keys = RunLedger(client, "r").keys
    with sync_redis_client(server.url) as worker:
        stored = partial(worker.xadd, keys.results, result_fields("q", manifest_message(ONE), Outcome("q")))
        async with Proxy(server.port) as proxy, redis_client(proxy.url) as slow:
            await slow.ping()
            proxy.before = (b"MULTI", stored)  # the results were looked at, and had none
            await RunLedger(slow, "r").clear(keep=True)
    assert proxy.before is None
    assert await client.xlen(keys.results) == 1


async def test_a_run_s_entry_is_written_with_its_weight(ledger: RunLedger, client: Redis) -> None:
    asked: list[Asked] = []
    heartbeat = Heartbeat(lambda: {"state": "running"}, lambda what, _: asked.append(what))
    assert (await ledger.weigh(1.0, heartbeat))[1] is False
    assert await client.hget(entry_key("r"), "state") == "running"
    await client.hset(entry_key("r"), "ask", "hold")
    assert (await ledger.weigh(1.0, heartbeat))[1] is True
    assert (await ledger.weigh(1.0, heartbeat))[1] is False
    assert asked == [Asked.HOLD]


async def test_weights_of_the_runs_that_are_under_way(client: Redis) -> None:
    mine, other = RunLedger(client, "mine"), RunLedger(client, "other")
    assert await mine.weigh(2.0) == (Weights(2.0, 2.0, 2.0), False)
    assert await other.weigh(0.5) == (Weights(0.5, 0.5, 2.5), False)
    assert await mine.weigh(2.0) == (Weights(2.0, 0.5, 2.5), False)
    assert 0 < await client.ttl(weights_key("")) <= 60
    [now, _] = await client.time()
    await client.zadd(weights_key(""), {"0.5 other": now - 11, "4 just": now + 1000})
    assert (await mine.weigh(2.0))[0] == Weights(2.0, 2.0, 6.0), "a run that has said nothing for ten seconds is over"
    assert (await mine.weigh(2.0, held=True))[0] == Weights(2.0, 2.0, 6.0)
    assert await client.zrange(weights_key(""), 0, -1) == ["4 just"], "a held run takes nothing from the others"
    await mine.weigh(2.0)
    await mine.end()
    assert await client.zrange(weights_key(""), 0, -1) == ["4 just"]
    await RunLedger(client, "f.r", "f").weigh(1.0)
    assert await client.zrange(weights_key("f"), 0, -1) == ["1 f.r"]
    await other.end()
