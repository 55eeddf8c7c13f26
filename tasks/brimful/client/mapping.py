"""Many requests through the fleet from one process: what :class:`brimful.client.fleet.Fleet` maps with.

Requests go the way of a run: packed, in shards, bounded, each exactly once; nothing is held but what is under way.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any

from redis import RedisError

from brimful.config import Settings
from brimful.dispatch.driver import Driver
from brimful.errors import BadRequest, RedisUnreachable
from brimful.names import Workload
from brimful.outcome import Cause, Failure, Rollout
from brimful.packing.request_size import check_line, line_profile
from brimful.packing.units import Delivered, Failed, PackOption, Unit
from brimful.request import Request
from brimful.runtime.aio import OwnedAsyncGenerator
from brimful.runtime.threads import read_in_thread
from brimful.state.redis_retry import RetryPolicy
from brimful.state.redis_url import close_redis_client, redis_client, required, without_password

Asked = Request | Mapping[str, Any] | str | list[Any]
"""A request, a mapping of its fields, or just a prompt."""

_WINDOW = 20_000
"""Requests that may be ahead of the one that an ordered map waits for."""
REACH_S = 15.0
"""A Redis that was never reached is given up after it; one that was is waited for."""
_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Sampled:
    """What became of one request of a map. Where it failed, ``texts`` and ``text`` raise what ``failure`` says."""

    index: int
    """Its place among the requests, from 0."""
    id: str
    """Its ``id`` field, else its index."""
    rollouts: list[Rollout] = field(default_factory=list)
    """By prompt, then choice. Complete where ``failure`` is None; what came all the same otherwise."""
    model: str = ""
    usage: dict[str, Any] | None = None
    """Its share of the tokens; see :func:`brimful.packing.usage.share_usage`."""
    failure: Failure | None = None
    attempts: int = 0

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def texts(self) -> list[str]:
        """The rollouts' texts. Raises the failure's SampleError where the request failed (``ok`` is False); what came
        all the same is in ``rollouts``."""
        self.check()
        return [rollout.text for rollout in self.rollouts]

    @property
    def text(self) -> str:
        """The text of a request for one rollout. Raises as :attr:`texts`."""
        [text] = self.texts
        return text

    def check(self) -> Sampled:
        """Itself. Raises brimful.errors.SampleError where it failed."""
        if self.failure is not None:
            raise self.failure.error()
        return self


@dataclass(slots=True)
class _Open:
    id: str
    missing: int
    rollouts: list[Rollout] = field(default_factory=list)
    model: str = ""
    usage: dict[str, Any] | None = None
    failure: Failure | None = None
    attempts: int = 0


class MapRun:
    """One map under way."""

    def __init__(
        self,
        requests: Iterable[Asked] | AsyncIterable[Asked],
        settings: Settings,
        *,
        pack: PackOption,
        workload: Workload,
        ordered: bool,
        fields: Mapping[str, Any],
    ) -> None:
        self._requests = requests
        self._profile = settings.profile
        self._line_profile = line_profile(settings.profile)
        self._workload = workload
        self._ordered = ordered
        self._fields = dict(fields)
        self._url = required(settings.redis_url)
        self._driver = Driver(
            self._url,
            f"map-{uuid.uuid4().hex}",
            settings.profile,
            pack=pack,
            workload=workload,
            timeout_s=settings.timeout_s,
            keep=False,
        )
        self._open: dict[int, _Open] = {}
        self._ready: deque[Sampled] = deque()
        self._held: dict[int, Sampled] = {}
        self._next = 0
        self._moved = asyncio.Event()

    async def batches(self) -> AsyncIterator[list[Sampled]]:
        """Ends everything of it when closed. Raises RedisUnreachable where nothing answers from the beginning."""
        total = len(self._requests) if isinstance(self._requests, Sized) else None
        deliveries = OwnedAsyncGenerator(self._driver.deliveries(self._units(), total=total))
        try:
            await _reach(self._url)
            async for batch in deliveries:
                for item in batch:
                    self._take(item)
                if ready := self._flush():
                    yield ready
            if ready := self._flush():
                yield ready
        finally:
            await deliveries.aclose()
            await self._driver.aclose()  # where it was not begun

    async def _units(self) -> AsyncIterator[Unit]:
        source = self._requests
        asked = aiter(source) if isinstance(source, AsyncIterable) else read_in_thread(source)
        index = -1
        async for one in asked:
            index += 1
            while self._ordered and index - self._next > _WINDOW:
                self._moved.clear()
                await self._moved.wait()
            id = str(index)
            try:
                request = self._request(one)
                id = request.id or id
                check_line(request, self._profile)
            except BadRequest as error:
                self._end(index, Sampled(index, id, failure=Failure(Cause.BAD_REQUEST, str(error), permanent=True)))
                continue
            self._open[index] = _Open(id, request.choices)
            yield Unit(index + 1, id, request)

    def _request(self, one: Asked) -> Request:
        if isinstance(one, Request):
            one = one.as_message()
        raw = dict(one) if isinstance(one, Mapping) else {"prompt": one}
        return Request.parse({**self._fields, "workload": self._workload.value, **raw}, self._line_profile)

    def _take(self, item: Delivered | Failed) -> None:
        index = item.line - 1
        whole = self._open.get(index)
        if whole is None:
            return
        whole.attempts += item.outcome.attempts
        if isinstance(item, Failed):
            whole.failure = whole.failure or item.failure
            whole.missing -= len(item.wanted)
        else:
            whole.rollouts += item.rollouts
            whole.model = item.model
            whole.usage = _sum(whole.usage, item.usage)
            whole.missing -= len(item.rollouts)
        if whole.missing <= 0:
            del self._open[index]
            whole.rollouts.sort(key=lambda rollout: (rollout.prompt_index, rollout.choice_index))
            ended = Sampled(index, whole.id, whole.rollouts, whole.model, whole.usage, whole.failure, whole.attempts)
            self._end(index, ended)

    def _end(self, index: int, ended: Sampled) -> None:
        if self._ordered:
            self._held[index] = ended
        else:
            self._ready.append(ended)

    def _flush(self) -> list[Sampled]:
        while self._ordered and self._next in self._held:
            self._ready.append(self._held.pop(self._next))
            self._next += 1
        self._moved.set()
        ready = list(self._ready)
        self._ready.clear()
        if not ready and self._driver.snapshot().stopping and not self._driver.snapshot().queued:
            return self._abandoned()
        return ready

    def _abandoned(self) -> list[Sampled]:
        """The key or its budget was refused: what was not sent is said to be cancelled."""
        why = self._driver.snapshot().stopping
        failure = Failure(Cause.CANCELLED, f"not sent: the run ended with {why}")
        rest = [Sampled(index, whole.id, whole.rollouts, failure=failure) for index, whole in self._open.items()]
        rest += self._held.values()
        self._open.clear()
        self._held.clear()
        return sorted(rest, key=lambda one: one.index)


async def _reach(url: str) -> None:
    """Raises RedisUnreachable after :data:`REACH_S`, or at once where this user is refused."""
    client = redis_client(url, socket_connect_timeout=3, socket_timeout=3)
    policy, end = RetryPolicy(), time.monotonic() + REACH_S
    try:
        while True:
            try:
                await client.ping()
                return
            except (RedisError, OSError) as error:
                if time.monotonic() > end:
                    raise RedisUnreachable(
                        f"no Redis at {without_password(url)}, tried for {REACH_S:g} s ({type(error).__name__}): check "
                        "BRIMFUL_REDIS_URL, and that the server runs"
                    ) from None
                policy.check(error)
            await asyncio.sleep(_PAUSE_S)
    finally:
        await close_redis_client(client)


def _sum(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any] | None:
    if one is None or other is None:
        return one or other
    return {
        name: one[name] + value if isinstance(value, int) and isinstance(one.get(name), int) else value
        for name, value in other.items()
    }
