"""The front door's parts without sockets: events cut out of bytes, the state of a stream, failures and addresses."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import SettingError
from brimful.names import Mode
from brimful.request import Request
from brimful_worker.admission.policy import WindowUse
from brimful_worker.serve.completions.reading import CallerRequest
from brimful_worker.serve.completions.stream_answer import EventSplitter, StreamAnswer, data_of
from brimful_worker.serve.rate_headers import RateHeaders
from brimful_worker.serve.server import check_address, listen

LINES = st.sampled_from([b"data: a", b"data:b", b": comment", b"event: x", b"data: \xc3\xa4", b"id"])
EVENTS = st.lists(st.tuples(st.lists(LINES, min_size=1, max_size=3), st.sampled_from([b"\n", b"\r\n"])), max_size=6)


@given(events=EVENTS, cuts=st.lists(st.integers(0, 200), max_size=8), ended=st.booleans())
def test_events_are_the_same_however_the_bytes_arrive(
    events: list[tuple[list[bytes], bytes]], cuts: list[int], ended: bool
) -> None:
    wanted = [end.join(lines) + end + end for lines, end in events]
    whole = b"".join(wanted)
    if not ended and wanted:
        whole = whole.rstrip(b"\r\n")
    splitter, found, before = EventSplitter(), [], 0
    for cut in [*sorted(min(cut, len(whole)) for cut in cuts), len(whole)]:
        found += splitter.feed(whole[before:cut])
        before = cut
    found += splitter.finish()
    assert [event.rstrip(b"\r\n") for event in found] == [event.rstrip(b"\r\n") for event in wanted]
    assert all(event.endswith((b"\n\n", b"\r\n\r\n")) for event in found)


def test_the_data_of_an_event() -> None:
    assert data_of(b'event: x\r\ndata: {"a":\r\ndata: 1}\r\n\r\n') == b'{"a":\n1}'
    assert data_of(b": only a comment\n\n") is None
    assert data_of(b"data:\n\n") == b""


def stream(n: int = 1, *, usage: bool = False, chat: bool = False) -> tuple[StreamAnswer, list[bytes]]:
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]} if chat else {"prompt": "a"}
    request = Request({**fields, "n": n, "max_tokens": 4}, mode=Mode.CHAT if chat else Mode.COMPLETION)
    forwarded: list[bytes] = []
    asked = CallerRequest(request, b"", stream=True, usage_wanted=usage, deadline_s=None, idempotency_key=None)
    answer = StreamAnswer(asked, lambda event, _: forwarded.append(event))
    assert answer.listen(200, {"content-type": "text/event-stream"}) is not None
    return answer, forwarded


def feed(answer: StreamAnswer, *documents: Any) -> None:
    receive = answer.listen(200, {"content-type": "text/event-stream"})
    assert receive is not None
    for document in documents:
        receive(b"data: " + (document if isinstance(document, bytes) else json.dumps(document).encode()) + b"\n\n")
    receive(b"")


def choice(index: int, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def test_every_choice_must_finish() -> None:
    answer, forwarded = stream(2, chat=True)
    feed(answer, choice(0, content="a"), choice(1, content="b"), choice(0, "stop"), b"[DONE]")
    assert not answer.complete
    assert b"[DONE]" not in b"".join(forwarded)
    assert "1 of 2 choices" in answer.fault()
    answer, forwarded = stream(2, chat=True)
    feed(answer, choice(0, content="a"), choice(1, content="b"), choice(0, "stop"), choice(1, "length"), b"[DONE]")
    assert answer.complete
    assert b"[DONE]" not in b"".join(forwarded), "it is the caller's when the answer has been counted and kept"
    assert answer.done == b"data: [DONE]\n\n"
    found = answer.completion()["choices"]
    assert [(each["message"]["content"], each["finish_reason"]) for each in found] == [("a", "stop"), ("b", "length")]


def test_usage_that_was_asked_for_may_come_last() -> None:
    answer, _ = stream(usage=True)
    feed(answer, choice(0, "stop"))
    assert not answer.complete, "it ended without [DONE] and without usage"
    answer, _ = stream(usage=True)
    feed(answer, choice(0, "stop"), {"choices": [], "usage": {"total_tokens": 3}})
    assert answer.complete
    assert answer.completion()["usage"] == {"total_tokens": 3}


def test_a_whole_answer_is_no_stream() -> None:
    answer, _ = stream()
    assert answer.listen(200, {"content-type": "application/json"}) is None
    assert answer.listen(500, {"content-type": "text/event-stream"}) is None


@pytest.mark.parametrize(("seconds", "text"), [(60.8, "1m0.8s"), (10.25, "10.25s"), (120, "2m0s"), (0.5, "0.5s")])
def test_the_reset_is_written_as_openai_writes_durations(seconds: float, text: str) -> None:
    headers = RateHeaders(lambda: WindowUse(600, 583, 0, 0, seconds)).headers()
    assert headers["x-ratelimit-reset-requests"] == text


def test_the_headers_of_the_window_name_what_is_limited() -> None:
    assert RateHeaders(lambda: None).headers() == {}
    assert RateHeaders(lambda: WindowUse(0, 7, 0, 7, 60.8)).headers() == {}
    assert RateHeaders(lambda: WindowUse(600, 7, 1000, 1200, 60.8)).headers() == {
        "x-ratelimit-limit-requests": "600",
        "x-ratelimit-remaining-requests": "593",
        "x-ratelimit-reset-requests": "1m0.8s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m0.8s",
    }


def test_addresses() -> None:
    for host in ("127.0.0.1", "127.8.9.10", "::1", "localhost"):
        check_address(host, lambda: False)
    for host in ("0.0.0.0", "::", "10.0.0.1", "", "localhost.example.org"):
        with pytest.raises(SettingError, match="--host"):
            check_address(host, lambda: False)
        check_address(host, lambda: True)


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="not on this system")
def test_a_caller_whose_machine_is_gone_is_noticed() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3


def test_a_port_that_is_taken() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(SettingError, match="--port"):
        listen("127.0.0.1", taken.getsockname()[1])
