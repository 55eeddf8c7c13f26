"""Mistakes of a service's author, and errors in its code: the client raises that one error, at once."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis

import brimful
from brimful import AsyncFleet, Fleet, errors
from brimful.addresses import FleetAddress
from brimful.celery import App, configuration
from brimful.client import mapping
from brimful_worker.local.server.valkey import Valkey
from support.commands import environment
from support.stub_fleet import Background, StubSampler, refuse_thirteen, stub_fleet


def _python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=environment(**env), capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("client", [Fleet, AsyncFleet])
def test_a_fleet_without_a_url_is_refused(client: type[Fleet] | type[AsyncFleet]) -> None:
    with pytest.raises(errors.SettingError, match="BRIMFUL_REDIS_URL is not set"):
        client()


def test_a_task_without_a_url_is_refused_at_once() -> None:
    done = _python("import brimful; brimful.sample.delay('x')")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("brimful.errors.SettingError: BRIMFUL_REDIS_URL is not set")
    assert "another exception" not in done.stderr


def test_celerys_broker_url_is_enough_to_enqueue(valkey: Valkey) -> None:
    done = _python("import brimful; print(brimful.sample.delay('x').state)", CELERY_BROKER_URL=valkey.url)
    assert (done.returncode, done.stdout) == (0, "PENDING\n"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["report"], 0, "brimful"),
        (["worker"], 2, "BRIMFUL_REDIS_URL is not set"),
    ],
)
def test_celerys_commands_without_a_url(arguments: list[str], code: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "brimful", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_map_without_redis_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "REACH_S", 0.0)
    with Fleet("redis://:hidden@127.0.0.1:1/0") as fleet, pytest.raises(errors.RedisUnreachable) as caught:
        list(fleet.map(["hi"], max_tokens=8))
    assert "127.0.0.1:1/0" in str(caught.value)
    assert "BRIMFUL_REDIS_URL" in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_an_error_in_a_map_is_the_only_one_reported(
    valkey: Valkey, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    unraised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    prompts = [f"p{place}" for place in range(500)]
    with (
        Background(valkey.url, StubSampler(refuse_thirteen)),
        pytest.raises(errors.PermanentFailure) as caught,
        Fleet(valkey.url) as fleet,  # closed while the exception holds the map
    ):
        _ = [one.texts for one in fleet.map(prompts, max_tokens=8)]
    assert caught.value.__context__ is None
    del caught
    assert unraised == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert not [thread for thread in threading.enumerate() if thread.name == "brimful-map"]


@pytest.mark.parametrize("fleet", ["fleet = AsyncFleet()", "fleet = await stack.enter_async_context(AsyncFleet())"])
async def test_an_error_in_an_async_map_is_the_only_one_reported(valkey: Valkey, fleet: str, tmp_path: Path) -> None:
    script = tmp_path / "service.py"
    script.write_text(f"""
import asyncio, contextlib
from brimful import AsyncFleet
async def main():
    async with contextlib.AsyncExitStack() as stack:
        {fleet}
        print([one.texts async for one in fleet.map([f"p{{place}}" for place in range(500)], max_tokens=8)])
asyncio.run(main())
""")
    async with stub_fleet(valkey.url, StubSampler(refuse_thirteen)):
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), env=environment(BRIMFUL_REDIS_URL=valkey.url), stderr=subprocess.PIPE
        )
        _, said = await process.communicate()
    assert said.decode().splitlines()[-1].startswith("brimful.errors.PermanentFailure: content_filter"), said.decode()
    assert said.decode().count("Traceback") == 1, said.decode()


def test_a_handle_that_outlives_its_fleet_does_not_reconnect(valkey: Valkey, caplog: pytest.LogCaptureFixture) -> None:
    with Fleet(valkey.url) as fleet:
        handle = fleet.submit("hi", max_tokens=8)
    valkey.stop()
    del handle
    gc.collect()
    assert [record for record in caplog.records if "lost" in record.getMessage()] == []


def test_a_given_url_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert configuration(FleetAddress("redis://there/1"))["broker_url"] == "redis://there:6379/1"
    assert configuration()["broker_url"] is None
    assert isinstance(brimful.app, App)
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://own/2")
    assert configuration()["result_backend"] == "redis://own/2"
    assert os.environ.get("BRIMFUL_REDIS_URL") is None


def test_the_fleets_url_beats_celerys_own_variables(valkey: Valkey) -> None:
    """Such variables may be meant for another app of the service."""
    names = ("CELERY_BROKER_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")
    env = {**dict.fromkeys(names, "redis://127.0.0.1:1/0"), "BRIMFUL_REDIS_URL": valkey.url}
    done = _python("import brimful; print(brimful.sample.delay('x').state)", **env)
    assert (done.returncode, done.stdout) == (0, "PENDING\n"), done.stderr
    with redis.Redis(port=valkey.port) as client:
        assert client.llen("interactive") == 1
