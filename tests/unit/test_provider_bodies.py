"""What the body of an answer may take: alone, parsed, and together with those that are being read."""

from __future__ import annotations

import asyncio
import json
import tracemalloc

import orjson
import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol

from brimful_worker.provider.answers.answer import Answer, Kind
from brimful_worker.provider.answers.classify import classify_answer, deeper_than, parse_json
from brimful_worker.provider.transport.bodies import Bodies, BodyRefused, memory_when_parsed

MB = 2**20


class Content:
    """A body that is being received."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        protocol = BaseProtocol(loop)
        protocol.transport = asyncio.Transport()  # it takes itself for connected
        self.reader = StreamReader(protocol, 2**30, loop=loop)

    async def feed(self, size: int) -> None:
        self.reader.feed_data(b" " * size, size)
        for _ in range(3):  # its reader takes it
            await asyncio.sleep(0)


async def test_a_body_is_read_up_to_the_limit() -> None:
    cases = ((4 * MB, 10, False), (4 * MB, 4 * MB, False), (4 * MB, 4 * MB + 1, True), (5, 6, True), (5, 12, True))
    for most, size, refused in cases:
        bodies = Bodies(most)
        content = Content()
        reading = asyncio.create_task(bodies.read(content.reader, error=False))
        await content.feed(size // 2)
        await content.feed(size - size // 2)
        content.reader.feed_eof()
        if refused:
            with pytest.raises(BodyRefused, match="BRIMFUL_MAX_ANSWER_MB") as raised:
                await reading
            assert (raised.value.complete, raised.value.again) == (False, False)
        else:
            assert len(await reading) == size


@pytest.mark.parametrize("size", [5, 6])
async def test_a_body_that_has_come_whole_is_within_the_limit_too(size: int) -> None:
    content = Content()
    await content.feed(size)
    content.reader.feed_eof()
    reading = Bodies(5).read(content.reader, error=False)
    if size == 5:
        assert await reading == b" " * 5
    else:
        with pytest.raises(BodyRefused, match="larger than BRIMFUL_MAX_ANSWER_MB"):
            await reading


@pytest.mark.parametrize(("commas", "refused"), [(2**18, False), (2**18 + 1, True)])
async def test_a_body_may_take_eight_times_the_limit_when_parsed(commas: int, refused: bool) -> None:
    content = Content()
    content.reader.feed_data(b"," * commas + b" " * MB)
    content.reader.feed_eof()
    reading = Bodies(2 * MB).read(content.reader, error=False)
    if not refused:
        assert len(await reading) == MB + commas
        return
    with pytest.raises(BodyRefused, match="JSON would take more than 8 times") as raised:
        await reading
    assert (raised.value.complete, raised.value.again) == (True, False)


async def test_of_an_error_only_the_beginning_is_read() -> None:
    content = Content()
    reading = asyncio.create_task(Bodies(64 * MB).read(content.reader, error=True))
    for _ in range(3):
        await content.feed(MB)
    assert len(await reading) == MB


async def test_when_all_that_is_read_is_too_much_the_largest_is_refused() -> None:
    bodies = Bodies(10 * MB)
    small, large = [Content() for _ in range(4)], [Content() for _ in range(5)]
    reading = {content: asyncio.create_task(bodies.read(content.reader, error=False)) for content in small + large}
    for content in small:
        await content.feed(MB // 2)
        await content.feed(MB)
    for content in large:
        for _ in range(9):
            await content.feed(MB)
    done = [content for content in reading if reading[content].done()]
    assert done
    assert set(done) <= set(large)
    for content in done:
        with pytest.raises(BodyRefused, match="together larger than 4 times") as raised:
            await reading[content]
        assert raised.value.again, "the others are to blame too"
    for content in set(reading) - set(done):
        content.reader.feed_eof()
        assert await reading[content]


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[' + b"[]," * 100_000 + b"[]]}",
        b'{"choices":[' + b"{}," * 100_000 + b"{}]}",
        b"[" + (b"[" * 900 + b"]" * 900 + b",") * 100 + b"1]",
        b"[" + (b'{"a":' * 900 + b"1" + b"}" * 900 + b",") * 100 + b"1]",
        b'{"choices":[' + b'{"index":1,"text":""},' * 30_000 + b"{}]}",
        b"[" + b"0.123," * 100_000 + b"1]",
    ],
    ids=["lists", "objects", "nested lists", "nested objects", "choices", "numbers"],
)
def test_the_estimate_is_an_upper_bound(body: bytes) -> None:
    tracemalloc.start()
    try:
        document = orjson.loads(body)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert document
    assert taken < memory_when_parsed(body)


def test_the_largest_answer_with_logprobs_is_parsed() -> None:
    """32,000 tokens with 20 alternatives each; a part of it, scaled up."""
    entry = {"token": " the", "logprob": -1.2345678, "bytes": [32, 116, 104, 101]}
    tokens = [{**entry, "top_logprobs": [entry] * 20}] * 100
    body = json.dumps({"choices": [{"index": 0, "text": " the" * 100, "logprobs": {"content": tokens}}]}).encode()
    assert memory_when_parsed(body) * 320 < 8 * 64 * MB


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices": [{"index": "' + b"9" * 9_000 + b'", "text": "x"}]}',
        b'{"error": {"code": "' + b"9" * 9_000 + b'", "message": "no"}}',
        b'{"error": {"status": "' + b"9" * 9_000 + b'", "message": ["' + b"x" * 9_000 + b'"]}}',
        b'{"error": [' + b"[" * 900 + b"]" * 900 + b"]}",
        b'{"error": {"code": {"a": [' + b"1," * 9_000 + b'1]}, "message": {"b": null}}}',
        b"[" * 100_000,
        b"<" * 100_000,
    ],
)
@pytest.mark.parametrize("status", [200, 400, 500])
def test_hostile_values_are_classified(body: bytes, status: int) -> None:
    found = classify_answer(Answer(status, {}, body), expected=1, now=0.0)
    assert found.kind in (Kind.TRANSIENT, Kind.PERMANENT)
    assert len(found.message) < 400


def test_a_completion_may_be_nested_100_levels_deep() -> None:
    def completion(levels: int) -> bytes:
        more = b"[" * levels + b"]" * levels
        return b'{"choices": [{"index": 0, "text": "x", "more": ' + more + b"}]}"

    kinds = [classify_answer(Answer(200, {}, completion(n)), expected=1, now=0.0).kind for n in (97, 98, 900)]
    assert kinds == [Kind.SUCCESS, Kind.PERMANENT, Kind.PERMANENT]
    assert not deeper_than(1, {"a": 1})
    assert deeper_than(1, {"a": []})


def test_charsets_with_slow_decoders_are_not_read() -> None:
    body = json.dumps({"choices": "é"}, ensure_ascii=False).encode("latin-1")
    assert parse_json(Answer(200, {"content-type": "application/json; charset=latin-1"}, body)) == {"choices": "é"}
    assert parse_json(Answer(200, {"content-type": "application/json; charset=punycode"}, body)) is None
