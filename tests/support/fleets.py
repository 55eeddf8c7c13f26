"""A local fleet of real worker processes against a mock gateway in its own process, for tests that enqueue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.result import AsyncResult

from brimful.config import Settings
from brimful_worker.admission import mark_clean
from brimful_worker.local.fleet import LocalFleet
from brimful_worker.local.server.valkey import Valkey
from support.gateways import GatewayProcess, gateway_process
from support.waiting import wait_until

_GRACE_S = 5.0


def declare_new(valkey: Valkey, key: str, db: int = 0) -> None:
    """Declare that no worker of this API key was on this server before: its first one waits a lease for none."""
    with (
        pytest.MonkeyPatch.context() as patch,
        redis.Redis(port=valkey.port, db=db, password=valkey.password) as client,
    ):
        patch.setenv("ACS_API_KEY", key)
        mark_clean(client, Settings.load().key_tag)


@dataclass
class Fleet:
    local: LocalFleet
    gateway: GatewayProcess
    app: Celery
    """A service's own app, which knows only a Redis URL and task names."""

    def sample(self, prompt: Any, **fields: Any) -> AsyncResult:
        fields.setdefault("max_tokens", 4)
        return self.app.send_task("brimful.sample", args=[prompt], kwargs=fields, queue="batch")

    def sample_many(self, count: int, **fields: Any) -> list[AsyncResult]:
        return [self.sample(f"prompt {number}", **fields) for number in range(count)]


@contextmanager
def fleet(
    monkeypatch: pytest.MonkeyPatch, gateway: GatewayProcess, *, workers: int, key: str = "sk-fleet", **settings: Any
) -> Iterator[Fleet]:
    """``settings`` are fields of Settings. All workers answer before the block begins."""
    monkeypatch.setenv("ACS_API_BASE", gateway.url)
    monkeypatch.setenv("ACS_API_KEY", key)
    local = LocalFleet(Settings.load(**settings), workers=workers)
    local.start()
    try:
        app = Celery("service", broker=local.redis_url, backend=local.redis_url, set_as_current=False)
        try:
            wait_until(lambda: local.ready_workers() >= workers, f"{workers} workers", timeout=60)
            yield Fleet(local, gateway, app)
        finally:
            app.close()
    finally:
        local.stop(_GRACE_S)


@contextmanager
def shared_fleet(state: Path, *, latency_s: float, workers: int, **settings: Any) -> Iterator[Fleet]:
    """For a module's tests: a fleet, and a gateway of its own that answers after ``latency_s`` and 0.01 s a token."""
    with pytest.MonkeyPatch.context() as patch, gateway_process("--latency", str(latency_s)) as gateway:
        patch.setenv("XDG_STATE_HOME", str(state))
        with fleet(patch, gateway, workers=workers, **settings) as shared:
            yield shared
