"""What the mock gateway answers beyond plain texts, read with the public openai client where it knows the feature."""

from __future__ import annotations

import asyncio
import json
import selectors
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from brimful_worker.gateway import Gateway
from brimful_worker.gateway.throughput import SharedThroughput
from support.gateways import running_gateway
from support.waiting import wait_until_async

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 3}},
            "required": ["city", "days"],
        },
    },
}


def client(gateway: Gateway) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.url, api_key="sk-any", max_retries=0)


async def test_a_model_by_its_name() -> None:
    async with running_gateway(models=("llama-8b", "org/m 1")) as gateway, client(gateway) as api:
        assert (await api.models.retrieve("org/m 1")).id == "org/m 1"
        with pytest.raises(openai.NotFoundError):
            await api.models.retrieve("other")


async def test_a_request_has_an_id() -> None:
    async with running_gateway(faults="500:x1") as gateway, client(gateway) as api:
        with pytest.raises(openai.InternalServerError) as failed:
            await api.completions.create(model="llama-8b", prompt="a")
        found = await api.completions.with_raw_response.create(model="llama-8b", prompt="a")
        ids = [failed.value.request_id, found.request_id]
        assert [arrival.request_id for arrival in gateway.request_log.arrivals] == ids
        assert len(set(ids)) == 2
        assert None not in ids


async def test_logprobs() -> None:
    async with running_gateway() as gateway, client(gateway) as api:
        plain = (await api.completions.create(model="llama-8b", prompt="a", max_tokens=5, logprobs=2)).choices[0]
        assert plain.logprobs is not None
        assert "".join(plain.logprobs.tokens or []) == plain.text
        assert len(plain.logprobs.token_logprobs or []) == 5
        assert all(len(top) == 2 for top in plain.logprobs.top_logprobs or [{}])
        chat = await api.chat.completions.create(
            model="llama-8b", messages=HELLO, max_tokens=5, logprobs=True, top_logprobs=3
        )
        assert chat.choices[0].logprobs is not None
        content = chat.choices[0].logprobs.content or []
        assert "".join(part.token for part in content) == chat.choices[0].message.content
        assert [len(part.top_logprobs) for part in content] == [3] * 5


async def test_echo_and_best_of() -> None:
    async with running_gateway() as gateway, client(gateway) as api:
        found = await api.completions.create(
            model="llama-8b", prompt=["Ask", "Tell"], max_tokens=4, n=2, best_of=3, echo=True
        )
        assert [choice.text.startswith(("Ask ", "Tell ")) for choice in found.choices] == [True] * 4
        assert found.usage is not None
        assert found.usage.completion_tokens == 2 * 3 * 4


async def test_tools() -> None:
    async with running_gateway() as gateway, client(gateway) as api:
        found = await api.chat.completions.create(model="llama-8b", messages=HELLO, tools=[WEATHER], max_tokens=50)
        choice = found.choices[0]
        assert choice.finish_reason == "tool_calls"
        call: Any = (choice.message.tool_calls or [])[0]
        arguments = json.loads(call.function.arguments)
        assert (call.function.name, set(arguments)) == ("weather", {"city", "days"})
        assert 1 <= arguments["days"] <= 3
        after: list[Any] = [*HELLO, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        assert (
            (await api.chat.completions.create(model="llama-8b", messages=after, tools=[WEATHER]))
            .choices[0]
            .message.content
        )
        with pytest.raises(openai.BadRequestError, match="'other'"):
            await api.chat.completions.create(
                model="llama-8b",
                messages=HELLO,
                tools=[WEATHER],
                tool_choice={"type": "function", "function": {"name": "other"}},
            )


class _Step(BaseModel):
    text: str
    next: _Step | None


class _Plan(BaseModel):
    steps: list[_Step]
    score: float


async def test_structured_output() -> None:
    async with running_gateway() as gateway, client(gateway) as api:
        parsed = await api.chat.completions.parse(
            model="llama-8b", messages=HELLO, response_format=_Plan, max_tokens=2000
        )
        assert parsed.choices[0].message.parsed is not None
        assert parsed.choices[0].message.parsed.steps
        some = await api.chat.completions.create(
            model="llama-8b", messages=HELLO, response_format={"type": "json_object"}, max_tokens=50
        )
        assert isinstance(json.loads(some.choices[0].message.content or ""), dict)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_reasoning(field: str) -> None:
    async with running_gateway(reasoning=field) as gateway, client(gateway) as api:
        found = await api.chat.completions.create(model="llama-8b", messages=HELLO, max_tokens=10)
        assert len(getattr(found.choices[0].message, field).split()) == 5
        assert found.choices[0].message.content
        assert found.usage is not None
        assert found.usage.completion_tokens == 10
        assert found.usage.completion_tokens_details is not None
        assert found.usage.completion_tokens_details.reasoning_tokens == 5


@pytest.mark.parametrize(("usage", "told"), [("true", 32), ("zero", 0), ("one_choice", 8), ("missing", None)])
async def test_usage_that_lies(usage: str, told: int | None) -> None:
    async with running_gateway(usage=usage, budget=10_000) as gateway, client(gateway) as api:
        found = await api.completions.create(model="llama-8b", prompt=["a b", "c d"], max_tokens=8, n=2)
        assert (found.usage.completion_tokens if found.usage else None) == told
        assert gateway.request_log.generated_tokens == 32
        assert gateway.budget.used == 32 + gateway.request_log.prompt_tokens


async def test_a_chat_of_two_choices_needs_max_tokens() -> None:
    async with running_gateway() as gateway, client(gateway) as api:
        with pytest.raises(openai.BadRequestError, match="max_tokens must be set"):
            await api.chat.completions.create(model="llama-8b", messages=HELLO, n=2)


async def test_streamed_completions() -> None:
    async with running_gateway() as gateway, client(gateway) as api:
        whole = await api.completions.create(model="llama-8b", prompt=["a", "b"], max_tokens=6, seed=1)
        texts, finished, usage = ["", ""], {}, None
        stream = await api.completions.create(
            model="llama-8b",
            prompt=["a", "b"],
            max_tokens=6,
            seed=1,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                if choice.finish_reason:
                    finished[choice.index] = choice.finish_reason
        assert texts == [choice.text for choice in whole.choices]
        assert finished == {0: "length", 1: "length"}
        assert usage == whole.usage
        assert gateway.request_log.sampled_total == 4


async def test_streamed_chat_with_a_tool() -> None:
    async with running_gateway() as gateway, client(gateway) as api:
        async with api.chat.completions.stream(model="llama-8b", messages=HELLO, max_tokens=500) as stream:
            text = (await stream.get_final_completion()).choices[0].message.content
        whole = await api.chat.completions.create(model="llama-8b", messages=HELLO, max_tokens=500)
        assert text == whole.choices[0].message.content
        async with api.chat.completions.stream(model="llama-8b", messages=HELLO, tools=[WEATHER]) as stream:
            calls = (await stream.get_final_completion()).choices[0].message.tool_calls or []
        assert set(json.loads(calls[0].function.arguments)) == {"city", "days"}


async def test_a_stream_holds_its_slot_until_it_ends() -> None:
    async with running_gateway(slots=1, waiters=0, latency_s=30.0) as gateway, client(gateway) as api:
        stream = await api.completions.create(model="llama-8b", prompt="a", max_tokens=400, stream=True)
        assert gateway.slots.active == 1
        with pytest.raises(openai.RateLimitError):
            await api.completions.create(model="llama-8b", prompt="b")
        await stream.close()
        await wait_until_async(lambda: gateway.slots.active == 0, "the slot to be free")


async def test_faults_in_the_middle_of_a_stream() -> None:
    async with running_gateway(faults="errorevent:x1,reset:x1") as gateway, client(gateway) as api:
        for error in (openai.APIError, Exception):
            chunks = []
            with pytest.raises(error):  # noqa: PT012 (the stream fails while it is read)
                stream = await api.completions.create(model="llama-8b", prompt="a", max_tokens=20, stream=True)
                async for chunk in stream:
                    chunks.append(chunk)
            assert 5 < len(chunks) < 20
        assert (gateway.request_log.sampled_total, gateway.slots.active) == (0, 0)


class _Timers(selectors.DefaultSelector):
    """Waits for nothing: its clock jumps to the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.timers = _Timers()
        super().__init__(self.timers)

    def time(self) -> float:
        return self.timers.now


def test_requests_share_the_throughput_of_one_server() -> None:
    """A request that leaves makes the others faster."""
    throughput, ended = SharedThroughput(2000.0), dict[str, float]()

    async def run(name: str, tokens: int) -> None:
        await throughput.generate(tokens)
        ended[name] = asyncio.get_running_loop().time()

    async def run_all() -> None:
        gone = asyncio.create_task(throughput.generate(10_000))
        tasks = [asyncio.create_task(run(name, tokens)) for name, tokens in (("long", 300), ("short", 100))]
        await asyncio.sleep(0.03)  # in which each has had 20 tokens
        gone.cancel()
        await asyncio.gather(*tasks)
        await run("alone", 100)

    with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
        runner.run(run_all())
    assert ended == pytest.approx({"short": 0.11, "long": 0.21, "alone": 0.26})


async def test_shared_throughput_of_a_gateway() -> None:
    async with running_gateway(shared_tokens_per_s=400.0) as gateway, client(gateway) as api:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(
            *(api.completions.create(model="llama-8b", prompt=f"{number}", max_tokens=10) for number in range(8))
        )
        assert loop.time() - began >= 0.99 * 80 / 400
