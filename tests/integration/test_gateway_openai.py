"""The public openai client works with the mock gateway."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from brimful_worker.gateway import Gateway
from support.gateways import running_gateway


def client(gateway: Gateway, **more: Any) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.url, api_key="sk-any", **{"max_retries": 0, **more})


async def test_completions_chat_and_models() -> None:
    async with running_gateway() as gateway, client(gateway, default_headers={"X-Acs-Workload": "batch"}) as api:
        found = await api.completions.create(model="llama-8b", prompt=["a", "b"], max_tokens=3, n=2)
        assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
        assert all(choice.text for choice in found.choices)
        assert found.usage is not None
        assert found.usage.completion_tokens == 12
        messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        chat = await api.chat.completions.create(model="gpt-5.5", messages=messages, max_completion_tokens=3)
        assert chat.choices[0].message.content
        assert [model.id async for model in api.models.list()]
        assert gateway.request_log.workloads == {"batch": 2}


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ("401", openai.AuthenticationError),
        ("403", openai.PermissionDeniedError),
        ("404", openai.NotFoundError),
        ("filter", openai.BadRequestError),
        ("429", openai.RateLimitError),
        ("500", openai.InternalServerError),
        ("502html", openai.InternalServerError),
        ("reset", openai.APIConnectionError),
        ("402", openai.APIStatusError),
    ],
)
async def test_errors(faults: str, error: type[openai.APIError]) -> None:
    async with running_gateway(faults=faults) as gateway, client(gateway) as api:
        with pytest.raises(error) as raised:
            await api.completions.create(model="llama-8b", prompt="a", max_tokens=3)
        if faults == "filter":
            assert (raised.value.code, raised.value.type) == ("content_filter", "invalid_request_error")
        assert gateway.request_log.total == 1


async def test_its_retries_and_retry_after() -> None:
    async with running_gateway(faults="429=0.05:x1,503:x1", retry_after="ms") as gateway:
        async with client(gateway, max_retries=2) as api:
            found = await api.completions.create(model="llama-8b", prompt="a", max_tokens=3)
        assert found.choices[0].text
        assert (gateway.request_log.attempts("a"), gateway.request_log.statuses) == (3, {429: 1, 503: 1, 200: 1})
