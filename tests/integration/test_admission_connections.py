"""The admission's connections to Redis: clients of their own, one connection a caller, and what Redis publishes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel

from brimful.state.keys import everyone_channel, process_channel
from brimful_worker.admission.wire import connection as connection_module
from brimful_worker.admission.wire.clients import close_client, open_client
from brimful_worker.admission.wire.connection import Backoff, Connection, ConnectionDown
from brimful_worker.admission.wire.subscriber import Subscriber
from brimful_worker.local.server.valkey import Valkey
from support.proxy import Proxy
from support.scripted_redis import ScriptedRedis
from support.sentinel import sentinel
from support.waiting import wait_until_async

TAG = "links"


def connected(client: redis.Redis, name: str) -> list[dict[str, Any]]:
    """The server's connections of this name."""
    return [one for one in client.client_list() if one["name"] == name]


class TestClients:
    async def test_of_a_url(self, server: Valkey, client: redis.Redis) -> None:
        own = open_client(server.url, client_name="of-url")
        await own.ping()
        assert len(connected(client, "of-url")) == 1
        await close_client(own, server.url)
        await wait_until_async(lambda: not connected(client, "of-url"), "it is closed")

    async def test_of_a_lent_client(self, server: Valkey, client: redis.Redis) -> None:
        lent = Redis.from_url(server.url.replace("/0", "/3"), client_name="lent", decode_responses=True)
        own = open_client(lent, client_name="like-lent", decode_responses=False)
        await lent.set("name", "value")
        assert await own.get("name") == b"value"
        assert [one["db"] for one in connected(client, "like-lent")] == ["3"]
        await close_client(own, lent)
        await wait_until_async(lambda: not connected(client, "like-lent"), "it is closed")
        assert len(connected(client, "lent")) == 1
        await lent.aclose()

    async def test_behind_a_sentinel(self, server: Valkey, client: redis.Redis, tmp_path: Path) -> None:
        with (
            sentinel(tmp_path, server.port) as port,
            redis.Redis(port=port, protocol=2, decode_responses=True) as watcher,
        ):

            def others() -> int:
                return sum(bool(one.get("lib-name")) for one in watcher.client_list()) - 1

            await wait_until_async(lambda: others() == 0, "nobody else is connected to the Sentinel")
            url = f"sentinel://127.0.0.1:{port}/0?master=mymaster"
            own = open_client(url, client_name="by-url")
            await own.ping()
            assert others() == 1
            await close_client(own, url)
            await wait_until_async(lambda: others() == 0 and not connected(client, "by-url"), "both are closed")

            manager = Sentinel([("127.0.0.1", port)])
            lent = manager.master_for("mymaster")
            own = open_client(lent, client_name="like-lent")
            await own.ping()
            assert len(connected(client, "like-lent")) == 1
            await close_client(own, lent)
            await wait_until_async(lambda: not connected(client, "like-lent"), "it is closed")
            assert others() == 1, "the Sentinels are the lender's"
            await lent.aclose()
            for each in manager.sentinels:
                await each.aclose()


async def test_pauses_double_up_to_a_second_with_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(connection_module, "asyncio", SimpleNamespace(sleep=sleep))
    for chance, share in ((0.0, 0.5), (0.5, 0.75), (1.0, 1.0)):
        monkeypatch.setattr(connection_module, "random", SimpleNamespace(random=lambda chance=chance: chance))
        backoff = Backoff()
        for _ in range(7):
            await backoff.sleep()
        backoff.reset()
        await backoff.sleep()
        assert slept == pytest.approx([share * s for s in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.05)])
        slept.clear()


class TestConnection:
    @pytest.fixture
    async def connection(self, server: Valkey) -> AsyncIterator[Connection]:
        connection = Connection(server.url, "single")
        await connection.connect()
        yield connection
        await connection.dispose()

    async def test_a_new_connection_ends_the_old_one(self, connection: Connection, client: redis.Redis) -> None:
        (old,) = connected(client, "single")
        assert old["resp"] == "2"
        await connection.connect()
        await wait_until_async(lambda: len(connected(client, "single")) == 1, "the old one is closed")
        assert connected(client, "single")[0]["id"] != old["id"]
        assert connection.connected

    async def test_replies_are_the_callers(self, connection: Connection) -> None:
        assert await connection.call("ECHO", "a") == b"a"
        replies = await connection.call_many([("ECHO", "b"), ("NONSENSE",), ("ECHO", "c")])
        assert (replies[0], replies[2]) == (b"b", b"c")
        assert isinstance(replies[1], redis.ResponseError)
        with pytest.raises(redis.ResponseError, match="NONSENSE"):
            await connection.call("NONSENSE")
        assert await connection.call("ECHO", "d") == b"d"

    async def test_a_replica_does_not_serve(self, connection: Connection, client: redis.Redis) -> None:
        client.replicaof("127.0.0.1", "1")
        try:
            with pytest.raises(ConnectionDown, match="read only replica"):
                await connection.call_many([("SET", "name", "value")])
            assert not connection.connected
            await connection.connect()
            with pytest.raises(ConnectionDown, match="read only replica"):
                await connection.call("SET", "name", "value")
            assert not connection.connected
        finally:
            client.replicaof("NO", "ONE")

    async def test_a_reply_that_does_not_come_ends_the_connection(self, connection: Connection) -> None:
        connection.reply_timeout_s = 0.05
        with pytest.raises(ConnectionDown, match=r"no reply within 0\.05 s") as error:
            await connection.call("BLPOP", "nothing", 0)
        assert error.value.timed_out
        assert not connection.connected
        with pytest.raises(ConnectionDown, match="not connected"):
            await connection.call("PING")

    async def test_a_call_that_is_cancelled_ends_the_connection(self, connection: Connection) -> None:
        call = asyncio.create_task(connection.next_message())
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not connection.connected

    async def test_a_server_that_goes_away(self, server: Valkey) -> None:
        async with Proxy(server.port) as proxy:
            connection = Connection(proxy.url, "broken")
            await connection.connect()
            proxy.cut()
            with pytest.raises(ConnectionDown) as error:
                await connection.call("PING")
            assert not error.value.timed_out
            proxy.refuse = True
            with pytest.raises(ConnectionDown):
                await connection.connect()
            await connection.dispose()

    async def test_closing_waits_for_nobody(self, connection: Connection) -> None:
        """A server that reads nothing would be waited for."""
        with pytest.raises(StopIteration):
            connection.close().send(None)
        assert not connection.connected

    async def test_disposing_closes(self, connection: Connection, client: redis.Redis) -> None:
        await connection.dispose()
        assert not connection.connected
        await wait_until_async(lambda: not connected(client, "single"), "it is closed")


class TestSubscriber:
    @pytest.fixture
    def pushes(self) -> list[dict[str, Any]]:
        return []

    @pytest.fixture
    async def proxy(self, server: Valkey) -> AsyncIterator[Proxy]:
        async with Proxy(server.port) as proxy:
            yield proxy

    @pytest.fixture
    async def subscriber(self, proxy: Proxy, pushes: list[dict[str, Any]]) -> AsyncIterator[Subscriber]:
        subscriber = Subscriber(proxy.url, TAG, "ab", pushes.append)
        assert not subscriber.subscribed
        running = asyncio.create_task(subscriber.run())
        await wait_until_async(lambda: subscriber.subscribed, "it is subscribed")
        yield subscriber
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert not subscriber.subscribed

    async def test_both_channels_are_received(
        self,
        subscriber: Subscriber,
        pushes: list[dict[str, Any]],
        client: redis.Redis,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        await subscriber.wait_subscribed()
        for channel, text in (
            (process_channel(TAG, "ab"), '{"n": 1}'),
            (process_channel(TAG, "cd"), '{"n": 2}'),
            (everyone_channel(TAG), "not json"),
            (everyone_channel(TAG), '{"n": 3}'),
        ):
            client.publish(channel, text)
        await wait_until_async(lambda: len(pushes) >= 2, "both have arrived")
        assert pushes == [{"n": 1}, {"n": 3}]
        (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert "not JSON on channel" in record.getMessage()

    async def test_while_it_is_cut_off_it_is_not_subscribed(
        self, subscriber: Subscriber, pushes: list[dict[str, Any]], proxy: Proxy, client: redis.Redis
    ) -> None:
        proxy.refuse = True
        proxy.cut()
        await wait_until_async(lambda: not subscriber.subscribed, "it knows")
        assert pushes == [{"epoch": None}], "something may have been missed"
        await wait_until_async(lambda: proxy.refused >= 2, "it tries again")
        assert len(pushes) == 1
        proxy.refuse = False
        await wait_until_async(lambda: subscriber.subscribed, "it is subscribed again")
        client.publish(everyone_channel(TAG), '{"n": 1}')
        await wait_until_async(lambda: pushes[1:] == [{"n": 1}], "it has arrived")

    async def test_it_subscribes_again_where_nothing_arrives(
        self, subscriber: Subscriber, pushes: list[dict[str, Any]], proxy: Proxy, client: redis.Redis
    ) -> None:
        proxy.mute_subscribed = True
        subscriber.reset()
        await wait_until_async(lambda: pushes == [{"epoch": None}], "the old connection is given up")
        await wait_until_async(lambda: subscriber.subscribed, "it is subscribed again")
        client.publish(everyone_channel(TAG), '{"n": 1}')
        await wait_until_async(lambda: pushes[1:] == [{"n": 1}], "it has arrived")

    async def test_resetting_does_nothing_before_it_is_subscribed(self) -> None:
        subscriber = Subscriber("redis://127.0.0.1:1/0", TAG, "ab", lambda _: None)
        subscriber.reset()
        assert not subscriber.subscribed

    async def test_only_messages_are_taken(
        self, pushes: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
    ) -> None:
        async with ScriptedRedis(lambda message: None) as server:
            subscriber = Subscriber(server.url, TAG, "ab", pushes.append)
            running = asyncio.create_task(subscriber.run())
            await wait_until_async(lambda: subscriber.subscribed, "it is subscribed")
            server.publish({"n": 1}, kind=b"subscribe")
            server.publish({"n": 2})
            await wait_until_async(lambda: pushes, "one has arrived")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert pushes == [{"n": 2}]
        assert not caplog.records
