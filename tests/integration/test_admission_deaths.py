"""The death of a process counts against the requests that it had on the wire, by their names, and against no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from brimful_worker.admission import Admission, Flow, LeaseLost
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.local.server.valkey import Valkey
from support.admissions import KEYS, Holding, admissions, hold, marked_clean
from support.holder import Holder
from support.ledger import Ledger
from support.proxy import Proxy
from support.waiting import wait_until_async

LIMITS = {"slots": 2, "starts": None, "lease_s": 1.0, "cooldown_s": 0.05}


@contextmanager
def holder(valkey: Valkey, ledger: Ledger, names: list[str], **options: Any) -> Iterator[Holder]:
    it = Holder(valkey.url, ledger.port, limits=LIMITS, names=names, requests=1, **options)
    try:
        yield it
    finally:
        it.close()


@asynccontextmanager
async def doomed(
    valkey: Valkey, **limits: Any
) -> AsyncIterator[tuple[Admission, Callable[[Holding], Awaitable[None]]]]:
    """An admission, and what makes it as one whose process was killed: Redis hears nothing more of it."""
    async with Proxy(valkey.port) as proxy, admissions(proxy.url, 1, **limits) as (dead,):

        async def kill(held: Holding) -> None:
            proxy.refuse = True
            proxy.cut()
            await asyncio.wait({held.task})
            assert isinstance(held.task.exception(), LeaseLost)

        yield dead, kill
        proxy.refuse = False  # else it would wait for Redis to leave


async def deaths(it: Holder, count: int) -> dict[str, int]:
    """Of the requests, once so many are done."""
    await asyncio.to_thread(it.ready)

    async def stats() -> dict[str, Any] | None:
        found = await asyncio.to_thread(it.stats)
        return found if found["done"] == count else None

    found: dict[str, int] = (await wait_until_async(stats, "all to be done", 60))["deaths"]
    return found


async def test_what_was_on_the_wire_is_charged_and_what_waited_is_not(valkey: Valkey) -> None:
    client = marked_clean(valkey)
    names = ["a", "b", "waits"]
    async with Ledger() as ledger:
        for _ in range(2):
            with holder(valkey, ledger, names, hold_s=600) as doomed:
                await asyncio.to_thread(doomed.ready)
                await wait_until_async(lambda: ledger.active == 2, "two on the wire", 60)
                doomed.process.kill()
                await wait_until_async(lambda: ledger.active == 0, "none", 60)
        with holder(valkey, ledger, names, hold_s=0.05) as last:
            assert await deaths(last, 3) == {"a": 2, "b": 2, "waits": 0}
        assert client.hgetall(KEYS["on_wire"]) == {}, "they succeeded: nothing is remembered"
        with holder(valkey, ledger, names, hold_s=0.05) as another:
            assert await deaths(another, 3) == {"a": 0, "b": 0, "waits": 0}


async def test_a_process_that_ends_or_gives_back_has_not_died(valkey: Valkey) -> None:
    marked_clean(valkey)
    async with admissions(valkey.url, 1, **LIMITS) as (last,):
        async with admissions(valkey.url, 1, **LIMITS) as (leaver,):
            held = await hold(leaver, name="a")
        await asyncio.wait({held.task})
        assert isinstance(held.task.exception(), LeaseLost)
        async with last.slot(name="a") as lease:
            assert lease.deaths == 0
            lease.give_back()
        async with last.slot(name="a") as lease:
            assert lease.deaths == 0
            lease.report(ok=False)
        async with last.slot(name="a") as lease:
            assert lease.deaths == 0


async def test_deaths_are_remembered_until_the_request_succeeds(valkey: Valkey) -> None:
    client = marked_clean(valkey)
    async with doomed(valkey, **LIMITS) as (dead, kill), admissions(valkey.url, 1, **LIMITS) as (alive,):
        await kill(await hold(dead, name="a"))
        for ok in (None, False, True):
            async with alive.slot(name="a") as lease:
                assert lease.deaths == 1
                lease.report(ok=ok)
        async with alive.slot(name="a") as lease:
            assert lease.deaths == 0
        await wait_until_async(lambda: not client.exists(KEYS["on_wire"]), "no note is left")


async def test_the_deaths_of_a_request_that_is_given_up_are_forgotten(valkey: Valkey) -> None:
    client = marked_clean(valkey)
    async with doomed(valkey, **LIMITS) as (dead, kill), admissions(valkey.url, 1, **LIMITS) as (alive,):
        await kill(await hold(dead, name="a"))
        async with alive.slot(name="a") as lease:
            assert lease.deaths == 1
            lease.forget_deaths()
            lease.give_back()
        async with alive.slot(name="a") as lease:
            assert lease.deaths == 0
        await wait_until_async(lambda: not client.exists(KEYS["on_wire"]), "no note is left")


async def test_a_request_keeps_its_place_when_it_asks_again(valkey: Valkey) -> None:
    marked_clean(valkey)
    order = []
    async with admissions(valkey.url, 1, **{**LIMITS, "slots": 1}) as (one,):

        async def ask(name: str, since: float | None) -> None:
            async with one.slot(name=name, since=since) as lease:
                order.append(name)
                lease.report(ok=True, cooldown_s=0.0)

        before = boot_time()
        async with one.slot() as lease:
            asked = [asyncio.create_task(ask(str(place), None)) for place in range(3)]
            await asyncio.sleep(0)
            asked.append(asyncio.create_task(ask("again", before)))
            await wait_until_async(lambda: one.waiting == 4, "all to wait")
            lease.report(ok=True, cooldown_s=0.0)
        await asyncio.gather(*asked)
    assert order == ["again", "0", "1", "2"]


async def test_a_grant_that_goes_to_another_request_of_the_process_counts_for_that(valkey: Valkey) -> None:
    """Runs take turns within a process, so a ticket's grant may go to another request than the one that asked."""
    client = marked_clean(valkey)
    limits = {**LIMITS, "slots": 1}
    async with doomed(valkey, **limits) as (dead, kill), admissions(valkey.url, 1, **limits) as (alive,):
        first = await hold(dead)
        waiting = [Holding(dead, name=f"long {place}", flow=Flow("long")) for place in range(40)]
        await wait_until_async(lambda: client.zcard(KEYS["batch"]) > 8, "some of them to be registered")
        short = Holding(dead, name="short", flow=Flow("short"))
        waiting.append(short)
        while first is not short:
            await first.end(cooldown_s=0.0)
            await wait_until_async(lambda: any(one.granted.is_set() and not one.task.done() for one in waiting), "one")
            [first] = [one for one in waiting if one.granted.is_set() and not one.task.done()]
        assert sum(one.granted.is_set() for one in waiting) < 20, "its turn came before that of those in front of it"
        await kill(first)
        counted = {}
        for name in ("short", *[f"long {place}" for place in range(40)]):
            async with alive.slot(name=name) as lease:
                counted[name] = lease.deaths
                lease.report(ok=True, cooldown_s=0.0)
        assert counted.pop("short") == 1
        assert set(counted.values()) == {0}
        await wait_until_async(lambda: not client.exists(KEYS["on_wire"]), "no note is left")
