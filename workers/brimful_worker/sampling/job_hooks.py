"""What a request asked as a Job needs of the sampler: the ticket that names it, and how it waits between polls.

Only Jobs come here: an ordinary request makes none of it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Protocol

from brimful.config import Settings
from brimful_worker.admission import Admission
from brimful_worker.provider.answers.answer import Classification
from brimful_worker.provider.jobs import Hooks, JobKey
from brimful_worker.sampling import retry

_THROTTLED_POLLS = 3
"""After a 429 to a poll, the next waits as if so many polls had been."""


class Tickets:
    """One request's, through all its attempts."""

    __slots__ = ("_caller", "_last")

    def __init__(self, scope: str, id: str) -> None:
        """Where both are empty, no later call finds the Job again."""
        self._caller = f"{scope}\0{id}" if scope or id else uuid.uuid4().hex
        self._last: JobKey | None = None

    def of(self, body: bytes) -> JobKey:
        """One key as long as the same is asked; what is missing of a short answer is another Job."""
        if self._last is None or self._last.body != body:
            self._last = JobKey(self._caller, body)
        return self._last


class Surroundings(Protocol):
    """What a Job's hooks need of the sampler."""

    settings: Settings
    admission: Admission
    uniform: Callable[[], float]
    stopping: Callable[[], bool]


def hooks(
    fleet: Surroundings,
    note: Callable[[Classification], None],
    pause_fleet: Callable[[Classification], Awaitable[None]],
) -> Hooks:
    """``note`` is told each 429 to a poll; ``pause_fleet`` those that name a time, which the Job waits out as well."""
    settings = fleet.settings

    async def pause(polls: int) -> None:
        await asyncio.sleep(retry.poll_pause(polls, first_s=settings.job_poll_s, uniform=fleet.uniform))

    async def throttled(told: Classification) -> None:
        note(told)
        if told.retry_after_s:
            await pause_fleet(told)
            await asyncio.sleep(min(told.retry_after_s, settings.retry_after_cap_s))
        await pause(_THROTTLED_POLLS)

    return Hooks(
        pause=pause,
        start=fleet.admission.start_only if settings.profile.job_polls_count else None,
        throttled=throttled,
        giving_back=fleet.stopping,
    )
