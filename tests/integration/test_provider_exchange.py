"""What one exchange with the provider makes of an answer, and of a connection that ends."""

from __future__ import annotations

import asyncio
import gzip
from importlib.util import find_spec
from typing import Any

import aiohttp
import pytest

from brimful.outcome import Cause
from brimful_worker.provider.answers.answer import Answer, TransportError
from brimful_worker.provider.transport.connections import Connection, Connector, Route
from support.raw_server import Bench, Serve, answer, whole
from support.raw_server import asked as asked_length
from support.waiting import wait_until_async

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def giving(*parts: bytes, close: bool = False) -> Serve:
    """Each request of a connection is answered with all parts."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        while True:
            await whole(reader)
            writer.writelines(parts)
            if close:
                writer.close()
                return

    return serve


async def asked(*parts: bytes, close: bool = False, **options: Any) -> Answer | TransportError:
    async with Bench(giving(*parts, close=close), **options) as bench:
        return await bench.ask()


async def failed(*parts: bytes, close: bool = False, **options: Any) -> TransportError:
    found = await asked(*parts, close=close, **options)
    assert isinstance(found, TransportError)
    return found


@pytest.mark.parametrize(
    ("status", "hints", "read"), [(100, 1, True), (103, 16, True), (199, 1, True), (103, 17, False)]
)
async def test_an_answer_follows_its_interim_responses(status: int, hints: int, read: bool) -> None:
    found = await asked(f"HTTP/1.1 {status} Hint\r\nLink: <x>\r\n\r\n".encode() * hints + answer("yes"))
    if read:
        assert isinstance(found, Answer)
        assert (found.status, found.body) == (200, b"yes")
    else:
        assert isinstance(found, TransportError)
        assert (found.cause, found.permanent, found.abandoned) == (Cause.BAD_ANSWER, True, True)


async def test_switching_protocols_is_an_answer() -> None:
    found = await asked(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", close=True)
    assert isinstance(found, Answer)
    assert found.status == 101


async def test_a_reused_connection_that_was_closed_is_stale_and_a_new_one_is_not() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        for _ in range(number % 2):
            await whole(reader)
            writer.write(answer("yes"))
        await whole(reader)
        writer.close()

    async with Bench(serve) as bench:
        first, reused, fresh = [await bench.ask() for _ in range(3)]
        assert bench.connections == 2
    assert isinstance(first, Answer)
    assert isinstance(reused, TransportError)
    assert isinstance(fresh, TransportError)
    assert (reused.stale, fresh.stale) == (True, False)
    for error in (reused, fresh):
        assert (error.cause, error.permanent, error.abandoned) == (Cause.CONNECTION, False, False)
        assert "before an answer came" in error.message


async def test_a_connection_that_ends_within_the_body() -> None:
    found = await failed(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", close=True)
    assert (found.cause, found.permanent, found.stale) == (Cause.CONNECTION, False, False)
    assert "within the answer's body" in found.message


@pytest.mark.parametrize(
    "parts", [(), (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",), (b"HTTP/1.1 200 OK\r\n\r\nx",)]
)
async def test_no_complete_answer_within_the_timeout(parts: tuple[bytes, ...]) -> None:
    found = await failed(*parts, timeout_s=0.2)
    assert (found.cause, found.abandoned, found.permanent) == (Cause.TIMEOUT, True, False)


async def test_each_exchange_has_the_whole_timeout_for_itself() -> None:
    """One timer serves them all: it is set again for those that come later, and after none was left."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        while True:
            body = await reader.readexactly(await asked_length(reader))
            if body == b"answer":
                writer.write(answer("yes"))

    async def timed(body: bytes) -> tuple[Answer | TransportError, float]:
        begun = loop.time()
        return await bench.ask(body), loop.time() - begun

    loop = asyncio.get_running_loop()
    async with Bench(serve, timeout_s=0.2) as bench:
        for _ in range(2):
            answered, first = timed(b"answer"), asyncio.create_task(timed(b"never"))
            assert isinstance((await answered)[0], Answer)
            found = [await first, *await asyncio.gather(timed(b"never"), timed(b"never"))]
            assert all(isinstance(one, TransportError) and one.cause is Cause.TIMEOUT for one, _ in found)
            assert min(seconds for _, seconds in found) > 0.19, "at least as long as the timeout, less a tick"


async def test_a_connection_carries_answers_of_every_form() -> None:
    zipped = gzip.compress(b"zipped")
    answers = [
        answer("plain"),
        CHUNKED + b"3\r\nchu\r\n4\r\nnked\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(zipped) + zipped,
        b"HTTP/1.1 204 No Content\r\n\r\n",
        answer("no", 404),
        b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + answer("hinted"),
        answer("", 200),
        answer("x" * 300_000),
        answer("last"),
    ]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        for each in answers:
            await whole(reader)
            writer.write(each)
            await writer.drain()

    async with Bench(serve) as bench:
        found = [await bench.ask() for _ in answers]
        assert bench.connections == 1
    bodies = [b"plain", b"chunked", b"zipped", b"", b"no", b"hinted", b"", b"x" * 300_000, b"last"]
    assert [bytes(one.body) for one in found if isinstance(one, Answer)] == bodies


async def test_data_without_end_between_two_requests_ends_the_connection() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await whole(reader)
        writer.write(answer("yes"))
        await answered.wait()
        try:
            while True:
                writer.write(CHUNKED + b";" + b"x" * 60_000)
                await writer.drain()
        except ConnectionError:
            ended.set()

    answered = asyncio.Event()
    async with Bench(serve, max_bytes=1000) as bench:
        assert isinstance(await bench.ask(), Answer)
        answered.set()
        await wait_until_async(ended.is_set, "the server to see the connection's end")


async def test_framing_without_end_ends_its_connection() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await whole(reader)
        writer.write(CHUNKED + b"1")
        try:
            while True:
                writer.write(b";" + b"x" * 60_000)
                await writer.drain()
        except ConnectionError:
            ended.set()

    async with Bench(serve, max_bytes=1000) as bench:
        found = await bench.ask()
        await wait_until_async(ended.is_set, "the server to see the connection's end")
    assert isinstance(found, TransportError)
    assert (found.cause, found.permanent, found.abandoned) == (Cause.BAD_ANSWER, True, True)
    assert "framing" in found.message


async def test_bytes_that_are_not_http_are_a_bad_answer() -> None:
    found = await failed(b"SSH-2.0-OpenSSH\r\n\r\n")
    assert (found.cause, found.permanent, found.abandoned) == (Cause.BAD_ANSWER, False, False)
    assert "not HTTP" in found.message


@pytest.mark.skipif(find_spec("brotli") is not None, reason="with Brotli, aiohttp decodes it")
async def test_a_body_that_cannot_be_decoded_is_a_bad_answer() -> None:
    found = await failed(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Encoding: br\r\n\r\njunk")
    assert (found.cause, found.permanent, found.abandoned) == (Cause.BAD_ANSWER, False, False)
    assert "compression" in found.message


_PACKED = gzip.compress(b'{"choices": []}' * 9)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (b"gzip", b"no gzip at all"),
        (b"gzip", _PACKED[:20] + b"\xff\xff" + _PACKED[22:]),
        (b"gzip", _PACKED[:-8] + bytes(8)),
        (b"deflate", b"\xff\xff\xff\xff"),
    ],
    ids=["no gzip", "damaged", "wrong checksum", "no deflate"],
)
async def test_a_body_whose_compression_is_damaged_is_a_bad_answer(encoding: bytes, body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nContent-Encoding: %b\r\n\r\n" % (len(body), encoding)
    found = await failed(head + body)
    assert (found.cause, found.permanent, found.abandoned) == (Cause.BAD_ANSWER, False, False)
    assert "compression" in found.message


async def test_a_damaged_framing_is_a_bad_answer_whenever_it_comes() -> None:
    begun = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await whole(reader)
        writer.write(CHUNKED + b"3\r\nabc\r\n")
        await begun.wait()
        writer.write(b"no size\r\n")
        await reader.read()

    async with Bench(serve) as bench:
        found = await bench.ask(listen=lambda *_: begun.set())
    assert isinstance(found, TransportError)
    assert (found.cause, found.permanent) == (Cause.BAD_ANSWER, False)
    assert (await failed(CHUNKED + b"3\r\nabc\r\nno size\r\n")).message == found.message


async def test_a_body_is_passed_on_as_it_comes() -> None:
    taken: list[bytes] = []
    enough = b""

    def feed(chunk: bytes) -> bool:
        taken.append(chunk)
        return chunk == enough

    async with Bench(giving(answer("one"))) as bench:
        found = await bench.ask(listen=lambda status, _: feed if status == 200 else None)
        assert isinstance(found, Answer)
        assert (found.body, b"".join(taken), taken[-1]) == (b"", b"one", b"")
        enough = b"one"
        taken.clear()
        await bench.ask(listen=lambda *_: feed)
        assert taken == [b"one"], "no end is shown to one that has enough"
        found = await bench.ask(listen=lambda *_: None)
        assert isinstance(found, Answer)
        assert found.body == b"one"
        assert bench.connections == 1


async def test_a_server_that_speaks_first_gets_three_connections() -> None:
    class Patient(Connector):
        """Looks at a connection when what the server has sent is there."""

        async def connect(self, *arguments: Any, **more: Any) -> Connection:
            connection = await super().connect(*arguments, **more)
            protocol = connection.protocol
            assert protocol is not None
            await wait_until_async(lambda: protocol.should_close, "the server's data")
            return connection

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(answer("", 408))
        await reader.read()

    async with Bench(serve) as bench:
        connector = Patient(True, 5)
        with pytest.raises(aiohttp.ServerDisconnectedError, match="before the request"):
            await connector.open(Route("GET", bench.url, {}))
        await connector.close()
        assert bench.connections == 3


async def test_128_connections_are_opened_at_a_time() -> None:
    arrived, go_on, most = 0, asyncio.Event(), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        nonlocal arrived, most
        arrived += 1
        most = max(most, arrived)
        await go_on.wait()  # in the middle of the TLS handshake
        arrived -= 1
        writer.close()

    async with Bench(serve) as bench:
        connector = Connector(True, 60)
        route = Route("GET", bench.url.replace("http://", "https://"), {})
        opening = [asyncio.ensure_future(connector.open(route)) for _ in range(140)]
        await wait_until_async(lambda: most >= 128, "the connections", 60)
        for _ in range(100):  # more would come now
            await asyncio.sleep(0)
        go_on.set()
        errors = await asyncio.gather(*opening, return_exceptions=True)
        await connector.close()
        assert (most, bench.connections) == (128, 140)
    assert all(isinstance(error, aiohttp.ClientError) for error in errors)
