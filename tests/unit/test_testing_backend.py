"""``brimful.testing``: a service's tests without Redis and workers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from celery import chord, group

import brimful
from brimful import AsyncFleet, Fleet, errors, sample
from brimful.outcome import Cause, Failure
from brimful.request import Request
from brimful.testing import Backend
from support.commands import environment


def upper(request: Request) -> list[str]:
    return [f"{str(prompt).upper()}{choice}" for prompt in request.prompts for choice in range(request.n)]


def _texts(completion: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in completion["choices"]]


def test_tasks_and_canvas_run_eagerly() -> None:
    with Backend(upper) as backend:
        assert _texts(sample.delay("a", n=2, max_tokens=4).get()) == ["A0", "A1"]
        results = group(sample.s(prompt, max_tokens=4) for prompt in "bc").apply_async()
        assert [_texts(completion) for completion in results.get()] == [["B0"], ["C0"]]
        with pytest.raises(errors.BadRequest, match="n: must be"):
            sample.apply_async(("d",), {"n": 0}, queue="batch").get()
        assert [request.prompts for request in backend.requests] == [["a"], ["b"], ["c"]]
    assert brimful.app.conf.task_always_eager is False


def test_a_blocking_fleet_is_answered_whatever_its_url_is() -> None:
    before = Fleet("redis://127.0.0.1:1/0")
    with Backend(upper) as backend, Fleet() as fleet:
        for client in (before, fleet):
            assert _texts(client.sample("a", max_tokens=4)) == ["A0"]
            results = list(client.map(["b", {"prompt": ["c", "d"], "n": 2}, {"prompt": ""}, {"n": 9}], max_tokens=4))
            assert [one.texts for one in results[:2]] == [["B0"], ["C0", "C1", "D0", "D1"]]
            assert [one.ok for one in results] == [True, True, True, False]
            assert sorted(one.index for one in client.as_completed("xyz", max_tokens=4)) == [0, 1, 2]
        handle = fleet.submit("e", max_tokens=4, task_id="mine")
        assert (handle.id, _texts(handle.get(timeout=60)), handle.state) == ("mine", ["E0"], "SUCCESS")
        assert len(backend.requests) == 2 * (1 + 4 + 3) + 1
    before.close()


async def test_an_async_fleet_is_answered() -> None:
    async def answer(request: Request) -> str:
        await asyncio.sleep(0)
        return "Blue."

    with Backend(answer):
        async with AsyncFleet() as fleet:
            completion = await fleet.sample({"messages": [{"role": "user", "content": "Sky?"}]}, max_tokens=4)
            assert completion["choices"][0]["message"]["content"] == "Blue."
            handle = await fleet.submit("later", max_tokens=4)
            assert _texts(await fleet.result(handle.id)) == ["Blue."]
            assert [one.text async for one in fleet.map(["a", "b"], max_tokens=4)] == ["Blue.", "Blue."]


def test_failures_are_raised_as_in_production() -> None:
    def answer(request: Request) -> Failure:
        if request.prompts == ["raise"]:
            raise errors.TransientFailure("busy", "rate_limited", {"status": 429, "retry_after_s": 3.0})
        return Failure(Cause.CONTENT_FILTER, "no", 400, permanent=True, code="content_filter")

    with Backend(answer), Fleet() as fleet:
        with pytest.raises(errors.PermanentFailure) as permanent:
            fleet.sample("return", max_tokens=4)
        with pytest.raises(errors.TransientFailure) as transient:
            sample.delay("raise", max_tokens=4).get()
        [one] = fleet.map(["return"], max_tokens=4)
    assert (permanent.value.status, permanent.value.code) == (400, "content_filter")
    assert (transient.value.status, transient.value.retry_after_s, transient.value.attempts) == (429, 3.0, 1)
    assert one.failure is not None
    assert one.failure.cause is Cause.CONTENT_FILTER


def test_an_error_of_the_test_reaches_the_test() -> None:
    def answer(request: Request) -> str:
        raise LookupError("no such prompt")

    with Backend(answer), Fleet() as fleet:
        with pytest.raises(LookupError):
            fleet.sample("a", max_tokens=4)
        with pytest.raises(LookupError):
            list(fleet.map(["a"], max_tokens=4))
    with Backend(lambda request: ["one", "two"]), Fleet() as fleet, pytest.raises(ValueError, match="2 texts"):
        fleet.sample("a", max_tokens=4)


def test_requests_time_out_and_are_cancelled() -> None:
    begun: list[str] = []
    ended: list[str] = []

    async def answer(request: Request) -> str:
        begun.append(str(request.prompts[0]))
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(str(request.prompts[0]))
        return ""

    with Backend(answer), Fleet() as fleet:
        with pytest.raises(errors.SampleTimeout):
            fleet.sample("late", max_tokens=4, timeout=0.2)
        handle = fleet.submit("revoked", max_tokens=4)
        fleet.cancel(handle)
        assert handle.state == "REVOKED"
    assert sorted(ended) == sorted(begun), "a busy machine may not have begun one in time"
    assert not [thread for thread in threading.enumerate() if thread.name == "brimful-testing"]


_TOLD: Any = {
    "id": "cmpl-1",
    "created": 1,
    "system_fingerprint": "fp",
    "model": "m",
    "choices": [
        {
            "index": choice,
            "finish_reason": "tool_calls",
            "logprobs": {"content": [{"token": "a", "logprob": -0.5}]},
            "message": {
                "role": "assistant",
                "content": "text",
                "reasoning_content": "because",
                "tool_calls": [{"id": f"call-{choice}", "type": "function", "function": {"name": "f"}}],
            },
        }
        for choice in range(2)
    ],
    "usage": {
        "prompt_tokens": 6,
        "completion_tokens": 8,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 6},
    },
}


async def test_a_result_may_be_asked_for_before_its_request_is_submitted() -> None:
    with Backend(upper) as backend, Fleet() as fleet:
        async with AsyncFleet() as other:
            early = asyncio.create_task(other.result("one"))
            await asyncio.sleep(0)  # it begins
            fleet.submit("a", max_tokens=4, task_id="one")
            assert _texts(await early) == ["A0"]
            fleet.submit("a", max_tokens=4, task_id="one")
            assert len(backend.requests) == 1, "the same id is sampled once"
            revoked = asyncio.create_task(other.result("two"))
            await asyncio.sleep(0)
            await other.cancel("two")
            fleet.submit("b", max_tokens=4, task_id="two")
            with pytest.raises(errors.SampleError):
                await revoked
            assert len(backend.requests) == 1, "what was cancelled is not sampled"


def test_a_map_gives_all_that_the_provider_said() -> None:
    with Backend(lambda request: _TOLD), Fleet() as fleet:
        [one] = fleet.map([{"messages": [{"role": "user", "content": "Hi"}], "n": 2}], max_tokens=4)
    assert one.usage == _TOLD["usage"]
    assert one.response == {"id": "cmpl-1", "created": 1, "system_fingerprint": "fp", "model": "m"}
    for place, rollout in enumerate(one.rollouts):
        assert rollout.choice == _TOLD["choices"][place]
        assert rollout.message == _TOLD["choices"][place]["message"]
        assert rollout.tool_calls[0]["id"] == f"call-{place}"
        assert rollout.reasoning == "because"
        assert rollout.logprobs["content"][0]["logprob"] == -0.5
        assert rollout.usage is not None
        assert rollout.usage["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert [rollout.usage["prompt_tokens"] for rollout in one.rollouts if rollout.usage] == [6, 0]


def test_an_idempotency_key_is_answered_once() -> None:
    with Backend(upper) as backend, Fleet() as fleet:
        texts = [_texts(fleet.sample(prompt, max_tokens=4, idempotency_key="k")) for prompt in "ab"]
    assert texts == [["A0"], ["A0"]]
    assert len(backend.requests) == 1


@pytest.mark.parametrize("error", [ZeroDivisionError(), errors.SampleError("no", "content_filter")])
def test_what_failed_is_answered_again(error: Exception) -> None:
    def fails(request: Request) -> str:
        raise error

    with Backend(fails) as backend, Fleet() as fleet:
        for _ in range(2):
            with pytest.raises(type(error)):
                fleet.sample("a", idempotency_key="k")
            with pytest.raises(type(error)):
                fleet.submit("a", task_id="t").get()
        backend.answer = lambda request: "fine"
        assert _texts(fleet.sample("a", idempotency_key="k")) == ["fine"]
        assert _texts(fleet.submit("a", task_id="t").get()) == ["fine"]
    assert len(backend.requests) == 6


def test_the_mock_gateway_answers() -> None:
    with Backend() as backend, Fleet() as fleet:
        gateway = backend.use_gateway(faults="500:x1")
        completion = fleet.sample("The sky is", max_tokens=4)
        assert completion["choices"][0]["text"]
        assert completion["brimful"]["attempts"] == 2
        assert len(list(fleet.map(["a", "b", "c"], max_tokens=4))) == 3
        assert gateway.snapshot()["arrivals"] == 5


def test_the_gateway_s_faults_are_retried_as_docs_testing_md_says() -> None:
    with Backend() as backend, Fleet() as fleet:
        gateway = backend.use_gateway(faults="500:x2,429=1:x1")
        assert fleet.sample("What colour is the sky?", max_tokens=4)["choices"][0]["text"]
        assert gateway.snapshot()["arrivals"] == 4


def test_a_chord_with_a_service_s_own_task() -> None:
    @brimful.app.task(name="tests.count", shared=False)  # type: ignore[untyped-decorator]
    def count(completions: list[dict[str, Any]]) -> int:
        return sum(len(completion["choices"]) for completion in completions)

    with Backend():
        done = chord([sample.s(prompt, n=3, max_tokens=4) for prompt in "ab"])(count.s())
        assert done.get() == 6


def test_the_fixture_works_in_a_project_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["brimful.testing.plugin"]\n')
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # whatever lies around the tests' folder
    (tmp_path / "test_service.py").write_text(
        "from brimful import Fleet, sample\n"
        "def test_it(brimful_backend):\n"
        "    brimful_backend.answer = lambda request: 'Blue.'\n"
        "    assert sample.delay('Sky?', max_tokens=4).get()['choices'][0]['text'] == 'Blue.'\n"
        "    assert brimful_backend.requests[0].max_tokens == 4\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-W",
            "error",
            "-p",
            "no:asyncio",
            "-p",
            "no:cacheprovider",
            str(tmp_path),
        ],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
