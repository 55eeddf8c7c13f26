"""Reading a blocking iterable in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from brimful.runtime.threads import AHEAD, AHEAD_BYTES, batches_in_thread, read_in_thread


async def test_items_come_while_the_next_one_blocks_and_few_are_read_ahead() -> None:
    read = 0
    more = threading.Event()

    def lines() -> Iterator[int]:
        nonlocal read
        for number in range(3):
            yield number
        more.wait(60)
        for number in range(10 * AHEAD):
            read += 1
            yield number

    stream = batches_in_thread(lines())
    first: list[int] = []
    while len(first) < 3:
        first += await anext(stream)
    assert first == [0, 1, 2]
    more.set()
    await anext(stream)
    for _ in range(100):
        await asyncio.sleep(0)
    assert read <= 2 * AHEAD + 8
    await stream.aclose()


async def test_large_items_are_not_read_far_ahead() -> None:
    read = 0

    def lines() -> Iterator[int]:
        nonlocal read
        for number in range(AHEAD):
            read += 1
            yield number

    stream = batches_in_thread(lines(), lambda _: AHEAD_BYTES // 4)
    seen = await anext(stream)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(seen) + 7 >= read
    async for batch in stream:
        seen += batch
    assert seen == list(range(AHEAD))


async def test_an_error_of_the_iterable_comes_after_its_items() -> None:
    def lines() -> Iterator[int]:
        yield 1
        raise ValueError("at the second")

    seen: list[int] = []

    async def read() -> None:
        async for item in read_in_thread(lines()):
            seen.append(item)

    with pytest.raises(ValueError, match="at the second"):
        await read()
    assert seen == [1]


async def test_a_consumer_that_leaves_ends_the_thread() -> None:
    threads: list[threading.Thread] = []

    def endless() -> Iterator[int]:
        threads.append(threading.current_thread())
        while True:
            yield 1

    stream = read_in_thread(endless())
    assert await anext(stream) == 1
    await stream.aclose()
    await asyncio.to_thread(threads[0].join, 10)
    assert not threads[0].is_alive()
