"""The front door's callers: who is let in, at all front doors, and who is not."""

from __future__ import annotations

import asyncio
import json
import logging

import aiohttp
import openai
import pytest

from brimful.cli.commands import run_command
from brimful.state.callers.tokens import add_caller, revoke_caller
from brimful.state.keys import callers_key
from brimful.state.redis_url import sync_redis_client
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.serve.callers.registry import TRUSTED_S
from support.commands import brimful
from support.doors import KEY, Door, door, door_process
from support.gateways import running_gateway
from support.waiting import wait_until_async


def add(valkey: Valkey, name: str = "ann") -> str:
    with sync_redis_client(valkey.url) as client:
        return add_caller(client, "", name)


def revoke(valkey: Valkey, name: str) -> None:
    with sync_redis_client(valkey.url) as client:
        revoke_caller(client, "", name)


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
            for path in ("/v1/models/llama-8b", "/v1/completions", "/nowhere", "/"):
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
        with sync_redis_client(valkey.url) as client:
            client.flushall()
        await wait_until_async(lambda: one.front.callers._revision is None, "the emptied Redis to be noticed")
        assert await status(one, None) == 401
    assert ", caller ann" in caplog.text
    assert token not in caplog.text


async def test_the_provider_s_key_is_no_token(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        status, _, body = await here.post("completions", {"prompt": "a"}, Authorization=f"bearer {KEY}")
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert KEY not in json.dumps(body)
        assert not gateway.request_log.statuses


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
        assert registry._read_at is not None
        registry._read_at -= TRUSTED_S
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
