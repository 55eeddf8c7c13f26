"""The limits in force in Redis, beside those of this process's profile."""

from __future__ import annotations

from collections.abc import Iterator

import redis

from brimful.config import Settings
from brimful.doctor.check import Check, Level
from brimful.errors import UsageError
from brimful.state.status import Status, read_status
from brimful.state.target import RedisTarget, find_tag


def limit_checks(place: RedisTarget, client: redis.Redis, settings: Settings) -> Iterator[Check]:
    try:
        tag = find_tag(place, client, settings)
    except UsageError as error:
        yield Check("limits", Level.NOTE, str(error))
        return
    status = read_status(client, tag)
    if status.epoch is None or status.slots is None:
        profile = settings.profile
        said = f"no worker has used this key here yet; {profile.name}'s: {profile.slots} slots, "
        yield Check("limits", Level.NOTE, said + _starts(profile.starts, profile.window_s))
        return
    said = f"{status.slots} slots, {_starts(status.starts, status.window_s)}"
    if status.overridden:
        said += f"; set by hand: {', '.join(status.overridden)}"
    profile = settings.profile
    if (status.slots, status.starts or None) != (profile.slots, profile.starts) and not status.overridden:
        yield Check(
            "limits",
            Level.WARN,
            f"{said}; this process would set {profile.slots} slots, {_starts(profile.starts, profile.window_s)}",
            "the fleet obeys Redis's; `brimful limits set` changes them for all",
        )
    else:
        yield Check("limits", Level.OK, said)
    yield from _trouble(status)


def _trouble(status: Status) -> Iterator[Check]:
    if status.rebuilding:
        yield Check("admission", Level.WARN, "Redis lost its memory; nothing starts until all workers have reported")
    if status.pause_s > 0:
        yield Check(
            "admission",
            Level.WARN,
            f"paused for another {status.pause_s:.0f} s: {status.pause_reason or 'no reason was given'}",
            "nothing: it goes on by itself",
        )
    if status.circuit_breaker != "closed":
        yield Check(
            "circuit breaker",
            Level.WARN,
            f"{status.circuit_breaker} after {status.failures} failures in a row",
            "the provider is unwell, or refuses this kind of request; one request at a time finds out",
        )


def _starts(starts: int | None, window_s: float) -> str:
    return f"{starts} starts in {window_s:g} s" if starts else "no limit of starts"
