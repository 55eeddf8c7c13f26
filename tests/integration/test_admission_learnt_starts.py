"""Limits on starts that are learnt: from refusals, or from what the provider states."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis

from brimful.limits import Learnt
from brimful.state.status import read_status, set_limits
from brimful_worker.admission import Admission, Refused
from brimful_worker.gateway.limits import Window
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.local.server.valkey import Valkey
from support.admissions import TAG, admissions, hold, marked_clean
from support.chaos import long_only
from support.waiting import wait_until_async

WINDOW_S = 2.0


class Key:
    """A key with so many starts in a window, as the requests of this process see it."""

    def __init__(self, starts: int, *, states: bool = False) -> None:
        self.starts, self.states = starts, states
        self.window = Window(WINDOW_S)
        self.answered = 0
        self.refused: list[float] = []

    async def keep_asking(self, admission: Admission) -> None:
        while True:
            async with admission.slot() as lease:
                lease.sent()
                if self.starts == 0 or self.window.admit(boot_time(), self.starts) is not None:
                    self.refused.append(boot_time())
                    lease.report(ok=None, refused=Refused.STARTS)
                else:
                    await asyncio.sleep(0.02)
                    self.answered += 1
                    lease.report(ok=True, stated_starts=round(self.starts * 60 / WINDOW_S) if self.states else 0)

    @asynccontextmanager
    async def asked(self, *fleet: Admission) -> AsyncIterator[None]:
        asking = [asyncio.create_task(self.keep_asking(one)) for one in fleet for _ in range(6)]
        try:
            yield
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


@pytest.fixture
def client(valkey: Valkey) -> redis.Redis:
    return marked_clean(valkey)


def learnt_starts(client: redis.Redis) -> int:
    """0 = none."""
    learnt = read_status(client, TAG).learnt.get("starts")
    return learnt.limit if learnt else 0


@pytest.mark.parametrize("told", [None, 60])
async def test_a_limit_on_starts_that_nobody_states_is_learnt(
    valkey: Valkey, client: redis.Redis, told: int | None
) -> None:
    key = Key(40)
    async with admissions(valkey.url, 2, slots=8, starts=told, window_s=WINDOW_S) as both, key.asked(*both):
        await wait_until_async(lambda: key.answered >= 150, "150 are answered")
        await wait_until_async(lambda: 34 <= read_status(client, TAG).learnt["starts"].limit <= 42, "what is learnt")
        late = [at for at in key.refused if at > key.refused[0] + 2 * WINDOW_S]
        assert len(late) <= 3 + (boot_time() - key.refused[0]) / 10, "one is tried now and then"


@pytest.mark.parametrize("told", [None, 60])
async def test_a_limit_on_starts_that_is_stated_is_kept(valkey: Valkey, client: redis.Redis, told: int | None) -> None:
    key = Key(40, states=True)
    async with admissions(valkey.url, 2, slots=8, starts=told, window_s=WINDOW_S) as both, key.asked(*both):
        await wait_until_async(lambda: key.answered >= 150, "150 are answered")
        assert key.refused == []
        learnt = read_status(client, TAG).learnt["starts"]
        assert isinstance(learnt, Learnt)
        assert learnt.limit == 40


async def test_a_stated_limit_above_the_one_that_is_set_changes_nothing(valkey: Valkey, client: redis.Redis) -> None:
    key = Key(40, states=True)
    async with admissions(valkey.url, 1, slots=8, starts=20, window_s=WINDOW_S) as (one,), key.asked(one):
        await wait_until_async(lambda: key.answered >= 30, "30 are answered")
        assert read_status(client, TAG).learnt == {}
        assert key.window.peak <= 20


async def test_a_stated_limit_is_of_a_minute_whatever_the_window(valkey: Valkey, client: redis.Redis) -> None:
    async with admissions(valkey.url, 1, slots=2, starts=1000, window_s=10) as (one,):
        await (await hold(one)).end(stated_starts=90)
        await wait_until_async(lambda: learnt_starts(client) == 15, "a sixth of it counts in ten seconds")
        set_limits(client, TAG, window_s=120)
        await wait_until_async(lambda: learnt_starts(client) == 180, "twice as much counts in two minutes")


async def test_however_much_is_refused_one_start_is_left_and_no_more_than_are_set(
    valkey: Valkey, client: redis.Redis
) -> None:
    """A learnt limit of 0 would be none."""
    key, window_s = Key(0), 0.5
    async with admissions(valkey.url, 2, slots=8, starts=4, window_s=window_s) as both, key.asked(*both):
        await wait_until_async(lambda: len(key.refused) >= 14, "14 are refused")
        assert read_status(client, TAG).learnt["starts"].limit == 1
    assert max(sum(at - window_s < other <= at for other in key.refused) for at in key.refused) <= 4


@long_only
async def test_what_is_learnt_is_tried_once_a_minute(valkey: Valkey, client: redis.Redis) -> None:
    key = Key(20)
    async with admissions(valkey.url, 2, slots=8, starts=None, window_s=WINDOW_S) as both, key.asked(*both):
        began = boot_time()
        await wait_until_async(lambda: boot_time() > began + 30, "30 s have passed", 40)
        answered = key.answered
        await wait_until_async(lambda: boot_time() > began + 90, "a minute more has passed", 80)
        assert sum(at > began + 30 for at in key.refused) <= 2
        assert key.answered - answered >= 0.9 * 20 * 60 / (WINDOW_S + 0.22)
