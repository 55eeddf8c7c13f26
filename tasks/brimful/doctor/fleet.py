"""The fleet: are there workers, do they read the queues, is what waits being taken."""

from __future__ import annotations

from collections.abc import Iterator

import redis

from brimful.config import Settings
from brimful.doctor.check import Check, Level
from brimful.names import QUEUES
from brimful.state.broker_queues import read_queues
from brimful.state.probes import worker_queues
from brimful.state.target import RedisTarget

_PING_S = 1.0


def fleet_checks(place: RedisTarget, client: redis.Redis, settings: Settings) -> Iterator[Check]:
    reads = worker_queues(place.url, settings.visibility_timeout_s, timeout_s=_PING_S)
    waiting = read_queues(client)
    total = sum(waiting.lengths.values())
    if not reads:
        level = Level.FAIL if total else Level.WARN
        said = f"none answers, and {total} tasks wait" if total else "none answers"
        yield Check("workers", level, said, "start some: `brimful worker`, or `brimful up` for a whole fleet")
        return
    yield Check("workers", Level.OK, f"{len(reads)}: {', '.join(sorted(reads)[:6])}{' …' if len(reads) > 6 else ''}")
    read = {queue for queues in reads.values() for queue in queues}
    if unread := [name for name in QUEUES if name not in read]:
        yield Check(
            "queues",
            Level.FAIL if any(waiting.lengths[name] for name in unread) else Level.WARN,
            f"no worker reads {', '.join(unread)}",
            "start a worker without --queues, or with these among them",
        )
    else:
        lengths = ", ".join(f"{name} {waiting.lengths[name]}" for name in QUEUES)
        yield Check("queues", Level.OK, f"waiting: {lengths}; in workers' hands: {waiting.unacked}")
