"""The parts of a driver, each alone, with a run's ledger on a real Valkey and a test in the place of the workers."""

from __future__ import annotations

import asyncio
import json
import threading
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from brimful.addresses import FleetAddress
from brimful.dispatch.acknowledge import Acknowledger
from brimful.dispatch.enqueue import Enqueuer
from brimful.dispatch.resume import collect
from brimful.errors import RedisUnreachable
from brimful.outcome import Cause, Failure
from brimful.packing.units import Failed
from brimful_worker.local.server.valkey import Valkey
from support.dispatch_parts import REFUSED, Parts, open_parts, singles, steps
from support.packed import ACS, packed, unit
from support.stub_fleet import completion
from support.waiting import wait_until_async


@pytest.fixture
async def parts(server: Valkey) -> AsyncIterator[Parts]:
    async with open_parts(server.url) as parts:
        yield parts


# -- enqueuing ----------------------------------------------------------------------------------------------------


async def test_a_shard_is_recorded_and_then_sent_to_its_queue(parts: Parts, server: Valkey) -> None:
    suspect = packed("q3", 3, 4, n=2)
    suspect = replace(suspect, pack_key=replace(suspect.pack_key, suspect=True))
    first, second = parts.add(*singles(1, 2), suspect)
    async with parts.running(parts.enqueuer):
        await wait_until_async(lambda: second.enqueued_at, "both to be sent", 60)
    assert first.enqueued_at > 0
    assert await parts.ledger.outstanding() == {
        shard.id: {id: request.manifest for id, request in shard.requests.items()} for shard in (first, second)
    }
    one, two = await parts.messages()
    assert [each["task"] for each in (one, two)] == [first.id, second.id]
    assert one["queue"] == "batch"
    assert one["args"] == [
        "r",
        first.id,
        [{"id": f"q{n}", "units": [[n, f"id{n}", 0, [0]]], "request": parts_request(n), "schema": 1} for n in (1, 2)],
    ]
    [sent] = two["args"][2]
    assert sent["suspect"] is True
    assert sent["request"]["prompt"] == ["p3", "p4"]
    heavy = Parts(parts.client, server.url, weight=2.5)
    await heavy.enqueued(packed("q5", 5, workload="interactive"))
    [message, *_] = await heavy.messages()
    assert (message["queue"], message["args"][2][0]["weight"]) == ("interactive", 2.5)
    assert message["args"][2][0]["request"]["workload"] == "interactive"
    await heavy.enqueuer.aclose()


def parts_request(line: int) -> dict[str, Any]:
    return {"prompt": f"p{line}", "max_tokens": 8, "id": f"q{line}", "mode": "completion", "workload": "batch"}


async def test_what_was_withdrawn_or_cancelled_meanwhile_is_not_sent(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, thinned = parts.add(*singles(1, 2, 3, 4))
    ledger, record = parts.ledger, parts.ledger.record

    async def withdrawn_meanwhile(rows: Any) -> None:
        await record(rows)
        parts.in_flight.drop(gone)
        parts.in_flight.end("q3")

    monkeypatch.setattr(ledger, "record", withdrawn_meanwhile)
    await parts.enqueuer.enqueue([gone, thinned])
    assert await ledger.outstanding() == {thinned.id: {"q4": packed("q4", 4).manifest}}
    [message] = await parts.messages()
    assert [request["id"] for request in message["args"][2]] == ["q4"]


async def test_all_is_sent_by_one_thread(parts: Parts) -> None:
    before = set(threading.enumerate())
    first, second = parts.add(*singles(1, 2, 3))
    await asyncio.gather(parts.enqueuer.enqueue([first]), parts.enqueuer.enqueue([second]))
    new = [thread for thread in threading.enumerate() if thread not in before and "brimful-publish" in thread.name]
    assert len(new) == 1
    assert len(await parts.messages()) == 2


async def test_nothing_is_sent_once_it_is_closed(parts: Parts) -> None:
    shards = parts.add(*singles(1))
    parts.enqueuer.close()
    await parts.enqueuer.enqueue(shards)
    assert await parts.messages() == []


async def test_a_user_that_may_not_send_ends_it(parts: Parts, server: Valkey) -> None:
    await parts.client.execute_command("ACL", "SETUSER", "reader", "on", ">pass", "~*", "&*", "+@all", "-lpush")
    url = urlsplit(server.url)
    address = FleetAddress(f"redis://reader:pass@127.0.0.1:{url.port}/0")
    enqueuer = Enqueuer(address, "r", parts.ledger, parts.in_flight)
    try:
        with pytest.raises(RedisUnreachable, match=r"Redis refuses this user: .*lpush"):
            await asyncio.wait_for(enqueuer.enqueue(parts.add(*singles(1))), 60)
    finally:
        await enqueuer.aclose()
        await parts.client.execute_command("ACL", "DELUSER", "reader")


# -- acknowledging ------------------------------------------------------------------------------------------------


async def test_what_is_written_is_trimmed(parts: Parts) -> None:
    for each in singles(1, 2):
        await parts.end(each)
    first, _ = await parts.ledger.results("0", 9, None)
    acknowledger = Acknowledger(parts.ledger, parts.deliveries, None)
    await acknowledger.now()
    await acknowledger.trim()
    assert len(await parts.ledger.results("0", 9, None)) == 2, "nothing is written yet"
    await acknowledger.written(first.entry)
    assert parts.deliveries.written == first.entry
    [left] = await parts.ledger.results("0", 9, None)
    assert left.id == "q2"


async def test_what_is_not_durable_is_not_trimmed(parts: Parts) -> None:
    answers: list[bool | None] = [False, None, True]
    asked = 0

    async def sync() -> bool | None:
        nonlocal asked
        asked += 1
        return answers.pop(0)

    async def left() -> int:
        return len(await parts.ledger.results("0", 9, None))

    for each in singles(1, 2):
        await parts.end(each)
    first, second = await parts.ledger.results("0", 9, None)
    acknowledger = Acknowledger(parts.ledger, parts.deliveries, sync)
    await acknowledger.written(first.entry)
    assert (asked, await left()) == (0, 2), "its task does it"
    await acknowledger.now()
    assert (asked, await left()) == (1, 2)
    await acknowledger.now()
    assert (asked, await left()) == (2, 1)
    await acknowledger.now()
    assert asked == 2, "nothing more was written"
    await acknowledger.written(second.entry)
    async with parts.running(acknowledger):
        await wait_until_async(lambda: asked == 3, "its task to sync", 60)
        await wait_until_async(lambda: _is(left(), 0), "and to trim", 60)


async def test_what_is_written_meanwhile_is_synced_an_interval_later(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brimful.dispatch.acknowledge.SYNC_EVERY_S", 3600.0)
    synced: list[str] = []
    trimmed = asyncio.Event()

    async def sync() -> None:
        synced.append(parts.deliveries.written)

    async def forget(entry: str) -> None:
        trimmed.set()

    monkeypatch.setattr(parts.ledger, "forget", forget)
    acknowledger = Acknowledger(parts.ledger, parts.deliveries, sync)
    async with parts.running(acknowledger):
        await acknowledger.written("1-0")
        await asyncio.wait_for(trimmed.wait(), 60)
        await acknowledger.written("2-0")
        await steps()
        assert synced == ["1-0"]
        await acknowledger.now()
        assert synced == ["1-0", "2-0"]


async def _is(value: Any, wanted: Any) -> bool:
    return bool(await value == wanted)


# -- reading results ----------------------------------------------------------------------------------------------


async def test_outcomes_are_delivered_once_with_their_entry(parts: Parts) -> None:
    one, two = singles(1, 2)
    await parts.enqueued(one, two)
    await parts.end(one)
    await parts.end(one)  # its shard was delivered twice
    await parts.end(packed("unknown", 9))
    async with parts.running(parts.results):
        batch = await asyncio.wait_for(parts.deliveries.next(), 60)
        assert batch is not None
        assert [record.line for record in batch.records] == [1]
        entries = [result.entry for result in await parts.ledger.results("0", 9, None)]
        assert batch.entry == entries[-1]
        await parts.end(two, failure=REFUSED)
        [failed] = await parts.batch()
        assert isinstance(failed, Failed)
        assert (failed.line, failed.request) == (2, two.slices[0].unit.request)
    assert len(parts.in_flight) == 0


async def test_requests_of_an_earlier_submitter_have_no_request_of_their_own(parts: Parts) -> None:
    [mine] = singles(1)
    parts.in_flight.adopt("old", {"q1": mine})
    await parts.end(mine, failure=REFUSED)
    async with parts.running(parts.results):
        [failed] = await parts.batch()
    assert isinstance(failed, Failed)
    assert failed.request is None


@pytest.mark.parametrize(
    ("cause", "stopping"), [(Cause.KEY_REFUSED, "key_refused"), (Cause.BUDGET, "budget"), (Cause.TIMEOUT, None)]
)
async def test_a_failure_that_no_further_request_escapes_stops_the_run(
    parts: Parts, cause: Cause, stopping: str | None
) -> None:
    await parts.enqueued(*(requests := singles(1, 2)))
    await parts.end(requests[0], failure=Failure(cause, "no"))
    async with parts.running(parts.results):
        assert len(await parts.batch()) == 1
    assert parts.status.stopping == stopping


async def test_the_same_refusal_of_every_request_stops_the_run(parts: Parts) -> None:
    requests = singles(*range(22))
    await parts.enqueued(*requests)
    for each in requests[:20]:
        await parts.end(each, failure=REFUSED)
    async with parts.running(parts.results):
        await wait_until_async(lambda: parts.status.stopping, "the stop", 60)
    assert parts.status.stopping == "refused"


async def test_outcomes_behind_the_last_one_are_found_again(parts: Parts) -> None:
    requests = singles(*range(70))
    parts.add(*requests)
    for each in requests:
        await parts.end(each)
    parts.deliveries.begin_after("99999999999999-0")
    parts.batcher.add(unit(99))
    await parts.results.read_again()
    assert len(await parts.batch()) == 70
    [next_one] = parts.in_flight.requests
    assert [entry.line for entry in next_one.manifest] == [99], "there is room for it"


async def test_no_outcomes_are_read_before_the_consumer_has_taken_enough(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = count_reads(parts, monkeypatch)
    [one] = singles(1)
    await parts.enqueued(one)
    await parts.end(one)
    for entry in ("0-1", "0-2"):
        parts.deliveries.put([], entry)
    async with parts.running(parts.results):
        await steps()
        assert reads == []
        assert await parts.batch() == []
        assert [record.line for record in await parts.batch()] == [1]


def count_reads(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int | None]]:
    """How many outcomes each read asks for, and for how long it waits."""
    reads: list[tuple[int, int | None]] = []
    read = parts.ledger.results

    async def counted(after: str, count: int, block_ms: int | None) -> Any:
        reads.append((count, block_ms))
        return await read(after, count, block_ms)

    monkeypatch.setattr(parts.ledger, "results", counted)
    return reads


@pytest.mark.parametrize(("pack", "most"), [(1, 256), (32, 128), (1000, 8)])
async def test_a_read_takes_some_4000_rollouts(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, pack: int, most: int
) -> None:
    reads = count_reads(parts, monkeypatch)
    parts.batcher.pack = pack
    async with parts.running(parts.results):
        await steps()
    assert reads[0][0] == most


async def test_a_stalled_input_is_noticed_while_no_outcome_comes(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading waits shortly while there is room that only further input can fill."""
    reads = count_reads(parts, monkeypatch)
    async with parts.running(parts.results):
        parts.batcher.add(unit(1))
        await wait_until_async(lambda: len(parts.in_flight) == 1, "its request to be planned", 60)
    assert {block_ms for _, block_ms in reads} == {100}
    await parts.intake.feed(iter([]), 0)
    [request] = parts.in_flight.requests
    parts.in_flight.end(request.id)
    async with parts.running(parts.results):
        assert await asyncio.wait_for(parts.deliveries.next(), 60) is None, "nothing is left"
        await wait_until_async(lambda: 4000 < reads[-1][1] <= 5005, "a read that waits for an outcome", 60)


async def test_a_run_ends_with_its_last_revoked_shard_or_goes_on(parts: Parts) -> None:
    [shard] = await parts.enqueued(*singles(1))
    parts.batcher.add(unit(2))
    parts.results.end_revoked([shard])
    [failed] = await parts.batch()
    assert isinstance(failed, Failed)
    assert (failed.line, failed.request) == (1, packed("q1", 1).slices[0].unit.request)
    [next_one] = parts.in_flight.requests
    assert [entry.line for entry in next_one.manifest] == [2], "there is room for it"
    await parts.intake.feed(iter([]), 0)
    parts.results.end_revoked(list(parts.in_flight.shards.values()))
    assert [record.line for record in await parts.batch()] == [2]
    assert await asyncio.wait_for(parts.deliveries.next(), 60) is None


# -- taking over --------------------------------------------------------------------------------------------------


async def test_what_an_earlier_submitter_left(parts: Parts) -> None:
    one, two, lost = singles(1, 2, 3)
    pack, chat = packed("pack", 7, 8, n=2), packed("chat", 9, mode="chat")
    [alive] = await parts.enqueued(one, two)
    [forgotten] = await parts.enqueued(lost)
    await parts.client.delete("batch")  # with all messages so far
    [packs] = await parts.enqueued(pack, chat)
    await parts.enqueuer.enqueue([alive])
    await parts.end(one, completion=completion(one.request), unmetered_tokens=5)
    await parts.end(one, completion=completion(one.request), unmetered_tokens=5)
    await parts.end(packed("old", 4), failure=REFUSED, unmetered_tokens=7)
    await parts.end(packed("odd", 5), completion={"choices": []})
    await parts.ledger.drain(True)
    left = await collect(parts.ledger, ACS)
    assert [item.line for item in left.recovered.delivered] == [1]
    assert left.recovered.unmetered_tokens == 12
    assert left.last == (await parts.ledger.results("0", 9, None))[-1].entry
    assert {shard: sorted(requests) for shard, requests in left.shards.items()} == {
        alive.id: ["q2"],
        packs.id: ["chat", "pack"],
    }
    assert left.recovered.outstanding == {(2, 0, 0), (9, 0, 0), *((line, 0, c) for line in (7, 8) for c in (0, 1))}
    again = left.shards[packs.id]["pack"]
    assert (again.manifest, again.request.fields) == (pack.manifest, pack.request.fields)
    assert again.pack_key.key == pack.pack_key.key
    assert [item.unit.request.prompts for item in again.slices] == [["p7"], ["p8"]]
    chat_again = left.shards[packs.id]["chat"]
    assert chat_again.request.prompts == chat.request.prompts
    assert chat_again.slices[0].unit.request.fields == chat.request.fields
    assert forgotten.id not in await parts.ledger.outstanding()
    assert await parts.client.exists(parts.ledger.keys.drain) == 0


async def test_a_shard_whose_message_does_not_fit_is_withdrawn(parts: Parts) -> None:
    [shard] = await parts.enqueued(*singles(1))
    await parts.ledger.record({shard.id: {"q1": packed("q1", 1, 2).manifest}})
    assert (await collect(parts.ledger, ACS)).shards == {}
    [shard] = await parts.enqueued(*singles(3))
    await parts.ledger.record({shard.id: {"q3": packed("q3", 3, n=2).manifest}})
    left = await collect(parts.ledger, ACS)
    assert (left.shards, left.recovered.outstanding, left.last) == ({}, frozenset(), "0")
    assert await parts.ledger.outstanding() == {}


async def test_a_shard_whose_message_holds_no_fields_is_withdrawn(parts: Parts) -> None:
    [shard] = await parts.enqueued(*singles(1))
    message = json.loads(str(await parts.client.lindex("batch", 0)))
    args, *rest = json.loads(b64decode(message["body"]))
    args[2][0]["request"] = "p1"
    message["body"] = b64encode(json.dumps([args, *rest]).encode()).decode()
    await parts.client.lset("batch", 0, json.dumps(message))
    assert (await collect(parts.ledger, ACS)).shards == {}
    assert shard.id not in await parts.ledger.outstanding()
