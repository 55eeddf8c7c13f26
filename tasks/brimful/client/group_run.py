"""Samples groups for RL trainers: the driver behind ``Fleet.group``.

The samples of a prompt are requests of one driver, as a map's are, so that whichever a group does not need any more can
be cancelled alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from brimful.client.arguments import checked_workload
from brimful.client.group import Group, GroupOptions
from brimful.client.group_pack import GroupPacking
from brimful.client.mapping import Asked, open_driver, parse_asked, refuse_key
from brimful.config import Settings
from brimful.errors import BadRequest
from brimful.names import Workload
from brimful.outcome import Cause, Failure, Outcome, Rollout
from brimful.packing.request_size import line_profile
from brimful.packing.units import Delivered, Failed, Unit, checked_weight
from brimful.request import Request
from brimful.runtime.aio import OwnedAsyncGenerator, cancel_and_wait


@dataclass(slots=True)
class _Open:
    """A group that has not ended."""

    waiting: set[int]
    samples: dict[int, Rollout] = field(default_factory=dict)
    missing: dict[int, Failure] = field(default_factory=dict)
    attempts: int = 0


class GroupRun:
    """Samples one set of groups. Call :meth:`run` once."""

    def __init__(
        self,
        prompts: Iterable[Asked],
        settings: Settings,
        options: GroupOptions,
        workload: Workload | str,
        weight: float | None,
        fields: Mapping[str, Any],
    ) -> None:
        """Raises SettingError and BadRequest."""
        refuse_key(fields)
        if "n" in fields:
            raise BadRequest("n: name it once, as group(…, n=8)")
        self._prompts = list(prompts)
        self._settings = settings
        self._options = options
        self._n = n = options.n
        self._width = n + options.oversample
        self._weight = settings.weight if weight is None else checked_weight(weight)
        self._fields = {**fields, "workload": checked_workload(workload).value}
        self._unknown = set(self._fields)
        self._open: dict[int, _Open] = {}
        """By the prompt's place."""
        self._begun = 0
        """Prompts whose requests are planned."""
        self._packing = GroupPacking(len(self._prompts), options)
        self.dropped: list[Group] = []
        """Groups that were not full at the deadline, where these are dropped."""

    async def run(self, put: Callable[[Group], None]) -> None:
        """Sample until the last group or the deadline; call ``put`` once for each group. Leaves nothing running.

        Raises RedisUnreachable, RedisRefused and FleetTaken.
        """
        deadline_s = self._options.deadline_s
        why = Failure(Cause.CANCELLED, f"not there at the deadline of {deadline_s or 0:g} s; cancelled")
        try:
            async with asyncio.timeout(deadline_s) as clock:
                why = await self._sample(put) or why
        except TimeoutError:
            if not clock.expired():
                raise
        for index in range(len(self._prompts)):
            group = self._ended(index, why)
            if group is not None and self._options.stragglers == "drop":
                self.dropped.append(group)
            elif group is not None:
                put(group)

    async def _sample(self, put: Callable[[Group], None]) -> Failure | None:
        """Returns why the driver stopped early; None if it did not."""
        driver, self._settings = await open_driver(self._settings, "off", self._fields["workload"], self._weight)
        deliveries = OwnedAsyncGenerator(driver.deliveries(self._units()))
        try:
            async for batch in deliveries:
                unneeded: set[int] = set()
                for item in batch:
                    index = (item.line - 1) // self._width
                    if (group := self._take(index, item)) is not None:
                        unneeded |= {index * self._width + number + 1 for number in self._open.pop(index).waiting}
                        put(group)
                if unneeded:
                    await driver.cancel(unneeded)
            stopping = driver.snapshot().stopping
            return Failure(Cause.CANCELLED, f"not sent: the groups stopped ({stopping})") if stopping else None
        finally:
            await deliveries.aclose()
            await driver.aclose()  # also if the deliveries were never begun

    async def _units(self) -> AsyncIterator[Unit | Failed]:
        profile = line_profile(self._settings.profile)
        for index, asked in enumerate(self._prompts):
            line = index * self._width + 1
            self._open[index] = group = _Open(set(range(self._width)))
            self._begun = index + 1
            try:
                request = parse_asked(asked, self._fields, profile, self._unknown)
                if request.choices != 1:
                    raise BadRequest("a group has one prompt, whose number of samples is group(…, n=8)")
                if self._packing.together(index, request, self._settings.profile):
                    group.waiting = set(range(self._n))
                    packed = Request.parse({**request.as_message(), "n": self._n}, profile)
                    yield Unit(line, request.id or str(index), packed)
                    continue
            except BadRequest as error:
                failure = Failure(Cause.BAD_REQUEST, str(error), permanent=True)
                yield Failed(line, str(index), None, (), failure, Outcome(str(index), failure=failure))
                continue
            for number in range(self._width):
                if index not in self._open:
                    break  # full before all that may be needed were sent
                yield Unit(line + number, f"{request.id or index}-{number}", _seeded(request, number))

    def _take(self, index: int, item: Delivered | Failed) -> Group | None:
        """Add a result to its group. Returns the group if it has ended with this."""
        group = self._open.get(index)
        if group is None:
            return None
        first = (item.line - 1) % self._width
        group.attempts += item.outcome.attempts
        if isinstance(item, Failed):
            numbers = {first + choice for _, choice in item.wanted} or set(group.waiting)
            group.missing |= dict.fromkeys(numbers & group.waiting, item.failure)
        else:
            numbers = {first + rollout.choice_index for rollout in item.rollouts}
            for rollout, usage in zip(item.rollouts, item.rollout_usages(), strict=True):
                number = first + rollout.choice_index
                if len(group.samples) < self._n:
                    group.samples[number] = replace(rollout, choice_index=number, usage=usage)
            if item.outcome.attempts == 1:
                self._packing.note(len(numbers), item.outcome.provider_s)
        group.waiting -= numbers
        ended = len(group.samples) == self._n or not group.waiting
        return self._group(index, group) if ended else None

    def _ended(self, index: int, why: Failure) -> Group | None:
        """The group of a prompt that was still sampled or not begun when the run ended; None if it had ended before."""
        group = self._open.pop(index, None)
        if group is None:
            if index < self._begun:
                return None
            group = _Open(set(range(self._n)))
        group.missing |= dict.fromkeys(group.waiting, why)
        return self._group(index, group)

    def _group(self, index: int, group: _Open) -> Group:
        asked = self._prompts[index]
        own = asked.id if isinstance(asked, Request) else asked.get("id") if isinstance(asked, Mapping) else None
        samples = [group.samples[number] for number in sorted(group.samples)]
        missing = {} if len(samples) == self._n else dict(sorted(group.missing.items()))
        return Group(index, str(own or index), asked, self._n, samples, missing, group.attempts)


class AsyncGroups:
    """What ``AsyncFleet.group`` returns: an async context manager, and an async iterator of :class:`Group`."""

    def __init__(self, run: GroupRun, begun: set[AsyncGroups] | None = None) -> None:
        """``begun``: its fleet's set of those that are to be closed."""
        self._run = run
        self._all = set() if begun is None else begun
        self._groups: asyncio.Queue[Group | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    @property
    def dropped(self) -> list[Group]:
        """The groups that ``stragglers="drop"`` has kept back, each with what it had and what is missing."""
        return self._run.dropped

    async def __aenter__(self) -> Self:
        """Raises RuntimeError the second time: all would be sampled again."""
        if self._task is not None:
            raise RuntimeError("its block was entered before: call fleet.group(…) again for new groups")
        self._all.add(self)
        self._task = asyncio.create_task(self._run.run(self._groups.put_nowait))
        self._task.add_done_callback(lambda _: self._groups.put_nowait(None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Group:
        group = await self.next()
        if group is None:
            raise StopAsyncIteration
        return group

    async def next(self) -> Group | None:
        """The next group; None after the last. Raises what :meth:`GroupRun.run` raises."""
        if self._task is None:
            raise RuntimeError("enter its block first: `async with fleet.group(…) as groups:` (`with` for Fleet)")
        group = await self._groups.get()
        if group is None:
            self._groups.put_nowait(None)
            if not self._task.cancelled():
                self._task.result()
        return group

    async def aclose(self) -> None:
        """Cancel what is left. Idempotent."""
        self._all.discard(self)
        if self._task is not None:
            await cancel_and_wait([self._task])


def _seeded(request: Request, number: int) -> Request:
    """With a seed, every sample has one of its own: the same would give the same text."""
    seed = request.fields.get("seed")
    if not isinstance(seed, int):
        return request
    return replace(request, fields={**request.fields, "seed": seed + number})
