"""The fleet: are there workers, do they read the queues, is what waits being taken."""

from __future__ import annotations

from collections.abc import Iterator

import redis
from celery import Celery

from brimful.config import Settings
from brimful.doctor.check import Check, Level
from brimful.names import QUEUES
from brimful.state.broker_queues import read_queues
from brimful.state.redis_url import broker_options, broker_url
from brimful.state.target import Place

_PING_S = 1.0


def fleet_checks(place: Place, client: redis.Redis, settings: Settings) -> Iterator[Check]:
    with Celery("brimful-doctor", broker=broker_url(place.url), set_as_current=False) as app:
        app.conf.broker_transport_options = broker_options(place.url, settings.visibility_timeout_s)
        reads: dict[str, list[dict[str, str]]] = app.control.inspect(timeout=_PING_S).active_queues() or {}
    waiting = read_queues(client)
    total = sum(waiting.lengths.values())
    if not reads:
        level = Level.FAIL if total else Level.WARN
        said = f"none answers, and {total} tasks wait" if total else "none answers"
        yield Check("workers", level, said, "start some: `brimful worker`, or `brimful up` for a whole fleet")
        return
    yield Check("workers", Level.OK, f"{len(reads)}: {', '.join(sorted(reads)[:6])}{' …' if len(reads) > 6 else ''}")
    read = {str(queue["name"]) for queues in reads.values() for queue in queues}
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
