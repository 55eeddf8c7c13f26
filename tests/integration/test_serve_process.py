"""``brimful serve`` as a process: how it starts and stops, what it logs, and what its death leaves."""

from __future__ import annotations

import asyncio
import json
import signal

import aiohttp
import pytest
from openai import OpenAI

from brimful.state.redis_url import sync_redis_client
from brimful.state.status import known_tags, read_status
from brimful_worker.local.server.valkey import Valkey
from support.commands import Running, brimful, brimful_in_process, nothing_left
from support.doors import KEY, door, door_process, until_ready
from support.gateways import GatewayProcess, gateway_process, running_gateway
from support.waiting import wait_until, wait_until_async

PROMPT = "a canary prompt of nobody's"


def client(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key="sk-of-the-caller", max_retries=0, timeout=60)


def until_active(gateway: GatewayProcess, count: int) -> None:
    wait_until(lambda: gateway.ledger()["active"] == count, f"{count} active requests")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_it_listens_on_this_machine_only(host: str, valkey: Valkey) -> None:
    env = {"BRIMFUL_REDIS_URL": valkey.url, "ACS_API_BASE": "http://127.0.0.1:1/v1", "ACS_API_KEY": KEY}
    ended = brimful_in_process("serve", "--host", host, "--port", "0", **env)
    assert ended.returncode == 2
    assert f"--host {host}" in ended.stderr
    assert not ended.stdout


def test_what_is_missing_is_named(valkey: Valkey) -> None:
    ended = brimful_in_process("serve", "--port", "0", ACS_API_BASE="http://127.0.0.1:1/v1", ACS_API_KEY=KEY)
    assert (ended.returncode, "BRIMFUL_REDIS_URL" in ended.stderr) == (2, True)
    ended = brimful_in_process("serve", "--port", "0", BRIMFUL_REDIS_URL=valkey.url)
    assert (ended.returncode, "ACS_API_" in ended.stderr) == (2, True)


def test_a_fleet_of_another_key_s_is_refused(valkey: Valkey) -> None:
    with gateway_process() as gateway, door_process(valkey.url, gateway.url) as (url, _):
        until_ready(url)
        env = {"BRIMFUL_REDIS_URL": valkey.url, "ACS_API_BASE": gateway.url, "ACS_API_KEY": "sk-another-0001"}
        ended = brimful("serve", "--port", "0", **env)
        assert ended.returncode == 2
        assert "serve-" in ended.stderr, "whose live workers are named"
        assert "Traceback" not in ended.stderr


def test_doctor_and_status_do_not_take_a_front_door_for_a_worker(valkey: Valkey) -> None:
    with gateway_process() as gateway, door_process(valkey.url, gateway.url) as (url, _):
        until_ready(url)
        doctor = brimful_in_process("doctor", "--json", BRIMFUL_REDIS_URL=valkey.url)
        found = {check["name"]: check["said"] for check in json.loads(doctor.stdout)["checks"]}
        assert ", 0 live workers, 1 front door, 0 queued" in found["fleets"]
        assert "none answers" in found["workers"]
        status = brimful_in_process("status", BRIMFUL_REDIS_URL=valkey.url)
        assert "workers    none, and 1 front door" in status.stdout


async def test_sigterm_answers_what_is_on_the_wire_and_sends_the_rest_elsewhere(valkey: Valkey) -> None:
    with (
        gateway_process("--latency", "3", "--per-token", "0") as gateway,
        door_process(valkey.url, gateway.url, BRIMFUL_SLOTS="2", BRIMFUL_LOG_FORMAT="json") as (url, running),
    ):
        await asyncio.to_thread(until_ready, url)
        body = {"model": "llama-8b", "prompt": PROMPT, "max_tokens": 3}
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer sk-of-the-caller"}) as http:

            async def ask(**more: bool) -> tuple[int, bytes]:
                async with http.post(f"{url}/completions", json={**body, **more}) as answer:
                    return answer.status, await answer.read()

            sent = [asyncio.create_task(ask()), asyncio.create_task(ask(stream=True))]
            await wait_until_async(lambda: asyncio.to_thread(lambda: gateway.ledger()["active"] == 2), "two active")
            waiting = asyncio.create_task(ask())

            with sync_redis_client(valkey.url) as redis:
                (tag,) = known_tags(redis)
                await wait_until_async(lambda: read_status(redis, tag).waiting["interactive"] == 1, "the third to wait")
                (process,) = read_status(redis, tag).workers
            assert process.name.startswith("serve-")
            running.process.send_signal(signal.SIGTERM)
            status, refused = await waiting
            assert (status, json.loads(refused)["error"]["code"]) == (503, "shutting_down")
            whole, stream = await asyncio.gather(*sent)
            assert whole[0] == 200
            assert stream[1].endswith(b"data: [DONE]\n\n")
        assert running.process.stdout is not None
        log = await asyncio.to_thread(running.process.stdout.read)
        assert running.process.wait(60) == 0
        assert "POST /v1/completions 200" in log
        assert "POST /v1/completions 503" in log
        logged = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
        ended = [one for one in logged if one.get("path") == "/v1/completions"]
        assert sorted((one["status"], len(one["provider_request_ids"])) for one in ended) == [
            (200, 1),
            (200, 1),
            (503, 0),
        ]
        assert not [secret for secret in (PROMPT, KEY, "sk-of-the-caller", "Traceback") if secret in log]


def test_a_front_door_that_is_killed_within_a_stream_frees_its_slot_within_a_lease(valkey: Valkey) -> None:
    limits = {"BRIMFUL_SLOTS": "1", "BRIMFUL_LEASE_S": "2"}
    with gateway_process("--latency", "1", "--per-token", "0.2") as gateway:
        with door_process(valkey.url, gateway.url, **limits) as (url, running):
            until_ready(url)
            with client(url) as api:
                stream = api.completions.create(model="llama-8b", prompt="a", max_tokens=200, stream=True)
                next(iter(stream))
                running.process.kill()
                running.process.wait()
                stream.close()
        with door_process(valkey.url, gateway.url, **limits) as (url, _):
            until_ready(url)
            with client(url) as api:
                assert api.completions.create(model="llama-8b", prompt="b", max_tokens=1).choices[0].text
        assert gateway.ledger()["peak_active"] == 1


async def test_a_stream_whose_lease_is_lost_ends_before_its_slot_is_another_s(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    async with (
        running_gateway(per_token_s=0.5) as gateway,
        door(monkeypatch, valkey.url, gateway.url, lease_s=1.5) as here,
    ):
        body = {"prompt": "a", "max_tokens": 200, "stream": True}
        async with here.http.post(f"{here.url}/completions", json=body) as answer:
            await answer.content.readuntil(b"\n\n")
            valkey.stop()
            rest = await answer.read()
        assert b'"lease_lost"' in rest.rpartition(b"event: error\n")[2]
        assert b"[DONE]" not in rest
        await wait_until_async(lambda: gateway.slots.active == 0, "the provider's side to be free")


def test_up_runs_one_beside_the_fleet() -> None:
    with gateway_process() as gateway:
        env = {"ACS_API_BASE": gateway.url, "ACS_API_KEY": KEY}
        with Running("up", "--workers", "1", "--serve-port", "0", **env) as up:
            url = up.line_with("front door").split()[2]
            up.line_with("1 worker ready")
            with client(url) as api:
                assert api.completions.create(model="llama-8b", prompt="b", max_tokens=1).choices[0].text
            assert up.interrupt() == 0
        nothing_left(up.family)
