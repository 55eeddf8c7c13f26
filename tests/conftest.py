from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis
from kombu.asynchronous import Hub, set_event_loop

from brimful.credentials import header_variables
from brimful.profile import load_profiles
from brimful_worker.local.server.valkey import Valkey
from support.file_order import interleaved
from support.limit_tests import asserts_limits
from support.startup import python_path

# The same examples at each run, so that a test fails for a change only; the long tests try others each time.
# No deadline for an example: a busy machine may take a second for the shortest.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("others", deadline=None)
hypothesis.settings.load_profile("others" if os.environ.get("BRIMFUL_CHAOS") == "long" else "same")

os.environ["PYTHONPATH"] = python_path(os.environ.get("PYTHONPATH", ""))

_OF_PROVIDERS = {
    name
    for profile in load_profiles(None).values()
    for name in (*profile.base_env, *profile.key_env, *header_variables(profile.headers))
}


def pytest_collectstart() -> None:
    """What collecting tests makes stays until the end: the garbage collector looks through none of it."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and asserts_limits(item.path, item.function, item.cls):
            item.add_marker("limits")
    items[:] = interleaved(items)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the developer's own keys, settings or .env, nor leaves state in the home."""
    for name in list(os.environ):
        if name.startswith(("BRIMFUL_", "CELERY_", "FLOWER_", "OTEL_", *_OF_PROVIDERS)):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A real Valkey that the module's tests share."""
    with Valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Valkey) -> Iterator[redis.Redis]:
    """A client of the module's Valkey; it blocks, and answers with str."""
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    """A real, empty Valkey on a free port; ``valkey.url`` is what BRIMFUL_REDIS_URL wants."""
    with Valkey(tmp_path / "valkey") as server:
        yield server


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/New_York"])
def timezone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The machine's own timezone, one after the other: what a provider's date means does not depend on it."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def hub() -> Iterator[Any]:
    """The event loop on which a channel of Celery's broker is polled."""
    hub = Hub()
    set_event_loop(hub)
    yield hub
    hub.close()
    set_event_loop(None)
