"""The sampler and a mock gateway in one process, without Redis: what ``brimful.testing`` answers from.

Level 6. Loaded by name; nothing imports it.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from pydantic import SecretStr

from brimful.config import Settings
from brimful.outcome import Outcome
from brimful.request import Request
from brimful_worker.admission import Admission, Lease
from brimful_worker.gateway import Gateway, GatewayOptions
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.liveness.watchdog import Watchdog
from brimful_worker.provider import Provider
from brimful_worker.sampling.sampler import Sampler

Sample = Callable[[Request], Awaitable[Outcome]]


@asynccontextmanager
async def mock_provider(settings: Settings, options: Mapping[str, Any]) -> AsyncIterator[tuple[Gateway, Sample]]:
    """A running gateway, and a function that samples from it. ``options``: fields of GatewayOptions.

    Answers take no time unless ``options`` say so, and retries wait for hundredths of a second.
    """
    headers = (settings.profile.key_header,)
    fields = {"latency_s": 0.0, "per_token_s": 0.0, "models": [], "key_headers": headers, **options}
    async with Gateway(GatewayOptions(**fields)) as gateway:
        quick = settings.model_copy(update={"backoff_base_s": 0.01, "backoff_cap_s": 0.05, "job_poll_s": 0.02})
        here = quick.placed(redis_url="memory://", api_base=gateway.url, api_key=SecretStr("test"))
        async with Provider(here) as provider:
            yield gateway, Sampler(here, cast("Admission", _Unlimited()), provider).sample


def _grant() -> Lease:
    """A grant that costs nothing and is never lost."""
    lease = Lease("", 0.0, math.inf, boot_time(), Watchdog())
    lease.start_only = True  # so its connections are not watched
    return lease


@dataclass
class _Status:
    slots_used: int
    cooling: int = 0


class _Unlimited:
    """The part of Admission that a sampler uses."""

    _active = 0

    @asynccontextmanager
    async def slot(self, *_: Any, **__: Any) -> AsyncIterator[Lease]:
        self._active += 1
        try:
            yield _grant()
        finally:
            self._active -= 1

    @asynccontextmanager
    async def start_only(self) -> AsyncIterator[Lease]:
        yield _grant()

    async def pause(self, seconds: float, reason: str, *, until_accepted: bool = False) -> None:
        """A test does not wait for a Retry-After."""

    async def status(self) -> _Status:
        return _Status(self._active)
