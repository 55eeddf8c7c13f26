"""Requests without an outcome, and the shards that carry them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brimful.dispatch.inflight import InFlight, Shard
from brimful.names import Workload
from brimful.packing.pack_size import PackSizer
from brimful.packing.packing import PackedRequest
from brimful.packing.slot_model import Limits, SlotModel
from support.packed import packed

MOST_BYTES = 768 * 1024
"""Of a shard's prompts."""


def in_flight(slots: int = 16, starts: int | None = None, workload: Workload | None = None) -> InFlight:
    limits = Limits(slots, starts, 60.0)
    return InFlight(PackSizer(limits, 120.0), SlotModel(limits), workload)


def singles(count: int, **fields: Any) -> list[PackedRequest]:
    return [packed(f"r{line}", line, **fields) for line in range(1, count + 1)]


def add(there: InFlight, made: list[PackedRequest]) -> None:
    for each in made:
        there.reserve(each)
    there.add(made)


def sizes(there: InFlight) -> list[int]:
    return [len(shard.requests) for shard in there.shards.values()]


def unsent(there: InFlight) -> list[Shard]:
    return [there.unsent.get_nowait() for _ in range(there.unsent.qsize())]


@pytest.mark.parametrize(
    ("slots", "places", "count", "each"),
    [
        (16, None, 5, [1] * 5),
        (47, None, 3, [1] * 3),
        (48, None, 5, [2, 2, 1]),
        (64, 8, 30, [12, 12, 6]),
        (240, None, 25, [10, 10, 5]),
        (20_000, None, 300, [256, 44]),
    ],
)
async def test_the_slots_are_shared_among_two_dozen_shards(
    slots: int, places: int | None, count: int, each: list[int]
) -> None:
    there = in_flight(slots)
    there.slot_model.places = places
    add(there, singles(count))
    assert sizes(there) == each
    assert [len(shard.requests) for shard in unsent(there)] == each
    assert len(there) == count


async def test_quick_requests_share_a_shard_so_that_forty_a_second_are_enough() -> None:
    limits = Limits(16, None, 60.0)
    there = InFlight(sizer := PackSizer(limits, 120.0), SlotModel(limits), None)
    for size in (1, 2, 4):
        for _ in range(8):
            sizer.learn(packed("x", 1).pack_key, size, 0.0, 0.1)
    add(there, singles(9))
    assert sizes(there) == [4, 4, 1], "16 slots, each for 0.1 s: 160 a second"


async def test_a_shard_has_one_queue_and_is_not_too_large() -> None:
    there = in_flight(4800)
    mixed = [packed(f"i{line}", line, workload="interactive") for line in range(3)]
    large = [packed(f"l{line}", line, prompt="x" * (MOST_BYTES // 2 - 100)) for line in range(3)]
    add(there, [*mixed, *large])
    assert [(shard.queue, len(shard.requests)) for shard in there.shards.values()] == [
        ("interactive", 3),
        ("batch", 2),
        ("batch", 1),
    ]
    assert all(shard.size <= MOST_BYTES for shard in there.shards.values())


async def test_a_run_s_workload_is_all_its_requests() -> None:
    there = in_flight(4800, workload=Workload.INTERACTIVE)
    add(there, singles(3))
    there.adopt("old", {"q": packed("q", 9)})
    assert [shard.queue for shard in there.shards.values()] == ["interactive"] * 2


async def test_a_request_ends_once_and_its_shard_with_the_last() -> None:
    there = in_flight(48)
    first, second = made = singles(2)
    add(there, made)
    assert there.bytes == first.held_bytes + second.held_bytes
    assert len(there.slot_model) == 2
    assert there.end("r1") is first
    assert there.end("r1") is None
    assert (len(there), sizes(there), there.bytes) == (1, [1], second.held_bytes)
    assert len(there.slot_model) == 1
    assert max(there.slot_model.free(0.0)) > 0, "its time is predicted"
    assert there.end("r2") is second
    assert (len(there), there.shards, there.bytes) == (0, {}, 0)
    assert there.end("unknown") is None


async def test_the_newest_request_is_of_the_shard_that_was_filled_last() -> None:
    there = in_flight(48)
    assert there.newest is None
    made = singles(3)
    add(there, made)
    assert there.newest is made[2]
    there.end("r3")
    assert there.newest is made[0]
    assert list(there.requests) == made[:2]


async def test_outcomes_of_a_dropped_shard_are_still_accepted() -> None:
    there = in_flight(48)
    made = singles(2)
    add(there, made)
    [shard] = there.shards.values()
    there.drop(shard)
    assert (len(there), there.shards, there.bytes) == (0, {}, 0)
    assert there.end("r1") is made[0]
    assert there.end("r1") is None


async def test_what_is_cancelled_carried_no_other_lines() -> None:
    there = in_flight(48)
    alone, shared, other = packed("a", 1), packed("s", 1, 2), packed("o", 3)
    add(there, [alone, shared, other])
    first, second = there.shards
    assert there.cancel({1}) == {first: ["a"]}
    assert list(there.requests) == [shared, other]
    assert there.end("a") is None, "its outcome is ignored"
    assert there.cancel({1, 2, 3}) == {first: ["s"], second: ["o"]}
    assert there.shards == {}


async def test_what_an_earlier_submitter_enqueued_is_awaited() -> None:
    there = in_flight()
    mine = packed("q", 1, workload="interactive")
    there.adopt("old", {"q": mine})
    [shard] = there.shards.values()
    assert (shard.id, shard.queue, shard.requests) == ("old", "interactive", {"q": mine})
    assert shard.enqueued_at > 0
    assert there.adopted == {"q"}
    assert there.unsent.empty()
    assert len(there.slot_model) == 1
    assert there.end("q") is mine


async def test_what_is_not_sent_yet_is_dropped() -> None:
    there = in_flight()
    add(there, singles(3))
    sent = there.unsent.get_nowait()
    there.drop_unsent()
    assert list(there.shards.values()) == [sent]
    assert there.unsent.empty()


async def test_a_new_shard_counts_as_not_enqueued_and_not_missing() -> None:
    shard = Shard("s", "batch")
    assert (shard.enqueued_at, shard.times_missing, shard.size) == (0, 0, 0)
    add(there := in_flight(), [replace(packed("r", 1), id="r")])
    [shard] = unsent(there)
    assert shard.size == packed("r", 1).size
