"""What the sampler gives a request that runs as a Job: the waits between its polls, and their starts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from brimful_worker.provider.answers.answer import Classification
from brimful_worker.provider.jobs import Hooks
from brimful_worker.sampling import retry
from brimful_worker.sampling.shared import Shared

_THROTTLED_POLLS = 3
"""After a 429 to a poll, the next waits as the poll after this many."""


def job_hooks(
    shared: Shared,
    *,
    note: Callable[[Classification], None],
    pause_fleet: Callable[[Classification], Awaitable[None]],
) -> Hooks:
    """``note`` gets each 429 to a poll; ``pause_fleet`` those that name a time, which the Job waits out as well."""
    settings = shared.settings

    async def pause(polls: int) -> None:
        await asyncio.sleep(retry.poll_pause(polls, first_s=settings.job_poll_s, uniform=shared.uniform))

    async def throttled(answer: Classification) -> None:
        note(answer)
        if answer.retry_after_s:
            await pause_fleet(answer)
            await asyncio.sleep(min(answer.retry_after_s, settings.retry_after_cap_s))
        await pause(_THROTTLED_POLLS)

    return Hooks(
        pause=pause,
        start=shared.admission.start_only if settings.profile.job_polls_count else None,
        throttled=throttled,
        giving_back=shared.stopping,
    )
