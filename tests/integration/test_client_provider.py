"""Workers say what the provider is; clients with other settings, or none, follow."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful import AsyncFleet, Fleet
from brimful.config import Settings
from brimful.profile.prices import Price
from brimful.state.keys import TAGS, provider_key
from brimful.state.provider import as_published, publish
from brimful.state.redis_url import redis_client, sync_redis_client
from brimful_worker.local.fleet import LocalFleet
from brimful_worker.local.server.valkey import Valkey
from support.commands import environment
from support.gateways import GatewayProcess, gateway_process
from support.waiting import wait_until

_PROFILE = '[mine]\nmodes = ["chat"]\nmodel = "mine-1"\nslots = 3\nmax_prompts = 1\nbase_env = ["MINE_BASE"]\n'


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalFleet, GatewayProcess]]:
    """A fleet of the provider ``mine``, which has a chat endpoint only. The tests' own provider is ``acs``."""
    state = tmp_path_factory.mktemp("state")
    (state / "profiles.toml").write_text(_PROFILE)
    with gateway_process("--latency", "0", "--models", "mine-1") as gateway, pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINE_BASE", gateway.url)
        patch.setenv("OPENAI_API_KEY", "any")
        settings = Settings.load(provider="mine", profiles=state / "profiles.toml", state_dir=state)
        with LocalFleet(settings, workers=1) as local:
            patch.undo()
            with sync_redis_client(local.redis_url) as redis:
                wait_until(lambda: redis.exists(provider_key(settings.key_tag)), "the provider to be published", 60)
                raw = redis.get(provider_key(settings.key_tag))
                assert "MINE" not in str(raw)
                assert redis.ttl(provider_key(settings.key_tag)) > 0
            yield local, gateway


def test_a_map_uses_the_workers_endpoint_and_model(fleet: tuple[LocalFleet, GatewayProcess]) -> None:
    local, gateway = fleet
    with Fleet(local.redis_url) as client:
        assert client.sample("a", max_tokens=4, timeout=60)["model"] == "mine-1"
        results = list(client.map(["a", "b", "c"], max_tokens=4))
    assert [one.model for one in results] == ["mine-1"] * 3
    assert all(one.rollouts[0].message for one in results)
    assert set(gateway.ledger()["kinds"]) == {"chat"}


async def test_an_async_map_does_so_too(fleet: tuple[LocalFleet, GatewayProcess]) -> None:
    async with AsyncFleet(fleet[0].redis_url) as client:
        assert [one.model async for one in client.as_completed(["a"], max_tokens=4)] == ["mine-1"]


def test_a_run_does_so_too(fleet: tuple[LocalFleet, GatewayProcess], tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n')
    done = subprocess.run(
        [sys.executable, "-m", "brimful.cli", "run", "in.jsonl", "-o", "out.jsonl", "--max-tokens", "4"],
        cwd=tmp_path,
        env=environment(BRIMFUL_REDIS_URL=fleet[0].redis_url),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out.jsonl").read_text())["model"] == "mine-1"


async def test_what_is_not_understood_or_missing_leaves_the_client_s_own_settings(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACS_API_KEY", "any")
    own = Settings.load()
    theirs = own.profile.model_copy(update={"model": "theirs", "prices": {"theirs": Price(input=1, output=2)}})
    settings = own.with_profile(theirs, 7.0)
    async with redis_client(valkey.url) as redis:
        assert await as_published(valkey.url, own) is own
        await redis.zadd(TAGS, {settings.key_tag: 1})
        await publish(redis, settings)
        found = await as_published(valkey.url, own)
        assert (found.profile.model, found.timeout_s) == ("theirs", 7.0)
        newer = json.loads(await redis.get(provider_key(settings.key_tag)) or "")
        newer["profile"]["galaxies"] = 9
        newer["profile"]["prices"]["theirs"]["moons"] = 3
        await redis.set(provider_key(settings.key_tag), json.dumps({**newer, "more": 1}))
        assert (await as_published(valkey.url, own)).profile == found.profile
        assert found.profile.prices["theirs"].output == 2
        for junk in ("{", "[]", '{"profile": {"name": 1}, "timeout_s": 1}'):
            await redis.set(provider_key(settings.key_tag), junk)
            assert await as_published(valkey.url, own) is own
    await asyncio.to_thread(valkey.stop)
    assert await as_published(valkey.url, own) is own
