"""The front door's callers: who is let in, at all front doors, and who is not."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from typing import Any

import aiohttp
import openai
import pytest
import redis

from brimful.cli.commands import run_command
from brimful.errors import UsageError
from brimful.state.callers.tokens import (
    KINDS,
    TOKENS,
    CallerRecord,
    add_caller,
    change_caller,
    read_usage,
    revoke_caller,
    usage_field,
)
from brimful.state.keys import (
    caller_batches_key,
    caller_slots_keys,
    caller_starts_key,
    caller_tokens_keys,
    callers_key,
    callers_usage_key,
)
from brimful.state.redis_url import sync_redis_client
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.metrics import catalogue as metrics
from brimful_worker.serve.callers.registry import Registry
from brimful_worker.serve.callers.usage import Account, Usage
from brimful_worker.serve.refusals import Refusal
from brimful_worker.singles.pipeline import SharedPipeline
from support.commands import brimful, brimful_in_process
from support.doors import KEY, Door, door, door_process, until_active
from support.gateways import running_gateway
from support.waiting import wait_until_async


def add(valkey: Valkey, name: str = "ann") -> str:
    with sync_redis_client(valkey.url) as client:
        return add_caller(client, "", name)


def revoke(valkey: Valkey, name: str) -> None:
    with sync_redis_client(valkey.url) as client:
        revoke_caller(client, "", name)


@pytest.mark.parametrize("created", ["1e300", "-1", "1e999", '"soon"'])
def test_a_damaged_record_is_named_and_the_others_are_listed(valkey: Valkey, created: str) -> None:
    for name in ("ann", "bob"):
        add(valkey, name)
    with sync_redis_client(valkey.url) as client:
        record = json.loads(str(client.hget(callers_key(""), "ann")))
        damaged = json.dumps(record).replace(json.dumps(record["created"]), created)
        client.hset(callers_key(""), "ann", damaged)
    listed = brimful_in_process("serve", "token", "list", "--json", BRIMFUL_REDIS_URL=valkey.url)
    assert [json.loads(line)["name"] for line in listed.stdout.splitlines()] == ["bob"]
    assert "ann: its record was written by a later brimful, or is damaged" in listed.stderr
    changed = brimful_in_process("serve", "token", "set", "ann", "--weight", "2", BRIMFUL_REDIS_URL=valkey.url)
    assert changed.returncode == 2, changed.stderr
    assert "brimful serve token revoke ann" in changed.stderr
    assert brimful_in_process("serve", "token", "revoke", "ann", BRIMFUL_REDIS_URL=valkey.url).returncode == 0


async def status(here: Door, token: str | None, path: str = "/v1/models") -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with here.http.get(here.url.removesuffix("/v1") + path, headers=headers) as answer:
        return answer.status


async def until(here: Door, token: str | None, wanted: int) -> None:
    async def reached() -> bool:
        return await status(here, token) == wanted

    await wait_until_async(reached, f"a {wanted}")


async def test_tokens_are_in_force_at_all_front_doors(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with (
        running_gateway() as gateway,
        door(monkeypatch, valkey.url, gateway.url) as one,
        door(monkeypatch, valkey.url, gateway.url, clean=False) as two,
    ):
        assert await status(one, None) == await status(two, "any") == 200, "open on this machine without tokens"
        token = add(valkey)
        await asyncio.gather(until(one, None, 401), until(two, "any", 401))
        for here in (one, two):
            async with here.openai(api_key=token) as api:
                answer = await api.completions.create(model="llama-8b", prompt="a", max_tokens=2)
                assert answer.choices[0].text
            async with here.openai(api_key=token[:-1]) as api:
                with pytest.raises(openai.AuthenticationError) as raised:
                    await api.completions.create(model="llama-8b", prompt="a", max_tokens=2)
            assert raised.value.code == "invalid_api_key"
            assert raised.value.response.headers["www-authenticate"] == "Bearer"
            for path in ("/v1/models/llama-8b", "/v1/completions", "/nowhere", "/events", "/page/app.py"):
                assert await status(here, None, path) == 401
            assert await status(here, None, "/healthz") == 200
        assert gateway.request_log.statuses == {200: 2}
        other = add(valkey, "bob")
        await asyncio.gather(until(one, other, 200), until(two, other, 200))
        revoke(valkey, "ann")
        await asyncio.gather(until(one, token, 401), until(two, token, 401))
        assert await status(one, other) == 200
        revoke(valkey, "bob")
        await asyncio.gather(until(one, other, 401), until(two, other, 401))
        assert await status(one, None) == 401, "the last token's end opens nothing"
        await until(one, add(valkey, "cleo"), 200)
        with sync_redis_client(valkey.url) as client:
            client.flushall()
        await wait_until_async(lambda: one.front.callers.named("cleo") is None, "the emptied Redis to be noticed")
        assert await status(one, None) == 401
    assert ", caller ann" in caplog.text
    assert token not in caplog.text


def test_a_name_that_is_added_again_begins_at_zero(valkey: Valkey) -> None:
    with sync_redis_client(valkey.url) as client:
        add_caller(client, "", "ann")
        revoke_caller(client, "", "ann")
        client.hincrby(callers_usage_key(""), usage_field("ann", TOKENS), 7)  # of a request that was on the wire
        add_caller(client, "", "ann")
        assert not read_usage(client, "")
        client.hincrby(callers_usage_key(""), usage_field("ann", TOKENS), 7)
        with pytest.raises(UsageError, match="has a token already"):
            add_caller(client, "", "ann")
        assert read_usage(client, "")["ann"][TOKENS] == 7


async def test_the_provider_s_key_is_no_token(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        status, _, body = await here.post("completions", {"prompt": "a"}, Authorization=f"bearer {KEY}")
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert KEY not in json.dumps(body)
        assert not gateway.request_log.statuses


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /usage HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer canary\x01\r\n\r\n",
        b"GET /usage HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer canary" + b"y" * 10_000 + b"\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\ncanary\r\n",
    ],
    ids=["sign", "long", "chunk"],
)
async def test_damaged_requests_leave_no_text_in_the_log(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    async with door(monkeypatch, valkey.url, "http://127.0.0.1:1/v1") as here:
        address = here.url.split("/")[2].split(":")
        reader, writer = await asyncio.open_connection(address[0], int(address[1]))
        writer.write(sent)
        assert b" 400 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
    assert "Error handling request from 127.0.0.1" in caplog.text
    assert "canary" not in caplog.text


async def test_known_tokens_are_valid_for_a_while_without_redis(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        token = add(valkey)
        await until(here, token, 200)
        await until(here, None, 401)
        valkey.stop()
        registry = here.front.callers
        await wait_until_async(lambda: here.front.gate.reason is not None, "Redis to be missed")
        resolved = registry.resolve(token, KEY)
        assert resolved is not None
        assert resolved.name == "ann"
        monkeypatch.setattr("brimful_worker.serve.callers.registry.TRUSTED_S", 0.0)
        assert await status(here, token) == 503


async def test_a_record_of_a_later_version_admits_nobody(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    token = add(valkey)
    with sync_redis_client(valkey.url) as client:
        key = callers_key("")
        client.hset(key, "ann", json.dumps({**json.loads(str(client.hget(key, "ann"))), "version": 2}))
        client.hset(key, "bob", "no JSON")
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url, clean=False) as here:
        await until(here, token, 401)


def test_the_commands(valkey: Valkey, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BRIMFUL_REDIS_URL", valkey.url)

    def token(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        return run_command(["serve", "token", *arguments]), *capsys.readouterr()

    ended = brimful("serve", "token", "add", "ann", BRIMFUL_REDIS_URL=valkey.url)
    made = ended.stdout.split()[-1]
    assert (ended.returncode, len(made) > 40) == (0, True)
    with sync_redis_client(valkey.url) as client:
        assert made not in str(client.hgetall(callers_key("")))
    code, out, error = token("add", "ann")
    assert (code, out) == (2, "")
    assert "token revoke ann" in error
    assert token("add", "--", "-x y")[0] == 2
    assert json.loads(token("add", "bob", "--json")[1])["token"].startswith("brimful_")
    listed = [json.loads(line) for line in token("list", "--json")[1].splitlines()]
    assert [each["name"] for each in listed] == ["ann", "bob"]
    assert json.loads(token("set", "bob", "--budget-tokens", "5", "--json")[1])["budget_tokens"] == 5
    assert token("set", "bob")[0] == 2
    assert json.loads(token("set", "bob", "--weight", "2", "--json")[1])["budget_tokens"] == 5
    assert "0 of 5 tokens" in token("list")[1]
    limits = {"slots": 4, "tokens_per_minute": 900}
    assert token("add", "eve", "--slots", "4", "--tokens-per-minute", "700")[0] == 0
    shown = json.loads(token("set", "eve", "--tokens-per-minute", "900", "--json")[1])
    assert {name: shown[name] for name in limits} == limits
    assert "weight 1, 4 slots, 900 tokens a minute" in token("list")[1]
    assert token("revoke", "eve")[0] == 0
    assert token("set", "carl", "--budget-tokens", "5")[0] == 2
    assert token("revoke", "ann")[0] == 0
    assert token("list")[1].split()[0] == "bob"
    code, _, error = token("revoke", "ann")
    assert (code, "token list" in error) == (2, True)


async def test_with_a_token_it_listens_for_others(valkey: Valkey) -> None:
    async with running_gateway() as gateway:
        token = add(valkey)
        with door_process(valkey.url, gateway.url, host="0.0.0.0") as (url, _):
            assert url.startswith("http://0.0.0.0:")
            url = url.replace("0.0.0.0", "127.0.0.1")
            async with aiohttp.ClientSession() as http:

                async def answers(headers: dict[str, str]) -> int:
                    async with http.get(f"{url}/models", headers=headers) as answer:
                        return answer.status

                async def open() -> bool:
                    return await answers({"Authorization": f"Bearer {token}"}) == 200

                await wait_until_async(open, "the door to open")
                assert await answers({}) == 401
                with sync_redis_client(valkey.url) as client:
                    client.flushall()
                assert await answers({}) == 401


async def ask(here: Door, token: str, **more: Any) -> tuple[int, dict[str, str], Any]:
    """Always with the same id, which is the caller's to choose."""
    body = {"model": "llama-8b", "prompt": "The sky is", "max_tokens": 4, **more}
    return await here.post("completions", body, Authorization=f"Bearer {token}", X_Request_Id="mine")


async def usage(here: Door, token: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    async with here.http.get(here.url.removesuffix("v1") + "usage", headers=headers) as answer:
        assert answer.status == 200
        found: dict[str, Any] = await answer.json()
        return found


async def test_a_caller_over_its_budget_gets_429_and_the_others_do_not_notice(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    with sync_redis_client(valkey.url) as client:
        poor, rich = add_caller(client, "", "poor", budget_tokens=40), add_caller(client, "", "rich")
    async with (
        running_gateway() as gateway,
        door(monkeypatch, valkey.url, gateway.url) as one,
        door(monkeypatch, valkey.url, gateway.url, clean=False) as two,
    ):
        await asyncio.gather(until(one, poor, 200), until(two, poor, 200), until(one, None, 401), until(two, None, 401))
        answers = [await ask(one, poor) for _ in range(20)]
        passed = [body["usage"]["total_tokens"] for status, _, body in answers if status == 200]
        assert 0 < len(passed) < 20
        assert sum(passed) <= 40
        assert [answer[0] for answer in answers] == [200] * len(passed) + [429] * (20 - len(passed))
        _, headers, body = answers[-1]
        assert body["error"]["code"] == "insufficient_quota"
        assert "budget of caller poor" in body["error"]["message"]
        assert headers["x-should-retry"] == "false"
        assert all(status == 200 for status, _, _ in [await ask(one, rich) for _ in range(3)])

        async def elsewhere() -> bool:
            return (await ask(two, poor))[0] == 429

        await wait_until_async(elsewhere, "the other front door to know it")
        streamed, _, body = await ask(two, poor, stream=True)
        assert (streamed, body["error"]["code"]) == (429, "insufficient_quota")
        seen = await usage(two, poor)
        assert seen["caller"] == "poor"
        assert seen["budget_tokens"] == 40
        assert seen["requests"] >= len(passed)
        with sync_redis_client(valkey.url) as client:
            change_caller(client, "", "poor", budget_tokens=0)

        async def again() -> bool:
            return (await ask(one, poor))[0] == 200

        await wait_until_async(again, "the new budget")

        async def counted() -> bool:
            with sync_redis_client(valkey.url) as client:
                return read_usage(client, "").get("rich", {}).get("requests") == 3

        await wait_until_async(counted, "the counts in Redis")
        assert (await usage(one, rich))["tokens"] > 0


async def test_what_requests_under_way_may_use_is_held(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    with sync_redis_client(valkey.url) as client:
        token = add_caller(client, "", "ann", budget_tokens=100)
    async with (
        running_gateway(per_token_s=0.5) as gateway,
        door(monkeypatch, valkey.url, gateway.url) as here,
    ):
        await until(here, None, 401)
        going = asyncio.create_task(ask(here, token, max_tokens=80))
        await until_active(gateway, 1)
        status, headers, body = await ask(here, token, max_tokens=80)
        assert (status, headers.get("Retry-After")) == (429, "1"), "the other may use less"
        assert "held by requests and batches under way" in body["error"]["message"]
        going.cancel()
        await wait_until_async(lambda: gateway.slots.active == 0, "the caller's going to be noticed")

        async def charged() -> bool:
            return (await usage(here, token))["tokens"] >= 80

        await wait_until_async(charged, "what it may have used to be charged")


async def test_the_last_counts_are_written_at_the_end(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    monkeypatch.setattr(Registry, "every_s", 3600.0)
    token = add(valkey)
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        assert (await ask(here, token))[0] == 200
    with sync_redis_client(valkey.url) as client:
        assert read_usage(client, "")["ann"]["requests"] == 1


async def test_a_count_that_redis_refuses_holds_up_no_other(valkey: Valkey, caplog: pytest.LogCaptureFixture) -> None:
    """It counts on in this process: a budget that cannot be counted is not overspent."""
    usage, pipeline = Usage(""), SharedPipeline(valkey.url, "usage")
    ann, bob = (CallerRecord(name, name, 0.0, budget_tokens=1000) for name in ("ann", "bob"))
    key, damaged = callers_usage_key(""), usage_field("ann", TOKENS)
    pipeline.start()
    try:
        with sync_redis_client(valkey.url) as client:
            client.hset(key, damaged, "no number")
            client.hset(caller_batches_key(""), mapping={"bob batch_1": "100 99", "bob batch_2": "no hold"})
            for _ in range(2):
                for caller in (ann, bob):
                    with suppress(Refusal), usage.request(caller, 100, account := Account()):
                        account.sent = True
                await usage.exchange(pipeline, ["ann", "bob"], 50.0)
            assert read_usage_of(client, "bob") == {"requests": 2, "tokens": 200, "waited_ms": 0}
            used = read_usage(client, "")  # for `serve token list`
            assert (used["ann"]["tokens"], used["bob"]["tokens"]) == (2**63 - 1, 200)
            usage.check(bob, 700)
            for caller, hold in ((bob, 701), (ann, 0)):
                with pytest.raises(Refusal, match="budget of caller"):
                    usage.check(caller, hold)
            assert len([text for text in caplog.messages if "the tokens of caller ann" in text]) == 1
            client.hdel(key, damaged)
            await usage.exchange(pipeline, ["ann", "bob"], 50.0)
            assert read_usage(client, "")["ann"]["tokens"] == 100, "what it had used meanwhile"
            usage.check(ann, 900)
    finally:
        await pipeline.aclose()


def read_usage_of(client: redis.Redis, name: str) -> dict[str, int]:
    found = ((kind, client.hget(callers_usage_key(""), usage_field(name, kind))) for kind in KINDS)
    return {kind: int(str(value or 0)) for kind, value in found}


async def test_each_caller_has_series_in_the_metrics(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, request: pytest.FixtureRequest
) -> None:
    for index in range(100):
        add(valkey, f"c{index:03}")
    token = add(valkey, "zoe")
    port = metrics.serve(0, key_tag="k")
    request.addfinalizer(metrics.stop)
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        await until(here, None, 401)
        assert (await ask(here, token))[0] == 200
        async with here.http.get(f"http://127.0.0.1:{port}/metrics") as answer:
            lines = (await answer.text()).splitlines()
    counts = [line for line in lines if line.startswith("brimful_caller_requests_total{")]
    assert len(counts) == 100 + 1
    assert 'brimful_caller_requests_total{caller="(others)",key="k"} 1.0' in counts
    assert 'brimful_caller_requests_total{caller="c000",key="k"} 0.0' in counts


async def test_requests_a_minute_are_limited_over_all_front_doors(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    with sync_redis_client(valkey.url) as client:
        slow, other = add_caller(client, "", "slow", starts=5), add_caller(client, "", "other")
    async with (
        running_gateway() as gateway,
        door(monkeypatch, valkey.url, gateway.url) as one,
        door(monkeypatch, valkey.url, gateway.url, clean=False) as two,
    ):
        await asyncio.gather(until(one, None, 401), until(two, None, 401))
        answers = await asyncio.gather(*(ask(here, slow) for here in (one, two) for _ in range(6)))
        assert sorted(answer[0] for answer in answers) == [200] * 5 + [429] * 7
        refused = next(answer for answer in answers if answer[0] == 429)
        assert refused[2]["error"]["code"] == "rate_limit_exceeded"
        assert 0 < int(refused[1]["Retry-After"]) <= 60
        assert (await ask(two, other))[0] == 200
        with sync_redis_client(valkey.url) as client:
            key = caller_starts_key("", "slow")
            ids = client.zrange(key, 0, -1)
            client.zincrby(key, -70_000, ids[0])  # a minute passes for one of them
            assert (await ask(one, slow))[0] == 200
            assert (await ask(one, slow))[0] == 429
            change_caller(client, "", "slow", starts=0)

        async def free() -> bool:
            return (await ask(one, slow))[0] == 200

        await wait_until_async(free, "the limit to be gone")


async def test_tokens_a_minute_are_limited_over_all_front_doors(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    with sync_redis_client(valkey.url) as client:
        token = add_caller(client, "", "ann", tokens_per_minute=100)
        async with (
            running_gateway() as gateway,
            door(monkeypatch, valkey.url, gateway.url) as one,
            door(monkeypatch, valkey.url, gateway.url, clean=False) as two,
        ):
            await asyncio.gather(until(one, None, 401), until(two, None, 401))
            status, headers, body = await ask(one, token, max_tokens=1000)
            assert (status, headers["x-should-retry"], "Retry-After" in headers) == (429, "false", False)
            assert "lower max_tokens" in body["error"]["message"]
            answers = await asyncio.gather(*(ask(here, token, max_tokens=30) for here in (one, two) for _ in range(4)))
            passed = [body for status, _, body in answers if status == 200]
            assert 1 <= len(passed) <= 3, "each may use more than 30"
            refused = next(answer for answer in answers if answer[0] == 429)
            assert refused[2]["error"]["code"] == "rate_limit_exceeded"
            assert "100 tokens a minute" in refused[2]["error"]["message"]
            assert 0 < int(refused[1]["Retry-After"]) <= 60
            used = sum(body["usage"]["total_tokens"] for body in passed)
            times, amounts = caller_tokens_keys("", "ann")
            await wait_until_async(lambda: client.hget(amounts, "sum") == str(used), "what was used to be counted")
            for id in client.zrange(times, 0, -1):
                client.zincrby(times, -70_000, id)  # a minute passes
            assert (await ask(one, token, max_tokens=60))[0] == 200
            assert int(str(client.hget(amounts, "sum"))) < 100


async def test_a_caller_s_requests_at_once_are_limited_over_all_front_doors(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    with sync_redis_client(valkey.url) as client:
        few, other = add_caller(client, "", "few", slots=3), add_caller(client, "", "other")
        async with (
            running_gateway(latency_s=0.2) as gateway,
            door(monkeypatch, valkey.url, gateway.url) as one,
            door(monkeypatch, valkey.url, gateway.url, clean=False) as two,
        ):
            await asyncio.gather(until(one, None, 401), until(two, None, 401))
            asking = [asyncio.create_task(ask(here, few)) for _ in range(6) for here in (one, two)]
            await until_active(gateway, 3)
            gone = asyncio.create_task(ask(two, few))
            assert (await ask(one, other))[0] == 200
            assert not all(task.done() for task in asking), "the others do not wait for it"
            gone.cancel()
            answers = await asyncio.gather(*asking)
            assert [answer[0] for answer in answers] == [200] * 12
            assert gateway.slots.peak_active <= 4
            held, waiting, _ = caller_slots_keys("", "few")
            await wait_until_async(lambda: not client.exists(held, waiting), "all to be free again")


async def test_the_slots_of_a_front_door_that_dies_are_free_after_a_lease(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    with sync_redis_client(valkey.url) as client:
        token = add_caller(client, "", "ann", slots=1)
        held, waiting, doors = caller_slots_keys("", "ann")
        clock: Any = client.time()
        now = int(clock[0]) * 1000
        client.zadd(held, {"dead.1": now + 2_500})
        client.zadd(waiting, {"dead.2": now - 1})
        client.zadd(doors, {"dead": now + 2_000})
        async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
            await until(here, None, 401)
            assert (await ask(here, token))[0] == 200
            assert client.zscore(held, "dead.1") is None
            assert client.zscore(waiting, "dead.2") is None


async def test_a_limit_that_is_raised_lets_those_that_wait_go(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    with sync_redis_client(valkey.url) as client:
        token = add_caller(client, "", "ann", slots=1)
        async with (
            running_gateway(per_token_s=30.0) as gateway,
            door(monkeypatch, valkey.url, gateway.url) as here,
        ):
            await until(here, None, 401)
            asking = [asyncio.create_task(ask(here, token)) for _ in range(7)]
            await until_active(gateway, 1)
            change_caller(client, "", "ann", slots=3)
            await until_active(gateway, 3)
            change_caller(client, "", "ann", slots=0)
            await until_active(gateway, 7)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            await until_active(gateway, 0)
