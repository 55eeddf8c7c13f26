"""The page's figures over a real socket: those of ``brimful status``, one reader for all who look, and who may look."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest

from brimful.state.callers.tokens import add_caller, revoke_caller
from brimful.state.keys import RUNS, entry_key, run_key, weights_key
from brimful.state.redis_url import sync_redis_client
from brimful.state.status import read_status
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.serve.page import feed
from support.doors import Door, door, until_active
from support.gateways import running_gateway

PROMPT = "a canary prompt of nobody's"


async def events(here: Door, **headers: str) -> AsyncGenerator[tuple[str, Any]]:
    """Name and data of each event, until the server ends them. It raises ClientResponseError if it is refused."""
    url = here.url.removesuffix("v1") + "events"
    async with here.http.get(url, headers=headers, timeout=aiohttp.ClientTimeout(total=120)) as answer:
        answer.raise_for_status()
        with contextlib.suppress(aiohttp.ClientPayloadError):
            while raw := await answer.content.readuntil(b"\n\n"):
                assert PROMPT.encode() not in raw
                name, data = raw.decode().rstrip().split("\n")
                yield name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def seen(here: Door, wanted: Any, **headers: str) -> dict[str, Any]:
    """The first ``now`` for which ``wanted`` holds."""
    async with asyncio.timeout(60), contextlib.aclosing(events(here, **headers)) as found:
        async for name, data in found:
            if name == "now" and data["fleet"] is not None and wanted(data):
                return dict(data)
    raise AssertionError("the events ended")


async def test_it_shows_what_status_shows_and_who_waits(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with (
        running_gateway(latency_s=600) as gateway,
        door(monkeypatch, valkey.url, gateway.url, slots=2, timeout_s=500) as here,
    ):
        asked = [asyncio.create_task(here.complete(PROMPT)) for _ in range(3)]
        asked += [asyncio.create_task(here.post("completions", BODY, X_Acs_Workload="batch")) for _ in range(2)]
        await until_active(gateway, 2)
        assert (await here.complete(PROMPT, n=0))[0] == 400
        with sync_redis_client(valkey.url) as client:
            seconds = client.time()[0]
            client.zadd(weights_key(""), {"2.5 r-now": seconds + 1000, "1 r-over": seconds - 60})
            client.zadd(run_key("r-now", "shards"), {"a": 1, "b": 2})
            # a held run states no weight
            client.hset(
                entry_key("r-held"), mapping={"state": "held", "said": seconds, "total": 9, "done": 4, "failed": 1}
            )
            client.zadd(RUNS, {"r-held": seconds + 1000})
            client.hset(entry_key("other.r"), mapping={"state": "running", "said": seconds})
            client.zadd(RUNS, {"other.r": seconds + 1000})
            now = await seen(here, lambda data: sum(data["fleet"]["waiting"].values()) == 3)
            status = read_status(client, here.front.process.key.settings.key_tag).to_dict()
        fleet, own = now["fleet"], now["door"]
        for name in (
            "tag",
            "slots",
            "slots_used",
            "starts",
            "starts_used",
            "window_s",
            "waiting",
            "pause_s",
            "epoch",
            "limits",
        ):
            assert fleet[name] == status[name], name
        assert (fleet["slots_used"], fleet["starts_used"], fleet["starts"]) == (2, 2, 600)
        assert [worker["name"] for worker in fleet["workers"]] == [here.front.name]
        nothing = {"state": None, "total": None, "done": None, "failed": None, "rate": None}
        held = {"state": "held", "total": 9, "done": 4, "failed": 1, "rate": 0.0}
        assert fleet["runs"] == [
            {"run": "r-held", "weight": 1.0, "shards": 0, **held},
            {"run": "r-now", "weight": 2.5, "shards": 2, **nothing},
        ]
        (caller,) = own["callers"]
        waiting = {name: caller[name] for name in ("interactive", "batch", "sending", "failed")}
        assert {name: caller[name] for name in ("interactive", "batch")} == fleet["waiting"]
        assert (waiting["sending"], waiting["failed"]) == (2, 1)
        assert [(each["status"], each["caller"]) for each in own["failures"]] == [(400, "")]
        assert dict(zip(feed.POINT, now["point"], strict=True))["slots"] == 2
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_a_batch_names_its_run_so_that_the_page_shows_it_once(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    async with (
        running_gateway() as gateway,
        door(monkeypatch, valkey.url, gateway.url) as here,
        here.openai() as api,
    ):
        line = {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": BODY}
        file = await api.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
        made = await api.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        now = await seen(here, lambda data: data["fleet"]["runs"])  # it waits, since there are no workers
        (run,), (batch,) = now["fleet"]["runs"], now["door"]["batches"]
        assert (batch["id"], batch["run"], batch["status"]) == (made.id, run["run"], "in_progress")


BODY = {"model": "llama-8b", "prompt": PROMPT, "max_tokens": 4}


async def test_one_reader_for_all_who_look_and_a_history_for_who_comes_later(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        status, _, answer = await here.complete(PROMPT)
        assert status == 200

        async def look() -> list[float]:
            times: list[float] = []
            async with contextlib.aclosing(events(here)) as found:
                async for name, data in found:
                    times += [data["at"]] if name == "now" else []
                    if len(times) == 4:
                        break
            return times

        views = await asyncio.gather(*(look() for _ in range(5)))
        assert len({at for view in views for at in view}) <= 12, "read once for all; 20 if each read its own"
        async with contextlib.aclosing(events(here)) as found:
            name, history = await anext(found)
        assert name == "history"
        points = [dict(zip(history["names"], point, strict=True)) for point in history["points"]]
        assert len(points) >= 3
        assert (points[-1]["answered"], points[-1]["spent"]) == (1, answer["usage"]["total_tokens"])
        assert sorted(point["at"] for point in points) == [point["at"] for point in points]


async def test_tokens_keep_the_figures_but_not_the_page(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        root = here.url.removesuffix("v1")
        with pytest.raises(aiohttp.ClientResponseError) as raised:
            await seen(here, lambda data: True, Host="rebound.example.org")
        assert raised.value.status == 403
        with sync_redis_client(valkey.url) as client:
            token = add_caller(client, "", "ada")
        while True:  # until it is in force
            async with here.http.get(f"{root}events") as answer:
                if answer.status == 401:
                    break
                assert (await answer.content.readline()).startswith(b"event: ")
        for path in ("", "page/app.js", "page/style.css"):
            async with here.http.get(root + path) as answer:
                assert answer.status == 200
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        bearer = {"Authorization": f"Bearer {token}"}
        async with asyncio.timeout(60), contextlib.aclosing(events(here, **bearer)) as found:
            assert (await anext(found))[0] == "history"
            with sync_redis_client(valkey.url) as client:
                revoke_caller(client, "", "ada")
            async for _ in found:  # ends: the token is revoked
                pass


async def test_the_events_are_no_answer_to_head(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with (
        running_gateway() as gateway,
        door(monkeypatch, valkey.url, gateway.url) as here,
        here.http.head(here.url.removesuffix("v1") + "events") as answer,
    ):
        assert (answer.status, answer.headers["Allow"]) == (405, "GET")


async def test_pages_that_are_open_do_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with running_gateway() as gateway:
        async with door(monkeypatch, valkey.url, gateway.url) as here, asyncio.timeout(60):
            http = aiohttp.ClientSession()
            answer = await http.get(here.url.removesuffix("v1") + "events")
            assert await answer.content.readuntil(b"\n\n")
        assert not here.front.feed.viewers
        await http.close()


async def test_without_redis_it_says_so(monkeypatch: pytest.MonkeyPatch, valkey: Valkey) -> None:
    async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
        await seen(here, lambda data: True)
        valkey.stop()
        async with asyncio.timeout(60), contextlib.aclosing(events(here)) as found:
            async for name, data in found:
                if name == "now" and data["fleet"] is None:
                    break
            else:
                raise AssertionError("the events ended")
