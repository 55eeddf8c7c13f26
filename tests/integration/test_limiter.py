"""The limiter on asyncio: slots, windows, tokens, timeouts, its end, and a client that it was lent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import pytest
import redis
from redis.asyncio import Redis

from brimful.state.keys import TAGS
from brimful_worker.admission import Admission, Lease, LeaseLost, Limits, StaleGrant, expiry, mark_clean
from brimful_worker.limiter import Limiter, LimiterClosed, SlotTimeout, Window
from brimful_worker.local.server.valkey import Valkey
from support.limiters import NAME, limiters
from support.waiting import wait_until_async


def most_in(window_s: float, times: list[float]) -> int:
    times = sorted(times)
    return max(sum(start <= later < start + window_s for later in times[place:]) for place, start in enumerate(times))


async def test_slots_are_shared(valkey: Valkey) -> None:
    async with limiters(valkey, 2, slots=3) as (one, other):
        now = most = 0

        async def work(limiter: Limiter) -> None:
            nonlocal now, most
            async with limiter as lease:
                now += 1
                most = max(most, now)
                await asyncio.sleep(0.01)
                now -= 1
                lease.report(ok=True)

        await asyncio.gather(*[work(limiter) for limiter in (one, other) for _ in range(10)])
        assert (most, one.held, other.held) == (3, 0, 0)


async def test_several_windows_at_once(valkey: Valkey) -> None:
    windows = [Window(4, 0.4), Window(10, 2.5)]
    async with limiters(valkey, 2, f"{NAME}:0.4s", slots=8, windows=windows) as both:
        times: list[float] = []

        async def work(limiter: Limiter) -> None:
            async with limiter as lease:
                lease.sent()
                times.append(time.monotonic())

        async with asyncio.timeout(60):
            await asyncio.gather(*[work(both[place % 2]) for place in range(25)])
    assert len(times) == 25
    assert most_in(0.4, times) <= 4
    assert most_in(2.5, times) <= 10


async def test_interactive_is_first_in_the_shorter_window_too(valkey: Valkey) -> None:
    tag = f"{NAME}:20s"
    queue = f"brimful:{{{tag}}}:start_only"
    async with limiters(valkey, 1, tag, windows=[Window(100, 60), Window(1, 20)]) as (limiter,):
        async with limiter:
            pass
        waiting = [asyncio.create_task(limiter.slot(workload).acquire()) for workload in ("batch", "batch")]
        with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
            await wait_until_async(lambda: client.zcard(queue) == 2, "both wait for the window")
            batch = client.zrange(queue, 0, -1)
            waiting.append(asyncio.create_task(limiter.slot("interactive").acquire()))
            await wait_until_async(lambda: client.zcard(queue) == 3, "the interactive one waits too")
            assert client.zrange(queue, 1, -1) == batch
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_nothing_is_kept_of_a_slot_that_a_window_did_not_let_through(valkey: Valkey) -> None:
    async with limiters(valkey, 1, f"{NAME}:50s", slots=1, windows=[Window(1, 50), Window(9, 60)]) as (limiter,):
        async with limiter:
            pass
        for _ in range(2):
            with pytest.raises(SlotTimeout, match="no slot of service was free within"):
                async with limiter.slot(timeout_s=0.2):
                    pytest.fail("a second start within 50 s")
        assert limiter.held == 0
        with redis.Redis.from_url(valkey.url) as client:
            await wait_until_async(lambda: client.zcard(f"brimful:{{{NAME}}}:starts") == 1, "unused starts returned")


async def test_tokens_are_weights(valkey: Valkey) -> None:
    async with limiters(valkey, 1, tokens=100, window_s=60) as (limiter,):
        async with limiter.slot(tokens=60):
            pass
        with pytest.raises(SlotTimeout):
            async with limiter.slot(tokens=60, timeout_s=0.1):
                pytest.fail("120 of 100 tokens")
        async with limiter.slot(tokens=40) as lease:
            lease.report(ok=True, tokens_used=10)
        async with limiter.slot(tokens=30, timeout_s=10):  # 60 + 10 + 30
            pass


async def test_a_timeout_takes_nothing(valkey: Valkey) -> None:
    async with limiters(valkey, 1, slots=1, timeout_s=0.05) as (limiter,):
        async with limiter.slot(timeout_s=60):
            with pytest.raises(TimeoutError) as raised:
                await limiter.__aenter__()
            assert isinstance(raised.value, SlotTimeout)
        async with limiter.slot(timeout_s=60):
            assert limiter.held == 1


async def test_try_acquire(valkey: Valkey) -> None:
    async with limiters(valkey, 1, slots=1) as (limiter,):
        async with limiter:
            assert await limiter.try_acquire() is None
        permits = []

        async def free() -> bool:
            if (permit := await limiter.try_acquire()) is not None:
                permits.append(permit)
            return bool(permits)

        async with asyncio.timeout(60):
            while not await free():
                pass
        (permit,) = permits
        assert limiter.held == 1
        await permit.release()
        await permit.release()
        assert limiter.held == 0
        permit = await limiter.slot(timeout_s=60).acquire()
        async with permit as lease:
            assert not lease.ended
        assert lease.ended


async def test_a_waiter_at_the_close_gets_our_error(valkey: Valkey) -> None:
    async with limiters(valkey, 1, slots=1) as (limiter,):
        entered = asyncio.Event()

        async def hold() -> None:
            async with limiter:
                entered.set()
                await asyncio.Event().wait()

        async def wait() -> None:
            async with limiter:
                pytest.fail("the slot is taken")

        holding = asyncio.create_task(hold())
        await entered.wait()
        waiting = [asyncio.create_task(wait()) for _ in range(3)]
        await wait_until_async(lambda: limiter.waiting == 3, "three wait")
        await limiter.aclose()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [LimiterClosed] * 3
        with pytest.raises(LeaseLost):
            await holding
        with pytest.raises(LimiterClosed, match="the limiter is closed"):
            await limiter.__aenter__()
        await limiter.aclose()


async def test_a_waiter_for_a_second_window_gets_it_too(valkey: Valkey) -> None:
    windows = [Window(1, 50), Window(9, 60)]
    async with limiters(valkey, 1, f"{NAME}:50s", windows=windows) as (limiter,):

        async def wait() -> None:
            async with limiter:
                pass

        await wait()
        waiting = [asyncio.create_task(wait()) for _ in range(20)]
        await wait_until_async(lambda: limiter.waiting == 20, "they wait")
        await limiter.aclose()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [LimiterClosed] * 20


async def test_a_decorated_function(valkey: Valkey) -> None:
    async with limiters(valkey, 1, slots=2, starts=50) as (limiter,):
        tries: list[str] = []

        @limiter.limited("interactive", timeout_s=60)
        async def ask(question: str, *, loud: bool = False) -> str:
            """Asks."""
            tries.append(question)
            assert limiter.held
            if len(tries) == 1:  # its grant came too late: nothing was sent
                lease = _current()
                lease.given_back = True
                raise StaleGrant("too late")
            return question.upper() if loud else question

        assert ask.__doc__ == "Asks."
        assert await ask("a") == "a"
        assert await ask("b", loud=True) == "B"
        assert tries == ["a", "a", "b"]
        assert limiter.held == 0


async def test_a_lent_client(valkey: Valkey) -> None:
    with redis.Redis.from_url(valkey.url) as plain:
        mark_clean(plain, NAME)
        plain.execute_command("ACL", "SETUSER", "guest", "on", ">secret", "~*", "&*", "+@all")
        where = plain.connection_pool.connection_kwargs
    host, port = where["host"], where["port"]
    with redis.Redis(host=host, port=port, db=3) as third:
        mark_clean(third, NAME)
    client = Redis(host=host, port=port, db=3, username="guest", password="secret", max_connections=1)
    async with client:
        limiter = Limiter(client, NAME, slots=1)
        async with limiter:
            assert await client.zcard(f"brimful:{{{NAME}}}:slots") == 1
        await limiter.aclose()
        assert await client.ping()  # it is still its owner's
        names = [entry["user"] for entry in await client.client_list()]
        assert names == ["guest"], "the limiter closed its own connections"


async def test_it_belongs_to_one_event_loop(valkey: Valkey) -> None:
    async with limiters(valkey, 1, slots=1) as (limiter,):
        async with limiter:
            pass

        def elsewhere() -> None:
            asyncio.run(limiter.start())

        with pytest.raises(RuntimeError, match="one for each loop"):
            await asyncio.to_thread(elsewhere)


async def test_a_pause_is_everybody_s(valkey: Valkey) -> None:
    async with limiters(valkey, 2, slots=2) as (one, other):
        since = time.monotonic()
        await one.pause(1.0, "the provider asked for it")
        await other.start()
        async with one.slot(timeout_s=60):
            assert time.monotonic() - since > 0.95


def _current() -> Lease:
    from brimful_worker.admission.lease import current_lease

    lease = current_lease.get()
    assert lease is not None
    return lease


async def test_keys_that_nobody_uses_expire(valkey: Valkey) -> None:
    with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
        async with limiters(valkey, 1, slots=2, starts=5) as (limiter,):
            async with limiter:
                pass
            await wait_until_async(lambda: client.ttl(f"brimful:{{{NAME}}}:state") > 0, "they expire from the start")
        keys = list(client.scan_iter(f"brimful:{{{NAME}}}:*"))
        assert keys
        assert {key for key in keys if client.ttl(key) < 7 * 86400 - 60} == set()


async def test_keys_of_a_fleet_do_not_expire(valkey: Valkey) -> None:
    state = f"brimful:{{{NAME}}}:state"
    with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
        async with limiters(valkey, 1, slots=2) as (limiter,):
            await limiter.start()
            await wait_until_async(lambda: client.ttl(state) > 0, "they expire without a worker")
            async with Admission(valkey.url, NAME, Limits(slots=2, starts=None, circuit_breaker=0), fleet=""):
                assert client.ttl(state) == -1, "a worker keeps them"
                await limiter.aclose()
                assert client.ttl(state) == -1, "while it is there, a limiter that leaves does not change that"


async def test_keys_do_not_expire_when_a_worker_joins_as_a_limiter_sets_their_time_to_live(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag, state = "joins", "brimful:{joins}:state"
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Redis.from_url(valkey.url, decode_responses=True))
        looked: list[str] = []

        def joining(text: str) -> object:
            """The first look has found no worker but this process; then one joins, before the times are set."""
            looked.append(text)
            if len(looked) == 1:
                with redis.Redis.from_url(valkey.url) as other:
                    other.hset(f"brimful:{{{tag}}}:workers", "1b", '{"fleet": ""}')
                    other.persist(state)
            return json.loads(text)

        await client.hset(state, "epoch", "e")
        await client.hset(f"brimful:{{{tag}}}:workers", "1a", '{"fleet": null}')
        monkeypatch.setattr(expiry, "loads", joining)
        await expiry.expire_keys(client, tag, 60.0)
        assert len(looked) > 1, "it has looked again"
        assert await client.ttl(state) == -1


async def test_other_old_tags_are_looked_at_each_time(valkey: Valkey) -> None:
    """Those that are in use do not hide the others."""
    async with Redis.from_url(valkey.url, decode_responses=True) as client:
        await client.delete(TAGS)
        old = time.time() - 9 * 86400
        for place in range(60):
            await client.zadd(TAGS, {f"used{place}": old + place})
            await client.hset(f"brimful:{{used{place}}}:state", "epoch", "e")
        await client.zadd(TAGS, {"gone": old + 60})
        for _ in range(2000):  # one look finds it with a probability of a fortieth at least
            await expiry.forget_tags(client)
            if await client.zscore(TAGS, "gone") is None:
                break
        assert await client.zcard(TAGS) == 60


async def test_leaving_waits_for_the_refresh_under_way_instead_of_cancelling_it() -> None:
    """A cancellation while redis-py connects would leave a connection half open."""
    begun, go_on, closing = asyncio.Event(), asyncio.Event(), asyncio.Event()
    ended: list[bool] = []

    async def refresh() -> None:
        begun.set()
        await go_on.wait()
        ended.append(True)

    refreshing = asyncio.create_task(expiry.keep_refreshing(refresh, closing, every_s=0.01))
    await begun.wait()
    closing.set()
    go_on.set()
    await refreshing
    assert ended == [True]


async def test_tags_whose_keys_have_expired_are_forgotten(valkey: Valkey) -> None:
    with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
        old = time.time() - 8 * 86400
        client.zadd(TAGS, {"gone": old, "idle": old, "new": time.time()})
        client.hset("brimful:{idle}:state", "epoch", "e")
        async with limiters(valkey, 1, slots=2) as (limiter,):
            await limiter.start()
            await wait_until_async(lambda: client.zscore(TAGS, "gone") is None, "the old tag is gone")
            assert set(client.zrange(TAGS, 0, -1)) == {NAME, "idle", "new"}
