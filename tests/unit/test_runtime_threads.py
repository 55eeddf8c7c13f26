"""A blocking iterator read in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from brimful.runtime.stream import AHEAD, in_thread


async def test_a_stream_is_read_in_a_thread_and_not_ahead() -> None:
    read = 0
    more = threading.Event()

    def lines() -> Iterator[int]:
        nonlocal read
        for number in range(3):
            yield number
        more.wait(10)
        for number in range(10 * AHEAD):
            read += 1
            yield number

    stream = in_thread(lines())
    first: list[int] = []
    while len(first) < 3:
        first += await anext(stream)
    assert first == [0, 1, 2]  # there before the input goes on
    more.set()
    await anext(stream)
    for _ in range(100):
        await asyncio.sleep(0)
    assert read <= 2 * AHEAD + 8
    await stream.aclose()  # type: ignore[attr-defined]


async def test_errors_of_a_stream_are_raised() -> None:
    def lines() -> Iterator[int]:
        yield 1
        raise ValueError("at the second")

    seen: list[int] = []
    stream = in_thread(lines())

    async def read() -> None:
        async for batch in stream:
            seen.extend(batch)

    with pytest.raises(ValueError, match="at the second"):
        await read()
    assert seen == [1]
