"""What was learnt of the limits after Redis has lost its memory: the processes bring it back."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from brimful.state.status import read_status
from brimful_worker.admission import Limits, Refused
from brimful_worker.local.server.valkey import Valkey
from support.admission_peers import timed_call
from support.admissions import KEYS, TAG, Holding, admissions, hold, marked_clean
from support.waiting import wait_until_async

NOW_MS = 1_800_000_000_000
BEFORE_MS = NOW_MS - 100
LEARNT_8 = {"slots": {"level": 8, "changed_at": 500, "lowered_at": 500, "hold_ms": 20000, "most_accepted": 8}}
LEARNT_4 = {"slots": {"level": 4, "changed_at": 0, "lowered_at": 0, "hold_ms": 10000, "most_accepted": 4}}


@pytest.fixture
def client(valkey: Valkey) -> redis.Redis:
    client = redis.Redis.from_url(valkey.url, decode_responses=True)
    client.flushall()
    return client


def join(
    client: redis.Redis, process: str, learners: list[Any] | None, server: str = "s", **limits: Any
) -> dict[str, Any]:
    """A process joins that knew the members 1a and 1b; returns the reply. ``learners``: what it brings."""
    brought: dict[str, Any] = {"defaults": Limits(**{"slots": 16, "starts": None, **limits}).fields()}
    brought |= {"alive": 2, "used": 0, "used_age_ms": 0, "members": ["1a", "1b"]}
    brought |= {} if learners is None else {"learners": learners}
    message = {"process": process, "schema": 1, "command": 1, "epoch": "", "server": server, "new_epoch": server}
    message |= {"clock": "", "lease_ms": 8000, "seen": 0, "rev": "", "members": 0, "join": brought}
    return timed_call(client, TAG, message, NOW_MS)


@pytest.mark.parametrize(
    ("one", "other", "slots"),
    [
        ([BEFORE_MS, 100, LEARNT_8], [BEFORE_MS - 9, 100, LEARNT_4], 8),
        ([BEFORE_MS, 3000, LEARNT_8], [BEFORE_MS - 9, 5, LEARNT_4], 8),
        ([BEFORE_MS, 100, {}], [BEFORE_MS - 9, 109, LEARNT_4], None),
        ([BEFORE_MS - 9, 109, {}], [BEFORE_MS, 100, LEARNT_4], 4),
        (None, [BEFORE_MS, 100, LEARNT_8], 8),
        (None, None, None),
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_the_newest_knowledge_counts_whoever_joins_first(
    client: redis.Redis, one: list[Any] | None, other: list[Any] | None, slots: int | None, first: int
) -> None:
    joining = [("1a", one), ("1b", other)]
    join(client, *joining[first])
    reply = join(client, *joining[1 - first])
    assert reply.get("learnt", {}).get("slots") == slots
    assert not client.hexists(KEYS["state"], "learners_at"), "the epoch is open"
    if slots == 8:
        ago_ms = max(brought[1] for _, brought in joining if brought and brought[2] == LEARNT_8)
        restored = reply["learners"]["slots"]
        assert (restored["hold_ms"], restored["changed_at"]) == (20000, ago_ms + 500)


def test_it_is_never_above_the_number_that_is_set(client: redis.Redis) -> None:
    join(client, "1a", [BEFORE_MS, 100, LEARNT_8], slots=6)
    reply = join(client, "1b", [BEFORE_MS, 100, LEARNT_8], slots=6)
    assert "learnt" not in reply
    assert reply["limits"]["slots"] == 6


def test_it_holds_where_no_number_is_set(client: redis.Redis) -> None:
    for process in ("1a", "1b"):
        reply = join(client, process, [BEFORE_MS, 100, LEARNT_8], slots_auto=True)
    assert reply["learnt"] == {"slots": 8}


def test_what_the_server_remembers_counts_more_than_older_knowledge(client: redis.Redis) -> None:
    join(client, "1a", [BEFORE_MS, 100, LEARNT_8])
    join(client, "1b", [BEFORE_MS, 100, LEARNT_8])
    for process in ("1a", "1b"):  # the server was started again, and has lost nothing
        reply = join(client, process, [BEFORE_MS, 100, LEARNT_4], "another run")
    assert reply["learnt"] == {"slots": 8}


def test_one_that_joins_later_changes_nothing(client: redis.Redis) -> None:
    join(client, "1a", [BEFORE_MS, 100, LEARNT_8])
    join(client, "1b", [BEFORE_MS, 100, LEARNT_8])
    assert join(client, "1c", [NOW_MS, 0, LEARNT_4])["learnt"] == {"slots": 8}


async def test_processes_bring_back_what_they_have_learnt(valkey: Valkey) -> None:
    client = marked_clean(valkey)
    async with admissions(valkey.url, 2, slots=16, starts=None, window_s=10, slow_start_s=0) as (busy, _idle):
        held = [await hold(busy) for _ in range(4)]
        refused = Holding(busy)
        await refused.granted.wait()
        await refused.end(ok=None, refused=Refused.SLOTS)
        await held.pop().end(stated_starts=120)
        await wait_until_async(lambda: len(read_status(client, TAG).learnt) == 2, "both limits are learnt")
        before = read_status(client, TAG).learnt
        assert (before["slots"].limit, before["starts"].limit) == (4, 20)
        for _ in range(2):  # the second time nobody has refused anything in that epoch
            epoch = client.hget(KEYS["state"], "epoch")
            client.flushall()
            await wait_until_async(
                lambda known=epoch: (
                    client.hget(KEYS["state"], "epoch") not in (None, known)  # type: ignore[misc]
                    and not client.hexists(KEYS["state"], "opens_at")
                ),
                "the processes have joined again",
                60,
            )
            learnt = read_status(client, TAG).learnt
            assert (learnt["slots"].limit, learnt["starts"].limit) == (4, 20)
            assert learnt["slots"].age_s >= before["slots"].age_s
        for holding in held:
            await holding.end()
