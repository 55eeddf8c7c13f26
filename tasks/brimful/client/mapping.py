"""Maps many requests through the fleet from one process: :class:`Sampled`, and the driver behind ``Fleet.map``.

Requests go to the workers as a run's do: packed, in shards, bounded, each exactly once.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sized
from dataclasses import dataclass, field, replace
from typing import Any

from brimful.client.arguments import check_packable, checked_workload
from brimful.config import Settings
from brimful.dispatch.driver import Driver
from brimful.dispatch.in_process import InProcessDriver
from brimful.errors import BadRequest
from brimful.fields import KNOWN, unknown_field
from brimful.names import IDEMPOTENCY_KEY, Workload
from brimful.outcome import Cause, Failure, Outcome, Rollout
from brimful.packing.request_size import line_profile
from brimful.packing.units import Delivered, Failed, PackOption, Unit, checked_weight, parse_pack
from brimful.packing.usage import merge_usage
from brimful.profile import Profile
from brimful.request import Request
from brimful.runtime.aio import OwnedAsyncGenerator
from brimful.runtime.port import in_process
from brimful.runtime.threads import read_in_thread
from brimful.state.fleets import check_submitter
from brimful.state.probes import unreachable
from brimful.state.provider import as_published
from brimful.state.redis_retry import retry_until_available
from brimful.state.redis_url import address_of, close_redis_client, redis_client
from brimful.tasks import check_fields

Asked = Request | Mapping[str, Any] | str | list[Any]
"""A Request, a mapping of its fields, or a prompt: ``str``, ``list[str]``, ``list[int]`` or ``list[list[int]]``."""

log = logging.getLogger(__name__)

REACH_S = 15.0
"""How long a map waits for Redis at its start; a Redis that was reached once is waited for without end."""
_WINDOW = 20_000
"""How far an ordered map reads ahead of the request that it waits for."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What became of one request of a map: all its rollouts, or a failure.

    ``for one in fleet.map(prompts, max_tokens=8): print(one.text if one.ok else one.failure.message)``
    """

    index: int
    """Its place among the requests, from 0."""
    id: str
    """Its ``id`` field, else its index."""
    rollouts: list[Rollout] = field(default_factory=list)
    """prompts x n of them, by prompt, then choice. Where the request failed, those that succeeded."""
    model: str = ""
    """As the provider names it."""
    usage: dict[str, Any] | None = None
    """The provider's ``usage``: ``prompt_tokens``, ``completion_tokens``, ``total_tokens``, and details such as cached
    and reasoning tokens. Where requests shared a call to the provider, this one's share, by its number of rollouts."""
    response: Mapping[str, Any] = field(default_factory=dict)
    """The other fields of the provider's (last) answer: ``id``, ``created``, ``system_fingerprint``, …"""
    failure: Failure | None = None
    """``cause``, ``message``, the HTTP ``status`` (if there was one), and whether it is ``permanent``."""
    attempts: int = 0
    """Calls to the provider, failed ones included."""
    request_id: str = ""
    """The id, in the workers' logs, of the (last) call to the provider that carried it."""
    provider_request_ids: list[str] = field(default_factory=list)
    """The provider's own ids of its calls."""

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def texts(self) -> list[str]:
        """The rollouts' texts, prompts x n of them. Raises as :meth:`check`."""
        self.check()
        return [rollout.text for rollout in self.rollouts]

    @property
    def text(self) -> str:
        """The only rollout's text. Raises as :meth:`check`, and ValueError where there are several rollouts."""
        [text] = self.texts
        return text

    def check(self) -> Sampled:
        """Itself. Raises the failure as a brimful.errors.SampleError where the request failed."""
        if self.failure is not None:
            raise self.failure.error(self.attempts, self.request_id, self.provider_request_ids)
        return self


class MapRun:
    """One map in progress."""

    def __init__(
        self,
        requests: Iterable[Asked] | AsyncIterable[Asked],
        settings: Settings,
        pack: PackOption | str,
        workload: Workload | str,
        weight: float | None,
        fields: Mapping[str, Any],
        *,
        ordered: bool,
    ) -> None:
        self._requests = requests
        self._settings = settings
        self._pack = parse_pack(pack, "pack")
        self._weight = settings.weight if weight is None else checked_weight(weight)
        self._ordered = ordered
        refuse_key(fields)
        self._fields = {**fields, "workload": checked_workload(workload).value}
        self._open: dict[int, tuple[Sampled, int]] = {}
        """By index: what came of a request so far, and how many of its rollouts are missing."""
        self._ended: dict[int, Sampled] = {}
        """By index, in the order in which they ended."""
        self._unknown = set(self._fields)
        """Fields that were pointed out."""
        self._next = 0
        self._moved = asyncio.Event()

    async def batches(self) -> AsyncIterator[list[Sampled]]:
        """Withdraws what is in flight when closed. Raises RedisUnreachable where Redis does not answer at the start."""
        total = len(self._requests) if isinstance(self._requests, Sized) else None
        workload = self._fields["workload"]
        driver, self._settings = await open_driver(self._settings, self._pack, workload, self._weight)
        deliveries = OwnedAsyncGenerator(driver.deliveries(self._units(), total=total))
        try:
            async for batch in deliveries:
                for item in batch:
                    self._take(item)
                if ready := self._ready():
                    yield ready
            if unsent := self._unsent(driver.snapshot().stopping):
                yield unsent
        finally:
            await deliveries.aclose()
            await driver.aclose()  # also if the deliveries were never begun

    async def _units(self) -> AsyncIterator[Unit | Failed]:
        source, profile = self._requests, line_profile(self._settings.profile)
        asked = aiter(source) if isinstance(source, AsyncIterable) else read_in_thread(source)
        index = -1
        async for one in asked:
            index += 1
            while self._ordered and index - self._next > _WINDOW:
                self._moved.clear()
                await self._moved.wait()
            id = str(index)
            try:
                request = parse_asked(one, self._fields, profile, self._unknown)
                id = request.id or id
            except BadRequest as error:
                failure = Failure(Cause.BAD_REQUEST, str(error), permanent=True)
                self._open[index] = Sampled(index, id), 0
                yield Failed(index + 1, id, None, (), failure, Outcome(id, failure=failure))
            else:
                self._open[index] = Sampled(index, id), request.choices
                yield Unit(index + 1, id, request)

    def _take(self, item: Delivered | Failed) -> None:
        index = item.line - 1
        if index not in self._open:
            return
        one, missing = self._open[index]
        one = replace(
            one,
            attempts=one.attempts + item.outcome.attempts,
            request_id=item.outcome.id,
            provider_request_ids=[*one.provider_request_ids, *item.outcome.provider_request_ids],
        )
        if isinstance(item, Failed):
            one = replace(one, failure=one.failure or item.failure)
            missing -= len(item.wanted)
        else:
            pairs = zip(item.rollouts, item.rollout_usages(), strict=True)
            one.rollouts.extend(replace(rollout, usage=usage) for rollout, usage in pairs)
            usage = merge_usage(one.usage, item.usage)
            one = replace(one, model=item.model, usage=usage, response=item.response)
            missing -= len(item.rollouts)
        if missing > 0:
            self._open[index] = one, missing
        else:
            del self._open[index]
            one.rollouts.sort(key=lambda rollout: (rollout.prompt_index, rollout.choice_index))
            self._ended[index] = one

    def _ready(self) -> list[Sampled]:
        if not self._ordered:
            ready = list(self._ended.values())
            self._ended.clear()
            return ready
        ready = []
        while self._next in self._ended:
            ready.append(self._ended.pop(self._next))
            self._next += 1
        self._moved.set()
        return ready

    def _unsent(self, stopping: str | None) -> list[Sampled]:
        """What the driver left when it stopped because the key or its budget was refused: not sent, so cancelled."""
        failure = Failure(Cause.CANCELLED, f"not sent: the map stopped ({stopping})")
        rest = [replace(one, failure=failure) for one, _ in self._open.values()] + list(self._ended.values())
        return sorted(rest, key=lambda one: one.index)


async def open_driver(
    settings: Settings, pack: PackOption, workload: str, weight: float
) -> tuple[Driver | InProcessDriver, Settings]:
    """A driver of requests that nobody resumes, and the settings with what the workers publish.

    Raises RedisUnreachable, RedisRefused and FleetTaken.
    """
    if (backend := in_process()) is not None:
        return InProcessDriver(backend, settings.profile), settings
    address = address_of(settings)
    await _reach(address.redis_url)
    await asyncio.to_thread(check_submitter, settings)
    settings = await as_published(address.redis_url, settings)
    driver = Driver(
        address,
        f"map-{uuid.uuid4().hex}",
        settings.profile,
        pack=pack,
        workload=workload,
        timeout_s=settings.timeout_s,
        weight=weight,
        keep=False,
    )
    return driver, settings


def parse_asked(one: Asked, defaults: Mapping[str, Any], profile: Profile, known: set[str]) -> Request:
    """The request that ``one`` makes with these defaults. Raises BadRequest.

    Fields that are neither brimful's nor ``known`` are logged, and known from then on.
    """
    if isinstance(one, Request):
        one = one.as_message()
    raw = one if isinstance(one, Mapping) else {"prompt": one}
    for name in raw.keys() - KNOWN - known:
        refuse_key(raw)
        check_fields({name: raw[name]})
        log.warning("brimful: %s", unknown_field(name))
        known.add(name)
    request = Request.parse({**defaults, **raw}, profile)
    check_packable(request.fields)
    return request


def refuse_key(fields: Mapping[str, Any]) -> None:
    if fields.get(IDEMPOTENCY_KEY) is not None:
        raise BadRequest(f"{IDEMPOTENCY_KEY}: only single requests take it (Fleet.sample, submit), not maps")


async def _reach(url: str) -> None:
    """Raises RedisUnreachable after :data:`REACH_S`, or at once where Redis refuses this user."""
    client = redis_client(url, socket_connect_timeout=3, socket_timeout=3)
    try:
        async with asyncio.timeout(REACH_S):
            await retry_until_available(client.ping)
    except TimeoutError:
        raise unreachable(url, TimeoutError(f"no answer in {REACH_S:g} s")) from None
    finally:
        await close_redis_client(client)
