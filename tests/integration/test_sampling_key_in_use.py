"""The key's file is followed in one process: a new key gets an admission of its own, and the old one's leases end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from brimful.config import Settings
from brimful.state.redis_url import sync_redis_client
from brimful.state.status import read_status
from brimful_worker.admission import Retired
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.provider import Provider
from brimful_worker.provider.answers.answer import TransportError
from brimful_worker.sampling.key_in_use import KeyInUse
from support.admissions import Holding
from support.fleets import declare_new
from support.gateways import running_gateway
from support.waiting import wait_until_async

ONE, TWO = "sk-one-31c9", "sk-two-77d0"


@asynccontextmanager
async def following(
    monkeypatch: pytest.MonkeyPatch, valkey: Valkey, file: Path | None, url: str = "http://127.0.0.1:1/v1"
) -> AsyncIterator[tuple[KeyInUse, asyncio.Task[None], list[str]]]:
    """A key in use that follows its file, and the keys that replaced it."""
    for key in (ONE, TWO):
        declare_new(valkey, key)
    monkeypatch.setenv("ACS_API_BASE", url)
    monkeypatch.setenv(*(("ACS_API_KEY", ONE) if file is None else ("ACS_API_KEY_FILE", str(file))))
    monkeypatch.setenv("BRIMFUL_REDIS_URL", valkey.url)
    in_use, replaced = KeyInUse(Settings.load(), "one@test", 4), list[str]()
    await in_use.open()
    await in_use.admission.start()
    follow = asyncio.create_task(in_use.follow(lambda: replaced.append(in_use.settings.api_key.get_secret_value())))
    try:
        yield in_use, follow, replaced
    finally:
        follow.cancel()
        with suppress(asyncio.CancelledError):
            await follow
        await in_use.leave()
        await in_use.close()


def put(file: Path, key: str) -> None:
    """Another content at once, as Kubernetes does it: a reader never sees half of it."""
    (new := file.with_name("new")).write_text(key)
    new.rename(file)


def workers(valkey: Valkey, settings: Settings) -> int:
    """How many are in the fleet of the settings' key."""
    with sync_redis_client(valkey.url) as client:
        return len(read_status(client, settings.key_tag).workers)


async def is_closed(session: Provider) -> bool:
    return isinstance(await session.models(), TransportError)


async def test_a_replaced_key_is_left_once_its_requests_have_ended(
    valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    put(file, ONE)
    async with (
        running_gateway() as gateway,
        following(monkeypatch, valkey, file, gateway.url) as (in_use, _, replaced),
    ):
        first, session, old = in_use.admission, in_use.provider, in_use.settings
        holding = Holding(first)
        await asyncio.wait_for(holding.granted.wait(), 60)
        put(file, TWO)
        in_use.reread.set()
        await wait_until_async(lambda: replaced == [TWO], "the new key", 60)
        assert in_use.admission is not first
        assert in_use.provider is not session
        assert not in_use.reread.is_set()
        async with in_use.admission.slot() as lease:
            lease.give_back()
        with pytest.raises(Retired):
            async with first.slot():
                pass
        assert first.held == 1, "what is on the wire goes on"
        both = (first, in_use.admission)
        earlier = min(each.stall_limit_s for each in both)
        assert earlier >= in_use.stall_limit_s >= min(each.stall_limit_s for each in both)
        await holding.end()
        await wait_until_async(lambda: workers(valkey, old) == 0, "the first key's admission to be closed", 60)
        assert workers(valkey, in_use.settings) == 1
        await wait_until_async(lambda: is_closed(session), "its session to be closed", 60)
        assert not await is_closed(in_use.provider)
        await wait_until_async(lambda: in_use.stall_limit_s > first.stall_limit_s, "the old one to be forgotten", 60)


async def test_leaving_ends_a_replaced_key_whose_requests_are_on_the_wire(
    valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    put(file, ONE)
    async with following(monkeypatch, valkey, file) as (in_use, follow, replaced):
        old = in_use.settings
        holding = Holding(in_use.admission)
        await asyncio.wait_for(holding.granted.wait(), 60)
        put(file, TWO)
        in_use.reread.set()
        await wait_until_async(lambda: replaced == [TWO], "the new key", 60)
        leaving = [asyncio.create_task(in_use.leave()) for _ in range(2)]
        await asyncio.gather(*leaving)
        assert workers(valkey, old) == workers(valkey, in_use.settings) == 0
        assert {asyncio.current_task(), follow, holding.task} >= asyncio.all_tasks(), "nothing of it runs on"
        await holding.cancel()


async def test_a_file_that_holds_no_key_is_reported_once_and_the_key_kept(
    valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "key"
    put(file, ONE)
    async with following(monkeypatch, valkey, file) as (in_use, follow, replaced):
        first = in_use.admission

        async def look() -> None:
            in_use.reread.set()
            await wait_until_async(lambda: not in_use.reread.is_set(), "it to be read", 60)

        def reported() -> list[str]:
            return [message for message in caplog.messages if "the key in use is kept" in message]

        put(file, "")
        for _ in range(3):
            await look()
        await wait_until_async(reported, "the report", 60)
        put(file, "sk\tx")
        await look()
        await wait_until_async(lambda: len(reported()) == 2, "another report", 60)
        put(file, ONE)
        for _ in range(2):
            await look()
        put(file, "")
        await look()
        await wait_until_async(lambda: len(reported()) == 3, "a report after it was well", 60)
        assert (in_use.admission, replaced, follow.done()) == (first, [], False)


async def test_a_key_from_no_file_is_not_followed(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(monkeypatch, valkey, None) as (in_use, follow, _):
        await asyncio.wait_for(follow, 60)
        assert in_use.stall_limit_s == pytest.approx(in_use.admission.stall_limit_s, abs=1)


async def test_nothing_is_sent_through_a_closed_session(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_gateway() as gateway, following(monkeypatch, valkey, None, gateway.url) as (in_use, follow, _):
        await follow
        assert not await is_closed(in_use.provider)
        await in_use.close()
        assert await is_closed(in_use.provider)
