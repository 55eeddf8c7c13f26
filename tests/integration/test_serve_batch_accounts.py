"""What a batch has used is charged to its caller once, however its front door ends, and held back until then."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brimful.runtime.aio import cancel_and_wait
from brimful.state.callers.tokens import REVISION, add_caller, change_caller, read_usage, revoke_caller
from brimful.state.keys import caller_batches_key, caller_starts_key, caller_tokens_keys, callers_key
from brimful.state.redis_url import sync_redis_client
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.serve.batches import drive, store
from brimful_worker.serve.batches.batch_pace import BatchPace
from brimful_worker.serve.batches.record import Batch
from brimful_worker.serve.batches.run_files import RunFiles
from brimful_worker.serve.batches.scheduler import BatchScheduler
from brimful_worker.serve.batches.store import Batches
from brimful_worker.serve.callers.batch_accounts import BatchAccounts
from brimful_worker.serve.callers.clock import CallersClock
from brimful_worker.serve.callers.minute import Minutes
from brimful_worker.serve.callers.registry import Registry
from brimful_worker.serve.callers.usage import Usage
from brimful_worker.singles.pipeline import SharedPipeline
from support.doors import Door, door
from support.gateways import running_gateway
from support.waiting import wait_until_async

NOWHERE = "http://127.0.0.1:1/v1"
REQUESTS, TOKENS = 3, 21


def finished_run(data: Path) -> Batch:
    """A batch of ann's whose run has ended, as a front door leaves it that dies then."""
    batches, upload = Batches(data / "batches", 3600), data / "upload"
    upload.write_bytes(b"{}\n")
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    batch = batches.create(
        Batch(
            id=store.new_id(),
            caller="ann",
            endpoint="/v1/completions",
            input_file_id="file-1",
            completion_window="24h",
            created=0,
            expires_at=2**40,
            output_keep_s=3600,
            status="finalizing",
            ending="completed",
            hold=100,
            held=True,
            total=REQUESTS,
        ),
        upload,
    )
    with RunFiles(batches.of_batch(batch.id)).output.open("w") as file:
        for number in range(REQUESTS):
            response = {"status_code": 200, "request_id": "", "body": {"usage": usage}}
            file.write(json.dumps({"id": "", "custom_id": f"c{number}", "response": response, "error": None}) + "\n")
    return batch


def charged(client: Any) -> dict[str, int]:
    return read_usage(client, "").get("ann", {})


async def until_over(here: Door, batch: Batch) -> None:
    def over() -> bool:
        found = here.front.batches.load(batch.id)
        return found is not None and found.status == "completed"

    await wait_until_async(over, "the batch to end", 60)


async def is_closed(here: Door) -> bool:
    """It takes no connection any more: the next that it ends is its work."""
    port = int(here.url.split("/")[2].split(":")[1])
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True
    writer.close()
    return False


async def test_a_front_door_that_stops_while_a_batch_finishes_leaves_it_to_be_charged(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, tmp_path: Path
) -> None:
    """What a thread does at the disk goes on when its task is cancelled, as SIGTERM does."""
    publish, begun, go_on = drive.publish, asyncio.Event(), threading.Event()
    loop, doors = asyncio.get_running_loop(), AsyncExitStack()

    def slowly(*arguments: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(60)
        publish(*arguments)

    monkeypatch.setattr(drive, "publish", slowly)
    with sync_redis_client(valkey.url) as client:
        add_caller(client, "", "ann", budget_tokens=1000)
        batch = finished_run(tmp_path)
        client.hset(caller_batches_key(""), f"ann {batch.id}", f"100 {2**40}")
        async with doors:
            one = await doors.enter_async_context(door(monkeypatch, valkey.url, NOWHERE, serve_data=tmp_path))
            await asyncio.wait_for(begun.wait(), 60)
            closing = asyncio.create_task(doors.aclose())
            await wait_until_async(lambda: is_closed(one), "the door to be closed")
            go_on.set()
            await closing
        found = Batches(tmp_path / "batches", 3600).load(batch.id)
        assert found is not None
        assert found.status != "completed" or charged(client), "it has ended, and is not charged"
        async with door(monkeypatch, valkey.url, NOWHERE, clean=False, serve_data=tmp_path) as here:
            await until_over(here, batch)
            assert (charged(client)["requests"], charged(client)["tokens"]) == (REQUESTS, TOKENS)
            assert not client.exists(caller_batches_key(""))


async def test_a_batch_that_is_finished_again_is_charged_once(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, tmp_path: Path
) -> None:
    store, tried = Batches.store, 0

    def fails_once(self: Batches, batch: Batch) -> None:
        nonlocal tried
        tried += batch.over
        if batch.over and tried == 1:
            raise OSError("no room on this disk")
        store(self, batch)

    monkeypatch.setattr(Batches, "store", fails_once)
    monkeypatch.setattr(BatchScheduler, "again_s", 0.0)
    with sync_redis_client(valkey.url) as client:
        add_caller(client, "", "ann")
        batch = finished_run(tmp_path)
        async with door(monkeypatch, valkey.url, NOWHERE, serve_data=tmp_path) as here:
            await until_over(here, batch)
    with sync_redis_client(valkey.url) as client:
        assert tried == 2
        assert (charged(client)["requests"], charged(client)["tokens"]) == (REQUESTS, TOKENS)


async def test_a_batch_waits_for_redis_to_be_charged(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, tmp_path: Path
) -> None:
    """And is not over before: what it has used would be nobody's."""
    publish, published = drive.publish, asyncio.Event()
    loop = asyncio.get_running_loop()
    with sync_redis_client(valkey.url) as client:
        add_caller(client, "", "ann")

        def without_redis(*arguments: Any) -> None:
            client.client_pause(60_000, all=False)
            publish(*arguments)
            loop.call_soon_threadsafe(published.set)

        monkeypatch.setattr(drive, "publish", without_redis)
        batch = finished_run(tmp_path)
        async with door(monkeypatch, valkey.url, NOWHERE, serve_data=tmp_path) as here:
            await asyncio.wait_for(published.wait(), 60)
            found = here.front.batches.load(batch.id)
            assert found is not None
            assert found.status == "finalizing"
            client.client_unpause()
            await until_over(here, batch)
            assert charged(client)["tokens"] == TOKENS


async def test_a_revoked_caller_s_batch_is_charged_to_nobody(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, tmp_path: Path
) -> None:
    with sync_redis_client(valkey.url) as client:
        add_caller(client, "", "ann")
        revoke_caller(client, "", "ann")
        batch = finished_run(tmp_path)
        client.hset(caller_batches_key(""), f"ann {batch.id}", f"100 {2**40}")
        async with door(monkeypatch, valkey.url, NOWHERE, serve_data=tmp_path) as here:
            await until_over(here, batch)
        assert not charged(client)
        assert not client.exists(caller_batches_key(""))


async def test_lines_are_let_in_as_the_caller_s_minute_allows(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, tmp_path: Path
) -> None:
    """Those that were let in once are not counted again, whichever front door goes on."""
    monkeypatch.setattr(Registry, "every_s", 0.05)
    batch = finished_run(tmp_path).model_copy(update={"total": 30})
    run = RunFiles(tmp_path)
    with run.input.open("w") as file:
        for number in range(batch.total):
            file.write(json.dumps({"custom_id": str(number), "body": {"prompt": "a", "max_tokens": 2}}) + "\n")
    pipeline, clock, usage = SharedPipeline(valkey.url, "pace"), CallersClock(""), Usage("")
    registry = Registry("", usage, clock, required=False)
    accounts = BatchAccounts("", registry, usage, Minutes("", clock), clock, lambda: pipeline)
    pipeline.start()
    watching = asyncio.create_task(registry.watch(pipeline))
    key = caller_starts_key("", "ann")

    async def until_known(starts: int | None) -> None:
        def known() -> bool:
            found = registry.named("ann")
            return (None if found is None else found.starts) == starts

        await wait_until_async(known, f"the caller's limit to be {starts}")

    @asynccontextmanager
    async def letting_in(lines: int) -> AsyncIterator[None]:
        pace = BatchPace(batch, run, accounts)
        assert await pace.begin()
        pacing = asyncio.create_task(pace.run())
        await wait_until_async(lambda: run.pace.read_text() == f"{lines}\n", f"{lines} lines", 60)
        assert client.zcard(key) == lines
        yield
        await cancel_and_wait([pacing])

    def scripts() -> int:
        found: Any = client.info("commandstats")
        return int(found["cmdstat_evalsha"]["calls"])

    try:
        with sync_redis_client(valkey.url) as client:
            add_caller(client, "", "ann", starts=20)
            async with letting_in(18):
                change_caller(client, "", "ann", starts=24)
                await until_known(24)
            async with letting_in(22):
                client.hdel(callers_key(""), "ann")
                client.hincrby(callers_key(""), REVISION, 1)
                await until_known(None)
                before = scripts()
                await wait_until_async(lambda: scripts() > before, "the next lines to be counted")
                assert client.zcard(key) == 22, "the limit of a caller that is gone holds on"
            add_caller(client, "", "ann")
            await until_known(0)
            assert not await BatchPace(batch, run, accounts).begin(), "a caller without limits"
    finally:
        await cancel_and_wait([watching])
        await pipeline.aclose()


async def test_a_caller_that_goes_away_while_it_is_counted_leaves_no_tokens_behind(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey
) -> None:
    monkeypatch.setattr(Registry, "every_s", 3600.0)
    with sync_redis_client(valkey.url) as client:
        token = add_caller(client, "", "ann", tokens_per_minute=1000)
        async with running_gateway() as gateway, door(monkeypatch, valkey.url, gateway.url) as here:
            await wait_until_async(lambda: here.front.callers.named("ann"), "the caller to be known")
            client.client_pause(60_000, all=False)
            body = {"model": "llama-8b", "prompt": "The sky is", "max_tokens": 400}
            asking = asyncio.create_task(here.post("completions", body, Authorization=f"Bearer {token}"))
            await wait_until_async(lambda: here.front.gate.turns, "the request to be counted")
            asking.cancel()
            await wait_until_async(lambda: not here.front.gate.turns, "its end to be noticed")
            client.client_unpause()
            counted = caller_tokens_keys("", "ann")[1]
            await wait_until_async(lambda: client.hget(counted, "sum") == "0", "its tokens to be free again")
            assert not gateway.request_log.statuses
