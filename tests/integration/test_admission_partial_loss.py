"""Single keys of the admission deleted or truncated while real processes hold slots, as an evicting server would."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from brimful.state.keys import ADMISSION
from brimful.state.status import set_limits
from brimful_worker.local.server.valkey import Valkey
from support.admissions import KEYS, TAG, marked_clean
from support.chaos import LONG
from support.holder import Holder
from support.ledger import Ledger
from support.waiting import wait_until_async

pytestmark = pytest.mark.chaos

SLOTS, STARTS, WINDOW_S = 16, 60, 6.0
LIMITS: dict[str, Any] = {
    "slots": 40,  # the operator sets 16: those limits must survive too
    "starts": STARTS,
    "window_s": WINDOW_S,
    "guard_s": 0.5,
    "lease_s": 2,
    "cooldown_s": 0.2,
    "circuit_breaker": 0,
    "slow_start_s": 0,
}
PAIRS = list(itertools.combinations(ADMISSION, 2))
SOME_PAIRS = {"slots": random.Random(12).sample(PAIRS, 6), "starts": [("state", "starts"), ("starts", "heard")]}


def losses(binds: str) -> list[tuple[str, ...]]:
    return [(name,) for name in ADMISSION] + (PAIRS if LONG else SOME_PAIRS[binds])


def all_spoke(client: redis.Redis, since: int) -> bool:
    """Whether both processes have had a turn, and the epoch is open."""
    heard: Any = client.zrange(KEYS["heard"], 0, -1, withscores=True)
    return len(heard) == 2 and all(at > since for _, at in heard) and not client.hexists(KEYS["state"], "opens_at")


@contextlib.contextmanager
def fleet(valkey: Valkey, ledger: Ledger, count: int, **options: Any) -> Iterator[list[Holder]]:
    with contextlib.ExitStack() as stack:
        holders = []
        for number in range(count):
            holder = Holder(valkey.url, ledger.port, name=f"h{number}", coroutines=16, spread=0.4, **options)
            stack.callback(holder.close)
            holders.append(holder)
        yield holders


@pytest.fixture
async def ledger() -> AsyncIterator[Ledger]:
    async with Ledger() as ledger:
        yield ledger


async def more(ledger: Ledger, visits: int, what: str) -> None:
    known = len(ledger.visits)
    await wait_until_async(lambda: len(ledger.visits) >= known + visits, what, 60)


def lose(client: redis.Redis, names: tuple[str, ...], how: str) -> bool:
    """Delete the keys, or half of what is in each. False if there was nothing in any of them."""
    lost = False
    for name in names:
        key = KEYS[name]
        kind = client.type(key)
        if how == "deleted" or kind == "none":
            lost |= bool(client.delete(key))
        elif kind == "zset":
            lost |= bool(client.zremrangebyrank(key, 0, (client.zcard(key) - 1) // 2))
        else:
            fields = sorted(client.hkeys(key))
            lost |= bool(client.hdel(key, *fields[::2]))
    return lost


@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["deleted", "truncated"])
@pytest.mark.parametrize("binds", ["slots", "starts"])
async def test_any_key_is_lost(valkey: Valkey, ledger: Ledger, how: str, binds: str) -> None:
    client = marked_clean(valkey)
    limits = LIMITS | ({"starts": None} if binds == "slots" else {})
    with fleet(valkey, ledger, 2, limits=limits, hold_s=0.3 if binds == "slots" else 0.03) as holders:
        await asyncio.gather(*[asyncio.to_thread(holder.ready) for holder in holders])
        set_limits(client, TAG, slots=SLOTS)
        await more(ledger, STARTS, "the operator's limit is in force")
        await wait_until_async(lambda: ledger.active <= SLOTS, "what exceeded it has ended")
        ledger.most_active = 0
        for names in losses(binds):
            if binds == "slots":
                await wait_until_async(lambda: ledger.active == SLOTS, "all slots are in use")
            last = int(client.hget(KEYS["state"], "last") or 0)
            if not lose(client, names, how):
                continue
            if binds == "slots":
                await more(ledger, SLOTS, f"grants resume after {names}")
            else:
                await wait_until_async(functools.partial(all_spoke, client, last), f"all have spoken after {names}")
            assert ledger.most_active <= SLOTS, names
            assert ledger.most_in_window(WINDOW_S) <= STARTS or binds == "slots", names
        await more(ledger, STARTS, "grants resume")
    assert ledger.most_active <= SLOTS
    if binds == "starts":
        assert ledger.most_in_window(WINDOW_S) <= STARTS
