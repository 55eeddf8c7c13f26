"""Every fault as the client sees it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from brimful_worker.gateway import FAULTS, Fault, FaultContext, Gateway, Rule
from brimful_worker.gateway.responses import json_response
from support.gateways import gateway_process, running_gateway
from support.waiting import wait_until_async

KEY = {"Authorization": "Bearer sk-any"}
ASK: dict[str, Any] = {"model": "llama-8b", "prompt": ["a b", "c d"], "max_tokens": 8, "n": 2}
BROKEN = "connection broken"

# fault -> (status, or BROKEN before the headers or in the body; what the body begins with or its error code)
EXPECTED: dict[str, tuple[int | str, Any]] = {
    "400": (400, "invalid_value"),
    "400key": (400, "INVALID_ARGUMENT"),
    "401": (401, "invalid_api_key"),
    "402": (402, "insufficient_quota"),
    "403": (403, "permission_denied"),
    "404": (404, "model_not_found"),
    "429": (429, "rate_limited"),
    "429bare": (429, "rate_limited"),
    "429quota": (429, "insufficient_quota"),
    "filter": (400, "content_filter"),
    "500": (500, None),
    "500num": (500, 500),
    "503": (503, "overloaded"),
    "504": (504, "timeout"),
    "error200": (200, "internal"),
    "502html": (502, b"<html>"),
    "html200": (200, b"<html>"),
    "empty": (200, b""),
    "huge=100000": (200, b"   "),
    "redirect": (307, b""),
    "reset": (BROKEN, None),
    "close": (BROKEN, None),
    "resetmid": (BROKEN, None),
    "trunc": (BROKEN, None),
    "chunkcut": (BROKEN, None),
    "cutjson": (200, b'{"id":'),
    "nullchoices": (200, b'{"id":'),
    "short": (200, b'{"id":'),
    "long=2": (200, b'{"id":'),
    "nulltext": (200, b'{"id":'),
    "nousage": (200, b'{"id":'),
    "array": (200, b'[{"id":'),
    "badutf8": (200, b'{"id":'),
    "400completion": (400, b'{"id":'),
    "slow=0.01": (200, b'{"id":'),
    "drip=0.01": (200, b'{"id":'),
    "gzip": (200, b'{"id":'),
    "spaced": (200, b"\xef\xbb\xbf"),
    "stale": (200, b'{"id":'),
    "hang=0.01": (200, b'{"id":'),
    "longheaders": (200, b'{"id":'),
    "manyheaders": (200, b'{"id":'),
    "errorevent": (500, "server_error"),
}
WHOLE = {"slow", "drip", "gzip", "spaced", "stale", "hang", "longheaders", "manyheaders"}


def test_every_fault_has_its_test() -> None:
    assert {name.partition("=")[0] for name in EXPECTED} | {"jobfail"} == set(FAULTS)


async def call(url: str) -> tuple[int | str, bytes, dict[str, str]]:
    async with aiohttp.ClientSession(headers=KEY, max_field_size=65536, max_headers=256) as session:
        try:
            async with session.post(f"{url}/completions", json=ASK, allow_redirects=False) as answer:
                return answer.status, await answer.read(), dict(answer.headers)
        except aiohttp.ClientError:
            return BROKEN, b"", {}


def check(fault: str, status: int | str, body: bytes) -> None:
    expected_status, expected = EXPECTED[fault]
    assert status == expected_status
    if isinstance(expected, bytes):
        assert body.startswith(expected)
        assert bool(body) == bool(expected)
    elif status != BROKEN:
        assert json.loads(body)["error"]["code"] == expected


@pytest.mark.parametrize("fault", EXPECTED)
async def test_fault(fault: str) -> None:
    name = fault.partition("=")[0]
    async with running_gateway(faults=f"{fault}:x1") as gateway:
        check(fault, *(await call(gateway.url))[:2])
        await wait_until_async(lambda: gateway.slots.active == 0, "the slot to be free")
        assert gateway.request_log.faults == {name: 1}
        assert gateway.request_log.sampled_total == (4 if name in WHOLE else 0)
        status, body, _ = await call(gateway.url)
        assert (status, len(json.loads(body)["choices"])) == (200, 4)


def test_every_fault_on_uvloop() -> None:
    """The gateway process runs on uvloop, whose transports differ from asyncio's."""

    async def meet(url: str, fault: str) -> None:
        check(fault, *(await call(url))[:2])

    with gateway_process("--latency", "0", "--per-token", "0") as gateway:
        for fault in EXPECTED:
            gateway.set_faults(f"{fault}:x1")
            asyncio.run(meet(gateway.url, fault))
        assert gateway.ledger()["active"] == 0


async def one(gateway: Gateway, faults: str) -> tuple[Any, dict[str, str]]:
    gateway.set(faults=faults)
    _, body, headers = await call(gateway.url)
    return json.loads(body), headers


async def test_what_damaged_answers_contain() -> None:
    async with running_gateway() as gateway:
        assert (await one(gateway, "nullchoices"))[0]["choices"] is None
        assert [c["index"] for c in (await one(gateway, "short=3"))[0]["choices"]] == [0]
        assert [c["index"] for c in (await one(gateway, "long=2"))[0]["choices"]] == [0, 1, 2, 3, 4, 5]
        assert [c["text"] is None for c in (await one(gateway, "nulltext"))[0]["choices"]] == [True] + [False] * 3
        assert (await one(gateway, "nousage"))[0]["usage"] is None
        assert (await one(gateway, "gzip"))[1]["Content-Encoding"] == "gzip"
        assert (await one(gateway, "429=7"))[1]["Retry-After"] == "7"
        assert "Retry-After" not in (await one(gateway, "429bare"))[1]
        assert gateway.request_log.spoiled == 5
        gateway.set(faults="badutf8")
        with pytest.raises(UnicodeDecodeError):
            (await call(gateway.url))[1].decode()


async def test_hang_keeps_its_slot_until_the_client_disconnects() -> None:
    async with running_gateway(faults="hang:x1", slots=1) as gateway:
        waiting = asyncio.create_task(call(gateway.url))
        await wait_until_async(lambda: gateway.slots.active == 1, "the hanging request")
        waiting.cancel()
        await wait_until_async(lambda: gateway.slots.active == 0, "the slot to be free")
        assert [arrival.status for arrival in gateway.request_log.arrivals] == [-1]


async def test_a_custom_fault_and_rule() -> None:
    async def teapot(context: FaultContext) -> Any:
        return json_response({"choices": len(context.answer()["choices"])}, 418)

    rule = Rule(Fault("teapot", teapot), when=lambda rule, prompts: "c d" in prompts)
    async with running_gateway(faults=[rule]) as gateway:
        status, body, _ = await call(gateway.url)
        assert (status, json.loads(body)) == (418, {"choices": 4})
