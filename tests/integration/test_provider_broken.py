"""Servers that violate HTTP/1.1: no request gets another's answer, waits forever, or waits behind another's body."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from brimful.outcome import Cause
from brimful_worker.provider.answers.answer import Answer, TransportError
from support.fake_admission import FakeLease
from support.raw_server import Bench, answer, asked, whole
from support.tls import certificate_in
from support.waiting import wait_until_async

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run(loop: str, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(test())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("rest", [b"no size\r\n", b"ffffffffffffffffffff\r\n", b"2\r\n{}\r\n0\r\nbad trailer\r\n\r\n"])
def test_a_body_that_breaks_after_its_head_ends_its_exchange(loop: str, rest: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await whole(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await writer.drain()
        begun.set()
        await go_on.wait()
        writer.write(rest)

    begun, go_on = asyncio.Event(), asyncio.Event()

    async def test() -> None:
        async with Bench(serve) as bench:
            asking = asyncio.create_task(bench.ask())
            await begun.wait()
            await asyncio.sleep(0)
            go_on.set()
            found = await asking
        assert isinstance(found, TransportError)
        assert found.cause in (Cause.CONNECTION, Cause.BAD_ANSWER)

    run(loop, test)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    return certificate_in(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("head", [b"Content-Length: 9", b"Transfer-Encoding: chunked", b"Connection: close"])
def test_closing_the_client_ends_what_is_half_read(
    loop: str, tls: bool, head: bytes, certificate: tuple[Path, ssl.SSLContext]
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await whole(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
        await writer.drain()
        begun.set()

    begun = asyncio.Event()

    async def test() -> None:
        async with Bench(serve, tls=certificate if tls else None) as bench:
            asking = asyncio.create_task(bench.ask())
            await begun.wait()
            await bench.close_client()
            assert isinstance(await asking, TransportError)

    run(loop, test)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    "stray",
    [
        answer("stray"),
        answer("", 408),
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nContent-Le",
    ],
)
def test_unsolicited_data_is_no_requests_answer(loop: str, stray: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        for turn in range(9):
            await whole(reader)
            writer.write(answer(f"{number}.{turn}"))
            if (number, turn) == (1, 0):
                await writer.drain()
                await first_answered.wait()
                writer.write(stray)
                await writer.drain()
                sent.set()

    first_answered, sent = asyncio.Event(), asyncio.Event()

    async def test() -> None:
        async with Bench(serve) as bench:
            answers = [await bench.ask()]
            first_answered.set()
            await sent.wait()
            for _ in range(20):  # let the loop read what has arrived
                await asyncio.sleep(0)
            answers += [await bench.ask(), await bench.ask()]
        assert [one.body for one in answers if isinstance(one, Answer)] == [b"1.0", b"2.0", b"2.1"]

    run(loop, test)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    "first", [answer("right"), answer("no", 500), b"HTTP/1.1 204 None\r\n\r\n", CHUNKED + b"5\r\nright\r\n0\r\n\r\n"]
)
@pytest.mark.parametrize(
    "half", [1, 26, len(answer("")) - 1], ids=["first byte", "half a head", "a head less one byte"]
)
def test_the_second_half_of_an_unsolicited_answer_is_no_requests_answer(loop: str, first: bytes, half: int) -> None:
    """Its first half came together with the end of the last answer, and is not seen there."""
    stray = answer("stray")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await whole(reader)
        writer.write(first + stray[:half] if number == 1 else answer("mine"))
        await whole(reader)
        writer.write(stray[half:] if number == 1 else answer("mine"))

    async def test() -> None:
        async with Bench(serve) as bench:
            found = [await bench.ask() for _ in range(3)]
        assert isinstance(found[0], Answer)
        assert b"stray" not in [one.body for one in found if isinstance(one, Answer)]
        assert isinstance(found[2], Answer)
        assert found[2].body == b"mine"

    run(loop, test)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_body_in_very_many_chunks_is_read_to_its_end(loop: str) -> None:
    """As many as aiohttp buffers: its parser pauses at the end of the last of them, while its reader has read all."""
    chunks = 2**18 // 16 + 1

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await whole(reader)
        writer.write(CHUNKED + b"1\r\nx\r\n" * chunks)
        await all_read.wait()
        writer.write(b"1\r\ny\r\n0\r\n\r\n")

    body, all_read = bytearray(), asyncio.Event()

    def feed(chunk: bytes) -> bool:
        body.extend(chunk)
        if len(body) == chunks:
            all_read.set()
        return False

    async def test() -> None:
        async with Bench(serve) as bench:
            assert isinstance(await bench.ask(listen=lambda status, headers: feed), Answer)
        assert body == b"x" * chunks + b"y"

    run(loop, test)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_connection_is_closed_when_a_refusal_comes_before_the_body_is_read(loop: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        length = await asked(reader)
        if length > 2**20:
            writer.write(answer("no", 429))  # without reading the body
            return
        await reader.readexactly(length)
        writer.write(answer("yes"))

    async def test() -> None:
        async with Bench(serve) as bench:
            refused = await bench.ask(b"x" * 2**23)
            taken = await bench.ask()
            assert bench.connections == 2
        assert isinstance(refused, Answer)
        assert isinstance(taken, Answer)
        assert (refused.status, taken.body) == (429, b"yes")

    run(loop, test)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("tls", [False, True])
def test_the_connection_of_an_answer_that_is_too_large_is_closed(
    loop: str, tls: bool, certificate: tuple[Path, ssl.SSLContext]
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await whole(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 10_000)
                await writer.drain()
        except (ConnectionError, ssl.SSLError):
            ended.set()

    ended = asyncio.Event()

    async def test() -> None:
        async with Bench(serve, max_bytes=50_000, tls=certificate if tls else None) as bench:
            found = await bench.ask()
            await wait_until_async(ended.is_set, "the server to see the connection's end")
        assert isinstance(found, TransportError)
        assert (found.cause, found.abandoned) == (Cause.BAD_ANSWER, True)
        assert "BRIMFUL_MAX_ANSWER_MB" in found.message

    run(loop, test)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_connection_is_watched_for_its_own_request_only(loop: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        while True:
            await whole(reader)
            writer.write(answer("x"))

    class Lease(FakeLease):
        def watch(self, transport: asyncio.Transport) -> None:
            said.append("watch")

        def unwatch(self) -> None:
            said.append("unwatch")

    said: list[str] = []

    async def test() -> None:
        async with Bench(serve) as bench:
            await bench.ask(lease=Lease())
            assert said == ["watch", "unwatch"], "although the lease is still held, as a Job's is"

    run(loop, test)


def _head(*headers: str) -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", "Content-Length: 2", *headers, "", "{}"]).encode()


@pytest.mark.parametrize(
    "headers", [["x-a: " + "h" * 8300], ["x-a: " + "h" * 100_000], [f"x-{number}: h" for number in range(1500)]],
    ids=["8 KB", "100 KB", "1,500 headers"],
)  # fmt: skip
async def test_a_long_head_is_read(headers: list[str]) -> None:
    """The answer is paid for."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await reader.readuntil(b"{}")
        writer.write(_head(*headers))

    async with Bench(serve) as bench:
        answer = await bench.ask()
    assert isinstance(answer, Answer)
    assert (answer.status, answer.body) == (200, b"{}")
    assert len(answer.headers) == 1 + len(headers)


async def test_a_head_without_end_is_permanent() -> None:
    """The next answers would be the same, and each of them is paid for."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await reader.readuntil(b"{}")
        writer.write(_head("x-a: " + "h" * 140_000))

    async with Bench(serve) as bench:
        answer = await bench.ask()
    assert isinstance(answer, TransportError)
    assert (answer.cause, answer.permanent) == (Cause.BAD_ANSWER, True)
    assert "longer than brimful reads" in answer.message
