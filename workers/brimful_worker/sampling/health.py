"""Reports how the provider answers: to the log when that changes, and to Redis for the whole fleet."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from redis.asyncio import Redis

from brimful.state.keys import health_key
from brimful.state.provider_health import KEPT_S, LastAnswer, ProviderState, health_fields
from brimful.state.redis_retry import retry_until_available
from brimful_worker.provider.answers.answer import Classification, Kind
from brimful_worker.sampling import retry

log = logging.getLogger(__name__)

_PUBLISH_S = 5.0
_LEAST_S = 0.5
"""Seconds between two writes: while the state stays, and at least."""
_LOG_AGAIN_S = 60.0
_STATES = {
    Kind.THROTTLED: ProviderState.THROTTLED,
    Kind.KEY_REFUSED: ProviderState.KEY_REFUSED,
    Kind.BUDGET: ProviderState.QUOTA,
}
_LASTING = (ProviderState.KEY_REFUSED, ProviderState.QUOTA)
"""States that no retry ends."""
_LOGGED = {
    ProviderState.KEY_REFUSED: "the provider refuses the API key (%s): requests fail until the key is replaced",
    ProviderState.QUOTA: "the key's quota is at its end (%s): requests fail until it is raised",
    ProviderState.THROTTLED: "the provider answers 429 (%s)",
    ProviderState.FAILING: "the provider fails (%s)",
}


class HealthReporter:
    """One worker process's. Used on its event loop."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._answers: dict[ProviderState, LastAnswer] = {}
        self._state: ProviderState | None = None
        self._logged_at: dict[ProviderState, float] = {}
        self._paused_until = 0.0
        self._news = asyncio.Event()
        self._turned = asyncio.Event()

    def observe(self, answer: Classification) -> None:
        """An attempt has ended. Its message holds neither key nor prompt."""
        state = _state(answer)
        if state is None:
            return
        now = self._clock()
        if state is self._state:
            self._answers[state].at = now
        else:
            self._turn(state, now, answer)
        self._news.set()

    def paused(self, seconds: float, reason: str) -> None:
        """The fleet was asked to pause. Logged once, not for each of the answers that say so."""
        until = self._clock() + seconds
        if until > self._paused_until + 1.0:
            log.warning("the fleet pauses for %.0f s: %s", seconds, reason)
        self._paused_until = max(until, self._paused_until)

    def forget(self) -> None:
        """Another API key is used from now on: what the provider said of the last one no longer holds."""
        self._answers.clear()
        self._state = None
        self._news.clear()

    async def publish(self, client: Redis, tag: Callable[[], str], *, every_s: float = _PUBLISH_S) -> None:
        """Write to Redis what is new, for the key with this tag: another state at once, and a further answer of the
        same state every so many seconds. Never returns."""
        while True:
            await self._news.wait()
            self._news.clear()
            self._turned.clear()
            await retry_until_available(lambda: self._write(client, tag()))
            await asyncio.sleep(_LEAST_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s - _LEAST_S):
                    await self._turned.wait()

    async def _write(self, client: Redis, tag: str) -> None:
        if not self._answers:
            return
        async with client.pipeline(transaction=True) as pipe:
            pipe.hset(health_key(tag), mapping=health_fields(self._answers))
            pipe.expire(health_key(tag), KEPT_S)
            await pipe.execute()

    def _turn(self, state: ProviderState, now: float, answer: Classification) -> None:
        before, self._state = self._state, state
        if before in _LASTING and state is ProviderState.OK:
            log.warning("the provider takes requests again, %.0f s after it began to refuse them", now - self._since())
        self._answers[state] = LastAnswer(now, now, answer.status, answer.message)
        self._turned.set()
        if state in _LOGGED and (state in _LASTING or now - self._logged_at.get(state, 0.0) >= _LOG_AGAIN_S):
            self._logged_at[state] = now
            log.log(logging.ERROR if state in _LASTING else logging.WARNING, _LOGGED[state], answer.message)

    def _since(self) -> float:
        return max(answer.since for state, answer in self._answers.items() if state in _LASTING)


def _state(answer: Classification) -> ProviderState | None:
    """None: the answer says nothing about the provider."""
    if (state := _STATES.get(answer.kind)) is not None:
        return state
    if answer.kind is Kind.PERMANENT and answer.status is None:
        return ProviderState.FAILING  # its certificate or URL is invalid
    ok = True if answer.kind is Kind.PERMANENT else retry.provider_health(answer)
    return None if ok is None else ProviderState.OK if ok else ProviderState.FAILING
