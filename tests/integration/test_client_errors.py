"""What a service's author does wrong, and what the client says: the one error that is theirs, at once."""

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

import brimful
from brimful import AsyncFleet, Fleet, errors
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
def test_a_fleet_without_a_url_is_not_made(client: type[Fleet] | type[AsyncFleet]) -> None:
    with pytest.raises(errors.SettingError, match="BRIMFUL_REDIS_URL is not set"):
        client()


def test_a_task_without_a_url_is_refused_at_once() -> None:
    done = _python("import brimful; brimful.sample.delay('x')")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("brimful.errors.SettingError: BRIMFUL_REDIS_URL is not set")
    assert "another exception" not in done.stderr


def test_celerys_own_url_will_do(valkey: Valkey) -> None:
    done = _python("import brimful; print(brimful.sample.delay('x').state)", CELERY_BROKER_URL=valkey.url)
    assert (done.returncode, done.stdout) == (0, "PENDING\n"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--help"], 0, "Usage"),
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


def test_a_redis_that_is_not_there_ends_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "REACH_S", 0.0)
    with Fleet("redis://:hidden@127.0.0.1:1/0") as fleet, pytest.raises(errors.RedisUnreachable) as told:
        list(fleet.map(["hi"], max_tokens=8))
    assert "127.0.0.1:1/0" in str(told.value)
    assert "BRIMFUL_REDIS_URL" in str(told.value)
    assert "hidden" not in str(told.value)


def test_an_error_in_a_comprehension_is_the_only_one(
    valkey: Valkey, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    unraised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    prompts = [f"p{place}" for place in range(500)]
    with (
        Background(valkey.url, StubSampler(refuse_thirteen)),
        pytest.raises(errors.PermanentFailure) as told,
        Fleet(valkey.url) as fleet,  # closed while the exception holds the map
    ):
        _ = [one.texts for one in fleet.map(prompts, max_tokens=8)]
    assert told.value.__context__ is None
    del told
    assert unraised == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert not [thread for thread in threading.enumerate() if thread.name == "brimful-map"]


@pytest.mark.parametrize("fleet", ["fleet = AsyncFleet()", "fleet = await stack.enter_async_context(AsyncFleet())"])
async def test_nor_are_there_others_with_asyncio(valkey: Valkey, fleet: str, tmp_path: Path) -> None:
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


def test_a_handle_outlives_its_fleet_in_peace(valkey: Valkey, caplog: pytest.LogCaptureFixture) -> None:
    with Fleet(valkey.url) as fleet:
        handle = fleet.submit("hi", max_tokens=8)
    valkey.stop()
    del handle
    gc.collect()
    assert [record for record in caplog.records if "lost" in record.getMessage()] == []


def test_an_app_that_is_told_where_goes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert configuration("redis://there/1")["broker_url"] == "redis://there/1"
    assert configuration()["broker_url"] is None
    assert isinstance(brimful.app, App)
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://own/2")
    assert configuration()["result_backend"] == "redis://own/2"
    assert os.environ.get("BRIMFUL_REDIS_URL") is None
